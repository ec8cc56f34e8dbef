//! A slot: a process that executes one run after the other.

mod intake;
mod rotation;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::libc;
use nix::sys::signal::SigSet;
use outlive::engine::claims::Claims;
use outlive::engine::maintenance::Maintenance;
use outlive::error::Error;
use outlive::id::{Entropy, RunId, SystemEntropy};
use outlive::lifecycle::OwnerEnd;
use outlive::logs::LogPolicy;
use outlive::ownership::handle::RunHandle;
use outlive::registry::{Registry, WorkReady};
use outlive::run::{Pending, Run, State};
use outlive::store::WorkerCapacity;
#[cfg(feature = "postgres")]
use outlive::store::postgres;
use outlive::store::sqlite::{SqliteStore, Topic, Watch};
use serde_json::{Value, json};

use self::intake::Intake;
use crate::call::Context;
use crate::exec::descriptors::wait_for;
use crate::exec::detach::Report;
use crate::exec::hooks;
use crate::exec::own::{Job, Owning, record_end};
use crate::exec::signals::Signals;
use crate::lookup::serving::is_for_handler;
use crate::ui::run_view::RunView;
use crate::workers::socket::{Caller, WorkerAnswer};

/// The word by which this program knows that it is to be a slot.
pub const SLOT: &str = "__slot";

/// How long a slot that finds nothing waits before it looks again, where nothing wakes it.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How often it asks where a notification may have been lost.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// The least time between two looks that a clock asks for.
const LOOK_AT_MOST_EVERY: Duration = Duration::from_millis(20);
/// How often the registry is maintained: ends that were not recorded, dead owners that hold keys, runs that wait for
/// others.
const MAINTAIN_EVERY: Duration = Duration::from_secs(1);
/// The most runs that are remembered as not executable here.
const PASSED: usize = 10_000;
/// The most runs of one claim that are looked at for a warning.
const PASSED_AT_ONCE: usize = 64;

/// Executes runs. Called by outlive itself.
#[derive(Clone, Args)]
struct Flags {
    #[arg(long = "kind")]
    kinds: Vec<String>,
    #[arg(long)]
    name: Option<String>,
    #[arg(long)]
    drain: bool,
    /// The descriptor of the socket that callers add runs at.
    #[arg(long)]
    listener: Option<String>,
    /// The registry that is named is several, a line each.
    #[arg(long)]
    several: bool,
}

impl Flags {
    /// What a slot with these flags takes from a queue.
    fn capacity(&self) -> WorkerCapacity {
        WorkerCapacity::new(1, self.kinds.clone()).named(self.name.clone())
    }
}

/// The words by which this program becomes a slot.
pub fn words(
    registries: &[String],
    kinds: &[String],
    name: Option<&str>,
    drain: bool,
    listener: Option<RawFd>,
) -> Vec<OsString> {
    let kinds = kinds.iter().flat_map(|kind| ["--kind".into(), OsString::from(kind)]);
    let name = name.map(|name| format!("--name={name}").into());
    let flags = [(drain, "--drain"), (registries.len() > 1, "--several")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into());
    let listener = listener.map(|number| format!("--listener={number}").into());
    let registries: Vec<String> = registries.iter().map(|registry| sparing(registry)).collect();
    let words = ["outlive".into(), SLOT.into(), "--registry".into(), registries.join("\n").into()];
    words.into_iter().chain(kinds).chain(name).chain(flags).chain(listener).collect()
}

/// The same registry with as few connections as a slot needs that does one thing after the other, unless it says how
/// many.
fn sparing(registry: &str) -> String {
    #[cfg(feature = "postgres")]
    if postgres::DatabaseAddress::is_meant(registry) && !registry.contains("connections=") {
        let joint = if registry.contains('?') { '&' } else { '?' };
        return format!("{registry}{joint}connections=1");
    }
    registry.to_owned()
}

/// About so long: processes that began together do not go on looking together.
fn spread(time: Duration) -> Duration {
    time * 3 / 4 + time / 2 * ((SystemEntropy.draw() & 0xff) as u32) / 255
}

/// The command's flags.
pub fn slot_command() -> Command {
    Flags::augment_args(Command::new(SLOT)).hide(true)
}

/// Executes runs until there are none left, or its parent wants no more.
pub fn slot(matches: &ArgMatches, context: &Context, mask: SigSet, report: Option<Report>) -> u8 {
    let (Ok(flags), Some(report)) = (Flags::from_arg_matches(matches), report) else { return 2 };
    let stream = report.into_stream();
    let Ok(signals) = Signals::take(mask) else { return 1 };
    let mut said = Said(stream);
    if flags.several {
        let urls: Vec<String> = context.named_text().unwrap_or_default().lines().map(str::to_owned).collect();
        return said.end(rotation::rotate(&urls, &flags, signals, &said));
    }
    // Before they are read.
    let intake = Intake::handed(context, &flags);
    let opened = context.log_policy().and_then(|policy| Ok((policy, open(context, &mut said)?)));
    let worked = opened.and_then(|(policy, registry)| {
        let Some(registry) = registry else { return Ok(()) };
        let registry = registry.offering(flags.capacity());
        let mut slot = WorkSlot::new(&registry, &policy, signals, flags, said.another()?);
        slot.intake = intake;
        // A process that waits for a run sees that it is served. A store that cannot be reached is met again by the
        // first claim.
        let _ = pollster::block_on(registry.announce());
        let worked = slot.work();
        pollster::block_on(registry.close());
        worked
    });
    said.end(worked)
}

/// The registry, waited for while it cannot be reached. None if its parent wants no more meanwhile.
fn open(context: &Context, said: &mut Said) -> Result<Option<Registry>, Error> {
    let mut is_told = false;
    loop {
        match pollster::block_on(context.registry()) {
            Err(Error::Store(error)) if error.is_transient() => {
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

/// Whether a signal asks this process to end.
fn is_asked_to_end(signals: &mut Signals) -> bool {
    let asks = |signal: i32| [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(&signal);
    std::iter::from_fn(|| signals.next()).any(|arrived| asks(arrived.signal))
}

/// The way to the parent of this slot.
struct Said(UnixStream);

impl Said {
    /// Another way to the same parent.
    fn another(&self) -> Result<Self, Error> {
        self.0.try_clone().map(Self).map_err(|error| Error::Invalid(format!("the parent cannot be told: {error}")))
    }

    /// Says how the work of this slot ended. Answers with its exit status.
    fn end(&self, worked: Result<(), Error>) -> u8 {
        let Ok(mut said) = self.another() else { return 1 };
        if let Err(error) = &worked {
            said.say(&json!({ "event": "refused", "reason": error.to_string() }));
        }
        said.say(&json!({ "event": "done" }));
        u8::from(worked.is_err())
    }

    fn say(&mut self, what: &Value) {
        // Our parent may be gone.
        let _ = self.0.write_all(format!("{what}\n").as_bytes());
    }

    /// Says what keeps us from working for a while.
    fn trouble(&mut self, error: &outlive::store::Error) {
        self.say(&json!({ "event": "trouble", "reason": format!("{error}; retrying") }));
    }

    /// Whether our parent wants no more, or is gone.
    fn is_over(&self) -> bool {
        super::peeks_end(&self.0)
    }
}

struct WorkSlot<'a> {
    registry: &'a Registry,
    maintenance: Maintenance,
    owning: Owning<'a>,
    flags: Flags,
    said: Said,
    claims: Claims,
    /// The run that is executed next: it was claimed with the end of the last one, or a caller asked for it and waits.
    next: Option<(RunHandle, Option<Caller>)>,
    /// Where callers ask for runs.
    intake: Option<Intake>,
    /// When it maintains the registry next, in time awake.
    maintain_at: Duration,
    /// When it asks for work next though nothing notifies it, in time awake.
    ask_at: Duration,
    /// Runs that cannot be executed here, and that were looked at for a warning.
    passed: BTreeSet<RunId>,
    /// It was woken: a claim comes before maintenance, which was done before it waited.
    woken: bool,
    /// Keeps others from maintaining a local registry while this slot does.
    maintains: Option<OwnedFd>,
}

impl<'a> WorkSlot<'a> {
    fn new(registry: &'a Registry, policy: &'a LogPolicy, signals: Signals, flags: Flags, said: Said) -> Self {
        let (detached, json, stays, growth) = (true, false, true, None);
        Self {
            registry,
            maintenance: Maintenance::new(registry.worker()),
            owning: Owning { registry, policy, signals, detached, json, stays, growth },
            claims: Claims::of(flags.kinds.iter().cloned()),
            next: None,
            intake: None,
            flags,
            said,
            maintain_at: Duration::ZERO,
            ask_at: Duration::ZERO,
            passed: BTreeSet::new(),
            woken: false,
            maintains: None,
        }
    }

    /// Works through outages: what could not be recorded is, when they are over, and no owner is judged that could not
    /// be heard.
    fn work(&mut self) -> Result<(), Error> {
        let mut is_told = false;
        loop {
            match self.work_on(&mut is_told) {
                Err(Error::Store(error)) if error.is_transient() => {
                    // Asked here too: `work_on` may fail before it asks, and both descriptors then stay readable.
                    if self.said.is_over() || self.is_asked_to_end() {
                        return Ok(());
                    }
                    if self.registry.local().is_some_and(SqliteStore::is_gone) {
                        return Err(error.into());
                    }
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
        // Left to the end of the process: the kernel takes tens of milliseconds to forget it, and the closing process
        // waits.
        let local = self.registry.local();
        let watch = ManuallyDrop::new(local.map(|local| local.watch(&[Topic::Work])).transpose()?);
        let bell = self.registry.bell();
        loop {
            if let Some((handle, caller)) = self.next.take() {
                self.execute(handle, caller, true)?;
                continue;
            }
            if self.said.is_over() || self.is_asked_to_end() {
                return Ok(());
            }
            // Maintenance that is due goes first, however many callers there are.
            let is_due = self.registry.clock().awake() >= self.maintain_at;
            if self.woken && !is_due && self.take_request()? {
                continue;
            }
            let notified = [watch.as_ref().map(Watch::forget), bell.as_ref().map(WorkReady::forget)];
            if let Some(handle) = self.claim(notified.contains(&Some(true)))? {
                self.execute(handle, None, true)?;
                continue;
            }
            if self.flags.drain {
                let waiting = pollster::block_on(self.registry.waiting())?;
                if !self.is_anything_left(&waiting)? {
                    self.tell_left(&waiting);
                    return Ok(());
                }
            }
            *is_told = false;
            let timeout = self.timeout(watch.is_some() || bell.is_some())?;
            let notified = match (&*watch, &bell) {
                (Some(watch), _) => Some(watch as &dyn AsFd),
                (None, Some(bell)) => Some(bell as &dyn AsFd),
                (None, None) => None,
            };
            let owners: Vec<BorrowedFd<'_>> = self.maintenance.owners().filter(|_| self.maintains.is_some()).collect();
            let asked = self.intake.as_ref().map(|intake| intake as &dyn AsFd);
            let fds = [&self.said.0 as &dyn AsFd, &self.owning.signals].into_iter().chain(notified).chain(asked);
            let fds: Vec<&dyn AsFd> = fds.chain(owners.iter().map(|owner| owner as &dyn AsFd)).collect();
            wait_for(&fds, timeout);
            self.woken = true;
        }
    }

    fn is_asked_to_end(&mut self) -> bool {
        is_asked_to_end(&mut self.owning.signals)
    }

    /// Claims the next run, if there is one. The store is asked after a run, a notification or a time, and where
    /// maintenance has made something claimable.
    fn claim(&mut self, notified: bool) -> Result<Option<RunHandle>, Error> {
        let now = self.registry.clock().awake();
        let woken = std::mem::take(&mut self.woken);
        if !woken && now >= self.maintain_at {
            self.maintain(true)?;
        }
        if !woken || notified || now >= self.ask_at {
            self.ask_at = Duration::ZERO;
            if let Some(handle) = self.claim_one()? {
                return Ok(Some(handle));
            }
        }
        if self.maintain(!woken || notified)? { self.claim_one() } else { Ok(None) }
    }

    /// How long to wait for a notification.
    fn timeout(&mut self, is_notified: bool) -> Result<Duration, Error> {
        let now = self.registry.clock().awake();
        if self.ask_at <= now {
            let next = pollster::block_on(self.claims.until_next(self.registry))?;
            let floor = spread(if is_notified { ASK_EVERY } else { LOOK_EVERY });
            self.ask_at = now + next.map_or(floor, |next| next.min(floor));
        }
        Ok(self.ask_at.min(self.maintain_at).saturating_sub(now).max(LOOK_AT_MOST_EVERY))
    }

    fn claim_one(&mut self) -> Result<Option<RunHandle>, Error> {
        if self.passed.len() > PASSED {
            self.passed.clear();
        }
        let (registry, known, unclaimed) = (self.registry, &self.passed, Mutex::<Vec<Run>>::default());
        // A worker that drains the queue warns of what is left at its end.
        let warns = !self.flags.drain;
        let wanted = |run: &Run| {
            let is_executable = Job::of(registry, run, false).is_ok();
            if warns
                && !is_executable
                && !known.contains(&run.id)
                && let Ok(mut unclaimed) = unclaimed.lock()
                && unclaimed.len() < PASSED_AT_ONCE
            {
                unclaimed.push(run.clone());
            }
            is_executable
        };
        let claimed = pollster::block_on(self.claims.claim(registry, 1, &wanted))?.0.pop();
        self.tell_left(&unclaimed.into_inner().unwrap_or_default());
        Ok(claimed)
    }

    /// Maintains the registry, unless another slot does: results that wait are recorded, dead owners reaped, dependents
    /// released. Answers whether there may be more to claim than before.
    fn maintain(&mut self, notified: bool) -> Result<bool, Error> {
        let registry = self.registry;
        let now = registry.clock().awake();
        let is_due = now >= self.maintain_at;
        if let Some(local) = registry.local() {
            if self.maintains.is_none() {
                self.maintains = local.hold_maintenance_lock();
            }
            if self.maintains.is_none() {
                if is_due {
                    self.maintain_at = now + spread(ASK_EVERY);
                }
                return Ok(false);
            }
        }
        let is_asked = registry.local().is_some() && (notified || self.maintenance.has_ended_owners());
        if !is_due && !is_asked {
            return Ok(false);
        }
        let mut changed = false;
        if is_due || self.maintenance.has_ended_owners() {
            self.maintain_at = now + spread(MAINTAIN_EVERY);
            pollster::block_on(registry.deliver_spooled())?;
            let reaped = pollster::block_on(self.maintenance.reap(registry))?;
            hooks::tell_reaped(registry, &reaped);
            changed = !reaped.ended.is_empty();
        }
        Ok(pollster::block_on(self.maintenance.release(registry))? > 0 || changed)
    }

    /// Reports runs that wait for nothing but a user who may execute them, or a program that has a handler for them,
    /// each once.
    fn tell_left(&mut self, waiting: &[Run]) {
        let now = self.registry.clock().now();
        for run in waiting {
            let is_due = matches!(&run.state, State::Pending(pending) if pending.is_due(now));
            if !is_due || !self.is_wanted(run) || !self.passed.insert(run.id) {
                continue;
            }
            if is_for_handler(run) {
                self.said.say(&json!({ "event": "handler", "id": run.id, "kind": run.spec.kind }));
            } else if let Some(reason) = self.registry.why_not_started(run) {
                self.said.say(&json!({ "event": "untrusted", "id": run.id, "reason": reason }));
            }
        }
    }

    fn is_wanted(&self, run: &Run) -> bool {
        self.flags.kinds.is_empty() || self.flags.kinds.contains(&run.spec.kind)
    }

    /// Executes a run, for the caller that waits for it. With `claims_next` the next one may be claimed with the write that
    /// ends this one: then it is executed next, whatever else is asked for.
    fn execute(&mut self, handle: RunHandle, caller: Option<Caller>, claims_next: bool) -> Result<(), Error> {
        // Another slot maintains the registry while this one is busy.
        self.maintains = None;
        // The store is asked after a run, whichever way the run came here.
        self.ask_at = Duration::ZERO;
        let (run, registry) = (handle.run(), self.registry);
        let job = match Job::of(self.registry, &run, false) {
            Ok(job) => job,
            Err(error) => {
                pollster::block_on(handle.fail("spawn", error.to_string()))?;
                return Ok(());
            }
        };
        self.said.say(&json!({ "event": "started", "id": run.id, "attempt": run.attempt }));
        let (claims, next) = (&mut self.claims, &mut self.next);
        let (said, maintain_at) = (&self.said, self.maintain_at);
        let mut record = |handle: RunHandle, end: OwnerEnd, exit| {
            // One that was interrupted may be asked to end, and has yet to see to what it was at.
            let is_finished = matches!(end, OwnerEnd::Finished(_));
            if !claims_next || !is_finished || registry.clock().awake() >= maintain_at || said.is_over() {
                return record_end(handle, end, exit);
            }
            let wanted = |run: &Run| Job::of(registry, run, false).is_ok();
            let ended = claims.end_and_claim(registry, handle, (end, Some(exit)), &wanted);
            let (recorded, claimed) = pollster::block_on(ended);
            *next = claimed.map(|claimed| (claimed, None));
            recorded
        };
        self.owning.see_through(handle, job, None, &mut record);
        let reported = self.report_end(run.id, caller);
        // A run that was claimed meanwhile is executed whatever failed here: the next claim meets the failure again.
        if self.next.is_some() { Ok(()) } else { reported }
    }

    /// Tells the parent, the caller and the hooks how an attempt ended.
    fn report_end(&mut self, id: RunId, caller: Option<Caller>) -> Result<(), Error> {
        let seen = pollster::block_on(self.registry.glance(id))?;
        let view = RunView::new(&seen, self.registry);
        let event = if seen.state.is_ended() { "ended" } else { "again" };
        self.said.say(&json!({
            "event": event, "id": view.id, "title": view.title(), "state": view.state,
            "exit_code": view.exit_code, "reason": view.reason,
        }));
        // Behind that: what the caller asks for next is left to this slot, which is free at once.
        if let Some(caller) = caller.filter(|_| seen.is_over()) {
            caller.tell(&WorkerAnswer::Ended { line: view.ended_line(), exit_status: view.exit_status() });
        }
        if seen.state.is_ended() {
            hooks::tell_queue_empty(self.registry, &seen.run)?;
        }
        Ok(())
    }

    /// Whether anything waits that will be due without a clock or a person.
    fn is_anything_left(&self, waiting: &[Run]) -> Result<bool, Error> {
        let now = self.registry.clock().now();
        let ours = waiting.iter().filter(|run| self.is_wanted(run) && Job::of(self.registry, run, false).is_ok());
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
        // Left is a run that waits for running runs alone, for runs whose final end has yet to release it, or for such
        // runs.
        let parents: Vec<RunId> = waits.iter().flat_map(|(_, pending)| pending.waits_for.clone()).collect();
        let parents = pollster::block_on(self.registry.store().get(&parents))?;
        let comes = |run: &&Run| run.owner().is_some() || run.state.name().is_final();
        let mut left: BTreeSet<RunId> =
            parents.iter().map(|record| &record.run).filter(comes).map(|run| run.id).collect();
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
