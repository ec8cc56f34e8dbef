use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::health::{Health, Seen};
use outlive::id::RunId;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::runtime::reaper::Reaper;
use outlive::store::Page;
use serde::{Deserialize, Serialize};

use crate::operation::{Effect, Operate};
use crate::settings::{Context, deliver};

/// Ask for runs to be stopped
///
/// The request is durable: the owner stops the run with its next beat. The answer says `cancelled` only of a run that
/// has stopped. A run whose owner is gone is ended here, with the processes it left behind.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cancel {
    /// Ids, beginnings of ids, names, @last, or @~2
    #[arg(required_unless_present = "all")]
    pub runs: Vec<String>,
    /// Every run of this registry that is in flight
    #[arg(long, conflicts_with = "runs")]
    pub all: bool,
    /// Why, for whoever reads its story
    #[arg(long)]
    pub reason: Option<String>,
    /// Kill an owner that lives but says nothing, with all processes of its run
    #[arg(long)]
    pub force: bool,
}

/// What became of the requests.
#[derive(Debug, Serialize)]
pub struct Cancelled {
    runs: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    id: RunId,
    /// `cancelled` if it has stopped, else `cancel_requested`.
    outcome: &'static str,
    state: StateName,
    /// Its owner lives and says nothing, so that it may never hear of the request.
    silent_owner: Option<u32>,
}

/// How long the processes of a run whose owner is gone may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);

impl Operate for Cancel {
    const NAME: &'static str = "cancel";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive cancel train --reason 'wrong data'\noutlive cancel --all";
    type Output = Cancelled;

    async fn operate(self, context: &Context) -> Result<Cancelled, Error> {
        let mut outcomes = Cancelled { runs: Vec::new() };
        if self.all {
            if let Some(registry) = context.to_change().await? {
                deliver(&registry).await?;
                for seen in in_flight(&registry).await? {
                    outcomes.runs.push(cancel(&registry, seen, self.reason.clone(), self.force).await?);
                }
            }
            return Ok(outcomes);
        }
        let [first, ..] = self.runs.as_slice() else { return Err(Error::Invalid("no run was named".into())) };
        let registry = context.for_change(first).await?;
        // All of them are looked up before any is asked to stop: a wrong name changes nothing.
        let mut found = Vec::new();
        for run in &self.runs {
            found.push(registry.find(run).await?);
        }
        for seen in found {
            outcomes.runs.push(cancel(&registry, seen, self.reason.clone(), self.force).await?);
        }
        Ok(outcomes)
    }
}

async fn in_flight(registry: &Registry) -> Result<Vec<Seen>, Error> {
    let filter = Filter::in_states([StateName::Pending, StateName::Running, StateName::Suspended]);
    let (mut found, mut page) = (Vec::new(), Page::default());
    loop {
        let (seen, next) = registry.list(&filter, &page).await?;
        found.extend(seen);
        match next {
            Some(next) => page.after = Some(next),
            None => return Ok(found),
        }
    }
}

async fn cancel(registry: &Registry, seen: Seen, reason: Option<String>, force: bool) -> Result<Outcome, Error> {
    let id = seen.run.id;
    let mut run = registry.cancel(id, reason).await?;
    let owner_is_gone = seen.evidence.is_some() || seen.health == Some(Health::Orphaned);
    if owner_is_gone && run.owner().is_some() {
        registry.end_tree(&seen.run, GRACE);
        Reaper::new(registry.worker()).pass_over(registry, Filter::of([id])).await?;
        run = registry.get(id).await?.run;
    } else if force && seen.health == Some(Health::Unresponsive) {
        Reaper::new(registry.worker()).force(registry, &seen.run).await?;
        run = registry.get(id).await?.run;
    }
    let state = run.state.name();
    let outcome = if state == StateName::Cancelled { "cancelled" } else { "cancel_requested" };
    let silent_owner = (seen.health == Some(Health::Unresponsive) && outcome != "cancelled")
        .then(|| seen.run.owner().map(|owner| owner.identity.pid))
        .flatten();
    Ok(Outcome { id, outcome, state, silent_owner })
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return writeln!(f, "nothing to cancel");
        }
        for run in &self.runs {
            match run.outcome {
                "cancelled" => writeln!(f, "{} cancelled", run.id)?,
                _ if run.silent_owner.is_some() => writeln!(
                    f,
                    "{0} cancel requested; its owner (pid {1}) is silent: `outlive cancel --force {0}` ends it with all its processes",
                    run.id,
                    run.silent_owner.unwrap_or_default()
                )?,
                _ => writeln!(f, "{} cancel requested; its owner stops it with its next beat", run.id)?,
            }
        }
        Ok(())
    }
}
