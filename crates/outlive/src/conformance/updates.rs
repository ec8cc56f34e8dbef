//! Promise 1, for updates: a rule applied to the runs of a selection, each locked while it is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::scene::{Scene, by, failed};
use super::{Ground, Work, ensure};
use crate::lifecycle::{Action, apply};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp, WorkerId};
use crate::model::run::{After, Release, Run, Spec, StateName};
use crate::model::time::Timestamp;
use crate::store::{Change, Order, Record, Selection};
use crate::testing::{person, spec};
use crate::util::sync::lock;

pub(super) fn waiting(order: Order, limit: usize) -> Selection {
    Selection { filter: Filter::in_states([StateName::Pending]), order, limit, due: false }
}

/// The rule by which `worker` claims whatever may be claimed.
pub(super) fn claiming(scene: &Scene, worker: WorkerId) -> impl Fn(&Run, Timestamp) -> Option<Change> + Send + Sync {
    let stamp = scene.stamp();
    move |run, now| claim(run, now, worker, stamp)
}

fn claim(run: &Run, now: Timestamp, worker: WorkerId, stamp: Stamp) -> Option<Change> {
    let transition = apply(
        run,
        &Action::Claim { owner: by(worker), early: false, leftovers: Default::default() },
        &person("ada"),
        now,
    )
    .ok()?;
    Some(Change { transition, stamp })
}

async fn queue(scene: &Scene, priorities: &[i32]) -> Result<Vec<RunId>, String> {
    let mut ids = Vec::new();
    for priority in priorities {
        ids.push(scene.enqueue(Spec { priority: *priority, ..spec("job") }).await?.run.id);
    }
    Ok(ids)
}

fn ids(records: &[Record]) -> Vec<RunId> {
    records.iter().map(|record| record.run.id).collect()
}

pub(super) async fn an_update_ends_at_its_limit(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    queue(&scene, &[0; 5]).await?;
    let (worker, mut left) = (scene.worker(), 5);
    for limit in [2, 0, 9] {
        let expected = left.min(limit);
        let rule = claiming(&scene, worker);
        let changed = scene.store.update(&waiting(Order::Claim, limit), &rule).await.map_err(failed)?;
        ensure!(changed.len() == expected, "of {left} runs {} were changed at a limit of {limit}", changed.len());
        left -= expected;
    }
    Ok(())
}

pub(super) async fn an_update_goes_in_order(ground: &dyn Ground) -> Result<(), String> {
    for (order, expected) in [(Order::Claim, [3, 1, 0]), (Order::Oldest, [0, 1, 2]), (Order::Newest, [3, 2, 1])] {
        let scene = Scene::on(ground).await;
        let made = queue(&scene, &[2, 1, 5, -1]).await?;
        let rule = claiming(&scene, scene.worker());
        let changed = scene.store.update(&waiting(order, 3), &rule).await.map_err(failed)?;
        let expected = expected.map(|index| made[index]);
        ensure!(ids(&changed) == expected, "in order {order:?} {:?} were changed, not {expected:?}", ids(&changed));
    }
    Ok(())
}

pub(super) async fn an_update_takes_only_its_selection(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let meant = scene.enqueue(spec("meant")).await?;
    let other = scene.enqueue(spec("other")).await?;
    let filter = Filter { kind: Some("meant".into()), ..Filter::default() };
    let selection = Selection { filter, order: Order::Oldest, limit: 9, due: false };
    let rule = claiming(&scene, scene.worker());
    let changed = scene.store.update(&selection, &rule).await.map_err(failed)?;
    ensure!(ids(&changed) == [meant.run.id], "{:?} were changed, not only the run that is meant", ids(&changed));
    let read = scene.read(other.run.id).await?;
    ensure!(read == other, "a run that was not meant was changed to {read:?}");
    Ok(())
}

pub(super) async fn an_update_of_what_is_due_offers_nothing_else(ground: &dyn Ground) -> Result<(), String> {
    let (scene, stretch) = (Scene::on(ground).await, ground.stretch());
    let parent = scene.enqueue(spec("parent")).await?.run.id;
    let offered = async |due: bool| -> Result<(BTreeSet<RunId>, Timestamp), String> {
        let seen = Mutex::new((BTreeSet::new(), Timestamp::default()));
        let rule = |run: &Run, now| {
            let mut seen = lock(&seen);
            seen.0.insert(run.id);
            seen.1 = now;
            None
        };
        let selection = Selection { due, ..waiting(Order::Claim, 9) };
        scene.store.update(&selection, &rule).await.map_err(failed)?;
        Ok(seen.into_inner().unwrap_or_else(PoisonError::into_inner))
    };
    let now = offered(true).await?.1;
    let later = Spec { not_before: Some(now.after(stretch / 2)), ..spec("later") };
    let later = scene.enqueue(later).await?.run.id;
    let after = After { run: parent, release: Release::End };
    let child = scene.enqueue(Spec { after: vec![after], ..spec("child") }).await?.run.id;
    let first = offered(true).await?.0;
    ensure!(first == BTreeSet::from([parent]), "{first:?} were offered as due, where only {parent} is");
    ground.pass(stretch).await;
    let then = offered(true).await?.0;
    ensure!(then == BTreeSet::from([parent, later]), "{then:?} were offered as due, where {parent} and {later} are");
    let all = offered(false).await?.0;
    ensure!(all == BTreeSet::from([parent, later, child]), "{all:?} were offered of all that wait");
    Ok(())
}

pub(super) async fn an_update_passes_over_what_the_rule_refuses(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let made = queue(&scene, &[0; 4]).await?;
    let refused: BTreeSet<RunId> = [made[0], made[2]].into();
    let (worker, stamp) = (scene.worker(), scene.stamp());
    let rule = |run: &Run, now| if refused.contains(&run.id) { None } else { claim(run, now, worker, stamp) };
    let changed = scene.store.update(&waiting(Order::Claim, 2), &rule).await.map_err(failed)?;
    let expected = [made[1], made[3]];
    ensure!(ids(&changed) == expected, "{:?} were changed, though the rule allows {expected:?}", ids(&changed));
    for id in refused {
        let read = scene.read(id).await?;
        ensure!(read.run.owner().is_none(), "a run that the rule refuses was changed to {read:?}");
    }
    Ok(())
}

pub(super) async fn an_update_tells_what_it_wrote(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let before = scene.enqueue(spec("job")).await?;
    let (worker, stamp) = (scene.worker(), scene.stamp());
    let rule = |run: &Run, now| claim(run, now, worker, stamp);
    let changed = scene.store.update(&waiting(Order::Claim, 1), &rule).await.map_err(failed)?;
    let [reported] = changed.as_slice() else { return Err(format!("one change was reported as {changed:?}")) };
    let read = scene.read(before.run.id).await?;
    ensure!(
        super::scene::recorded(&reported.run) == super::scene::recorded(&read.run),
        "reported {reported:?} and read {read:?}"
    );
    ensure!(
        reported.revision == read.revision && read.revision > before.revision,
        "reported {reported:?} and read {read:?}"
    );
    let events = scene.store.events(before.run.id).await.map_err(failed)?;
    ensure!(events.len() == 2, "a run that was made and claimed has the event log {events:?}");
    Ok(())
}

pub(super) async fn of_many_updaters_each_run_has_one(ground: &dyn Ground) -> Result<(), String> {
    const UPDATERS: usize = 8;
    const RUNS: usize = 60;
    const STEP: usize = 4;
    const PATIENCE: usize = 1_000;
    let scene = Scene::on(ground).await;
    queue(&scene, &[0; RUNS]).await?;
    let reported = Arc::new(Mutex::new(Vec::new()));
    let (idle, errors) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut work: Vec<Work> = Vec::new();
    for _ in 0..UPDATERS {
        let (worker, stamp, store) = (scene.worker(), scene.stamp(), ground.again().await);
        let (reported, idle, errors) = (reported.clone(), idle.clone(), errors.clone());
        work.push(Box::pin(async move {
            let rule = |run: &Run, now| claim(run, now, worker, stamp);
            // Runs that others hold are skipped, so an update may find nothing while there is something left.
            for _ in 0..PATIENCE {
                match store.update(&waiting(Order::Claim, STEP), &rule).await {
                    Ok(claimed) => {
                        idle.fetch_add(usize::from(claimed.is_empty()), Ordering::SeqCst);
                        let mut reported = lock(&reported);
                        reported.extend(claimed.into_iter().map(|record| (record.run.id, worker)));
                        if reported.len() >= RUNS {
                            return;
                        }
                    }
                    Err(error) => return lock(&errors).push(failed(error)),
                }
            }
        }));
    }
    ground.at_once(work).await;
    let errors = lock(&errors).clone();
    ensure!(errors.is_empty(), "updates at once failed: {errors:?}");
    let reported = lock(&reported).clone();
    ensure!(reported.len() == RUNS, "{UPDATERS} updaters reported {} changes of {RUNS} runs", reported.len());
    let takers: BTreeSet<WorkerId> = reported.iter().map(|(_, worker)| *worker).collect();
    let raced = takers.len() > 1 || idle.load(Ordering::SeqCst) > 0;
    ensure!(raced, "one updater took all {RUNS} runs before another came: nothing was proved");
    for (id, worker) in reported {
        let run = scene.read(id).await?.run;
        let owner = run.owner().map(|owner| owner.worker);
        ensure!(owner == Some(worker), "{worker} learned that it owns {id}, which {owner:?} does");
        ensure!(run.epoch.0 == 1, "run {id} was claimed {} times", run.epoch);
    }
    Ok(())
}
