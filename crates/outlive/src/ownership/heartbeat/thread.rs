//! The heartbeat thread of a worker: when it wakes, and how it ends.

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{BELL_REST, RETRY, WorkerState};
use crate::store::{self, Store};
use crate::util::sync::lock;

/// The thread that beats for a worker until it is dropped.
pub(crate) struct HeartbeatThread {
    keeping: Arc<WorkerState>,
    beat: Arc<dyn Fn() + Send + Sync>,
    thread: Mutex<Option<RunningThread>>,
}

/// The thread once it is started.
struct RunningThread {
    thread: JoinHandle<()>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
}

impl HeartbeatThread {
    /// A thread that is yet to be started. It opens its own connection when the first beat is due, so that a short run
    /// never pays for it; where that cannot be opened, because descriptors have run out, it beats on the `shared` one.
    /// A notification causes a heartbeat at once.
    pub(crate) fn new(
        keeping: Arc<WorkerState>,
        bell: Option<OwnedFd>,
        shared: Arc<dyn Store>,
        open: impl Fn() -> Result<Arc<dyn Store>, store::Error> + Send + Sync + 'static,
    ) -> Self {
        let kept = keeping.clone();
        let beat = move || keep_beating(&kept, bell.as_ref(), &*shared, &open);
        Self { keeping, beat: Arc::new(beat), thread: Mutex::default() }
    }

    /// Starts the thread, unless it was started before.
    pub(crate) fn start(&self) -> std::io::Result<()> {
        let mut thread = lock(&self.thread);
        if thread.is_none() {
            let (beat, (running, ended)) = (self.beat.clone(), channel::<()>());
            let keeps_beating = move || {
                let _running = running;
                beat();
            };
            let spawned = std::thread::Builder::new().name("outlive-keeper".into()).spawn(keeps_beating)?;
            *thread = Some(RunningThread { thread: spawned, ended });
        }
        Ok(())
    }

    /// Whether the thread beats, or has.
    pub(crate) fn is_started(&self) -> bool {
        lock(&self.thread).is_some()
    }
}

fn keep_beating(
    keeping: &WorkerState,
    bell: Option<&OwnedFd>,
    shared: &dyn Store,
    open: &dyn Fn() -> Result<Arc<dyn Store>, store::Error>,
) {
    let mut store: Option<Arc<dyn Store>> = None;
    let mut last = keeping.clock.awake();
    let mut has_delivered = false;
    loop {
        let next = last + keeping.interval();
        let until_beat = next.saturating_sub(keeping.clock.awake());
        let rung = keeping.wake.wait(bell, keeping.progress_due_in().map_or(until_beat, |due| due.min(until_beat)));
        let rung = keeping.asked.swap(false, Ordering::SeqCst) || rung;
        let (leaving, owes) = {
            let keep = keeping.keep();
            (keep.leaving, !keep.owed.is_empty())
        };
        if leaving && !owes {
            return;
        }
        if !owes && !rung && keeping.clock.awake() < next {
            if keeping.progress_due_in() == Some(Duration::ZERO) {
                store = store.or_else(|| open().ok());
                let written = pollster::block_on(keeping.write_progress(store.as_deref().unwrap_or(shared)));
                if written.is_err() {
                    // It is tried again with the next beat, or after a pause.
                    keeping.wake.wait(None, RETRY);
                }
            }
            continue;
        }
        if rung && keeping.clock.awake().saturating_sub(last) < BELL_REST {
            // Endless notifications do not cause endless heartbeats.
            keeping.wake.wait(None, BELL_REST);
        }
        last = keeping.clock.awake();
        let late = last.saturating_sub(next);
        if !rung && late > until_beat / 2 + RETRY {
            // This thread was given no processor.
            keeping.log_late(late);
        }
        if !keeping.begin_beat() {
            return;
        }
        if store.is_none() {
            store = open().ok();
        }
        let beating = store.as_deref().unwrap_or(shared);
        // A defect in one beat must not end all beats.
        let beat =
            |store: &dyn Store| std::panic::catch_unwind(AssertUnwindSafe(|| pollster::block_on(keeping.tick(store))));
        let beaten = beat(beating);
        if !has_delivered && matches!(beaten, Ok(Ok(()))) {
            // Once, with the first beat that the store takes; maintenance delivers what is spooled later.
            has_delivered = pollster::block_on(keeping.deliver_spooled(beating)).is_ok();
        }
        if matches!(beaten, Ok(Err(store::Error::Denied(_)))) && store.take().is_some() {
            // A connection of its own that was opened with the last descriptors has none left to work with.
            drop(beat(shared));
        }
        keeping.keep().beating = false;
        if leaving {
            return;
        }
        if keeping.owes() {
            // What the store did not take is tried again soon, not at once.
            keeping.wake.wait(None, RETRY);
        }
    }
}

impl Drop for HeartbeatThread {
    fn drop(&mut self) {
        if !self.keeping.made_by.is_this_process() {
            // The thread is the parent's: a forked child has none to join.
            std::mem::forget(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take());
            return;
        }
        let is_done = self.keeping.leave();
        if !is_done {
            // What is owed is delivered even by a worker that never had to beat; else it stays in the spool.
            let _ = self.start();
        }
        self.keeping.wake.call();
        // One that will never beat again ends by itself, and a process that is about to end need not wait for it.
        let Some(started) = lock(&self.thread).take().filter(|_| !is_done) else { return };
        match self.keeping.join_limit() {
            // A panic of the thread was its own; no caller is left to report it to.
            None => drop(started.thread.join()),
            // A store that is away does not keep a process from ending: what is owed stays in the spool.
            Some(limit) => drop(started.ended.recv_timeout(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifecycle::{Outcome, OwnerEnd};
    use crate::model::id::{Stamp, SystemEntropy, WorkerId};
    use crate::model::run::StateName;
    use crate::model::time::{Clock, SystemClock};
    use crate::ownership::spool::{Spool, Spooled};
    use crate::store::memory::MemoryStore;
    use crate::store::{Expect, Write};
    use crate::testing::{lifecycle, person, spec, stranger};

    #[test]
    fn first_beat_delivers_what_an_earlier_process_spooled() {
        let (home, entropy, registry) = (tempfile::tempdir().unwrap(), Arc::new(SystemEntropy), "memory:".to_owned());
        let (spool, store) = (Spool::new(home.path()), Arc::new(MemoryStore::default()));
        let dead = WorkerId::draw(SystemClock.now(), &*entropy);
        let run = lifecycle::specimen(StateName::Running, spec("job"), dead).unwrap();
        let (id, epoch, at, stamp) = (run.id, run.epoch, SystemClock.now(), Stamp::draw(&*entropy));
        let write =
            Write { expect: Expect::Absent, run, events: Vec::new(), ended: None, stamp: Stamp::draw(&*entropy) };
        pollster::block_on(store.commit(vec![write])).unwrap();
        let end = OwnerEnd::Finished(Outcome::SUCCEEDED);
        let (registry_name, exit, usage) = (registry.clone(), None, None);
        spool
            .keep(&Spooled { registry: registry_name, run: id, worker: dead, epoch, stamp, at, end, exit, usage })
            .unwrap();

        let worker = WorkerId::draw(SystemClock.now(), &*entropy);
        let (clock, me) = (Arc::new(SystemClock), person("ada"));
        let state = Arc::new(WorkerState::new(worker, stranger(1), me, clock, entropy, registry, Some(spool)));
        let reopened = store.clone();
        let thread = HeartbeatThread::new(state.clone(), None, store.clone(), move || Ok(reopened.clone()));
        thread.start().unwrap();
        state.ask();
        let until = SystemClock.awake() + Duration::from_secs(60);
        while pollster::block_on(store.get(&[id])).unwrap()[0].run.state.name() != StateName::Succeeded {
            assert!(SystemClock.awake() < until, "it was not delivered");
            std::thread::yield_now();
        }
        drop(thread);
        assert!(Spool::new(home.path()).waiting(&["memory:".into()], |_| true).is_empty());
    }
}
