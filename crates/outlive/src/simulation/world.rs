//! The world: what all processes of a history share, and what only the simulation may know.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use super::Plan;
use super::artifacts::Artifact;
use super::clock::SkewedClock;
use super::history::{Fact, History, HistoryLine, What};
use super::ledger::{Author, Ledger};
use super::promises::is_forgotten;
use super::rules::Wrote;
use super::supervisor::{OwnerAsked, OwnerStarted};
use crate::lifecycle::Fence;
use crate::model::id::WorkerId;
use crate::model::run::{Run, StateName};
use crate::model::time::Clock;
use crate::store::Write;
use crate::store::memory::MemoryStore;
use crate::testing::{ManualClock, SeededEntropy};
use crate::util::sync::lock;

/// What a process is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProcessRole {
    /// Finds runs in every way there is, and attends to them.
    Worker,
    /// The engine's worker.
    Engine,
    /// Owns one run that a supervisor started it for.
    Owner,
    Supervisor,
    Reaper,
    Sweeper,
    Person,
}

impl ProcessRole {
    /// The word for it.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Engine => "engine",
            Self::Owner => "owner",
            Self::Supervisor => "supervisor",
            Self::Reaper => "reaper",
            Self::Sweeper => "sweeper",
            Self::Person => "person",
        }
    }
}

/// A process as the simulation knows it.
pub(super) struct ProcessState {
    pub(super) name: String,
    pub(super) worker: WorkerId,
    pub(super) clock: Arc<SkewedClock>,
    pub(super) lives: bool,
    pub(super) stands_still_until: Duration,
    pub(super) role: ProcessRole,
}

/// One thread of a process, as far as others must know of it.
pub(super) struct TaskState {
    pub(super) process: usize,
    pub(super) sleeps_until: Duration,
    call: Option<Call>,
}

impl TaskState {
    pub(super) fn of(process: usize) -> Self {
        Self { process, sleeps_until: Duration::ZERO, call: None }
    }
}

#[derive(Clone, Copy)]
struct Call {
    id: u64,
    fence: Option<Fence>,
}

/// A write that was sent and will arrive.
pub(super) struct Late {
    pub(super) due: Duration,
    pub(super) author: Author,
    pub(super) write: Write,
}

/// Everything that changes.
#[derive(Default)]
pub(super) struct WorldState {
    pub(super) history: History,
    pub(super) ledger: Ledger,
    pub(super) processes: Vec<ProcessState>,
    pub(super) tasks: Vec<TaskState>,
    pub(super) late: Vec<Late>,
    /// What is in the bucket of artifacts.
    pub(super) objects: BTreeMap<String, Artifact>,
    /// Owners that supervisors asked for and that are not started.
    pub(super) owners_asked: Vec<OwnerAsked>,
    /// What owners have answered that no supervisor has heard.
    pub(super) owners_started: Vec<OwnerStarted>,
    /// A run as it was before it was claimed last. Only a planted defect looks at it.
    pub(super) last_claimed: Option<Run>,
    /// How many owners supervisors have asked for.
    pub(super) owners_made: usize,
    pub(super) outage_until: Option<Duration>,
    /// Nothing fails any more.
    pub(super) calm: bool,
    pub(super) step: u32,
    /// The task that is polled.
    pub(super) turn: usize,
    calls: u64,
    broken: Option<String>,
}

impl WorldState {
    /// When a task is polled next: it sleeps until then, or its process stands still.
    pub(super) fn due(&self, task: usize) -> Duration {
        let task = &self.tasks[task];
        task.sleeps_until.max(self.processes[task.process].stands_still_until)
    }
}

/// What all processes share.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) clock: Arc<ManualClock>,
    pub(super) entropy: Arc<SeededEntropy>,
    pub(super) memory: MemoryStore,
    born: Duration,
    state: Mutex<WorldState>,
}

impl World {
    pub(super) fn new(seed: u64, plan: Plan) -> Arc<Self> {
        let clock = ManualClock::new();
        Arc::new(Self {
            plan,
            memory: MemoryStore::new(clock.clone()),
            entropy: Arc::new(SeededEntropy::new(seed)),
            born: clock.awake(),
            clock,
            state: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, WorldState> {
        // Only one thread plays a history; a panic ends it.
        lock(&self.state)
    }

    pub(super) fn take_history(&self) -> History {
        std::mem::take(&mut self.state().history)
    }

    /// The first promise that was broken.
    pub(super) fn broken(&self) -> Option<String> {
        self.state().broken.clone()
    }

    pub(super) fn between(&self, least_ms: u64, most_ms: u64) -> Duration {
        Duration::from_micros(least_ms * 1_000 + self.entropy.below((most_ms - least_ms) * 1_000 + 1))
    }

    /// Enters a line; by `process`, or by none.
    pub(super) fn tell(&self, state: &mut WorldState, process: Option<usize>, what: What) {
        let who = process.map_or_else(String::new, |process| state.processes[process].name.clone());
        state.history.lines.push(HistoryLine { step: state.step, at: self.clock.awake() - self.born, who, what });
    }

    /// Enters what was found to be broken. What breaks later may only follow from it.
    pub(super) fn judge(&self, state: &mut WorldState, outcome: Result<(), String>) {
        if let Err(broken) = outcome {
            self.tell(state, None, What::World(format!("BROKEN: {broken}")));
            state.broken.get_or_insert(broken);
        }
    }

    /// Enters a write that took effect.
    pub(super) fn wrote(&self, state: &mut WorldState, author: &Author, wrote: &Wrote<'_>, late: bool) {
        let run = &wrote.after.run;
        let outcome = state.ledger.wrote(author, wrote, self.clock.awake());
        let owner = run.owner().map(|owner| {
            let named = state.processes.iter().find(|process| process.worker == owner.worker);
            named.map_or_else(|| owner.worker.to_string(), |process| process.name.clone())
        });
        let line = What::Wrote {
            run: state.ledger.number(run.id),
            revision: wrote.after.revision,
            action: wrote.action().into(),
            to: run.state.name(),
            epoch: run.epoch,
            attempt: run.attempt,
            owner,
            late,
        };
        self.tell(state, Some(author.process), line);
        let counters = &mut state.history.counters;
        match (wrote.action(), run.state.name()) {
            ("claim", _) => counters.saw(Fact::Claim),
            ("resume", _) => counters.saw(Fact::Resume),
            ("wake", _) => counters.saw(Fact::Wake),
            ("adopt", _) => counters.saw(Fact::Adopt),
            ("reap", to) => {
                counters.saw(Fact::Reap);
                if to == StateName::Pending {
                    counters.saw(Fact::Requeue);
                }
            }
            ("finish" | "interrupt", StateName::Cancelled) => counters.saw(Fact::CancelHonoured),
            _ => {}
        }
        if is_forgotten(wrote) {
            counters.saw(Fact::Forgotten);
        }
        self.judge(state, outcome);
    }

    /// Who is writing.
    pub(super) fn author(&self, state: &WorldState, process: usize) -> Author {
        let call = state.tasks[state.turn].call;
        Author {
            process,
            worker: state.processes[process].worker,
            call: call.map(|call| call.id),
            fence: call.and_then(|call| call.fence),
        }
    }

    /// The task that is polled makes a call.
    pub(super) fn begin(&self, process: usize, what: &'static str, fence: Option<Fence>) -> u64 {
        let state = &mut *self.state();
        state.calls += 1;
        let id = state.calls;
        let turn = state.turn;
        state.tasks[turn].call = Some(Call { id, fence });
        self.tell(state, Some(process), What::Called(what));
        id
    }

    /// It has its answer.
    pub(super) fn end(&self, process: usize, what: &'static str, answer: String) {
        let state = &mut *self.state();
        let turn = state.turn;
        state.tasks[turn].call = None;
        self.tell(state, Some(process), What::Answered(what, answer));
    }

    /// Has the task that is polled wait.
    pub(super) async fn nap(&self, duration: Duration) {
        let until = self.clock.awake() + duration;
        poll_fn(|_| {
            let state = &mut *self.state();
            let turn = state.turn;
            if self.clock.awake() >= until {
                return Poll::Ready(());
            }
            state.tasks[turn].sleeps_until = until;
            Poll::Pending
        })
        .await;
    }

    /// Lets others go first.
    pub(super) async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|_| if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }).await;
    }
}
