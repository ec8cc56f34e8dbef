//! Random histories of registries of outlive, compared with an oracle that has no index.
//!
//! The oracle opens each registry and asks it for all of its runs, every time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::index::{Freshness, Lifecycle, Query, SourceAddress, Standing};
use outlive::registry::Registry;
use outlive::run::Spec;
use outlive::store::sqlite::Sharing;
use outlive::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::oracle::CASES;
use super::yard::Yard;

/// The files of a database.
const DATABASE: [&str; 3] = ["registry.db", "registry.db-wal", "registry.db-shm"];

/// Something that happens to a registry.
#[derive(Debug, Clone)]
enum Deed {
    Enqueue,
    Succeed,
    Fail,
    /// The run at this place, wherever that is possible.
    Cancel(u8),
    Archive(u8),
    Unarchive(u8),
    /// Its database, which comes back from the files of the runs.
    DeleteDatabase,
    SpoilDatabase,
    /// To a place where nobody looks for it, or back.
    Move,
    Refresh,
}

fn deed() -> impl Strategy<Value = (bool, Deed)> {
    let what = prop_oneof![
        2 => Just(Deed::Enqueue),
        3 => Just(Deed::Succeed),
        2 => Just(Deed::Fail),
        2 => any::<u8>().prop_map(Deed::Cancel),
        2 => any::<u8>().prop_map(Deed::Archive),
        1 => any::<u8>().prop_map(Deed::Unarchive),
        1 => Just(Deed::DeleteDatabase),
        1 => Just(Deed::SpoilDatabase),
        1 => Just(Deed::Move),
        5 => Just(Deed::Refresh),
    ];
    (any::<bool>(), what)
}

/// What a run is, as far as the oracle looks.
#[derive(Debug, Clone, PartialEq)]
struct Truth {
    created_at: Timestamp,
    derived: Lifecycle,
    archived: bool,
    title: String,
    whole: serde_json::Value,
}

/// Every run, by registry and id.
type Runs = BTreeMap<(PathBuf, String), Truth>;

/// The runs of the registries that can be asked, and which those are.
fn truth(roots: &[PathBuf]) -> (Runs, BTreeSet<PathBuf>) {
    let (mut runs, mut answered) = (Runs::new(), BTreeSet::new());
    for root in roots {
        let path = root.join(".outlive");
        let asked = || {
            let registry = Registry::read_local(&path).ok().filter(|_| path.is_dir())?;
            pollster::block_on(registry.all(&Filter { is_step: Some(false), ..Filter::default() })).ok()
        };
        let Some(all) = asked() else { continue };
        answered.insert(root.clone());
        for seen in all {
            let run = &seen.run;
            let truth = Truth {
                created_at: run.created_at,
                derived: seen.state.into(),
                archived: run.archived.is_some(),
                title: run.spec.name.clone().unwrap(),
                whole: serde_json::to_value(run).unwrap(),
            };
            runs.insert((root.clone(), run.id.to_string()), truth);
        }
    }
    (runs, answered)
}

fn act(root: &Path, deed: &Deed, number: usize) {
    let (path, away) = (root.join(".outlive"), root.with_extension("away"));
    match deed {
        Deed::Move if root.exists() => return std::fs::rename(root, away).unwrap(),
        Deed::Move => return std::fs::rename(away, root).unwrap(),
        Deed::Refresh => return,
        // Nobody works in what is elsewhere.
        _ if !root.exists() => return,
        Deed::DeleteDatabase => {
            return DATABASE.iter().for_each(|name| _ = std::fs::remove_file(path.join(name)));
        }
        Deed::SpoilDatabase => {
            DATABASE[1..].iter().for_each(|name| _ = std::fs::remove_file(path.join(name)));
            return std::fs::write(path.join(DATABASE[0]), format!("no database {number}")).unwrap();
        }
        _ => {}
    }
    // Whoever works in one that is spoilt says so, and changes nothing.
    let Ok(registry) = Registry::open_local(&path, Some(Sharing::Private)) else { return };
    pollster::block_on(async {
        let mut spec = Spec::new("import", registry.me().clone());
        spec.name = Some(format!("run-{number}"));
        let all = registry.all(&Filter::default()).await.unwrap_or_default();
        let at = |place: &u8| -> Option<RunId> { Some(all.get(usize::from(*place) % all.len().max(1))?.run.id) };
        // What the rules refuse is not done, and nothing has changed.
        match deed {
            Deed::Enqueue => _ = registry.enqueue(spec).await,
            Deed::Succeed => {
                if let Ok(handle) = registry.start(spec).await {
                    handle.succeed().await.unwrap();
                }
            }
            Deed::Fail => {
                if let Ok(handle) = registry.start(spec).await {
                    handle.fail("exit", "code 3").await.unwrap();
                }
            }
            Deed::Cancel(place) => {
                if let Some(id) = at(place) {
                    let _ = registry.cancel(id, None).await;
                }
            }
            Deed::Archive(place) => {
                if let Some(id) = at(place) {
                    let _ = registry.archive(id).await;
                }
            }
            Deed::Unarchive(place) => {
                if let Some(id) = at(place) {
                    let _ = registry.unarchive(id).await;
                }
            }
            _ => unreachable!("{deed:?}"),
        }
        registry.close().await;
    });
}

/// What the oracle remembers of the last refresh that each registry answered.
#[derive(Default)]
struct Memory {
    indexed: Runs,
    gone: BTreeSet<(PathBuf, String)>,
}

impl Memory {
    fn refresh(&mut self, now: &Runs, answered: &BTreeSet<PathBuf>) {
        let is_asked = |key: &(PathBuf, String)| answered.contains(&key.0);
        let lost: Vec<_> =
            self.indexed.keys().filter(|key| is_asked(key) && !now.contains_key(*key)).cloned().collect();
        self.gone.extend(lost);
        self.gone.retain(|key| !now.contains_key(key));
        self.indexed.retain(|key, _| !is_asked(key));
        self.indexed.extend(now.iter().map(|(key, truth)| (key.clone(), truth.clone())));
    }
}

fn names(sort: &outlive::index::Sort) -> BTreeSet<(PathBuf, String)> {
    sort.runs.iter().map(|named| (PathBuf::from(&named.repo), named.name.clone())).collect()
}

/// Whatever is claimed, before a refresh and after it, is true, and whatever is not is named.
fn check_claims(yard: &Yard, (now, answered): &(Runs, BTreeSet<PathBuf>), memory: &Memory) {
    let report = yard.index().report(None).unwrap();
    for source in &report.sources {
        let is_asked = answered.contains(Path::new(&source.repo));
        assert_eq!(source.state, if is_asked { "available" } else { "unavailable" }, "{source:?}");
    }
    let known: Vec<SourceAddress> = yard.index().sources().unwrap().into_iter().map(|known| known.address).collect();
    assert_eq!(yard.index().standing(&known).unwrap(), report.sources);
    let otherwise =
        |(key, truth): &(&(PathBuf, String), &Truth)| memory.indexed.get(*key).is_some_and(|it| it != *truth);
    assert_eq!(names(&report.stale_runs), now.iter().filter(otherwise).map(|(key, _)| key.clone()).collect(), "stale");
    let is_new = |key: &&(PathBuf, String)| !memory.indexed.contains_key(*key);
    assert_eq!(names(&report.new_runs), now.keys().filter(is_new).cloned().collect(), "new");
    let known = memory.indexed.keys().chain(&memory.gone);
    let missing: BTreeSet<_> = known.filter(|key| !now.contains_key(*key)).cloned().collect();
    assert_eq!(names(&report.missing_runs), missing, "missing");
    assert_eq!(report.missing_runs.count, missing.len(), "missing with those that are away");
    let page = yard.index().search(&Query { limit: 10_000, ..Query::default() }).unwrap();
    for listed in &page.runs {
        let key = (PathBuf::from(&listed.record.repo), listed.record.run_id.clone());
        let truth = now.get(&key).unwrap_or_else(|| panic!("{key:?} is listed and gone"));
        let freshness = match memory.indexed.get(&key) {
            Some(known) if known == truth => Freshness::Valid,
            Some(_) => Freshness::Stale,
            None => Freshness::New,
        };
        let lifecycle = if truth.archived { Lifecycle::Archived } else { truth.derived };
        let record = &listed.record;
        assert_eq!(
            (listed.freshness, record.lifecycle, record.derived_lifecycle, &record.title),
            (freshness, lifecycle, truth.derived, &truth.title),
            "{key:?}"
        );
    }
    let missing = memory.indexed.keys().filter(|key| !now.contains_key(*key)).count();
    assert_eq!((page.runs.len(), page.missing.len()), (now.len(), missing), "listed and missing");
}

/// After a refresh every answer is the oracle's.
fn check_answers(yard: &Yard, now: &Runs) {
    let report = yard.index().report(None).unwrap();
    let is_away = report.sources.iter().any(|source| source.state == "unavailable");
    assert_eq!(report.freshness, if is_away { Standing::Degraded } else { Standing::Valid });
    assert_eq!(yard.index().search(&Query::default()).unwrap().changed_sources, 0);
    let mut all: Vec<(&(PathBuf, String), &Truth)> = now.iter().collect();
    all.sort_by_key(|(key, truth)| (truth.created_at, key.1.clone()));
    let of = |status: Lifecycle| Query { statuses: [status].into(), ..Query::default() };
    type Meant = fn(&Truth) -> bool;
    let queries: [(Query, Meant); 6] = [
        (Query::default(), |_| true),
        (of(Lifecycle::Failed), |truth| truth.derived == Lifecycle::Failed),
        (of(Lifecycle::Cancelled), |truth| truth.derived == Lifecycle::Cancelled),
        (of(Lifecycle::Archived), |truth| truth.archived),
        (Query { archived: Some(false), ..of(Lifecycle::Succeeded) }, |truth| {
            !truth.archived && truth.derived == Lifecycle::Succeeded
        }),
        (Query { text: Some("run-3".into()), ..Query::default() }, |truth| truth.title == "run-3"),
    ];
    for (query, is_meant) in queries {
        let found = yard.search(&query);
        let found: Vec<&str> = found.iter().map(|run| run.record.run_id.as_str()).collect();
        let wanted = all.iter().filter(|(_, truth)| is_meant(truth)).map(|(key, _)| key.1.as_str());
        assert_eq!(found, wanted.collect::<Vec<_>>(), "{query:?}");
    }
}

#[test]
fn c01_c03_c06_the_index_of_any_registry_answers_as_the_oracle() {
    let cases = std::env::var(CASES).ok().and_then(|cases| cases.parse().ok()).unwrap_or(12);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let history = prop::collection::vec(deed(), 6..16);
    let told = runner.run(&history, |history| {
        let yard = Yard::new();
        let root = yard.path().canonicalize().unwrap();
        let roots = [root.join("one"), root.join("two")];
        for root in &roots {
            std::fs::create_dir_all(root).unwrap();
            let address = SourceAddress::of_registry(&root.join(".outlive"));
            address.register(&yard.path().join("home"), Timestamp::default()).unwrap();
            act(root, &Deed::Succeed, 100);
        }
        let mut memory = Memory::default();
        yard.index().refresh(None).unwrap();
        let (now, answered) = truth(&roots);
        memory.refresh(&now, &answered);
        for (number, (other, deed)) in history.iter().enumerate() {
            act(&roots[usize::from(*other)], deed, number);
            let now = truth(&roots);
            if matches!(deed, Deed::Refresh) {
                yard.index().refresh(None).unwrap();
                memory.refresh(&now.0, &now.1);
                check_answers(&yard, &now.0);
            }
            check_claims(&yard, &now, &memory);
        }
        Ok(())
    });
    told.unwrap_or_else(|error| panic!("{error}"));
}
