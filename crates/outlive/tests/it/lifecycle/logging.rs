//! Events that an operator asks about: T5-B5.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::run::StateName;
use outlive::store::Error;
use outlive::testing::spec;
use outlive::time::{Clock, SystemClock};
use outlive::{Failed, Policy, Spec, Worker, WorkerTiming};

use crate::world::{LEASE, Watched, World, unseen};

/// What is logged on this thread while the guard lives.
#[derive(Clone, Default)]
pub(crate) struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logged {
    pub(crate) fn start() -> (Self, impl Sized) {
        use tracing_subscriber::util::SubscriberInitExt;
        let logged = Self::default();
        let written = logged.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).without_time().with_writer(move || written.clone());
        (logged, lines.finish().set_default())
    }

    /// What is logged on every thread of this process, from now on.
    pub(crate) fn of_all_threads() -> Self {
        let logged = Self::default();
        let written = logged.clone();
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false).without_time();
        let lines = lines.with_writer(move || written.clone());
        lines.init();
        logged
    }

    /// The lines of an event, with its message and fields.
    pub(crate) fn of(&self, event: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(event)).map(str::to_owned).collect()
    }
}

#[test]
fn claims_retries_late_heartbeats_and_maintenance_are_logged() {
    let (logged, world) = (Logged::of_all_threads(), World::memory());
    pollster::block_on(async {
        let clock = world.clock.clone();
        let hook = move |call| {
            if call == "beat" {
                clock.pass(LEASE);
            }
            Ok(())
        };
        let maker = world.process_on(Watched::new(world.store.clone(), hook), unseen(1));
        maker.tick().await.unwrap();
        let late = logged.of("heartbeat late");
        assert!(late.len() == 1 && late[0].contains("WARN") && late[0].contains("late_ms=12000"), "{late:?}");

        let policy = Policy::default().with_retries(3);
        let run = world.process().enqueue(Spec { policy, ..spec("job") }).await.unwrap();
        let look = Duration::from_millis(20);
        let worker = Worker::builder(world.process())
            .times(WorkerTiming::new(LEASE / 3, LEASE, look, look).unwrap())
            .handle_blocking("job", |_| Err::<(), _>(Failed::new("network", "no answer")))
            .start()
            .unwrap();
        worker.wait_until(|tally| tally.failed == 1);
        let until = SystemClock.awake() + Duration::from_secs(60);
        while logged.of("registry maintained").is_empty() {
            assert!(SystemClock.awake() < until, "no maintenance was logged");
            std::thread::yield_now();
        }
        worker.stop();
        let (claimed, retried) = (logged.of("run claimed"), logged.of("run is retried"));
        let of_run = |lines: &[String], level: &str| {
            lines.len() == 1 && lines[0].contains(level) && lines[0].contains(&run.id.to_string())
        };
        assert!(
            of_run(&claimed, "DEBUG") && of_run(&retried, "INFO") && retried[0].contains("due="),
            "{claimed:?} {retried:?}"
        );
    });
}

#[test]
fn t9_12_claim_that_ends_during_a_heartbeat_is_not_lost() {
    let world = World::memory();
    let (logged, _guard) = Logged::start();
    pollster::block_on(async {
        let ending: Arc<Mutex<Option<RunHandle>>> = Arc::default();
        let during_beat = ending.clone();
        let hook = move |call| {
            let run = (call == "beat").then(|| during_beat.lock().unwrap().take()).flatten();
            if let Some(run) = run {
                pollster::block_on(run.succeed()).unwrap();
            }
            Ok(())
        };
        let owner = world.process_on(Watched::new(world.store.clone(), hook), unseen(1));
        *ending.lock().unwrap() = Some(owner.start(spec("short")).await.unwrap());
        owner.tick().await.unwrap();
        assert!(ending.lock().unwrap().is_none(), "the run has not ended during the beat");
        assert!(logged.of("").is_empty(), "{:?}", logged.of(""));
    });
}

#[test]
fn t5_b5_outages_spooled_outcomes_and_reaps_are_logged() {
    let world = World::memory();
    let (logged, _guard) = Logged::start();
    pollster::block_on(async {
        let away = Arc::new(AtomicBool::new(false));
        let is_away = away.clone();
        let hook = move |_| match is_away.load(Ordering::SeqCst) {
            true => Err(Error::Unavailable("the store is away".into())),
            false => Ok(()),
        };
        let owner = world.process_on(Watched::new(world.store.clone(), hook), unseen(1));
        let (kept, ends) = (owner.start(spec("kept")).await.unwrap(), owner.start(spec("ends")).await.unwrap());
        let (kept_id, ends_id) = (kept.id(), ends.id());
        assert!(logged.of("").is_empty(), "nothing is wrong: {:?}", logged.of(""));

        away.store(true, Ordering::SeqCst);
        for _ in 0..2 {
            owner.tick().await.unwrap_err();
        }
        assert_eq!(ends.succeed().await.unwrap(), Persisted::Spooled);
        let failed = logged.of("heartbeat failed");
        let is_told = |line: &String| line.trim_start().starts_with("WARN") && line.contains("the store is away");
        assert!(failed.len() == 2 && failed.iter().all(is_told), "{failed:?}");
        assert_eq!(logged.of("outage began").len(), 1);
        let spooled = logged.of("outcome spooled");
        assert!(spooled.len() == 1 && spooled[0].contains(&ends_id.to_string()), "{spooled:?}");

        away.store(false, Ordering::SeqCst);
        owner.tick().await.unwrap();
        assert_eq!((logged.of("outage ended").len(), logged.of("spooled outcome delivered").len()), (1, 1));

        world.clock.pass(LEASE * 2);
        assert_eq!(world.reap().await.ended[0].state.name(), StateName::Dead);
        owner.tick().await.unwrap();
        for event in ["run reaped", "claim lost", "stop requested"] {
            let lines = logged.of(event);
            assert!(lines.len() == 1 && lines[0].contains(&kept_id.to_string()), "{event}: {lines:?}");
        }
    });
}
