//! Callbacks that take their time while their run beats: T5 `on_stop`.

use std::sync::mpsc;
use std::time::Duration;

use outlive::ownership::Stop;
use outlive::registry::Registry;
use outlive::testing::spec;
use outlive::time::{Clock, SystemClock};

use crate::world::with_lease;

#[test]
fn t5_on_stop_beats_continue_while_a_callback_blocks() {
    let place = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", place.path().join("registry").display());
    let open = || pollster::block_on(Registry::open(&url)).unwrap();
    let (registry, other) = (open(), open());
    let short = with_lease(spec("blocks"), Duration::from_millis(60), Duration::from_secs(30));
    let handle = pollster::block_on(registry.start(short)).unwrap();
    let (entered, has_entered) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    handle.on_stop(move |stop| {
        entered.send(stop.clone()).unwrap();
        let _ = released.recv();
    });
    pollster::block_on(other.cancel(handle.id(), None)).unwrap();
    let stop = has_entered.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(matches!(stop, Stop::Cancelled(_)), "{stop:?}");

    // The callback is at it. The handle answers, and its worker beats.
    assert_eq!(handle.stop_requested(), Some(stop));
    let beats = || {
        let run = pollster::block_on(other.get(handle.id())).unwrap().run;
        run.owner().map_or(0, |owner| owner.heard.beat)
    };
    let (before, deadline) = (beats(), SystemClock.awake() + Duration::from_secs(60));
    let watch = other.local().unwrap().watch(&[outlive::store::sqlite::Topic::Changes]).unwrap();
    while beats() < before + 3 {
        assert!(SystemClock.awake() < deadline, "no beat while the callback runs");
        watch.wait(Duration::from_millis(10));
    }
    assert!(has_entered.try_recv().is_err(), "it was called twice for one reason");
    drop(release);
    pollster::block_on(handle.cancelled()).unwrap();
}
