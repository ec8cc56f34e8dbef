-- The tables of a registry. The search path names its schema alone. Times are microseconds since 1970, UTC. Lines between
-- `with` or `without` a feature and `end` are left out where the engine has it not, or has it; see `dialect.rs`. What is
-- edited here after a release also needs a migration, which makes the same of a registry of the format before.

CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL);
INSERT INTO meta VALUES ('id', gen_random_uuid()::text);

-- The only clock there is. No host's clock is asked.
CREATE FUNCTION clock() RETURNS int8 LANGUAGE sql VOLATILE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 $$;

-- Since when workers could be heard: what was said to a server that was down is not silence. One that got over a crash of
-- one of its sessions has forgotten its statistics, and nothing else tells of it.
CREATE FUNCTION reachable_since() RETURNS int8 LANGUAGE sql STABLE
    AS $$ SELECT (extract(epoch FROM greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time()))
                  * 1000000)::int8 $$;

-- What a run was made with, how it ended, its older events and its labels. Ids sort by time, so that a range of them is a
-- time.
CREATE TABLE spec (
    id uuid PRIMARY KEY, created_at int8 NOT NULL, priority int4 NOT NULL, name text, kind text NOT NULL,
    step_of uuid, signature text, body text NOT NULL
)
--: with partitions
PARTITION BY RANGE (id)
--: end
;
CREATE TABLE ended (
    id uuid PRIMARY KEY, revision int8 NOT NULL, stamp uuid NOT NULL, epoch int8 NOT NULL, created_at int8 NOT NULL,
    priority int4 NOT NULL, archived bool NOT NULL, started_at int8, ended_at int8 NOT NULL, owned_by uuid,
    state text NOT NULL, body text, events text NOT NULL, kind text NOT NULL DEFAULT '', claims int4 NOT NULL DEFAULT 1,
    evidence text
)
--: with partitions
PARTITION BY RANGE (id)
--: end
;
CREATE TABLE event_log (run uuid NOT NULL, part int8 NOT NULL, body text NOT NULL, PRIMARY KEY (run, part))
--: with partitions
PARTITION BY RANGE (run)
--: end
;
CREATE TABLE label (
    run uuid NOT NULL, name text NOT NULL, value text NOT NULL, created_at int8 NOT NULL
--: without partitions
    , PRIMARY KEY (run, name)
--: end
)
--: with partitions
PARTITION BY RANGE (run)
--: end
;
--: with partitions
CREATE TABLE spec_rest PARTITION OF spec DEFAULT;
CREATE TABLE ended_rest PARTITION OF ended DEFAULT;
CREATE TABLE event_log_rest PARTITION OF event_log DEFAULT;
CREATE TABLE label_rest PARTITION OF label DEFAULT;
--: end
CREATE INDEX spec_by_name ON spec (name, created_at, id) WHERE name IS NOT NULL;
CREATE INDEX spec_by_step ON spec (step_of, created_at, id) WHERE step_of IS NOT NULL;
CREATE INDEX ended_by_state ON ended (state, created_at, id);
CREATE INDEX label_by_time ON label (name, value, created_at, run);

-- The processes that owned runs. Written once, named by a digest of what each says.
CREATE TABLE owner (id uuid PRIMARY KEY, worker uuid NOT NULL, noted_at int8 NOT NULL, body text NOT NULL);

-- The state of a run, in the table of those with that state: a claim meets no run that is running, and the reaper none that
-- waits or has ended. `body` has what the columns do not tell; most runs have none. `events` has the last events, a line
-- each. `keys` has what a claim asks for, separated by the character 31, so that it passes over runs whose keys are busy
-- without locking them. What has no `share`, as most have none, is claimed by indexes of its own.
CREATE TABLE waiting (
    id uuid PRIMARY KEY, revision int8 NOT NULL, stamp uuid NOT NULL, epoch int8 NOT NULL, created_at int8 NOT NULL,
    priority int4 NOT NULL, ready bool NOT NULL, due_at int8, state text NOT NULL, kind text NOT NULL,
    body text, events text NOT NULL, keys text, claims int4 NOT NULL DEFAULT 0, share text
)
--: with vacuum
WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_cost_delay = 0)
--: end
;
CREATE INDEX waiting_by_turn ON waiting (priority, created_at, id) WHERE ready AND share IS NULL;
CREATE INDEX waiting_by_kind ON waiting (kind, priority, created_at, id) WHERE ready AND share IS NULL;
CREATE INDEX waiting_shared ON waiting (priority, created_at, id) WHERE ready AND share IS NOT NULL;
CREATE INDEX waiting_shared_by_kind ON waiting (kind, priority, created_at, id) WHERE ready AND share IS NOT NULL;
CREATE INDEX waiting_by_share ON waiting (share, priority, created_at, id) WHERE ready AND share IS NOT NULL;
CREATE INDEX waiting_by_share_kind ON waiting (share, kind, priority, created_at, id) WHERE ready AND share IS NOT NULL;
CREATE INDEX waiting_by_due ON waiting (due_at) WHERE NOT ready AND due_at IS NOT NULL;
CREATE INDEX waiting_by_kind_due ON waiting (kind, due_at) WHERE NOT ready AND due_at IS NOT NULL;
CREATE INDEX waiting_by_time ON waiting (created_at, id);
-- Those that wait for other runs, which workers release and an export of history looks for.
CREATE INDEX waiting_blocked ON waiting (priority, created_at, id) WHERE state = 'pending' AND NOT ready AND due_at IS NULL;
CREATE INDEX waiting_later ON waiting (priority, created_at, id) WHERE NOT ready;

CREATE TABLE live (
    id uuid PRIMARY KEY, revision int8 NOT NULL, stamp uuid NOT NULL, epoch int8 NOT NULL, created_at int8 NOT NULL,
    priority int4 NOT NULL, cancel bool NOT NULL, owner uuid NOT NULL, owned_by uuid NOT NULL, since int8 NOT NULL,
    body text, events text NOT NULL
)
--: with vacuum
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
      autovacuum_vacuum_cost_delay = 0)
--: end
;
CREATE INDEX live_by_owner ON live (owner);
CREATE INDEX live_by_time ON live (created_at, id);

-- The holders of keys, and the starts that rates count.
CREATE TABLE held_key (name text NOT NULL, run uuid NOT NULL, PRIMARY KEY (name, run));
CREATE INDEX held_key_by_run ON held_key (run);
CREATE TABLE start (
    name text NOT NULL, run uuid NOT NULL, epoch int8 NOT NULL, at int8 NOT NULL, until int8 NOT NULL,
    PRIMARY KEY (name, run, epoch)
);
--: without advisory-locks

-- Rows that are locked in place of keys. Each key has one, which it shares with few others.
CREATE TABLE key_lock (place int4 PRIMARY KEY);
INSERT INTO key_lock SELECT generate_series(0, 4095);
--: end

-- One narrow row per process, rewritten in place by every beat: no index on what a beat changes, and more than a hundred
-- versions fit a page, so that beats stay on theirs for as long while a transaction that is held open keeps what they leave
-- from being cleared up. What the process says of itself is beside it, and written once.
CREATE TABLE worker (
    id uuid PRIMARY KEY, beat int8 NOT NULL, beat_at int8 NOT NULL, attention int8 NOT NULL, room text
)
--: with vacuum
WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
      autovacuum_vacuum_cost_delay = 0)
--: end
;
CREATE TABLE process (id uuid PRIMARY KEY, body text NOT NULL);
--: with ctid

-- What is as long as all that new rows may fill of a page: a row with it begins a page of its own. Each row has it when it is
-- made, which is when it is in no place yet, and again when its page is about to be full; with any other beat it gives it up.
CREATE FUNCTION room(place tid) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$ SELECT CASE WHEN place IS NULL OR (place::text::point)[1] >= 104 THEN repeat(' ', 740) END $$;
--: end

-- How many runs there are that do not run, by what they are counted by. Every statement that changes any adds the
-- difference as rows of its own, so that no two wait for each other; `fold` makes few rows of many.
CREATE TABLE tally (
    state text NOT NULL, kind text NOT NULL, evidence text, runs int8 NOT NULL, claims int8 NOT NULL
--: without ctid
    , id uuid PRIMARY KEY DEFAULT gen_random_uuid()
--: end
)
--: with vacuum
WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0)
--: end
;
--: with ctid
CREATE FUNCTION fold() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    WITH few AS (SELECT ctid FROM tally FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM tally WHERE ctid = ANY (ARRAY(SELECT ctid FROM few)) RETURNING *)
    INSERT INTO tally SELECT state, kind, evidence, sum(runs), sum(claims) FROM gone GROUP BY 1, 2, 3
        HAVING sum(runs) <> 0 OR sum(claims) <> 0
$$;
--: end
--: without ctid
CREATE FUNCTION fold() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    WITH few AS (SELECT id FROM tally FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM tally WHERE id = ANY (ARRAY(SELECT id FROM few)) RETURNING *)
    INSERT INTO tally SELECT state, kind, evidence, sum(runs), sum(claims) FROM gone GROUP BY 1, 2, 3
        HAVING sum(runs) <> 0 OR sum(claims) <> 0
$$;
--: end
--: with transition-tables
CREATE FUNCTION count_waiting() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally SELECT state, kind, NULL::text, count(*), sum(claims) FROM new GROUP BY 1, 2, 3;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO tally SELECT state, kind, NULL::text, -count(*), -sum(claims) FROM old GROUP BY 1, 2, 3;
    ELSE
        INSERT INTO tally SELECT state, kind, evidence, sum(runs), sum(claims)
            FROM (SELECT state, kind, NULL::text AS evidence, 1 AS runs, claims FROM new
                  UNION ALL SELECT state, kind, NULL::text, -1, -claims FROM old) AS changed
            GROUP BY 1, 2, 3 HAVING sum(runs) <> 0 OR sum(claims) <> 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER counted_in AFTER INSERT ON waiting REFERENCING NEW TABLE AS new
    FOR EACH STATEMENT EXECUTE FUNCTION count_waiting();
CREATE TRIGGER counted_out AFTER DELETE ON waiting REFERENCING OLD TABLE AS old
    FOR EACH STATEMENT EXECUTE FUNCTION count_waiting();
CREATE TRIGGER counted_anew AFTER UPDATE ON waiting REFERENCING OLD TABLE AS old NEW TABLE AS new
    FOR EACH STATEMENT EXECUTE FUNCTION count_waiting();

CREATE FUNCTION count_ended() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tally SELECT state, kind, evidence, count(*), sum(claims) FROM new GROUP BY 1, 2, 3;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO tally SELECT state, kind, evidence, -count(*), -sum(claims) FROM old GROUP BY 1, 2, 3;
    ELSE
        INSERT INTO tally SELECT state, kind, evidence, sum(runs), sum(claims)
            FROM (SELECT state, kind, evidence AS evidence, 1 AS runs, claims FROM new
                  UNION ALL SELECT state, kind, evidence, -1, -claims FROM old) AS changed
            GROUP BY 1, 2, 3 HAVING sum(runs) <> 0 OR sum(claims) <> 0;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER counted_in AFTER INSERT ON ended REFERENCING NEW TABLE AS new
    FOR EACH STATEMENT EXECUTE FUNCTION count_ended();
CREATE TRIGGER counted_out AFTER DELETE ON ended REFERENCING OLD TABLE AS old
    FOR EACH STATEMENT EXECUTE FUNCTION count_ended();
CREATE TRIGGER counted_anew AFTER UPDATE ON ended REFERENCING OLD TABLE AS old NEW TABLE AS new
    FOR EACH STATEMENT EXECUTE FUNCTION count_ended();
--: end

-- The first id of a time.
CREATE FUNCTION first_id(at int8) RETURNS uuid LANGUAGE sql IMMUTABLE
    AS $$ SELECT (lpad(to_hex(at / 1000), 12, '0') || repeat('0', 20))::uuid $$;
--: with partitions

-- History is kept in tables of a time each, which are dropped as a whole: what a run was made with, how it ended, its events
-- and its labels. What belongs to no such time yet is in the tables called rest. `maintain` makes the tables of the time to come,
-- and drops those of which all has been over for longer than it is kept; a run that waits or runs keeps all of its time.
-- Answers with how many were dropped.
CREATE TABLE part (name text PRIMARY KEY, since int8 NOT NULL, until int8 NOT NULL, exporter uuid);
CREATE FUNCTION maintain() RETURNS int8 LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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
        FOREACH root IN ARRAY ARRAY['spec', 'ended', 'event_log', 'label'] LOOP
            key := CASE WHEN root IN ('event_log', 'label') THEN 'run' ELSE 'id' END;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', root || '_' || since / day, root);
            EXECUTE format('WITH moved AS (DELETE FROM %I WHERE %I >= %L AND %I < %L RETURNING *)
                            INSERT INTO %I SELECT * FROM moved', root || '_rest', key, lo, key, hi,
                           root || '_' || since / day);
            EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', root,
                           root || '_' || since / day, lo, hi);
        END LOOP;
        INSERT INTO part (name, since, until) VALUES ((since / day)::text, since, since + width);
        since := since + width;
    END LOOP;
    FOR old IN SELECT * FROM part WHERE part.until < clock() - keep ORDER BY part.since LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I WHERE ended_at >= %L)', 'ended_' || old.name, clock() - keep)
            INTO held;
        CONTINUE WHEN held
            OR EXISTS (SELECT 1 FROM waiting WHERE id >= first_id(old.since) AND id < first_id(old.until))
            OR EXISTS (SELECT 1 FROM live WHERE id >= first_id(old.since) AND id < first_id(old.until));
        EXECUTE format('INSERT INTO tally SELECT state, kind, evidence, -count(*), -sum(claims) FROM %I GROUP BY 1, 2, 3',
                       'ended_' || old.name);
        EXECUTE format('DROP TABLE %I, %I, %I, %I', 'spec_' || old.name, 'ended_' || old.name, 'event_log_' || old.name,
                       'label_' || old.name);
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
SELECT maintain();
--: end
--: without partitions

-- Deletes runs of which all has been over for longer than it is kept, a batch at a time. Answers with how many.
CREATE FUNCTION maintain() RETURNS int8 LANGUAGE sql SET search_path FROM CURRENT AS $$
    WITH kept AS (SELECT clock() - value::int8 * 86400000000 AS since FROM meta WHERE name = 'keep_days'),
         old AS (SELECT ended.id FROM ended, kept WHERE ended.id < (SELECT first_id(since) FROM kept)
                     AND ended_at < kept.since ORDER BY ended.id LIMIT 5000),
         gone AS (DELETE FROM ended WHERE id IN (SELECT id FROM old) RETURNING id),
         specs AS (DELETE FROM spec WHERE id IN (SELECT id FROM gone)),
         logs AS (DELETE FROM event_log WHERE run IN (SELECT id FROM gone)),
         labels AS (DELETE FROM label WHERE run IN (SELECT id FROM gone)),
         owners AS (DELETE FROM owner WHERE EXISTS (SELECT 1 FROM gone)
                        AND noted_at < (SELECT created_at FROM spec ORDER BY id LIMIT 1) - 172800000000
                        AND NOT EXISTS (SELECT 1 FROM live WHERE live.owned_by = owner.id))
    SELECT count(*) FROM gone
$$;
--: end

-- The files of history that was exported and dropped: which runs each has, where its footer is and a digest of that. Where the
-- files are is for people to read: no process goes to a place because it is named here.
CREATE TABLE exported (
    file text PRIMARY KEY, first uuid NOT NULL, last uuid NOT NULL, runs int8 NOT NULL, footer int8 NOT NULL,
    footer_end int8 NOT NULL, digest text NOT NULL, place text NOT NULL, at int8 NOT NULL
);
CREATE INDEX exported_by_id ON exported (last);

-- Every run, for people.
CREATE VIEW run AS
    SELECT spec.id, spec.name, spec.kind, stands.state, stands.epoch, stands.priority, owner.worker AS owner,
           to_timestamp(spec.created_at / 1e6) AS created_at, to_timestamp(stands.started_at / 1e6) AS started_at,
           to_timestamp(stands.ended_at / 1e6) AS ended_at, owner.body::jsonb AS owned_by,
           stands.body::jsonb AS standing, spec.body::jsonb AS spec
    FROM (SELECT id, state, epoch, priority, NULL::int8 AS started_at, NULL::int8 AS ended_at, NULL::uuid AS owned_by, body
              FROM waiting
          UNION ALL SELECT id, 'running', epoch, priority, since, NULL, owned_by, body FROM live
          UNION ALL SELECT id, state, epoch, priority, started_at, ended_at, owned_by, body FROM ended) AS stands
    JOIN spec USING (id) LEFT JOIN owner ON owner.id = stands.owned_by;

-- A function that acts with its owner's rights must not find a table of the caller's under the name of one of these.
SELECT set_config('search_path', current_setting('search_path') || ', pg_temp', true);

-- Makes a run that waits for a worker with a handler of its kind, and answers with its id. It is there when the transaction
-- commits, and never otherwise. It has no signature, and so no command: nothing but a handler does it.
CREATE FUNCTION enqueue(
    kind text, input jsonb DEFAULT NULL, name text DEFAULT NULL, priority int4 DEFAULT 0,
    not_before timestamptz DEFAULT NULL, labels jsonb DEFAULT NULL, max_attempts int4 DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_column
DECLARE
    at CONSTANT int8 := clock();
    drawn CONSTANT text := replace(gen_random_uuid()::text, '-', '');
    -- Its first 48 bits are the time in milliseconds, as in every id of a run.
    made CONSTANT uuid := (lpad(to_hex(at / 1000), 12, '0') || '7' || substr(drawn, 14))::uuid;
    due CONSTANT int8 := (extract(epoch FROM enqueue.not_before) * 1000000)::int8;
    host CONSTANT text := coalesce(host(inet_client_addr()), 'database');
    words CONSTANT text[] := ARRAY[enqueue.kind, enqueue.name] || ARRAY(SELECT jsonb_object_keys(enqueue.labels))
        || ARRAY(SELECT pair.value FROM jsonb_each_text(enqueue.labels) AS pair);
    word text;
    spec jsonb;
BEGIN
    IF coalesce(btrim(enqueue.kind), '') IN ('', 'command', 'step', 'entry') THEN
        RAISE EXCEPTION 'kind % is not for handlers', coalesce(quote_literal(enqueue.kind), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH word IN ARRAY words LOOP
        IF octet_length(word) > 256 OR word ~ '[[:cntrl:]]' OR btrim(word) = '' THEN
            RAISE EXCEPTION 'a kind, name or label is empty, has more than 256 bytes or a control character'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    -- It could be taken for another way to say which run is meant.
    IF enqueue.name ~ '^@' OR enqueue.name ~* '^0[0-9a-f-]{7,35}$' THEN
        RAISE EXCEPTION 'the name % could be taken for an id', quote_literal(enqueue.name)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- What a reader of the record would refuse.
    IF jsonb_path_exists(enqueue.input, '$.**{49 to last}')
        OR jsonb_path_exists(enqueue.input, '$.** ? (@.type() == "number" && (@ > 1e300 || @ < -1e300))') THEN
        RAISE EXCEPTION 'an input that is nested too deeply, or has a number out of range'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF enqueue.not_before >= '9999-01-01' THEN
        RAISE EXCEPTION 'not before %: no worker would ever take it', enqueue.not_before
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (SELECT count(*) FROM jsonb_object_keys(enqueue.labels)) > 64 THEN
        RAISE EXCEPTION 'more than 64 labels' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(enqueue.input::text) > 1048576 THEN
        RAISE EXCEPTION 'an input of % bytes; the longest is 1048576', octet_length(enqueue.input::text)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF enqueue.max_attempts < 1 THEN
        RAISE EXCEPTION 'a run has at least one attempt' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    spec := jsonb_strip_nulls(jsonb_build_object(
        'kind', enqueue.kind, 'name', enqueue.name, 'priority', enqueue.priority, 'queued', true,
        'labels', (SELECT jsonb_object_agg(pair.key, pair.value) FROM jsonb_each_text(enqueue.labels) AS pair),
        'not_before', to_char(enqueue.not_before AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        -- What `Policy::with_retries` says.
        'policy', CASE WHEN enqueue.max_attempts IS NOT NULL THEN jsonb_build_object(
            'retry', jsonb_build_object('on_failure', true, 'on_interrupt', true, 'max_attempts', enqueue.max_attempts),
            'orphans', 'requeue') END,
        'created_by', jsonb_build_object('user', session_user::text, 'host', host, 'pid', pg_backend_pid())));
    IF enqueue.input IS NOT NULL THEN
        -- As it is, with the nulls in it.
        spec := spec || jsonb_build_object('input', enqueue.input);
    END IF;
    INSERT INTO spec (id, created_at, priority, name, kind, body)
        VALUES (made, at, enqueue.priority, enqueue.name, enqueue.kind, spec::text);
    INSERT INTO label (run, name, value, created_at)
        SELECT made, pair.key, pair.value, at FROM jsonb_each_text(enqueue.labels) AS pair;
    INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, due_at, state, kind, events, claims)
        VALUES (made, 1, gen_random_uuid(), 0, at, enqueue.priority, due IS NULL, due, 'pending', enqueue.kind,
                concat_ws(E'\t', 'E', at, regexp_replace(session_user::text, '[[:cntrl:]]', '?', 'g'), host,
                          pg_backend_pid()) || E'\n', 0);
--: with listen
    IF due IS NULL THEN
        PERFORM pg_notify('outlive_' || (SELECT value FROM meta WHERE meta.name = 'id'), '');
    END IF;
--: end
    RETURN made;
END $$;

-- For those alone who are granted it.
REVOKE ALL ON FUNCTION enqueue FROM PUBLIC;
