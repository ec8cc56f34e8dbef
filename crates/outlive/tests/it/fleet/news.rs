//! News: sooner than asking, and never relied on.

use std::sync::mpsc::channel;

use super::*;
use outlive::engine::worker::{Done, Failed, StopReason, Worker, WorkerTiming};
use outlive::ownership::Stop;

const NEVER: Duration = Duration::from_secs(100_000);

fn shared(url: &str) -> Registry {
    pollster::block_on(Registry::open(url)).unwrap()
}

/// Times at which nothing is found by asking.
fn deaf() -> WorkerTiming {
    WorkerTiming::new(NEVER, NEVER * 3, NEVER, NEVER).unwrap()
}

#[test]
fn work_and_cancels_arrive_before_the_next_poll() {
    let url = Server::shared().fresh_url();
    let other = shared(&url);
    let (begun, begins) = channel();
    let (stopped, stops) = channel();
    let worker = Worker::builder(shared(&url))
        .times(deaf())
        .handle_blocking("watched", move |job| {
            begun.send(job.id()).unwrap();
            stopped.send(job.wait_for_stop(PATIENCE)).unwrap();
            Ok::<_, Failed>(Done::Stopped)
        })
        .start()
        .unwrap();
    // Whatever was there before it listened it finds by itself.
    let made: Vec<RunId> = (0..3).map(|_| pollster::block_on(other.enqueue(spec("watched"))).unwrap().id).collect();
    for _ in 0..3 {
        let id = begins.recv_timeout(PATIENCE).unwrap();
        assert!(made.contains(&id));
        pollster::block_on(other.cancel(id, None)).unwrap();
        let told = stops.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(told, Some(StopReason::Run(Stop::Cancelled(_)))), "{told:?}");
        worker.waker().wake();
    }
    worker.wait_until(|tally| tally.stopped == 3);
    worker.stop();
}

#[test]
fn notifications_bring_cancels_and_work_before_the_next_poll() {
    let url = Server::shared().fresh_url();
    let (owner, other) = (shared(&url), shared(&url));
    let waiting = shared(&url);
    let bell = waiting.bell().unwrap();
    let is_rung = |limit: i64| {
        let limit = rustix::event::Timespec { tv_sec: limit, tv_nsec: 0 };
        let mut fds = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0
    };
    // It rings once when it begins to listen: what came before is found by asking.
    assert!(is_rung(PATIENCE.as_secs().cast_signed()));
    bell.forget();
    pollster::block_on(other.enqueue(spec("rings"))).unwrap();
    assert!(is_rung(PATIENCE.as_secs().cast_signed()));
    let mut spec = spec("watched");
    spec.policy.lease = outlive::policy::Lease::new(NEVER, NEVER * 3).unwrap();
    let handle = pollster::block_on(owner.start(spec)).unwrap();
    let (told, stops) = channel();
    handle.on_stop(move |stop| drop(told.send(stop.clone())));
    owner.subscribe_requests();
    // Nobody knows when it has begun to listen, so it is asked again and again.
    let asked = std::iter::repeat_with(|| {
        pollster::block_on(other.cancel(handle.id(), None)).unwrap();
        stops.recv_timeout(Duration::from_millis(100)).ok()
    });
    let told = asked.take(600).flatten().next();
    assert!(matches!(told, Some(Stop::Cancelled(_))), "{told:?}");
}

#[test]
fn f_62_work_is_found_by_polling_where_a_pooler_drops_notify() {
    let direct = Server::shared().fresh_url();
    let pooler = Pooler::start(Server::shared().port(), 4);
    let other = shared(&direct);
    let times = WorkerTiming::new(
        Duration::from_secs(1),
        Duration::from_secs(4),
        Duration::from_secs(1),
        Duration::from_millis(50),
    );
    let worker = Worker::builder(shared(&pooler.url(&direct)))
        .times(times.unwrap())
        .handle_blocking("found", |_| Ok::<_, Failed>(()))
        .start()
        .unwrap();
    for done in 1..=3 {
        pollster::block_on(other.enqueue(spec("found"))).unwrap();
        worker.wait_until(|tally| tally.succeeded == done);
    }
    worker.stop();
}
