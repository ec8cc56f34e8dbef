//! A hand: a process that executes one run after the other.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::libc;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::{Entropy, RunId, SystemEntropy};
use outlive::registry::Registry;
use outlive::run::{Pending, Run, State, StateName};
use outlive::runtime::handle::RunHandle;
use outlive::runtime::reaper::Reaper;
use outlive::store::{Offer, Order, Page, Walk, postgres};
use outlive::time::Timestamp;
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
/// How often a hand reads all that waits, where many share a registry and that may be much. What comes up for a claim
/// meanwhile is met there.
const LOOK_AROUND_EVERY: Duration = Duration::from_secs(15);
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
    #[arg(long)]
    say_starts: bool,
}

/// The words by which this program becomes a hand, which says when runs start if somebody wants to know.
pub fn words(registry: &str, kinds: &[String], drain: bool, say_starts: bool) -> Vec<OsString> {
    let kinds = kinds.iter().flat_map(|kind| ["--kind".into(), OsString::from(kind)]);
    let flags = [(drain, "--drain"), (say_starts, "--say-starts")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into());
    let words = ["outlive".into(), HAND.into(), "--registry".into(), sparing(registry).into()];
    words.into_iter().chain(kinds).chain(flags).collect()
}

/// The same registry with as few connections as a hand needs that does one thing after the other, unless it says how many.
fn sparing(registry: &str) -> String {
    if !postgres::Address::is_meant(registry) || registry.contains("connections=") {
        return registry.to_owned();
    }
    let joint = if registry.contains('?') { '&' } else { '?' };
    format!("{registry}{joint}connections=1")
}

/// About so long: whoever began together does not go on looking together.
fn spread(time: Duration) -> Duration {
    time * 3 / 4 + time / 2 * ((SystemEntropy.draw() & 0xff) as u32) / 255
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
        let owning = Owning {
            registry: &registry,
            policy: &policy,
            signals,
            detached: true,
            json: false,
            stays: true,
            growth: None,
        };
        let mut hand = Hand {
            registry: &registry,
            reaper: Reaper::new(registry.worker()),
            owning,
            flags,
            said: &mut said,
            followed: BTreeSet::new(),
            met: Vec::new(),
            tidy_at: Duration::ZERO,
            woken: false,
            around: Around::default(),
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
    /// Runs of schedules that a claim came upon, and whose next run is not known to be made.
    met: Vec<Run>,
    /// When it looks after things next, in time awake.
    tidy_at: Duration,
    /// It has waited, and looked after things before that: whoever has woken it need not wait for that again.
    woken: bool,
    around: Around,
}

/// What a hand saw when it last read all that waits.
#[derive(Default)]
struct Around {
    /// When it reads that again, in time awake.
    again_at: Duration,
    /// When what waits for its time, or for a rate, is due.
    due: Vec<Timestamp>,
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
        // Left to the end of the process: the kernel takes tens of milliseconds to forget it, and whoever closes it waits.
        let watch = ManuallyDrop::new(self.registry.local().map(|local| local.watch()).transpose()?);
        let bell = self.registry.bell();
        loop {
            if self.said.is_over() || self.is_asked_to_end() {
                return Ok(());
            }
            if let Some(watch) = &*watch {
                watch.forget();
            }
            if let Some(bell) = &bell {
                bell.forget();
            }
            if let Some(handle) = self.claim()? {
                self.execute(handle)?;
                continue;
            }
            if self.flags.drain {
                let waiting = pollster::block_on(self.registry.waiting())?;
                if !self.is_anything_left(&waiting)? {
                    return Ok(());
                }
            }
            *is_told = false;
            let patience = self.next_due().map_or_else(|| spread(LOOK_EVERY), |next| next.min(spread(LOOK_EVERY)));
            match (&*watch, &bell) {
                (Some(watch), _) => wait_for(&[watch, &self.said.0, &self.owning.signals], patience),
                (None, Some(bell)) => wait_for(&[bell, &self.said.0, &self.owning.signals], patience),
                (None, None) => wait_for(&[&self.said.0, &self.owning.signals], patience),
            }
            self.woken = true;
        }
    }

    fn is_asked_to_end(&mut self) -> bool {
        let signals = &mut self.owning.signals;
        let asks = |signal: i32| [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(&signal);
        std::iter::from_fn(|| signals.next()).any(|arrived| asks(arrived.signal))
    }

    /// Claims the next run, if there is one.
    fn claim(&mut self) -> Result<Option<RunHandle>, Error> {
        let is_stale = self.registry.clock().awake() >= self.tidy_at;
        if (std::mem::take(&mut self.woken) || !is_stale)
            && let Some(handle) = self.claim_one()?
        {
            return Ok(Some(handle));
        }
        self.tidy()?;
        self.claim_one()
    }

    fn claim_one(&mut self) -> Result<Option<RunHandle>, Error> {
        // Those that the last claim passed over, for one that needed no schedule to go on.
        self.follow_met()?;
        let claimed = self.try_claim()?;
        if claimed.is_some() || !self.follow_met()? {
            return Ok(claimed);
        }
        self.try_claim()
    }

    /// Has the schedules go on whose runs were met. Answers whether any can be claimed now.
    fn follow_met(&mut self) -> Result<bool, Error> {
        let followed = pollster::block_on(self.registry.follow_schedules(&std::mem::take(&mut self.met)))?;
        let any = !followed.is_empty();
        self.followed.extend(followed);
        Ok(any)
    }

    /// Claims one, past runs of schedules whose next run nobody has made yet: they are noted.
    fn try_claim(&mut self) -> Result<Option<RunHandle>, Error> {
        let (registry, followed, met) = (self.registry, &self.followed, Mutex::new(Vec::new()));
        let wanted = |run: &Run| {
            let is_free = run.spec.schedule.is_none() || followed.contains(&run.id);
            if !is_free && let Ok(mut met) = met.lock() {
                met.push(run.clone());
            }
            is_free && Job::of(registry, run, false).is_ok()
        };
        let kinds = Some(self.flags.kinds.iter().cloned().collect()).filter(|kinds: &BTreeSet<_>| !kinds.is_empty());
        let filter = Filter { kinds, ..Filter::default() };
        let claimed = pollster::block_on(registry.claim_those(filter, 1, &wanted))?.pop();
        self.met = met.into_inner().unwrap_or_default();
        Ok(claimed)
    }

    /// Sees to it that what can be claimed is: dead owners free their keys, ends are told, schedules go on.
    fn tidy(&mut self) -> Result<(), Error> {
        let registry = self.registry;
        let now = registry.clock().awake();
        self.tidy_at = now + spread(TIDY_EVERY);
        pollster::block_on(hooks::reap(registry, &mut self.reaper, Filter::default()))?;
        if registry.local().is_some() || now >= self.around.again_at {
            return self.look_around();
        }
        let waits = Filter { waits: Some(true), ..Filter::in_states([StateName::Pending]) };
        let mut walk = Walk::from(waits, Page { order: Order::Claim, ..Page::default() });
        while let Some(records) = pollster::block_on(walk.next(registry.store()))? {
            let waiting: Vec<Run> = records.into_iter().map(|record| record.run).collect();
            pollster::block_on(registry.release(&waiting))?;
        }
        Ok(())
    }

    /// Reads all that waits: what waits for others is told of their ends, and schedules go on however far behind they are.
    fn look_around(&mut self) -> Result<(), Error> {
        let registry = self.registry;
        self.around.again_at = registry.clock().awake() + spread(LOOK_AROUND_EVERY);
        let waiting = pollster::block_on(registry.waiting())?;
        pollster::block_on(registry.release(&waiting))?;
        self.followed = pollster::block_on(registry.follow_schedules(&waiting))?;
        let due = |run: &Run| match &run.state {
            State::Pending(pending) => pending.not_before,
            _ => None,
        };
        self.around.due = waiting.iter().filter_map(due).collect();
        let rated: Vec<&Run> = waiting.iter().filter(|run| run.rates().next().is_some()).collect();
        let free = pollster::block_on(registry.rates_used_up(&rated))?;
        self.around.due.extend(free.into_iter().map(|(_, free_at)| free_at));
        Ok(())
    }

    /// How long it is until the next of those that were seen is due by the clock.
    fn next_due(&self) -> Option<Duration> {
        let now = self.registry.clock().now();
        let left = self.around.due.iter().filter(|at| **at > now).map(|at| at.since(now));
        // A moment later, so that it is due by then.
        left.min().map(|left| left + Duration::from_millis(1))
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
        if self.flags.say_starts {
            self.said.say(&json!({ "event": "started", "id": run.id, "attempt": run.attempt }));
        }
        self.owning.see_through(handle, job, None);
        let seen = pollster::block_on(self.registry.glance(run.id))?;
        let view = RunView::new(&seen, self.registry);
        let event = if seen.state.is_ended() { "ended" } else { "again" };
        self.said.say(&json!({
            "event": event, "id": view.id, "title": view.title(), "state": view.state,
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
