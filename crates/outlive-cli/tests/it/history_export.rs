//! `outlive history export`: runs of a database become Parquet files that DuckDB reads, and are found afterwards as before.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use outlive::id::{Entropy, SystemEntropy};
use outlive::testing::bucket::{Bucket, python};
use outlive::testing::server::Server;
use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, text, until};

/// How many runs the tests export: `OUTLIVE_HISTORY_RUNS` asks for a month of them.
const RUNS: usize = 9_000;
/// How often an export is killed: `OUTLIVE_HISTORY_KILLS` asks for more.
const KILLS: usize = 3;

fn longer(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

fn schema_of(url: &str) -> &str {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap()
}

/// A registry with runs that were made and ended today, by a server whose clock is forty days ahead.
struct Old {
    sandbox: Sandbox,
    url: String,
}

impl Old {
    fn with(runs: usize) -> Self {
        let old = Self { sandbox: Sandbox::new(), url: Server::shared().fresh_url() };
        old.on(&["run", "--name", "good", "--label", "team=red", "--", "true"]).succeeds();
        old.on(&["run", "--name", "bad", "--", "sh", "-c", "exit 3"]).fails_with(3);
        let fill = format!(
            "CREATE TEMP TABLE many AS SELECT n, since + n::int8 * 1000 AS at,
                 (lpad(to_hex((since + n::int8 * 1000) / 1000), 12, '0') || '7' || substr(md5(n::text), 1, 19))::uuid AS id
                 FROM generate_series(1, {runs}) AS n, (SELECT min(since) AS since FROM part) AS first;
             INSERT INTO spec (id, created_at, priority, name, kind, body)
                 SELECT id, at, 0, 'many-' || n, 'import', jsonb_build_object('kind', 'import', 'name', 'many-' || n,
                        'labels', jsonb_build_object('team', CASE WHEN n % 3 = 0 THEN 'red' ELSE 'blue' END),
                        'created_by', jsonb_build_object('user', 'ada', 'host', 'vm', 'pid', 1))::text FROM many;
             INSERT INTO label SELECT id, 'team', CASE WHEN n % 3 = 0 THEN 'red' ELSE 'blue' END, at FROM many;
             INSERT INTO ended (id, revision, stamp, epoch, created_at, priority, archived, started_at, ended_at, state, kind,
                                events)
                 SELECT id, 3, gen_random_uuid(), 1, at, 0, false, at, at + 5, 'succeeded', 'import',
                        'E' || chr(9) || at || chr(9) || 'ada' || chr(9) || 'vm' || chr(9) || '1' || chr(10) FROM many;
             CREATE OR REPLACE FUNCTION clock() RETURNS int8 LANGUAGE sql VOLATILE AS $$
                 SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 + 40 * 86400000000 $$"
        );
        old.psql(&fill);
        old
    }

    fn on(&self, words: &[&str]) -> Command {
        let mut command = self.sandbox.outlive(words);
        command.env("OUTLIVE_REGISTRY", &self.url);
        command
    }

    /// What the server answers last.
    fn psql(&self, sql: &str) -> String {
        let said = Server::shared().psql(&format!("SET search_path TO {}; {sql}", schema_of(&self.url)));
        said.lines().last().unwrap_or_default().to_owned()
    }

    fn directory(&self) -> PathBuf {
        let path = self.sandbox.path().join("history");
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn export(&self, to: &str, more: &[&str]) -> Command {
        self.on(&[&["history", "export", "--to", to, "--yes", "--json"], more].concat())
    }

    /// How many runs are in the tables of the database.
    fn rows(&self) -> usize {
        self.psql("SELECT count(*) FROM ended").parse().unwrap()
    }
}

/// What DuckDB answers, as JSON.
fn duckdb(sql: &str) -> Value {
    let script = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.argv[1]).fetchall(), default=str))";
    let output = Command::new(python("python")).args(["-c", script, sql]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{sql}: {}", text(&output.stderr)))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let registries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        registries.flat_map(|path| std::fs::read_dir(path).unwrap()).map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// What a search says of runs, without how fresh it is.
fn found(old: &Old, words: &[&str]) -> Vec<Value> {
    let page = old.sandbox.outlive([&["search", "--json"], words].concat()).json();
    page["runs"].as_array().unwrap().clone()
}

#[test]
fn exported_runs_are_found_as_before_and_counted_by_duckdb() {
    let runs = longer("OUTLIVE_HISTORY_RUNS", RUNS);
    let old = Old::with(runs);
    let directory = old.directory();
    let to = directory.to_str().unwrap();
    old.sandbox.outlive(["registry", "add", &old.url]).succeeds();
    old.sandbox.outlive(["registry", "refresh"]).succeeds();
    let ask = |words: &[&str]| old.on(words).json();
    let searches: [&[&str]; 3] = [&["good"], &["--label", "team=red", "--limit", "60"], &["many-77"]];
    let before: Vec<Vec<Value>> = searches.iter().map(|words| found(&old, words)).collect();
    assert_eq!((before[0].len(), before[1].len()), (1, 60));
    let id = before[0][0]["run_id"].as_str().unwrap().to_owned();
    let bad = found(&old, &["bad"])[0]["run_id"].as_str().unwrap().to_owned();
    let told = |id: &str| {
        let mut shown = ask(&["show", id, "--json"]);
        // What may be done with it follows from its state, and from the keys in this home.
        shown["waits"].take();
        (shown, ask(&["why", id, "--json"]), text(&old.on(&["result", id]).output().unwrap().stdout))
    };
    let told_before = [told(&id), told(&bad)];

    let dry = old.on(&["history", "export"]).succeeds();
    assert!(dry.contains(&format!("{} runs would be exported", runs + 2)), "{dry}");
    assert_eq!(old.rows(), runs + 2);
    let done = old.export(to, &[]).json();
    assert_eq!((&done["runs"], &done["dry_run"], &done["location"]), (&json!(runs + 2), &json!(false), &json!(to)));
    assert_eq!(old.rows(), 0);
    assert_eq!(old.psql("SELECT coalesce(sum(runs), 0) FROM tally"), "0");

    assert_eq!([told(&id), told(&bad)], told_before);
    assert_eq!(ask(&["show", &id[..18], "--json"])["id"], id.as_str());
    for refresh in [false, true] {
        if refresh {
            old.sandbox.outlive(["registry", "refresh"]).succeeds();
        }
        let after: Vec<Vec<Value>> = searches.iter().map(|words| found(&old, words)).collect();
        assert_eq!(after, before, "refreshed: {refresh}");
    }
    let everything = format!("read_parquet('{to}/*/*.parquet')");
    let counted = duckdb(&format!("SELECT count(*), count(DISTINCT id) FROM {everything}"));
    assert_eq!(counted, json!([[runs + 2, runs + 2]]));
    let total = |words: &[&str]| {
        old.sandbox.outlive([&["search", "--json", "--total", "--limit", "1"], words].concat()).json()["total"].clone()
    };
    assert_eq!(total(&[]), json!(runs + 2));
    let by_label = duckdb(&format!("SELECT count(*) FROM {everything} WHERE labels->>'team' = 'red'"));
    assert_eq!(by_label[0][0], total(&["--label", "team=red"]));
    let failed =
        format!("SELECT id, error_type, attempts, ended_at >= started_at FROM {everything} WHERE state = 'failed'");
    assert_eq!(duckdb(&failed), json!([[bad, "exit", 1, true]]));
    let types =
        duckdb(&format!("SELECT typeof(created_at), typeof(priority), typeof(labels) FROM {everything} LIMIT 1"));
    assert_eq!(types, json!([["TIMESTAMP WITH TIME ZONE", "BIGINT", "JSON"]]));
    // Nothing is left to be exported, and no file is written twice.
    let names = files(&directory);
    assert_eq!(old.export(to, &[]).json()["runs"], 0);
    assert_eq!(files(&directory), names);
}

#[test]
fn export_into_a_bucket_is_read_by_its_own_home_alone() {
    let old = Old::with(20);
    let to = Bucket::shared().url(&format!("history-{:x}", SystemEntropy.draw()));
    let id = old.on(&["show", "good", "--json"]).json()["id"].as_str().unwrap().to_owned();
    let done = old.export(&to, &[]).json();
    assert_eq!(done["runs"], 22);
    assert!(!done["location"].as_str().unwrap().contains('@'), "{done}");
    assert_eq!(old.on(&["show", &id, "--json"]).json()["state"], "succeeded");
    // What the database says of the place is shown to people, and no home goes there because of it.
    let place = old.psql("SELECT place FROM exported LIMIT 1");
    assert!(place.starts_with("s3://outlive/history-") && !place.contains('@'), "{place}");
    let other = Sandbox::new();
    let mut show = other.outlive(["show", &id]);
    let said = show.env("OUTLIVE_REGISTRY", &old.url).fails_with(101);
    assert!(said.contains(&place) && said.contains("--remember"), "{said}");
    let mut remember = other.outlive(["history", "export", "--to", &to, "--remember"]);
    remember.env("OUTLIVE_REGISTRY", &old.url).succeeds();
    let mut show = other.outlive(["show", &id, "--json"]);
    assert_eq!(show.env("OUTLIVE_REGISTRY", &old.url).json()["name"], "good");
}

#[test]
fn export_killed_anywhere_loses_no_run_and_doubles_none() {
    let runs = 6_000;
    let mut interrupted = 0;
    for round in 0..longer("OUTLIVE_HISTORY_KILLS", KILLS) {
        let old = Old::with(runs);
        let directory = old.directory();
        let to = directory.to_str().unwrap();
        let id = |name| old.on(&["show", name, "--json"]).json()["id"].as_str().unwrap().to_owned();
        let ids = ["good", "bad"].map(|name| (name, id(name)));
        let mut export = spawned(old.export(to, &[]));
        // Within the time that an export takes, which differs from machine to machine.
        let pause = SystemEntropy.draw() % (1_500 * (round as u128 + 1));
        std::thread::park_timeout(std::time::Duration::from_millis(u64::try_from(pause).unwrap()));
        let was_running = export.try_wait().unwrap().is_none();
        let _ = export.kill();
        export.wait().unwrap();
        let rows = old.rows();
        interrupted += usize::from(was_running && rows > 0);
        assert!(rows == 0 || rows == runs + 2, "round {round}: {rows} runs are left");
        // Each run is found, wherever it is.
        for (name, id) in &ids {
            assert_eq!(old.on(&["show", id, "--json"]).json()["name"], *name);
        }
        old.export(to, &[]).succeeds();
        assert_eq!(old.rows(), 0);
        let counted = duckdb(&format!("SELECT count(*), count(DISTINCT id) FROM read_parquet('{to}/*/*.parquet')"));
        assert_eq!(counted, json!([[runs + 2, runs + 2]]), "round {round}");
    }
    println!("{interrupted} exports were killed before they had dropped anything");
    assert!(interrupted > 0, "no export was killed on the way");
}

fn spawned(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn run_that_changes_during_an_export_keeps_its_part() {
    let old = Old::with(50);
    let directory = old.directory();
    // A change that is not committed yet: the export reads the run as it was, and then waits for the other session.
    let schema = schema_of(&old.url);
    let change = format!(
        "SET search_path TO {schema}; BEGIN;
         UPDATE ended SET revision = revision + 1, stamp = gen_random_uuid() WHERE state = 'failed';
         DO $$ BEGIN LOOP EXIT WHEN EXISTS (SELECT 1 FROM meta WHERE name = 'go'); PERFORM pg_sleep(0.02); END LOOP; END $$;
         COMMIT"
    );
    let changing = std::thread::spawn(move || Server::shared().psql(&change));
    let is_held = "SELECT count(*) > 0 FROM pg_locks WHERE relation = 'ended'::regclass AND mode = 'RowExclusiveLock'";
    until("the change to be under way", || old.psql(is_held) == "t");
    let export = spawned(old.export(directory.to_str().unwrap(), &[]));
    let is_there = || std::fs::read_dir(&directory).unwrap().next().is_some() && !files(&directory).is_empty();
    until("the file to be there", is_there);
    old.psql("INSERT INTO meta VALUES ('go', '')");
    changing.join().unwrap();
    let done = export.wait_with_output().unwrap();
    let said = text(&done.stdout);
    assert!(
        done.status.code() == Some(1) && said.contains("a run of it changed meanwhile"),
        "{said}{}",
        text(&done.stderr)
    );
    // Nothing was dropped, and no file is left that has the run as it was.
    assert_eq!((old.rows(), files(&directory).len()), (52, 0));
    old.export(directory.to_str().unwrap(), &[]).succeeds();
    assert_eq!((old.rows(), files(&directory).len()), (0, 1));
}

#[test]
fn files_that_are_damaged_or_of_others_are_refused() {
    let old = Old::with(30);
    let directory = old.directory();
    let to = directory.to_str().unwrap();
    let id = old.on(&["show", "bad", "--json"]).json()["id"].as_str().unwrap().to_owned();
    let registry = old.psql("SELECT value FROM meta WHERE name = 'id'");
    let day = old.psql("SELECT to_char(to_timestamp(min(since) / 1e6) AT TIME ZONE 'UTC', 'YYYY-MM-DD') FROM part");
    let file = directory.join(&registry).join(format!("{day}-0000.parquet"));
    std::fs::create_dir(directory.join(&registry)).unwrap();
    std::fs::write(&file, "an export that was killed").unwrap();
    let said = old.export(to, &[]).output().unwrap();
    assert_eq!((said.status.code(), old.rows()), (Some(1), 32), "{}", text(&said.stderr));
    let said = text(&said.stdout);
    assert!(said.contains("is there with other rows") && said.contains("--replace"), "{said}");
    old.export(to, &["--replace"]).succeeds();
    assert_eq!(old.rows(), 0);
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = 0;
    for place in (5..whole.len()).step_by(whole.len() / 12) {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x10;
        std::fs::write(&file, &bytes).unwrap();
        let shown = old.on(&["show", &id, "--json"]).output().unwrap();
        let said = text(&shown.stdout) + &text(&shown.stderr);
        match shown.status.code() {
            // What a run is read from is not in all of the file.
            Some(0) => assert!(said.contains("\"failed\""), "{said}"),
            _ => {
                assert!(said.contains(&format!("{day}-0000.parquet")), "{said}");
                damaged += 1;
            }
        }
    }
    assert!(damaged > 2, "{damaged} changes were noticed");
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(old.on(&["show", &id, "--json"]).json()["state"], "failed");
}

#[test]
fn part_with_a_run_that_waits_or_is_needed_is_left() {
    let old = Old::with(10);
    let one = old.on(&["queue", "add", "--name", "one", "--json", "--", "true"]).json();
    let one = one["runs"][0]["id"].as_str().unwrap().to_owned();
    let said = old.on(&["history", "export"]).succeeds();
    assert!(said.contains("left: 1 of its runs wait or run"), "{said}");
    let done = old.export(old.directory().to_str().unwrap(), &[]).json();
    assert_eq!((&done["runs"], old.rows()), (&json!(0), 12));
    old.on(&["cancel", &one]).succeeds();
    let id = old.on(&["show", "good", "--json"]).json()["id"].as_str().unwrap().to_owned();
    // A run of a later time that waits for one of this.
    old.psql(&format!(
        "INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, state, kind, body, events)
             SELECT first_id(clock()), 1, gen_random_uuid(), 0, clock(), 0, false, 'pending', 'x',
                    '{{\"pending\": {{\"since\": \"2026-01-01T00:00:00Z\", \"waits_for\": [\"{id}\"]}}}}', ''"
    ));
    let said = old.on(&["history", "export"]).succeeds();
    assert!(said.contains("left: a run that waits needs one of it"), "{said}");
    let said = old.on(&["history", "export", "--before", "2020-01-01"]).succeeds();
    assert_eq!(said, "0 runs would be exported\n");
}
