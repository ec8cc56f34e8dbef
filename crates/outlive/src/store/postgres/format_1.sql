-- Format 1. The search path names the schema of the registry alone. Times are microseconds since 1970, UTC.

CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO meta VALUES ('id', gen_random_uuid()::text);

-- The only clock there is. No host's clock is asked.
CREATE FUNCTION clock() RETURNS int8 LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 $$;

-- Since when anybody could be heard: what was said to a server that was down is not silence. One that got over a crash of
-- one of its sessions has forgotten its statistics, and nothing else tells of it.
CREATE FUNCTION hears_since() RETURNS int8 LANGUAGE sql STABLE
    AS $$ SELECT (extract(epoch FROM greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time()))
                  * 1000000)::int8 $$;

-- What a run was made with. Written once. Ids sort by time, so that a range of them is a time.
CREATE TABLE spec (
    id uuid PRIMARY KEY, created_at int8 NOT NULL, priority int4 NOT NULL, name text, kind text NOT NULL,
    step_of uuid, signature text, body text NOT NULL
) PARTITION BY RANGE (id);
CREATE TABLE spec_rest PARTITION OF spec DEFAULT;
CREATE INDEX spec_by_name ON spec (name, created_at) WHERE name IS NOT NULL;
CREATE INDEX spec_by_step ON spec (step_of) WHERE step_of IS NOT NULL;

-- Who owned runs: a process, and what it promised. Written once, named by a digest of what it says.
CREATE TABLE owner (id uuid PRIMARY KEY, worker uuid NOT NULL, noted_at int8 NOT NULL, body text NOT NULL);

-- How a run stands, in the table of those that stand so: whoever claims meets no run that is running, and whoever looks
-- after the running ones meets none that waits or has ended. `body` has what the columns do not tell; most runs have
-- none. `story` has its last events, a line each.
CREATE TABLE waiting (
    id uuid PRIMARY KEY, revision int8 NOT NULL, stamp uuid NOT NULL, epoch int8 NOT NULL, created_at int8 NOT NULL,
    priority int4 NOT NULL, ready bool NOT NULL, due_at int8, state text NOT NULL, kind text NOT NULL,
    body text, story text NOT NULL
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX waiting_by_turn ON waiting (priority, created_at, id) WHERE ready;
CREATE INDEX waiting_by_kind ON waiting (kind, priority, created_at, id) WHERE ready;
CREATE INDEX waiting_by_due ON waiting (due_at) WHERE NOT ready AND due_at IS NOT NULL;

CREATE TABLE live (
    id uuid PRIMARY KEY, revision int8 NOT NULL, stamp uuid NOT NULL, epoch int8 NOT NULL, created_at int8 NOT NULL,
    priority int4 NOT NULL, cancel bool NOT NULL, owner uuid NOT NULL, owned_by uuid NOT NULL, since int8 NOT NULL,
    body text, story text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX live_by_owner ON live (owner);

CREATE TABLE ended (
    id uuid PRIMARY KEY, revision int8 NOT NULL, stamp uuid NOT NULL, epoch int8 NOT NULL, created_at int8 NOT NULL,
    priority int4 NOT NULL, archived bool NOT NULL, started_at int8, ended_at int8 NOT NULL, owned_by uuid,
    state text NOT NULL, body text, story text NOT NULL
) PARTITION BY RANGE (id);
CREATE TABLE ended_rest PARTITION OF ended DEFAULT;
CREATE INDEX ended_by_time ON ended (created_at, id);

-- Earlier parts of stories that grew too long to be rewritten with every change.
CREATE TABLE story (run uuid NOT NULL, part int8 NOT NULL, body text NOT NULL, PRIMARY KEY (run, part))
    PARTITION BY RANGE (run);
CREATE TABLE story_rest PARTITION OF story DEFAULT;

-- Who holds what must not be held by too many.
CREATE TABLE held_key (name text NOT NULL, run uuid NOT NULL, PRIMARY KEY (name, run));
CREATE INDEX held_key_by_run ON held_key (run);

-- One narrow row per process, rewritten in place by every beat: no index on what a beat changes. Each has a page to itself,
-- with room for many beats where a transaction that is held open keeps what they leave from being cleared up.
CREATE TABLE worker (
    id uuid PRIMARY KEY, beat int8 NOT NULL, heard_at int8 NOT NULL, attention int8 NOT NULL, body text NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0);

-- History is kept in tables of a time each, which are dropped as a whole: what a run was made with, how it ended and its
-- story go together. What belongs to no such time yet is in the tables called rest.
CREATE TABLE part (name text PRIMARY KEY, since int8 NOT NULL, until int8 NOT NULL);

-- The first id of a time.
CREATE FUNCTION first_id(at int8) RETURNS uuid LANGUAGE sql IMMUTABLE
    AS $$ SELECT (lpad(to_hex(at / 1000), 12, '0') || repeat('0', 20))::uuid $$;

-- Makes the tables of the time to come, and drops those of which all has been over for longer than it is kept. Whoever holds
-- anything of them longer, because it still waits or runs, holds all of its time. Answers with how many were dropped.
CREATE FUNCTION tidy() RETURNS int8 LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    day CONSTANT int8 := 86400000000;
    keep int8 := (SELECT value::int8 FROM meta WHERE name = 'keep_days') * day;
    -- Few tables, however long history is kept.
    width int8 := greatest(coalesce(keep / 4 / day, 30), 1) * day;
    since int8 := (SELECT max(until) FROM part);
    dropped int8 := 0;
    old record;
    root text;
    key text;
    held bool;
    lo uuid;
    hi uuid;
BEGIN
    since := coalesce(since, clock() / day * day);
    WHILE since < clock() + width LOOP
        lo := first_id(since);
        hi := first_id(since + width);
        FOREACH root IN ARRAY ARRAY['spec', 'ended', 'story'] LOOP
            key := CASE root WHEN 'story' THEN 'run' ELSE 'id' END;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', root || '_' || since / day, root);
            EXECUTE format('WITH moved AS (DELETE FROM %I WHERE %I >= %L AND %I < %L RETURNING *)
                            INSERT INTO %I SELECT * FROM moved', root || '_rest', key, lo, key, hi,
                           root || '_' || since / day);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', root,
                           root || '_' || since / day, lo, hi);
        END LOOP;
        INSERT INTO part VALUES ((since / day)::text, since, since + width);
        since := since + width;
    END LOOP;
    FOR old IN SELECT * FROM part WHERE part.until < clock() - keep ORDER BY part.since LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I WHERE ended_at >= %L)', 'ended_' || old.name, clock() - keep)
            INTO held;
        CONTINUE WHEN held
            OR EXISTS (SELECT 1 FROM waiting WHERE id >= first_id(old.since) AND id < first_id(old.until))
            OR EXISTS (SELECT 1 FROM live WHERE id >= first_id(old.since) AND id < first_id(old.until));
        EXECUTE format('DROP TABLE %I, %I, %I', 'spec_' || old.name, 'ended_' || old.name, 'story_' || old.name);
        DELETE FROM part WHERE part.name = old.name;
        dropped := dropped + 1;
    END LOOP;
    IF dropped > 0 THEN
        DELETE FROM owner WHERE noted_at < (SELECT min(part.since) FROM part) - 2 * day
            AND NOT EXISTS (SELECT 1 FROM live WHERE live.owned_by = owner.id)
            AND NOT EXISTS (SELECT 1 FROM ended_rest WHERE ended_rest.owned_by = owner.id);
    END IF;
    RETURN dropped;
END $$;
SELECT tidy();

-- Every run, for people.
CREATE VIEW run AS
    SELECT spec.id, spec.name, spec.kind, stands.state, stands.epoch, spec.priority, owner.worker AS owner,
           to_timestamp(spec.created_at / 1e6) AS created_at, to_timestamp(stands.started_at / 1e6) AS started_at,
           to_timestamp(stands.ended_at / 1e6) AS ended_at, owner.body::jsonb AS owned_by,
           stands.body::jsonb AS standing, spec.body::jsonb AS spec
    FROM (SELECT id, state, epoch, NULL::int8 AS started_at, NULL::int8 AS ended_at, NULL::uuid AS owned_by, body
              FROM waiting
          UNION ALL SELECT id, 'running', epoch, since, NULL, owned_by, body FROM live
          UNION ALL SELECT id, state, epoch, started_at, ended_at, owned_by, body FROM ended) AS stands
    JOIN spec USING (id) LEFT JOIN owner ON owner.id = stands.owned_by;
