//! Records that are deleted: only when nothing is left of their runs, long after, and so that nobody brings them back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, sweep};
use outlive::id::RunId;
use outlive::run::{After, Release};
use outlive::testing::bucket::Bucket;
use outlive::testing::proxy::{Fate, Proxy};
use outlive::testing::spec;

use super::faults::is_change;
use super::yard::{HOUR, Yard};

fn after(forget_after: Duration) -> SweepPolicy {
    let forget_after = Some(forget_after);
    SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, forget_after, ..SweepPolicy::default() }
}

#[test]
fn records_without_objects_or_references_are_deleted() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let (bare, full, named, interrupted) =
            (yard.start().await, yard.start().await, yard.start().await, yard.start().await);
        let ids = [bare.id(), full.id(), named.id(), interrupted.id()];
        yard.shard(&full.id().to_string(), 0, 0).await;
        let mut waiting = spec("waits");
        waiting.after = vec![After { run: named.id(), release: Release::End }];
        waiting.not_before = Some(outlive::time::Clock::now(&*yard.clock).after(HOUR * 1_000));
        let waits = yard.registry.enqueue(waiting).await.unwrap();
        bare.fail("exit", "1").await.unwrap();
        full.fail("exit", "1").await.unwrap();
        named.fail("exit", "1").await.unwrap();
        interrupted.interrupt(Some(15), "SIGTERM").await.unwrap();
        assert!(yard.sweep(&after(Duration::ZERO), false).await.forgotten.is_empty(), "they ended just now");
        yard.shard(&ids[1].to_string(), 0, 1).await;
        yard.clock.pass(HOUR * 24);
        assert!(yard.sweep(&after(HOUR * 25), false).await.forgotten.is_empty(), "they are to be kept for longer");
        yard.shard(&ids[1].to_string(), 0, 2).await;
        let kept = SweepPolicy { keep_last: 4, ..after(HOUR) };
        assert!(yard.sweep(&kept, false).await.forgotten.is_empty(), "all of them are among the last");
        let dry = yard.sweep(&after(HOUR), true).await;
        let done = yard.sweep(&after(HOUR), false).await;
        assert_eq!((dry.forgotten, done.forgotten), (vec![ids[0]], vec![ids[0]]), "{:?}", done.swept);
        for (index, id) in ids.into_iter().enumerate() {
            assert_eq!(yard.process().await.get(id).await.is_ok(), index > 0, "{index}");
        }
        let left = yard.store.raw_list(&format!("{}/runs", yard.prefix)).await.unwrap();
        assert!(!left.iter().any(|key| key.contains(&ids[0].to_string())), "{left:?}");
        // The objects of the second went with the sweep before: now nothing is left of it.
        assert_eq!(yard.sweep(&after(HOUR), false).await.forgotten, [ids[1]]);
        assert!(yard.registry.get(waits.id).await.is_ok());
    });
}

/// A run that failed two hours ago.
async fn failed_long_ago(yard: &Yard) -> RunId {
    let handle = yard.start().await;
    let id = handle.id();
    handle.fail("exit", "1").await.unwrap();
    yard.clock.pass(HOUR * 2);
    id
}

#[test]
fn a_record_that_changes_meanwhile_stays() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let id = failed_long_ago(&yard).await;
        // Somebody allows it to be retried right before it is closed.
        let (once, registry) = (Arc::new(AtomicBool::new(false)), Arc::new(yard.process().await));
        let resumes = registry.clone();
        let proxy = Proxy::new(Bucket::shared().port(), move |request| {
            if is_change(request) && !once.swap(true, Ordering::SeqCst) {
                std::mem::forget(
                    pollster::block_on(resumes.resume(id, outlive::ResumeOptions { failed_too: true })).unwrap(),
                );
            }
            Fate::Pass
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(10)).await;
        let report = sweep(&sweeping, &after(HOUR)).await.unwrap();
        assert!(report.forgotten.is_empty(), "{report:?}");
        assert_eq!(yard.process().await.get(id).await.unwrap().state, outlive::run::StateName::Running);
    });
}

#[test]
fn a_killed_deletion_leaves_a_tombstone_that_others_complete() {
    pollster::block_on(async {
        let yard = Yard::new().await;
        let id = failed_long_ago(&yard).await;
        let proxy = Proxy::new(Bucket::shared().port(), |request| {
            if request.target.contains("delete") { Fate::Answer(403, "AccessDenied") } else { Fate::Pass }
        });
        let (sweeping, _) = yard.process_at(proxy.port(), Duration::from_secs(2)).await;
        let denied = sweep(&sweeping, &after(HOUR)).await.unwrap_err();
        assert!(denied.to_string().contains("not permitted"), "{denied}");
        assert!(yard.process().await.resume(id, outlive::ResumeOptions { failed_too: true }).await.is_err());
        assert!(yard.registry.archive(id).await.is_err());
        let again = yard.sweep(&after(HOUR), false).await;
        assert!(again.problems.is_empty() && again.forgotten.is_empty(), "{again:?}");
        let key = yard.store.place_of_record(id);
        assert!(yard.store.raw_get(&key).await.unwrap().is_some());
        yard.clock.pass(HOUR * 48);
        yard.sweep(&after(HOUR), false).await;
        assert!(yard.store.raw_get(&key).await.unwrap().is_none());
    });
}
