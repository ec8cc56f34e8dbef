//! A hand: a process that executes one run after the other.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::libc;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::registry::{Registry, next_due};
use outlive::run::{Pending, Run, State};
use outlive::runtime::handle::RunHandle;
use outlive::runtime::reaper::Reaper;
use outlive::store::Offer;
use serde_json::{Value, json};

use super::wait_for;
use crate::launcher::detach::Report;
use crate::launcher::own::{Job, Owning};
use crate::launcher::signals::Signals;
use crate::run_view::RunView;
use crate::settings::Context;
use crate::workers::hooks;

/// The word by which this program knows that it is to be a hand.
pub const HAND: &str = "__hand";

/// How long a hand that finds nothing waits before it looks again, where nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often a hand that is busy looks after what nobody else may look after: schedules, ends that others wait for, dead
/// owners that hold keys.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// Executes runs. Called by outlive itself.
#[derive(Args)]
struct Flags {
    #[arg(long = "kind")]
    kinds: Vec<String>,
    #[arg(long)]
    drain: bool,
}

/// The words by which this program becomes a hand.
pub fn words(registry: &str, kinds: &[String], drain: bool) -> Vec<OsString> {
    let kinds = kinds.iter().flat_map(|kind| ["--kind".into(), OsString::from(kind)]);
    let drain = drain.then(|| "--drain".into());
    let words = ["outlive".into(), HAND.into(), "--registry".into(), registry.into()];
    words.into_iter().chain(kinds).chain(drain).collect()
}

/// The command's flags.
pub fn hand_command() -> Command {
    Flags::augment_args(Command::new(HAND)).hide(true)
}

/// Executes runs until there are none left, or whoever started it wants no more.
pub fn hand(matches: &ArgMatches, context: &Context, mask: SigSet, report: Option<Report>) -> u8 {
    let (Ok(flags), Some(report)) = (Flags::from_arg_matches(matches), report) else { return 2 };
    let stream = report.into_stream();
    let Ok(signals) = Signals::take(mask) else { return 1 };
    let mut said = Said(stream);
    let opened = context.log_policy().and_then(|policy| Ok((policy, open(context, &mut said)?)));
    let worked = opened.and_then(|(policy, registry)| {
        let Some(registry) = registry else { return Ok(()) };
        let registry = registry.offering(Offer::new(1, flags.kinds.clone()));
        let owning = Owning { registry: &registry, policy: &policy, signals, detached: true, json: false, stays: true };
        let mut hand = Hand {
            registry: &registry,
            reaper: Reaper::new(registry.worker()),
            owning,
            flags,
            said: &mut said,
            followed: BTreeSet::new(),
            tidied: None,
        };
        let worked = hand.work();
        pollster::block_on(registry.close());
        worked
    });
    if let Err(error) = &worked {
        said.say(&json!({ "event": "refused", "reason": error.to_string() }));
    }
    said.say(&json!({ "event": "done" }));
    u8::from(worked.is_err())
}

/// The registry, waited for while it cannot be reached. None if whoever started us wants no more meanwhile.
fn open(context: &Context, said: &mut Said) -> Result<Option<Registry>, Error> {
    let mut is_told = false;
    loop {
        match pollster::block_on(context.registry()) {
            Err(Error::Store(error)) if error.is_passing() => {
                if !std::mem::replace(&mut is_told, true) {
                    said.trouble(&error);
                }
                wait_for(&[&said.0], LOOK_EVERY);
                if said.is_over() {
                    return Ok(None);
                }
            }
            opened => return opened.map(Some),
        }
    }
}

/// The way to whoever started this hand.
struct Said(UnixStream);

impl Said {
    fn say(&mut self, what: &Value) {
        // Whoever started us may be gone.
        let _ = self.0.write_all(format!("{what}\n").as_bytes());
    }

    /// Says what keeps us from working for a while.
    fn trouble(&mut self, error: &outlive::store::Error) {
        self.say(&json!({ "event": "trouble", "reason": format!("{error}; goes on when that is over") }));
    }

    /// Whether whoever started us wants no more, or is gone.
    fn is_over(&self) -> bool {
        super::peeks_end(&self.0)
    }
}

struct Hand<'a> {
    registry: &'a Registry,
    reaper: Reaper,
    owning: Owning<'a>,
    flags: Flags,
    said: &'a mut Said,
    /// Runs of schedules whose next run is made.
    followed: BTreeSet<RunId>,
    tidied: Option<Duration>,
}

impl Hand<'_> {
    /// Works through outages: what could not be recorded is, when they are over, and nobody is judged who could not be heard.
    fn work(&mut self) -> Result<(), Error> {
        let mut is_told = false;
        loop {
            match self.work_on(&mut is_told) {
                Err(Error::Store(error)) if error.is_passing() => {
                    if !std::mem::replace(&mut is_told, true) {
                        self.said.trouble(&error);
                    }
                    wait_for(&[&self.said.0, &self.owning.signals], LOOK_EVERY);
                }
                worked => return worked,
            }
        }
    }

    fn work_on(&mut self, is_told: &mut bool) -> Result<(), Error> {
        let watch = self.registry.local().map(|local| local.watch()).transpose()?;
        let bell = self.registry.bell();
        loop {
            if self.said.is_over() || self.is_asked_to_end() {
                return Ok(());
            }
            if let Some(watch) = &watch {
                watch.forget();
            }
            if let Some(bell) = &bell {
                bell.forget();
            }
            if let Some(handle) = self.claim()? {
                self.execute(handle)?;
                continue;
            }
            let waiting = pollster::block_on(self.registry.waiting())?;
            *is_told = false;
            if self.flags.drain && !self.is_anything_left(&waiting)? {
                return Ok(());
            }
            let next = next_due(&waiting, self.registry.clock().now());
            let patience = next.map_or(LOOK_EVERY, |next| next.min(LOOK_EVERY));
            match (&watch, &bell) {
                (Some(watch), _) => wait_for(&[watch, &self.said.0, &self.owning.signals], patience),
                (None, Some(bell)) => wait_for(&[bell, &self.said.0, &self.owning.signals], patience),
                (None, None) => wait_for(&[&self.said.0, &self.owning.signals], patience),
            }
        }
    }

    fn is_asked_to_end(&mut self) -> bool {
        let signals = &mut self.owning.signals;
        let asks = |signal: i32| [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(&signal);
        std::iter::from_fn(|| signals.next()).any(|arrived| asks(arrived.signal))
    }

    /// Claims the next run, if there is one.
    fn claim(&mut self) -> Result<Option<RunHandle>, Error> {
        let now = self.registry.clock().awake();
        let is_stale = self.tidied.is_none_or(|tidied| now.saturating_sub(tidied) >= TIDY_EVERY);
        if !is_stale && let Some(handle) = self.claim_one()? {
            return Ok(Some(handle));
        }
        self.tidy()?;
        self.claim_one()
    }

    fn claim_one(&self) -> Result<Option<RunHandle>, Error> {
        let (registry, followed) = (self.registry, &self.followed);
        let wanted = |run: &Run| {
            let by_kind = self.flags.kinds.is_empty() || self.flags.kinds.contains(&run.spec.kind);
            let by_schedule = run.spec.schedule.is_none() || followed.contains(&run.id);
            by_kind && by_schedule && Job::of(registry, run, false).is_ok()
        };
        let claimed = pollster::block_on(registry.claim_those(Filter::default(), 1, &wanted))?;
        Ok(claimed.into_iter().next())
    }

    /// Sees to it that what can be claimed is: dead owners free their keys, ends are told, schedules go on.
    fn tidy(&mut self) -> Result<(), Error> {
        let registry = self.registry;
        self.tidied = Some(registry.clock().awake());
        pollster::block_on(async {
            hooks::reap(registry, &mut self.reaper, Filter::default()).await?;
            let waiting = registry.waiting().await?;
            registry.release(&waiting).await?;
            self.followed = registry.follow_schedules(&waiting).await?;
            Ok(())
        })
    }

    fn execute(&mut self, handle: RunHandle) -> Result<(), Error> {
        let run = handle.run();
        let job = match Job::of(self.registry, &run, false) {
            Ok(job) => job,
            Err(error) => {
                pollster::block_on(handle.fail("spawn", error.to_string()))?;
                return Ok(());
            }
        };
        self.said.say(&json!({ "event": "started", "id": run.id, "attempt": run.attempt }));
        self.owning.see_through(handle, job, None);
        let seen = pollster::block_on(self.registry.glance(run.id))?;
        let view = RunView::new(&seen, self.registry);
        self.said.say(&json!({
            "event": "ended", "id": view.id, "title": view.title(), "state": view.state,
            "exit_code": view.exit_code, "reason": view.reason,
        }));
        Ok(())
    }

    /// Whether anything waits that will be due without a clock or a person.
    fn is_anything_left(&self, waiting: &[Run]) -> Result<bool, Error> {
        let now = self.registry.clock().now();
        let by_kind = |run: &&Run| self.flags.kinds.is_empty() || self.flags.kinds.contains(&run.spec.kind);
        let ours = waiting.iter().filter(|run| by_kind(run) && Job::of(self.registry, run, false).is_ok());
        let mut waits: Vec<(RunId, &Pending)> = Vec::new();
        for run in ours {
            match &run.state {
                State::Pending(pending) if pending.is_due(now) => return Ok(true),
                // Its time was set by a person. A later attempt waits for no longer than its policy says.
                State::Pending(pending) if run.attempt > 1 || pending.not_before.is_none_or(|at| at <= now) => {
                    waits.push((run.id, pending));
                }
                _ => {}
            }
        }
        // What waits for nothing but runs that run, or that wait for such, is left.
        let parents: Vec<RunId> = waits.iter().flat_map(|(_, pending)| pending.waits_for.clone()).collect();
        let parents = pollster::block_on(self.registry.store().get(&parents))?;
        let running = parents.iter().map(|record| &record.run).filter(|run| run.owner().is_some());
        let mut left: BTreeSet<RunId> = running.map(|run| run.id).collect();
        loop {
            let before = left.len();
            let comes = |pending: &Pending| pending.waits_for.iter().all(|parent| left.contains(parent));
            let more: Vec<RunId> = waits.iter().filter(|(_, pending)| comes(pending)).map(|(id, _)| *id).collect();
            left.extend(more);
            if left.len() == before {
                return Ok(waits.iter().any(|(id, _)| left.contains(id)));
            }
        }
    }
}
