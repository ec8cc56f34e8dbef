//! Promise 2: a key has no more holders than its limit, and is free as soon as its holder lets go.

use super::scene::{Scene, cancel, failed, fence, finish, race, report, suspend};
use super::updates::{claiming, waiting};
use super::{Ground, ensure};
use crate::lifecycle::{Action, Observed};
use crate::model::filter::Filter;
use crate::model::id::WorkerId;
use crate::model::owner::Evidence;
use crate::model::run::{Interruption, Key, Spec};
use crate::store::{Order, Page, Record, WriteOutcome};
use crate::testing::spec;

fn keyed(limit: u32) -> Spec {
    Spec { keys: vec![Key::limit("gpu", limit)], ..spec("job") }
}

pub(super) async fn a_key_has_no_more_holders_than_its_limit(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let mut holders = Vec::new();
    for _ in 0..2 {
        holders.push(scene.start_as(scene.worker(), keyed(2)).await?.run.id);
    }
    let third = scene.making(scene.draft(keyed(2)), Some(scene.worker()))?;
    match scene.commit(third).await? {
        WriteOutcome::KeyBusy { key, holders: mut reported, .. } => {
            reported.sort();
            ensure!(
                key.name == "gpu" && reported == holders,
                "the answer says that {reported:?} hold {key}; {holders:?} hold `gpu`"
            );
        }
        other => return Err(format!("a third holder of a key for two was answered with {other:?}")),
    }
    let listed = scene.store.list(&Filter::default(), &Page::default()).await.map_err(failed)?.records;
    ensure!(listed.len() == 2, "a run that got no key is on record");
    scene.enqueue(keyed(2)).await?;
    let other = Spec { keys: vec![Key::limit("disk", 1)], ..spec("job") };
    scene.start_as(scene.worker(), other).await.map(drop)
}

pub(super) async fn a_holder_keeps_its_key_while_it_reports(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let holder = scene.start_as(worker, keyed(1)).await?;
    scene.act(&holder, &report(worker, &holder, "half")).await?;
    scene.act(&holder, &cancel()).await?;
    let taker = scene.commit(scene.making(scene.draft(keyed(1)), Some(scene.worker()))?).await?;
    ensure!(matches!(taker, WriteOutcome::KeyBusy { .. }), "a report gave a key away: {taker:?}");
    Ok(())
}

pub(super) async fn whatever_ends_a_run_frees_its_keys(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    type Ending = fn(WorkerId, &Record) -> Action;
    let reap: Ending = |_, record| Action::Reap {
        observed: Observed { epoch: record.run.epoch, beat: record.run.owner().map_or(0, |owner| owner.heard.beat) },
        evidence: Evidence::LockFree,
        reaper: None,
    };
    let interrupt: Ending = |worker, record| Action::Interrupt {
        fence: fence(worker, record),
        interruption: Interruption { signal: Some(15), reason: "SIGTERM".into() },
        exit: None,
    };
    for end in [finish, suspend, reap, interrupt] {
        let worker = scene.worker();
        let holder = scene.start_as(worker, keyed(1)).await?;
        let ended = scene.act(&holder, &end(worker, &holder)).await?;
        let next = scene.making(scene.draft(keyed(1)), Some(worker))?;
        let (id, answer) = (next.run.id, scene.commit(next).await?);
        ensure!(
            matches!(answer, WriteOutcome::Done(_)),
            "a run that is {} holds its key: {answer:?}",
            ended.run.state.name()
        );
        let next = scene.read(id).await?;
        scene.act(&next, &finish(worker, &next)).await?;
    }
    Ok(())
}

pub(super) async fn an_update_respects_keys(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    for _ in 0..3 {
        scene.enqueue(keyed(1)).await?;
    }
    let free = scene.enqueue(spec("free")).await?;
    let worker = scene.worker();
    let claimed = scene.store.update(&waiting(Order::Claim, 9), &claiming(&scene, worker)).await.map_err(failed)?;
    let holders = claimed.iter().filter(|record| !record.run.spec.keys.is_empty()).count();
    ensure!(holders == 1, "an update gave a key for one to {holders}");
    ensure!(claimed.iter().any(|record| record.run.id == free.run.id), "a busy key kept a run without keys waiting");
    let holder = claimed.into_iter().find(|record| !record.run.spec.keys.is_empty());
    let Some(holder) = holder else { return Err("no run holds the key".into()) };
    scene.act(&holder, &finish(worker, &holder)).await?;
    let claimed = scene.store.update(&waiting(Order::Claim, 9), &claiming(&scene, worker)).await.map_err(failed)?;
    ensure!(claimed.len() == 1, "a key that was freed let {} runs go", claimed.len());
    Ok(())
}

pub(super) async fn of_many_takers_of_a_key_one_holds_it(ground: &dyn Ground) -> Result<(), String> {
    const TAKERS: usize = 8;
    for _ in 0..4 {
        let scene = Scene::on(ground).await;
        let take = |_| scene.making(scene.draft(keyed(1)), Some(scene.worker()));
        let (won, busy) = race(ground, (0..TAKERS).map(take).collect::<Result<_, _>>()?).await;
        ensure!(won == 1 && busy == TAKERS - 1, "of {TAKERS} takers of one key {won} got it and {busy} did not");
    }
    Ok(())
}
