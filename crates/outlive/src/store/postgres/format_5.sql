-- Format 5. Lists are read from indexes in their order, runs are counted as they are written, and a claim passes over runs
-- whose keys are busy without locking them.

-- `keys` has what a claim asks for, separated by the character 31. `claims` is how many attempts were claimed.
ALTER TABLE waiting ADD COLUMN keys text, ADD COLUMN claims int4 NOT NULL DEFAULT 0;
CREATE INDEX waiting_by_time ON waiting (created_at, id);
CREATE INDEX waiting_later ON waiting (priority, created_at, id) WHERE NOT ready;

ALTER TABLE ended ADD COLUMN kind text NOT NULL DEFAULT '', ADD COLUMN claims int4 NOT NULL DEFAULT 1,
    ADD COLUMN evidence text;
UPDATE ended SET kind = spec.kind FROM spec WHERE spec.id = ended.id;
DROP INDEX ended_by_time;
CREATE INDEX ended_by_state ON ended (state, created_at, id);

DROP INDEX spec_by_name;
DROP INDEX spec_by_step;
CREATE INDEX spec_by_name ON spec (name, created_at, id) WHERE name IS NOT NULL;
CREATE INDEX spec_by_step ON spec (step_of, created_at, id) WHERE step_of IS NOT NULL;

-- A row for each label of a run. Runs without labels cost nothing, and the runs of a label are read in the order of time.
CREATE TABLE label (run uuid NOT NULL, name text NOT NULL, value text NOT NULL, created_at int8 NOT NULL)
    PARTITION BY RANGE (run);
CREATE TABLE label_rest PARTITION OF label DEFAULT;
DO $$
DECLARE
    of record;
BEGIN
    FOR of IN SELECT * FROM part LOOP
        EXECUTE format('CREATE TABLE %I PARTITION OF label FOR VALUES FROM (%L) TO (%L)', 'label_' || of.name,
                       first_id(of.since), first_id(of.until));
    END LOOP;
END $$;
CREATE INDEX label_by_time ON label (name, value, created_at, run);
INSERT INTO label SELECT spec.id, pair.key, pair.value, spec.created_at
    FROM spec, jsonb_each_text(coalesce(body::jsonb -> 'labels', '{}')) AS pair;

-- How many runs there are that do not run, by what they are counted by. Every statement that changes any adds the
-- difference as rows of its own, so that no two wait for each other; `fold` makes few rows of many.
CREATE TABLE tally (state text NOT NULL, kind text NOT NULL, evidence text, runs int8 NOT NULL, claims int8 NOT NULL)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO tally SELECT state, kind, NULL, count(*), sum(claims) FROM waiting GROUP BY 1, 2;
INSERT INTO tally SELECT state, kind, evidence, count(*), sum(claims) FROM ended GROUP BY 1, 2, 3;

CREATE FUNCTION fold() RETURNS void LANGUAGE sql SET search_path FROM CURRENT AS $$
    WITH few AS (SELECT ctid FROM tally FOR UPDATE SKIP LOCKED),
         gone AS (DELETE FROM tally WHERE ctid = ANY (ARRAY(SELECT ctid FROM few)) RETURNING *)
    INSERT INTO tally SELECT state, kind, evidence, sum(runs), sum(claims) FROM gone GROUP BY 1, 2, 3
        HAVING sum(runs) <> 0 OR sum(claims) <> 0
$$;

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

-- As before, with the labels and the counts.
CREATE OR REPLACE FUNCTION tidy() RETURNS int8 LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
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
        FOREACH root IN ARRAY ARRAY['spec', 'ended', 'story', 'label'] LOOP
            key := CASE WHEN root IN ('story', 'label') THEN 'run' ELSE 'id' END;
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
        EXECUTE format('INSERT INTO tally SELECT state, kind, evidence, -count(*), -sum(claims) FROM %I GROUP BY 1, 2, 3',
                       'ended_' || old.name);
        EXECUTE format('DROP TABLE %I, %I, %I, %I', 'spec_' || old.name, 'ended_' || old.name, 'story_' || old.name,
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

-- When the next run of a kind is due.
CREATE INDEX waiting_by_kind_due ON waiting (kind, due_at) WHERE NOT ready AND due_at IS NOT NULL;
