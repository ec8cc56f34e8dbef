//! Promise 2, for rates: no more attempts start within a time than the rate says, by the store's own clock.

use std::time::Duration;

use super::scene::{Scene, by, failed, fence, finish, race, report};
use super::updates::{claiming, waiting};
use super::{Ground, ensure};
use crate::lifecycle::Action;
use crate::model::run::{Interruption, Key, Spec};
use crate::store::{Order, WriteOutcome};
use crate::testing::spec;

fn rate(per: Duration) -> Key {
    Key::rate("api", 2, per)
}

fn rated(per: Duration) -> Spec {
    Spec { keys: vec![rate(per)], ..spec("job") }
}

pub(super) async fn no_more_start_than_a_rate_says_until_its_time_has_passed(
    ground: &dyn Ground,
) -> Result<(), String> {
    let (scene, per) = (Scene::on(ground).await, ground.stretch() * 2);
    let worker = scene.worker();
    for _ in 0..2 {
        let run = scene.start_as(worker, rated(per)).await?;
        // What has ended has started all the same.
        scene.act(&run, &report(worker, &run, "half")).await?;
        scene.act(&run, &finish(worker, &run)).await?;
    }
    let waits = scene.enqueue(rated(per)).await?;
    let third = scene.commit(scene.making(scene.draft(rated(per)), Some(worker))?).await?;
    ensure!(
        matches!(&third, WriteOutcome::KeyBusy { key, free_at: Some(_), .. } if *key == rate(per)),
        "of a rate of two a third was started, or badly reported: {third:?}"
    );
    let counted = scene.store.starts(&[rate(per)]).await.map_err(failed)?;
    ensure!(counted.iter().map(Vec::len).eq([2]), "of two starts these are reported: {counted:?}");
    ground.pass(per + Duration::from_millis(1)).await;
    let counted = scene.store.starts(&[rate(per)]).await.map_err(failed)?;
    ensure!(counted.iter().map(Vec::len).eq([0]), "starts count for longer than the rate says: {counted:?}");
    let claim = Action::Claim { owner: by(worker), early: false, leftovers: Default::default() };
    scene.act(&waits, &claim).await.map(drop)
}

pub(super) async fn every_attempt_is_a_start_and_nothing_else_is(ground: &dyn Ground) -> Result<(), String> {
    let (scene, per) = (Scene::on(ground).await, ground.stretch() * 2);
    let worker = scene.worker();
    let run = scene.start_as(worker, rated(per)).await?;
    for _ in 0..3 {
        scene.act(&run, &report(worker, &run, "half")).await?;
    }
    let interrupt = |record: &crate::store::Record| Action::Interrupt {
        fence: fence(worker, record),
        interruption: Interruption { signal: Some(15), reason: "SIGTERM".into() },
        exit: None,
    };
    let run = scene.act(&run, &interrupt(&run)).await?;
    let resume = Action::Resume { failed_too: false, leftovers: Default::default(), owner: Some(by(worker)) };
    let run = scene.act(&run, &resume).await?;
    let run = scene.act(&run, &interrupt(&run)).await?;
    let third = scene.commit(scene.changing(&run, &resume)?).await?;
    ensure!(matches!(third, WriteOutcome::KeyBusy { .. }), "a third attempt was not counted: {third:?}");
    Ok(())
}

pub(super) async fn an_update_respects_rates(ground: &dyn Ground) -> Result<(), String> {
    let (scene, per) = (Scene::on(ground).await, ground.stretch() * 2);
    for _ in 0..5 {
        scene.enqueue(rated(per)).await?;
    }
    let free = scene.enqueue(spec("free")).await?;
    let worker = scene.worker();
    for (expected, with_free) in [(2, true), (0, false)] {
        let claimed = scene.store.update(&waiting(Order::Claim, 9), &claiming(&scene, worker)).await.map_err(failed)?;
        let started = claimed.iter().filter(|record| !record.run.spec.keys.is_empty()).count();
        ensure!(started == expected, "an update let {started} start where {expected} may");
        let has_free = claimed.iter().any(|record| record.run.id == free.run.id);
        ensure!(has_free == with_free, "a rate kept a run without one waiting");
    }
    ground.pass(per + Duration::from_millis(1)).await;
    let claimed = scene.store.update(&waiting(Order::Claim, 9), &claiming(&scene, worker)).await.map_err(failed)?;
    ensure!(claimed.len() == 2, "after its time a rate of two let {} start", claimed.len());
    Ok(())
}

pub(super) async fn of_many_that_start_at_once_a_rate_lets_its_number(ground: &dyn Ground) -> Result<(), String> {
    const STARTERS: usize = 8;
    let (scene, per) = (Scene::on(ground).await, Duration::from_secs(3_600));
    let start = |_| scene.making(scene.draft(rated(per)), Some(scene.worker()));
    let (started, reported) = race(ground, (0..STARTERS).map(start).collect::<Result<_, _>>()?).await;
    ensure!(started == 2 && reported == STARTERS - 2, "of {STARTERS} at once {started} started and {reported} did not");
    Ok(())
}
