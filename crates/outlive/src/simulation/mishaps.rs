//! Mishaps: what happens to processes, to their clocks and to the store as a whole.

use super::clock::lease;
use super::history::{Fact, What};
use super::scheduler::Scheduler;
use super::world::ProcessRole;
use crate::model::time::Clock;

/// The most processes that a history starts.
const PROCESSES: usize = 16;

impl Scheduler<'_> {
    /// Lets something happen to a process or to the store, now and then.
    pub(super) fn fail_something(&mut self) {
        let entropy = self.world.entropy.clone();
        let happens = entropy.below(400);
        if happens >= 10 {
            return;
        }
        let Some(process) = self.someone() else { return };
        match happens {
            0..2 => self.crash(process),
            2..7 => self.stand_still(process),
            7..9 => {
                let seconds = if entropy.one_in(2) { 3_600 } else { -3_600 };
                let state = &mut *self.world.state();
                state.processes[process].clock.jump(seconds);
                state.history.counters.saw(Fact::ClockJump);
                self.world.tell(state, Some(process), What::World(format!("has its clock set by {seconds} s")));
            }
            _ => {
                let state = &mut *self.world.state();
                if state.outage_until.is_none() {
                    let until = self.world.clock.awake() + self.world.between(500, 12_000);
                    state.outage_until = Some(until);
                    state.history.counters.saw(Fact::Outage);
                    self.world.tell(state, None, What::World("the store goes away".into()));
                }
            }
        }
    }

    fn someone(&self) -> Option<usize> {
        let state = self.world.state();
        let living: Vec<usize> = (0..state.processes.len()).filter(|index| state.processes[*index].lives).collect();
        living.get(usize::try_from(self.world.entropy.below(living.len() as u64)).ok()?).copied()
    }

    /// Ends a process in the middle of whatever it does, and starts another of its sort.
    ///
    /// Its tasks are dropped, which gives their run handles the occasion to say that they were. They say it to a keeper
    /// that has no thread here and is never polled again, so nothing of it reaches the store.
    fn crash(&mut self, process: usize) {
        let role = {
            let state = &mut *self.world.state();
            if state.processes.len() >= PROCESSES || state.processes[process].role == ProcessRole::Person {
                return;
            }
            state.processes[process].lives = false;
            state.history.counters.saw(Fact::Crash);
            self.world.tell(state, Some(process), What::World("crashes".into()));
            state.processes[process].role
        };
        for index in 0..self.tasks.len() {
            if self.world.state().tasks[index].process == process {
                self.tasks[index] = None;
            }
        }
        // An owner is started anew only by a supervisor.
        if role != ProcessRole::Owner {
            self.start(role);
        }
    }

    fn stand_still(&self, process: usize) {
        let state = &mut *self.world.state();
        let pause = self.world.between(0, 12_000) + 2 * lease().lasts();
        state.processes[process].stands_still_until = self.world.clock.awake() + pause;
        state.history.counters.saw(Fact::Pause);
        self.world.tell(state, Some(process), What::World(format!("stands still for {pause:?}")));
    }
}
