//! Blocking calls of the library: made without the interpreter's lock, and with a limit where a run or the process ends.
//!
//! A store that is away may take half a minute to say so. The work of a program waits for that as long as the store does.
//! The end of a run is spooled instead after a few seconds, and the exit of the process waits for no call any longer.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use outlive::block_on_within;
use outlive::error::Error;
use outlive::store;
use outlive::time::{Clock, SystemClock};
use pyo3::prelude::*;

use crate::errors::raise;

/// How long the end of a run waits for its registry.
const END: Duration = Duration::from_secs(5);
/// How long the exit of the process waits for registries, all of them together.
const EXIT: Duration = Duration::from_secs(3);
/// How long each call may take in any case.
const LEAST: Duration = Duration::from_millis(500);
/// How often a call that waits looks whether the process exits, and lets handlers of signals run.
const LOOK: Duration = Duration::from_millis(250);

/// When the process stops waiting, in milliseconds of time awake; the largest number while it does not exit.
static EXITS_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// The calls that threads are at.
static CALLS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// When the calls of this thread stop waiting, by time awake; absent while they have no limit.
    static ENDS_AT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// A call that a thread is at, counted until the thread has the interpreter's lock again.
struct Counted;

impl Counted {
    fn begin() -> Self {
        CALLS.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits for a future of the library while other Python threads run. Handlers of signals run in between: one that raises,
/// as that of Ctrl-C does, gives the call up.
pub fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T, Error>> + Send) -> PyResult<T> {
    let _counted = Counted::begin();
    let mut future = Unlocked::new(Box::pin(future));
    let began = SystemClock.awake();
    loop {
        if let Some(done) = py.detach(|| block_on_within(LOOK, future.as_mut())) {
            return done.map_err(|error| raise(py, &error));
        }
        let now = SystemClock.awake();
        if now >= began + LEAST && deadline().is_some_and(|deadline| now >= deadline) {
            let late = store::Error::Unavailable("the registry did not answer in time".into());
            return Err(raise(py, &Error::Store(late)));
        }
        py.check_signals()?;
    }
}

/// Makes a call of the library while other Python threads run.
pub fn call<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    detached(py, call).map_err(|error| raise(py, &error))
}

/// Does the work while other Python threads run, and is counted until this thread has the interpreter's lock again.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let _counted = Counted::begin();
    py.detach(work)
}

/// A value of the library that is dropped without the interpreter's lock: dropping it may wait for a lock of the library,
/// whose owner may wait for the interpreter's.
pub struct Unlocked<T: Send>(Option<T>);

impl<T: Send> Unlocked<T> {
    pub fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub fn into_inner(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Send> Deref for Unlocked<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("only its drop takes the value"))
    }
}

impl<T: Send> DerefMut for Unlocked<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap_or_else(|| unreachable!("only its drop takes the value"))
    }
}

impl<T: Send> Drop for Unlocked<T> {
    fn drop(&mut self) {
        let mut value = self.0.take();
        // An interpreter that is ending attaches no thread: nothing waits for its lock any longer.
        Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

/// When a call of this thread stops waiting, by time awake.
fn deadline() -> Option<Duration> {
    let exits_at = Some(EXITS_AT.load(Ordering::SeqCst)).filter(|at| *at != u64::MAX).map(Duration::from_millis);
    exits_at.into_iter().chain(ENDS_AT.get()).min()
}

/// How long the end of a run, or of the work in a registry, waits.
pub fn end_limit() -> Duration {
    let left = deadline().map(|deadline| deadline.saturating_sub(SystemClock.awake()));
    left.map_or(END, |left| left.clamp(LEAST, END))
}

/// Limits the calls of this thread, because a run is being ended, or lifts that limit.
#[pyfunction]
pub fn limit_calls(limited: bool) {
    ENDS_AT.set(limited.then(|| SystemClock.awake() + END));
}

/// Limits the calls of all threads from now on, because the process exits.
#[pyfunction]
pub fn begin_exit() {
    let at = u64::try_from((SystemClock.awake() + EXIT).as_millis()).unwrap_or(u64::MAX);
    EXITS_AT.fetch_min(at, Ordering::SeqCst);
}

/// Waits until no thread is at a call, once all calls are limited: a thread that comes back to an interpreter that is gone
/// aborts the process.
#[pyfunction]
pub fn wait_for_calls(py: Python<'_>) {
    py.detach(|| {
        let until = SystemClock.awake() + EXIT;
        while CALLS.load(Ordering::SeqCst) > 0 && SystemClock.awake() < until {
            std::thread::park_timeout(Duration::from_millis(5));
        }
    });
}

/// Waits until no thread writes to a registry: a forked child would inherit what such a thread holds.
#[pyfunction]
pub fn before_fork(py: Python<'_>) {
    py.detach(outlive::host::before_fork);
}

/// Lets threads write again, in the process that has forked.
#[pyfunction]
pub fn after_fork_in_parent() {
    outlive::host::after_fork_in_parent();
}

/// Lets the forked process write.
#[pyfunction]
pub fn after_fork_in_child() {
    // The calls are those of threads that the child has not.
    CALLS.store(0, Ordering::SeqCst);
    outlive::host::after_fork_in_child();
}
