//! Owners that come back, ends that race, handles that are let go of: L09, L10, L13 and L14.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outlive::error::Code;
use outlive::filter::Filter;
use outlive::id::Stamp;
use outlive::lifecycle::{Action, apply};
use outlive::ownership::Stop;
use outlive::registry::Registry;
use outlive::run::{End, StateName};
use outlive::store::{Beat, Write};
use outlive::testing::{SeededEntropy, owner as as_owner, spec};
use outlive::time::Clock;

use crate::world::{LEASE, on_each, unseen, with_lease};

fn failure(run: &outlive::run::Run) -> Option<&str> {
    match &run.ending()?.how {
        End::Failed(failure) => Some(&failure.error_type),
        _ => None,
    }
}

#[test]
fn l09_a_stopped_owner_that_continues_has_lost() {
    on_each(async |world| {
        let (zombie, other) = (world.process(), world.process());
        let handle = zombie.start(spec("job")).await.unwrap();
        let id = handle.id();
        handle.set_checkpoint(7.into()).await.unwrap();
        world.clock.pass(LEASE * 2);
        assert_eq!(world.reap().await.ended.len(), 1);
        let resumed = other.resume(id, outlive::ResumeOptions::default()).await.unwrap();
        assert_eq!((resumed.run().attempt, resumed.checkpoint()), (2, Some(7.into())));
        let before = world.record(id).await;

        let error = handle.set_checkpoint(8.into()).await.unwrap_err();
        assert_eq!(error.code(), Code::Lost, "{error}");
        zombie.tick().await.unwrap();
        assert_eq!(handle.stop_requested(), Some(Stop::Lost));
        assert_eq!(handle.succeed().await.unwrap_err().code(), Code::Lost);
        zombie.tick().await.unwrap();
        assert_eq!(world.record(id).await, before);
        resumed.succeed().await.unwrap();
        assert_eq!(world.see(id).await.state, StateName::Succeeded);
    });
}

#[test]
fn l10_finish_after_a_reap_is_lost_and_ends_follow_starts() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        world.clock.pass(LEASE * 2);
        world.clock.step_wall(-86_400);
        assert_eq!(world.reap().await.ended.len(), 1);
        let reaped = world.record(id).await;
        assert_eq!(handle.succeed().await.unwrap_err().code(), Code::Lost);
        assert_eq!(world.record(id).await, reaped);
        let ending = reaped.run.ending().unwrap();
        assert!(ending.at >= ending.started_at.unwrap(), "{ending:?}");

        let early = owner.start(spec("early")).await.unwrap();
        let early_id = early.id();
        world.clock.step_wall(-86_400);
        early.succeed().await.unwrap();
        let run = world.see(early_id).await.run;
        assert!(run.ending().unwrap().at >= run.ending().unwrap().started_at.unwrap());
    });
}

#[test]
fn l10_a_slow_beat_that_races_a_finish_leaves_it_finished() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let (id, fence) = (handle.id(), handle.fence());
        let late = Beat {
            worker: fence.worker,
            identity: unseen(1),
            lease: Default::default(),
            held: [(id, fence.epoch)].into(),
            attention: None,
            leaving: false,
            offer: Default::default(),
        };
        handle.succeed().await.unwrap();
        let finished = world.record(id).await;
        let reply = world.store.beat(&late).await.unwrap();
        assert_eq!(reply.lost, [id]);
        assert_eq!(world.record(id).await, finished);
        assert_eq!(finished.run.state.name(), StateName::Succeeded);
    });
}

#[test]
fn l13_a_handle_that_is_dropped_or_panicked_over_ends_its_run() {
    on_each(async |world| {
        let owner = world.process();
        let dropped = owner.start(spec("dropped")).await.unwrap();
        let panicked = owner.start(spec("panicked")).await.unwrap();
        let (dropped_id, panicked_id) = (dropped.id(), panicked.id());
        let early_return = |handle: outlive::ownership::handle::RunHandle| -> Option<()> {
            let _held = handle;
            None
        };
        assert_eq!(early_return(dropped), None);
        let work = std::thread::spawn(move || {
            let _held = panicked;
            panic!("the work went wrong");
        });
        assert!(work.join().is_err());
        owner.tick().await.unwrap();
        assert_eq!(failure(&world.see(dropped_id).await.run), Some("dropped"));
        assert_eq!(failure(&world.see(panicked_id).await.run), Some("panic"));
    });
}

#[test]
fn l13_a_run_that_a_live_worker_does_not_know_of_is_found() {
    on_each(async |world| {
        let owner = world.process();
        let waiting = owner.enqueue(spec("job")).await.unwrap();
        // A claim whose answer never arrived: on record it is the worker's, in the process nobody holds it.
        let action = Action::Claim {
            owner: as_owner(owner.worker().unwrap(), Default::default()),
            early: false,
            leftovers: Default::default(),
        };
        let record = world.record(waiting.id).await;
        let claimed = apply(&record.run, &action, owner.me(), world.clock.now()).unwrap();
        let stamp = Stamp::draw(&SeededEntropy::new(3));
        world.store.commit(vec![Write::change(&record, claimed, stamp)]).await.unwrap();
        let beats = LEASE.as_secs() / 4;
        for _ in 0..beats {
            world.clock.pass(Duration::from_secs(4));
            owner.tick().await.unwrap();
        }
        assert_eq!(world.see(waiting.id).await.state, StateName::Interrupted, "not found within a lease");
        assert!(world.process().resume(waiting.id, outlive::ResumeOptions::default()).await.is_ok());
    });
}

const INSIDE: &str = "OUTLIVE_TEST_INSIDE";
const BEATS: u64 = 8;

/// A real keeper with a real clock: it lives in a process of its own, whose home is not the user's.
#[test]
fn l14_heartbeats_continue_while_work_uses_all_processors() {
    let home = tempfile::tempdir().unwrap();
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", "lifecycle::zombies::l14_heartbeats_continue_while_work_uses_all_processors"]);
        let done = inside.env(INSIDE, "1").env("OUTLIVE_HOME", home.path()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
        return;
    }
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let registry = pollster::block_on(Registry::open(&url)).unwrap();
    let short = with_lease(spec("busy"), Duration::from_millis(60), Duration::from_secs(30));
    let handle = pollster::block_on(registry.start(short)).unwrap();
    let id = handle.id();
    let burning = Arc::new(AtomicBool::new(true));
    let burners: Vec<_> = (0..std::thread::available_parallelism().map_or(2, usize::from))
        .map(|_| {
            let burning = burning.clone();
            std::thread::spawn(move || while burning.load(Ordering::Relaxed) {})
        })
        .collect();
    // The holder does nothing but wait for this read to show that beats arrive without its help.
    let reader = pollster::block_on(Registry::open(&url)).unwrap();
    let heard = || {
        let run = pollster::block_on(reader.get(id)).unwrap().run;
        run.owner().map_or(0, |owner| owner.heard.beat)
    };
    let (clock, first) = (outlive::time::SystemClock, heard());
    let deadline = clock.awake() + Duration::from_secs(60);
    let watch = reader.local().unwrap().watch(&[outlive::store::sqlite::Topic::Changes]).unwrap();
    while heard() < first + BEATS {
        let left = deadline.checked_sub(clock.awake());
        // A beat notifies nobody.
        let left = left.unwrap_or_else(|| panic!("{} beats in a minute", heard() - first));
        watch.wait(left.min(Duration::from_millis(10)));
    }
    burning.store(false, Ordering::Relaxed);
    burners.into_iter().for_each(|burner| burner.join().unwrap());
    pollster::block_on(handle.succeed()).unwrap();
    let (left, _) =
        pollster::block_on(reader.list(&Filter::in_states([StateName::Running]), &Default::default())).unwrap();
    assert!(left.is_empty());
}

#[test]
fn l14_a_run_is_beaten_for_as_long_as_its_handle_is_held() {
    let place = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", place.path().join("registry").display());
    let handle = {
        let registry = pollster::block_on(Registry::open(&url)).unwrap();
        let handle = pollster::block_on(registry.start(spec("outlives its registry"))).unwrap();
        pollster::block_on(registry.close());
        handle
    };
    let reader = pollster::block_on(Registry::open(&url)).unwrap();
    assert_eq!(pollster::block_on(reader.get(handle.id())).unwrap().state, StateName::Running);
    let id = handle.id();
    pollster::block_on(handle.succeed()).unwrap();
    assert_eq!(pollster::block_on(reader.get(id)).unwrap().state, StateName::Succeeded);
}
