//! Stores that are away: L11 and L12.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use outlive::lifecycle::{Outcome, OwnerEnd};
use outlive::ownership::handle::Persisted;
use outlive::ownership::reaper::Reaper;
use outlive::run::{DOCUMENT_LIMIT, StateName};
use outlive::store::Error;
use outlive::testing::spec;
use outlive::time::{Clock, SystemClock};
use outlive::{Failed, Worker};

use crate::world::{LEASE, Watched, on_each, unseen};

fn away() -> Error {
    Error::Unavailable("the store is away".into())
}

#[test]
fn l11_an_outage_that_the_store_knows_of_reaps_no_run() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        world.ground.deafen(LEASE * 2).await;
        let reaped = world.reap().await;
        assert_eq!((reaped.ended.len(), reaped.live), (0, 1));
        owner.tick().await.unwrap();
        handle.set_checkpoint(1.into()).await.unwrap();
        world.clock.pass(LEASE);
        assert!(world.reap().await.ended.is_empty());
        handle.succeed().await.unwrap();
    });
}

#[test]
fn l11_a_reaper_that_was_blind_gives_everybody_a_full_lease() {
    on_each(async |world| {
        let gone = Arc::new(AtomicBool::new(false));
        let is_gone = gone.clone();
        let hook = move |_| if is_gone.load(Ordering::SeqCst) { Err(away()) } else { Ok(()) };
        let shared = Watched::new(world.store.clone(), hook);
        let owner = world.process_on(shared.clone(), unseen(1));
        let (reading, mut reaper) = (world.process_on(shared.clone(), unseen(2)), Reaper::new(None));
        let dying = world.process_on(shared.clone(), unseen(3));
        let (handle, orphan) = (owner.start(spec("job")).await.unwrap(), dying.start(spec("orphan")).await.unwrap());
        assert_eq!(reaper.pass(&reading).await.unwrap().live, 2);

        gone.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            world.clock.pass(LEASE);
            assert!(owner.tick().await.is_err());
            assert!(reaper.pass(&reading).await.is_err());
        }
        assert_eq!(handle.stop_requested(), None, "losing the store does not stop the work");
        gone.store(false, Ordering::SeqCst);
        let reaped = reaper.pass(&reading).await.unwrap();
        assert_eq!((reaped.ended.len(), reaped.unjudged.len()), (0, 2), "{reaped:?}");
        owner.tick().await.unwrap();
        world.clock.pass(LEASE);
        owner.tick().await.unwrap();
        assert!(reaper.pass(&reading).await.unwrap().ended.is_empty(), "a full lease is not over at its end");
        world.clock.pass(Duration::from_micros(1));
        let reaped = reaper.pass(&reading).await.unwrap();
        assert_eq!(reaped.ended.iter().map(|run| run.id).collect::<Vec<_>>(), [orphan.id()]);
        handle.succeed().await.unwrap();
    });
}

/// The last writes of runs fail `failures` times, and then no more.
fn failing(world: &crate::world::World, failures: usize, error: fn() -> Error) -> (Arc<Watched>, Arc<AtomicUsize>) {
    let left = Arc::new(AtomicUsize::new(0));
    let counted = left.clone();
    let store = Watched::new(world.store.clone(), move |call| {
        let fails = call == "commit"
            && counted.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        if fails { Err(error()) } else { Ok(()) }
    });
    left.store(failures, Ordering::SeqCst);
    (store, left)
}

#[test]
fn l12_a_final_write_that_fails_five_times_is_recorded_once() {
    let no_answer: fn() -> Error = || Error::Unknown("no answer".into());
    on_each(async |world| {
        for error in [away, no_answer] {
            let (store, left) = failing(&world, 0, error);
            let home = tempfile::tempdir().unwrap();
            let owner = world.process_on(store, unseen(1)).spooling_to(home.path());
            let handle = owner.start(spec("job")).await.unwrap();
            let id = handle.id();
            handle.set_checkpoint(42.into()).await.unwrap();
            left.store(5, Ordering::SeqCst);
            assert_eq!(handle.succeed().await.unwrap(), Persisted::Spooled);
            assert_eq!(owner.get(id).await.unwrap().state, StateName::Succeeded, "a spooled end is seen");
            for _ in 0..8 {
                // A beat that cannot deliver says so; the next one tries again.
                let _ = owner.tick().await;
            }
            assert_eq!(left.load(Ordering::SeqCst), 0, "the write was not tried often enough");
            let run = world.see(id).await.run;
            assert_eq!((run.state.name(), run.checkpoint), (StateName::Succeeded, Some(42.into())));
            let finishes = world.actions(id).await.iter().filter(|action| *action == "finish").count();
            assert_eq!(finishes, 1);
            assert_eq!(owner.deliver_spooled().await.unwrap().recorded, 0, "the spool still holds what was delivered");
        }
    });
}

#[test]
fn l12_an_end_that_is_not_answered_in_time_is_spooled() {
    on_each(async |world| {
        let store = Watched::new(world.store.clone(), |_| Ok(()));
        let home = tempfile::tempdir().unwrap();
        let owner = world.process_on(store.clone(), unseen(1)).spooling_to(home.path());
        let handle = owner.start(spec("job")).await.unwrap();
        let (id, limit) = (handle.id(), Duration::from_millis(50));
        store.hangs.store(true, Ordering::SeqCst);
        let end = OwnerEnd::Finished(Outcome::SUCCEEDED);
        assert_eq!(handle.end_within(limit, None, end, None).unwrap(), Persisted::Spooled);
        drop(handle);
        // It would be delivered before it is closed, for which it waits no longer either.
        owner.close_within(limit);
        assert_ne!(world.see(id).await.state, StateName::Succeeded, "it was delivered to a store that does not answer");
        let next = world.process().spooling_to(home.path());
        assert_eq!(next.deliver_spooled().await.unwrap().recorded, 1);
        assert_eq!(world.see(id).await.state, StateName::Succeeded);
    });
}

#[test]
fn l12_outcome_spooled_by_a_dead_process_is_delivered() {
    on_each(async |world| {
        let (store, left) = failing(&world, 0, away);
        let home = tempfile::tempdir().unwrap();
        let owner = world.process_on(store, unseen(1)).spooling_to(home.path());
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        left.store(5, Ordering::SeqCst);
        assert_eq!(handle.fail("exit", "code 3").await.unwrap(), Persisted::Spooled);
        drop(owner);
        let next = world.process().spooling_to(home.path());
        assert_eq!(next.deliver_spooled().await.unwrap().recorded, 1);
        assert_eq!(world.see(id).await.state, StateName::Failed);
        assert_eq!(next.deliver_spooled().await.unwrap().recorded, 0);
    });
}

#[test]
fn l12_spooled_end_is_delivered_by_the_next_worker() {
    on_each(async |world| {
        let (store, left) = failing(&world, 0, away);
        let home = tempfile::tempdir().unwrap();
        let owner = world.process_on(store, unseen(1)).spooling_to(home.path());
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        left.store(5, Ordering::SeqCst);
        let unwritable = handle.succeed_with(&std::collections::BTreeMap::from([(vec![1], 1)])).await.unwrap_err();
        assert!(unwritable.to_string().contains("cannot be written as JSON"), "{unwritable}");
        let long = handle.succeed_with(&"x".repeat(DOCUMENT_LIMIT)).await.unwrap_err();
        assert!(long.to_string().contains("result"), "{long}");
        assert_eq!(handle.succeed_with(&["a.csv"]).await.unwrap(), Persisted::Spooled);
        drop(owner);
        let worker = Worker::builder(world.process().spooling_to(home.path()))
            .handle_blocking("other", |_| Ok::<_, Failed>(()))
            .start()
            .unwrap();
        let until = SystemClock.awake() + Duration::from_secs(60);
        while world.see(id).await.state != StateName::Succeeded {
            assert!(SystemClock.awake() < until, "no worker delivered it");
            std::thread::yield_now();
        }
        worker.stop();
        assert_eq!(world.see(id).await.run.result.as_deref(), Some(&serde_json::json!(["a.csv"])));
    });
}
