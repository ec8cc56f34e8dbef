//! Limits of single runs: L16 and L17.

use std::time::Duration;

use outlive::lifecycle::health::Health;
use outlive::ownership::Stop;
use outlive::policy::Lease;
use outlive::run::{End, Key, Progress, Spec, StateName};
use outlive::testing::spec;

use crate::world::{LEASE, on_each, with_lease};

#[test]
fn l16_impossible_settings_are_refused_with_the_numbers() {
    let refused = Lease::new(Duration::from_secs(6), Duration::from_secs(15)).unwrap_err().to_string();
    assert!(refused.contains("6.0s") && refused.contains("15s"), "{refused}");
    on_each(async |world| {
        let mut absurd = spec("job");
        absurd.policy.limits.timeout = Some(Duration::MAX);
        let error = world.process().start(absurd).await.unwrap_err().to_string();
        assert!(error.contains("timeout") && error.contains("ten years"), "{error}");
        let mut never = spec("job");
        never.policy.retry.max_attempts = 0;
        assert!(world.process().enqueue(never).await.is_err());
    });
}

#[test]
fn who_waits_for_a_rate_can_tell_when_it_lets_another_start() {
    let minute = Duration::from_secs(60);
    let rated = || Spec { keys: vec![Key::rate("api", 1, minute)], ..spec("job") };
    on_each(async |world| {
        let registry = world.process();
        let waiting = registry.enqueue(rated()).await.unwrap();
        assert_eq!(registry.rates_used_up(&[&waiting]).await.unwrap(), []);
        let first = registry.start(rated()).await.unwrap();
        let used_up = registry.rates_used_up(&[&waiting]).await.unwrap();
        let [(_, free_at)] = &used_up[..] else { panic!("{used_up:?}") };
        let left = free_at.since(first.run().created_at);
        assert!(left <= minute && left > minute - Duration::from_secs(1), "{left:?}");
        world.clock.pass(minute);
        assert_eq!(registry.rates_used_up(&[&waiting]).await.unwrap(), []);
    });
}

#[test]
fn l17_each_run_has_its_own_lease() {
    on_each(async |world| {
        let owner = world.process();
        let short = owner.start(with_lease(spec("probe"), LEASE / 15, LEASE / 5)).await.unwrap();
        let long = owner.start(with_lease(spec("train"), LEASE, LEASE * 10)).await.unwrap();
        world.clock.pass(LEASE);
        let ended: Vec<_> = world.reap().await.ended.iter().map(|run| run.id).collect();
        assert_eq!(ended, [short.id()]);
        assert_eq!(world.see(long.id()).await.state, StateName::Running);
    });
}

#[test]
fn l17_a_hung_run_with_fresh_beats_is_stalled() {
    on_each(async |world| {
        let owner = world.process();
        let mut slow = spec("slow");
        slow.policy.limits.stall_after = Some(LEASE * 3);
        let handle = owner.start(slow).await.unwrap();
        for _ in 0..4 {
            world.clock.pass(LEASE);
            owner.tick().await.unwrap();
        }
        assert_eq!(world.see(handle.id()).await.health, Some(Health::Stalled));
        assert!(world.reap().await.ended.is_empty(), "a stalled run is not an orphan");
        handle.progress(Progress { done: Some(1), ..Progress::default() }).await.unwrap();
        assert_eq!(world.see(handle.id()).await.health, Some(Health::Healthy));
    });
}

#[test]
fn l17_a_run_past_its_timeout_is_ended_with_that_reason() {
    on_each(async |world| {
        let owner = world.process();
        let limited = || {
            let mut limited = spec("limited");
            limited.policy.limits.timeout = Some(LEASE * 3);
            limited
        };
        let (unwatched, watched) = (owner.start(limited()).await.unwrap(), owner.start(limited()).await.unwrap());
        let (send, told) = std::sync::mpsc::channel();
        watched.on_stop(move |stop| send.send(stop.clone()).unwrap());
        for _ in 0..3 {
            world.clock.pass(LEASE);
            owner.tick().await.unwrap();
        }
        assert!(told.try_recv().is_err(), "exactly at its timeout it may still run");
        world.clock.pass(Duration::from_secs(1));
        assert_eq!(world.see(unwatched.id()).await.health, Some(Health::Overdue));
        owner.tick().await.unwrap();
        let run = world.see(unwatched.id()).await.run;
        let Some(End::Failed(failure)) = run.ending().map(|ending| &ending.how) else { panic!("{run:?}") };
        assert_eq!(failure.error_type, "timeout");
        assert_eq!(unwatched.stop_requested(), Some(Stop::TimedOut));
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Stop::TimedOut));
        assert_eq!(world.see(watched.id()).await.state, StateName::Running, "whoever watches ends it first");
        watched.fail("timeout", "stopped in time").await.unwrap();
    });
}

#[test]
fn t5_progress_is_written_once_a_second_and_never_lost() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        let done = async || world.see(id).await.run.progress.and_then(|progress| progress.done);
        let reports = async || {
            let events = world.store.events(id).await.unwrap();
            events.iter().filter(|event| event.action == *"report").count()
        };
        let report = async |done| {
            handle.progress(Progress { done: Some(done), ..Progress::default() }).await.unwrap();
        };
        for number in 1..=10 {
            report(number).await;
        }
        assert_eq!((done().await, reports().await), (Some(1), 1), "the first report is written at once");
        owner.tick().await.unwrap();
        assert_eq!((done().await, reports().await), (Some(10), 2), "the last one with the next beat");
        report(11).await;
        world.clock.pass(Duration::from_secs(1));
        report(12).await;
        assert_eq!((done().await, reports().await), (Some(12), 3), "a second later it is written at once");
        report(13).await;
        handle.set_checkpoint(7.into()).await.unwrap();
        assert_eq!((done().await, reports().await), (Some(13), 4), "a checkpoint carries what waits");
        report(14).await;
        handle.succeed().await.unwrap();
        assert_eq!((done().await, reports().await), (Some(14), 5), "and so does the end");
    });
}
