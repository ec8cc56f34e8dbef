//! Registering, beating, suspending, and the fence between two registries: L01, L02, L18, L19, L25.

use std::sync::Arc;
use std::time::Duration;

use outlive::error::{Code, Error};
use outlive::filter::Filter;
use outlive::id::{RunId, SystemEntropy};
use outlive::lifecycle::health::Health;
use outlive::ownership::Stop;
use outlive::run::{End, State, StateName};
use outlive::store::Page;
use outlive::testing::spec;
use outlive::time::Timestamp;

use crate::world::{LEASE, SameIds, on_each, unseen};

#[test]
fn l01_a_registered_run_is_readable_at_once() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let seen = world.see(handle.id()).await;
        assert_eq!((seen.state, seen.health), (StateName::Running, Some(Health::Healthy)));
        let State::Running(running) = &seen.run.state else { panic!("{seen:?}") };
        assert_eq!(running.owner.heard.at, running.started_at);
        assert_eq!(running.owner.heard.silent_for, Duration::ZERO);

        let unknown = RunId::draw(Timestamp::from_micros(1), &SystemEntropy);
        for error in [
            owner.get(unknown).await.unwrap_err(),
            owner.cancel(unknown, None).await.unwrap_err(),
            owner.resume(unknown, outlive::ResumeOptions::default()).await.unwrap_err(),
            owner.find(&unknown.to_string()).await.unwrap_err(),
        ] {
            assert_eq!(error.code(), Code::NotFound, "{error}");
        }
    });
}

#[test]
fn l01_s_07_a_duplicate_id_is_a_typed_error() {
    on_each(async |world| {
        let twins = [1, 2].map(|own| world.process_drawing(world.store.clone(), unseen(1), SameIds::new(own)));
        let first = twins[0].start(spec("first")).await.unwrap();
        let error = twins[1].start(spec("second")).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains("already"), "{error}");
        assert_eq!(world.see(first.id()).await.run.spec.kind, "first");
    });
}

#[test]
fn l02_heartbeat_renews_only_runs_of_its_worker_and_epoch() {
    on_each(async |world| {
        let (one, other) = (world.process(), world.process());
        let (mine, theirs) = (one.start(spec("mine")).await.unwrap(), other.start(spec("theirs")).await.unwrap());
        world.clock.pass(LEASE / 2);
        one.tick().await.unwrap();
        let silence = async |id| world.record(id).await.run.owner().unwrap().heard.silent_for;
        assert_eq!(silence(mine.id()).await, Duration::ZERO);
        assert_eq!(silence(theirs.id()).await, LEASE / 2);

        world.clock.pass(LEASE);
        assert_eq!(world.reap().await.ended.len(), 1, "only the silent one");
        let reaped = world.record(theirs.id()).await;
        other.tick().await.unwrap();
        assert_eq!(theirs.stop_requested(), Some(Stop::Lost));
        assert_eq!(mine.stop_requested(), None);
        assert_eq!(world.record(theirs.id()).await, reaped);
    });
}

#[test]
fn l18_interrupt_ends_only_its_own_runs_and_names_the_signal() {
    on_each(async |world| {
        let (one, other) = (world.process(), world.process());
        let handles = [one.start(spec("a")).await.unwrap(), one.start(spec("b")).await.unwrap()];
        let spared = other.start(spec("c")).await.unwrap();
        for handle in handles {
            let id = handle.id();
            handle.interrupt(Some(15), "SIGTERM").await.unwrap();
            let run = world.see(id).await.run;
            let Some(End::Interrupted(interruption)) = run.ending().map(|ending| &ending.how) else {
                panic!("{run:?}")
            };
            assert_eq!(interruption.signal, Some(15));
        }
        assert_eq!(world.see(spared.id()).await.state, StateName::Running);
    });
}

#[test]
fn l19_a_run_suspended_for_a_year_is_neither_stale_nor_gone() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("approval")).await.unwrap();
        let id = handle.id();
        handle.suspend("waits for a signature").await.unwrap();
        world.clock.pass(Duration::from_secs(365 * 86_400));
        assert!(world.reap().await.ended.is_empty());
        let seen = world.see(id).await;
        assert_eq!((seen.state, seen.reason.as_deref()), (StateName::Suspended, Some("waits for a signature")));
        let (listed, _) = owner.list(&Filter::default(), &Page::default()).await.unwrap();
        assert_eq!(listed.iter().map(|seen| seen.run.id).collect::<Vec<_>>(), [id]);

        let waker = world.process_as(unseen(77));
        let woken = waker.wake(id).await.unwrap();
        let run = world.see(id).await.run;
        let new_owner = run.owner().unwrap();
        assert_eq!(Some(new_owner.worker), waker.worker());
        assert_eq!(new_owner.identity.pid, 77);
        assert_eq!(woken.fence().epoch.0, 2);
        assert!(owner.wake(id).await.is_err(), "a running run was woken again");
    });
}

#[test]
fn l25_the_same_id_in_two_registries_affects_only_one() {
    on_each(async |world| {
        let elsewhere: Arc<_> = world.ground.fresh().await;
        let here = world.process_drawing(world.store.clone(), unseen(1), SameIds::new(1));
        let there = world.process_drawing(elsewhere.clone(), unseen(1), SameIds::new(2));
        let (one, other) = (here.start(spec("here")).await.unwrap(), there.start(spec("there")).await.unwrap());
        let id = one.id();
        assert_eq!(other.id(), id);
        let before = elsewhere.get(&[id]).await.unwrap();
        here.cancel(id, Some("only here".into())).await.unwrap();
        here.tick().await.unwrap();
        one.cancelled().await.unwrap();
        here.archive(id).await.unwrap();
        assert_eq!(elsewhere.get(&[id]).await.unwrap(), before);
        there.tick().await.unwrap();
        assert_eq!(other.stop_requested(), None);
    });
}

#[test]
fn l25_an_ended_run_never_returns_to_running_by_a_claim() {
    on_each(async |world| {
        let owner = world.process();
        let waiting = owner.enqueue(spec("job")).await.unwrap();
        let claimed = owner.claim(Filter::default(), 5).await.unwrap();
        assert_eq!(claimed.iter().map(|handle| handle.id()).collect::<Vec<_>>(), [waiting.id]);
        for handle in claimed {
            handle.succeed().await.unwrap();
        }
        assert!(owner.claim(Filter::of([waiting.id]), 5).await.unwrap().is_empty());
        assert!(owner.wake(waiting.id).await.is_err());
        assert!(owner.resume(waiting.id, outlive::ResumeOptions { failed_too: true }).await.is_err());
        assert_eq!(world.see(waiting.id).await.state, StateName::Succeeded);
    });
}

/// A claim looks for what is left of the attempt before, while the store applies the rule.
#[test]
fn r07_a_later_attempt_is_claimed_as_the_first_was() {
    on_each(async |world| {
        let process = world.process();
        let mut retried = spec("job");
        retried.policy.retry.on_failure = true;
        let id = process.enqueue(retried).await.unwrap().id;
        for attempt in 1..=2 {
            world.clock.pass(Duration::from_secs(3_600));
            let [handle] = <[_; 1]>::try_from(process.claim(Filter::default(), 9).await.unwrap()).ok().unwrap();
            assert_eq!((handle.id(), handle.run().attempt), (id, attempt));
            handle.fail("exit", "code 1").await.unwrap();
        }
    });
}
