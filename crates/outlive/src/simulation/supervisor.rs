//! The supervisor in a history: its passes, and the owners that it starts.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::history::Fact;
use super::processes::Process;
use crate::engine::supervisor::{Owners, Supervisor, SupervisorEvent};
use crate::error::Error;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::Run;

/// How many runs of the queue a supervisor has executed at a time.
const SLOTS: usize = 2;
/// The most owners that the supervisors of a history start.
const OWNERS: usize = 6;

/// The owners of a simulated supervisor: an order that the scheduler carries out, and its answer.
struct SimulatedOwners {
    process: Rc<Process>,
    starting: BTreeSet<RunId>,
    /// The runs of the last reap, which the ledger is asked about.
    reaped: Vec<Run>,
}

impl Owners for SimulatedOwners {
    fn starting(&self) -> usize {
        self.starting.len()
    }

    fn is_starting(&self, run: RunId) -> bool {
        self.starting.contains(&run)
    }

    fn started(&mut self) -> Vec<(RunId, Result<(), String>)> {
        let state = &mut *self.process.world.state();
        let (own, others) =
            std::mem::take(&mut state.owners_started).into_iter().partition(|started| started.by == self.process.index);
        state.owners_started = others;
        let own: Vec<OwnerStarted> = own;
        self.starting.retain(|run| own.iter().all(|started| started.run != *run));
        own.into_iter().map(|started| (started.run, started.answer)).collect()
    }

    fn check(&self, _: &Run) -> Result<(), String> {
        match self.process.world.state().owners_made < OWNERS {
            true => Ok(()),
            false => Err("enough owners were started in this history".into()),
        }
    }

    fn start(&mut self, run: &Run, _: bool) -> Result<(), Error> {
        let state = &mut *self.process.world.state();
        state.owners_made += 1;
        state.owners_asked.push(OwnerAsked { by: self.process.index, run: run.id });
        state.history.counters.saw(Fact::OwnerStarted);
        self.starting.insert(run.id);
        Ok(())
    }

    fn notify(&mut self, event: SupervisorEvent<'_>) {
        if let SupervisorEvent::Reaped(reaped) = event {
            self.reaped.extend(reaped.ended.iter().cloned());
        }
    }
}

/// An owner that a supervisor asked for.
pub(super) struct OwnerAsked {
    pub(super) by: usize,
    pub(super) run: RunId,
}

/// The answer of an owner.
pub(super) struct OwnerStarted {
    pub(super) by: usize,
    pub(super) run: RunId,
    pub(super) answer: Result<(), String>,
}

impl Process {
    /// A supervisor's loop.
    pub(super) async fn supervise(self: Rc<Self>) {
        let mut supervisor = Supervisor::new(self.registry.worker(), SLOTS);
        let mut owners = SimulatedOwners { process: self.clone(), starting: BTreeSet::new(), reaped: Vec::new() };
        loop {
            let passed = self.call("a supervisor's pass", None, supervisor.pass(&self.registry, &mut owners)).await.0;
            for run in owners.reaped.drain(..) {
                self.told_reaped(&run);
            }
            // Writes of others wake it, at any time.
            let most = passed.unwrap_or(crate::engine::supervisor::LOOK_EVERY);
            let most = u64::try_from(most.as_millis()).unwrap_or_default().clamp(60, 2_000);
            self.nap(50, most).await;
        }
    }

    /// An owner that a supervisor started: claims its run, says so, and attends to it.
    pub(super) async fn own(self: Rc<Self>, by: usize, run: RunId) {
        self.nap(5, 300).await;
        let claimed = self.call("claim", None, self.registry.claim(Filter::of([run]), 1)).await.0;
        let answer = match &claimed {
            Ok(handles) if handles.is_empty() => Err("another owner was faster".into()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        self.world.state().owners_started.push(OwnerStarted { by, run, answer });
        for handle in claimed.into_iter().flatten() {
            self.hold(&handle);
            self.attend(handle).await;
        }
    }
}
