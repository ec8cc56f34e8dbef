//! Runs whose records were deleted, and workers that do not know it yet: T8-04 and T5-B2.

use std::sync::Arc;
use std::time::Duration;

use outlive::engine::sweeper::SweepPolicy;
use outlive::filter::Filter;
use outlive::id::{Stamp, SystemEntropy};
use outlive::ownership::Stop;
use outlive::policy::Lease;
use outlive::store::{Beat, Expect, Page, Store, Write};
use outlive::testing::bucket::Bucket;

use super::yard::{HOUR, Yard};
use crate::world::unseen;

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn t8_04_deleted_run_stays_deleted_when_its_paused_worker_beats() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (owner, store) = yard.process_at(Bucket::shared().port(), PATIENCE).await;
        let handle = owner.start(yard.spec()).await.unwrap();
        let (id, key) = (handle.id(), store.place_of_record(handle.id()));
        // While its worker is paused, the run is reaped, and its record deleted long after.
        yard.clock.pass(HOUR);
        assert_eq!(yard.reap().await, 1);
        yard.clock.pass(HOUR * 24);
        let spare = SweepPolicy { grace: Duration::ZERO, forget_after: Some(HOUR), ..SweepPolicy::default() };
        assert_eq!(yard.sweep(&spare, false).await.forgotten, [id]);
        // Its process lists runs first, so that its cache evicts the record.
        assert!(store.list(&Filter::default(), &Page::default()).await.unwrap().records.is_empty());
        owner.tick().await.unwrap();
        assert_eq!(handle.stop_requested(), Some(Stop::Lost));
        let refused = handle.set_checkpoint(1.into()).await.unwrap_err();
        assert!(yard.store.raw_get(&key).await.unwrap().is_none(), "it came back: {refused}");
        std::mem::forget(handle);
    });
}

#[test]
fn t5_b2_deleted_run_is_lost_by_a_process_that_never_read_it() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let (id, key) = (handle.id(), yard.store.place_of_record(handle.id()));
        yard.store.raw_delete(std::slice::from_ref(&key)).await.unwrap();
        // A server that lends the registry was restarted: it passes on the beats of a worker elsewhere.
        let (_, restarted) = yard.process_at(Bucket::shared().port(), PATIENCE).await;
        let beat = Beat {
            worker: handle.fence().worker,
            identity: unseen(1),
            lease: Lease::default(),
            held: [(id, handle.fence().epoch)].into(),
            attention: None,
            leaving: false,
            offer: Arc::default(),
        };
        let reply = restarted.beat(&beat).await.unwrap();
        assert_eq!((reply.lost, reply.unknown), (vec![id], vec![]));
        let stamp = Stamp::draw(&SystemEntropy);
        let again = Write { expect: Expect::Absent, run: handle.run(), events: Vec::new(), ended: None, stamp };
        let refused = restarted.commit(vec![again]).await.unwrap_err().to_string();
        assert!(refused.contains("was deleted"), "{refused}");
        assert!(yard.store.raw_get(&key).await.unwrap().is_none());
        std::mem::forget(handle);
    });
}

#[test]
fn t5_b2_run_is_registered_again_after_its_registry_is_deleted() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let handle = yard.start().await;
        let all = yard.store.raw_list(&yard.prefix).await.unwrap();
        assert!(all.iter().any(|key| key.ends_with("registry.yaml")), "{all:?}");
        yard.store.raw_delete(&all).await.unwrap();
        yard.registry.tick().await.unwrap();
        assert_eq!(handle.stop_requested(), None, "losing the registry does not stop the work");
        let key = yard.store.place_of_record(handle.id());
        assert!(yard.store.raw_get(&key).await.unwrap().is_some());
        handle.succeed().await.unwrap();
    });
}
