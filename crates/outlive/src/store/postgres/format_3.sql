-- Format 3. What a process says of itself is written once, beside the row that its beats rewrite. Of such a row more than a
-- hundred versions fit a page: for minutes beats stay on theirs, and leave the index alone, while a transaction that is held
-- open keeps what they leave from being cleared up. `room` is the rest of what a page may be filled with by new rows, and
-- is given up with the first beat, so that processes do not share pages.
CREATE TABLE process (id uuid PRIMARY KEY, body text NOT NULL);
INSERT INTO process SELECT id, body FROM worker;
ALTER TABLE worker DROP COLUMN body, ADD COLUMN room text;
