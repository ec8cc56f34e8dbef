//! The command as a process: started with the run's environment and lock, waited for, asked to stop.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::SigSet;
use outlive::process::{REGISTRY_ID_VARIABLE, RUN_VARIABLE};
use outlive::registry::Registry;
use outlive::run::{Exit, Interruption};
use outlive::runtime::Stop;
use outlive::runtime::handle::RunHandle;
use outlive::spool::OwnEnd;
use outlive::transition::Verdict;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal, waitid,
};

use super::signals::{Arrived, Signals, end_by};
use crate::inside::EPOCH_VARIABLE;
use crate::settings::REGISTRY_VARIABLE;

/// How long a command that was asked to stop may take before it is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A command that runs.
pub struct Child {
    fd: OwnedFd,
}

/// How a command ended, and what that means.
pub struct Ended {
    /// What to put on record; nothing where the run is somebody else's by now.
    pub end: Option<OwnEnd>,
    /// How the command ended.
    pub exit: Exit,
    /// How this process should end instead, where it was asked to stop.
    pub leave_by: Option<Exit>,
    /// What to say about it.
    pub talk: Option<String>,
}

/// Why the command was asked to stop.
#[derive(Debug, Clone)]
enum Asked {
    Signal(i32),
    Stop(Stop),
}

impl Child {
    /// Starts the command.
    pub fn start(registry: &Registry, handle: &RunHandle, argv: &[OsString]) -> std::io::Result<Self> {
        let run = handle.run();
        let tree =
            registry.local().map(|local| local.hold_tree_lock(&run)).transpose().map_err(std::io::Error::other)?;
        let tree = tree.map(|lock| lock.into_file());
        if let Some(tree) = &tree {
            // The command and all it starts inherit it: it is free when the last of them is gone.
            rustix::io::fcntl_setfd(tree, rustix::io::FdFlags::empty())?;
        }
        let ours = [
            (RUN_VARIABLE, run.id.to_string()),
            ("OUTLIVE_ATTEMPT", run.attempt.to_string()),
            (EPOCH_VARIABLE, run.epoch.to_string()),
            (REGISTRY_VARIABLE, registry.url().to_owned()),
            (REGISTRY_ID_VARIABLE, registry.id().unwrap_or_default()),
        ];
        let pid = spawn(argv, &ours)?;
        drop(tree);
        Ok(Self { fd: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Waits for it to end, passes signals on, and stops it when its run is to stop.
    pub fn wait(self, registry: &Registry, handle: &RunHandle, mut signals: Signals) -> Ended {
        let stops: Arc<Mutex<Vec<Stop>>> = Arc::default();
        let rung = bell(handle, &stops);
        let mut asked: Option<Asked> = None;
        let mut terminal_interrupt = None;
        let mut kill_at: Option<Duration> = None;
        loop {
            if let Ok(Some(status)) =
                waitid(WaitId::PidFd(self.fd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
            {
                if asked.is_some() {
                    // What was asked to stop has stopped only with the last of its processes.
                    let left = kill_at.map_or(GRACE, |at| at.saturating_sub(registry.clock().awake()));
                    registry.end_tree(&handle.run(), left);
                }
                return ended(&status, asked, terminal_interrupt);
            }
            let left = kill_at.map(|at| at.saturating_sub(registry.clock().awake()));
            self.wait_for_something(&signals, rung.as_ref(), left);
            while let Some(arrived) = signals.next() {
                self.pass_on(arrived, &mut asked, &mut terminal_interrupt);
            }
            if let Some(stop) = stops.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                asked.get_or_insert(Asked::Stop(stop));
                self.signal(Signal::TERM);
            }
            if asked.is_some() {
                let at = *kill_at.get_or_insert_with(|| registry.clock().awake() + GRACE);
                if registry.clock().awake() >= at {
                    self.signal(Signal::KILL);
                    registry.end_tree(&handle.run(), Duration::ZERO);
                    // One that cannot be killed yet is tried again, not at once.
                    kill_at = Some(registry.clock().awake() + Duration::from_secs(1));
                }
            }
        }
    }

    fn wait_for_something(&self, signals: &Signals, rung: Option<&OwnedFd>, left: Option<Duration>) {
        let mut fds =
            vec![PollFd::new(&self.fd, PollFlags::IN), PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN)];
        fds.extend(rung.map(|rung| PollFd::new(rung, PollFlags::IN)));
        let limit =
            left.map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
        let _ = poll(&mut fds, limit.as_ref());
        if let Some(rung) = rung {
            let _ = rustix::io::read(rung, &mut [0_u8; 8]);
        }
    }

    /// Passes a signal on, unless the terminal has given it to the command as well.
    fn pass_on(&self, arrived: Arrived, asked: &mut Option<Asked>, terminal_interrupt: &mut Option<i32>) {
        if arrived.from_terminal {
            *terminal_interrupt = Some(arrived.signal);
            return;
        }
        if let Some(signal) = Signal::from_named_raw(arrived.signal) {
            if [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal) {
                asked.get_or_insert(Asked::Signal(arrived.signal));
            }
            self.signal(signal);
        }
    }

    fn signal(&self, signal: Signal) {
        // One that is gone is noticed by waiting for it.
        let _ = pidfd_send_signal(&self.fd, signal);
    }
}

/// Something that can be waited for and becomes readable when the run is to stop.
fn bell(handle: &RunHandle, stops: &Arc<Mutex<Vec<Stop>>>) -> Option<OwnedFd> {
    let rung = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let (ring, stops) = (rung.try_clone().ok()?, stops.clone());
    handle.on_stop(move |stop| {
        stops.lock().unwrap_or_else(PoisonError::into_inner).push(stop.clone());
        let _ = rustix::io::write(&ring, &1_u64.to_ne_bytes());
    });
    Some(rung)
}

/// Starts a program as a shell would: no signal blocked or ignored, the environment as it is and `ours` in addition.
fn spawn(argv: &[OsString], ours: &[(&str, String)]) -> std::io::Result<Pid> {
    let text = |word: &OsStr| {
        CString::new(word.as_bytes()).map_err(|_| std::io::Error::from(std::io::ErrorKind::InvalidInput))
    };
    let argv: Vec<CString> = argv.iter().map(|word| text(word)).collect::<Result<_, _>>()?;
    let theirs = std::env::vars_os().filter(|(name, _)| ours.iter().all(|(ours, _)| name != ours));
    let all = theirs.chain(ours.iter().map(|(name, value)| (name.into(), value.into())));
    let environment: Vec<CString> =
        all.map(|(name, value)| text(&[name, value].join(OsStr::new("=")))).collect::<Result<_, _>>()?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    attributes.set_sigmask(&SigSet::empty())?;
    // Rust ignores it on our behalf.
    attributes.set_sigdefault(&SigSet::from(nix::sys::signal::Signal::SIGPIPE))?;
    let pid = posix_spawnp(&argv[0], &PosixSpawnFileActions::init()?, &attributes, &argv, &environment)?;
    Pid::from_raw(pid.as_raw()).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

fn ended(status: &WaitIdStatus, asked: Option<Asked>, terminal_interrupt: Option<i32>) -> Ended {
    let exit = status.exit_status().map_or_else(|| Exit::Signal(status.terminating_signal().unwrap_or(0)), Exit::Code);
    let died_of = |signal: i32| exit == Exit::Signal(signal) || exit == Exit::Code(128 + signal);
    let interrupted = |signal: Option<i32>, reason: String| OwnEnd::Interrupted(Interruption { signal, reason });
    let by =
        |signal| (Some(interrupted(Some(signal), format!("signal {signal}"))), Some(Exit::Code(128 + signal)), None);
    let (end, leave_by, talk) = match asked {
        Some(Asked::Signal(signal)) => by(signal),
        Some(Asked::Stop(Stop::Cancelled(_))) => (Some(OwnEnd::Finished(Verdict::Cancelled)), None, None),
        Some(Asked::Stop(Stop::TimedOut)) => {
            let error_message = format!("it ran for longer than its timeout ({exit})");
            (
                Some(OwnEnd::Finished(Verdict::Failed { error_type: "timeout".into(), error_message })),
                None,
                Some("the run timed out".into()),
            )
        }
        Some(Asked::Stop(Stop::LeaseOver)) => (
            Some(interrupted(None, "its registry could not be reached".into())),
            None,
            Some("the registry cannot be reached; the run was stopped".into()),
        ),
        Some(Asked::Stop(Stop::Lost)) => (None, None, Some("the run is somebody else's by now; it was stopped".into())),
        None => match (exit, terminal_interrupt) {
            (_, Some(signal)) if died_of(signal) => by(signal),
            (Exit::Code(0), _) => (Some(OwnEnd::Finished(Verdict::Succeeded)), None, None),
            (Exit::Code(_), _) => (Some(failed("exit", exit.to_string())), None, None),
            (Exit::Signal(_), _) => (Some(failed("signal", exit.to_string())), None, None),
        },
    };
    Ended { end, exit, leave_by: leave_by.filter(|_| !matches!(exit, Exit::Signal(_))), talk }
}

fn failed(error_type: &str, error_message: String) -> OwnEnd {
    OwnEnd::Finished(Verdict::Failed { error_type: error_type.into(), error_message })
}

impl Ended {
    /// A command that could not be started.
    pub fn not_started(program: &OsStr, error: &std::io::Error) -> Self {
        let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
        let message = format!("`{}` cannot be executed: {error}", program.to_string_lossy());
        Self {
            end: Some(failed("spawn", message.clone())),
            exit: Exit::Code(code),
            leave_by: None,
            talk: Some(crate::terminal::plain(&message)),
        }
    }
}

/// Ends this process as the command ended.
pub fn exit(exit: Exit) -> ExitCode {
    match exit {
        Exit::Code(code) => ExitCode::from(u8::try_from(code & 0xff).unwrap_or(1)),
        Exit::Signal(signal) => {
            end_by(signal);
            ExitCode::from(u8::try_from(128 + signal).unwrap_or(255))
        }
    }
}
