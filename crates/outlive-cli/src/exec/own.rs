//! Owning a run: attempt after attempt, until it has ended for good or has another owner.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::libc;
use outlive::error::{Code, Error};
use outlive::id::RunId;
use outlive::lifecycle::OwnerEnd;
use outlive::lifecycle::{Outcome, Refusal};
use outlive::logs::{Growth, LogPolicy, Stream};
use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::registry::{CancelOptions, Registry, ResumeOptions};
use outlive::run::{EnvMode, Exit, Run, Spec, State, StateName};
use outlive::time::{Timestamp, show_duration};

use super::child::{self, Child, Ended};
use super::descriptors::wait_for;
use super::detach::Report;
use super::flags::seen;
use super::memory::Shield;
use super::ports::Leases;
use super::signals::Signals;
use super::spawn::Environment;
use super::start::Begun;
use super::watches::Leash;
use super::{hooks, keep_log, keep_no_log, leave_log, memory, notify, ready, recorded_badly, remark, tree};
use crate::ui::{plain, talk};

/// How often a process that waits for the next attempt looks whether there is still to be one.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is executed.
pub struct Job {
    /// The words.
    pub argv: Vec<OsString>,
    /// The file, where it is not to be looked for.
    pub program: Option<OsString>,
    /// Where the file was found that the first word means, a moment ago.
    pub found: Option<OsString>,
    /// Where, where it is not here.
    cwd: Option<PathBuf>,
    /// Variables that are listed with the run.
    listed: BTreeMap<String, String>,
    /// Which other variables it is given.
    mode: EnvMode,
    /// The run was made earlier, so this process's environment is not the one that it was made in.
    made_earlier: bool,
    /// Another process starts it than made it.
    by_another: bool,
    /// What a shell executes when the run has ended.
    notify: Option<String>,
    /// The process that it ends with.
    leash: Option<Leash>,
}

impl Job {
    /// These words, here and now.
    pub fn new(argv: Vec<OsString>, notify: Option<String>) -> Self {
        let (listed, mode) = (BTreeMap::new(), EnvMode::Keep);
        let (program, found, cwd) = (None, None, None);
        Self { argv, program, found, cwd, listed, mode, made_earlier: false, by_another: false, notify, leash: None }
    }

    /// This job, ended with a process.
    #[must_use]
    pub fn leashed(self, leash: Option<Leash>) -> Self {
        Self { leash, ..self }
    }

    /// This job with variables that are listed, and a mode for the others.
    #[must_use]
    pub fn with_variables(self, mode: EnvMode, listed: BTreeMap<String, String>) -> Self {
        Self { listed, mode, ..self }
    }

    /// The same, of a run that was made a moment ago: its program need not be looked for again.
    #[must_use]
    pub fn found_by(mut self, run: &Run) -> Self {
        let is_looked_for = self.argv.first().is_some_and(|word| !word.as_encoded_bytes().contains(&b'/'));
        let program = run.spec.command.as_ref().and_then(|command| command.program.as_ref());
        self.found = program.filter(|_| is_looked_for).map(|program| program.path.to_os());
        self
    }

    /// What a run that was made earlier says. Where its environment was not kept, it has that of this process, or,
    /// started by another than its maker, no variable that could change what it does.
    pub fn of(registry: &Registry, run: &Run, by_another: bool) -> Result<Self, Error> {
        registry.startable(run)?;
        let command = run.spec.command.as_ref();
        let no_command =
            || Error::Invalid(format!("run `{}` has no command: only its own program can resume it", run.id));
        let command = command.ok_or_else(no_command)?;
        let withheld =
            || Error::Invalid(format!("run `{}` cannot be executed: {}", run.id, registry.why_withheld(run)));
        let argv = registry.original_argv(run).ok_or_else(withheld)?;
        let program = command.program.as_ref().map(|program| program.path.to_os());
        Ok(Self {
            argv: argv.iter().map(outlive::run::Arg::to_os).collect(),
            // One that is gone may be found elsewhere.
            program: program.filter(|path| Path::new(path).exists()),
            found: None,
            cwd: Some(command.cwd.to_os().into()),
            listed: command.env.clone(),
            mode: command.env_mode,
            made_earlier: true,
            by_another,
            notify: run.spec.notify.clone(),
            leash: None,
        })
    }

    /// The variables of the command, without those that tell it of its run.
    pub fn environment(&self, registry: &Registry, run: &Run) -> Environment {
        let kept = self.made_earlier.then(|| registry.kept_environment(run)).flatten();
        let base = match (self.mode, &kept) {
            (EnvMode::Clean, _) => Environment::harmless(),
            (EnvMode::Keep, Some(kept)) => Environment::kept(kept),
            _ if self.by_another => Environment::harmless(),
            _ => Environment::own(),
        };
        // In the other modes it holds the secrets among the listed variables.
        let base = kept.iter().fold(base, Environment::with_all);
        self.listed.iter().fold(base, |environment, (name, value)| environment.with(name, Some(value.clone())))
    }

    /// Leases the ports again that a run was leased which was made earlier, or free ones in their place, and has the
    /// command told of them. The owner of a run that it has made holds them already. Puts on record what the attempt has
    /// beside its spec.
    fn lease_ports(&mut self, handle: &RunHandle) -> Result<Leases, Error> {
        let run = handle.run();
        let command = run.spec.command.as_ref().filter(|_| self.made_earlier);
        let leases = command.map(Leases::again).transpose()?.unwrap_or_default();
        self.listed.extend(leases.variables());
        let leash = self.leash.as_ref().map(|leash| Box::new(leash.identity().clone()));
        let ports = Some(leases.by_name()).filter(|ports| *ports != run.ports()).unwrap_or_default();
        if leash.is_some() || !ports.is_empty() {
            // A registry that cannot be written now does not keep the command from starting.
            let _ = pollster::block_on(handle.report(outlive::Report { leash, ports, ..outlive::Report::default() }));
        }
        Ok(leases)
    }

    /// Whether the run has a variable of this name of its own.
    pub fn lists(&self, name: &str) -> bool {
        self.listed.contains_key(name)
    }

    /// What to tell of a run whose environment was kept by another user or on another host.
    fn foreign_environment(&self, registry: &Registry, run: &Run) -> Option<String> {
        let (maker, me) = (&run.spec.created_by, registry.me());
        let is_foreign = (&maker.user, &maker.host) != (&me.user, &me.host);
        (self.made_earlier && self.mode == EnvMode::Keep && is_foreign).then(|| {
            format!(
                "the environment of this run was kept for {}@{} and is not here: it has that of {}@{}, and what `--env` listed",
                plain(&maker.user), plain(&maker.host), plain(&me.user), plain(&me.host)
            )
        })
    }

    fn enter_directory(&self) -> std::io::Result<()> {
        let Some(cwd) = &self.cwd else { return Ok(()) };
        std::env::set_current_dir(cwd).map_err(|error| {
            std::io::Error::other(format!("its directory `{}` cannot be entered: {error}", cwd.display()))
        })
    }
}

/// What to tell of a program that is not the one that the run was made with.
pub fn changed_program(run: &Run) -> Option<String> {
    let was = run.spec.command.as_ref()?.program.as_ref()?;
    let path = was.path.to_os();
    let is = seen(Path::new(&path));
    (is.as_ref() != Some(was)).then(|| {
        let what = if is.is_some() { "has changed" } else { "is gone" };
        format!("`{}` {what} since run {} was made", plain(&was.path.to_string()), run.id)
    })
}

/// Records the end of a run in its own way, as a worker does that claims its next run with the same write.
pub type RecordEnd<'a> = dyn FnMut(RunHandle, OwnerEnd, Exit) -> Result<Persisted, Error> + 'a;

/// This process as the owner of runs that are commands, one after the other.
pub struct Owning<'a> {
    /// Where they are on record.
    pub registry: &'a Registry,
    /// How much of their logs is kept.
    pub policy: &'a LogPolicy,
    /// What this process is called with.
    pub signals: Signals,
    /// There is no terminal, and no one to talk to.
    pub detached: bool,
    /// The reader of messages is a program.
    pub json: bool,
    /// It owns other runs after this one.
    pub stays: bool,
    /// Tells that commands write into their logs by themselves, as those do that are detached.
    pub growth: Option<Growth>,
}

impl Owning<'_> {
    /// Executes a run, again if it fails and its policy says so. Answers with how the command ended.
    pub fn see_through(
        &mut self,
        mut handle: RunHandle,
        mut job: Job,
        mut report: Option<Report>,
        record: &mut RecordEnd<'_>,
    ) -> Exit {
        loop {
            let (id, run) = (handle.id(), handle.run());
            let (spec, attempt) = (run.spec, run.attempt);
            let exit = self.attempt(handle, &mut job, report.take(), record);
            if self.stays && spec.policy.retry.on_failure && self.pending(id).is_some() {
                // Its next attempt is claimed like any other run, and there may be others to do until it is due.
                return exit;
            }
            match self.again(id, &spec, job.leash.as_ref()) {
                Some(next) => handle = next,
                None => {
                    let notified = job.notify.as_ref().filter(|_| !self.has_later_attempt(id, attempt));
                    let unheard = notified.and_then(|command| notify(self.registry, id, command).err());
                    let unheard = unheard.map(|error| (Code::Unavailable, format!("the notification failed: {error}")));
                    remark([unheard], self.json);
                    hooks::tell_end(self.registry, id);
                    return exit;
                }
            }
        }
    }

    /// Starts the command, waits for it, and puts its end on record.
    fn attempt(
        &mut self,
        handle: RunHandle,
        job: &mut Job,
        mut report: Option<Report>,
        record: &mut RecordEnd<'_>,
    ) -> Exit {
        let (registry, spec) = (self.registry, handle.run().spec);
        let leases = job.lease_ports(&handle).map_err(std::io::Error::other);
        let job = &*job;
        let recording = match spec.no_log || self.policy.cap == 0 {
            true => keep_no_log(registry, &handle),
            false => keep_log(registry, &handle, self.policy),
        };
        if let Some(note) = job.foreign_environment(registry, &handle.run()) {
            recording.write(Stream::Err, format!("outlive: {note}\n").as_bytes());
        }
        // They are held until the attempt has ended.
        let entered = leases.and_then(|leases| job.enter_directory().map(|()| leases));
        let entered = entered.and_then(|leases| ready::check_free(&handle.run()).map(|()| leases));
        if self.detached && self.growth.is_none() {
            // Without it they are noted when they have ended.
            self.growth = Growth::new().ok();
        }
        let growth = self.growth.as_ref();
        let start = || Child::start(registry, &handle, job, self.detached, recording.clone(), growth, &self.signals);
        let started = entered.and_then(|leases| Ok((start()?, leases)));
        // While the command gets going. Nothing is killed for memory before it has taken any.
        let killed = memory::kills();
        let mut ended = match started {
            Ok((child, _leases)) => {
                if let Some(report) = report.take() {
                    report.started(&Begun::of(registry, &handle.run(), true));
                }
                if let Some(local) = registry.local() {
                    local.foresee_end(handle.id());
                }
                let _shield = Shield::raise();
                child.wait(registry, &handle, &mut self.signals, job.leash.clone())
            }
            Err(error) => Ended::not_started(&job.argv[0], &error),
        };
        if ended.by_kill() && memory::kills() > killed {
            ended.blame_memory();
        }
        let unread = ended.unread.take();
        let run = handle.run();
        let lost = leave_log(registry, &run, &recording);
        let is_final = matches!(&ended.end, Some(OwnerEnd::Finished(Outcome::Succeeded { .. } | Outcome::Cancelled)));
        let recorded = match &ended.end {
            Some(end) if self.stays || spec.policy.retry.on_failure => record(handle, end.clone(), ended.exit),
            Some(end) => pollster::block_on(registry.finish_and_deregister(handle, end.clone(), Some(ended.exit))),
            None => Ok(Persisted::Committed),
        };
        if let Some(OwnerEnd::Interrupted(_)) = &ended.end {
            self.end_if_cancelled(&run);
        }
        if is_final && recorded.is_ok() {
            // No attempt follows that would need it. What stays behind is private, and deleted with the run.
            let _ = registry.forget_environment(run.id);
        }
        note_final(registry, run.id, ended.end.as_ref(), &recorded);
        if let Some(report) = report {
            // Only now: the caller that is answered finds the end on record.
            report.not_started(run.id, ended.exit, ended.talk.as_ref());
        }
        if let Some(unread) = unread {
            unread.finish();
        }
        remark([ended.talk, lost, recorded_badly(recorded)], self.json);
        ended.exit
    }

    /// Ends the processes of an attempt that was interrupted, and was recorded as cancelled because a request came
    /// before its end was on record.
    fn end_if_cancelled(&self, run: &Run) {
        let seen = pollster::block_on(self.registry.glance(run.id));
        if seen.is_ok_and(|seen| seen.state == StateName::Cancelled) {
            tree::end(self.registry, run, child::GRACE);
        }
    }

    /// Waits for the time of the next attempt, where there is to be one, and claims it. A worker of the registry
    /// would claim it otherwise; the process that is here already goes first. No attempt follows the end of the leash.
    fn again(&mut self, id: RunId, spec: &Spec, leash: Option<&Leash>) -> Option<RunHandle> {
        if let Some(leash) = leash.filter(|leash| leash.has_ended()) {
            self.end_unleashed(id, leash);
            return None;
        }
        if !spec.policy.retry.on_failure {
            return None;
        }
        let first = self.pending(id)?;
        let at = first.not_before.unwrap_or_default();
        talk(&format!(
            "outlive: {}; attempt {} begins in {}\n",
            plain(first.reason.as_deref().unwrap_or("it is tried again")),
            first.attempt,
            show_duration(at.since(self.registry.clock().now()))
        ));
        loop {
            let left = at.since(self.registry.clock().now());
            if left.is_zero() {
                match pollster::block_on(self.registry.take_up(id, ResumeOptions::default())) {
                    // They live on, as they would without us, and the run waits for them.
                    Err(Error::Refused { refusal: Refusal::LeftoversAlive(_), .. }) => {}
                    taken => return taken.ok(),
                }
            }
            let pause = if left.is_zero() { LOOK_EVERY } else { left.min(LOOK_EVERY) };
            if let Some(signal) = self.wait(pause, leash) {
                self.leave(id, signal);
                return None;
            }
            if let Some(leash) = leash.filter(|leash| leash.has_ended()) {
                self.end_unleashed(id, leash);
                return None;
            }
            self.pending(id)?;
        }
    }

    /// Whether a later attempt of the run waits or is executed, perhaps by another worker.
    fn has_later_attempt(&self, id: RunId, attempt: u32) -> bool {
        let seen = pollster::block_on(self.registry.glance(id));
        seen.is_ok_and(|seen| seen.run.attempt > attempt && seen.run.ending().is_none())
    }

    /// What a run waits for that is to be tried again.
    fn pending(&self, id: RunId) -> Option<Waiting> {
        let run = pollster::block_on(self.registry.glance(id)).ok()?.run;
        match &run.state {
            State::Pending(pending) => {
                Some(Waiting { attempt: run.attempt, not_before: pending.not_before, reason: pending.reason.clone() })
            }
            _ => None,
        }
    }

    /// Waits until the leash ends at the latest, and answers with the signal that asks this process to end, if one
    /// arrives.
    fn wait(&mut self, limit: Duration, leash: Option<&Leash>) -> Option<i32> {
        match leash.and_then(Leash::process) {
            Some(process) => wait_for(&[&self.signals, process], limit),
            None => wait_for(&[&self.signals], limit),
        }
        let asks = |signal: &i32| [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(signal);
        std::iter::from_fn(|| self.signals.next()).map(|arrived| arrived.signal).find(asks)
    }

    /// Cancels a run that waits for another attempt, and whose leash has ended.
    fn end_unleashed(&self, id: RunId, leash: &Leash) {
        if self.pending(id).is_none() {
            return;
        }
        let how = CancelOptions { reason: Some(leash.why()), ..CancelOptions::default() };
        let cancelled = pollster::block_on(self.registry.cancel_and_end(id, &how)).map(drop);
        remark([cancelled.err().map(|error| (error.code(), error.to_string()))], self.json);
    }

    /// A person who stops this process from a keyboard wants no further attempt. Any other signal only wants it to end:
    /// the run waits for a worker of the registry.
    fn leave(&self, id: RunId, signal: i32) {
        let said = if [libc::SIGINT, libc::SIGQUIT].contains(&signal) {
            let reason = Some("stopped from the keyboard before its next attempt".into());
            let how = CancelOptions { reason, ..CancelOptions::default() };
            pollster::block_on(self.registry.cancel_and_end(id, &how)).map(|done| match done.is_done() {
                true => "the run is cancelled".to_owned(),
                false => format!("cancel requested; still alive: {}", done.live),
            })
        } else {
            Ok("the run waits for its next attempt: `outlive resume` begins it".to_owned())
        };
        talk(&format!("outlive: {}\n", said.unwrap_or_else(|error| plain(&error.to_string()))));
    }
}

/// Records the end of a run and nothing else.
pub fn record_end(handle: RunHandle, end: OwnerEnd, exit: Exit) -> Result<Persisted, Error> {
    pollster::block_on(handle.end(None, end, Some(exit)))
}

/// Has this home remember an end that nothing leads back from, once the registry has it.
pub fn note_final(registry: &Registry, id: RunId, end: Option<&OwnerEnd>, recorded: &Result<Persisted, Error>) {
    let is_final = matches!(end, Some(OwnerEnd::Finished(Outcome::Succeeded { .. } | Outcome::Cancelled)));
    if is_final && matches!(recorded, Ok(Persisted::Committed)) {
        registry.note_final(id);
    }
}

/// A run that is to be tried again.
struct Waiting {
    attempt: u32,
    not_before: Option<Timestamp>,
    reason: Option<String>,
}
