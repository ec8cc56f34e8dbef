//! Promise 4: what a beat may touch, and what its worker learns.

use super::scene::{Scene, beat, before, by, cancel, failed, finish, recorded, suspend};
use super::{Ground, ensure};
use crate::lifecycle::Action;
use crate::model::id::Epoch;
use crate::store::{Beat, BeatReply};
use crate::testing::spec;

pub(super) async fn a_beat_touches_no_run(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let (held, other) = (scene.start(worker).await?, scene.start(scene.worker()).await?);
    let mut event_logs = Vec::new();
    for record in [&held, &other] {
        event_logs.push(scene.store.events(record.run.id).await.map_err(failed)?);
    }
    for attention in [None, Some(0), None] {
        scene.beat(worker, &[&held, &other], attention).await?;
    }
    for (old, events) in [held, other].into_iter().zip(event_logs) {
        let new = scene.read(old.run.id).await?;
        ensure!(new.revision == old.revision, "a beat moved revision {:?} to {:?}", old.revision, new.revision);
        ensure!(new.stamp == old.stamp, "a beat changed a stamp");
        ensure!(recorded(&new.run) == recorded(&old.run), "a beat changed {:?} to {:?}", old.run, new.run);
        let reported = scene.store.events(old.run.id).await.map_err(failed)?;
        ensure!(reported == events, "a beat is in the event log: {reported:?}");
    }
    Ok(())
}

pub(super) async fn a_beat_moves_only_its_own_worker(ground: &dyn Ground) -> Result<(), String> {
    let (scene, stretch) = (Scene::on(ground).await, ground.stretch());
    let (worker, other) = (scene.worker(), scene.worker());
    let run = scene.start(worker).await?;
    let heard = run.run.owner().map(|owner| owner.heard.beat);
    ground.pass(stretch).await;
    let silent = scene.silence_of(&run).await?;
    scene.beat(other, &[&run], None).await?;
    let now = scene.read(run.run.id).await?;
    let after = now.run.owner().map(|owner| owner.heard.silent_for);
    ensure!(after >= Some(silent), "the beat of another worker turned a silence of {silent:?} into {after:?}");
    ensure!(now.run.owner().map(|owner| owner.heard.beat) == heard, "the beat of another worker was counted");
    ensure!(now.run.owner().map(|owner| owner.worker) == Some(worker), "the beat of another worker took the run");
    Ok(())
}

pub(super) async fn a_beat_never_revives(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let (first, second) = (scene.start(worker).await?, scene.start(worker).await?);
    let ended = scene.act(&first, &finish(worker, &first)).await?;
    let waiting = scene.act(&second, &suspend(worker, &second)).await?;
    for attention in [None, Some(0)] {
        scene.beat(worker, &[&first, &second], attention).await?;
    }
    for old in [ended, waiting] {
        let new = scene.read(old.run.id).await?;
        ensure!(new == old, "a late beat changed {:?} to {:?}", old.run, new.run);
    }
    Ok(())
}

pub(super) async fn a_beat_names_lost_runs(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let (worker, other) = (scene.worker(), scene.worker());
    let kept = scene.start(worker).await?;
    let ended = scene.start(worker).await?;
    scene.act(&ended, &finish(worker, &ended)).await?;
    let moved = scene.start(worker).await?;
    scene.act(&moved, &suspend(worker, &moved)).await?;
    scene.act(&moved, &Action::Wake { owner: Some(by(other)) }).await?;
    let again = scene.start(worker).await?;
    scene.act(&again, &suspend(worker, &again)).await?;
    scene.act(&again, &Action::Wake { owner: Some(by(worker)) }).await?;
    let never = scene.start(other).await?;
    let reply = scene.beat(worker, &[&kept, &ended, &moved, &again, &never], None).await?;
    let expected = sorted([ended.run.id, moved.run.id, again.run.id, never.run.id]);
    ensure!(sorted(reply.lost.clone()) == expected, "the answer says that {:?} are lost, not {expected:?}", reply.lost);
    let held = [(kept.run.id, before(kept.run.epoch))].into();
    let reply = scene.store.beat(&Beat { held, ..beat(worker) }).await.map_err(failed)?;
    ensure!(reply.lost == [kept.run.id], "an older claim of the same worker is not lost: {reply:?}");
    Ok(())
}

pub(super) async fn a_beat_names_unknown_runs(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let held = scene.start(worker).await?;
    let never = scene.draft(spec("never")).id;
    let names = [(held.run.id, held.run.epoch), (never, Epoch(1))].into();
    let reply = scene.store.beat(&Beat { held: names, ..beat(worker) }).await.map_err(failed)?;
    // A beat for a run proves that its record was seen: a store that keeps all records takes it for deleted.
    let (lost, unknown) = if ground.knows_deletions() { (vec![never], vec![]) } else { (vec![], vec![never]) };
    ensure!(reply.unknown == unknown, "the answer says that {:?} are unknown, not {unknown:?}", reply.unknown);
    ensure!(reply.lost == lost, "the answer says that {:?} are lost, not {lost:?}", reply.lost);
    Ok(())
}

pub(super) async fn a_beat_names_cancelled_runs(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let (kept, unwanted) = (scene.start(worker).await?, scene.start(worker).await?);
    let asked = scene.act(&unwanted, &cancel()).await?;
    let reply = scene.beat(worker, &[&kept, &unwanted], None).await?;
    let expected: Vec<_> = asked.run.cancel.map(|request| (unwanted.run.id, *request)).into_iter().collect();
    ensure!(
        reply.cancelled == expected,
        "the answer says that {:?} are to be cancelled, not {expected:?}",
        reply.cancelled
    );
    ensure!(reply.lost.is_empty(), "a run that is to be cancelled is called lost: {reply:?}");
    Ok(())
}

pub(super) async fn a_beat_names_forgotten_runs(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let (held, dropped) = (scene.start(worker).await?, scene.start(worker).await?);
    scene.start(scene.worker()).await?;
    let reply = scene.beat(worker, &[&held], None).await?;
    ensure!(reply.forgotten == [dropped.run.id], "the answer says that {:?} are forgotten", reply.forgotten);
    Ok(())
}

/// A worker that names its last reply must still learn of every change since.
pub(super) async fn attention_misses_nothing(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let (first, second) = (scene.start(worker).await?, scene.start(worker).await?);
    let held = [&first, &second];
    let reported = scene.beat(worker, &held, None).await?;
    let quiet = BeatReply { attention: reported.attention, fleet: reported.fleet.clone(), ..BeatReply::default() };
    ensure!(reported == quiet, "nothing is wrong, and the answer is {reported:?}");
    let reported = scene.beat(worker, &held, Some(reported.attention)).await?;
    scene.act(&first, &cancel()).await?;
    let reply = scene.beat(worker, &held, Some(reported.attention)).await?;
    ensure!(reply.cancelled.len() == 1, "a cancel request between two beats is not reported: {reply:?}");
    ensure!(reply.attention > reported.attention, "attention does not rise with a cancel request");
    scene.act(&second, &finish(worker, &second)).await?;
    let later = scene.beat(worker, &held, Some(reply.attention)).await?;
    ensure!(later.lost == [second.run.id], "a loss between two beats is not reported: {later:?}");
    let third = scene.start(worker).await?;
    let last = scene.beat(worker, &held, Some(later.attention)).await?;
    ensure!(last.forgotten == [third.run.id], "a run gained between two beats is not reported: {last:?}");
    Ok(())
}

pub(super) async fn a_worker_that_leaves_is_forgotten_unless_it_owns(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let (idle, busy, never) = (scene.worker(), scene.worker(), scene.worker());
    scene.store.beat(&beat(idle)).await.map_err(failed)?;
    let run = scene.start(busy).await?;
    let known = async || -> Result<Vec<_>, String> {
        Ok(scene.store.workers().await.map_err(failed)?.into_iter().map(|worker| worker.id).collect())
    };
    ensure!(known().await? == sorted([idle, busy]), "the workers known are {:?}", known().await?);
    for worker in [idle, busy, never] {
        scene.store.beat(&Beat { leaving: true, ..beat(worker) }).await.map_err(failed)?;
    }
    ensure!(known().await? == [busy], "after all have left, {:?} are known and one owns a run", known().await?);
    scene.act(&run, &finish(busy, &run)).await?;
    scene.store.beat(&Beat { leaving: true, ..beat(busy) }).await.map_err(failed)?;
    ensure!(known().await?.is_empty(), "a worker that left and owns nothing is still known");
    Ok(())
}

fn sorted<T: Ord>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.into_iter().collect();
    items.sort();
    items
}
