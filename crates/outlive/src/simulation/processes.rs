//! What the processes of a history do: they use the registry as anybody would, and tell the ledger what they were told.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Planted;
use super::faulty::Faulty;
use super::history::{Fact, What};
use super::promises::Owed;
use super::world::{ProcessState, SkewedClock, World, lease};
use crate::error::Error;
use crate::filter::Filter;
use crate::id::RunId;
use crate::policy::{OrphanPolicy, Retry};
use crate::registry::Registry;
use crate::run::{Actor, Key, Progress, Spec, StateName};
use crate::runtime::handle::{Recorded, RunHandle};
use crate::runtime::keeper::Stop;
use crate::runtime::reaper::Reaper;
use crate::store::{self, Page};
use crate::testing::{spec, stranger};
use crate::transition::{Fence, Refusal, Report};

/// One process, from its start to its end.
pub(super) struct Process {
    world: Arc<World>,
    index: usize,
    registry: Registry,
}

impl Process {
    /// Starts one. `works` says that it beats, and may own runs.
    pub(super) fn start(world: &Arc<World>, role: &str, works: bool) -> Rc<Self> {
        let index = world.state().processes.len();
        let name = format!("{role} {index}");
        let pid = u32::try_from(index).unwrap_or_default() + 100;
        let me = Actor { user: name.clone(), host: "simulated".into(), pid };
        let clock = SkewedClock::new(world.clock.clone());
        let store = Arc::new(Faulty::new(world.clone(), index));
        let mut registry = Registry::over(store, clock.clone(), world.entropy.clone(), me, stranger(pid));
        if role == "reaper" && world.plan.planted == Some(Planted::OwnWriteByEquality) {
            registry = registry.recognising_by(|record, _| record.run.ending().is_some());
        }
        let worker = registry.worker().expect("a simulated registry has a worker from the start");
        let stands_still_until = Duration::ZERO;
        world.state().processes.push(ProcessState { name, worker, clock, lives: true, stands_still_until, works });
        Rc::new(Self { world: world.clone(), index, registry })
    }

    /// Its number.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    fn draw(&self, bound: u64) -> u64 {
        self.world.entropy.below(bound)
    }

    fn calm(&self) -> bool {
        self.world.state().calm
    }

    async fn nap(&self, least_ms: u64, most_ms: u64) {
        let duration = self.world.between(least_ms, most_ms);
        self.world.nap(duration).await;
    }

    /// The keeper's thread: beats for ever.
    pub(super) async fn keep(self: Rc<Self>) {
        loop {
            self.nap(1_600, 2_000).await;
            // The keeper's loop does not look at the answer either: what matters is told to the holders.
            let _ = self.registry.tick().await;
        }
    }

    /// A reaper's loop.
    pub(super) async fn reap(self: Rc<Self>) {
        let mut reaper = Reaper::new(self.registry.worker());
        loop {
            self.nap(500, 3_000).await;
            let Ok(reaped) = self.call("a reaper's pass", None, reaper.pass(&self.registry)).await.0 else { continue };
            for run in reaped.ended {
                let state = &mut *self.world.state();
                let verdict = state.ledger.told_won(self.index, run.id, run.epoch);
                state.history.counters.saw(Fact::ReapWon);
                let number = state.ledger.number(run.id);
                self.world.tell(state, Some(self.index), What::Told(number, run.epoch, "it was reaped by you"));
                self.world.judge(state, verdict);
            }
        }
    }

    /// A person, who enqueues, cancels and tidies up.
    pub(super) async fn meddle(self: Rc<Self>) {
        loop {
            self.nap(500, 4_000).await;
            if self.calm() {
                continue;
            }
            if self.draw(4) == 0 {
                drop(self.call("enqueue", None, self.registry.enqueue(self.some_spec())).await);
                continue;
            }
            let Some(id) = self.some_run(Filter::default()).await else { continue };
            match self.draw(5) {
                0 => drop(self.call("unarchive", None, self.registry.archive(id, false)).await),
                1 | 2 => drop(self.call("archive", None, self.registry.archive(id, true)).await),
                _ => drop(self.call("cancel", None, self.registry.cancel(id, None)).await),
            }
        }
    }

    /// A worker's thread: finds runs and does them.
    pub(super) async fn work(self: Rc<Self>) {
        loop {
            self.nap(50, 1_500).await;
            let mut handles = self.find_work().await;
            for handle in &handles {
                let state = &mut *self.world.state();
                state.ledger.promises.hold(handle.fence(), handle.id());
                let number = state.ledger.number(handle.id());
                let told = What::Told(number, handle.fence().epoch, "it is yours");
                self.world.tell(state, Some(self.index), told);
            }
            while let Some(handle) = handles.pop() {
                self.attend(handle).await;
            }
        }
    }

    async fn find_work(&self) -> Vec<RunHandle> {
        let one = |answer: Result<RunHandle, Error>| answer.into_iter().collect();
        let found = if self.calm() { 0 } else { self.draw(8) };
        match found {
            0..3 => {
                let claimed = self.call("claim", None, self.registry.claim(Filter::default(), 2)).await.0;
                claimed.unwrap_or_default()
            }
            3 => one(self.call("start", None, self.registry.start(self.some_spec())).await.0),
            4 => match self.some_run(Filter::in_states([StateName::Suspended])).await {
                Some(id) => one(self.call("wake", None, self.registry.wake(id)).await.0),
                None => Vec::new(),
            },
            _ => {
                let ended = [StateName::Interrupted, StateName::Dead, StateName::Failed];
                match self.some_run(Filter::in_states(ended)).await {
                    Some(id) => one(self.call("resume", None, self.registry.resume(id, self.draw(2) == 0)).await.0),
                    None => Vec::new(),
                }
            }
        }
    }

    async fn some_run(&self, filter: Filter) -> Option<RunId> {
        let (seen, _) = self.registry.list(&filter, &Page::default()).await.ok()?;
        let chosen = self.draw(seen.len() as u64);
        seen.get(usize::try_from(chosen).unwrap_or_default()).map(|seen| seen.run.id)
    }

    fn some_spec(&self) -> Spec {
        let mut spec = spec("simulated");
        spec.policy.lease = lease();
        spec.policy.retry = Retry { backoff_cap: Duration::from_secs(2), ..Retry::default() };
        spec.policy.orphans = [OrphanPolicy::Dead, OrphanPolicy::Dead, OrphanPolicy::Requeue, OrphanPolicy::Fail]
            [usize::try_from(self.draw(4)).unwrap_or_default()];
        if self.draw(2) == 0 {
            spec.keys = vec![Key { name: "shared".into(), limit: 2 }];
        }
        spec
    }

    /// Does the work of one run, until it has a verdict, loses the run or lets go of it.
    async fn attend(&self, handle: RunHandle) {
        let (run, fence) = (handle.id(), handle.fence());
        loop {
            self.nap(50, 1_800).await;
            match handle.stop_requested() {
                Some(Stop::Lost) => {
                    self.told_lost(run, fence, None);
                    self.let_go(run, fence);
                    return;
                }
                Some(Stop::Cancelled(_)) => return self.end(StateName::Cancelled, fence, handle).await,
                Some(Stop::TimedOut) => return self.end(StateName::Failed, fence, handle).await,
                Some(Stop::LeaseOver) => return self.end(StateName::Interrupted, fence, handle).await,
                None => {}
            }
            match if self.calm() { 0 } else { self.draw(24) } {
                0 | 1 => return self.end(StateName::Succeeded, fence, handle).await,
                2 => return self.end(StateName::Failed, fence, handle).await,
                3 => return self.end(StateName::Interrupted, fence, handle).await,
                4 => {
                    self.let_go(run, fence);
                    let reason = "waits for an approval";
                    return drop(self.call("suspend", Some(fence), handle.suspend(reason)).await);
                }
                5 => {
                    self.let_go(run, fence);
                    self.owe(Owed { process: self.index, run, epoch: fence.epoch, to: StateName::Failed });
                    return;
                }
                6..14 => {
                    let progress = Some(Progress { done: Some(self.draw(100)), ..Progress::default() });
                    let report = Report { progress, checkpoint: Some(self.draw(100).into()), ..Report::default() };
                    let (answer, _) = self.call("report", Some(fence), handle.report(report)).await;
                    if let Err(Error::Refused { refusal: Refusal::Lost { .. }, .. }) = answer {
                        self.told_lost(run, fence, None);
                        self.let_go(run, fence);
                        return;
                    }
                }
                _ => {}
            }
        }
    }

    async fn end(&self, to: StateName, fence: Fence, handle: RunHandle) {
        let run = handle.id();
        self.let_go(run, fence);
        let (answer, call) = match to {
            StateName::Succeeded => self.call("succeed", Some(fence), handle.succeed()).await,
            StateName::Cancelled => self.call("cancelled", Some(fence), handle.cancelled()).await,
            StateName::Interrupted => self.call("interrupt", Some(fence), handle.interrupt(None, "asked to")).await,
            _ => self.call("fail", Some(fence), handle.fail("simulated", "as drawn")).await,
        };
        match answer {
            Ok(Recorded::Now) => self.told_recorded(run, fence, to),
            Ok(Recorded::Later) => self.owe(Owed { process: self.index, run, epoch: fence.epoch, to }),
            Err(Error::Refused { refusal: Refusal::Lost { .. }, .. }) => self.told_lost(run, fence, Some(call)),
            Err(error) => {
                let state = &mut *self.world.state();
                self.world.judge(state, Err(format!("an owner's verdict was not taken: {error}")));
            }
        }
    }

    /// Makes a call, and holds its answer against what the call did. Answers also with the call's number.
    async fn call<T>(
        &self,
        what: &'static str,
        fence: Option<Fence>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> (Result<T, Error>, u64) {
        let id = self.world.begin(self.index, what, fence);
        let answer = call.await;
        let told = answer.as_ref().err().map_or_else(|| "done".into(), ToString::to_string);
        self.world.end(self.index, what, told);
        let says_nothing_written = match &answer {
            Ok(_) | Err(Error::Store(store::Error::Unknown(_))) => false,
            // That the run is lost is true, and what matters, whether or not an earlier report is on record.
            Err(Error::Refused { refusal: Refusal::Lost { .. }, .. }) => false,
            // A reaper's pass makes several writes, each of which may go another way.
            Err(_) => what != "a reaper's pass",
        };
        if says_nothing_written {
            let state = &mut *self.world.state();
            let verdict = state.ledger.promises.told_nothing_written(id).map_err(|broken| format!("{what}: {broken}"));
            self.world.judge(state, verdict);
        }
        (answer, id)
    }

    fn told_lost(&self, run: RunId, fence: Fence, ending: Option<u64>) {
        let state = &mut *self.world.state();
        state.history.counters.saw(Fact::FencedOwner);
        let number = state.ledger.number(run);
        self.world.tell(state, Some(self.index), What::Told(number, fence.epoch, "it is lost"));
        let verdict = state.ledger.told_lost(fence, run, ending);
        self.world.judge(state, verdict);
    }

    fn told_recorded(&self, run: RunId, fence: Fence, to: StateName) {
        let state = &mut *self.world.state();
        let verdict = state.ledger.told_recorded(Owed { process: self.index, run, epoch: fence.epoch, to });
        self.world.judge(state, verdict);
    }

    fn let_go(&self, run: RunId, fence: Fence) {
        self.world.state().ledger.promises.let_go(fence, run);
    }

    fn owe(&self, owed: Owed) {
        let state = &mut *self.world.state();
        state.history.counters.saw(Fact::EndOwed);
        let number = state.ledger.number(owed.run);
        self.world.tell(state, Some(self.index), What::Told(number, owed.epoch, "its end is on record later"));
        state.ledger.promises.owe(owed);
    }
}
