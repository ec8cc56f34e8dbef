-- Format 7. Runs of a share are claimed in turn with those of others, and runs that wait are counted by whether they are due.

-- The share that a run counts against; none for most. What has none is claimed by the indexes that it was claimed by
-- before, and costs nothing more.
ALTER TABLE waiting ADD COLUMN share text;
DROP INDEX waiting_by_turn, waiting_by_kind;
CREATE INDEX waiting_by_turn ON waiting (priority, created_at, id) WHERE ready AND share IS NULL;
CREATE INDEX waiting_by_kind ON waiting (kind, priority, created_at, id) WHERE ready AND share IS NULL;
CREATE INDEX waiting_shared ON waiting (priority, created_at, id) WHERE ready AND share IS NOT NULL;
CREATE INDEX waiting_by_share ON waiting (share, priority, created_at, id) WHERE ready AND share IS NOT NULL;
CREATE INDEX waiting_by_share_kind ON waiting (share, kind, priority, created_at, id) WHERE ready AND share IS NOT NULL;
