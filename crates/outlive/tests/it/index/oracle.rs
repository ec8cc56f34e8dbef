//! Random trees, changed in random ways, compared with an oracle that has no index.
//!
//! The oracle walks the directories and reads every file every time. It shares nothing with the index but the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outlive::index::{Freshness, Lifecycle, Query, Standing};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use super::yard::{Yard, put, put_bytes, state};

/// How many runs a repository can have.
const NAMES: u8 = 6;
/// The variable that has more histories told.
pub(super) const CASES: &str = "OUTLIVE_INDEX_HISTORIES";

/// Something that happens to a repository.
#[derive(Debug, Clone)]
enum Deed {
    Write {
        run: u8,
        tasks: u8,
        day: u8,
    },
    Delete(u8),
    Rename(u8, u8),
    Copy(u8, u8),
    Corrupt(u8),
    Link(u8),
    /// Other content of the same length, in place, with the old time.
    Disguise(u8),
    Touch(u8),
    Archive(u8),
    Unarchive,
    SpoilOverlay,
    Refresh,
}

fn deed() -> impl Strategy<Value = (bool, Deed)> {
    let run = 0..NAMES;
    let what = prop_oneof![
        6 => (run.clone(), 0..5_u8, 1..4_u8).prop_map(|(run, tasks, day)| Deed::Write { run, tasks, day }),
        1 => run.clone().prop_map(Deed::Delete),
        1 => (run.clone(), run.clone()).prop_map(|(from, to)| Deed::Rename(from, to)),
        1 => (run.clone(), run.clone()).prop_map(|(from, to)| Deed::Copy(from, to)),
        1 => run.clone().prop_map(Deed::Corrupt),
        1 => run.clone().prop_map(Deed::Link),
        2 => run.clone().prop_map(Deed::Disguise),
        1 => run.clone().prop_map(Deed::Touch),
        1 => run.prop_map(Deed::Archive),
        1 => Just(Deed::Unarchive),
        1 => Just(Deed::SpoilOverlay),
        4 => Just(Deed::Refresh),
    ];
    (any::<bool>(), what)
}

/// What a run is, as far as the oracle looks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Truth {
    id: String,
    created_at: String,
    derived: &'static str,
    archived: bool,
    bytes: Vec<u8>,
}

/// Every run of a repository, by directory; none where it cannot be understood.
type Runs = BTreeMap<(PathBuf, String), Option<Truth>>;

/// Whether a run is meant by a query.
type Meant = Box<dyn Fn(&(PathBuf, String), &Truth) -> bool>;

fn truth(repos: &[PathBuf]) -> Runs {
    let mut runs = Runs::new();
    for repo in repos {
        let overlay = std::fs::read(repo.join(".cw/registry/archive.json")).unwrap_or_default();
        let overlay: Value = serde_json::from_slice(&overlay).unwrap_or_default();
        for entry in std::fs::read_dir(repo.join(".cw/runs")).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path().join("state.json");
            if entry.file_type().unwrap().is_dir() && path.symlink_metadata().is_ok() {
                let name = entry.file_name().into_string().unwrap();
                let link = path.symlink_metadata().unwrap().is_symlink();
                runs.insert((repo.clone(), name), read(&path, &overlay).filter(|_| !link));
            }
        }
    }
    runs
}

fn read(path: &Path, overlay: &Value) -> Option<Truth> {
    let bytes = std::fs::read(path).ok()?;
    let state: Value = serde_json::from_slice(&bytes).ok()?;
    let id = state["id"].as_str()?.to_owned();
    let of = |status: &str| state["tasks"].as_array().unwrap().iter().filter(|task| task["status"] == status).count();
    let total = state["tasks"].as_array()?.len();
    let derived = if of("running") > 0 {
        "running"
    } else if of("failed") > 0 {
        "failed"
    } else if total > 0 && of("completed") == total {
        "completed"
    } else if of("completed") > 0 {
        "running"
    } else {
        "queued"
    };
    let archived = overlay["archived"][&id].is_object();
    Some(Truth { created_at: state["createdAt"].as_str()?.into(), derived, archived, id, bytes })
}

fn write(repo: &Path, run: u8, tasks: u8, day: u8) {
    let sorts: [&[&str]; 5] = [&[], &["pending"], &["running", "failed"], &["completed"], &["failed", "completed"]];
    put(repo, &name(run), &state(&name(run), &format!("2026-01-0{day}T00:00:00.000Z"), sorts[usize::from(tasks)]));
}

fn name(run: u8) -> String {
    format!("run-{run}")
}

fn act(repo: &Path, deed: &Deed) {
    let dir = |run: &u8| repo.join(".cw/runs").join(name(*run));
    let file = |run: &u8| dir(run).join("state.json");
    let registry = repo.join(".cw/registry");
    std::fs::create_dir_all(&registry).unwrap();
    // What is not there cannot be changed.
    match deed {
        Deed::Write { run, tasks, day } => {
            let _ = std::fs::remove_file(file(run));
            write(repo, *run, *tasks, *day);
        }
        Deed::Delete(run) => _ = std::fs::remove_dir_all(dir(run)),
        Deed::Rename(from, to) => _ = std::fs::rename(dir(from), dir(to)),
        Deed::Copy(from, to) => {
            if let Ok(bytes) = std::fs::read(file(from)) {
                let _ = std::fs::remove_file(file(to));
                put_bytes(repo, &name(*to), &bytes);
            }
        }
        Deed::Corrupt(run) => {
            let _ = std::fs::remove_file(file(run));
            put_bytes(repo, &name(*run), b"{\"schemaVersion\": 1,");
        }
        Deed::Link(run) => {
            let _ = std::fs::remove_file(file(run));
            std::fs::create_dir_all(dir(run)).unwrap();
            std::os::unix::fs::symlink("state.json", file(run)).unwrap();
        }
        Deed::Disguise(run) => {
            let Ok(found) = file(run).symlink_metadata().and_then(|found| found.modified()) else { return };
            let Ok(text) = std::fs::read_to_string(file(run)) else { return };
            std::fs::write(file(run), text.replace("Title", "TITLE")).unwrap();
            std::fs::File::options().write(true).open(file(run)).unwrap().set_modified(found).unwrap();
        }
        Deed::Touch(run) => {
            if let Ok(bytes) = std::fs::read(file(run)) {
                std::fs::write(file(run), bytes).unwrap();
            }
        }
        Deed::Archive(run) => {
            let marks = json!({"archived": {name(*run): {"archivedAt": "2026-02-01T00:00:00.000Z"}}});
            std::fs::write(registry.join("archive.json"), marks.to_string()).unwrap();
        }
        Deed::Unarchive => _ = std::fs::remove_file(registry.join("archive.json")),
        Deed::SpoilOverlay => std::fs::write(registry.join("archive.json"), "[1,").unwrap(),
        Deed::Refresh => {}
    }
}

fn names(sort: &outlive::index::Sort) -> BTreeSet<(PathBuf, String)> {
    assert_eq!(sort.count, sort.runs.len());
    sort.runs.iter().map(|named| (PathBuf::from(&named.repo), named.name.clone())).collect()
}

/// What the oracle remembers of the last refresh.
#[derive(Default)]
struct Memory {
    indexed: Runs,
    gone: BTreeSet<(PathBuf, String)>,
}

/// Whatever is claimed before a refresh is true, and whatever is not is named.
fn check_claims(yard: &Yard, now: &Runs, memory: &Memory) {
    let report = yard.index().report(None).unwrap();
    let both = |key: &(PathBuf, String)| now.get(key).zip(memory.indexed.get(key));
    let stale = now.keys().filter(|key| both(key).is_some_and(|(now, then)| now != then)).cloned().collect();
    assert_eq!(names(&report.stale_runs), stale, "stale");
    let new = now.keys().filter(|key| !memory.indexed.contains_key(*key)).cloned().collect();
    assert_eq!(names(&report.new_runs), new, "new");
    let missing: BTreeSet<_> =
        memory.indexed.keys().chain(&memory.gone).filter(|key| !now.contains_key(*key)).cloned().collect();
    assert_eq!(names(&report.missing_runs), missing, "missing");
    for listed in yard.all() {
        let record = &listed.record;
        let path = PathBuf::from(record.run_dir.as_ref().unwrap());
        let key = (PathBuf::from(&record.repo), path.file_name().unwrap().to_str().unwrap().to_owned());
        let truth = now.get(&key).unwrap_or_else(|| panic!("{key:?} is listed and gone"));
        match (listed.freshness, truth) {
            (Freshness::Valid, Some(truth)) => {
                assert_eq!(memory.indexed.get(&key), Some(&Some(truth.clone())), "{key:?} was called valid");
                check_record(record, truth);
            }
            (Freshness::Stale, Some(truth)) => check_record(record, truth),
            (Freshness::New, Some(truth)) => {
                assert_eq!(memory.indexed.get(&key), None, "{key:?} was called new");
                check_record(record, truth);
            }
            other => panic!("{key:?}: {other:?}"),
        }
    }
}

fn check_record(record: &outlive::index::IndexRecord, truth: &Truth) {
    let lifecycle = if truth.archived { "archived" } else { truth.derived };
    assert_eq!((record.lifecycle.as_str(), record.derived_lifecycle.as_str()), (lifecycle, truth.derived));
    assert_eq!((&record.run_id, &record.created_at), (&truth.id, &truth.created_at));
}

/// After a refresh nothing has changed.
fn check_standing(yard: &Yard, now: &Runs) {
    let standing = if now.values().all(Option::is_some) { Standing::Valid } else { Standing::Degraded };
    assert_eq!(yard.index().report(None).unwrap().freshness, standing);
    assert!(yard.all().iter().all(|run| run.freshness == Freshness::Valid || run.freshness_reason.is_some()));
}

/// Every answer is the oracle's, whatever was changed since the last refresh.
fn check_answers(yard: &Yard, now: &Runs) {
    let unreadable: BTreeSet<_> = now.iter().filter(|(_, truth)| truth.is_none()).map(|(key, _)| key.clone()).collect();
    let mut all: Vec<(&(PathBuf, String), &Truth)> =
        now.iter().filter_map(|(key, truth)| Some((key, truth.as_ref()?))).collect();
    all.sort_by_key(|(key, truth)| (truth.created_at.clone(), truth.id.clone(), key.0.clone()));
    let queries: Vec<(Query, Meant)> = vec![
        (Query::default(), Box::new(|_, _| true)),
        (of_status("failed"), Box::new(|_, truth| truth.derived == "failed")),
        (of_status("archived"), Box::new(|_, truth| truth.archived)),
        (
            Query { text: Some("run-3".into()), ..Query::default() },
            Box::new(|_, truth| {
                let text = String::from_utf8_lossy(&truth.bytes).to_lowercase();
                text.contains("run-3")
            }),
        ),
        (
            Query { text: Some("title comp*".into()), ..Query::default() },
            Box::new(|_, truth| truth.derived == "completed"),
        ),
        (
            Query {
                since: "2026-01-02T00:00:00Z".parse().ok(),
                until: "2026-01-03T00:00:00Z".parse().ok(),
                ..Query::default()
            },
            Box::new(|_, truth| truth.created_at.starts_with("2026-01-02")),
        ),
        (
            Query { archived: Some(false), ..of_status("completed") },
            Box::new(|_, truth| !truth.archived && truth.derived == "completed"),
        ),
    ];
    for (query, is_meant) in queries {
        let page = yard.index().search(&query).unwrap();
        let found: Vec<(&str, &str)> =
            page.runs.iter().map(|run| (run.record.run_id.as_str(), run.record.repo.as_str())).collect();
        let wanted: Vec<(&str, &str)> = all
            .iter()
            .filter(|(key, truth)| is_meant(key, truth))
            .map(|(key, truth)| (truth.id.as_str(), key.0.to_str().unwrap()))
            .collect();
        assert_eq!(found, wanted, "{query:?}");
        assert_eq!(names(&page.unreadable), unreadable, "{query:?}");
    }
}

fn of_status(status: &str) -> Query {
    Query { statuses: [status.parse::<Lifecycle>().unwrap()].into(), ..Query::default() }
}

#[test]
fn c03_c04_c06_the_index_of_any_tree_answers_as_the_oracle() {
    let cases = std::env::var(CASES).ok().and_then(|cases| cases.parse().ok()).unwrap_or(24);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let history = prop::collection::vec(deed(), 4..16);
    let told = runner.run(&history, |history| {
        let yard = Yard::new();
        let repos = [yard.repo("one"), yard.repo("two")];
        for run in 0..NAMES / 2 {
            write(&repos[0], run, run, 1);
            write(&repos[1], run, run + 1, 2);
        }
        let mut memory = Memory::default();
        yard.index().refresh(None).unwrap();
        memory.indexed = truth(&repos);
        for (other, deed) in &history {
            act(&repos[usize::from(*other)], deed);
            let now = truth(&repos);
            check_answers(&yard, &now);
            if !matches!(deed, Deed::Refresh) {
                check_claims(&yard, &now, &memory);
                continue;
            }
            yard.index().refresh(None).unwrap();
            let was_known = |key: &&(PathBuf, String)| memory.indexed[*key].is_some() && !now.contains_key(*key);
            memory.gone.extend(memory.indexed.keys().filter(was_known).cloned());
            memory.gone.retain(|key| !now.contains_key(key));
            memory.indexed = now.clone();
            check_standing(&yard, &now);
            check_answers(&yard, &now);
        }
        Ok(())
    });
    told.unwrap_or_else(|error| panic!("{error}"));
}
