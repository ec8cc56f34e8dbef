//! Promise 2, for keys that are held from making to end: of all runs that want one, there is one at a time.

use super::scene::{Scene, by, fence, finish, race, report, suspend};
use super::{Ground, ensure};
use crate::lifecycle::Action;
use crate::model::run::{Interruption, Key, Spec};
use crate::store::{Record, WriteOutcome};
use crate::testing::spec;

fn only() -> Spec {
    Spec { keys: vec![Key::unique("only")], ..spec("job") }
}

/// A second maker gets the run that exists.
async fn is_taken(scene: &Scene, by: &Record) -> Result<(), String> {
    let stands = by.run.state.name();
    match scene.commit(scene.making(scene.draft(only()), None)?).await? {
        WriteOutcome::KeyBusy { key, holders, free_at: None }
            if key == Key::unique("only") && holders == [by.run.id] =>
        {
            Ok(())
        }
        other => Err(format!("beside one that is {stands} another was made, or badly reported: {other:?}")),
    }
}

pub(super) async fn a_unique_key_is_held_from_making_to_end(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let run = scene.enqueue(only()).await?;
    is_taken(&scene, &run).await?;
    let claim = Action::Claim { owner: by(worker), early: false, leftovers: Default::default() };
    let run = scene.act(&run, &claim).await?;
    is_taken(&scene, &run).await?;
    let run = scene.act(&run, &report(worker, &run, "half")).await?;
    is_taken(&scene, &run).await?;
    let run = scene.act(&run, &suspend(worker, &run)).await?;
    is_taken(&scene, &run).await?;
    let run = scene.act(&run, &Action::Wake { owner: Some(by(worker)) }).await?;
    is_taken(&scene, &run).await?;
    scene.act(&run, &finish(worker, &run)).await?;
    scene.enqueue(only()).await.map(drop)
}

pub(super) async fn a_run_that_ended_gets_its_unique_key_back_only_if_it_is_free(
    ground: &dyn Ground,
) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let run = scene.start_as(worker, only()).await?;
    let interruption = Interruption { signal: Some(15), reason: "SIGTERM".into() };
    let run = scene.act(&run, &Action::Interrupt { fence: fence(worker, &run), interruption, exit: None }).await?;
    let other = scene.start_as(worker, only()).await?;
    let resume = Action::Resume { failed_too: false, leftovers: Default::default(), owner: Some(by(worker)) };
    let refused = scene.commit(scene.changing(&run, &resume)?).await?;
    ensure!(
        matches!(&refused, WriteOutcome::KeyBusy { holders, .. } if *holders == [other.run.id]),
        "one was resumed beside another: {refused:?}"
    );
    scene.act(&other, &finish(worker, &other)).await?;
    let run = scene.act(&run, &resume).await?;
    is_taken(&scene, &run).await
}

pub(super) async fn keys_of_one_name_that_are_held_for_different_times_are_different(
    ground: &dyn Ground,
) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    for key in [Key::unique("same"), Key::limit("same", 1), Key::rate("same", 1, ground.stretch())] {
        scene.start_as(scene.worker(), Spec { keys: vec![key], ..spec("job") }).await?;
    }
    Ok(())
}

pub(super) async fn of_many_makers_of_a_unique_run_one_makes_it(ground: &dyn Ground) -> Result<(), String> {
    const MAKERS: usize = 8;
    for _ in 0..4 {
        let scene = Scene::on(ground).await;
        let writes = (0..MAKERS).map(|_| scene.making(scene.draft(only()), None)).collect::<Result<_, _>>()?;
        let (made, reported) = race(ground, writes).await;
        ensure!(
            made == 1 && reported == MAKERS - 1,
            "of {MAKERS} makers of a unique run {made} made it and {reported} got it"
        );
    }
    Ok(())
}
