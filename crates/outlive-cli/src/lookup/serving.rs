//! What a run that does not run waits for, and whether any worker serves it: said to the waiting user, and again when
//! it changes.

use std::time::Duration;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::lifecycle::health::{OwnerStatus, RunStatus};
use outlive::registry::{EXTERNAL_KIND, Registry};
use outlive::run::{Run, State, StateName};

use crate::ui::run_view::RunView;
use crate::ui::typed::called;
use crate::ui::{plain, talk};

/// The kind of the run that a supervisor is.
pub const SUPERVISOR_KIND: &str = "supervisor";
/// How often the workers of a registry are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What was last said of a run.
#[derive(Debug, Default)]
pub struct Serving {
    said: Option<Waits>,
    /// When the workers are looked at next, in time awake.
    again_at: Duration,
}

impl Serving {
    /// Says on stderr what a run waits for, if that is worth a line and not what was said last.
    pub async fn tell(&mut self, registry: &Registry, seen: &RunStatus) -> Result<(), Error> {
        let now = registry.clock().awake();
        let waits = !seen.is_over() && matches!(seen.state, StateName::Pending | StateName::Dead);
        if waits && now < self.again_at {
            return Ok(());
        }
        self.again_at = now + LOOK_EVERY;
        let text = if waits { waits_for(registry, seen).await? } else { None };
        if text == self.said {
            return Ok(());
        }
        let id = called(seen.run.id);
        match &text {
            Some(Waits { text, is_unserved }) => {
                let is_workers = *is_unserved && !is_for_handler(&seen.run);
                let hint = if is_workers { "hint: `outlive work` starts a worker\n" } else { "" };
                talk(&format!("outlive: run `{id}` {}\n{hint}", plain(text)));
            }
            None if waits => talk(&format!("outlive: run `{id}` is {}; a worker serves it\n", seen.state)),
            None => {}
        }
        self.said = text;
        Ok(())
    }
}

/// What a run waits for.
#[derive(Debug, PartialEq, Eq)]
struct Waits {
    text: String,
    /// No worker or supervisor will execute it.
    is_unserved: bool,
}

/// What a run waits for that is neither its turn nor a clock; none where a worker serves it and nothing else is in the
/// way.
async fn waits_for(registry: &Registry, seen: &RunStatus) -> Result<Option<Waits>, Error> {
    let shown = RunView::unsigned(seen, registry).shown_reason(registry.clock().now(), |run| Some(called(run)));
    let reason = shown.map(|reason| format!(": {reason}")).unwrap_or_default();
    if seen.run.spec.kind == EXTERNAL_KIND || is_served(registry, &seen.run).await? {
        // A run that is dead by its look alone is retried by its worker.
        let is_waiting = !reason.is_empty() && matches!(seen.run.state, State::Pending(_));
        return Ok(is_waiting.then(|| Waits { text: format!("is pending{reason}"), is_unserved: false }));
    }
    if is_for_handler(&seen.run) {
        let text = format!("is pending{reason}; {}", for_handler(&plain(&seen.run.spec.kind)));
        return Ok(Some(Waits { text, is_unserved: true }));
    }
    let (state, what) = match seen.state {
        StateName::Dead => ("dead", "to retry it"),
        _ => ("pending", "to execute it"),
    };
    let text = format!("is {state}{reason}; no worker or supervisor is there {what}");
    Ok(Some(Waits { text, is_unserved: true }))
}

/// What to type for runs that wait for their time.
pub const WHEN_DUE: &str =
    "`outlive supervise` executes scheduled runs when they are due; `outlive service install` starts it at boot";

/// Whether a command waits for a time.
pub fn is_scheduled(run: &Run) -> bool {
    let is_later = matches!(&run.state, State::Pending(pending) if pending.not_before.is_some());
    is_later && run.spec.command.is_some()
}

/// Whether a run has no command: only a program with a handler of its kind can execute it.
pub fn is_for_handler(run: &Run) -> bool {
    run.spec.command.is_none() && run.spec.kind != EXTERNAL_KIND
}

/// Who executes a run of this kind that has no command.
pub fn for_handler(kind: &str) -> String {
    format!("only a program whose worker has a handler for `{kind}` executes such runs")
}

/// Whether a worker that is alive takes runs of this kind, or a supervisor is.
pub async fn is_served(registry: &Registry, run: &Run) -> Result<bool, Error> {
    // `outlive work` takes every kind, and executes only commands.
    let has_handler = |worker: &outlive::store::WorkerRecord| !is_for_handler(run) || !worker.offer.kinds.is_empty();
    let takes = |worker: &outlive::store::WorkerRecord| worker.offer.takes(&run.spec.kind) && has_handler(worker);
    let workers = registry.workers().await?;
    if workers.iter().any(|(worker, judged)| takes(worker) && *judged == OwnerStatus::Live) {
        return Ok(true);
    }
    if is_for_handler(run) {
        return Ok(false);
    }
    let supervisors = Filter { kind: Some(SUPERVISOR_KIND.into()), ..Filter::in_states([StateName::Running]) };
    let supervisors = registry.all(&supervisors).await?;
    Ok(supervisors.iter().any(|seen| seen.state == StateName::Running))
}
