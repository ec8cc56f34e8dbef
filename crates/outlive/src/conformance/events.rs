//! Promises 5, 6 and 8: write ids, event logs, and what is reported of a run that is not there.

use super::scene::{Scene, beat, cancel, failed, finish, report};
use super::updates::waiting;
use super::{Ground, ensure};
use crate::lifecycle::{Action, apply};
use crate::model::filter::Filter;
use crate::model::run::Run;
use crate::store::{Change, Expect, Order, Page, Revision, Selection, Write, WriteOutcome};
use crate::testing::{person, spec};

pub(super) async fn a_record_bears_the_stamp_of_its_last_write(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let made = scene.making(scene.draft(spec("job")), None)?;
    let (id, mut stamps) = (made.run.id, vec![made.stamp]);
    ensure!(matches!(scene.commit(made).await?, WriteOutcome::Done(_)), "a new run was refused");
    ensure!(scene.read(id).await?.stamp == stamps[0], "a new run bears another stamp than its write");
    let stamp = scene.stamp();
    let rule = |run: &Run, now| {
        let transition = apply(
            run,
            &Action::Claim { owner: super::scene::by(worker), early: false, leftovers: Default::default() },
            &person("ada"),
            now,
        )
        .ok()?;
        Some(Change { transition, stamp })
    };
    let reported = scene.store.update(&waiting(Order::Claim, 1), &rule).await.map_err(failed)?;
    ensure!(reported.iter().all(|record| record.stamp == stamp), "an update tells of another stamp than its own");
    let claimed = scene.read(id).await?;
    ensure!(claimed.stamp == stamp, "a run that was updated bears another stamp than the update");
    let stale = scene.changing(&claimed, &cancel())?;
    let reported = scene.changing(&claimed, &report(worker, &claimed, "part"))?;
    stamps.push(reported.stamp);
    ensure!(matches!(scene.commit(reported.clone()).await?, WriteOutcome::Done(_)), "a report was refused");
    scene.store.beat(&beat(worker)).await.map_err(failed)?;
    ensure!(scene.read(id).await?.stamp == reported.stamp, "a changed run bears another stamp than its last write");
    let listed = scene.store.list(&Filter::default(), &Page::default()).await.map_err(failed)?.records;
    ensure!(listed.iter().all(|record| record.stamp == reported.stamp), "a list shows another stamp");
    if let WriteOutcome::Conflict(Some(found)) = scene.commit(stale).await? {
        ensure!(found.stamp == reported.stamp, "a conflict shows another stamp than the winner's");
    }
    Ok(())
}

pub(super) async fn events_are_read_in_order_each_once(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let made = scene.making(scene.draft(spec("job")), Some(worker))?;
    let (id, mut expected) = (made.run.id, made.events.clone());
    ensure!(matches!(scene.commit(made).await?, WriteOutcome::Done(_)), "a new run was refused");
    for step in 0..4 {
        let current = scene.read(id).await?;
        let action = match step {
            2 => cancel(),
            3 => finish(worker, &current),
            _ => report(worker, &current, &format!("part {step}")),
        };
        let write = scene.changing(&current, &action)?;
        expected.extend(write.events.iter().cloned());
        ensure!(matches!(scene.commit(write).await?, WriteOutcome::Done(_)), "step {step} was refused");
        let reported = scene.store.events(id).await.map_err(failed)?;
        ensure!(reported == expected, "after step {step} the event log is {reported:?}, not {expected:?}");
    }
    Ok(())
}

pub(super) async fn event_logs_do_not_mix(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let first = scene.start(worker).await?;
    let second = scene.enqueue(spec("other")).await?;
    scene.act(&first, &finish(worker, &first)).await?;
    let actions =
        |events: Vec<crate::model::run::Event>| events.into_iter().map(|event| event.action).collect::<Vec<_>>();
    let reported = actions(scene.store.events(first.run.id).await.map_err(failed)?);
    ensure!(reported == ["enqueue", "claim", "finish"], "the first run's event log is {reported:?}");
    let reported = actions(scene.store.events(second.run.id).await.map_err(failed)?);
    ensure!(reported == ["enqueue"], "the second run's event log is {reported:?}");
    Ok(())
}

pub(super) async fn a_missing_run_is_an_absence(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let missing = scene.draft(spec("missing"));
    let honest = |error| format!("a missing run was answered with an error: {error}");
    ensure!(scene.store.get(&[missing.id]).await.map_err(honest)?.is_empty(), "a missing run is read");
    let filter = Filter::of([missing.id]);
    let listed = scene.store.list(&filter, &Page::default()).await.map_err(honest)?;
    ensure!(listed.records.is_empty() && listed.next.is_none(), "a missing run is listed: {listed:?}");
    let known = scene.enqueue(spec("known")).await?;
    let found = scene.store.get(&[missing.id, known.run.id]).await.map_err(honest)?;
    ensure!(found == [known.clone()], "beside a missing run {found:?} are read");
    ensure!(scene.store.get(&[]).await.map_err(honest)?.is_empty(), "nothing was asked for, and something is read");
    ensure!(scene.store.events(missing.id).await.map_err(honest)?.is_empty(), "a missing run has an event log");
    let rule = |_: &Run, _| None;
    let selection = Selection { filter, order: Order::Oldest, limit: 1, due: false };
    let changed = scene.store.update(&selection, &rule).await.map_err(honest)?;
    ensure!(changed.is_empty(), "a missing run was updated");
    let change = scene.changing(&known, &cancel())?;
    let write = Write { expect: Expect::Revision(Revision(1)), run: missing.clone(), ended: None, ..change };
    match scene.store.commit(vec![write]).await.map_err(honest)?.as_slice() {
        [WriteOutcome::Conflict(None)] => {}
        other => return Err(format!("a change of a missing run was answered with {other:?}")),
    }
    ensure!(scene.find(missing.id).await?.is_none(), "a change of a missing run made it");
    Ok(())
}
