//! What a supervisor does now and then: it tells hooks what they missed, archives old runs, and has artifacts swept.

use std::time::Duration;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::lifecycle::deletes_unnamed;
use outlive::lifecycle::health::Health;
use outlive::policy::Retention;
use outlive::run::{State, StateName};
use outlive::settings::Hooks;
#[cfg(feature = "object")]
use outlive::settings::Sweeps;
use outlive::store::{Page, Pages};
use serde_json::json;

use super::Supervising;
#[cfg(feature = "object")]
use super::sweeping::Sweeping;
use crate::exec::hooks::{self, Event};

/// How often those are looked for that make no progress.
const STALLED_EVERY: Duration = Duration::from_secs(5);
/// How often old runs are archived, and missed hooks are delivered.
const HISTORY_EVERY: Duration = Duration::from_secs(600);
/// How far back missed hooks are delivered.
const MISSED_SINCE: Duration = Duration::from_secs(7 * 86_400);

/// When each was last done, and what is to be remembered between.
#[derive(Debug, Default)]
pub(super) struct Maintenance {
    stalled: Option<Duration>,
    history: Option<Duration>,
    retention: Retention,
    #[cfg(feature = "object")]
    pub(super) sweeping: Sweeping,
}

impl Maintenance {
    pub(super) fn new(retention: Retention, #[cfg(feature = "object")] sweeps: Sweeps) -> Self {
        Self {
            retention,
            #[cfg(feature = "object")]
            sweeping: Sweeping::new(sweeps),
            ..Self::default()
        }
    }
}

impl Supervising<'_> {
    /// Does the maintenance that is due.
    pub(super) fn maintain(&mut self) -> Result<(), Error> {
        let now = self.registry.clock().awake();
        let is_due = |last: Option<Duration>, every| last.is_none_or(|last| now.saturating_sub(last) >= every);
        if is_due(self.maintenance.stalled, STALLED_EVERY) {
            self.maintenance.stalled = Some(now);
            self.notify_stalled()?;
        }
        if is_due(self.maintenance.history, HISTORY_EVERY) {
            self.maintenance.history = Some(now);
            self.archive_old()?;
            let now = self.registry.clock().now();
            let since = now.as_micros().saturating_sub(i64::try_from(MISSED_SINCE.as_micros()).unwrap_or(i64::MAX));
            let since = Some(outlive::time::Timestamp::from_micros(since));
            hooks::catch_up(self.registry, &Filter { since, is_step: Some(false), ..Filter::default() })?;
            self.delete_old()?;
        }
        #[cfg(feature = "object")]
        self.sweep_when_due(now)?;
        Ok(())
    }

    fn notify_stalled(&self) -> Result<(), Error> {
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
        if self.maintenance.retention.delete_after.is_none() {
            return Ok(());
        }
        let ended = StateName::ALL.into_iter().filter(|state| state.is_ended());
        let mut walk = Pages::from(Filter { is_step: Some(false), ..Filter::in_states(ended) }, Page::default());
        let (mut rank, mut old, now) = (0, Vec::new(), self.registry.clock().now());
        while let Some(records) = pollster::block_on(walk.next(self.registry.store()))? {
            for run in records.iter().map(|record| &record.run) {
                let Some(ending) = run.ending() else { continue };
                let is_old = self.maintenance.retention.deletes(rank, now.since(ending.at));
                old.extend((is_old && deletes_unnamed(run)).then_some(run.id));
                rank += 1;
            }
        }
        let mut deleted = 0;
        for run in old {
            match pollster::block_on(self.registry.delete(run)) {
                Ok(()) => deleted += 1,
                // Its processes are alive, another run waits for it, or it was changed or deleted.
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
    fn archive_old(&self) -> Result<(), Error> {
        if self.maintenance.retention.archive_after.is_none() {
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
                    old.extend(
                        self.maintenance.retention.archives(rank, now.since(ending.at)).then_some(record.run.id),
                    );
                    rank += 1;
                }
            }
        }
        for run in &old {
            match pollster::block_on(self.registry.archive(*run)) {
                // It was resumed, or put away, meanwhile.
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
