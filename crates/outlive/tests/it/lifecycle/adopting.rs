//! Adopting: a run whose owner is gone and whose processes are not.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outlive::error::Error;
use outlive::host::RUN_VARIABLE;
use outlive::id::RunId;
use outlive::lifecycle::health::Health;
use outlive::lifecycle::{Refusal, Report};
use outlive::owner::Identity;
use outlive::ownership::Stop;
use outlive::run::StateName;
use outlive::testing::spec;

use crate::world::{LEASE, Watched, World, unseen};

/// A process that carries a run's id, killed at the end.
struct Leftover(Child);

impl Leftover {
    fn of(run: RunId) -> Self {
        let mut command = Command::new("sleep");
        command.arg("300").env(RUN_VARIABLE, run.to_string()).stdin(Stdio::null());
        let started = Self(command.spawn().unwrap());
        // It has no environment while it becomes another program.
        let environ = format!("/proc/{}/environ", started.0.id());
        while std::fs::read(&environ).unwrap().is_empty() {
            std::thread::yield_now();
        }
        started
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An owner that is proven gone: another program has its pid.
fn gone() -> Identity {
    let own = Identity::own();
    Identity { start_ticks: own.start_ticks - 1, pidfs_inode: own.pidfs_inode.map(|inode| inode - 1), ..own }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> Refusal {
    match answer {
        Err(Error::Refused { refusal, .. }) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn r02_live_tree_is_taken_over_and_the_dead_owner_fenced() {
    let world = World::sqlite();
    pollster::block_on(async {
        let before = world.process_as(gone()).start(spec("job")).await.unwrap();
        let id = before.id();
        let leftover = Leftover::of(id);
        let seen = world.see(id).await;
        assert_eq!((seen.health, seen.leftovers.pids), (Some(Health::Orphaned), vec![leftover.0.id()]));

        let adopter = world.process_as(Identity::own());
        let handle = adopter.adopt(id).await.unwrap();
        let run = world.record(id).await.run;
        assert_eq!((run.attempt, run.epoch, handle.fence().epoch), (1, before.fence().epoch.next(), run.epoch));
        assert_eq!(world.see(id).await.health, Some(Health::Healthy));
        assert_eq!(refusal(world.process_as(Identity::own()).adopt(id).await), Refusal::OwnerLives);
        // What the processes were handed still speaks for them; what the dead owner had sent does not.
        let report = Report { artifact: Some("made".into()), ..Report::default() };
        assert_eq!(adopter.report(id, before.fence().epoch, report).await.unwrap().artifacts, ["made"]);
        let late = before.succeed().await.unwrap_err();
        assert!(matches!(late, Error::Refused { refusal: Refusal::Lost { .. }, .. }), "{late}");
        handle.succeed().await.unwrap();
        assert_eq!(world.actions(id).await, ["enqueue", "claim", "adopt", "report", "finish"]);
        let events = adopter.events(id).await.unwrap();
        assert!(events[2].evidence.is_some() && events[2].reason.as_ref().unwrap().contains("taken over from worker"));
    });
}

#[test]
fn adopting_needs_proof_and_something_to_adopt() {
    let world = World::sqlite();
    pollster::block_on(async {
        let adopter = world.process_as(Identity::own());
        let dead = world.process_as(gone()).start(spec("job")).await.unwrap();
        assert_eq!(refusal(adopter.adopt(dead.id()).await), Refusal::NothingLeft);
        // Silent for long, and not to be seen from here: that is no proof.
        let silent = world.process_as(unseen(7)).start(spec("job")).await.unwrap();
        let _leftover = Leftover::of(silent.id());
        world.clock.pass(LEASE * 3);
        assert_eq!(refusal(adopter.adopt(silent.id()).await), Refusal::OwnerLives);
    });
}

#[test]
fn timeout_counts_from_the_attempt_and_spares_live_processes() {
    let world = World::sqlite();
    pollster::block_on(async {
        let mut limited = spec("job");
        limited.policy.limits.timeout = Some(LEASE * 4);
        let before = world.process_as(gone()).start(limited).await.unwrap();
        let _leftover = Leftover::of(before.id());
        world.clock.pass(LEASE * 3);
        let adopter = world.process_as(Identity::own());
        let handle = adopter.adopt(before.id()).await.unwrap();
        adopter.tick().await.unwrap();
        assert_eq!(handle.stop_requested(), None);
        world.clock.pass(LEASE * 2);
        adopter.tick().await.unwrap();
        assert_eq!(handle.stop_requested(), Some(Stop::TimedOut));
        assert!(world.record(before.id()).await.run.owner().is_some(), "it was called over while its processes live");
    });
}

#[test]
fn a_beat_between_the_look_and_the_write_wins() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = Arc::new(world.process_as(gone()));
        let id = owner.start(spec("job")).await.map(|handle| {
            let id = handle.id();
            std::mem::forget(handle);
            id
        });
        let id = id.unwrap();
        let _leftover = Leftover::of(id);
        let (beating, beats) = (owner.clone(), AtomicBool::new(true));
        let store = Watched::new(world.store.clone(), move |call| {
            if call == "update" && beats.swap(false, Ordering::SeqCst) {
                pollster::block_on(beating.tick()).unwrap();
            }
            Ok(())
        });
        let adopter = world.process_on(store.clone(), Identity::own());
        adopter.adopt(id).await.unwrap();
        assert_eq!(
            store.lost.load(Ordering::SeqCst),
            1,
            "the first look was not compared with what had been heard since"
        );
    });
}

#[test]
fn nothing_is_resumed_while_a_process_of_its_last_attempt_lives() {
    let world = World::sqlite();
    pollster::block_on(async {
        // Its owner has ended the attempt and lives on.
        let owner = world.process_as(Identity::own());
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        let leftover = Leftover::of(id);
        handle.interrupt(Some(15), "asked to").await.unwrap();
        let pids = vec![leftover.0.id()];
        let seen = world.see(id).await;
        assert_eq!((seen.state, &seen.leftovers.pids), (StateName::Interrupted, &pids));
        let Refusal::LeftoversAlive(named) = refusal(owner.resume(id, outlive::ResumeOptions::default()).await) else {
            panic!("resumed")
        };
        assert_eq!(named.pids, pids);
        drop(leftover);
        assert_eq!(owner.resume(id, outlive::ResumeOptions::default()).await.unwrap().run().attempt, 2);
    });
}

/// A reader looks at the record first and at the process then, and an owner may end in between.
#[test]
fn l08_owner_that_ends_while_observed_has_its_own_outcome() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process_as(gone());
        let handle = owner.start(spec("job")).await.unwrap();
        let (id, ending) = (handle.id(), std::sync::Mutex::new(Some(handle)));
        let store = Watched::new(world.store.clone(), move |call| {
            if call == "witness"
                && let Some(handle) = ending.lock().unwrap().take()
            {
                pollster::block_on(handle.succeed()).unwrap();
            }
            Ok(())
        });
        let reader = world.process_on(store, Identity::own());
        assert_eq!(reader.get(id).await.unwrap().state, StateName::Succeeded);
    });
}
