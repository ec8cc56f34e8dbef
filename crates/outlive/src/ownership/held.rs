//! A run that a worker holds: what its holder and the heartbeat thread share.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::lifecycle::{Fence, note_usage};
use crate::model::id::{Epoch, RunId};
use crate::model::policy::{Lease, OnLeaseLoss};
use crate::model::run::{CancelRequest, Progress, Run, Usage};
use crate::store::Record;
use crate::util::sync::lock;

/// Why the owner of a run should stop: what [`RunHandle::stop_requested`] and [`RunHandle::wait_for_stop`] answer with.
///
/// [`RunHandle::stop_requested`]: crate::RunHandle::stop_requested
/// [`RunHandle::wait_for_stop`]: crate::RunHandle::wait_for_stop
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The run is no longer its own: it was reaped or ended.
    Lost,
    /// A cancel request asked for it.
    Cancelled(CancelRequest),
    /// It has run for longer than it may.
    TimedOut,
    /// The store could not be reached for so long that another worker may soon own the run.
    LeaseOver,
}

impl Stop {
    /// The reason in one word, as logs name it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Cancelled(_) => "cancelled",
            Self::TimedOut => "timed_out",
            Self::LeaseOver => "lease_over",
        }
    }
}

type Callback = Box<dyn Fn(&Stop) + Send>;

/// A run that this worker holds.
pub(crate) struct Held {
    pub(crate) id: RunId,
    pub(crate) epoch: Epoch,
    pub(crate) lease: Lease,
    /// Since when it is held, by time since boot: a wall clock that jumps ends no work.
    since: Duration,
    /// How long its attempt had run before that, with another owner.
    ran_for: Option<Duration>,
    timeout: Option<Duration>,
    /// What its worker allows it, where that is less.
    worker_timeout: OnceLock<Duration>,
    stops_unheard: bool,
    /// As it was last read or written.
    pub(crate) record: Mutex<Record>,
    stopping: Arc<Mutex<Stopping>>,
    work: Mutex<Work>,
    /// Wakes owners that wait for a reason to stop.
    stop_changed: Notify,
    progress: Mutex<Unwritten>,
    usage: Mutex<UsageNotes>,
}

/// The least time between two writes of a run's progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Progress that was reported and waits to be written.
#[derive(Default)]
struct Unwritten {
    progress: Option<Progress>,
    /// When progress was last written, in time awake.
    written_at: Option<Duration>,
}

/// The most time between two writes of what a busy attempt has used.
const USAGE_EVERY: Duration = Duration::from_secs(30);

/// What the attempt has used.
#[derive(Default)]
struct UsageNotes {
    latest: Option<Arc<Usage>>,
    /// What of it is on record, and when it was written, by time since boot.
    written: Option<(Arc<Usage>, Duration)>,
}

/// The future that does the work, where there is one.
#[derive(Default)]
struct Work {
    future: Option<AbortHandle>,
    /// It is not to begin, or to go on.
    is_aborted: bool,
}

/// The reason to stop, and the callback that receives it.
#[derive(Default)]
struct Stopping {
    reason: Option<Stop>,
    /// Absent while its thread calls it.
    callback: Option<Callback>,
    /// A callback was installed.
    watched: bool,
    /// Reasons that the callback has not been called with yet, oldest first.
    pending: VecDeque<Stop>,
    /// A thread calls the callback until `pending` is empty.
    calling: bool,
}

impl Unwritten {
    fn is_due(&self, now: Duration) -> bool {
        self.written_at.is_none_or(|at| now.saturating_sub(at) >= PROGRESS_EVERY)
    }
}

impl Held {
    pub(crate) fn new(record: Record, now: Duration, ran_for: Option<Duration>) -> Self {
        let (run, policy) = (&record.run, &record.run.spec.policy);
        let careful = if run.held_keys().next().is_none() { OnLeaseLoss::Continue } else { OnLeaseLoss::Stop };
        Self {
            id: run.id,
            epoch: run.epoch,
            lease: run.owner().map_or_else(Lease::default, |owner| owner.lease),
            since: now,
            ran_for,
            timeout: policy.limits.timeout,
            worker_timeout: OnceLock::new(),
            stops_unheard: policy.on_lease_loss.unwrap_or(careful) == OnLeaseLoss::Stop,
            record: Mutex::new(record),
            stopping: Arc::default(),
            work: Mutex::default(),
            stop_changed: Notify::new(),
            progress: Mutex::default(),
            usage: Mutex::default(),
        }
    }

    /// Takes in what the attempt has used so far.
    pub(super) fn note_usage(&self, usage: Usage) {
        lock(&self.usage).latest = Some(Arc::new(usage));
    }

    /// What the attempt has used, as its holder has said last.
    pub(super) fn usage(&self) -> Option<Arc<Usage>> {
        lock(&self.usage).latest.clone()
    }

    /// The run with what its attempt has used, as far as the holder of `fence` may say so.
    pub(super) fn noted<'a>(&self, run: &'a Run, fence: &Fence) -> Cow<'a, Run> {
        let noted = self.usage().and_then(|usage| note_usage(run, fence, &usage).ok());
        noted.map_or(Cow::Borrowed(run), Cow::Owned)
    }

    /// What the attempt has used, where that is to be written by itself: it has changed since, and as much time has passed
    /// as from the start until then, up to [`USAGE_EVERY`].
    pub(super) fn due_usage(&self, now: Duration) -> Option<Arc<Usage>> {
        let notes = lock(&self.usage);
        let latest = notes.latest.as_ref()?;
        let is_due = notes.written.as_ref().is_none_or(|(written, at)| {
            let pause = at.saturating_sub(self.since).min(USAGE_EVERY);
            now.saturating_sub(*at) >= pause && latest.differs_from(written)
        });
        is_due.then(|| latest.clone())
    }

    /// Notes that this is on record.
    pub(super) fn note_usage_written(&self, usage: &Arc<Usage>, now: Duration) {
        lock(&self.usage).written = Some((usage.clone(), now));
    }

    /// Takes progress in. Answers with whether it is to be written now, and whether it is the first that waits.
    pub(super) fn coalesce(&self, progress: Progress, now: Duration) -> (bool, bool) {
        let mut unwritten = lock(&self.progress);
        let is_first = unwritten.progress.replace(progress).is_none();
        (unwritten.is_due(now), is_first)
    }

    /// The progress that waits to be written.
    pub(super) fn unwritten_progress(&self) -> Option<Progress> {
        lock(&self.progress).progress.clone()
    }

    /// Notes that progress is on record; what was reported since waits on.
    pub(super) fn note_written(&self, written: &Progress, now: Duration) {
        let mut unwritten = lock(&self.progress);
        unwritten.written_at = Some(now);
        if unwritten.progress.as_ref() == Some(written) {
            unwritten.progress = None;
        }
    }

    /// How long the progress that waits may wait on; none where none does.
    pub(super) fn progress_due_in(&self, now: Duration) -> Option<Duration> {
        let unwritten = lock(&self.progress);
        unwritten.progress.as_ref()?;
        Some(unwritten.written_at.map_or(Duration::ZERO, |at| (at + PROGRESS_EVERY).saturating_sub(now)))
    }

    /// Allows it at most `timeout`, whatever its policy says. The first call counts.
    pub(super) fn limit(&self, timeout: Duration) {
        self.worker_timeout.get_or_init(|| timeout);
    }

    /// How long its attempt may run.
    fn timeout(&self) -> Option<Duration> {
        self.timeout.into_iter().chain(self.worker_timeout.get().copied()).min()
    }

    /// Whether a clock alone may stop it.
    pub(super) fn is_limited(&self) -> bool {
        self.timeout().is_some() || self.stops_unheard
    }

    /// How long it may still run, unless it was asked to stop.
    pub(super) fn time_left(&self, now: Duration) -> Option<Duration> {
        let timeout = self.timeout().filter(|_| self.stop().is_none())?;
        Some((self.since + timeout.saturating_sub(self.ran_for.unwrap_or_default())).saturating_sub(now))
    }

    /// Whether it has run for longer than it may.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        self.timeout()
            .is_some_and(|timeout| now.saturating_sub(self.since) + self.ran_for.unwrap_or_default() > timeout)
    }

    /// Whether it has run for so much longer than it may that its work cannot be waited for.
    pub(super) fn is_long_over(&self, now: Duration) -> bool {
        self.is_over(now.saturating_sub(self.lease.lasts()))
    }

    /// Whether it must stop by itself after such a time in which the store took no beat.
    pub(super) fn must_stop(&self, unheard_for: Duration) -> bool {
        self.stops_unheard && unheard_for >= self.lease.own_deadline()
    }

    pub(crate) fn record(&self) -> Record {
        lock(&self.record).clone()
    }

    pub(crate) fn stop(&self) -> Option<Stop> {
        lock(&self.stopping).reason.clone()
    }

    /// Has `callback` called with every reason to stop. A reason that is known already is passed before this returns.
    pub(crate) fn watch(&self, callback: Callback) {
        let known = {
            let mut stopping = lock(&self.stopping);
            stopping.watched = true;
            stopping.reason.clone()
        };
        if let Some(stop) = &known {
            callback(stop);
        }
        let mut stopping = lock(&self.stopping);
        stopping.callback = Some(callback);
        if let Some(stop) = stopping.reason.clone().filter(|stop| known.as_ref() != Some(stop)) {
            stopping.pending.push_back(stop);
            drop(stopping);
            self.call_back();
        }
    }

    /// Waits until there is a reason to stop.
    pub(super) async fn wait_for_stop(&self) -> Stop {
        lock(&self.stopping).watched = true;
        loop {
            // Made before the reason is read: one that is given in between is not missed.
            let changed = self.stop_changed.notified();
            match self.stop() {
                Some(stop) => return stop,
                None => changed.await,
            }
        }
    }

    /// Begins the work with `spawn`, which answers with what aborts it, unless it was aborted before.
    pub(super) fn spawn(&self, spawn: impl FnOnce() -> AbortHandle) {
        let mut work = lock(&self.work);
        if !work.is_aborted {
            work.future = Some(spawn());
        }
    }

    /// Drops the future that does the work at its next await. False where the work is none, or not begun: it will not be
    /// begun as one.
    pub(super) fn abort(&self) -> bool {
        let mut work = lock(&self.work);
        work.is_aborted = true;
        work.future.as_ref().map(AbortHandle::abort).is_some()
    }

    /// Tells the holder to stop. The first reason stands, unless the run is lost. Work that does not listen is aborted, but not
    /// because a person asks it to stop.
    pub(super) fn tell(&self, stop: Stop) {
        let is_asked = matches!(stop, Stop::Cancelled(_));
        let is_watched = self.is_watched();
        self.tell_reason(stop);
        if !is_asked && !is_watched {
            self.abort();
        }
    }

    fn tell_reason(&self, stop: Stop) {
        let mut stopping = lock(&self.stopping);
        if stopping.reason.is_none() || stop == Stop::Lost && stopping.reason != Some(Stop::Lost) {
            tracing::info!(run = %self.id, epoch = self.epoch.0, reason = stop.name(), "stop requested");
            stopping.reason = Some(stop.clone());
            self.stop_changed.notify_waiters();
            if stopping.callback.is_some() || stopping.calling {
                stopping.pending.push_back(stop);
                drop(stopping);
                self.call_back();
            }
        }
    }

    /// Calls the callback on a thread of its own: heartbeats continue however long it takes.
    fn call_back(&self) {
        {
            let mut stopping = lock(&self.stopping);
            if std::mem::replace(&mut stopping.calling, true) {
                return;
            }
        }
        let stopping = self.stopping.clone();
        let thread = std::thread::Builder::new().name("outlive-on-stop".into());
        if thread.spawn(move || call_pending(&stopping)).is_err() {
            // Without a thread a late heartbeat is better than a holder that never stops.
            call_pending(&self.stopping);
        }
    }

    /// Whether the holder ends its work when it is asked to stop. The holder of an adopted run always does: processes
    /// that live on do not end because their record says so.
    pub(super) fn is_watched(&self) -> bool {
        self.ran_for.is_some() || lock(&self.stopping).watched
    }
}

/// Calls the callback with every pending reason, in order and outside the lock.
fn call_pending(stopping: &Mutex<Stopping>) {
    loop {
        let (callback, stop) = {
            let mut stopping = lock(stopping);
            let Some(callback) = stopping.callback.take() else {
                stopping.calling = false;
                return;
            };
            let Some(stop) = stopping.pending.pop_front() else {
                stopping.callback = Some(callback);
                stopping.calling = false;
                return;
            };
            (callback, stop)
        };
        // A callback that panics is called with later reasons nevertheless.
        let _ = std::panic::catch_unwind(AssertUnwindSafe(|| callback(&stop)));
        lock(stopping).callback.get_or_insert(callback);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::Stamp;
    use crate::model::run::StateName;
    use crate::store::Revision;
    use crate::testing::{SeededEntropy, lifecycle, spec};
    use crate::{Timestamp, WorkerId};

    #[test]
    fn usage_is_written_ever_less_often_and_never_while_idle() {
        let entropy = SeededEntropy::new(2);
        let worker = WorkerId::draw(Timestamp::from_micros(1), &entropy);
        let run = lifecycle::specimen(StateName::Running, spec("test"), worker).unwrap();
        let record = Record { run, revision: Revision(1), stamp: Stamp::draw(&entropy) };
        let held = Held::new(record, Duration::ZERO, None);
        let mut written = Vec::new();
        for second in (4..=600).step_by(4) {
            let now = Duration::from_secs(second);
            // Busy for five minutes, then idle.
            held.note_usage(Usage { cpu_ms: second.min(300) * 1_000, ..Usage::default() });
            if let Some(usage) = held.due_usage(now) {
                held.note_usage_written(&usage, now);
                written.push(second);
            }
        }
        assert_eq!(written[..5], [4, 8, 16, 32, 64]);
        assert!(written.len() <= 14 && *written.last().unwrap() <= 332, "{written:?}");
    }
}
