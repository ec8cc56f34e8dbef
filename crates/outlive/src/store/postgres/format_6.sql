-- Format 6. Runs for handlers are enqueued by SQL: inside the caller's own transaction, by a trigger, from any language.

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
        'policy', CASE WHEN enqueue.max_attempts > 1 THEN jsonb_build_object(
            'retry', jsonb_build_object('on_failure', true, 'max_attempts', enqueue.max_attempts)) END,
        'created_by', jsonb_build_object('user', session_user::text, 'host', host, 'pid', pg_backend_pid())));
    IF enqueue.input IS NOT NULL THEN
        -- As it is, with the nulls in it.
        spec := spec || jsonb_build_object('input', enqueue.input);
    END IF;
    INSERT INTO spec (id, created_at, priority, name, kind, body)
        VALUES (made, at, enqueue.priority, enqueue.name, enqueue.kind, spec::text);
    INSERT INTO label (run, name, value, created_at)
        SELECT made, pair.key, pair.value, at FROM jsonb_each_text(enqueue.labels) AS pair;
    INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, due_at, state, kind, story, claims)
        VALUES (made, 1, gen_random_uuid(), 0, at, enqueue.priority, due IS NULL, due, 'pending', enqueue.kind,
                concat_ws(E'\t', 'E', at, regexp_replace(session_user::text, '[[:cntrl:]]', '?', 'g'), host,
                          pg_backend_pid()) || E'\n', 0);
    IF due IS NULL THEN
        PERFORM pg_notify('outlive_' || (SELECT value FROM meta WHERE meta.name = 'id'), '');
    END IF;
    RETURN made;
END $$;

-- For those alone who are granted it.
REVOKE ALL ON FUNCTION enqueue FROM PUBLIC;
