//! What tests share: a [`Harness`] for handlers; clocks that are moved by hand, numbers from a seed, people and specs for
//! stores and registries.

#[cfg(feature = "object")]
#[doc(hidden)]
pub mod bucket;
mod harness;
#[cfg(feature = "postgres")]
#[cfg(feature = "http")]
#[doc(hidden)]
pub mod lender;
#[doc(hidden)]
pub mod lifecycle;
#[cfg(any(feature = "object", feature = "postgres"))]
#[doc(hidden)]
pub mod ports;
#[cfg(any(feature = "http", feature = "object"))]
#[doc(hidden)]
pub mod proxy;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub mod server;

pub use self::harness::Harness;

use std::process::Command;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::model::id::{Entropy, RunId, Stamp, WorkerId};
use crate::model::owner::{HostContext, Identity};
use crate::model::policy::Lease;
use crate::model::run::{Actor, LastHeartbeat, Owner, Run, Spec};
use crate::model::time::{Clock, Timestamp};
use crate::util::sync::lock;

/// A clock that moves only when a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock {
    elapsed_micros: AtomicU64,
    slept_micros: AtomicU64,
    wall_offset: AtomicI64,
}

impl ManualClock {
    /// A clock some way into a boot, so that nothing is at zero by accident.
    pub fn new() -> Arc<Self> {
        let clock = Self::default();
        clock.pass(Duration::from_secs(1_000_000));
        Arc::new(clock)
    }

    /// Lets time pass.
    pub fn pass(&self, duration: Duration) {
        self.elapsed_micros.fetch_add(micros(duration), Ordering::SeqCst);
    }

    /// Lets the machine sleep: wall time and time since boot move on, time awake does not.
    pub fn sleep(&self, duration: Duration) {
        self.slept_micros.fetch_add(micros(duration), Ordering::SeqCst);
    }

    /// Sets the wall clock ahead or back, as a person or a time server does.
    pub fn step_wall(&self, seconds: i64) {
        self.wall_offset.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        const START: i64 = 1_790_000_000_000_000;
        let elapsed = micros(self.since_boot());
        Timestamp::from_micros(START + elapsed.cast_signed() + self.wall_offset.load(Ordering::SeqCst))
    }

    fn awake(&self) -> Duration {
        Duration::from_micros(self.elapsed_micros.load(Ordering::SeqCst))
    }

    fn since_boot(&self) -> Duration {
        self.awake() + Duration::from_micros(self.slept_micros.load(Ordering::SeqCst))
    }
}

/// Lets a program, and whatever it starts, see a wall clock that is off by `shift`: `+1h`, `-10m`. The program `faketime`
/// would do the same, and refuses to where one of the same process number was once killed.
pub fn set_clock_off<'a>(command: &'a mut Command, shift: &str) -> &'a mut Command {
    let library = "/usr/$LIB/faketime/libfaketime.so.1"; // the loader knows what `$LIB` is here
    command.env("LD_PRELOAD", library).env("FAKETIME", shift).env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
}

/// Numbers that follow from a seed.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// The next 64 bits.
    pub fn next(&self) -> u64 {
        let mut state = lock(&self.0);
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `times`.
    pub fn one_in(&self, times: u64) -> bool {
        self.below(times) == 0
    }
}

impl Entropy for SeededEntropy {
    fn draw(&self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }
}

/// A person who acts in tests: the [`Actor`](crate::Actor) of a registry or spec.
pub fn person(name: &str) -> Actor {
    Actor { user: name.into(), host: "testhost".into(), pid: 4_242 }
}

/// A process of another host, whose pid says nothing here.
pub fn stranger(pid: u32) -> Identity {
    let vantage = HostContext { host: "elsewhere".into(), boot_id: "another-boot".into(), pid_ns: 1, time_ns: 1 };
    Identity { vantage, pid, start_ticks: 1, pidfs_inode: None, lock_inode: None }
}

/// A worker as the owner of a run, for tests of stores.
pub fn owner(worker: WorkerId, lease: Lease) -> Owner {
    Owner { worker, identity: stranger(1), lease, heard: LastHeartbeat::default() }
}

/// A spec that asks for nothing special.
pub fn spec(kind: &str) -> Spec {
    Spec::new(kind, person("ada"))
}

/// A run that waits to be claimed.
pub fn pending(spec: Spec, now: Timestamp, entropy: &dyn Entropy) -> Run {
    Run::new(RunId::draw(now, entropy), Arc::new(spec), None, now)
}

/// A stamp of a write, for tests of stores.
pub fn stamp(entropy: &dyn Entropy) -> Stamp {
    Stamp::draw(entropy)
}
