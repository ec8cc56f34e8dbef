//! What a filter means, against what the database makes of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outlive::conformance::Ground;
use outlive::filter::Filter;
use outlive::id::{RunId, WorkerId};
use outlive::lifecycle::{Action, Fence, Outcome, apply, enqueued};
use outlive::policy::Lease;
use outlive::run::{Arg, Command, Run, Spec, StateName, Step};
use outlive::step::KIND;
use outlive::store::{Expect, Order, Page, Store, Write};
use outlive::testing::{ManualClock, SeededEntropy, owner, person, stamp};
use outlive::time::Timestamp;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::ground::SqliteGround;
use crate::world::on_each;

/// What would be more than a word if it were not bound.
const INJECTIONS: [&str; 9] = [
    "' OR '1'='1",
    "'; DROP TABLE runs; --",
    "\" OR \"\"=\"",
    "x') OR 1=1 --",
    "x' UNION SELECT * FROM runs --",
    "$1; SELECT pg_sleep(9)",
    "?1 OR true",
    "\\'; --",
    "a -- b /* c */",
];

/// Each is a name, a kind and a label, and is found by itself alone.
#[test]
fn s_08_no_word_of_a_run_or_of_a_filter_is_sql_on_any_store() {
    on_each(async |world| {
        let registry = world.process();
        for text in INJECTIONS {
            let mut spec = Spec::new(text, person(text));
            (spec.name, spec.labels) = (Some(text.into()), [(text.into(), text.into())].into());
            registry.enqueue(spec).await.unwrap();
        }
        for text in INJECTIONS {
            let all = Filter::default();
            for filter in [
                Filter { name: Some(text.into()), ..all.clone() },
                Filter { kind: Some(text.into()), ..all.clone() },
                Filter { kinds: Some([text.into()].into()), ..all.clone() },
                Filter { labels: [(text.into(), text.into())].into(), ..all.clone() },
                Filter { text: Some(text.into()), ..all.clone() },
            ] {
                let page = Page { limit: 100, ..Page::default() };
                let found = world.store.list(&filter, &page).await.unwrap().records;
                let names: Vec<&str> = found.iter().filter_map(|record| record.run.spec.name.as_deref()).collect();
                assert_eq!(names, [text], "{filter:?}");
            }
            let by_id = Filter { id_prefix: Some(text.into()), ..all };
            assert_eq!(world.store.list(&by_id, &Page::default()).await.unwrap().records.len(), 0, "{text}");
        }
    });
}

const WORDS: [&str; 8] = ["a", "A", "ab", "%", "_", "'", "É", "é"];
const MOMENTS: i64 = 6;
const WORKERS: u64 = 3;

fn word() -> impl Strategy<Value = String> {
    select(&WORDS[..]).prop_map(Into::into)
}

fn moment() -> impl Strategy<Value = Timestamp> {
    (0..MOMENTS).prop_map(|at| Timestamp::from_micros(1_000_000 * at))
}

fn parent() -> impl Strategy<Value = RunId> {
    word().prop_map(|word| RunId::derived(Timestamp::from_micros(1), word.as_bytes()))
}

fn worker(number: u64) -> WorkerId {
    WorkerId::draw(Timestamp::from_micros(1), &SeededEntropy::new(number))
}

prop_compose! {
    fn spec()(
        kind in word(),
        name in proptest::option::of(word()),
        labels in proptest::collection::btree_map(word(), word(), 0..3),
        argv in proptest::option::of(proptest::collection::vec(word().prop_map(Arg::Text), 1..3)),
        priority in -1..2,
        step in proptest::option::weighted(0.3, parent()),
    ) -> Spec {
        let command = argv.map(|argv| Command::new(argv, Arg::Text("/".into())));
        let kind = if step.is_some() { KIND.into() } else { kind };
        let (attempt, changed, replays, parent) = (1, false, None, None);
        let step = step
            .map(|of| Step { of, attempt, name: "a".into(), fingerprint: String::new(), changed, replays, parent });
        Spec { name, labels, command, priority, step, ..Spec::new(kind, person("ada")) }
    }
}

/// A run in one state or another, by the rules.
fn run() -> impl Strategy<Value = Run> {
    (spec(), moment(), any::<u64>(), 0..WORKERS, 0..5).prop_map(|(spec, made_at, seed, owned_by, steps)| {
        let id = RunId::draw(made_at, &SeededEntropy::new(seed));
        let fresh = Run::new(id, Arc::new(spec), None, made_at);
        let act = |run: &Run, action: &Action| apply(run, action, &person("ada"), made_at).unwrap().run;
        let worker = worker(owned_by);
        let fence = |run: &Run| Fence { worker, epoch: run.epoch };
        let running = act(
            &fresh,
            &Action::Claim { owner: owner(worker, Lease::default()), early: false, leftovers: Default::default() },
        );
        let outcome = Outcome::SUCCEEDED;
        let finished = act(&running, &Action::Finish { fence: fence(&running), outcome, exit: None });
        match steps {
            0 => fresh,
            1 => running,
            2 => act(&running, &Action::Suspend { fence: fence(&running), reason: "waits".into() }),
            3 => finished,
            _ => act(&finished, &Action::Archive { reason: None }),
        }
    })
}

prop_compose! {
    fn filter()(
        ids in proptest::option::weighted(0.2, proptest::collection::vec(any::<Index>(), 0..6)),
        id_prefix in proptest::option::weighted(0.2, (any::<Index>(), 0..37_usize)),
        states in proptest::option::weighted(0.3, proptest::collection::btree_set(select(&StateName::ALL[..]), 0..4)),
        name in proptest::option::weighted(0.2, word()),
        kind in proptest::option::weighted(0.2, word()),
        labels in proptest::collection::btree_map(word(), word(), 0..2),
        labelled in proptest::bool::weighted(0.2),
        owner in proptest::option::weighted(0.2, (0..WORKERS).prop_map(worker)),
        since in proptest::option::weighted(0.3, moment()),
        until in proptest::option::weighted(0.3, moment()),
        text in proptest::option::weighted(0.3, word()),
        archived in proptest::option::weighted(0.3, any::<bool>()),
        steps in (proptest::option::weighted(0.2, any::<bool>()), proptest::option::weighted(0.2, parent())),
        kinds in proptest::option::weighted(0.2, proptest::collection::btree_set(word(), 0..3)),
    ) -> (Filter, Option<Vec<Index>>, Option<(Index, usize)>) {
        let labels = if labelled { labels } else { BTreeMap::new() };
        let (is_step, step_of) = steps;
        let filter =
            Filter { states, name, kind, kinds, labels, owner, since, until, text, archived, is_step, step_of, ..Filter::default() };
        (filter, ids, id_prefix)
    }
}

async fn listed(store: &dyn Store, filter: &Filter, limit: usize) -> Vec<RunId> {
    let (mut all, mut page) = (Vec::new(), Page { after: None, limit, order: Order::Newest });
    loop {
        let listing = store.list(filter, &page).await.unwrap();
        all.extend(listing.records.into_iter().map(|record| record.run.id));
        match listing.next {
            Some(next) => page.after = Some(next),
            None => return all,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sqlite_lists_what_the_filter_matches(
        runs in proptest::collection::vec(run(), 1..24),
        filters in proptest::collection::vec(filter(), 24),
        limit in 1..9_usize,
    ) {
        let ground = SqliteGround::new(ManualClock::new());
        let entropy = SeededEntropy::new(1);
        pollster::block_on(async {
            let store = ground.fresh().await;
            let made = |run: &Run| Write {
                expect: Expect::Absent,
                run: run.clone(),
                events: vec![enqueued(run, &person("ada"))],
                ended: None,
                stamp: stamp(&entropy),
            };
            store.commit(runs.iter().map(made).collect()).await.unwrap();
            for (mut filter, ids, id_prefix) in filters {
                filter.ids = ids.map(|ids| ids.into_iter().map(|index| index.get(&runs).id).collect());
                filter.id_prefix = id_prefix.map(|(index, length)| index.get(&runs).id.to_string()[..length].into());
                let expected: BTreeSet<RunId> =
                    runs.iter().filter(|run| filter.matches(run)).map(|run| run.id).collect();
                let found = listed(&*store, &filter, limit).await;
                prop_assert_eq!(found.len(), expected.len(), "{:?}", &filter);
                prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected, "{:?}", &filter);
            }
            Ok(())
        })?;
    }
}
