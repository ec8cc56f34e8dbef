//! `outlive supervise`: one process that looks after all runs of a registry.
//!
//! It executes nothing itself: every run that it has go on gets an owner of its own, so whatever becomes of the
//! supervisor becomes of no other process. It is woken by what happens: an owner that ends, a registry that is written,
//! a time that comes.

mod found;
mod maintenance;
mod owners;
#[cfg(feature = "object")]
mod sweeping;
#[cfg(feature = "object")]
mod swept;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::libc;
use nix::sys::signal::SigSet;
use outlive::engine::supervisor::{LOOK_EVERY, Owners, Supervisor};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::ownership::handle::RunHandle;
use outlive::ownership::reaper::Reaper;
use outlive::policy::OrphanPolicy;
use outlive::registry::{Registry, WorkReady};
use outlive::run::{Key, Spec};
use outlive::settings::Sweeps;
use outlive::store::sqlite::{SqliteStore, Topic, Watch};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

use self::maintenance::Maintenance;
use self::owners::OwnerProcesses;
use crate::call::{Context, SCHEMA, fail};
use crate::exec::descriptors::wait_for;
use crate::exec::signals::Signals;
use crate::exec::{collect_ended, hooks};
use crate::lookup::serving::SUPERVISOR_KIND;
use crate::ui::{plain, say_line, talk};

/// The verb.
pub const NAME: &str = "supervise";

/// The least time between two looks that writes of others ask for.
const REST: Duration = Duration::from_millis(50);

/// Keep the registry healthy: reap, resume, retry, and run the queue
///
/// Marks runs whose owner is gone as dead, retries them by their policy (`outlive run --resume-on`), adopts runs
/// whose processes outlived their owner, and executes the queue with the given number of slots. One supervisor per
/// registry is active; another one waits to take over.
#[derive(Args)]
struct Supervise {
    /// How many queued runs to execute at a time; other runs are resumed without a slot
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1024))]
    slots: u16,
    /// Do everything that is due once, and exit
    #[arg(long)]
    once: bool,
}

/// The command's flags and help.
pub fn command() -> Command {
    Supervise::augment_args(Command::new(NAME))
        .after_help("Examples:\n  outlive supervise --slots 2\n  outlive supervise --once")
}

/// Looks after the registry, as the flags say.
pub fn run(matches: &ArgMatches, context: &Context, json: bool, mask: SigSet) -> u8 {
    let input = match Supervise::from_arg_matches(matches) {
        Ok(input) => input,
        Err(error) => return fail(&Error::Invalid(error.to_string()), json),
    };
    let signals = match Signals::take(mask) {
        Ok(signals) => signals,
        Err(error) => return fail(&Error::Invalid(format!("signals cannot be waited for: {error}")), json),
    };
    let registry = match pollster::block_on(context.registry()) {
        Ok(registry) => registry,
        Err(error) => return fail(&error, json),
    };
    if let Err(error) = pollster::block_on(context.keep_history()) {
        return fail(&error, json);
    }
    let retention = match context.retention() {
        Ok(retention) => retention,
        Err(error) => return fail(&error, json),
    };
    #[cfg_attr(not(feature = "object"), expect(unused_variables, reason = "without `object` nothing is swept"))]
    let sweeps = match Sweeps::read() {
        Ok(sweeps) => sweeps,
        Err(error) => return fail(&error, json),
    };
    let topics = [Topic::States, Topic::Work];
    let watch = registry.local().and_then(|local| local.watch(&topics).ok());
    let voice = Voice { registry: &registry, json };
    let mut supervisor = Supervising {
        registry: &registry,
        voice,
        signals,
        watch,
        bell: None,
        engine: Supervisor::default(),
        owners: OwnerProcesses::new(voice),
        maintenance: Maintenance::new(
            retention,
            #[cfg(feature = "object")]
            sweeps,
        ),
    };
    let done = supervisor.supervise(&input);
    drop(supervisor);
    pollster::block_on(registry.close());
    match done {
        Ok(()) => 0,
        Err(error) => fail(&error, json),
    }
}

/// Says what happened: to people a line, to programs an object.
#[derive(Clone, Copy)]
struct Voice<'a> {
    registry: &'a Registry,
    json: bool,
}

/// The process that supervises: what wakes it, and what it does then.
struct Supervising<'a> {
    registry: &'a Registry,
    voice: Voice<'a>,
    signals: Signals,
    watch: Option<Watch>,
    /// Notifies of work where the registry is no directory.
    bell: Option<WorkReady>,
    engine: Supervisor,
    owners: OwnerProcesses<'a>,
    maintenance: Maintenance,
}

/// What ended a wait.
#[derive(Debug, Default, PartialEq, Eq)]
struct Woken {
    /// We are asked to end.
    asked: bool,
    /// Something that cannot wait: an owner ended, or one has begun.
    at_once: bool,
}

impl Supervising<'_> {
    fn supervise(&mut self, input: &Supervise) -> Result<(), Error> {
        let Some(handle) = self.take_office(input.once)? else { return Ok(()) };
        self.engine = Supervisor::new(self.registry.worker(), input.slots.into());
        self.bell = self.registry.bell();
        self.tell_found()?;
        let worked = self.work(&handle, input.once);
        let said = match &worked {
            Ok(()) => pollster::block_on(handle.succeed()),
            Err(error) => pollster::block_on(handle.fail("supervisor", error.to_string())),
        };
        worked.and(said.map(|_| ()))
    }

    fn work(&mut self, handle: &RunHandle, once: bool) -> Result<(), Error> {
        loop {
            if self.watch.as_ref().is_some_and(Watch::forget) {
                self.engine.look_at_queue_next();
            }
            let next = match self.pass() {
                Ok(next) => next.min(LOOK_EVERY),
                // A registry that cannot be reached for a while may be again.
                Err(Error::Store(error)) if error.is_transient() && !once => {
                    if self.registry.local().is_some_and(SqliteStore::is_gone) {
                        return Err(error.into());
                    }
                    talk(&format!("error: {}\n", plain(&error.to_string())));
                    // For signals alone: whatever else is readable stays so until a pass succeeds.
                    wait_for(&[&self.signals], LOOK_EVERY);
                    if self.is_asked_to_end() {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            if once && self.owners.starting() == 0 && !self.engine.has_young_orphans(self.registry) {
                #[cfg(feature = "object")]
                self.tell_swept(true);
                return Ok(());
            }
            let woken = self.wait(next, None);
            if woken.asked || handle.stop_requested().is_some() {
                return Ok(());
            }
            if !woken.at_once {
                // Many beat, and each writes: not every one of them is worth a look of its own.
                let woken = self.wait_without_watch(REST);
                if woken.asked {
                    return Ok(());
                }
            }
        }
    }

    /// Looks at everything once. Answers with how long it is until something is due by the clock.
    fn pass(&mut self) -> Result<Duration, Error> {
        let next = pollster::block_on(self.engine.pass(self.registry, &mut self.owners))?;
        self.maintain()?;
        Ok(next)
    }

    /// Becomes the one supervisor of the registry. Waits for as long as there is another, unless it is only for `once`.
    fn take_office(&mut self, once: bool) -> Result<Option<RunHandle>, Error> {
        let mut said = false;
        loop {
            let mut spec = Spec::new(SUPERVISOR_KIND, self.registry.me().clone());
            spec.keys = vec![Key::limit(format!("outlive {SUPERVISOR_KIND}"), 1)];
            spec.policy.orphans = OrphanPolicy::Fail;
            let holders = match pollster::block_on(self.registry.start(spec)) {
                Err(Error::KeyBusy { holders, .. }) => holders,
                started => return started.map(Some),
            };
            let reaped = pollster::block_on(hooks::reap(
                self.registry,
                &mut Reaper::default(),
                Filter::of(holders.iter().copied()),
            ))?;
            if !reaped.ended.is_empty() {
                continue;
            }
            if !std::mem::replace(&mut said, true) {
                let holder = holders.first().map(ToString::to_string).unwrap_or_default();
                self.say("standby", &json!({ "holder": holder }), &format!("another supervisor works: run {holder}"));
            }
            if once {
                return Ok(None);
            }
            let holder = holders.first().copied();
            let holder = holder.and_then(|id| pollster::block_on(self.registry.get(id)).ok());
            let living = holder.and_then(|seen| seen.run.owner()?.identity.watch());
            if self.wait(LOOK_EVERY, living.as_ref()).asked {
                return Ok(None);
            }
        }
    }

    /// Waits until something happens, for at most `timeout`.
    fn wait(&mut self, timeout: Duration, other: Option<&OwnedFd>) -> Woken {
        let watch = self.watch.as_ref().map(AsFd::as_fd);
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        fds.extend(self.engine.maintenance().owners());
        fds.extend(self.owners.starting.iter().map(|(_, starting)| starting.as_fd()));
        fds.extend(other.map(AsFd::as_fd));
        let urgent = fds.len();
        fds.extend(watch);
        fds.extend(self.bell.as_ref().map(AsFd::as_fd));
        let ready = ready(&fds, timeout);
        let at_once = ready.iter().any(|place| (1..urgent).contains(place));
        if let Some(bell) = &self.bell {
            bell.forget();
        }
        if ready.iter().any(|place| *place > 0) {
            self.engine.look_at_queue_next();
        }
        Woken { asked: self.is_asked_to_end(), at_once }
    }

    /// The same, whatever is written meanwhile.
    fn wait_without_watch(&mut self, timeout: Duration) -> Woken {
        let watch = self.watch.take();
        let woken = self.wait(timeout, None);
        self.watch = watch;
        woken
    }

    fn is_asked_to_end(&mut self) -> bool {
        let mut asked = false;
        while let Some(arrived) = self.signals.next() {
            match arrived.signal {
                libc::SIGCHLD => collect_ended(),
                libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM => asked = true,
                _ => {}
            }
        }
        asked
    }

    fn say(&self, event: &str, fields: &Value, text: &str) {
        self.voice.say(event, fields, text);
    }
}

impl Voice<'_> {
    /// Says what happened, in `text` or as `fields`.
    fn say(&self, event: &str, fields: &Value, text: &str) {
        let at = self.registry.clock().now();
        if !self.json {
            return say_line(&format!("{} {}", at.local(), plain(text)));
        }
        let mut line = json!({ "schema": SCHEMA, "at": at, "event": event });
        if let (Some(line), Some(fields)) = (line.as_object_mut(), fields.as_object()) {
            line.extend(fields.clone());
        }
        say_line(&line.to_string());
    }
}

/// The places of those that can be read, after a wait of at most `timeout`.
fn ready(fds: &[BorrowedFd<'_>], timeout: Duration) -> Vec<usize> {
    let limit = Timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: timeout.subsec_nanos().into() };
    let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let _ = poll(&mut fds, Some(&limit));
    fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(place, _)| place).collect()
}
