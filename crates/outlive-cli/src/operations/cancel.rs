//! `outlive cancel`: asks owners to stop their runs, and ends what is left of runs whose owner is gone.

use std::collections::BTreeSet;
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
use outlive::time::parse_duration;
use outlive::transition::Refusal;
use schemars::JsonSchema;
use serde::Serialize;

use super::wait::until_ended;
use crate::operation::{Effect, Operate};
use crate::operations::plane::located::{Located, Place, locate};
use crate::settings::{Context, deliver};

/// Ask for runs to be stopped
///
/// The request is durable: a local owner stops the run at once, any other with its next beat. The answer says
/// `cancelled` only of a run that has stopped. A run whose owner is gone is ended here, with the processes it left
/// behind. Where somebody has asked before, that request stands. If one of several cannot be cancelled, none is.
#[derive(Debug, Default, Args)]
#[command(override_usage = "outlive cancel [OPTIONS] <RUNS>...\n       outlive cancel [OPTIONS] --all")]
pub struct Cancel {
    /// Ids, beginnings of ids, names, @last, @~2, or REPOSITORY:ID
    #[arg(required_unless_present = "all")]
    pub runs: Vec<String>,
    /// Every run of this registry that is in flight
    #[arg(long, conflicts_with = "runs")]
    pub all: bool,
    /// Why, for whoever reads its story
    #[arg(long)]
    pub reason: Option<String>,
    /// How long a run may take to stop by itself before it is killed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub grace: Option<Duration>,
    /// Kill an owner that lives but says nothing, with all processes of its run
    #[arg(long)]
    pub force: bool,
    /// Wait until they have ended; 1 is the exit status if one cannot be waited for
    #[arg(long)]
    pub wait: bool,
    /// Only say what would be cancelled
    #[arg(long, conflicts_with = "wait")]
    pub dry_run: bool,
}

/// What became of the requests.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Cancelled {
    dry_run: bool,
    runs: Vec<Outcome>,
    #[serde(skip)]
    waited: bool,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Outcome {
    id: RunId,
    outcome: Word,
    state: StateName,
    /// Its owner lives and says nothing, so that it may never hear of the request.
    silent_owner: Option<u32>,
    /// Who had asked before; that request stands.
    asked_before_by: Option<String>,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// It has stopped.
    Cancelled,
    /// It has been asked to.
    CancelRequested,
    /// It came to another end before it could be stopped.
    Ended,
    /// It would be asked to.
    WouldCancel,
}

/// How long the processes of a run whose owner is gone may take to end by themselves.
const GRACE: Duration = Duration::from_secs(5);
/// How long whoever waits for ends waits before it looks who is left that could bring them about.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Operate for Cancel {
    const NAME: &'static str = "cancel";
    const EFFECT: Effect = Effect::Stop;
    const EXAMPLES: &'static str = "outlive cancel train --reason 'wrong data'\n\
                                    outlive cancel train --grace 2m --wait\n\
                                    outlive cancel --all --dry-run";
    type Output = Cancelled;

    async fn operate(self, context: &Context) -> Result<Cancelled, Error> {
        let mut cancelled = Cancelled { dry_run: self.dry_run, runs: Vec::new(), waited: self.wait };
        let located = self.meant(context).await?;
        let mut known = BTreeSet::new();
        let mut asked = Vec::new();
        for (registry, seen) in located.each().filter(|(_, seen)| known.insert(seen.run.id)) {
            if self.dry_run {
                cancelled.runs.push(outcome(seen, seen.state, Word::WouldCancel));
                continue;
            }
            match self.cancel(registry, seen).await {
                // It ended by itself since it was listed.
                Err(Error::Refused { refusal: Refusal::WrongState { .. }, .. }) if self.all => {}
                one => {
                    asked.push(registry);
                    cancelled.runs.push(one?);
                }
            }
        }
        if self.wait {
            self.wait(context, &asked, &mut cancelled.runs).await?;
        }
        Ok(cancelled)
    }

    fn exit_status(cancelled: &Cancelled) -> u8 {
        let goes_on = |run: &Outcome| !run.state.is_ended();
        (cancelled.waited && cancelled.runs.iter().any(goes_on)).into()
    }
}

impl Cancel {
    /// The runs to stop. All of them are looked up before any is asked to: a wrong name changes nothing.
    async fn meant(&self, context: &Context) -> Result<Located, Error> {
        if self.all {
            return self.in_flight(context).await;
        }
        let effect = if self.dry_run { Effect::Read } else { Self::EFFECT };
        let located = locate(context, &self.runs, effect).await?;
        if let Some((_, seen)) = located.each().find(|(_, seen)| seen.run.ending().is_some()) {
            let refusal = Refusal::WrongState { action: "request cancel", state: seen.state };
            return Err(Error::Refused { run: seen.run.id, refusal });
        }
        Ok(located)
    }

    async fn in_flight(&self, context: &Context) -> Result<Located, Error> {
        // Where there is no registry, nothing is in flight.
        let Some(registry) = context.to_change().await? else {
            return Ok(Located { places: Vec::new(), runs: Vec::new() });
        };
        if !self.dry_run {
            deliver(&registry).await?;
        }
        let in_flight = [StateName::Pending, StateName::Running, StateName::Suspended];
        // Steps end with the runs that they are steps of.
        let runs = registry.all(&Filter { is_step: Some(false), ..Filter::in_states(in_flight) }).await?;
        let runs = runs.into_iter().map(|seen| (0, seen)).collect();
        Ok(Located { places: vec![Place { context: None, registry }], runs })
    }

    async fn cancel(&self, registry: &Registry, seen: &Seen) -> Result<Outcome, Error> {
        let id = seen.run.id;
        let mut run = registry.cancel_within(id, self.reason.clone(), self.grace).await?;
        // It may have been dying as it was looked at.
        if run.owner().is_some() && (owner_is_gone(seen) || owner_is_gone(&registry.glance(id).await?)) {
            registry.end_tree(&seen.run, self.grace.unwrap_or(GRACE));
            Reaper::new(registry.worker()).pass_over(registry, Filter::of([id])).await?;
            run = registry.get(id).await?.run;
        } else if self.force && seen.health == Some(Health::Unresponsive) {
            Reaper::new(registry.worker()).force(registry, &seen.run).await?;
            run = registry.get(id).await?.run;
        }
        let state = run.state.name();
        let word = if state == StateName::Cancelled { Word::Cancelled } else { Word::CancelRequested };
        Ok(outcome(seen, state, word))
    }

    /// Waits for the ends of all runs but those whose owner may never hear of the request. One whose owner dies meanwhile is
    /// ended here.
    async fn wait(&self, context: &Context, asked: &[&Registry], runs: &mut [Outcome]) -> Result<(), Error> {
        let Some(first) = asked.first() else { return Ok(()) };
        let began = first.clock().awake();
        loop {
            let is_heard = |run: &Outcome| run.outcome == Word::CancelRequested && run.silent_owner.is_none();
            let waiting = asked.iter().zip(&*runs).filter(|(_, run)| is_heard(run));
            let waiting: Vec<_> = waiting.map(|(registry, run)| (*registry, run.id)).collect();
            let (ended, left) = until_ended(context, waiting, false, Some(LOOK_AGAIN)).await?;
            for (registry, run) in asked.iter().zip(&mut *runs) {
                if let Some(ended) = ended.iter().find(|ended| ended.id == run.id) {
                    run.state = ended.state;
                    run.outcome = if ended.state == StateName::Cancelled { Word::Cancelled } else { Word::Ended };
                } else if left.contains(&run.id) {
                    let seen = registry.glance(run.id).await?;
                    if owner_is_gone(&seen) && !seen.state.is_ended() {
                        *run = self.cancel(registry, &seen).await?;
                    }
                }
            }
            let waited = first.clock().awake().saturating_sub(began);
            if left.is_empty() || context.patience().is_some_and(|patience| waited >= patience) {
                return Ok(());
            }
        }
    }
}

fn outcome(seen: &Seen, state: StateName, word: Word) -> Outcome {
    let silent = seen.health == Some(Health::Unresponsive) && word != Word::Cancelled;
    Outcome {
        id: seen.run.id,
        outcome: word,
        state,
        silent_owner: seen.run.owner().filter(|_| silent).map(|owner| owner.identity.pid),
        asked_before_by: seen.run.cancel.as_ref().map(|request| request.by.user.to_string()),
    }
}

/// Whether nobody is there any more who could stop a run because it is asked to.
fn owner_is_gone(seen: &Seen) -> bool {
    seen.evidence.is_some() || seen.health == Some(Health::Orphaned)
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            return writeln!(f, "nothing to cancel");
        }
        self.runs.iter().try_for_each(|run| writeln!(f, "{run}"))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match (self.outcome, self.silent_owner, &self.asked_before_by) {
            (Word::Cancelled, ..) => write!(f, "{id} cancelled"),
            (Word::WouldCancel, ..) => write!(f, "{id} would be cancelled"),
            (Word::Ended, ..) => write!(f, "{id} had ended before it was stopped: it is {}", self.state),
            (Word::CancelRequested, Some(pid), _) => write!(
                f,
                "{id} cancel requested; its owner (pid {pid}) is silent: `outlive cancel --force {id}` ends it with all its processes"
            ),
            (Word::CancelRequested, None, Some(user)) => {
                write!(f, "{id} cancel requested before, by {}; that request stands", crate::terminal::plain(user))
            }
            (Word::CancelRequested, None, None) => {
                write!(f, "{id} cancel requested; `outlive wait {id}` waits until it has stopped")
            }
        }
    }
}
