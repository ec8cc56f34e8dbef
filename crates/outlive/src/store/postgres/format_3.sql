-- Format 3. What a process says of itself is written once, beside the row that its beats rewrite. Of such a row more than a
-- hundred versions fit a page, so that beats stay on theirs, and leave the index alone, for as long while a transaction that
-- is held open keeps what they leave from being cleared up.
CREATE TABLE process (id uuid PRIMARY KEY, body text NOT NULL);
INSERT INTO process SELECT id, body FROM worker;
ALTER TABLE worker DROP COLUMN body, ADD COLUMN room text;

-- What is as long as all that new rows may fill of a page: a row with it begins a page of its own. Each row has it when it is
-- made, and once more just before its page would be full; with any other beat it gives it up.
CREATE FUNCTION room(beat int8) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN beat % 104 = 0 THEN repeat(' ', 740) END $$;
