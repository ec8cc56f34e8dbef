//! What a supervisor does now and then: it tells hooks what they missed, puts old runs away, and has artifacts swept.

use std::thread::JoinHandle;
use std::time::Duration;

use outlive::engine::sweeper::{Report, sweep};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::deletes_unnamed;
use outlive::lifecycle::health::Health;
use outlive::policy::Retention;
use outlive::run::{Run, State, StateName};
use outlive::store::{Page, Pages};
use serde_json::json;

use super::{Supervisor, swept};
use crate::operations::sweep::count;
use crate::settings::{Hooks, Sweeps};
use crate::workers::hooks::{self, Event};

/// How often those are looked for that make no progress.
const STALLED_EVERY: Duration = Duration::from_secs(5);
/// How often old runs are put away, and hooks are told what they missed.
const TIDY_EVERY: Duration = Duration::from_secs(600);
/// How far back hooks are told what they missed.
const MISSED_SINCE: Duration = Duration::from_secs(7 * 86_400);

/// When each was last done, and what is to be remembered between.
#[derive(Debug, Default)]
pub(super) struct Chores {
    stalled: Option<Duration>,
    tidied: Option<Duration>,
    /// A run of the queue that was seen to run, as long as the queue has not been empty since.
    last_queued: Option<RunId>,
    retention: Retention,
    sweeps: Sweeps,
    /// When a sweep was last begun here, whatever came of it.
    swept: Option<Duration>,
    /// A sweep that is under way, on a thread of its own: it may take long, and nothing else waits for it.
    sweeping: Option<JoinHandle<Result<Report, Error>>>,
}

impl Chores {
    pub(super) fn new(retention: Retention, sweeps: Sweeps) -> Self {
        Self { retention, sweeps, ..Self::default() }
    }
}

impl Supervisor<'_> {
    /// Does what is due of it.
    pub(super) fn do_chores(&mut self) -> Result<(), Error> {
        let now = self.registry.clock().awake();
        let is_due = |last: Option<Duration>, every| last.is_none_or(|last| now.saturating_sub(last) >= every);
        if is_due(self.chores.stalled, STALLED_EVERY) {
            self.chores.stalled = Some(now);
            self.tell_stalled()?;
        }
        if is_due(self.chores.tidied, TIDY_EVERY) {
            self.chores.tidied = Some(now);
            self.put_away()?;
            let now = self.registry.clock().now();
            let since = now.as_micros().saturating_sub(i64::try_from(MISSED_SINCE.as_micros()).unwrap_or(i64::MAX));
            let since = Some(outlive::time::Timestamp::from_micros(since));
            hooks::catch_up(self.registry, &Filter { since, is_step: Some(false), ..Filter::default() })?;
            self.delete_old()?;
        }
        self.tell_swept(false);
        if let Some(every) = self.chores.sweeps.every
            && self.chores.sweeping.is_none()
            && is_due(self.chores.swept, every)
            && swept::since(self.registry, self.registry.clock().now()).is_none_or(|ago| ago >= every)
        {
            self.chores.swept = Some(now);
            self.begin_sweep()?;
        }
        Ok(())
    }

    fn begin_sweep(&mut self) -> Result<(), Error> {
        let (registry, spare) = (self.registry.again(), self.chores.sweeps.spare());
        let registry = registry.naming_artifacts(self.chores.sweeps.locations(self.registry.url())?);
        let work = move || pollster::block_on(sweep(&registry, &spare, false));
        let thread = std::thread::Builder::new().name("outlive-sweep".into()).spawn(work);
        let failed = |error: std::io::Error| Error::Invalid(format!("no thread for the sweep: {error}"));
        self.chores.sweeping = Some(thread.map_err(failed)?);
        Ok(())
    }

    /// Says what a sweep came to that has ended; with `waits` whenever it ends.
    pub(super) fn tell_swept(&mut self, waits: bool) {
        let Some(sweeping) = self.chores.sweeping.take_if(|sweeping| waits || sweeping.is_finished()) else { return };
        let report = match sweeping.join() {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                return self.say("sweep", &json!({ "error": error.to_string() }), &format!("no sweep: {error}"));
            }
            Err(_) => return self.say("sweep", &json!({ "error": "it broke off" }), "no sweep: it broke off"),
        };
        if let Err(error) = swept::note(self.registry, self.registry.clock().now()) {
            self.say("sweep", &json!({ "error": error.to_string() }), &format!("the next may come too soon: {error}"));
        }
        let Report { objects, bytes, left, problems, forgotten, .. } = &report;
        if *objects + *left == 0 && problems.is_empty() && forgotten.is_empty() {
            return;
        }
        let deleted = format!("{} of {}", count(*objects, "object"), count(*bytes, "byte"));
        let mut text = format!("swept: {deleted} deleted, {left} left to the next sweep");
        if !forgotten.is_empty() {
            text += &format!(", {} forgotten", count(forgotten.len() as u64, "record"));
        }
        if !problems.is_empty() {
            text += &format!("; {}, which `outlive sweep` tells", count(problems.len() as u64, "problem"));
        }
        let fields =
            json!({ "objects": objects, "bytes": bytes, "left": left, "forgotten": forgotten, "problems": problems });
        self.say("swept", &fields, &text);
    }

    /// Notes what of the queue runs and waits. When nothing does any more, those are told who want to know.
    pub(super) fn note_queue(&mut self, running: Option<RunId>, is_waiting: bool) {
        if running.is_some() {
            self.chores.last_queued = running;
        } else if !is_waiting && let Some(last) = self.chores.last_queued.take() {
            hooks::tell(self.registry, last, 1, Event::QueueEmpty);
        }
    }

    /// Notes a run that is about to run, which may be over before it is seen to.
    pub(super) fn note_begun(&mut self, run: &Run) {
        if run.spec.queued {
            self.chores.last_queued = Some(run.id);
        }
    }

    fn tell_stalled(&self) -> Result<(), Error> {
        if Hooks::read().map_or(true, |hooks| hooks.on_stalled.is_none()) {
            return Ok(());
        }
        let in_flight = Filter { is_step: Some(false), ..Filter::in_states([StateName::Running]) };
        for seen in pollster::block_on(self.registry.all(&in_flight))? {
            if seen.health == Some(Health::Stalled) {
                hooks::tell(self.registry, seen.run.id, seen.run.attempt, Event::Stalled);
            }
        }
        Ok(())
    }

    /// Deletes the runs that the retention policy no longer keeps.
    fn delete_old(&self) -> Result<(), Error> {
        if self.chores.retention.delete_after.is_none() {
            return Ok(());
        }
        let ended = StateName::ALL.into_iter().filter(|state| state.is_ended());
        let mut walk = Pages::from(Filter { is_step: Some(false), ..Filter::in_states(ended) }, Page::default());
        let (mut rank, mut old, now) = (0, Vec::new(), self.registry.clock().now());
        while let Some(records) = pollster::block_on(walk.next(self.registry.store()))? {
            for run in records.iter().map(|record| &record.run) {
                let Some(ending) = run.ending() else { continue };
                let is_old = self.chores.retention.deletes(rank, now.since(ending.at));
                old.extend((is_old && deletes_unnamed(run)).then_some(run.id));
                rank += 1;
            }
        }
        let mut deleted = 0;
        for run in old {
            match pollster::block_on(self.registry.delete(run)) {
                Ok(()) => deleted += 1,
                // Its processes are alive, another run waits for it, or somebody has changed or deleted it.
                Err(Error::Refused { .. } | Error::Contended(_) | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        if deleted > 0 {
            self.say("deleted", &json!({ "runs": deleted }), &format!("{deleted} old runs deleted"));
        }
        Ok(())
    }

    /// Archives what the retention policy no longer keeps in sight.
    fn put_away(&self) -> Result<(), Error> {
        if self.chores.retention.archive_after.is_none() {
            return Ok(());
        }
        let ended = StateName::ALL.into_iter().filter(|state| state.is_ended());
        // Steps are out of sight with the runs that they are steps of.
        let filter = Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(ended) };
        let mut walk = Pages::from(filter, Page::default());
        let (mut rank, now) = (0, self.registry.clock().now());
        let mut old = Vec::new();
        while let Some(records) = pollster::block_on(walk.next(self.registry.store()))? {
            for record in records {
                if let State::Ended(ending) = &record.run.state {
                    old.extend(self.chores.retention.archives(rank, now.since(ending.at)).then_some(record.run.id));
                    rank += 1;
                }
            }
        }
        for run in &old {
            match pollster::block_on(self.registry.archive(*run, true)) {
                // Somebody has resumed it, or put it away, meanwhile.
                Ok(_) | Err(Error::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if !old.is_empty() {
            self.say("archived", &json!({ "runs": old.len() }), &format!("{} old runs archived", old.len()));
        }
        Ok(())
    }
}
