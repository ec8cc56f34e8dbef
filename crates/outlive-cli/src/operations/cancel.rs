//! `outlive cancel`: asks owners to stop their runs, and ends the processes of runs that have no owner.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::health::{Health, RunStatus};
use outlive::lifecycle::{ActionKind, Refusal};
use outlive::owner::LiveProcesses;
use outlive::registry::{CancelOptions, Cancellation, Registry};
use outlive::run::StateName;
use outlive::time::parse_duration;
use schemars::JsonSchema;
use serde::Serialize;

use super::bulk::{Bulk, BulkFilter, SELECTING, each_batch, states};
use super::wait::until_ended;
use crate::call::{Context, Effect, Operate, deliver};
use crate::lookup::located::{Located, RegistryRef, locate};
use crate::ui::typed::called;
use crate::ui::{counted, plain};

/// Cancel runs and stop their processes
///
/// The request is durable: a local owner stops the run at once, a remote one with its next heartbeat. The answer is
/// `cancelled` only when nothing of the run's process tree is left; until then it is `cancel_requested`, with the
/// pids that live. The processes of a run whose owner is gone, or that is dead, interrupted or waits for another
/// attempt, are ended here, and the run is final. Processes on another host cannot be ended from here: the answer
/// names that host. The first request stands. If one of several runs cannot be cancelled, none is.
///
/// With --all, --status, --kind, --name, --label, --since or --until, the runs that match are counted, and cancelled
/// only with --yes: in flight, unless --status says otherwise. A thousand runs are one write.
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "outlive cancel [OPTIONS] <RUNS>...\n       outlive cancel [OPTIONS] --all [--yes]\n       outlive cancel [OPTIONS] --kind KIND|--label KEY=VALUE|... [--yes]"
)]
pub struct Cancel {
    /// Runs: ids or unique prefixes, names, @last, @~2, or REPOSITORY:ID
    #[arg(required_unless_present_any = SELECTING.into_iter().chain(["all"]))]
    pub runs: Vec<String>,
    /// Every run of this registry that is in flight: with --yes, else they are only listed
    #[arg(long, conflicts_with = "runs")]
    pub all: bool,
    /// Select runs in this state (repeatable)
    #[arg(
        long = "status",
        visible_alias = "state",
        value_name = "STATE",
        value_parser = PossibleValuesParser::new(StateName::ALL.map(StateName::as_str))
    )]
    pub status: Vec<String>,
    #[command(flatten)]
    pub filter: BulkFilter,
    /// The reason, kept in the event log
    #[arg(long)]
    pub reason: Option<String>,
    /// Grace period: how long a run may take to stop before it is killed
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub grace: Option<Duration>,
    /// Kill an owner that is alive but sends no heartbeats, with all processes of its run
    #[arg(long)]
    pub force: bool,
    /// Wait until they have ended with all their processes; the exit status is 1 if something is left
    #[arg(long)]
    pub wait: bool,
    /// Only print what would be cancelled
    #[arg(long, conflicts_with_all = ["wait", "yes"])]
    pub dry_run: bool,
}

/// What became of the requests.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Cancelled {
    dry_run: bool,
    runs: Vec<Outcome>,
    /// Of a call that selected runs by a filter: what became of them.
    bulk: Option<Bulk>,
    #[serde(skip)]
    waited: bool,
    /// `--all` was said without `--yes` or `--dry-run`.
    #[serde(skip)]
    is_asked: bool,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Outcome {
    id: RunId,
    outcome: Word,
    state: StateName,
    /// Processes of the run that still live, its owner not counted.
    live_pids: Vec<u32>,
    /// Other processes of the run live, which this user may not look into.
    live_unseen: bool,
    /// The host of its last attempt, where its processes cannot be observed from here.
    elsewhere: Option<String>,
    /// The pid of an owner that lives but does not beat, so that it may never see the request.
    silent_owner: Option<u32>,
    /// Who had requested it before; that request stands.
    asked_before_by: Option<String>,
    /// Of a request: what keeps the run from being cancelled, and what to type about it, for people.
    note: Option<String>,
}

/// What became of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
enum Word {
    /// It is cancelled, and nothing of its process tree is left.
    Cancelled,
    /// The request is on record; processes or an owner are left, or cannot be observed.
    CancelRequested,
    /// It came to another end before it could be stopped.
    Ended,
    /// It would be asked to.
    WouldCancel,
}

/// The states of runs that have not ended.
const IN_FLIGHT: [StateName; 3] = [StateName::Pending, StateName::Running, StateName::Suspended];
/// How many runs are cancelled by one write.
const BATCH: usize = 1_000;
/// How often `--wait` looks whether an owner is left that could stop the run.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

impl Operate for Cancel {
    const NAME: &'static str = "cancel";
    const EFFECT: Effect = Effect::Stop;
    const EXAMPLES: &'static str = "outlive cancel train --reason 'wrong data'\n\
                                    outlive cancel train --grace 2m --wait\n\
                                    outlive cancel --all\n\
                                    outlive cancel --kind import --label tenant=acme --status pending";
    type Output = Cancelled;

    fn effect(&self) -> Effect {
        if (self.is_bulk() || self.all) && !self.filter.yes { Effect::Read } else { Self::EFFECT }
    }

    async fn operate(mut self, context: &Context) -> Result<Cancelled, Error> {
        let is_asked = self.all && !self.filter.yes && !self.dry_run;
        self.dry_run |= is_asked;
        self.filter.check(&self.status, self.all || !self.runs.is_empty())?;
        let mut cancelled =
            Cancelled { dry_run: self.dry_run, runs: Vec::new(), bulk: None, waited: self.wait, is_asked };
        if self.is_bulk() {
            let bulk = self.in_bulk(context).await?;
            return Ok(Cancelled { dry_run: !self.filter.yes, bulk: Some(bulk), ..cancelled });
        }
        let located = self.meant(context).await?;
        let mut asked = Vec::new();
        if self.all && !self.dry_run {
            if let Some(place) = located.places.first() {
                let seen: Vec<&RunStatus> = located.runs.iter().map(|(_, seen)| seen).collect();
                for part in seen.chunks(BATCH) {
                    context.progress().report(cancelled.runs.len(), seen.len());
                    let done = self.cancel_many(&place.registry, part).await?;
                    // Those that ended by themselves since they were listed are left out.
                    cancelled.runs.extend(done.into_iter().flatten());
                }
                asked.resize(cancelled.runs.len(), &place.registry);
            }
        } else {
            let mut known = BTreeSet::new();
            let total = located.each().count();
            let each = located.each().enumerate().filter(|(_, (_, seen))| known.insert(seen.run.id));
            for (done, (registry, seen)) in each {
                context.progress().report(done, total);
                if self.dry_run {
                    cancelled.runs.push(would_cancel(seen));
                    continue;
                }
                asked.push(registry);
                cancelled.runs.push(self.cancel(registry, seen).await?);
            }
        }
        if self.wait && !self.dry_run {
            self.wait(context, &asked, &mut cancelled.runs).await?;
        }
        for run in cancelled.runs.iter_mut().filter(|run| run.outcome == Word::CancelRequested) {
            run.note = Some(run.what_is_left());
        }
        Ok(cancelled)
    }

    fn exit_status(cancelled: &Cancelled) -> u8 {
        let is_left = |run: &Outcome| run.outcome == Word::CancelRequested;
        let left = u8::from(cancelled.waited && cancelled.runs.iter().any(is_left));
        cancelled.bulk.as_ref().map_or(left, Bulk::exit_status)
    }
}

impl Cancel {
    /// Whether runs are selected by a filter.
    fn is_bulk(&self) -> bool {
        self.filter.is_any() || !self.status.is_empty()
    }

    /// Counts the runs that the filter selects, and cancels them where that is wanted.
    pub(super) async fn in_bulk(&self, context: &Context) -> Result<Bulk, Error> {
        let mut bulk = Bulk::new("cancelled", !self.filter.yes);
        if self.wait {
            return Err(Error::Invalid(
                "`--wait` goes with runs that are named; `outlive wait` waits for others".into(),
            ));
        }
        let opened = if self.filter.yes { context.to_change().await? } else { context.existing().await? };
        let Some(registry) = opened else { return Ok(bulk) };
        let filter = self.filter.filter(states(&self.status, &IN_FLIGHT)?, registry.clock().now())?;
        if self.filter.yes {
            deliver(&registry).await?;
        }
        each_batch((context, &registry), &filter, async |seen| {
            bulk.select(&seen);
            if !self.filter.yes {
                return Ok(());
            }
            for done in self.cancel_many(&registry, &seen.iter().collect::<Vec<_>>()).await? {
                match done {
                    Ok(one) if one.outcome == Word::CancelRequested => bulk.request(1),
                    Ok(_) => bulk.change(1),
                    Err(error) => bulk.leave(&error),
                }
            }
            Ok(())
        })
        .await?;
        Ok(bulk)
    }

    /// Cancels many runs of one registry: those that have not begun in one write, those whose owners will stop them in
    /// another, and the rest one by one, since their processes are ended here. An answer that is an error is that of a
    /// run which cannot be cancelled any more.
    async fn cancel_many(
        &self,
        registry: &Registry,
        seen: &[&RunStatus],
    ) -> Result<Vec<Result<Outcome, Error>>, Error> {
        let is_waiting = |seen: &&&RunStatus| seen.run.state.name() == StateName::Pending;
        let waiting: Vec<RunId> = seen.iter().filter(is_waiting).map(|seen| seen.run.id).collect();
        let ended = registry.cancel_unbegun(&waiting, self.reason.clone()).await?;
        let is_owned = |seen: &&&RunStatus| seen.run.owner().is_some() && !seen.is_without_owner() && !self.force;
        let owned: Vec<RunId> = seen.iter().filter(is_owned).map(|seen| seen.run.id).collect();
        let asked = registry.request_cancel_each(&owned, self.reason.clone(), self.grace).await?;
        let (ended, asked): (BTreeSet<RunId>, BTreeSet<RunId>) =
            (ended.iter().map(|run| run.id).collect(), asked.iter().map(|run| run.id).collect());
        let mut all = Vec::new();
        for seen in seen {
            let id = seen.run.id;
            let one = Outcome { outcome: Word::Cancelled, state: StateName::Cancelled, ..would_cancel(seen) };
            all.push(if ended.contains(&id) {
                Ok(one)
            } else if asked.contains(&id) {
                Ok(Outcome { outcome: Word::CancelRequested, state: seen.state, ..one })
            } else {
                match self.cancel(registry, seen).await {
                    Err(error @ (Error::Refused { .. } | Error::NotFound(_))) => Err(error),
                    done => Ok(done?),
                }
            });
        }
        Ok(all)
    }

    /// The runs to stop. All of them are looked up before any is asked to: a wrong name changes nothing.
    async fn meant(&self, context: &Context) -> Result<Located, Error> {
        if self.all {
            return self.in_flight(context).await;
        }
        let effect = if self.dry_run { Effect::Read } else { Self::EFFECT };
        let located = locate(context, &self.runs, effect).await?;
        for (registry, seen) in located.each().filter(|(_, seen)| seen.run.state.name().is_final()) {
            let is_unfinished =
                seen.state == StateName::Cancelled && !registry.get(seen.run.id).await?.leftovers.is_empty();
            if is_unfinished {
                continue;
            }
            let refusal = Refusal::WrongState { action: ActionKind::RequestCancel, state: seen.state };
            return Err(Error::Refused { run: seen.run.id, refusal });
        }
        Ok(located)
    }

    async fn in_flight(&self, context: &Context) -> Result<Located, Error> {
        // Where there is no registry, nothing is in flight.
        let opened = if self.dry_run { context.existing().await? } else { context.to_change().await? };
        let Some(registry) = opened else {
            return Ok(Located { places: Vec::new(), runs: Vec::new() });
        };
        if !self.dry_run {
            deliver(&registry).await?;
        }
        // Steps end with the runs that they are steps of.
        let runs = registry.all(&Filter { is_step: Some(false), ..Filter::in_states(IN_FLIGHT) }).await?;
        let runs = runs.into_iter().map(|seen| (0, seen)).collect();
        Ok(Located { places: vec![RegistryRef { context: None, registry }], runs })
    }

    async fn cancel(&self, registry: &Registry, seen: &RunStatus) -> Result<Outcome, Error> {
        let how = CancelOptions { reason: self.reason.clone(), grace: self.grace, force: self.force };
        let done = registry.cancel_and_end(seen.run.id, &how).await?;
        let asked_before_by = seen.run.cancel.as_ref().map(|request| request.by.user.to_string());
        Ok(Outcome { asked_before_by, ..outcome(&done) })
    }

    /// Waits until all runs have ended with their processes, but for those that nothing here can stop: an owner that
    /// does not beat, processes on another host. A run whose owner dies meanwhile is ended here.
    async fn wait(&self, context: &Context, asked: &[&Registry], runs: &mut [Outcome]) -> Result<(), Error> {
        let Some(first) = asked.first() else { return Ok(()) };
        let began = first.clock().awake();
        loop {
            let waiting = asked.iter().zip(&*runs).filter(|(_, run)| run.may_stop());
            let waiting: Vec<_> = waiting.map(|(registry, run)| (*registry, run.id)).collect();
            if waiting.is_empty() {
                return Ok(());
            }
            let (ended, _) = until_ended(context, waiting, false, Some(LOOK_AGAIN)).await?;
            for (registry, run) in asked.iter().zip(&mut *runs).filter(|(_, run)| run.may_stop()) {
                match ended.iter().find(|ended| ended.id == run.id).map(|ended| ended.state) {
                    Some(state) if state.is_final() && state != StateName::Cancelled => {
                        (run.state, run.outcome) = (state, Word::Ended);
                    }
                    _ => self.look_again(registry, run).await?,
                }
            }
            let waited = first.clock().awake().saturating_sub(began);
            if context.timeout().is_some_and(|limit| waited >= limit) {
                return Ok(());
            }
        }
    }

    /// Looks at a run that is waited for, and ends what no owner will end.
    async fn look_again(&self, registry: &Registry, run: &mut Outcome) -> Result<(), Error> {
        let seen = registry.get(run.id).await?;
        let is_owned = seen.run.owner().is_some() && !seen.is_without_owner();
        if is_owned {
            let silent = seen.health == Some(Health::Unresponsive);
            run.silent_owner = seen.run.owner().filter(|_| silent).map(|owner| owner.identity.pid);
        } else if seen.state == StateName::Cancelled && seen.leftovers.is_empty() {
            (run.state, run.outcome, run.live_pids, run.live_unseen) = (seen.state, Word::Cancelled, Vec::new(), false);
        } else {
            match self.cancel(registry, &seen).await {
                // It came to another end meanwhile; the next look finds it.
                Err(Error::Refused { refusal: Refusal::WrongState { .. }, .. }) => {}
                one => *run = Outcome { asked_before_by: run.asked_before_by.take(), ..one? },
            }
        }
        Ok(())
    }
}

impl Outcome {
    /// Whether it makes sense to wait for it.
    fn may_stop(&self) -> bool {
        let is_out_of_reach = self.silent_owner.is_some() || self.elsewhere.is_some();
        self.outcome == Word::CancelRequested && !is_out_of_reach
    }
}

fn outcome(done: &Cancellation) -> Outcome {
    Outcome {
        id: done.run.id,
        outcome: if done.is_done() { Word::Cancelled } else { Word::CancelRequested },
        state: done.run.state.name(),
        live_pids: done.live.pids.clone(),
        live_unseen: done.live.unseen,
        elsewhere: done.elsewhere.clone(),
        silent_owner: done.silent_owner,
        asked_before_by: None,
        note: None,
    }
}

fn would_cancel(seen: &RunStatus) -> Outcome {
    let silent = seen.health == Some(Health::Unresponsive);
    Outcome {
        id: seen.run.id,
        outcome: Word::WouldCancel,
        state: seen.state,
        live_pids: seen.leftovers.pids.clone(),
        live_unseen: seen.leftovers.unseen,
        elsewhere: None,
        silent_owner: seen.run.owner().filter(|_| silent).map(|owner| owner.identity.pid),
        asked_before_by: seen.run.cancel.as_ref().map(|request| request.by.user.to_string()),
        note: None,
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bulk) = &self.bulk {
            return bulk.fmt(f);
        }
        if self.runs.is_empty() {
            return writeln!(f, "nothing to cancel");
        }
        self.runs.iter().try_for_each(|run| writeln!(f, "{run}"))?;
        match self.is_asked {
            true => writeln!(f, "{} selected; nothing was cancelled, --yes cancels", counted(self.runs.len(), "run")),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id;
        match self.outcome {
            Word::Cancelled => write!(f, "{id} cancelled"),
            Word::WouldCancel => write!(f, "{id} would be cancelled"),
            Word::Ended => write!(f, "{id} had ended before it was stopped: it is {}", self.state),
            Word::CancelRequested => write!(f, "{id} cancel requested{}", self.what_is_left()),
        }
    }
}

impl Outcome {
    /// What keeps a run from being cancelled, and what to type about it.
    fn what_is_left(&self) -> String {
        let id = called(self.id);
        let live = LiveProcesses { pids: self.live_pids.clone(), unseen: self.live_unseen };
        if let Some(pid) = self.silent_owner {
            return format!(
                "; its owner (pid {pid}) is silent: `outlive cancel --force {id}` ends it with all its processes"
            );
        }
        if let Some(host) = &self.elsewhere {
            let host = plain(host);
            return format!(
                "; it is not started again, but its processes were on host `{host}` and cannot be observed from here: \
                 `outlive cancel {id}` there stops its processes"
            );
        }
        if !live.is_empty() {
            return format!("; still alive: {live}: `outlive cancel --wait {id}` waits until they are gone");
        }
        match &self.asked_before_by {
            Some(user) => format!(" before, by {}; that request stands", plain(user)),
            None => format!("; `outlive wait {id}` waits until it has stopped"),
        }
    }
}
