//! One look of a supervisor at everything that is not over, and what it does about it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::health::Health;
use outlive::registry::next_due;
use outlive::run::{Run, State, StateName};
use outlive::store::{Page, Pages};
use serde_json::json;

use super::{LOOK_EVERY, Supervisor};
use crate::exec::detach::{Started, Starting};
use crate::exec::own::{Job, changed_program};
use crate::exec::{adopt, hooks, take_up};
use crate::lookup::serving::SUPERVISOR_KIND;

/// How many owners are started at a time, so that a machine that comes up with a thousand runs to resume can breathe.
const STARTING: usize = 8;
/// How long something of a run must outlive its owner before it is taken over. Whatever kills both does not do so in
/// one moment, and what is dying is not to be followed to its end.
const OUTLIVES: Duration = Duration::from_millis(200);
/// How often those are looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How often the queue is read where nothing says that it has changed.
const QUEUE_EVERY: Duration = Duration::from_secs(30);
/// How long a run that could not go on is left alone.
const REFUSED_FOR: Duration = Duration::from_secs(60);

impl Supervisor<'_> {
    /// Looks at everything once. Answers with how long it is until something is due by the clock.
    pub(super) fn pass(&mut self) -> Result<Duration, Error> {
        self.hear_starting();
        self.reap()?;
        if self.is_queue_due() {
            self.look_at_queue()?;
        }
        self.do_chores()?;
        let again = if self.has_young_orphans() { LOOK_AGAIN } else { LOOK_EVERY };
        let now = self.registry.clock().now();
        let due = self.queue.due_at.map(|at| at.since(now) + Duration::from_millis(1));
        Ok(due.map_or(again, |due| due.min(again)))
    }

    /// Whether anything may have changed in the queue, or is due in it.
    fn is_queue_due(&self) -> bool {
        let is_due = self.queue.due_at.is_some_and(|at| at <= self.registry.clock().now());
        self.queue.is_due || is_due || self.registry.clock().awake() >= self.queue.again_at
    }

    /// Reads the queue, and has those go on that are due.
    fn look_at_queue(&mut self) -> Result<(), Error> {
        let waiting = pollster::block_on(self.registry.waiting())?;
        let released = pollster::block_on(self.registry.release(&waiting))?;
        let followed = pollster::block_on(self.registry.materialize_schedules(&waiting))?;
        let waiting =
            if released > 0 || !followed.is_empty() { pollster::block_on(self.registry.waiting())? } else { waiting };
        let running = self.running_of_queue()?;
        self.note_queue(running.last, waiting.iter().any(|run| run.spec.queued));
        self.begin_due(&waiting, &followed, running.in_slots)?;
        let now = self.registry.clock().now();
        self.queue.due_at = next_due(&waiting, now).map(|left| now.after(left));
        self.queue.again_at = self.registry.clock().awake() + QUEUE_EVERY;
        // What could not be begun because too many are starting is begun when they have.
        self.queue.is_due = self.starting.len() >= STARTING;
        Ok(())
    }

    /// Whether there are runs that have outlived their owner for too short a time to be taken over.
    pub(super) fn has_young_orphans(&self) -> bool {
        let now = self.registry.clock().awake();
        self.orphans.values().any(|since| now.saturating_sub(*since) < OUTLIVES)
    }

    /// Puts deaths on record, and takes over what lives on.
    fn reap(&mut self) -> Result<(), Error> {
        pollster::block_on(self.registry.deliver_spooled())?;
        let reaped = pollster::block_on(self.maintenance.reap(self.registry))?;
        hooks::tell_reaped(self.registry, &reaped);
        self.queue.is_due |= !reaped.ended.is_empty();
        for run in &reaped.ended {
            let state = run.state.name();
            let fields = json!({ "id": run.id, "name": run.spec.name, "state": state });
            self.say("reaped", &fields, &format!("{} reaped: its owner is gone; it is {state}", title(run)));
        }
        let now = self.registry.clock().awake();
        self.orphans.retain(|id, _| self.maintenance.is_suspect(*id));
        for (run, leftovers) in &reaped.orphaned {
            if now.saturating_sub(*self.orphans.entry(run.id).or_insert(now)) < OUTLIVES {
                continue;
            }
            // Only what this user made is taken over: whatever takes it over may have to end it.
            if run.spec.step.is_none() && self.registry.executable(run).is_ok() && self.may_begin(run) {
                let words = ["outlive", adopt::NAME, "--registry", self.registry.url()].map(OsString::from);
                let words: Vec<OsString> = words.into_iter().chain([run.id.to_string().into()]).collect();
                self.begin(run, &words)?;
                let fields = json!({ "id": run.id, "name": run.spec.name, "pids": leftovers.pids });
                self.say("adopted", &fields, &format!("{} adopted: {leftovers} lives on", title(run)));
            }
        }
        Ok(())
    }

    /// The runs of the queue that run.
    fn running_of_queue(&mut self) -> Result<Queued, Error> {
        let mut queued = Queued::default();
        let mut walk = Pages::from(Filter::in_states([StateName::Running]), Page::default());
        while let Some(records) = pollster::block_on(walk.next(self.registry.store()))? {
            for run in records.into_iter().map(|record| record.run).filter(|run| run.spec.kind != SUPERVISOR_KIND) {
                if run.spec.queued {
                    queued.in_slots += 1;
                    queued.last = Some(run.id);
                }
            }
        }
        self.refused.retain(|_, (_, until)| *until > self.registry.clock().awake());
        Ok(queued)
    }

    /// Has those go on that are due: at once what was started otherwise, and by slots what was queued.
    fn begin_due(&mut self, waiting: &[Run], followed: &BTreeSet<RunId>, in_slots: usize) -> Result<(), Error> {
        let now = self.registry.clock().now();
        let is_starting = |run: &&Run| self.starting.iter().any(|(id, _)| *id == run.id);
        let mut free = self
            .slots
            .saturating_sub(in_slots + waiting.iter().filter(is_starting).filter(|run| run.spec.queued).count());
        let blocked_by_keys = pollster::block_on(self.registry.blocked_by_keys(&waiting.iter().collect::<Vec<_>>()))?;
        for run in waiting {
            let due = matches!(&run.state, State::Pending(pending) if pending.is_due(now));
            let is_followed = run.spec.schedule.is_none() || followed.contains(&run.id);
            if !due || !is_followed || run.spec.command.is_none() || !self.may_begin(run) {
                continue;
            }
            // What is left of its last attempt may end by itself: another look will tell.
            if !self.registry.left_behind(run).is_empty() {
                continue;
            }
            if run.spec.queued {
                if free == 0 || blocked_by_keys.contains_key(&run.id) {
                    continue;
                }
                free -= 1;
            }
            if let Err(error) = Job::of(self.registry, run, true) {
                self.refuse(run, &error.to_string());
                continue;
            }
            if let Some(changed) = changed_program(run) {
                self.say("changed", &json!({ "id": run.id }), &changed);
            }
            let words = take_up::words(self.registry, run.id, false, true);
            self.begin(run, &words)?;
        }
        Ok(())
    }

    /// Whether an owner may be started for a run now.
    fn may_begin(&self, run: &Run) -> bool {
        let is_refused = self.refused.get(&run.id).is_some_and(|(epoch, _)| *epoch == run.epoch);
        let is_starting = self.starting.iter().any(|(id, _)| *id == run.id);
        self.starting.len() < STARTING && !is_refused && !is_starting
    }

    fn begin(&mut self, run: &Run, words: &[OsString]) -> Result<(), Error> {
        let starting = Starting::begin(words, &SigSet::empty())
            .map_err(|error| Error::Invalid(format!("an owner cannot be started: {error}")))?;
        self.starting.push((run.id, starting));
        self.note_begun(run);
        Ok(())
    }

    /// Hears those that have said whether they own their run.
    fn hear_starting(&mut self) {
        let fds: Vec<_> = self.starting.iter().map(|(_, starting)| std::os::fd::AsFd::as_fd(starting)).collect();
        let spoke = super::ready(&fds, Duration::ZERO);
        for place in spoke.into_iter().rev() {
            let (id, starting) = self.starting.remove(place);
            match starting.wait() {
                Ok(Started { id: Some(_), .. }) => self.tell_begun(id),
                Ok(Started { talk, .. }) => self.tell_refused(id, &talk.unwrap_or_default()),
                Err(error) => self.tell_refused(id, &error.to_string()),
            }
        }
    }

    fn tell_begun(&self, id: RunId) {
        let Ok(seen) = pollster::block_on(self.registry.get(id)) else { return };
        let run = &seen.run;
        let verb = if run.attempt > 1 { "resumed" } else { "started" };
        let fields = json!({ "id": id, "name": run.spec.name, "attempt": run.attempt });
        self.say(verb, &fields, &format!("{} {verb}, attempt {}", title(run), run.attempt));
    }

    /// An owner that could not be is reported once; a process that was faster is none of our business.
    fn tell_refused(&mut self, id: RunId, why: &str) {
        let Ok(seen) = pollster::block_on(self.registry.get(id)) else { return };
        if matches!(seen.run.state, State::Pending(_)) || seen.health == Some(Health::Orphaned) {
            self.refuse(&seen.run, why);
        }
    }

    fn refuse(&mut self, run: &Run, why: &str) {
        let until = self.registry.clock().awake() + REFUSED_FOR;
        self.refused.insert(run.id, (run.epoch, until));
        let fields = json!({ "id": run.id, "name": run.spec.name, "reason": why });
        self.say("refused", &fields, &format!("{} left alone: {why}", title(run)));
    }
}

/// The runs of the queue that run.
#[derive(Debug, Default)]
struct Queued {
    in_slots: usize,
    last: Option<RunId>,
}

/// What a run is called in what a supervisor says.
fn title(run: &Run) -> String {
    run.spec.name.as_ref().map_or_else(|| run.id.to_string(), |name| format!("{} {name}", run.id))
}
