//! Registries of outlive as sources: what is in flight, what has ended, and what changes nothing.

use outlive::index::{Lifecycle, Query, SourceAddress, Standing};
use outlive::registry::{Planned, Registry, RerunOptions};
use outlive::run::Spec;
use outlive::store::sqlite::Sharing;
use outlive::time::Timestamp;

use super::yard::Yard;

fn registry(yard: &Yard, name: &str) -> Registry {
    let path = yard.path().canonicalize().unwrap().join(name).join(".outlive");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    SourceAddress::of_registry(&path).register(&yard.path().join("home"), Timestamp::default()).unwrap();
    Registry::open_local(&path, Some(Sharing::Private)).unwrap()
}

fn named(registry: &Registry, name: &str) -> Spec {
    let mut spec = Spec::new("import", registry.me().clone());
    spec.name = Some(name.into());
    spec.labels.insert("team".into(), "search".into());
    spec
}

#[test]
fn c01_runs_are_indexed_as_they_are_and_reread_if_changed() {
    let yard = Yard::new();
    let (one, other) = (registry(&yard, "one"), registry(&yard, "other"));
    pollster::block_on(async {
        one.start(named(&one, "done")).await.unwrap().succeed().await.unwrap();
        let held = one.start(named(&one, "held")).await.unwrap();
        other.start(named(&other, "failed")).await.unwrap().fail("exit", "code 3").await.unwrap();
        assert_eq!(yard.index().refresh(None).unwrap().read, 3);
        let stands = |query: &Query| -> Vec<(String, Lifecycle)> {
            yard.search(query).iter().map(|run| (run.record.title.clone(), run.record.lifecycle)).collect()
        };
        assert_eq!(
            stands(&Query::default()),
            [
                ("done".into(), Lifecycle::Succeeded),
                ("held".into(), Lifecycle::Running),
                ("failed".into(), Lifecycle::Failed)
            ]
        );
        // It ends: shown is what is, before the index knows.
        held.succeed().await.unwrap();
        assert_eq!(stands(&Query::default())[1].1, Lifecycle::Succeeded);
        assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Stale);
        let refreshed = yard.index().refresh(None).unwrap();
        assert_eq!((refreshed.read, refreshed.changed), (1, 1));
        let labelled = Query {
            labels: [("team".into(), "search".into())].into(),
            kind: Some("import".into()),
            ..Query::default()
        };
        assert_eq!(stands(&labelled).len(), 3);
        let ids: Vec<String> = yard.all().iter().map(|run| run.record.run_id.clone()).collect();
        assert_eq!(stands(&Query { text: Some(ids[2][..30].into()), ..Query::default() }).len(), 1);
        assert_eq!(yard.index().find(&ids[0], None, 5).unwrap().runs.len(), 1);
        assert_eq!(yard.index().find("failed", None, 5).unwrap().runs[0].record.title, "failed");
        one.archive(ids[0].parse().unwrap()).await.unwrap();
        yard.index().refresh(None).unwrap();
        let archived = yard.search(&Query { statuses: [Lifecycle::Archived].into(), ..Query::default() });
        assert_eq!((archived.len(), archived[0].record.derived_lifecycle), (1, Lifecycle::Succeeded));
        one.close().await;
        other.close().await;
    });
}

/// The language of the full-text index is not spoken by whoever searches, nor by what a run is called.
#[test]
fn s_08_what_is_searched_for_is_words_and_no_expression() {
    let yard = Yard::new();
    let one = registry(&yard, "one");
    let hostile = [
        "alpha\" OR \"beta",
        "alpha OR beta",
        "NOT beta",
        "NEAR(alpha beta)",
        "title:alpha",
        "{title} : alpha",
        "^alpha",
        "(alpha",
        "alpha'; DROP TABLE runs; --",
        "alpha + beta",
        "\"",
        "*",
        "=live",
        "alpha\" *) OR (\"b\" *",
    ];
    pollster::block_on(async {
        for name in ["alpha", "beta"].into_iter().chain(hostile) {
            one.start(named(&one, name)).await.unwrap().succeed().await.unwrap();
        }
        yard.index().refresh(None).unwrap();
        let words = |text: &str| -> Vec<String> {
            text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
        };
        for text in hostile {
            let sought = words(text);
            let found = yard.search(&Query { text: Some(text.into()), limit: 100, ..Query::default() });
            let has = |run: &outlive::index::SearchHit, word: &String| {
                let kind = run.record.kind.as_deref().unwrap_or_default();
                let said = format!("{} {kind} {} {}", run.record.title, run.record.repo, run.record.lifecycle);
                let said = said.to_lowercase();
                said.contains(word.as_str())
            };
            let other = found.iter().find(|run| !sought.iter().all(|word| has(run, word)));
            assert!(other.is_none(), "`{text}` found `{}`", other.unwrap().record.title);
            assert!(found.iter().any(|run| run.record.title == text), "`{text}` did not find itself");
            let by_name = yard.index().find(text, None, 5).unwrap().runs;
            assert!(by_name.iter().all(|run| run.record.title == text), "`{text}` means something else");
            for query in [
                Query { kind: Some(text.into()), ..Query::default() },
                Query { app: Some(text.into()), ..Query::default() },
                Query { labels: [(text.into(), text.into())].into(), ..Query::default() },
            ] {
                assert_eq!(yard.search(&query).len(), 0, "{query:?}");
            }
        }
        assert_eq!(yard.all().len(), hostile.len() + 2);
        one.close().await;
    });
}

/// How many transactions are in the log of a database, and what tells this log from one that was begun anew.
fn logged(yard: &Yard, name: &str) -> (usize, Vec<u8>) {
    const HEADER: usize = 32;
    const FRAME: usize = 24;
    let log = std::fs::read(yard.path().join(name).join(".outlive/registry.db-wal")).unwrap_or_default();
    if log.len() < HEADER {
        return (0, Vec::new());
    }
    let number = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let (page, salt) = (usize::try_from(number(8)).unwrap(), log[16..24].to_vec());
    let frames = (HEADER..).step_by(FRAME + page).take_while(|at| at + FRAME + page <= log.len());
    // The last frame of a transaction bears the size of the database.
    let ends = frames.take_while(|at| log[at + 8..at + 16] == salt[..]).filter(|at| number(at + 4) > 0).count();
    (ends, salt)
}

#[test]
fn c08_1400_runs_are_archived_by_age_in_one_transaction() {
    const MANY: usize = 1_400;
    let yard = Yard::new();
    let registry = registry(&yard, "one");
    pollster::block_on(async {
        let planned = |_| Planned { spec: named(&registry, "old"), after: Vec::new() };
        for run in registry.enqueue_all((0..MANY).map(planned).collect()).await.unwrap() {
            registry.cancel(run.id, None).await.unwrap();
        }
        let far = registry.clock().now().after(std::time::Duration::from_secs(60));
        assert!(registry.archive_all(Default::default(), Timestamp::default(), None).await.unwrap().is_empty());
        let (before, log) = logged(&yard, "one");
        assert_eq!(registry.archive_all(Default::default(), far, None).await.unwrap().len(), MANY);
        let (after, same) = logged(&yard, "one");
        assert_eq!(after - if log == same { before } else { 0 }, 1, "transactions");
        assert!(registry.archive_all(Default::default(), far, None).await.unwrap().is_empty());
        registry.close().await;
    });
}

#[test]
fn c09_rerun_is_linked_pins_its_origin_and_a_key_makes_it_once() {
    let yard = Yard::new();
    let registry = registry(&yard, "one");
    let keyed = || RerunOptions { key: Some("k".into()), ..RerunOptions::default() };
    pollster::block_on(async {
        let first = registry.start(named(&registry, "job")).await.unwrap();
        let id = first.run().id;
        let refused = registry.rerun(id, &RerunOptions::default()).await.unwrap_err();
        assert!(refused.to_string().contains("it is running"), "{refused}");
        first.fail("exit", "code 3").await.unwrap();
        let before = registry.glance(id).await.unwrap().run;
        let first = registry.rerun(id, &RerunOptions { reason: Some("new data".into()), ..keyed() }).await.unwrap();
        let again = first.run;
        let lineage = again.spec.lineage.clone().unwrap();
        assert_eq!((first.made, lineage.generation, lineage.origin, lineage.rerun_of), (true, 1, id, id));
        let same = registry.rerun(id, &keyed()).await.unwrap();
        assert_eq!((same.run.id, same.made), (again.id, false));
        let forced = registry.rerun(again.id, &RerunOptions { forced: true, ..RerunOptions::default() }).await.unwrap();
        let lineage = forced.run.spec.lineage.clone().unwrap();
        assert_eq!((lineage.generation, lineage.origin, lineage.rerun_of), (2, id, again.id));
        assert_eq!(registry.glance(id).await.unwrap().run, before);
        registry.close().await;
    });
}
