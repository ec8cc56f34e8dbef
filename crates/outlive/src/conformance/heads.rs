//! Promise 10: where the queue begins; and of promise 1, that an update of a share takes nothing else.

use super::scene::{Scene, failed};
use super::updates::waiting;
use super::{Ground, ensure};
use crate::model::filter::Filter;
use crate::model::run::{After, QueueHead, Release, Run, Spec};
use crate::model::time::Timestamp;
use crate::store::{Change, Order};
use crate::testing::spec;

fn of(share: Option<&str>, priority: i32, spec: Spec) -> Spec {
    Spec { share: share.map(|share| share.parse().unwrap_or_else(|_| unreachable!())), priority, ..spec }
}

pub(super) async fn heads_are_the_oldest_due_runs_of_each_share(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let heads = async |kinds: &[&str]| -> Result<Vec<QueueHead>, String> {
        let kinds = (!kinds.is_empty()).then(|| kinds.iter().map(|kind| (*kind).to_owned()).collect());
        let mut heads = scene.store.heads(&Filter { kinds, ..Filter::default() }).await.map_err(failed)?;
        heads.sort();
        Ok(heads)
    };
    ensure!(heads(&[]).await?.is_empty(), "an empty queue has a head");
    let mut expected = Vec::new();
    let mut parent = None;
    for (kind, share, priority) in [
        ("job", None, 0),
        ("job", Some("a"), 0),
        ("job", Some("b:3"), 0),
        ("job", Some("b:3"), -1),
        ("late", Some("a"), 0),
        ("late", None, 7),
    ] {
        // The second of each is behind the first.
        for place in 0..2 {
            let run = scene.enqueue(of(share, priority, spec(kind))).await?.run;
            if place == 0 {
                let (kind, created_at) = (kind.to_owned(), run.created_at);
                expected.push(QueueHead { kind, share: run.spec.share.clone(), priority, created_at });
            }
            parent = Some(run.id);
        }
    }
    let after = parent.map(|run| After { run, release: Release::Success }).into_iter().collect();
    scene.enqueue(Spec { after, ..of(Some("waits"), 0, spec("job")) }).await?;
    let later = Some(Timestamp::from_micros(9_000_000_000_000_000));
    scene.enqueue(Spec { not_before: later, ..of(Some("later"), 0, spec("job")) }).await?;
    let worker = scene.worker();
    scene.start_as(worker, of(Some("runs"), 0, spec("job"))).await?;
    expected.sort();
    let found = heads(&[]).await?;
    ensure!(found == expected, "the heads of the queue are {expected:?}, not {found:?}");
    let late: Vec<QueueHead> = expected.iter().filter(|head| head.kind == "late").cloned().collect();
    let found = heads(&["late", "none"]).await?;
    ensure!(found == late, "the heads of one kind are {late:?}, not {found:?}");
    Ok(())
}

pub(super) async fn an_update_of_a_share_offers_nothing_else(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    for (share, priority) in [(None, 0), (Some("a"), 0), (Some("a"), 1), (Some("b"), 0)] {
        scene.enqueue(of(share, priority, spec("job"))).await?;
    }
    for (share, priority, count) in [
        (Some(""), None, 1),
        (Some("a"), None, 2),
        (Some("a"), Some(1), 1),
        (Some("c"), None, 0),
        (None, Some(0), 3),
        (None, None, 4),
    ] {
        let offered = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let look = |run: &Run, _: Timestamp| -> Option<Change> {
            crate::util::sync::lock(&offered).insert(run.id);
            None
        };
        let mut selection = waiting(Order::Claim, 10);
        (selection.filter.share, selection.filter.priority) = (share.map(Into::into), priority);
        selection.due = true;
        scene.store.update(&selection, &look).await.map_err(failed)?;
        let found = crate::util::sync::lock(&offered).len();
        ensure!(found == count, "of share {share:?} and priority {priority:?} {count} are due, not {found}");
    }
    Ok(())
}
