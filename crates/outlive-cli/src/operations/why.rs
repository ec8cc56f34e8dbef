//! `outlive why`: a run's event log.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::lifecycle::Operation;
use outlive::owner::Evidence;
use outlive::run::{Event, StateName};
use outlive::time::{Clock, SystemClock, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::lookup::located::{RegistryRef, locate_one};
use crate::ui::plain;
use crate::ui::run_view::RunView;
use crate::ui::typed::called;

/// Explain a run: its event log, with times and evidence
#[derive(Debug, Args)]
pub struct Why {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    #[arg(default_value = "@last")]
    pub run: String,
}

/// A run and its event log.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Explanation {
    #[serde(flatten)]
    run: RunView,
    /// What happened, in order.
    events: Vec<Event>,
    /// What proves that its owner is gone, where that is not recorded yet.
    evidence: Option<Evidence>,
}

impl Operate for Why {
    const NAME: &'static str = "why";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive why train\noutlive why @last --json";
    type Output = Explanation;

    async fn operate(self, context: &Context) -> Result<Explanation, Error> {
        let (RegistryRef { registry, .. }, seen) = locate_one(context, &self.run, Self::EFFECT).await?;
        let events = registry.events(seen.run.id).await?;
        Ok(Explanation { run: RunView::new(&seen, &registry), events, evidence: seen.evidence })
    }
}

impl Explanation {
    /// What a person would type next about a run that failed: what it wrote says why.
    fn after_failure(&self) -> Option<String> {
        let (id, can) = (called(self.run.id), |operation| self.run.can.contains(&operation));
        let mut steps = vec![format!("`outlive logs {id} -n 20` prints the end of its output")];
        steps.extend(can(Operation::Resume).then(|| format!("`outlive resume --failed {id}` starts its next attempt")));
        steps.extend(can(Operation::Rerun).then(|| format!("`outlive rerun {id}` runs it again as a new run")));
        let is_command = self.run.state == StateName::Failed && self.run.command.is_some();
        is_command.then(|| steps.join("; "))
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.run.shown_reason(SystemClock.now(), |_| None);
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        writeln!(f, "{} {}{reason}", self.run.title(), self.run.stands())?;
        let began = self.events.first().map_or(self.run.created_at, |event| event.at);
        // Reports of progress say nothing by themselves: many in a row are one line.
        let is_report = |event: &Event| event.from == Some(event.to) && event.reason.is_none();
        for events in self.events.chunk_by(|one, next| is_report(one) && is_report(next) && one.action == next.action) {
            let event = &events[events.len() - 1];
            let times = if events.len() > 1 { format!(", {} times", events.len()) } else { String::new() };
            let moved = match event.from {
                Some(from) if from != event.to => format!("{from} → {}", event.to),
                _ => event.to.to_string(),
            };
            let reason = event.reason.as_deref().map(|reason| format!(": {}", plain(reason))).unwrap_or_default();
            writeln!(
                f,
                "  {}  {:>8}  {:<14}  {:<22}  attempt {} epoch {}  by {}{reason}{times}",
                event.at.local(),
                format!("+{}", show_duration(event.at.since(began))),
                plain(&event.action),
                moved,
                event.attempt,
                event.epoch,
                plain(&event.by.to_string())
            )?;
        }
        if self.run.state == StateName::Dead && self.evidence.is_some() {
            writeln!(f, "  not recorded yet: {}", plain(self.run.reason.as_deref().unwrap_or_default()))?;
        }
        match self.run.next_step().or_else(|| self.after_failure()) {
            Some(step) => writeln!(f, "next: {step}"),
            None => Ok(()),
        }
    }
}
