//! The scheduler: who goes next, how time passes, and when a history is over.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::faulty::{at_once, deliver};
use super::history::{Fact, What};
use super::processes::Process;
use super::world::{TaskState, World};
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
    for _ in 0..3 {
        scheduler.start_worker();
    }
    for _ in 0..2 {
        scheduler.start_reaper();
    }
    let person = Process::start(world, "person", false);
    scheduler.spawn(&person, person.clone().meddle());
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

    pub(super) fn start_worker(&mut self) {
        let worker: Rc<Process> = Process::start(self.world, "worker", true);
        self.spawn(&worker, worker.clone().keep());
        // Two, so that one of them may take up again what the other has lost and does not know.
        self.spawn(&worker, worker.clone().work());
        self.spawn(&worker, worker.clone().work());
    }

    pub(super) fn start_reaper(&mut self) {
        let reaper = Process::start(self.world, "reaper", false);
        self.spawn(&reaper, reaper.clone().reap());
    }

    /// Polls one task that is ready. If none is, time passes until one is.
    fn step(&mut self) {
        self.pass_time();
        self.deliver_late();
        let now = self.world.clock.awake();
        let (mut ready, mut first) = (Vec::new(), None);
        {
            let state = self.world.state();
            for (index, _) in self.tasks.iter().enumerate().filter(|(_, task)| task.is_some()) {
                let sleeper = &state.tasks[index];
                let due = sleeper.sleeps_until.max(state.processes[sleeper.process].stands_still_until);
                if due <= now {
                    ready.push(index);
                }
                first = Some(first.map_or(due, |first: Duration| first.min(due)));
            }
        }
        if ready.is_empty() {
            self.world.clock.pass(first.unwrap_or(now).saturating_sub(now));
            return;
        }
        let chosen = ready[usize::try_from(self.world.entropy.below(ready.len() as u64)).unwrap_or_default()];
        self.world.state().turn = chosen;
        if let Some(task) = &mut self.tasks[chosen]
            && let Poll::Ready(()) = task.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            self.tasks[chosen] = None;
        }
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
        if state.outage_until.is_some() {
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
        self.start_worker();
        self.start_reaper();
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
        let verdict = state.ledger.records().try_for_each(|(number, entered)| {
            let found = at_once(self.world.memory.get(&[entered.run.id])).unwrap_or_default().pop();
            match found.is_some_and(|found| (found.revision, found.stamp) == (entered.revision, entered.stamp)) {
                true => Ok(()),
                false => Err(format!("run {number}: the store holds another record than was written last")),
            }
        });
        self.world.judge(state, verdict.clone());
        verdict.err()
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
