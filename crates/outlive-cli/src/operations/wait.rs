//! `outlive wait`: waits until runs have ended.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::id::{Epoch, RunId};
use outlive::lifecycle::health::RunStatus;
use outlive::registry::Registry;
use outlive::run::{State, StateName};
use outlive::store::sqlite::{SqliteStore, Topic, Watch};
use outlive::time::parse_duration;
use regex::bytes::Regex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::descriptors::wait_for;
use crate::exec::line_search::{LineSearch, expression};
use crate::lookup::located::locate;
use crate::lookup::serving::Serving;
use crate::ui::run_view::RunView;
use crate::ui::typed::called;

/// The first pause between two looks at a run that may end without a notification.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// The longest pause between two looks at a store that many share.
const LOOK_AT_SHARED: Duration = Duration::from_secs(1);
/// The longest pause between two looks at a run of this machine: a notification may be lost.
const LOOK_SELDOM: Duration = Duration::from_secs(5);

/// Wait until runs have ended
///
/// The exit status is that of the run, or of the first of several that did not succeed; 1 if a run has none or did
/// not end in time. If a run will be retried, `wait` keeps waiting for its last attempt. A server answers after 25
/// seconds (`outlive mcp --patience` changes that) and lists runs that have not ended as `waiting`: ask again for those.
/// What a run that is not running waits for is printed to stderr, and so is that no worker serves it.
#[derive(Debug, Default, Args)]
pub struct Wait {
    /// Runs: ids or unique prefixes, names, @last, @~2, or REPOSITORY:ID
    #[arg(required = true)]
    pub runs: Vec<String>,
    /// Wait only until one of them has ended
    #[arg(long)]
    pub any: bool,
    /// Also end as soon as they are ready, as the --ready flags of `outlive run` define it
    #[arg(long)]
    pub ready: bool,
    /// Also end as soon as a line of their output matches this regular expression
    #[arg(long, value_name = "REGEX", conflicts_with = "ready")]
    pub line: Option<String>,
    /// Give up after this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

/// What is waited for.
pub enum Until {
    /// The end of a run.
    End,
    /// Its readiness, or its end.
    Ready,
    /// A line of its output, or its end.
    Line(Regex),
}

/// The runs that have ended, or are as was waited for.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Ended {
    runs: Vec<RunView>,
    /// Those that have not.
    waiting: Vec<RunId>,
    #[serde(skip)]
    too_late: bool,
}

impl Operate for Wait {
    const NAME: &'static str = "wait";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive wait train && echo done\noutlive wait --any train nightly\n\
                                    outlive wait train --ready --timeout 1m";
    type Output = Ended;

    async fn operate(self, context: &Context) -> Result<Ended, Error> {
        let located = locate(context, &self.runs, Self::EFFECT).await?;
        let waiting = located.each().map(|(registry, seen)| (registry, seen.run.id)).collect();
        let wanted = match &self.line {
            Some(line) => Until::Line(expression(line)?),
            None if self.ready => Until::Ready,
            None => Until::End,
        };
        let (runs, waiting) = until(context, waiting, self.any, self.timeout, &wanted).await?;
        Ok(Ended::new(runs, waiting, self.any))
    }

    fn exit_status(ended: &Ended) -> u8 {
        let over = ended.runs.iter().filter(|run| run.state != StateName::Running);
        over.map(RunView::exit_status).find(|status| *status != 0).unwrap_or(ended.too_late.into())
    }
}

impl Ended {
    /// Waits for runs, and tells what became of them.
    pub async fn of(
        context: &Context,
        waiting: Vec<(&Registry, RunId)>,
        any: bool,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let (runs, waiting) = until_ended(context, waiting, any, timeout).await?;
        Ok(Self::new(runs, waiting, any))
    }

    fn new(runs: Vec<RunView>, waiting: Vec<RunId>, any: bool) -> Self {
        let too_late = if any { runs.is_empty() } else { !waiting.is_empty() };
        Self { runs, waiting, too_late }
    }
}

/// Waits until the runs have ended, or any of them has, or the time is up. Answers with those that
/// have, and those that have not.
pub async fn until_ended(
    context: &Context,
    waiting: Vec<(&Registry, RunId)>,
    any: bool,
    timeout: Option<Duration>,
) -> Result<(Vec<RunView>, Vec<RunId>), Error> {
    until(context, waiting, any, timeout, &Until::End).await
}

/// Waits until the runs are as is wanted, or have ended, or any of them is. Answers with those that are, and those that
/// are not.
pub async fn until(
    context: &Context,
    mut waiting: Vec<(&Registry, RunId)>,
    any: bool,
    timeout: Option<Duration>,
    wanted: &Until,
) -> Result<(Vec<RunView>, Vec<RunId>), Error> {
    let limit = timeout.into_iter().chain(context.timeout()).min();
    let Some((first, _)) = waiting.first().copied() else { return Ok((Vec::new(), Vec::new())) };
    let clock = first.clock();
    let began = clock.awake();
    let mut waiter = Waiter::of(&waiting, context.is_served())?;
    let mut ended = Vec::new();
    loop {
        waiter.forget();
        ended.extend(waiter.take_ended(&mut waiting, wanted).await?);
        context.pass(ended.len(), ended.len() + waiting.len())?;
        let waited = clock.awake().saturating_sub(began);
        let pause = waiter.pause(waited);
        let left = limit.map_or(pause, |limit| limit.saturating_sub(waited).min(pause));
        if waiting.is_empty() || any && !ended.is_empty() || left.is_zero() {
            return Ok((ended, waiting.into_iter().map(|(_, id)| id).collect()));
        }
        waiter.wait(left);
    }
}

/// What ends a wait for runs: notifications of these runs, and the ends of their owners.
struct Waiter {
    watches: Vec<Watch>,
    owners: BTreeMap<RunId, (Epoch, OwnedFd)>,
    serving: BTreeMap<RunId, Serving>,
    /// The searches for a line, and the attempts that they search.
    searches: BTreeMap<(RunId, u32), LineSearch>,
    /// It answers a call of a server, and prints nothing.
    is_served: bool,
    /// How many of the runs change without a notification.
    unnotified: usize,
    /// Some of them are of a store that many share.
    is_shared: bool,
}

impl Waiter {
    fn of(waiting: &[(&Registry, RunId)], is_served: bool) -> Result<Self, Error> {
        let mut topics: BTreeMap<&str, (&SqliteStore, Vec<Topic>)> = BTreeMap::new();
        for (registry, id) in waiting {
            if let Some(local) = registry.local() {
                topics.entry(registry.url()).or_insert((local, Vec::new())).1.push(Topic::Run(*id));
            }
        }
        let watches = topics.values().map(|(local, topics)| local.watch(topics)).collect::<Result<_, _>>()?;
        let is_shared = waiting.iter().any(|(registry, _)| registry.local().is_none());
        let (owners, serving) = (BTreeMap::new(), BTreeMap::new());
        let searches = BTreeMap::new();
        Ok(Self { watches, owners, serving, searches, is_served, unnotified: 0, is_shared })
    }

    fn forget(&self) {
        for watch in &self.watches {
            watch.forget();
        }
    }

    /// Takes out the runs that have ended, and watches the owners of the others.
    async fn take_ended(
        &mut self,
        waiting: &mut Vec<(&Registry, RunId)>,
        wanted: &Until,
    ) -> Result<Vec<RunView>, Error> {
        let mut ended = Vec::new();
        self.unnotified = 0;
        for (registry, id) in std::mem::take(waiting) {
            let seen = registry.glance(id).await?;
            if seen.is_over() || self.is_met(wanted, registry, &seen) {
                self.owners.remove(&id);
                ended.push(RunView::new(&seen, registry));
                continue;
            }
            // There is no notification of a line.
            let is_notified =
                registry.local().is_some() && self.watch_owner(&seen) && !matches!(wanted, Until::Line(_));
            self.unnotified += usize::from(!is_notified);
            if !self.is_served {
                self.serving.entry(id).or_default().tell(registry, &seen).await?;
            }
            waiting.push((registry, id));
        }
        Ok(ended)
    }

    /// Whether a run that has not ended is as is wanted.
    fn is_met(&mut self, wanted: &Until, registry: &Registry, seen: &RunStatus) -> bool {
        let run = &seen.run;
        match (wanted, &run.state) {
            (Until::Ready, State::Running(running)) => run.spec.ready.is_some() && running.ready_at.is_some(),
            (Until::Line(line), State::Running(_)) => {
                let new = || LineSearch::new(run.id, run.attempt, line.clone());
                let search = self.searches.entry((run.id, run.attempt)).or_insert_with(new);
                registry.logs().is_some_and(|logs| search.is_found(&logs))
            }
            _ => false,
        }
    }

    /// Whether whatever ends the run notifies: it has no owner, or one that is watched.
    fn watch_owner(&mut self, seen: &RunStatus) -> bool {
        let (id, epoch) = (seen.run.id, seen.run.epoch);
        let Some(owner) = seen.run.owner().filter(|_| seen.state == StateName::Running) else {
            self.owners.remove(&id);
            return seen.run.owner().is_none();
        };
        if self.owners.get(&id).is_some_and(|(watched, _)| *watched == epoch) {
            return true;
        }
        let living = owner.identity.watch();
        living.map(|living| self.owners.insert(id, (epoch, living))).is_some()
    }

    /// How long to wait for a notification, after so long a wait.
    fn pause(&self, waited: Duration) -> Duration {
        match (self.unnotified, self.is_shared) {
            (0, _) => LOOK_SELDOM,
            // A store that many share is asked less and less often.
            (_, true) => (waited / 8).clamp(LOOK_EVERY, LOOK_AT_SHARED),
            (_, false) => (waited / 8).clamp(LOOK_EVERY, LOOK_SELDOM),
        }
    }

    fn wait(&mut self, limit: Duration) {
        let owners = self.owners.values().map(|(_, owner)| owner as &dyn AsFd);
        let fds: Vec<&dyn AsFd> = self.watches.iter().map(|watch| watch as &dyn AsFd).chain(owners).collect();
        wait_for(&fds, limit);
        // One that has ended is readable for ever: what became of its run is looked at, not waited for.
        self.owners.retain(|_, (_, owner)| !is_readable(owner));
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in &self.runs {
            writeln!(f, "{}", run.ended_line())?;
        }
        if self.too_late {
            self.waiting.iter().try_for_each(|id| writeln!(f, "{} has not ended yet", called(*id)))?;
        }
        Ok(())
    }
}
