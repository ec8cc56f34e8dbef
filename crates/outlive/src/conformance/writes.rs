//! Promise 1, for single writes: conditional on what they replace, and whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;

use super::scene::{Scene, failed, finish, recorded, report};
use super::{Ground, Work, ensure};
use crate::lifecycle::{Action, Report, note_usage};
use crate::model::owner::Identity;
use crate::model::run::{Arg, Command, Key, Lineage, Progress, Run, Spec, Usage, UsagePoint};
use crate::store::{Expect, Revision, Write, WriteOutcome};
use crate::testing::{person, spec};
use crate::util::sync::lock;

/// A spec that says all that one can say.
fn full_spec(scene: &Scene) -> Spec {
    let argv = vec![Arg::Text("echo".into()), Arg::Bytes { hex: "61ff00".into() }, Arg::Text("zwölf 🦀".into())];
    let command = Command::new(argv, Arg::Text("/tmp".into()));
    let first = scene.draft(spec("first")).id;
    let lineage = Lineage { rerun_of: first, origin: first, generation: 1, reason: Some("again".into()) };
    Spec {
        name: Some("nightly".into()),
        labels: BTreeMap::from([("team".into(), "données".into()), ("empty".into(), String::new())]),
        command: Some(command),
        priority: -3,
        not_before: Some(scene.now()),
        keys: vec![Key::limit("gpu", 2)],
        lineage: Some(lineage),
        ..Spec::new("train", person("ada"))
    }
}

pub(super) async fn a_written_run_is_read_back_whole(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let waiting = scene.making(scene.draft(full_spec(&scene)), None)?;
    ensure!(matches!(scene.commit(waiting.clone()).await?, WriteOutcome::Done(_)), "a new run was refused");
    let read = scene.read(waiting.run.id).await?.run;
    ensure!(read == waiting.run, "wrote {:?} and read {read:?}", waiting.run);
    let write = scene.making(scene.draft(spec("job")), Some(worker))?;
    ensure!(matches!(scene.commit(write.clone()).await?, WriteOutcome::Done(_)), "a new run was refused");
    let started = scene.read(write.run.id).await?;
    ensure!(recorded(&started.run) == write.run, "wrote {:?} and read {:?}", write.run, started.run);
    let fence = super::scene::fence(worker, &started);
    let progress = Progress {
        done: Some(3),
        total: Some(u64::MAX),
        message: Some("half\nway".into()),
        data: Some(json!({"loss": 0.1, "deep": [null, {"big": i64::MAX}]})),
    };
    let said = Report {
        progress: Some(progress),
        checkpoint: Some(json!({"step": 3, "z": 1, "a": 2})),
        artifact: Some("model.bin".into()),
        manifest_ref: Some("manifest.json".into()),
        ready: true,
        leash: Some(Box::new(Identity::own())),
        ports: [("web".to_owned(), 20_000)].into(),
    };
    let reported = scene.changing(&started, &Action::Report { fence, report: said })?;
    ensure!(matches!(scene.commit(reported.clone()).await?, WriteOutcome::Done(_)), "a report was refused");
    let read = scene.read(write.run.id).await?.run;
    ensure!(recorded(&read) == recorded(&reported.run), "wrote {:?} and read {read:?}", reported.run);
    // What an attempt uses is written beside its events.
    let before = scene.read(write.run.id).await?;
    let usage = Usage {
        cpu_ms: 1_234,
        peak_memory_bytes: Some(u64::MAX),
        every_ms: 2_000,
        points: vec![UsagePoint { at_ms: 20, memory_bytes: 5 << 30, processes: 3, ..UsagePoint::default() }],
        ..Usage::default()
    };
    let noted = note_usage(&before.run, &fence, &Arc::new(usage)).map_err(|refusal| refusal.to_string())?;
    let (expect, stamp) = (Expect::Revision(before.revision), scene.stamp());
    let note = Write { expect, run: noted.clone(), events: Vec::new(), ended: None, stamp };
    ensure!(matches!(scene.commit(note).await?, WriteOutcome::Done(_)), "what an attempt used was refused");
    let read = scene.read(write.run.id).await?.run;
    ensure!(recorded(&read) == recorded(&noted), "wrote {noted:?} and read {read:?}");
    let ended = scene.changing(&scene.read(write.run.id).await?, &finish(worker, &started))?;
    ensure!(matches!(scene.commit(ended.clone()).await?, WriteOutcome::Done(_)), "an end was refused");
    let read = scene.read(write.run.id).await?.run;
    let kept = |run: &Run| (run.artifacts.clone(), run.usage.clone());
    ensure!(read.ending().is_some() && kept(&read) == kept(&ended.run), "an ended run is read as {read:?}");
    Ok(())
}

pub(super) async fn a_duplicate_id_conflicts(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let first = scene.enqueue(spec("first")).await?;
    let mut twin = scene.draft(spec("second"));
    twin.id = first.run.id;
    match scene.commit(scene.making(twin, None)?).await? {
        WriteOutcome::Conflict(Some(found)) => {
            ensure!(*found == first, "the conflict shows {found:?} instead of the first run");
        }
        other => return Err(format!("a second run of the same id was answered with {other:?}")),
    }
    let read = scene.read(first.run.id).await?;
    ensure!(read == first, "a second run of the same id changed the first to {read:?}");
    Ok(())
}

pub(super) async fn a_stale_revision_conflicts(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let old = scene.start(worker).await?;
    let new = scene.act(&old, &report(worker, &old, "first")).await?;
    match scene.commit(scene.changing(&old, &finish(worker, &old))?).await? {
        WriteOutcome::Conflict(Some(found)) => {
            ensure!(found.revision == new.revision, "the conflict shows revision {:?}", found.revision);
            ensure!(recorded(&found.run) == recorded(&new.run), "the conflict shows {found:?}");
        }
        other => return Err(format!("a write over an older revision was answered with {other:?}")),
    }
    let ahead = Write {
        expect: Expect::Revision(Revision(new.revision.0 + 1)),
        ..scene.changing(&new, &finish(worker, &new))?
    };
    let answer = scene.commit(ahead).await?;
    ensure!(matches!(answer, WriteOutcome::Conflict(_)), "a revision that never was is answered with {answer:?}");
    Ok(())
}

pub(super) async fn a_write_that_lost_leaves_no_trace(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let keyed = Spec { keys: vec![Key::limit("gpu", 1)], ..spec("job") };
    let waiting = scene.enqueue(keyed.clone()).await?;
    let stale = scene.changing(
        &waiting,
        &Action::Claim { owner: super::scene::by(worker), early: false, leftovers: Default::default() },
    )?;
    let current = scene.act(&waiting, &super::scene::cancel()).await?;
    let events = scene.store.events(waiting.run.id).await.map_err(failed)?;
    let answer = scene.commit(stale).await?;
    ensure!(matches!(answer, WriteOutcome::Conflict(_)), "a write over an older revision was answered with {answer:?}");
    let read = scene.read(waiting.run.id).await?;
    ensure!(read == current, "a write that lost changed the run to {read:?}");
    let reported = scene.store.events(waiting.run.id).await.map_err(failed)?;
    ensure!(reported == events, "a write that lost is in the event log: {reported:?}");
    let taker = scene.commit(scene.making(scene.draft(keyed), Some(scene.worker()))?).await?;
    ensure!(matches!(taker, WriteOutcome::Done(_)), "a write that lost holds a key: {taker:?}");
    let reply = scene.beat(worker, &[], None).await?;
    ensure!(reply.forgotten.is_empty(), "a write that lost made an owner: {reply:?}");
    Ok(())
}

pub(super) async fn writes_of_a_batch_are_independent(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let taken = scene.enqueue(spec("taken")).await?;
    let mut twin = scene.draft(spec("twin"));
    twin.id = taken.run.id;
    let (first, last) = (scene.draft(spec("first")), scene.draft(spec("last")));
    let ids = [first.id, last.id];
    let batch = vec![scene.making(first, None)?, scene.making(twin, None)?, scene.making(last, Some(scene.worker()))?];
    let written = scene.store.commit(batch).await.map_err(failed)?;
    let as_expected =
        matches!(written.as_slice(), [WriteOutcome::Done(_), WriteOutcome::Conflict(Some(_)), WriteOutcome::Done(_)]);
    ensure!(as_expected, "a batch of good, lost, good was answered with {written:?}");
    let read = scene.store.get(&ids).await.map_err(failed)?;
    ensure!(read.len() == 2, "of two good writes in a batch {} are read", read.len());
    Ok(())
}

/// Stores may have another way for many at once, which they may take only after a while.
pub(super) async fn of_many_made_at_once_only_those_that_are_there_are_refused(
    ground: &dyn Ground,
) -> Result<(), String> {
    const ROUNDS: usize = 6;
    const MANY: usize = 40;
    let scene = Scene::on(ground).await;
    let taken = scene.enqueue(spec("taken")).await?;
    for round in 0..ROUNDS {
        let spec = Spec { keys: Vec::new(), ..full_spec(&scene) };
        let mut drafts: Vec<_> = (0..MANY).map(|_| scene.draft(spec.clone())).collect();
        if round == ROUNDS - 1 {
            drafts[MANY / 2].id = taken.run.id;
        }
        let batch = drafts.into_iter().map(|run| scene.making(run, None)).collect::<Result<Vec<_>, _>>()?;
        let written = scene.store.commit(batch.clone()).await.map_err(failed)?;
        ensure!(written.len() == MANY, "{MANY} writes were answered by {} answers", written.len());
        for (write, answer) in batch.iter().zip(&written) {
            let record = scene.read(write.run.id).await?;
            match answer {
                WriteOutcome::Done(made) => {
                    let is_as_written =
                        (&record.run, record.stamp, record.revision) == (&write.run, write.stamp, *made);
                    ensure!(is_as_written, "wrote {write:?} and read {record:?}");
                }
                WriteOutcome::Conflict(Some(found)) => {
                    let is_taken = **found == taken && record == taken;
                    ensure!(is_taken, "{:?} was refused for {found:?}", write.run);
                }
                other => return Err(format!("a new run was answered with {other:?}")),
            }
        }
        let refused = written.iter().filter(|answer| !matches!(answer, WriteOutcome::Done(_))).count();
        ensure!(refused == usize::from(round == ROUNDS - 1), "{refused} were refused");
        let reported = scene.store.events(batch[0].run.id).await.map_err(failed)?;
        let is_logged = batch[0].events.iter().all(|event| reported.contains(event));
        ensure!(is_logged, "the event log is {reported:?} of what was made by {:?}", batch[0].events);
    }
    Ok(())
}

pub(super) async fn revisions_only_rise(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let mut last = scene.start(worker).await?;
    for round in 0..4 {
        let write = scene.changing(&last, &report(worker, &last, &format!("part {round}")))?;
        let WriteOutcome::Done(made) = scene.commit(write).await? else { return Err("a report was refused".into()) };
        let next = scene.read(last.run.id).await?;
        ensure!(next.revision > last.revision, "revision {:?} follows {:?}", next.revision, last.revision);
        ensure!(next.revision == made, "the write made {made:?} and {:?} is read", next.revision);
        last = next;
    }
    Ok(())
}

pub(super) async fn of_many_writers_one_wins(ground: &dyn Ground) -> Result<(), String> {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 12;
    let scene = Scene::on(ground).await;
    let worker = scene.worker();
    let run = scene.start(worker).await?;
    let lost = Arc::new(AtomicUsize::new(0));
    let mut stores = Vec::new();
    for _ in 0..WRITERS {
        stores.push(ground.again().await);
    }
    for round in 0..ROUNDS {
        let current = scene.read(run.run.id).await?;
        let winners = Arc::new(Mutex::new(Vec::new()));
        let mut work: Vec<Work> = Vec::new();
        for (writer, store) in stores.iter().enumerate() {
            let name = format!("{round}/{writer}");
            let write = scene.changing(&current, &report(worker, &current, &name))?;
            let (store, winners, lost) = (store.clone(), winners.clone(), lost.clone());
            work.push(Box::pin(async move {
                match store.commit(vec![write]).await.as_deref() {
                    Ok([WriteOutcome::Done(_)]) => lock(&winners).push(name),
                    Ok([WriteOutcome::Conflict(_)]) => drop(lost.fetch_add(1, Ordering::SeqCst)),
                    // Neither won nor lost: the count below is then short.
                    _ => {}
                }
            }));
        }
        ground.at_once(work).await;
        let winners = lock(&winners).clone();
        ensure!(winners.len() == 1, "{} of {WRITERS} writers learned that they won: {winners:?}", winners.len());
        let read = scene.read(run.run.id).await?.run.artifacts;
        ensure!(read.last() == winners.first(), "{winners:?} learned that it won, and {:?} is read", read.last());
        ensure!(read.len() == round + 1, "after {} wins {} are read", round + 1, read.len());
    }
    let lost = lost.load(Ordering::SeqCst);
    ensure!(lost == ROUNDS * (WRITERS - 1), "{lost} writers learned that they lost");
    Ok(())
}
