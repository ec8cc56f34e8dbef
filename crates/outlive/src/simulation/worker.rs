//! The engine's worker in a history: the steps of its threads, each polled as a task of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::clock::lease;
use super::history::{Fact, What};
use super::processes::{KIND, Process};
use super::promises::Owed;
use crate::engine::worker::{
    Batch, CLAIM_BATCH, Claimer, Done, END_BATCH, Failed, NextClaim, StopReason, Task, WorkerContext,
    WorkerMaintenance, WorkerTiming,
};
use crate::lifecycle::{Fence, Report};
use crate::model::run::{Progress, Run, StateName};
use crate::ownership::Stop;

/// How many runs it does at a time.
pub(super) const SLOTS: usize = 2;
/// How often it looks for silent workers, and for work.
const EVERY: Duration = Duration::from_secs(1);

impl Process {
    /// What the steps of its worker share.
    pub(super) fn engine(self: &Rc<Self>) -> Rc<WorkerContext> {
        let times = WorkerTiming::new(lease().beat(), lease().lasts(), EVERY, EVERY).expect("times that hold together");
        let (world, process) = (self.world.clone(), self.index);
        let on_end = move |attempt: &Run| {
            let state = &mut *world.state();
            let outcome = state.ledger.told_ended(process, attempt);
            let number = state.ledger.number(attempt.id);
            world.tell(state, Some(process), What::Learned(number, attempt.epoch, "its end is on record"));
            world.judge(state, outcome);
        };
        Rc::new(WorkerContext::stepped(self.registry.clone(), KIND, SLOTS, times, on_end))
    }

    /// The thread that claims.
    pub(super) async fn claim_for_slots(self: Rc<Self>, worker: Rc<WorkerContext>) {
        let mut claimer = Claimer::new(&worker);
        while let Some(room) = worker.floor.try_room(CLAIM_BATCH) {
            let next = if room == 0 { NextClaim::Poll(Duration::ZERO) } else { claimer.step(room).await };
            let pause = match next {
                // A notification may end it early, and a full worker waits for a slot.
                NextClaim::Poll(most) => {
                    self.world.between(20, 20 + u64::try_from(most.as_millis()).unwrap_or_default())
                }
                NextClaim::Retry(pause) => pause,
            };
            self.world.nap(pause).await;
        }
    }

    /// A slot: has one run after the other done by a handler.
    pub(super) async fn serve_slot(self: Rc<Self>, worker: Rc<WorkerContext>) {
        loop {
            let Some(task) = worker.floor.try_next() else {
                self.nap(200, 1_500).await;
                continue;
            };
            let (run, fence) = (task.handle.id(), task.handle.fence());
            {
                let state = &mut *self.world.state();
                state.ledger.promises.hold(fence, run);
                state.history.counters.saw(Fact::HandlerCalled);
                let number = state.ledger.number(run);
                self.world.tell(state, Some(self.index), What::Learned(number, fence.epoch, "its handler is called"));
            }
            let returned = self.handle_run(&task).await;
            let owed = owed(&returned, task.stop_reason());
            self.world.state().ledger.promises.let_go(fence, run);
            match owed {
                Some(to) => self.owe(Owed { process: self.index, run, epoch: fence.epoch, to }),
                None => self.told_lost(run, fence, None),
            }
            let answer = task.answer(returned);
            worker.floor.returned(&task, answer);
        }
    }

    /// A handler: reports, makes artifacts, and returns in every way there is.
    async fn handle_run(&self, task: &Arc<Task>) -> Result<Done, Failed> {
        let (run, fence): (Run, Fence) = (task.handle.run(), task.handle.fence());
        loop {
            self.nap(50, 1_800).await;
            if task.stop_reason().is_some() {
                return Ok(Done::Stopped);
            }
            match if self.calm() { 0 } else { self.draw(16) } {
                0..3 => {
                    if let Some(manifest) = self.publish(&run, fence).await {
                        // What it comes to is known when the run ends: one that was lost meanwhile is refused then.
                        let report = Report { manifest_ref: Some(manifest), ..Report::default() };
                        if task.handle.report(report).await.is_err() {
                            return Err(Failed::new("manifest", "it could not be reported"));
                        }
                    }
                    return Ok(Done::Succeeded(self.draw(100).into()));
                }
                3 => return Err(Failed::new("simulated", "as drawn")),
                4 => return Ok(Done::Suspended("waits for an approval".into())),
                5..9 => self.make_artifact(&run, fence).await,
                9 => drop(task.handle.set_checkpoint(self.draw(100).into()).await),
                10 => {
                    drop(task.handle.post_progress(Progress { done: Some(self.draw(100)), ..Progress::default() }));
                }
                // It publishes its manifest and continues to work: a crash leaves a manifest that no record names.
                11 => drop(self.publish(&run, fence).await),
                _ => {}
            }
        }
    }

    /// The thread that records ends.
    pub(super) async fn record_ends(self: Rc<Self>, worker: Rc<WorkerContext>) {
        loop {
            let Some(ends) = worker.floor.try_ends(END_BATCH) else {
                self.nap(100, 1_500).await;
                continue;
            };
            let mut batch = Batch::new(&worker, ends);
            while let Some(pause) = batch.step().await {
                self.world.nap(pause).await;
            }
            batch.close();
        }
    }

    /// The thread that maintains the registry.
    pub(super) async fn look_after(self: Rc<Self>, worker: Rc<WorkerContext>) {
        let mut maintenance = WorkerMaintenance::new(&worker);
        loop {
            self.world.nap(worker.spread(EVERY)).await;
            // The thread reports a failure to its caller, and passes again.
            let _ = maintenance.pass(worker.registry.clock().awake()).await;
        }
    }
}

/// How a run must be on record whose handler returned this; none where it is lost.
fn owed(returned: &Result<Done, Failed>, stop: Option<StopReason>) -> Option<StateName> {
    Some(match (returned, stop) {
        (_, Some(StopReason::Run(Stop::Lost))) => return None,
        (Ok(Done::Succeeded(_)), _) => StateName::Succeeded,
        (Ok(Done::Suspended(_)), _) => StateName::Suspended,
        (Ok(Done::Stopped), Some(StopReason::Run(Stop::Cancelled(_)))) => StateName::Cancelled,
        (Ok(Done::Stopped), _) => StateName::Interrupted,
        (Err(_), _) => StateName::Failed,
    })
}
