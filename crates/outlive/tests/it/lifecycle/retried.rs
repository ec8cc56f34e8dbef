//! What a run with retries survives, and the end that a wait for it answers with: T9-10, T9-11.

use std::time::Duration;

use outlive::testing::spec;
use outlive::{Failed, Filter, Job, Policy, Registry, StateName, Worker};

use crate::world::{LEASE, World, unseen};

#[test]
fn t9_10_retried_run_survives_a_shutdown_and_a_dead_worker() {
    let world = World::memory();
    pollster::block_on(async {
        let mut spec = spec("ship");
        spec.policy = spec.policy.with_retries(3);
        let id = world.process().enqueue(spec).await.unwrap().id;

        let first = world.process_on(world.store.clone(), unseen(1));
        let interrupted = first.claim(Filter::default(), 1).await.unwrap().remove(0);
        interrupted.interrupt(None, "its worker was asked to end").await.unwrap();
        assert_eq!(world.see(id).await.state, StateName::Pending);

        let second = world.process_on(world.store.clone(), unseen(2));
        let killed = second.claim(Filter::default(), 1).await.unwrap().remove(0);
        world.clock.pass(LEASE * 2);
        world.reap().await;

        let third = world.process_on(world.store.clone(), unseen(3));
        let last = third.claim(Filter::default(), 1).await.unwrap().remove(0);
        assert_eq!((last.id(), last.run().attempt, last.run().failures), (id, 3, 0));
        assert!(last.fence().epoch > killed.fence().epoch && killed.fence().epoch > interrupted.fence().epoch);
        last.succeed().await.unwrap();
        killed.succeed().await.expect_err("the dead worker ended a run that another had ended");
    });
}

#[tokio::test]
async fn t9_11_wait_ends_with_the_last_attempt() {
    let millisecond = Duration::from_millis(1);
    let policy = Policy::default().with_retries(2).with_backoff(millisecond, millisecond);
    let registry = Registry::open("memory:").await.unwrap().with_policy("mail", policy);
    let run = registry.enqueue(registry.spec("mail")).await.unwrap();
    let send = |job: Job<()>| async move {
        if job.run().attempt == 1 { Err(Failed::new("network", "no answer")) } else { Ok("sent") }
    };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async { stopped.await.unwrap_or_default() };
    let working = tokio::spawn(Worker::builder(&registry).handle("mail", send).run_until(shutdown));

    let seen = registry.wait(run.id).await.unwrap();
    assert_eq!((seen.state, seen.run.attempt, seen.run.failures), (StateName::Succeeded, 2, 1));
    assert_eq!(seen.run.result.as_deref(), Some(&"sent".into()));
    stop.send(()).unwrap();
    assert_eq!(working.await.unwrap().unwrap().failed, 1);
}
