//! Promise 3: what a store tells of when it last heard of an owner.
//!
//! No clock is compared with another here. A stretch of time passes for the store, and the silence it tells of is at
//! least that long, or is shorter because a heartbeat arrived meanwhile.

use std::sync::Mutex;

use super::scene::{Scene, beat, failed};
use super::{Ground, ensure};
use crate::model::filter::Filter;
use crate::model::run::Run;
use crate::store::{Order, Page, Selection};

pub(super) async fn a_claim_counts_as_a_beat(ground: &dyn Ground) -> Result<(), String> {
    let (scene, stretch) = (Scene::on(ground).await, ground.stretch());
    let worker = scene.worker();
    let first = scene.start(worker).await?;
    ensure!(scene.silence_of(&first).await? < stretch, "a new owner is silent from the start");
    ground.pass(stretch).await;
    scene.start(worker).await?;
    let silent = scene.silence_of(&first).await?;
    ensure!(silent < stretch, "an owner that has just claimed a run is silent for {silent:?}");
    let beats = |run: &Run| run.owner().map(|owner| owner.heard.beat);
    let now = scene.read(first.run.id).await?;
    ensure!(beats(&now.run) > beats(&first.run), "a claim is not counted: a reaper would not notice it");
    Ok(())
}

pub(super) async fn silence_lasts_until_the_next_beat(ground: &dyn Ground) -> Result<(), String> {
    let (scene, stretch) = (Scene::on(ground).await, ground.stretch());
    let worker = scene.worker();
    let run = scene.start(worker).await?;
    for round in 1..=2 {
        ground.pass(stretch).await;
        let silent = scene.silence_of(&run).await?;
        ensure!(silent >= stretch * round, "silent for {silent:?} after {:?}", stretch * round);
    }
    let listed = scene.store.list(&Filter::default(), &Page::default()).await.map_err(failed)?.records;
    let silent = listed.first().and_then(|record| record.run.owner()).map(|owner| owner.heard.silent_for);
    ensure!(silent >= Some(stretch * 2), "a list tells of a silence of {silent:?} after {:?}", stretch * 2);
    let workers = scene.store.workers().await.map_err(failed)?;
    let silent = workers.iter().find(|known| known.id == worker).map(|known| known.heard.silent_for);
    ensure!(silent >= Some(stretch * 2), "the worker is said to be silent for {silent:?} after {:?}", stretch * 2);
    scene.beat(worker, &[&run], None).await?;
    let silent = scene.silence_of(&run).await?;
    ensure!(silent < stretch, "an owner that has just beaten is silent for {silent:?}");
    Ok(())
}

pub(super) async fn every_beat_is_counted(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let mut last = scene.start(worker).await?;
    for _ in 0..3 {
        let reply = scene.beat(worker, &[&last], None).await?;
        scene.beat(worker, &[&last], Some(reply.attention)).await?;
        let next = scene.read(last.run.id).await?;
        let heard = |run: &Run| run.owner().map_or(0, |owner| owner.heard.beat);
        let (before, after) = (heard(&last.run), heard(&next.run));
        ensure!(after >= before + 2, "two beats moved the count from {before} to {after}");
        last = next;
    }
    Ok(())
}

pub(super) async fn rules_are_given_the_last_heartbeat(ground: &dyn Ground) -> Result<(), String> {
    let (scene, stretch) = (Scene::on(ground).await, ground.stretch());
    let worker = scene.worker();
    let run = scene.start(worker).await?;
    ground.pass(stretch).await;
    let reported = Mutex::new(None);
    let rule = |run: &Run, _| {
        if let Ok(mut reported) = reported.lock() {
            *reported = run.owner().map(|owner| owner.heard);
        }
        None
    };
    let selection = Selection { filter: Filter::of([run.run.id]), order: Order::Oldest, limit: 1, due: false };
    scene.store.update(&selection, &rule).await.map_err(failed)?;
    let heard = reported.lock().ok().and_then(|reported| *reported);
    let silent = heard.map(|heard| heard.silent_for);
    ensure!(silent >= Some(stretch), "a rule sees a silence of {silent:?} after {stretch:?}");
    scene.beat(worker, &[&run], None).await?;
    scene.store.update(&selection, &rule).await.map_err(failed)?;
    let after = reported.lock().ok().and_then(|reported| *reported);
    ensure!(after.map(|heard| heard.beat) > heard.map(|heard| heard.beat), "a rule sees {after:?} after a beat");
    ensure!(after.map(|heard| heard.silent_for) < Some(stretch), "a rule sees {after:?} after a beat");
    Ok(())
}

pub(super) async fn an_outage_is_not_silence(ground: &dyn Ground) -> Result<(), String> {
    let (scene, stretch) = (Scene::on(ground).await, ground.stretch());
    let (worker, idle) = (scene.worker(), scene.worker());
    let run = scene.start(worker).await?;
    scene.store.beat(&beat(idle)).await.map_err(failed)?;
    ground.deafen(stretch * 2).await;
    let silent = scene.silence_of(&run).await?;
    ensure!(silent < stretch, "an outage of {:?} is reported as a silence of {silent:?}", stretch * 2);
    for known in scene.store.workers().await.map_err(failed)? {
        let silent = known.heard.silent_for;
        ensure!(silent < stretch, "a worker is said to have been silent for {silent:?} in an outage");
    }
    ground.pass(stretch).await;
    let silent = scene.silence_of(&run).await?;
    ensure!(silent >= stretch, "the silence after an outage is reported as {silent:?} after {stretch:?}");
    Ok(())
}
