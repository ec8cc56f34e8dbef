-- Format 4. Whoever looks at all that runs, a page at a time, finds each page without going through the others.
CREATE INDEX live_by_time ON live (created_at, id);

-- How full its page is a row tells by its place there, whatever has brought it there and whoever shares it.
DROP FUNCTION room(int8);

-- What is as long as all that new rows may fill of a page: a row with it begins a page of its own. Each row has it when it is
-- made, which is when it is in no place yet, and again when its page is about to be full; with any other beat it gives it up.
CREATE FUNCTION room(place tid) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN place IS NULL OR (place::text::point)[1] >= 104 THEN repeat(' ', 740) END $$;
