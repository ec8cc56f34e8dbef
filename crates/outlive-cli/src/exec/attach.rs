//! `outlive attach`: stays with a run until it ends, at its terminal where it has one, and ends as it ended.
//!
//! The terminal is served by the run's owner (`viewers.rs`). A viewer that leaves, or is killed, changes nothing for
//! the run.

mod keys;
pub mod wire;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use outlive::error::Error;
use outlive::lifecycle::health::{Health, RunStatus};
use outlive::registry::Registry;
use outlive::run::Run;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

use self::keys::DetachKeys;
use self::wire::Incoming;
use super::descriptors::STANDARD;
use super::streams::write_all;
use crate::call::{Context, Effect, fail};
use crate::logs;
use crate::lookup::located::{RegistryRef, locate_one};
use crate::lookup::serving::Serving;
use crate::ui::run_view::RunView;
use crate::ui::talk;
use crate::ui::typed::called;

/// The verb.
pub const NAME: &str = "attach";
/// How long an owner is given to answer.
const ANSWERS_WITHIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// How often to look what became of a run whose terminal is gone.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// Connect this terminal to a running run until it ends
///
/// A run started with `run -d --tty` has a terminal: input goes to it, its output is shown here, and its size follows
/// this terminal. Ctrl-P Ctrl-Q detaches and leaves the run running; several terminals may be attached at once. For
/// any other run the last lines of output and all new output are shown; Ctrl-C detaches. The exit status is the
/// run's.
#[derive(Debug, Args)]
struct Attach {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    run: String,
    /// The keys that leave, one after the other, such as ctrl-a,d; none if empty
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q", hide_default_value = false)]
    detach_keys: DetachKeys,
}

/// The command's flags and help.
pub fn command() -> Command {
    Attach::augment_args(Command::new(NAME))
        .after_help("Examples:\n  outlive attach train\n  outlive attach --detach-keys ctrl-a,d @last")
}

/// Stays with the run that the flags name.
pub fn run(matches: &ArgMatches, context: &Context, json: bool) -> u8 {
    let attached = Attach::from_arg_matches(matches)
        .map_err(|error| Error::Invalid(error.to_string()))
        .and_then(|input| pollster::block_on(input.attach(context, json)));
    match attached {
        Ok(Some(status)) => status,
        Ok(None) => logs::attach(matches, context, json),
        Err(error) => fail(&error, json),
    }
}

/// Why there is nothing more to see.
enum DetachReason {
    /// The keys for that were typed, or nothing that is shown is seen.
    Detached,
    /// This signal asked for it.
    Signal(i32),
    /// The owner has closed the terminal.
    Closed,
}

impl Attach {
    /// Stays at the terminal of the run. None where it has none.
    async fn attach(mut self, context: &Context, json: bool) -> Result<Option<u8>, Error> {
        let (RegistryRef { registry, .. }, mut seen) = locate_one(context, &self.run, Effect::Read).await?;
        if json || seen.is_over() {
            return Ok(None);
        }
        let (id, called) = (seen.run.id, called(seen.run.id));
        let Ok(mut stream) = connect(&registry, &seen.run) else {
            let why = if seen.run.spec.tty { "its terminal cannot be reached" } else { "it has no terminal" };
            talk(&format!("outlive: run `{called}`: {why}; what it writes is shown, and Ctrl-C leaves\n"));
            return Ok(None);
        };
        loop {
            let attempt = seen.run.attempt;
            match self.stay(&stream).map_err(|error| Error::Invalid(format!("the terminal cannot be used: {error}")))? {
                DetachReason::Detached => {
                    talk(&format!("outlive: detached from run `{called}`, which keeps running\n"));
                    return Ok(Some(0));
                }
                DetachReason::Signal(signal) => return Ok(Some(u8::try_from(128 + signal).unwrap_or(255))),
                DetachReason::Closed => {}
            }
            let mut serving = Serving::default();
            stream = loop {
                seen = registry.get(id).await?;
                serving.tell(&registry, &seen).await?;
                if let Some(status) = over(&seen, &registry) {
                    return Ok(Some(status));
                }
                match connect(&registry, &seen.run) {
                    // An owner that is being killed closes what it has open one by one.
                    Ok(next) if seen.run.attempt == attempt && !is_answered(&next) => {
                        std::thread::sleep(LOOK_EVERY);
                    }
                    Ok(_) if seen.run.attempt == attempt => {
                        talk(&format!(
                            "outlive: run `{called}` writes faster than this terminal shows: `outlive attach {called}` returns\n"
                        ));
                        return Ok(Some(1));
                    }
                    Ok(next) => break next,
                    Err(_) => std::thread::sleep(LOOK_EVERY),
                }
            };
        }
    }

    /// Passes on what is typed and shows what comes.
    fn stay(&mut self, stream: &UnixStream) -> io::Result<DetachReason> {
        let signals = [Signal::SIGWINCH, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];
        let signals: SigSet = signals.into_iter().collect();
        signals.thread_block()?;
        let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        let (terminal, mut incoming) = (RawTerminal::take(), Incoming::default());
        let mut window = Window::default();
        let mut input = Some(STANDARD[0]);
        send_size(stream);
        loop {
            let mut fds = vec![
                PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            fds.extend(input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::IN)));
            let _ = poll(&mut fds, None);
            let [shown, _, typed] = [0, 1, 2].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()));
            drop(fds);
            while let Ok(Some(signal)) = signals.read_signal() {
                match i32::try_from(signal.ssi_signo).unwrap_or(0) {
                    nix::libc::SIGWINCH => send_size(stream),
                    signal => {
                        window.leave();
                        return Ok(DetachReason::Signal(signal));
                    }
                }
            }
            if shown {
                let closed = !matches!(incoming.take(stream), Ok(1..));
                while let Ok(Some((kind, bytes))) = incoming.next() {
                    if kind == wire::SHOWN && !window.show(&bytes) {
                        return Ok(DetachReason::Detached);
                    }
                }
                if closed {
                    drop(terminal);
                    return Ok(DetachReason::Closed);
                }
            }
            if let Some(from) = input.filter(|_| typed) {
                let mut buffer = [0; 4 << 10];
                match rustix::io::read(from, &mut buffer) {
                    Ok(0) | Err(rustix::io::Errno::IO) => input = None,
                    Ok(read) => {
                        let (passed, detaches) = self.detach_keys.pass(&buffer[..read]);
                        // A peer that is gone is noticed by listening.
                        let _ = write_all(stream, &wire::message(wire::KEYS, &passed));
                        if detaches {
                            window.leave();
                            return Ok(DetachReason::Detached);
                        }
                    }
                    Err(_) => {}
                }
            }
        }
    }
}

/// Whether the process that was connected to is there, and not only its socket.
fn is_answered(stream: &UnixStream) -> bool {
    let _ = poll(&mut [PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN)], Some(&ANSWERS_WITHIN));
    let mut first = [0; 1];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut first, flags) {
        Ok((_, read)) => read > 0,
        // One that says nothing is there as long as it does not hang up.
        Err(error) => error == rustix::io::Errno::WOULDBLOCK,
    }
}

fn connect(registry: &Registry, run: &Run) -> io::Result<UnixStream> {
    let local = registry.local().filter(|_| run.spec.tty).ok_or(io::ErrorKind::NotFound)?;
    let (dir, name) = local.terminal(run).map_err(io::Error::other)?;
    wire::connect(&dir, &name)
}

/// The status to end with, where there is nothing more to wait for.
fn over(seen: &RunStatus, registry: &Registry) -> Option<u8> {
    if seen.is_over() {
        return Some(RunView::new(seen, registry).exit_status());
    }
    (seen.health == Some(Health::Orphaned)).then(|| {
        let (called, reason) = (called(seen.run.id), seen.reason.clone().unwrap_or_default());
        talk(&format!(
            "outlive: run `{called}` has lost its terminal: {}\nhint: `outlive adopt {called}` takes it over\n",
            crate::ui::plain(&reason)
        ));
        1
    })
}

fn send_size(stream: &UnixStream) {
    if let Some(size) = STANDARD.into_iter().find_map(|fd| tcgetwinsize(fd).ok()).filter(|size| size.ws_row > 0) {
        let _ = write_all(stream, &wire::size(size.ws_row, size.ws_col));
    }
}

/// Our own terminal, every byte of which is passed on until this is dropped.
struct RawTerminal(Option<(BorrowedFd<'static>, Termios)>);

impl RawTerminal {
    fn take() -> Self {
        let input = STANDARD[0];
        let found = tcgetattr(input).ok();
        if let Some(found) = &found {
            let mut raw = found.clone();
            raw.make_raw();
            let _ = tcsetattr(input, OptionalActions::Now, &raw);
        }
        Self(found.map(|found| (input, found)))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some((terminal, found)) = &self.0 {
            let _ = tcsetattr(terminal, OptionalActions::Now, found);
        }
    }
}

/// Where the command's terminal is shown.
#[derive(Default)]
struct Window {
    /// It has switched to a second screen, as programs do that fill all of it.
    is_on_second: bool,
}

impl Window {
    /// Shows something. Answers whether it may be seen.
    fn show(&mut self, bytes: &[u8]) -> bool {
        let last = |sequence: &[u8]| bytes.windows(sequence.len()).rposition(|at| at == sequence);
        match (last(b"\x1b[?1049h"), last(b"\x1b[?1049l")) {
            (entered, left) if entered > left => self.is_on_second = true,
            (_, Some(_)) => self.is_on_second = false,
            _ => {}
        }
        write_all(STANDARD[1], bytes).is_ok()
    }

    /// Restores the terminal for its shell, whatever the command has done to it.
    fn leave(&self) {
        if isatty(STANDARD[1]) {
            let first = if self.is_on_second { &b"\x1b[?1049l"[..] } else { b"" };
            // No mouse, no marked pastes, plain text, and a cursor.
            let plain = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[0m\x1b[?25h\r\n";
            let _ = write_all(STANDARD[1], &[first, plain].concat());
        }
    }
}
