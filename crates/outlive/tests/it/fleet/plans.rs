//! How the server goes about what it is asked: by indexes, and no further than it has to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::transactions::connect;
use super::*;
use outlive::engine::maintenance::Maintenance;
use outlive::filter::Filter;
use outlive::lifecycle::{Action, apply};
use outlive::ownership::reaper::Reaper;
use outlive::policy::Lease;
use outlive::run::{After, Key, Release, Spec, StateName, Step};
use outlive::store::called;
use outlive::store::postgres::Export;
use outlive::store::{Beat, Order, Page, Record};
use outlive::time::Timestamp;
use serde_json::Value;

/// How many runs wait, and how many have ended.
const RUNS: usize = 100_000;
/// How many rows a statement may read. The longest page or batch here is 500 runs, of which several tables tell.
const READ: u64 = 6_000;
/// The tables that grow with the number of runs.
const LONG: [&str; 6] = ["waiting", "ended", "spec", "label", "live", "event_log"];

/// Fills the registry with copies of the one run that waits there: half of them wait, some of those for a time that has not
/// come, and half have ended.
fn fill(server: &Server, schema: &str) {
    server.psql(&format!(
        "SET auto_explain.log_min_duration = -1; SET search_path TO {schema};
         CREATE TEMP TABLE one AS SELECT spec.*, waiting.stamp, waiting.events FROM spec JOIN waiting USING (id);
         CREATE TEMP TABLE many AS SELECT first_id(at) AS id, at, n FROM (
             SELECT n, clock() - 400000000000 + n::int8 * 1000000 AS at FROM generate_series(1, {RUNS} * 2) AS n) AS moments;
         INSERT INTO spec SELECT many.id, at, priority, CASE WHEN n % 1000 = 0 THEN 'named' END, kind, NULL, NULL,
                (body::jsonb || jsonb_build_object('labels', jsonb_build_object('team', 'blue', 'rare', (n / 10)::text))
                     || CASE WHEN n % 1000 = 0 THEN '{{\"name\": \"named\"}}'::jsonb ELSE '{{}}'::jsonb END)::text
             FROM many, one;
         INSERT INTO label SELECT id, 'team', 'blue', at FROM many;
         INSERT INTO label SELECT id, 'rare', (n / 10)::text, at FROM many;
         INSERT INTO ended (id, revision, stamp, epoch, created_at, priority, archived, started_at, ended_at, state, kind, events)
             SELECT many.id, 3, stamp, 1, at, priority, false, at, at, 'succeeded', kind, events FROM many, one WHERE n <= {RUNS};
         INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, due_at, state, kind, events)
             SELECT many.id, 1, stamp, 0, at, priority, n % 2 = 0, CASE WHEN n % 2 = 1 THEN clock() * 2 END, 'pending', kind,
                    events
             FROM many, one WHERE n > {RUNS};
         UPDATE waiting SET kind = 'later' WHERE NOT ready"
    ));
}

/// The plans of all statements that the server has logged, with the text of each.
fn plans(log: &str) -> Vec<(String, Value)> {
    let mut plans = Vec::new();
    let mut lines = log.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.ends_with("plan:") {
            continue;
        }
        let mut json = String::new();
        while let Some(line) = lines.next_if(|line| line.starts_with(['\t', '{', '}'])) {
            json.push_str(line);
        }
        let mut told: Value = serde_json::from_str(&json).unwrap();
        plans.push((told["Query Text"].as_str().unwrap().to_owned(), told["Plan"].take()));
    }
    plans
}

/// How many rows were read, and which of the long tables from end to end.
fn read(plan: &Value, whole: &mut BTreeSet<String>) -> u64 {
    let number = |field: &str| plan[field].as_f64().unwrap_or(0.0);
    let mut rows = 0.0;
    if let Some(table) = plan["Relation Name"].as_str() {
        let removed = number("Rows Removed by Filter") + number("Rows Removed by Index Recheck");
        rows = (number("Actual Rows") + removed) * number("Actual Loops").max(1.0);
        let is_long = LONG.iter().any(|long| table == *long || table.starts_with(&format!("{long}_")));
        if plan["Node Type"] == "Seq Scan" && is_long && number("Actual Loops") > 0.0 {
            whole.insert(table.into());
        }
    }
    let parts = plan["Plans"].as_array().into_iter().flatten();
    rows as u64 + parts.map(|part| read(part, whole)).sum::<u64>()
}

/// Every place in the sources of the store that makes a statement.
fn places() -> BTreeSet<(String, u32)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/postgres");
    let mut places = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        // `query` passes on where it was called.
        let makes = |line: &&str| (line.contains(".sql(") || line.contains("self.query(")) && !line.contains("Query {");
        for (line, _) in (1..).zip(source.lines()).filter(|(_, line)| makes(line)) {
            places.insert((name.clone(), line));
        }
    }
    places
}

/// Runs that are claimed and done, with keys and without, until what their event logs say is long.
async fn work(worker: &Registry) {
    let keyed = Spec { keys: vec![Key::limit("door", 1), Key::rate("api", 9, PATIENCE)], ..spec("keyed") };
    let (mut plain, mut one) = (worker.start(spec("plain")).await.unwrap(), worker.start(keyed.clone()).await.unwrap());
    worker.start(keyed.clone()).await.map(drop).expect_err("the key is busy");
    for number in 0..60 {
        for handle in [&mut plain, &mut one] {
            handle.set_checkpoint(number.into()).await.unwrap();
        }
    }
    worker.cancel(one.id(), None).await.unwrap();
    worker.events(one.id()).await.unwrap();
    plain.succeed().await.unwrap();
    one.succeed().await.unwrap();
    let waits = worker.enqueue(Spec { priority: -1, ..keyed }).await.unwrap();
    let claimed = worker.claim(Filter::of([waits.id]), 1).await.unwrap();
    assert_eq!(claimed.len(), 1);
    for handle in claimed {
        handle.succeed().await.unwrap();
    }
}

/// Has runs cancelled by one commit that takes several statements.
/// Enqueues inside a transaction of a caller's own, by the library and by SQL.
fn enqueue_in_a_transaction(url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let registry = Registry::open(url).await.unwrap();
        let mut client = connect(url).await;
        let transaction = client.transaction().await.unwrap();
        registry.enqueue_in(&transaction, registry.spec("other")).await.unwrap();
        transaction.execute(&format!("SELECT {}.enqueue('other')", schema_of(url)), &[]).await.unwrap();
        transaction.commit().await.unwrap();
    });
}

async fn cancel_some(store: &PostgresStore, owner: &Registry) {
    let keyed = |key: &str| Spec { keys: vec![Key::limit(key, 1)], ..spec("keyed") };
    let (one, two) = (owner.start(keyed("one")).await.unwrap(), owner.start(keyed("two")).await.unwrap());
    let waits = owner.enqueue(keyed("one")).await.unwrap();
    let records = store.get(&[one.id(), two.id(), waits.id]).await.unwrap();
    let action = Action::RequestCancel { reason: None, grace: None, live: Default::default() };
    let cancel = |record: &Record| {
        let change = apply(&record.run, &action, &person("bob"), SystemClock.now()).unwrap();
        Write::change(record, change, stamp(&SystemEntropy))
    };
    store.commit(records.iter().map(cancel).collect()).await.unwrap();
    one.succeed().await.unwrap();
    two.succeed().await.unwrap();
}

/// Lists of every sort that somebody asks for.
async fn list(reader: &Registry, some: &Run) {
    let pending = || Filter::in_states([StateName::Pending]);
    let label = |name: &str, value: &str| [(name.to_owned(), value.to_owned())].into();
    let filters = [
        Filter::default(),
        pending(),
        Filter::in_states([StateName::Failed, StateName::Dead]),
        Filter::in_states([StateName::Running]),
        Filter { labels: label("team", "blue"), ..Filter::default() },
        Filter { labels: label("rare", "7"), ..Filter::default() },
        Filter { labels: label("rare", "none"), ..pending() },
        Filter { labels: label("team", "blue"), ..Filter::in_states([StateName::Running]) },
        Filter { name: Some("named".into()), ..Filter::default() },
        Filter { name: Some("nobody".into()), ..Filter::default() },
        Filter { id_prefix: Some(some.id.to_string()[..30].into()), ..Filter::default() },
        Filter::of([some.id]),
        Filter::steps_of(some),
    ];
    for filter in &filters {
        for order in [Order::Newest, Order::Oldest] {
            let page = Page { after: None, limit: 100, order };
            let listing = reader.store().list(filter, &page).await.unwrap();
            let next = Page { after: listing.next, ..page };
            reader.store().list(filter, &next).await.unwrap();
        }
    }
    let claims = Page { after: None, limit: 100, order: Order::Claim };
    reader.store().list(&pending(), &claims).await.unwrap();
}

#[test]
fn t7_07_every_statement_reads_few_of_200_000_runs() {
    let explain =
        ["log_min_duration=0", "log_analyze=on", "log_timing=off", "log_format=json", "log_nested_statements=on"];
    let explain: Vec<String> = explain.iter().map(|setting| format!("auto_explain.{setting}")).collect();
    let mut settings = vec!["fsync=off", "autovacuum=off", "shared_preload_libraries=auto_explain"];
    settings.extend(explain.iter().map(String::as_str));
    let server = Server::alone(&settings);
    let url = server.fresh_url();
    let (store, schema) = (open(&url).unwrap(), schema_of(&url));
    let worker = process(&store, Arc::new(SystemClock));
    pollster::block_on(async {
        let some = worker.enqueue(spec("job")).await.unwrap();
        fill(&server, &schema);
        let begun = server.log().len();
        let step = Step {
            of: some.id,
            attempt: 1,
            name: "step".into(),
            fingerprint: "f".into(),
            changed: false,
            replays: None,
            parent: None,
        };
        let labels: BTreeMap<String, String> = [("team".to_owned(), "red".to_owned())].into();
        worker.enqueue(Spec { step: Some(step), labels: labels.clone(), ..spec("step") }).await.unwrap();
        // Few at once, and many.
        for count in [2, 40] {
            let runs = (0..count)
                .map(|_| pending(Spec { labels: labels.clone(), ..spec("many") }, SystemClock.now(), &SystemEntropy));
            store.commit(runs.map(making).collect()).await.unwrap();
        }
        // Until what moves has the tables vacuumed.
        for _ in 0..21 {
            let claimed = worker.claim(Filter { kind: Some("job".into()), ..Filter::default() }, 500).await.unwrap();
            assert_eq!(claimed.len(), 500);
            claimed.into_iter().for_each(std::mem::forget);
        }
        work(&worker).await;
        list(&worker, &some).await;
        let none = worker.claim(Filter { kind: Some("none".into()), ..Filter::default() }, 5).await.unwrap();
        assert!(none.is_empty());
        for kinds in [vec!["none"], vec!["later"], vec!["none", "later"]] {
            let kinds = Some(kinds.into_iter().map(str::to_owned).collect());
            assert!(worker.claim(Filter { kinds, ..Filter::default() }, 5).await.unwrap().is_empty());
        }
        release_blocked(&worker).await;
        let counts = worker.counts().await.unwrap();
        assert!(
            counts.iter().any(|count| count.state == StateName::Succeeded && count.runs >= RUNS as u64),
            "{counts:?}"
        );
        enqueue_in_a_transaction(&url);
        // What an engine without any feature is asked instead.
        let plain = server.fresh_url() + &crate::ground::WITHOUT_ALL;
        work(&process(&open(&plain).unwrap(), Arc::new(SystemClock))).await;
        store.workers().await.unwrap();
        store.starts(&[Key::rate("api", 9, PATIENCE)]).await.unwrap();
        store.next_due(&Filter::default()).await.unwrap();
        fill_share(&server, &schema);
        claim_shares(&worker).await;
        store.next_due(&Filter { kind: Some("keyed".into()), ..Filter::default() }).await.unwrap();
        store.examine().await.unwrap();
        store.keep_history(Some(PATIENCE)).await.unwrap();
        store.keep_history(None).await.unwrap();
        store.maintain().await.unwrap();
        export_some(&server, &url, &store).await;
        // Somebody else, who holds what it does not own, and whose beats go missing.
        let other = process(&open(&url).unwrap(), Arc::new(SystemClock));
        let handle = other.start(spec("other")).await.unwrap();
        other.tick().await.unwrap();
        move_a_share(&server, &store, &worker).await;
        let lost = (some.id, outlive::id::Epoch(7));
        let beat = Beat {
            worker: handle.fence().worker,
            identity: stranger(1),
            lease: Lease::default(),
            held: [lost].into(),
            attention: None,
            leaving: false,
            offer: Arc::default(),
        };
        assert_eq!(store.beat(&beat).await.unwrap().lost, [some.id]);
        server.psql(&format!("DELETE FROM {schema}.worker WHERE id = '{}'", handle.fence().worker));
        Reaper::new(None).pass(&worker).await.unwrap();
        other.tick().await.unwrap();
        cancel_some(&store, &other).await;
        other.cancel(handle.id(), None).await.unwrap();
        worker.cancel(handle.id(), None).await.unwrap();
        handle.succeed().await.unwrap();
        other.close().await;
        let vacuumed = format!(
            "SELECT vacuum_count > 0 FROM pg_stat_user_tables WHERE relname = 'tally' AND schemaname = '{schema}'"
        );
        until("the tables to be vacuumed", || server.psql(&vacuumed) == "t");
        let called: BTreeSet<(String, u32)> = called::all()
            .into_iter()
            .filter_map(|(file, line)| Some((file.split_once("src/store/postgres/")?.1.to_owned(), line)))
            .collect();
        let missed: Vec<_> = places().difference(&called).cloned().collect();
        assert!(missed.is_empty(), "no plan was looked at of the statements made at {missed:?}");
        judge(&server.log()[begun..]);
    });
}

/// Exports a part of history with one run in it, and looks for that run.
async fn export_some(server: &Server, url: &str, store: &PostgresStore) {
    let made = server.psql(&format!(
        "SET auto_explain.log_min_duration = -1; SET search_path TO {};
         DO $$ DECLARE root text; BEGIN
             FOREACH root IN ARRAY ARRAY['spec', 'ended', 'event_log', 'label'] LOOP
                 EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)', root || '_10', root,
                                first_id(864000000000), first_id(950400000000));
             END LOOP;
         END $$;
         INSERT INTO part (name, since, until) VALUES ('10', 864000000000, 950400000000);
         INSERT INTO spec (id, created_at, priority, kind, body)
             SELECT first_id(900000000000), 900000000000, 0, 'old', body FROM spec WHERE kind = 'job' LIMIT 1;
         INSERT INTO ended (id, revision, stamp, epoch, created_at, priority, archived, started_at, ended_at, state, events)
             VALUES (first_id(900000000000), 3, gen_random_uuid(), 1, 900000000000, 0, false, 900000000000, 900000000001,
                     'succeeded', '');
         SELECT first_id(900000000000)",
        schema_of(url)
    ));
    let id: RunId = made.lines().last().unwrap().parse().unwrap();
    let (home, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    store.reading_history_of(home.path().into());
    let location = outlive::secrets::trust::NamedLocation::parse(place.path().to_str().unwrap()).unwrap();
    let before = Timestamp::from_micros(950_400_000_000);
    let [part] = &store.history_parts(before).await.unwrap()[..] else { panic!("one part is as old") };
    let export = Export { location: &location, before, replace: false };
    let part = store.export_part(part.clone(), &export, |_| Ok(())).await.unwrap();
    assert_eq!((part.left, part.runs, part.files), (None, 1, 1));
    assert_eq!(record(store, id).await.unwrap().run.state.name(), StateName::Succeeded);
    let (other, elsewhere) = (open(url).unwrap(), tempfile::tempdir().unwrap());
    other.reading_history_of(elsewhere.path().into());
    assert!(record(&other, id).await.is_none());
    assert_eq!(other.exported_to(id).await.unwrap().unwrap(), place.path().to_str().unwrap());
}

/// Moves so many runs that a worker of several asks whether dead rows are to be removed.
async fn move_a_share(server: &Server, store: &PostgresStore, worker: &Registry) {
    assert!(store.workers().await.unwrap().len() > 1);
    let begun = server.log().len();
    for _ in 0..11 {
        let claimed = worker.claim(Filter { kind: Some("job".into()), ..Filter::default() }, 500).await.unwrap();
        assert_eq!(claimed.len(), 500);
        claimed.into_iter().for_each(std::mem::forget);
    }
    until("a look at dead rows", || server.log()[begun..].contains("pg_stat_get_dead_tuples"));
}

/// Releases runs that wait for others, behind many that are ready and many that are due later.
async fn release_blocked(worker: &Registry) {
    let parent = worker.start(spec("parent")).await.unwrap();
    let after = After { run: parent.id(), release: Release::Success };
    let blocked = worker.enqueue(Spec { after: vec![after], ..spec("blocked") }).await.unwrap();
    let maintenance = Maintenance::new(None);
    assert_eq!(maintenance.release(worker).await.unwrap(), 0);
    parent.succeed().await.unwrap();
    assert_eq!(maintenance.release(worker).await.unwrap(), 1);
    assert_eq!(worker.claim(Filter::of([blocked.id]), 1).await.unwrap().into_iter().map(std::mem::forget).count(), 1);
}

/// Gives half of the runs that are ready to one share, and has the server believe that no other share has any.
fn fill_share(server: &Server, schema: &str) {
    server.psql(&format!(
        "SET auto_explain.log_min_duration = -1; SET search_path TO {schema};
         CREATE TEMP TABLE half AS SELECT id FROM waiting WHERE ready AND kind = 'job' AND created_at / 2000000 % 2 = 0;
         UPDATE spec SET body = (body::jsonb || '{{\"share\": {{\"tenant\": \"acme\"}}}}')::text WHERE id IN (TABLE half);
         UPDATE waiting SET share = 'acme' WHERE id IN (TABLE half);
         ANALYZE waiting"
    ));
    let shared = server.psql(&format!(
        "SET auto_explain.log_min_duration = -1; SELECT count(*) FROM {schema}.waiting WHERE share = 'acme'"
    ));
    let shared: u64 = shared.lines().last().unwrap().parse().unwrap();
    assert!(shared > 2 * READ, "{shared} runs are too few to show a walk");
}

/// Runs of a share are found behind all others, and those of no share behind all of a share.
async fn claim_shares(worker: &Registry) {
    let of = |tenant: &str| Spec { share: Some(tenant.parse().unwrap()), ..spec("job") };
    for kinds in [vec!["job".to_owned()], Vec::new()] {
        worker.enqueue(of("other:2")).await.unwrap();
        assert!(worker.store().heads(&Filter::default()).await.unwrap().len() >= 2);
        let mut claims = outlive::engine::claims::Claims::of(kinds);
        let (claimed, _) = claims.claim(worker, 4, &|_| true).await.unwrap();
        assert_eq!(claimed.iter().filter(|handle| handle.run().tenant() == "other").count(), 1);
        claimed.into_iter().for_each(std::mem::forget);
    }
    // No kind of any share, and the next pages of one share.
    for filter in [
        Filter { kind: Some("none".into()), ..Filter::default() },
        Filter { share: Some("absent".into()), ..Filter::default() },
        Filter { share: Some("absent".into()), priority: Some(0), ..Filter::default() },
    ] {
        assert!(worker.claim(filter, 5).await.unwrap().is_empty());
    }
    let acme = Filter { share: Some("acme".into()), priority: Some(0), ..Filter::default() };
    let claimed = worker.claim(acme, 1_200).await.unwrap();
    assert_eq!(claimed.len(), 1_200);
    claimed.into_iter().for_each(std::mem::forget);
}

fn judge(log: &str) {
    let mut wrong = BTreeMap::new();
    let plans = plans(log);
    println!("{} statements were carried out", plans.len());
    assert!(plans.len() > 500, "the server logs no plans");
    for (text, plan) in plans {
        let mut whole = BTreeSet::new();
        let rows = read(&plan, &mut whole);
        // What a person asks at a prompt, or a test, is not asked by the store.
        let is_ours = !text.contains("pg_stat_user_tables");
        if is_ours && (rows > READ || !whole.is_empty()) {
            wrong.insert(text, (rows, whole, plan));
        }
    }
    for (text, (rows, whole, plan)) in &wrong {
        println!("{rows} rows read, from end to end {whole:?}: {text}\n{plan:#}");
    }
    assert!(wrong.is_empty(), "{} statements read more than they need", wrong.len());
}
