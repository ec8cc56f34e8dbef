//! What a worker does: finds runs, attends to them, and ends them in every way there is.

use std::rc::Rc;

use super::history::{Fact, What};
use super::processes::Process;
use super::promises::Owed;
use crate::error::Error;
use crate::lifecycle::health::Observation;
use crate::lifecycle::{Fence, Refusal, Report};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::owner::LiveProcesses;
use crate::model::owner::{Evidence, Liveness};
use crate::model::run::{Progress, Run, StateName};
use crate::ownership::Stop;
use crate::ownership::handle::{Persisted, RunHandle};
use crate::registry::ResumeOptions;

impl Process {
    /// A worker's thread: finds runs and does them.
    pub(super) async fn work(self: Rc<Self>) {
        loop {
            self.nap(50, 1_500).await;
            let mut handles = self.find_work().await;
            handles.iter().for_each(|handle| self.hold(handle));
            while let Some(handle) = handles.pop() {
                self.attend(handle).await;
            }
        }
    }

    /// Notes a run that it has in its hands.
    pub(super) fn hold(&self, handle: &RunHandle) {
        let state = &mut *self.world.state();
        state.ledger.promises.hold(handle.fence(), handle.id());
        let line = What::Learned(state.ledger.number(handle.id()), handle.fence().epoch, "it is yours");
        self.world.tell(state, Some(self.index), line);
    }

    async fn find_work(&self) -> Vec<RunHandle> {
        let one = |answer: Result<RunHandle, Error>| answer.into_iter().collect();
        let found = if self.calm() { 0 } else { self.draw(9) };
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
            5 => one(self.adopt().await),
            _ => {
                let ended = [StateName::Interrupted, StateName::Dead, StateName::Failed];
                match self.some_run(Filter::in_states(ended)).await {
                    Some(id) => {
                        let how = ResumeOptions { failed_too: self.draw(2) == 0 };
                        one(self.call("resume", None, self.registry.resume(id, how)).await.0)
                    }
                    None => Vec::new(),
                }
            }
        }
    }

    /// Takes over a run whose owner has crashed, as a process that can see its processes would.
    async fn adopt(&self) -> Result<RunHandle, Error> {
        let Some(id) = self.some_run(Filter::in_states([StateName::Running])).await else {
            return Err(Error::NotFound("nothing runs".into()));
        };
        let look = |run: &Run| {
            let owner = run.owner()?.worker;
            let lives = self.world.state().processes.iter().any(|process| process.worker == owner && process.lives);
            let outcome = if lives { Liveness::Alive } else { Liveness::Dead(Evidence::LockFree) };
            Some(Observation { owner: outcome, leftovers: LiveProcesses { pids: vec![1], unseen: false } })
        };
        self.call("adopt", None, self.registry.adopt_by(id, look)).await.0
    }

    /// Does the work of one run, until it has an outcome, loses the run or lets go of it.
    pub(super) async fn attend(&self, handle: RunHandle) {
        let (run, fence) = (handle.id(), handle.fence());
        let claimed = handle.run();
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
                0 | 1 => {
                    if let Some(manifest) = self.publish(&claimed, fence).await {
                        let report = Report { manifest_ref: Some(manifest), ..Report::default() };
                        if self.call("report", Some(fence), handle.report(report)).await.0.is_err() {
                            return self.end(StateName::Failed, fence, handle).await;
                        }
                    }
                    return self.end(StateName::Succeeded, fence, handle).await;
                }
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
                14..17 => self.make_artifact(&claimed, fence).await,
                17 => drop(self.publish(&claimed, fence).await),
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
            Ok(Persisted::Committed) => self.told_recorded(run, fence, to),
            Ok(Persisted::Spooled) => self.owe(Owed { process: self.index, run, epoch: fence.epoch, to }),
            Err(Error::Refused { refusal: Refusal::Lost { .. }, .. }) => self.told_lost(run, fence, Some(call)),
            Err(error) => {
                let state = &mut *self.world.state();
                self.world.judge(state, Err(format!("an owner's outcome was not taken: {error}")));
            }
        }
    }

    pub(super) fn told_lost(&self, run: RunId, fence: Fence, ending: Option<u64>) {
        let state = &mut *self.world.state();
        state.history.counters.saw(Fact::FencedOwner);
        let number = state.ledger.number(run);
        self.world.tell(state, Some(self.index), What::Learned(number, fence.epoch, "it is lost"));
        let outcome = state.ledger.told_lost(fence, run, ending);
        self.world.judge(state, outcome);
    }

    fn told_recorded(&self, run: RunId, fence: Fence, to: StateName) {
        let state = &mut *self.world.state();
        let outcome = state.ledger.told_recorded(Owed { process: self.index, run, epoch: fence.epoch, to });
        self.world.judge(state, outcome);
    }

    fn let_go(&self, run: RunId, fence: Fence) {
        self.world.state().ledger.promises.let_go(fence, run);
    }

    pub(super) fn owe(&self, owed: Owed) {
        let state = &mut *self.world.state();
        state.history.counters.saw(Fact::EndOwed);
        let number = state.ledger.number(owed.run);
        self.world.tell(state, Some(self.index), What::Learned(number, owed.epoch, "its end is on record later"));
        state.ledger.promises.owe(owed);
    }
}
