//! Holders that panic when they are told to stop: F-27.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outlive::ownership::handle::RunHandle;
use outlive::registry::Registry;
use outlive::testing::spec;
use outlive::time::{Clock, SystemClock};

use crate::world::{on_each, with_lease};

/// Says that this is the process in which the callback is to panic.
const INSIDE: &str = "OUTLIVE_TEST_PANICS";

/// Panics when the first of the runs is told to stop. Answers with how many have been.
fn panic_at_first(handles: &[RunHandle]) -> Arc<AtomicUsize> {
    let told: Arc<AtomicUsize> = Arc::default();
    for handle in handles {
        let told = told.clone();
        handle.on_stop(move |_| assert!(told.fetch_add(1, Ordering::SeqCst) > 0, "the holder has a defect"));
    }
    told
}

#[test]
fn f_27_a_callback_that_panics_keeps_no_other_run_from_its_own() {
    on_each(async |world| {
        let (owner, other) = (world.process(), world.process());
        let handles = [owner.start(spec("a")).await.unwrap(), owner.start(spec("b")).await.unwrap()];
        owner.tick().await.unwrap();
        let told = panic_at_first(&handles);
        for handle in &handles {
            other.cancel(handle.id(), None).await.unwrap();
        }
        owner.tick().await.expect("a panic of a callback failed the beat");
        assert!(handles.iter().all(|handle| handle.stop_requested().is_some()));
        let deadline = SystemClock.awake() + Duration::from_secs(60);
        while told.load(Ordering::SeqCst) < 2 {
            assert!(SystemClock.awake() < deadline, "the other callback was never called");
            std::thread::yield_now();
        }
    });
}

#[test]
fn f_27_a_panic_in_one_beat_does_not_end_the_beats() {
    let home = tempfile::tempdir().unwrap();
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", "lifecycle::panics::f_27_a_panic_in_one_beat_does_not_end_the_beats", "--nocapture"]);
        let done = inside.env(INSIDE, "1").env("OUTLIVE_HOME", home.path()).output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "{said}");
        assert!(said.contains("thread 'outlive-on-stop'") && said.contains("the holder has a defect"), "{said}");
        return;
    }
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let open = || pollster::block_on(Registry::open(&url)).unwrap();
    let (registry, other) = (open(), open());
    let start = |kind: &str| {
        let short = with_lease(spec(kind), Duration::from_millis(60), Duration::from_secs(30));
        pollster::block_on(registry.start(short)).unwrap()
    };
    let handles = [start("defective"), start("sound")];
    let told = panic_at_first(&handles[..1]);
    pollster::block_on(other.cancel(handles[0].id(), None)).unwrap();
    let clock = outlive::time::SystemClock;
    let watch = other.local().unwrap().watch(&[outlive::store::sqlite::Topic::Changes]).unwrap();
    let deadline = clock.awake() + Duration::from_secs(60);
    let until = |what: &str, so: &dyn Fn() -> bool| {
        while !so() {
            assert!(clock.awake() < deadline, "waited in vain for {what}");
            // A beat notifies nobody.
            watch.wait(Duration::from_millis(10));
        }
    };
    until("the panic", &|| told.load(Ordering::SeqCst) == 1);
    let beats = || {
        let run = pollster::block_on(other.get(handles[1].id())).unwrap().run;
        run.owner().map_or(0, |owner| owner.heard.beat)
    };
    let before = beats();
    until("more beats", &|| beats() >= before + 3);
    pollster::block_on(other.cancel(handles[1].id(), None)).unwrap();
    until("the other to be told", &|| handles[1].stop_requested().is_some());
}
