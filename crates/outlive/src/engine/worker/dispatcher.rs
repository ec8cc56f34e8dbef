//! The floor: what the threads of a worker share, and where they wait for each other.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::task::{Task, TaskOutcome};
use crate::model::id::{Epoch, RunId};
use crate::model::time::{Clock, SystemClock};
use crate::util::sync::lock;

/// How many ends may wait for their write, for each slot, before nothing more is claimed.
const ENDS_PER_SLOT: usize = 4;
/// Fewer than this may always wait.
const ENDS: usize = 1_000;
/// How long free slots wait for others to become free, so that they are filled by one claim.
const LINGER: Duration = Duration::from_millis(2);

/// How far a worker is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Stage {
    /// It claims.
    #[default]
    Working,
    /// It claims nothing more.
    Draining,
    /// Its handlers are asked to stop.
    Stopping,
    /// Nothing more is waited for.
    Over,
}

/// What a worker has done so far, from [`Worker::tally`](crate::Worker::tally) and
/// [`WorkerBuilder::run_until`](crate::WorkerBuilder::run_until). For metrics and the last line of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Tally {
    /// Claims that brought anything.
    pub claims: u64,
    /// Runs that they brought.
    pub claimed: u64,
    /// Runs whose handlers are at work.
    pub running: usize,
    /// The most that ever were at once.
    pub most_at_once: usize,
    /// Recorded as succeeded.
    pub succeeded: u64,
    /// Recorded as failed, whether or not they are tried again.
    pub failed: u64,
    /// Suspended by their handlers.
    pub suspended: u64,
    /// Recorded as cancelled or interrupted.
    pub stopped: u64,
    /// Ends that came to nothing, because the run had another owner by then.
    pub lost: u64,
    /// Those of them that were written and refused by the store. Of the others their worker learned before.
    pub refused: u64,
    /// Ends that the store did not take at once. They are spooled, and delivered when it does.
    pub later: u64,
    /// Writes that recorded ends.
    pub commits: u64,
    /// Attempts of others that were found to be over.
    pub reaped: u64,
    /// Failures of the store that were survived.
    pub errors: u64,
}

impl Tally {
    /// How many attempts it has put an end to, its own and those of dead workers.
    pub(super) fn ends(&self) -> u64 {
        self.succeeded + self.failed + self.stopped + self.reaped
    }
}

/// An end that waits to be recorded.
pub(crate) struct PendingEnd {
    pub(super) task: Arc<Task>,
    pub(super) answer: TaskOutcome,
}

#[derive(Default)]
struct DispatcherState {
    stage: Stage,
    /// Claimed and not begun.
    queue: VecDeque<Arc<Task>>,
    running: BTreeMap<(RunId, Epoch), Arc<Task>>,
    ends: Vec<PendingEnd>,
    /// Ends that are being written.
    writing: usize,
    /// Runs that are being claimed, at most.
    claiming: usize,
    /// A notification says that there is work.
    look: bool,
    /// Slots that wait for something to begin.
    idle: usize,
    /// One of them is called and has not come yet.
    is_called: bool,
    /// Which threads wait for what, so that only those are woken.
    await_room: usize,
    await_end: usize,
    watchers: usize,
    /// Claims that found nothing while nothing was being done.
    found_nothing: u64,
    tally: Tally,
}

/// What the threads of a worker share.
pub(crate) struct Dispatcher {
    slots: usize,
    slots_of: BTreeMap<String, usize>,
    prefetch: usize,
    state: Mutex<DispatcherState>,
    /// There is something to begin.
    work: Condvar,
    /// There is room, or a reason to look for work.
    room: Condvar,
    /// There is an end to record.
    ended: Condvar,
    /// Something has been done.
    done: Condvar,
    /// The worker is on its way out.
    over: Condvar,
}

/// Wakes the worker to look for work at once. Called on notifications; the worker goes on polling
/// by itself in any case.
#[derive(Clone)]
pub struct Waker(pub(super) Arc<Dispatcher>);

impl Waker {
    /// There may be work.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl Dispatcher {
    pub(super) fn new(slots: usize, slots_of: BTreeMap<String, usize>, prefetch: usize) -> Arc<Self> {
        Arc::new(Self {
            slots,
            slots_of,
            prefetch,
            state: Mutex::default(),
            work: Condvar::new(),
            room: Condvar::new(),
            ended: Condvar::new(),
            done: Condvar::new(),
            over: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, DispatcherState> {
        lock(&self.state)
    }

    pub(super) fn tally(&self) -> Tally {
        self.state().tally
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Tally)) {
        let mut state = self.state();
        count(&mut state.tally);
        self.call(state);
    }

    pub(super) fn wait_until(&self, mut so: impl FnMut(&Tally) -> bool) {
        let mut state = self.state();
        state.watchers += 1;
        state = wait_while(&self.done, state, |state| !so(&state.tally));
        state.watchers -= 1;
    }

    /// Waits until a claim that begins from now on finds nothing while nothing is being done.
    pub(super) fn wait_until_drained(&self) {
        let mut state = self.state();
        // One may be under way that began before.
        let seen = state.found_nothing + u64::from(state.claiming > 0);
        state.look = true;
        self.room.notify_all();
        state.watchers += 1;
        state = wait_while(&self.done, state, |state| state.found_nothing <= seen && state.stage == Stage::Working);
        state.watchers -= 1;
    }

    /// Waits until what was claimed is done, and its end recorded or left to the heartbeat thread.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn wait_until_recorded(&self) {
        let busy = |state: &mut DispatcherState| {
            !(state.queue.is_empty() && state.running.is_empty() && state.ends.is_empty() && state.writing == 0)
        };
        let mut state = self.state();
        state.watchers += 1;
        state = wait_while(&self.done, state, busy);
        state.watchers -= 1;
    }

    /// Releases the state, and wakes the threads that wait for what it has become.
    fn call(&self, mut state: MutexGuard<'_, DispatcherState>) {
        // A slot that has come calls the next: where work is short, few wake.
        let can_begin = self.can_begin(&state);
        let work = can_begin && state.idle > 0 && !state.is_called;
        state.is_called |= work;
        let room = state.await_room > 0 && self.free(&state) > 0;
        let ended = state.await_end > 0 && !state.ends.is_empty();
        // While free slots have something to begin, more is done at once: watchers are woken after that.
        let is_quiet = !can_begin || state.idle == 0 || state.stage > Stage::Working;
        let done = state.watchers > 0 && is_quiet;
        drop(state);
        for (is_awaited, condvar) in [(work, &self.work), (room, &self.room), (ended, &self.ended)] {
            if is_awaited {
                condvar.notify_one();
            }
        }
        if done {
            self.done.notify_all();
        }
    }

    pub(super) fn wake(&self) {
        self.state().look = true;
        self.room.notify_all();
    }

    pub(super) fn advance(&self, stage: Stage) {
        let mut state = self.state();
        state.stage = stage;
        if stage >= Stage::Stopping {
            state.running.values().for_each(|task| task.tell_end());
        }
        drop(state);
        [&self.work, &self.room, &self.ended, &self.done, &self.over].into_iter().for_each(Condvar::notify_all);
    }

    /// Whether a task can be begun: one is prefetched for a slot, and not beside it.
    fn can_begin(&self, state: &DispatcherState) -> bool {
        !state.queue.is_empty() && state.running.len() < self.slots
    }

    fn free(&self, state: &DispatcherState) -> usize {
        if state.ends.len() + state.writing > ENDS.max(ENDS_PER_SLOT * self.slots) {
            return 0;
        }
        (self.slots + self.prefetch).saturating_sub(state.queue.len() + state.running.len() + state.claiming)
    }

    pub(super) fn limits_kinds(&self) -> bool {
        !self.slots_of.is_empty()
    }

    /// How many more runs may be claimed of each kind that is limited.
    pub(super) fn free_of_kinds(&self) -> BTreeMap<String, usize> {
        let mut free = self.slots_of.clone();
        let state = self.state();
        for task in state.queue.iter().chain(state.running.values()) {
            if let Some(free) = free.get_mut(&task.handle.spec().kind) {
                *free = free.saturating_sub(1);
            }
        }
        free
    }

    /// Waits until there is room and a reason to claim: `timeout` is over, or a notification says that there is work. Answers
    /// with how many may be claimed, up to `limit`; `None` while draining. The caller must report back with what came of
    /// it.
    pub(super) fn wait_for_room(&self, timeout: Duration, limit: usize) -> Option<usize> {
        // Threads wait in real time, whatever clock the registry goes by.
        let deadline = SystemClock.awake() + timeout;
        let mut state = self.state();
        loop {
            if state.stage > Stage::Working {
                return None;
            }
            let left = deadline.saturating_sub(SystemClock.awake());
            if !state.look && !left.is_zero() {
                state = wait_timeout(&self.room, state, left);
            } else if self.free(&state) == 0 {
                state.await_room += 1;
                state = wait(&self.room, state);
                state.await_room -= 1;
            } else {
                break;
            }
        }
        let few = |state: &mut DispatcherState| state.stage == Stage::Working && self.free(state) * 2 < self.slots;
        // No thread wakes it: what becomes free in the meantime is there when it is over.
        let linger = self.room.wait_timeout_while(state, LINGER, few);
        self.take_room(&mut linger.unwrap_or_else(PoisonError::into_inner).0, limit)
    }

    /// How many may be claimed, up to `limit`; `None` while draining.
    fn take_room(&self, state: &mut DispatcherState, limit: usize) -> Option<usize> {
        state.look = false;
        let room = Some(self.free(state).min(limit)).filter(|_| state.stage == Stage::Working)?;
        state.claiming += room;
        Some(room)
    }

    /// As [`Dispatcher::wait_for_room`], for a caller that waits by itself.
    #[cfg(all(any(test, feature = "testing"), feature = "object"))]
    pub(crate) fn try_room(&self, limit: usize) -> Option<usize> {
        self.take_room(&mut self.state(), limit)
    }

    /// A claim of up to so many has brought these; none where it failed.
    pub(super) fn claimed(&self, room: usize, tasks: Option<Vec<Arc<Task>>>) {
        let mut state = self.state();
        state.claiming = state.claiming.saturating_sub(room);
        // One that failed has found out nothing, and a reason to look again may have come meanwhile.
        let is_known = tasks.is_some() && !state.look;
        let tasks = tasks.unwrap_or_default();
        state.tally.claims += u64::from(!tasks.is_empty());
        state.tally.claimed += tasks.len() as u64;
        state.queue.extend(tasks);
        let at_work = state.queue.len() + state.running.len() + state.ends.len() + state.writing + state.claiming;
        state.found_nothing += u64::from(is_known && at_work == 0);
        self.call(state);
    }

    /// Waits as long as the worker works, for at most `timeout`. Answers whether it still does.
    pub(super) fn pause(&self, timeout: Duration) -> bool {
        let works = |state: &mut DispatcherState| state.stage == Stage::Working;
        let paused = self.over.wait_timeout_while(self.state(), timeout, works);
        paused.unwrap_or_else(PoisonError::into_inner).0.stage == Stage::Working
    }

    /// The next task for a slot; none once there will be none.
    pub(super) fn next(&self) -> Option<Arc<Task>> {
        let idle = |state: &mut DispatcherState| !self.can_begin(state) && state.stage == Stage::Working;
        let mut state = self.state();
        if idle(&mut state) {
            state.idle += 1;
            while idle(&mut state) {
                state = wait(&self.work, state);
                state.is_called = false;
            }
            state.idle -= 1;
        }
        self.begin(state)
    }

    /// As [`Dispatcher::next`], for a caller that waits by itself: none while there is nothing to begin.
    #[cfg(all(any(test, feature = "testing"), feature = "object"))]
    pub(crate) fn try_next(&self) -> Option<Arc<Task>> {
        let state = self.state();
        if self.can_begin(&state) { self.begin(state) } else { None }
    }

    fn begin(&self, mut state: MutexGuard<'_, DispatcherState>) -> Option<Arc<Task>> {
        if state.stage > Stage::Working {
            return None;
        }
        let task = state.queue.pop_front()?;
        let claim = (task.handle.id(), task.handle.fence().epoch);
        state.running.insert(claim, task.clone());
        state.tally.running = state.running.len();
        state.tally.most_at_once = state.tally.most_at_once.max(state.running.len());
        self.call(state);
        Some(task)
    }

    /// Takes what was claimed and is not begun.
    pub(super) fn unbegun(&self) -> Vec<Arc<Task>> {
        self.state().queue.drain(..).collect()
    }

    /// Those whose handlers are still at work.
    pub(super) fn abandoned(&self) -> Vec<Arc<Task>> {
        self.state().running.values().cloned().collect()
    }

    /// Records how a task ended. The first report wins.
    pub(super) fn end(&self, task: Arc<Task>, answer: TaskOutcome) {
        let mut state = self.state();
        if task.ended.swap(true, Ordering::SeqCst) {
            return;
        }
        state.ends.push(PendingEnd { task, answer });
        self.call(state);
    }

    /// A handler has returned.
    pub(crate) fn returned(&self, task: &Arc<Task>, answer: TaskOutcome) {
        let claim = (task.handle.id(), task.handle.fence().epoch);
        let was_limited = self.slots_of.contains_key(&task.handle.spec().kind);
        let mut state = self.state();
        // With the state locked: what has ended is among the ends, or is still to be ended.
        let is_first = !task.ended.swap(true, Ordering::SeqCst);
        // Runs of its kind may have been passed over.
        state.look |= was_limited;
        state.running.remove(&claim);
        state.tally.running = state.running.len();
        if is_first {
            state.ends.push(PendingEnd { task: task.clone(), answer });
        }
        self.call(state);
        if was_limited {
            self.room.notify_all();
        }
    }

    /// All ends that wait, up to `limit`; none once there will be none.
    pub(super) fn take_ends(&self, limit: usize) -> Option<Vec<PendingEnd>> {
        let nothing = |state: &mut DispatcherState| state.ends.is_empty() && state.stage < Stage::Over;
        let mut state = self.state();
        state.await_end += 1;
        state = wait_while(&self.ended, state, nothing);
        state.await_end -= 1;
        Self::take_waiting(&mut state, limit)
    }

    /// As [`Dispatcher::take_ends`], for a caller that waits by itself: none while none waits.
    #[cfg(all(any(test, feature = "testing"), feature = "object"))]
    pub(crate) fn try_ends(&self, limit: usize) -> Option<Vec<PendingEnd>> {
        Self::take_waiting(&mut self.state(), limit)
    }

    fn take_waiting(state: &mut DispatcherState, limit: usize) -> Option<Vec<PendingEnd>> {
        if state.ends.is_empty() {
            return None;
        }
        let count = state.ends.len().min(limit);
        state.writing += count;
        Some(state.ends.drain(..count).collect())
    }

    /// What was taken is recorded.
    pub(super) fn recorded(&self, ends: usize, count: impl FnOnce(&mut Tally)) {
        let mut state = self.state();
        state.writing = state.writing.saturating_sub(ends);
        count(&mut state.tally);
        self.call(state);
    }

    pub(super) fn is_idle(&self) -> bool {
        self.state().running.is_empty()
    }

    /// Waits until no handler is at work, for at most `timeout`. Answers whether none is.
    pub(super) fn wait_idle(&self, timeout: Duration) -> bool {
        let busy = |state: &mut DispatcherState| !state.running.is_empty();
        let mut state = self.state();
        state.watchers += 1;
        let waited = self.done.wait_timeout_while(state, timeout, busy);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.watchers -= 1;
        state.running.is_empty()
    }
}

fn wait<'a>(condvar: &Condvar, state: MutexGuard<'a, DispatcherState>) -> MutexGuard<'a, DispatcherState> {
    condvar.wait(state).unwrap_or_else(PoisonError::into_inner)
}

fn wait_while<'a>(
    condvar: &Condvar,
    state: MutexGuard<'a, DispatcherState>,
    so: impl FnMut(&mut DispatcherState) -> bool,
) -> MutexGuard<'a, DispatcherState> {
    condvar.wait_while(state, so).unwrap_or_else(PoisonError::into_inner)
}

fn wait_timeout<'a>(
    condvar: &Condvar,
    state: MutexGuard<'a, DispatcherState>,
    left: Duration,
) -> MutexGuard<'a, DispatcherState> {
    condvar.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
}
