-- The tables of a local registry. Times are microseconds since 1970, UTC. What is edited here after a release also needs a
-- migration, which makes the same of a database of the format before.

CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;

-- With rowids: bodies are longer than what a page of an index has room for, and every step of a search by id would read one
-- from elsewhere. `ready`, `due_at` and `keyset` are what a claim asks for; `share` is empty for most runs.
CREATE TABLE runs (
    id TEXT PRIMARY KEY NOT NULL, revision INTEGER NOT NULL, stamp TEXT NOT NULL,
    state TEXT NOT NULL, epoch INTEGER NOT NULL, owner TEXT, cancel INTEGER NOT NULL, archived INTEGER NOT NULL,
    priority INTEGER NOT NULL, created_at INTEGER NOT NULL, name TEXT, kind TEXT NOT NULL,
    body TEXT NOT NULL, ready INTEGER, due_at INTEGER, keyset TEXT NOT NULL,
    claims INTEGER NOT NULL DEFAULT 0, evidence TEXT NOT NULL DEFAULT '', share TEXT NOT NULL DEFAULT '',
    user TEXT, host TEXT, words TEXT);
-- What lists are searched by, in the order of lists; see `search.rs`.
CREATE INDEX runs_by_time ON runs (created_at, id, state, kind, archived, user, host, words);
CREATE INDEX runs_by_state ON runs (state, priority, created_at, id, kind, archived);
CREATE INDEX runs_by_name ON runs (name, created_at) WHERE name IS NOT NULL;
CREATE INDEX runs_by_owner ON runs (owner, id, epoch, cancel) WHERE owner IS NOT NULL;
CREATE INDEX runs_ready ON runs (priority, created_at, id, keyset, kind) WHERE ready = 1 AND share = '';
CREATE INDEX runs_ready_by_kind ON runs (kind, priority, created_at, id, keyset) WHERE ready = 1 AND share = '';
CREATE INDEX runs_ready_by_share ON runs (share, priority, created_at, id, keyset, kind) WHERE ready = 1 AND share <> '';
CREATE INDEX runs_ready_by_share_kind ON runs (share, kind, priority, created_at, id, keyset)
    WHERE ready = 1 AND share <> '';
CREATE INDEX runs_shared ON runs (priority, created_at, id, keyset, kind) WHERE ready = 1 AND share <> '';
CREATE INDEX runs_shared_by_kind ON runs (kind, priority, created_at, id, keyset) WHERE ready = 1 AND share <> '';
CREATE INDEX runs_unready ON runs (due_at, priority, created_at, id, kind) WHERE ready = 0;

CREATE TABLE events (run TEXT NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, seq)) WITHOUT ROWID;

-- The holders of keys, and the starts that rates count.
CREATE TABLE keys (name TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY (name, run)) WITHOUT ROWID;
CREATE TABLE starts (
    name TEXT NOT NULL, run TEXT NOT NULL, epoch INTEGER NOT NULL, at INTEGER NOT NULL, until INTEGER NOT NULL,
    PRIMARY KEY (name, run, epoch)) WITHOUT ROWID;

CREATE TABLE workers (
    id TEXT PRIMARY KEY, beat INTEGER NOT NULL, beat_at INTEGER NOT NULL, beat_awake INTEGER NOT NULL,
    boot_id TEXT NOT NULL, time_ns INTEGER NOT NULL, attention INTEGER NOT NULL, body TEXT NOT NULL) WITHOUT ROWID;

-- Runs are counted as they are written.
CREATE TABLE tally (
    state TEXT NOT NULL, kind TEXT NOT NULL, evidence TEXT NOT NULL, runs INTEGER NOT NULL, claims INTEGER NOT NULL,
    PRIMARY KEY (state, kind, evidence)) WITHOUT ROWID;
CREATE TRIGGER counted_in AFTER INSERT ON runs BEGIN
    INSERT INTO tally VALUES (new.state, new.kind, new.evidence, 1, new.claims)
        ON CONFLICT DO UPDATE SET runs = runs + 1, claims = claims + excluded.claims;
END;
CREATE TRIGGER counted_out AFTER DELETE ON runs BEGIN
    UPDATE tally SET runs = runs - 1, claims = claims - old.claims
        WHERE (state, kind, evidence) = (old.state, old.kind, old.evidence);
END;
CREATE TRIGGER counted_anew AFTER UPDATE OF state, claims, evidence ON runs
    WHEN (old.state, old.claims, old.evidence) <> (new.state, new.claims, new.evidence) BEGIN
    UPDATE tally SET runs = runs - 1, claims = claims - old.claims
        WHERE (state, kind, evidence) = (old.state, old.kind, old.evidence);
    INSERT INTO tally VALUES (new.state, new.kind, new.evidence, 1, new.claims)
        ON CONFLICT DO UPDATE SET runs = runs + 1, claims = claims + excluded.claims;
END;
