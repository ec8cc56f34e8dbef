//! The scheduler: who goes next, how time passes, and when a history is over.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Planted;
use super::faulty::{at_once, deliver};
use super::history::{Fact, What};
use super::processes::Process;
use super::supervisor::OwnerAsked;
use super::worker::SLOTS;
use super::world::{ProcessRole, TaskState, World};
use crate::model::run::StateName;
use crate::model::time::Clock;
use crate::store::{Store, WriteOutcome};

/// How many steps without faults it may take until all is quiet.
const QUIET_WITHIN: u32 = 6_000;

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Polls the tasks of all processes.
pub(super) struct Scheduler<'a> {
    pub(super) world: &'a Arc<World>,
    pub(super) tasks: Vec<Option<Task>>,
}

/// Plays a history to its end, and answers with the first promise that was broken.
pub(super) fn play(world: &Arc<World>) -> Option<String> {
    let mut scheduler = Scheduler { world, tasks: Vec::new() };
    // Each history has some of them, so that each has the steps to get somewhere.
    let sweeps = [Planted::SweepMarkForgotten, Planted::ListingWithoutManifests];
    let drawn = world.entropy.below(4);
    let roles: &[ProcessRole] = match drawn {
        _ if world.plan.planted.is_some_and(|planted| sweeps.contains(&planted)) => {
            &[ProcessRole::Worker, ProcessRole::Engine, ProcessRole::Reaper, ProcessRole::Sweeper, ProcessRole::Sweeper]
        }
        0 => &[ProcessRole::Worker, ProcessRole::Worker, ProcessRole::Worker, ProcessRole::Reaper, ProcessRole::Reaper],
        1 => &[ProcessRole::Worker, ProcessRole::Engine, ProcessRole::Reaper, ProcessRole::Sweeper],
        2 => &[ProcessRole::Engine, ProcessRole::Engine, ProcessRole::Supervisor],
        _ => &[
            ProcessRole::Worker,
            ProcessRole::Worker,
            ProcessRole::Supervisor,
            ProcessRole::Sweeper,
            ProcessRole::Sweeper,
        ],
    };
    roles.iter().for_each(|role| scheduler.start(*role));
    scheduler.start(ProcessRole::Person);
    for step in 0..world.plan.steps {
        world.state().step = step;
        scheduler.fail_something();
        scheduler.step();
        if let Some(broken) = world.broken() {
            return Some(broken);
        }
    }
    scheduler.become_quiet()
}

impl Scheduler<'_> {
    fn spawn(&mut self, process: &Process, task: impl Future<Output = ()> + 'static) {
        self.tasks.push(Some(Box::pin(task)));
        self.world.state().tasks.push(TaskState::of(process.index()));
    }

    /// Starts a process, with a task for each of its threads.
    pub(super) fn start(&mut self, role: ProcessRole) {
        let process: Rc<Process> = Process::start(self.world, role);
        let one = process.clone();
        match role {
            ProcessRole::Worker => {
                self.spawn(&process, one.keep());
                // Two, so that one of them may take up again what the other has lost and does not know.
                self.spawn(&process, process.clone().work());
                self.spawn(&process, process.clone().work());
            }
            ProcessRole::Engine => {
                let worker = process.engine();
                self.spawn(&process, one.keep());
                self.spawn(&process, process.clone().claim_for_slots(worker.clone()));
                self.spawn(&process, process.clone().record_ends(worker.clone()));
                self.spawn(&process, process.clone().look_after(worker.clone()));
                for _ in 0..SLOTS {
                    self.spawn(&process, process.clone().serve_slot(worker.clone()));
                }
            }
            // Only a supervisor starts one, and says for which run.
            ProcessRole::Owner => {}
            ProcessRole::Supervisor => self.spawn(&process, one.supervise()),
            ProcessRole::Reaper => self.spawn(&process, one.reap()),
            ProcessRole::Sweeper => self.spawn(&process, one.sweep()),
            ProcessRole::Person => self.spawn(&process, one.meddle()),
        }
    }

    /// Stops the tasks of processes whose role `goes`.
    fn stop_all(&mut self, goes: impl Fn(ProcessRole) -> bool) {
        for index in 0..self.tasks.len() {
            let state = self.world.state();
            let process = state.tasks[index].process;
            let is_meant = goes(state.processes[process].role);
            drop(state);
            if is_meant {
                self.tasks[index] = None;
            }
        }
    }

    /// Starts the owners that supervisors asked for.
    fn start_owners(&mut self) {
        let asked = std::mem::take(&mut self.world.state().owners_asked);
        for OwnerAsked { by, run } in asked {
            let owner = Process::start(self.world, ProcessRole::Owner);
            self.spawn(&owner, owner.clone().keep());
            self.spawn(&owner, owner.clone().own(by, run));
        }
    }

    /// Polls one task that is ready. If none is, time passes until one is.
    fn step(&mut self) {
        self.start_owners();
        self.pass_time();
        self.deliver_late();
        let now = self.world.clock.awake();
        let Some(chosen) = self.choose(now) else { return };
        self.world.state().turn = chosen;
        if let Some(task) = &mut self.tasks[chosen]
            && let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.tasks[chosen] = None;
        }
    }

    /// A task that is ready. If none is, time passes until one is. Plain loops: this is where a history spends its time.
    fn choose(&self, now: Duration) -> Option<usize> {
        let state = self.world.state();
        let (mut ready, mut first) = (0, Duration::MAX);
        for (index, task) in self.tasks.iter().enumerate() {
            if task.is_some() {
                let due = state.due(index);
                ready += u64::from(due <= now);
                first = first.min(due);
            }
        }
        if ready == 0 {
            self.world.clock.pass(first.saturating_sub(now));
            return None;
        }
        let mut left = self.world.entropy.below(ready);
        for (index, task) in self.tasks.iter().enumerate() {
            if task.is_some() && state.due(index) <= now {
                if left == 0 {
                    return Some(index);
                }
                left -= 1;
            }
        }
        None
    }

    fn pass_time(&self) {
        let (calm, entropy) = (self.world.state().calm, &self.world.entropy);
        let passes = match entropy.below(60) {
            0 if !calm => self.world.between(500, 4_000),
            0..30 => self.world.between(0, 40),
            _ => Duration::ZERO,
        };
        self.world.clock.pass(passes);
        let state = &mut *self.world.state();
        if state.outage_until.is_some_and(|until| until <= self.world.clock.awake()) {
            state.outage_until = None;
            self.world.memory.was_deaf();
            state.ledger.hears_again(self.world.clock.awake());
            self.world.tell(state, None, What::World("the store is back".into()));
        }
    }

    /// Delivers the writes that were on their way. A store that is away takes none.
    fn deliver_late(&self) {
        let state = &mut *self.world.state();
        if state.outage_until.is_some() || state.late.is_empty() {
            return;
        }
        let now = self.world.clock.awake();
        let (due, waiting) = std::mem::take(&mut state.late).into_iter().partition(|late| late.due <= now);
        state.late = waiting;
        let due: Vec<_> = due;
        for late in due {
            let landed = deliver(self.world, state, &late.author, late.write, true);
            let landed = matches!(landed, Ok(WriteOutcome::Done(_)));
            state.history.counters.saw(if landed { Fact::LateLanded } else { Fact::LateVoid });
        }
    }

    /// Plays on without faults until every run has ended or waits by design, and no end is deferred.
    fn become_quiet(&mut self) -> Option<String> {
        {
            let state = &mut *self.world.state();
            state.calm = true;
            self.world.tell(state, None, What::World("nothing fails any more".into()));
        }
        // Nothing is asked for or deleted any more: what is open must end by what others do.
        self.stop_all(|role| matches!(role, ProcessRole::Person | ProcessRole::Sweeper));
        let roles: &[ProcessRole] = match self.world.entropy.below(3) {
            0 => &[ProcessRole::Worker, ProcessRole::Reaper],
            1 => &[ProcessRole::Engine],
            _ => &[ProcessRole::Engine, ProcessRole::Supervisor],
        };
        roles.iter().for_each(|role| self.start(*role));
        for step in 0..QUIET_WITHIN {
            self.world.state().step = self.world.plan.steps + step;
            self.step();
            if let Some(broken) = self.world.broken() {
                return Some(broken);
            }
            if step % 16 == 0 && self.is_quiet() {
                return self.compare_with_store();
            }
        }
        let state = &mut *self.world.state();
        let mut open: Vec<String> = state
            .ledger
            .records()
            .filter(|(_, record)| !is_at_rest(record.run.state.name()))
            .map(|(number, record)| format!("run {number} is still {}", record.run.state.name()))
            .collect();
        open.extend(state.ledger.owed_ends(|process| state.processes[process].lives).lost);
        let broken = format!("not quiet after {QUIET_WITHIN} steps without faults: {}", open.join("; "));
        self.world.judge(state, Err(broken.clone()));
        Some(broken)
    }

    /// Whether the store holds what the ledger says, to the last write.
    fn compare_with_store(&self) -> Option<String> {
        let state = &mut *self.world.state();
        let outcome = state.ledger.records().try_for_each(|(number, entered)| {
            let found = at_once(self.world.memory.get(&[entered.run.id])).unwrap_or_default().pop();
            match found.is_some_and(|found| (found.revision, found.stamp) == (entered.revision, entered.stamp)) {
                true => Ok(()),
                false => Err(format!("run {number}: the store holds another record than was written last")),
            }
        });
        let outcome = outcome.and_then(|()| self.world.check_published(state));
        self.world.judge(state, outcome.clone());
        outcome.err()
    }

    fn is_quiet(&self) -> bool {
        let state = &mut *self.world.state();
        let owed = state.ledger.owed_ends(|process| state.processes[process].lives);
        let quiet = owed.lost.is_empty()
            && state.late.is_empty()
            && state.ledger.records().all(|(_, record)| is_at_rest(record.run.state.name()));
        if quiet {
            let counters = &mut state.history.counters;
            (0..owed.delivered).for_each(|_| counters.saw(Fact::OwedDelivered));
            (0..owed.void).for_each(|_| counters.saw(Fact::OwedVoid));
        }
        quiet
    }
}

fn is_at_rest(state: StateName) -> bool {
    state.is_ended() || state == StateName::Suspended
}
