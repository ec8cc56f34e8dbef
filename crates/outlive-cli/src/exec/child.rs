//! The command as a process: started, waited for, passed our signals, asked to stop.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::libc;
use outlive::discovery::REGISTRY_VARIABLE;
use outlive::error::Code;
use outlive::host::{OUTCOME_VARIABLE, REGISTRY_ID_VARIABLE, RUN_VARIABLE};
use outlive::lifecycle::OwnerEnd;
use outlive::lifecycle::{Outcome, Report};
use outlive::logs::{Growth, Stream};
use outlive::ownership::Stop;
use outlive::ownership::handle::RunHandle;
use outlive::policy::TreePolicy;
use outlive::registry::Registry;
use outlive::run::{Exit, Interruption, Run, TRACE_VARIABLE};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};

use super::contain::{self, Containment};
use super::declared;
use super::input::Input;
use super::own::Job;
use super::pty::Pty;
use super::recording::Recording;
use super::shim::{ChildEvent, Shim};
use super::signals::{self, Arrived, Signals};
use super::spawn::{Environment, Start};
use super::streams::{Copying, Placed, Way, ways};
use super::tree;
use super::usage::Meter;
use super::viewers::{Door, Viewers};
use super::watches::{Leash, OwnStop, Watches, Word};
use crate::call::inside::{ATTEMPT_VARIABLE, EPOCH_VARIABLE, STEP_VARIABLE};
use crate::exec::descriptors::STANDARD;

/// How long a command that was asked to stop may take before it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How long a command may take whose owner stops it by itself.
pub(super) const OWN_GRACE: Duration = Duration::from_millis(400);
/// A command that ends within this time is never beaten for: its lease has long not run out.
const BRIEF: Duration = Duration::from_millis(20);
/// How often to look for what nothing tells us of: that a shell has put us into the foreground, that the command has
/// changed its terminal, that it waits for a line.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// The variable that holds what the last attempt left for this one.
const CHECKPOINT_VARIABLE: &str = "OUTLIVE_CHECKPOINT";
/// A longer checkpoint is only to be had by `outlive checkpoint get`: the kernel takes no longer variables.
const DOCUMENT_LIMIT: usize = 64 << 10;

fn checkpoint(run: &Run) -> Option<String> {
    let checkpoint = run.checkpoint.as_ref().map(ToString::to_string);
    checkpoint.filter(|text| text.len() <= DOCUMENT_LIMIT)
}

/// A command that runs.
pub struct Child {
    pid: Pid,
    process: OwnedFd,
    shim: Option<Shim>,
    pty: Option<Pty>,
    copying: Copying,
    /// The log that it writes into by itself, until it has: most of what is brief writes nothing.
    unwritten: Option<(Recording, Growth)>,
    /// Our parent can stop us and continue us.
    has_terminal: bool,
    in_foreground: bool,
}

/// How a command ended, and what that means.
pub struct Ended {
    /// What to put on record; nothing where the run has another owner by now.
    pub end: Option<OwnerEnd>,
    /// How the command ended.
    pub exit: Exit,
    /// What to say about it, and what kind of trouble that is.
    pub talk: Option<(Code, String)>,
    /// What it wrote and was not read yet. None where no reader is to be waited for.
    pub unread: Option<Copying>,
}

/// Why the command was asked to stop.
#[derive(Debug, Clone, Default)]
pub(super) struct Asked {
    /// Its run is to stop.
    pub(super) stop: Option<Stop>,
    /// Its owner stops it by itself.
    pub(super) own: Option<OwnStop>,
    /// The signals that ask for it and were passed on.
    pub(super) signals: Vec<i32>,
}

/// The variables of an attempt: those of its command, and those that tell it of its run and of its trace.
fn environment(registry: &Registry, run: &Run, job: &Job) -> Environment {
    let environment = match &run.spec.step {
        // A step belongs to the run that it is a step of: what its command reports is said of that.
        Some(_) => job.environment(registry, run).with(STEP_VARIABLE, Some(run.id.to_string())),
        None => job
            .environment(registry, run)
            .with(RUN_VARIABLE, Some(run.id.to_string()))
            .with(ATTEMPT_VARIABLE, Some(run.attempt.to_string()))
            .with(EPOCH_VARIABLE, Some(run.epoch.to_string()))
            .with(STEP_VARIABLE, None)
            .with(REGISTRY_VARIABLE, Some(registry.url().to_owned()))
            .with(REGISTRY_ID_VARIABLE, Some(registry.id().unwrap_or_default()))
            .with(OUTCOME_VARIABLE, declared::place(registry, run))
            .with(CHECKPOINT_VARIABLE, checkpoint(run)),
    };
    match &run.spec.traceparent {
        // A variable that the run was given by name has precedence.
        Some(parent) if !job.lists(TRACE_VARIABLE) => environment.with(TRACE_VARIABLE, Some(parent.to_string())),
        _ => environment,
    }
}

impl Child {
    /// Starts the command. A detached one has no terminal, and writes into its log by itself.
    pub fn start(
        registry: &Registry,
        handle: &RunHandle,
        job: &Job,
        detached: bool,
        recording: Recording,
        growth: Option<&Growth>,
        signals: &Signals,
    ) -> io::Result<Self> {
        let run = handle.run();
        let tree = tree::lock(registry, &run)?;
        tree::adopt_orphans();
        let environment = environment(registry, &run, job);
        let kept: Vec<_> = tree.iter().map(AsFd::as_fd).collect();
        let all = recording.is_digesting();
        let has_tty = detached && run.spec.tty;
        let ways = if has_tty {
            [Way::Terminal; 3]
        } else if (recording.is_on() || all) && !detached {
            ways(all)
        } else {
            [Way::Own; 3]
        };
        let (mut copying, mut placed) = Copying::start(ways, &recording)?;
        let mut unwritten = None;
        if detached && !has_tty {
            if run.spec.stdin {
                let (input, fd) = Input::open(registry, &run)?;
                placed.push(Placed { fd, number: 0 });
                copying.feed(input)?;
            }
            for (stream, number) in [(Stream::Out, 1), (Stream::Err, 2)] {
                placed.extend(recording.file(stream).map(|fd| Placed { fd, number }));
            }
            unwritten =
                growth.filter(|growth| recording.watch(growth)).map(|growth| (recording.clone(), growth.clone()));
        }
        let pty = match ways[1] {
            Way::Terminal if has_tty => Some(Pty::alone()?),
            Way::Terminal => Some(Pty::open()?),
            _ => None,
        };
        let (argv, program) = (&job.argv[..], job.program.as_deref());
        let mask = signals.before();
        let start = Start { argv, program, environment: &environment, mask, placed: &placed, kept: &kept };
        let (shim, pid) = match &pty {
            None => (None, start.found_at(job.found.as_deref())?),
            Some(pty) => {
                if has_tty {
                    let door = Door::open(registry, &run);
                    copying.serve(Viewers::new(pty.screen().clone(), recording.clone(), door))?;
                } else {
                    copying.show(pty.screen(), &recording)?;
                }
                let (shim, pid) = Shim::start(&start, pty, ways, tree.as_ref())?;
                (Some(shim), pid)
            }
        };
        drop(placed);
        tree::note_command(registry, &run, pid);
        let in_foreground = pty.as_ref().is_none_or(|pty| pty.screen().is_ours());
        let has_terminal = !detached && STANDARD.into_iter().any(|fd| rustix::termios::tcgetpgrp(fd).is_ok());
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, process, shim, pty, copying, unwritten, has_terminal, in_foreground })
    }

    /// Waits for it to end, passes signals on, and stops it when its run is to stop.
    pub fn wait(
        mut self,
        registry: &Registry,
        handle: &RunHandle,
        signals: &mut Signals,
        leash: Option<Leash>,
    ) -> Ended {
        let stops: Arc<Mutex<Vec<Stop>>> = Arc::default();
        let rung = bell(handle, &stops);
        let watches = Watches::begin_or_stop(registry, &handle.run(), leash, rung.as_ref());
        let now = || registry.clock().awake();
        let mut asked = Asked::default();
        let mut kill_at: Option<Duration> = None;
        let mut beats_from = Some(now() + BRIEF);
        // A job of a shell is stopped and continued at any moment, and no thread of ours is to be in the kernel then.
        let is_job = self.pty.as_ref().is_some_and(|pty| pty.screen().is_of_real());
        let mut contained_from = (!is_job).then(|| now() + contain::AFTER);
        let mut containment = Containment::default();
        let mut meter = Meter::begin(registry, handle);
        let exit = loop {
            if let Some(exit) = self.look() {
                break exit;
            }
            if beats_from.is_some_and(|at| now() >= at) {
                // Where there is no thread to be had, there may be one later.
                beats_from = registry.start_beating().err().map(|_| now() + Duration::from_secs(1));
                registry.subscribe_requests();
            }
            if contained_from.is_some_and(|at| now() >= at) {
                contained_from = None;
                containment.begin(registry, handle);
            }
            meter.look(registry, handle, || containment.usage());
            let next = [kill_at, beats_from, contained_from, Some(meter.next())].into_iter().flatten().min();
            let left = next.map(|at| at.saturating_sub(now()));
            self.wait_for_something(signals, rung.as_ref(), left);
            while let Some(arrived) = signals.next() {
                if self.pass_on(arrived) {
                    asked.signals.push(arrived.signal);
                }
            }
            if let Some(stop) = stops.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                kill_at.get_or_insert_with(|| now() + grace(&stop));
                asked.stop.get_or_insert(stop);
                self.signal(libc::SIGTERM);
                // One that is stopped could not even die of it.
                self.signal(libc::SIGCONT);
            }
            for word in watches.take() {
                match word {
                    // A viewer that cannot be notified now learns it from the end of the run.
                    Word::Ready => drop(pollster::block_on(handle.report(Report { ready: true, ..Report::default() }))),
                    Word::Stop(stop) => {
                        kill_at.get_or_insert_with(|| now() + OWN_GRACE);
                        asked.own.get_or_insert(stop);
                        self.signal(libc::SIGTERM);
                        self.signal(libc::SIGCONT);
                    }
                }
            }
            if kill_at.is_some_and(|at| now() >= at) {
                self.signal(libc::SIGKILL);
                tree::end(registry, &handle.run(), Duration::ZERO);
                // One that cannot be killed yet is tried again, not at once.
                kill_at = Some(now() + Duration::from_secs(1));
            }
        };
        containment.finish(registry, handle);
        let is_stopped = asked.stop.is_some() || asked.own.is_some();
        if is_stopped || handle.run().spec.policy.tree != TreePolicy::Keep {
            // What it left behind may take its time, and write.
            let _ = registry.start_beating();
            self.follow_log();
        }
        if is_stopped {
            // What was asked to stop has stopped only with the last of its processes.
            let left = kill_at.map_or(GRACE, |at| at.saturating_sub(now()));
            tree::end(registry, &handle.run(), left);
        } else {
            let rung = (&*stops, rung.as_ref(), &watches);
            tree::see_off(registry, &handle.run(), signals, rung, &mut asked, (&mut meter, handle));
        }
        meter.end(handle, containment.usage());
        containment.leave();
        self.end(exit, &asked).unless_declared(declared::take(registry, &handle.run()), &asked)
    }

    /// The command has ended: everything that it wrote is kept, and its terminal is given back.
    fn end(self, exit: Exit, asked: &Asked) -> Ended {
        self.copying.stop();
        if let Some(shim) = &self.shim {
            shim.leave();
        }
        if let Some(pty) = &self.pty {
            match exit {
                Exit::Code(_) => pty.screen().leave(),
                Exit::Signal(_) => pty.screen().give_back(),
            }
        }
        let unread = Some(self.copying).filter(|_| asked.stop.is_none() && asked.own.is_none());
        let ended = ended(exit, asked);
        Ended { unread, ..ended }
    }

    /// How the command ended, if it has. What stops it stops us too, where our parent can continue us.
    fn look(&mut self) -> Option<Exit> {
        loop {
            let event = match &mut self.shim {
                Some(shim) => match shim.next() {
                    Ok(event) => event,
                    Err(_) => {
                        // The shim between us is gone, and the command is our own child now.
                        self.shim = None;
                        continue;
                    }
                },
                None => {
                    let what = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
                    match waitid(WaitId::PidFd(self.process.as_fd()), what) {
                        Ok(status) => status.as_ref().map(event),
                        // How it ended is unknown.
                        Err(_) => Some(ChildEvent::Ended(Exit::Signal(libc::SIGKILL))),
                    }
                }
            };
            match event? {
                ChildEvent::Ended(exit) => return Some(exit),
                ChildEvent::Stopped(signal) => self.stop_too(signal),
            }
        }
    }

    /// Stops as the command was stopped by its terminal, until our parent continues us.
    fn stop_too(&mut self, signal: i32) {
        // Of a command that is stopped and continued we learn by the shim alone.
        let by_terminal = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(&signal);
        if by_terminal && self.pty.as_ref().is_some_and(|pty| !pty.screen().is_of_real()) {
            // No attached viewer could continue it.
            return self.go_on();
        }
        if !self.has_terminal || !by_terminal && self.shim.is_none() {
            return;
        }
        if let Some(pty) = &self.pty {
            self.copying.flush(pty.screen());
            pty.screen().give_back();
        }
        let stopped = signals::stop_by(signal);
        // Where no process could have continued us we were not stopped. Then a key that stops does nothing, and a
        // command that reads in the background stays stopped.
        if self.pty.is_some() && (stopped || signal == libc::SIGTSTP) {
            self.go_on();
        }
    }

    /// Has the command go on, in the foreground if that is where we are.
    fn go_on(&mut self) {
        let (Some(pty), Some(shim)) = (&self.pty, &self.shim) else {
            return self.signal(libc::SIGCONT);
        };
        pty.screen().resize();
        self.in_foreground = pty.screen().is_ours();
        if self.in_foreground {
            pty.screen().mirror();
            shim.to_foreground();
        } else {
            shim.to_background();
            shim.go_on();
        }
    }

    fn wait_for_something(&mut self, signals: &Signals, rung: Option<&OwnedFd>, left: Option<Duration>) {
        let looks = self.pty.as_ref().filter(|pty| pty.screen().is_of_real()).map(|_| LOOK_EVERY);
        let limit = [left, looks].into_iter().flatten().min();
        let limit =
            limit.map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
        let waited = match &self.shim {
            Some(shim) => shim.as_fd(),
            None => self.process.as_fd(),
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(waited, PollFlags::IN),
            PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
        ];
        fds.extend(rung.map(|rung| PollFd::new(rung, PollFlags::IN)));
        let mut also = |fd| {
            fds.push(fd);
            fds.len() - 1
        };
        let keys_at = self.pty.as_ref().and_then(Pty::awaited).map(&mut also);
        let growth_at = self.unwritten.as_ref().map(|(_, growth)| also(PollFd::new(growth, PollFlags::IN)));
        let _ = poll(&mut fds, limit.as_ref());
        let [typed, has_written] = [keys_at, growth_at].map(|at| at.is_some_and(|at| !fds[at].revents().is_empty()));
        drop(fds);
        if has_written {
            self.follow_log();
        }
        if let Some(rung) = rung {
            let _ = rustix::io::read(rung, &mut [0_u8; 8]);
        }
        if let Some(pty) = &mut self.pty {
            if typed {
                pty.pass_keys();
            }
            pty.look_again();
            if !self.in_foreground && pty.screen().is_ours() {
                self.go_on();
            }
        }
    }

    /// Has what it writes into its log by itself noted as it comes. Where there is no thread to be had, that is when it
    /// has ended.
    fn follow_log(&mut self) {
        if let Some((recording, growth)) = self.unwritten.take() {
            let _ = self.copying.follow(&recording, &growth);
        }
    }

    /// Passes a signal on, unless the terminal has given it to the command as well. Answers whether it asks the command
    /// to end.
    fn pass_on(&mut self, arrived: Arrived) -> bool {
        let Arrived { signal, from_terminal, is_sent, end_of } = arrived;
        match (signal, &self.pty) {
            // Its own end is found next, and we are not there for long to collect others.
            (libc::SIGCHLD, _) if end_of == Some(self.pid.as_raw_nonzero().get().unsigned_abs()) => return false,
            (libc::SIGCHLD, _) if !is_sent => {
                tree::collect_orphans(&[self.pid]);
                return false;
            }
            (libc::SIGCONT, _) => self.go_on(),
            (libc::SIGWINCH, Some(pty)) => pty.screen().resize(),
            // What the real terminal sends to its foreground is for the foreground of the command's.
            (_, Some(pty)) if from_terminal => {
                let group = pty.screen().foreground().unwrap_or(self.pid);
                if let Some(signal) = Signal::from_named_raw(signal) {
                    let _ = kill_process_group(group, signal);
                }
            }
            (_, None) if from_terminal => {}
            _ => self.signal(signal),
        }
        [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM].contains(&signal)
    }

    fn signal(&self, signal: i32) {
        signals::send(&self.process, signal);
    }
}

fn event(status: &WaitIdStatus) -> ChildEvent {
    match (status.stopping_signal(), status.terminating_signal()) {
        (Some(signal), _) => ChildEvent::Stopped(signal),
        (_, Some(signal)) => ChildEvent::Ended(Exit::Signal(signal)),
        _ => ChildEvent::Ended(Exit::Code(status.exit_status().unwrap_or(0))),
    }
}

/// How long the command may take to stop: as the cancel request says, else as we see fit.
pub(super) fn grace(stop: &Stop) -> Duration {
    match stop {
        Stop::Cancelled(request) => request.grace.unwrap_or(GRACE),
        _ => GRACE,
    }
}

/// Something that can be waited for and becomes readable when the run is to stop.
pub(super) fn bell(handle: &RunHandle, stops: &Arc<Mutex<Vec<Stop>>>) -> Option<OwnedFd> {
    let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let (ring, stops) = (rung.try_clone().ok()?, stops.clone());
    handle.on_stop(move |stop| {
        stops.lock().unwrap_or_else(PoisonError::into_inner).push(stop.clone());
        let _ = rustix::io::write(&ring, &1_u64.to_ne_bytes());
    });
    Some(rung)
}

/// What the exit status means. A command that handles a signal and exits is judged by its status, as a shell does; only
/// one that died of the signal was interrupted. A shell reports that of its last command as 128 and the signal's
/// number.
fn ended(exit: Exit, asked: &Asked) -> Ended {
    let interrupted = |signal: Option<i32>, reason: String| OwnerEnd::Interrupted(Interruption { signal, reason });
    let died_of = |signal: &&i32| exit == Exit::Signal(**signal) || exit == Exit::Code(128 + **signal);
    if let (None, Some(own)) = (&asked.stop, &asked.own) {
        let (end, code, why) = match own {
            OwnStop::NotReady(why) => (failed("not_ready", why.clone()), Code::Refused, why),
            OwnStop::Unleashed(why) => (interrupted(None, why.clone()), Code::Unavailable, why),
            OwnStop::Unwatched(why) => (failed("unwatched", why.clone()), Code::Unavailable, why),
        };
        return Ended { end: Some(end), exit, talk: Some((code, why.clone())), unread: None };
    }
    let (end, talk) = match (&asked.stop, asked.signals.iter().find(died_of)) {
        (Some(Stop::Cancelled(_)), _) => (Some(OwnerEnd::Finished(Outcome::Cancelled)), None),
        (Some(Stop::TimedOut), _) => {
            let message = format!("it ran for longer than its timeout ({exit})");
            (Some(failed("timeout", message)), Some((Code::Refused, "the run timed out".into())))
        }
        (Some(Stop::LeaseOver), _) => (
            Some(interrupted(None, "its registry could not be reached".into())),
            Some((Code::Unavailable, "the registry cannot be reached; the run was stopped".into())),
        ),
        // Whatever else asks it to stop, nothing is left to be recorded.
        (Some(_), _) => (None, Some((Code::Lost, "another worker owns the run now; it was stopped".into()))),
        (None, Some(signal)) => (Some(interrupted(Some(*signal), format!("signal {signal}"))), None),
        (None, None) => match exit {
            Exit::Code(0) => (Some(OwnerEnd::Finished(Outcome::SUCCEEDED)), None),
            Exit::Code(_) => (Some(failed("exit", exit.to_string())), None),
            Exit::Signal(_) => (Some(failed("signal", exit.to_string())), None),
        },
    };
    Ended { end, exit, talk, unread: None }
}

fn failed(error_type: &str, error_message: String) -> OwnerEnd {
    OwnerEnd::Finished(Outcome::failed(error_type, error_message))
}

impl Ended {
    /// A command that was not our child, and of which it may be unknown how it ended.
    pub fn of_another(exit: Option<Exit>, asked: &Asked) -> Self {
        let Some(exit) = exit else {
            // One that was sent a signal and ended is taken to have died of it.
            let assumed = asked.signals.last().map_or(Exit::Code(1), |signal| Exit::Signal(*signal));
            let ended = ended(assumed, asked);
            // What it was asked for is known; of its status nothing is claimed.
            let (error_type, message) = match (&asked.stop, &ended.end) {
                (Some(Stop::TimedOut), _) => ("timeout", "it ran for longer than its timeout"),
                (None, Some(OwnerEnd::Finished(_))) if asked.own.is_none() => {
                    ("exit_unknown", "its exit status could not be had, because its owner had died")
                }
                _ => return ended,
            };
            return Self {
                end: Some(failed(error_type, message.into())),
                talk: Some((Code::Unavailable, message.into())),
                ..ended
            };
        };
        ended(exit, asked)
    }

    /// This end, or what the command has declared, unless it was asked to stop.
    #[must_use]
    pub(super) fn unless_declared(self, declared: Option<OwnerEnd>, asked: &Asked) -> Self {
        match declared {
            Some(end) if asked.stop.is_none() && asked.own.is_none() => Self { end: Some(end), talk: None, ..self },
            _ => self,
        }
    }

    /// Whether it, or the last process of a shell, was killed by what cannot be handled.
    pub fn by_kill(&self) -> bool {
        [Exit::Signal(libc::SIGKILL), Exit::Code(128 + libc::SIGKILL)].contains(&self.exit)
    }

    /// It was killed because memory ran out.
    pub fn blame_memory(&mut self) {
        if let Some(OwnerEnd::Finished(Outcome::Failed { .. })) = self.end {
            let exit = self.exit;
            self.end = Some(failed("oom", format!("it was killed because memory ran out ({exit})")));
        }
    }

    /// A command that could not be started.
    pub fn not_started(program: &OsStr, error: &io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        let message = format!("`{}` cannot be executed: {error}", program.to_string_lossy());
        let talk = Some((Code::Invalid, message.clone()));
        Self { end: Some(failed("spawn", message)), exit: Exit::Code(code), talk, unread: None }
    }
}

/// Ends this process as the command ended.
pub fn exit(exit: Exit) -> u8 {
    if let Exit::Signal(signal) = exit {
        signals::end_by(signal);
    }
    status(exit)
}

/// The status by which a shell knows such an end.
pub fn status(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code & 0xff).unwrap_or(1),
        Exit::Signal(signal) => u8::try_from(128 + signal).unwrap_or(255),
    }
}
