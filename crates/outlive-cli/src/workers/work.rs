//! `outlive work`: executes what waits in the queue.
//!
//! Each slot is a process of its own that claims one run after the other and owns it while it lasts. The
//! process that called only listens: if it is killed, its slots finish their runs and end.

mod busy;
mod slot;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::libc;
use nix::sys::signal::SigSet;
use outlive::discovery::Location;
use outlive::error::{Code, Error};
use outlive::registry::Registry;
use outlive::run::NAME_LIMIT;
use outlive::time::{Clock, SystemClock};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use self::busy::BusyIntake;
pub use self::slot::{SLOT, slot, slot_command};
use crate::call::codes::status;
use crate::call::{Context, SCHEMA, fail};
use crate::exec::collect_ended;
use crate::exec::descriptors::wait_for;
use crate::exec::detach::Starting;
use crate::exec::signals::Signals;
use crate::lookup::serving::for_handler;
use crate::ui::{plain, say_line, talk};
use crate::workers::socket::Settings;

/// The verb.
pub const NAME: &str = "work";
/// How long to wait after a slot was killed before another takes its place.
const REST: Duration = Duration::from_secs(1);
/// The most runs that are left and warned of one by one.
const WARNINGS: usize = 5;

/// Execute queued runs
///
/// Runs are claimed one by one, lower priorities first, and executed in their own directories. Any number of workers
/// may work at once: each run is claimed by one of them. On a first signal it claims nothing more and exits once its
/// runs have ended; on a second one it stops them too.
///
/// Runs of other users are not executed before `outlive trust` allows them: a warning names them, and with --drain
/// the exit status is 106 where nothing failed and only such runs are left.
///
/// With several --registry, every slot claims from each of them in turn. One that cannot be reached is left out until it
/// answers again.
#[derive(Args)]
struct Work {
    /// How many runs to execute at a time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    slots: u16,
    /// Only runs of this kind (repeatable)
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// A name for its slots in `outlive workers`, which need not be unique
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
    /// Exit once no runnable work is queued
    #[arg(long)]
    drain: bool,
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_label = !text.trim().is_empty() && text.len() <= NAME_LIMIT && !text.chars().any(char::is_control);
    is_label
        .then(|| text.to_owned())
        .ok_or_else(|| format!("a name has 1 to {NAME_LIMIT} bytes and no control character"))
}

/// The command's flags and help.
pub fn command() -> Command {
    Work::augment_args(Command::new(NAME))
        .after_help("Examples:\n  outlive work --slots 4\n  outlive work --drain && echo all done\n  outlive work --slots 8 --registry postgres://eu.db/jobs --registry postgres://us.db/jobs")
}

/// Works as the flags say.
pub fn run(matches: &ArgMatches, context: &Context, json: bool, mask: SigSet) -> u8 {
    let input = match Work::from_arg_matches(matches) {
        Ok(input) => input,
        Err(error) => return fail(&Error::Invalid(error.to_string()), json),
    };
    let signals = match Signals::take(mask) {
        Ok(signals) => signals,
        Err(error) => return fail(&Error::Invalid(format!("signals cannot be waited for: {error}")), json),
    };
    // It is made, and its problems are reported, before any slot meets it.
    let named: Vec<String> = matches.get_many("registry").into_iter().flatten().cloned().collect();
    // As they are before they are read.
    let settings = match context.location() {
        Ok(Location::Directory(path)) => Some(Settings::of(&path)),
        _ => None,
    };
    let (registries, registry) = match pollster::block_on(opened(context, &named)) {
        Ok(opened) => opened,
        Err(error) => return fail(&error, json),
    };
    // One that ends with the queue is not there for what is added later.
    let listening = registry.zip(settings).filter(|_| !input.drain);
    let intake = listening.and_then(|(registry, files)| BusyIntake::open(registry, files, input.kinds.clone()));
    let listener = intake.as_ref().map(BusyIntake::number);
    let words = slot::words(&registries, &input.kinds, input.name.as_deref(), input.drain, listener);
    let mut worker = Worker {
        words,
        signals,
        intake,
        slots: Vec::new(),
        asked: 0,
        json,
        failed: 0,
        executed: 0,
        refused: false,
        drains: input.drain,
        untrusted: BTreeSet::new(),
        handlers: BTreeMap::new(),
    };
    match worker.work(input.slots) {
        Ok(()) if input.drain => {
            if !json {
                worker.sum_up();
            }
            worker.drained()
        }
        Ok(()) => u8::from(worker.refused),
        Err(error) => fail(&Error::Invalid(format!("a worker cannot be started: {error}")), json),
    }
}

/// The URLs of the registries to claim from, made where they are missing, and the only one. Of several, those that cannot be
/// reached now are claimed from when they can.
async fn opened(context: &Context, named: &[String]) -> Result<(Vec<String>, Option<Registry>), Error> {
    if named.len() < 2 {
        let registry = context.registry().await?;
        context.keep_history().await?;
        return Ok((vec![registry.url().to_owned()], Some(registry)));
    }
    let mut urls = Vec::new();
    for url in named {
        let there = context.at(url.clone());
        let opened = match there.registry().await {
            Ok(registry) => there.keep_history().await.map(|()| registry.url().to_owned()),
            Err(error) => Err(error),
        };
        match opened {
            Ok(url) if urls.contains(&url) => return Err(Error::Invalid("a registry is named twice".into())),
            Ok(url) => urls.push(url),
            Err(Error::Store(error)) if error.is_transient() => {
                talk(&format!("warning: {}; it is claimed from when it answers\n", plain(&error.to_string())));
                urls.push(url.clone());
            }
            Err(error) => return Err(error),
        }
    }
    Ok((urls, None))
}

struct Worker {
    words: Vec<std::ffi::OsString>,
    signals: Signals,
    /// Where callers ask for runs, until it is asked to end.
    intake: Option<BusyIntake>,
    slots: Vec<SlotProcess>,
    /// How often it was asked to end.
    asked: u32,
    json: bool,
    executed: usize,
    failed: usize,
    /// One of its slots could not go on.
    refused: bool,
    /// It ends once nothing is left that it can execute.
    drains: bool,
    /// Runs that were left because this user may not, or cannot, execute them.
    untrusted: BTreeSet<String>,
    /// Runs that were left to the handlers of programs, by kind.
    handlers: BTreeMap<String, BTreeSet<String>>,
}

/// A process that executes runs, as seen by its parent.
struct SlotProcess {
    pid: Pid,
    said: BufReader<UnixStream>,
    /// It executes a run.
    is_busy: bool,
    /// It has nothing more to do, and said so.
    done: bool,
}

impl Worker {
    fn sum_up(&self) {
        talk(&format!("outlive: {} executed, {} of them failed\n", self.executed, self.failed));
        if !self.untrusted.is_empty() {
            talk(&format!(
                "outlive: {} left: this user may not execute them; see the warnings above\n",
                self.untrusted.len()
            ));
        }
        for (kind, left) in &self.handlers {
            talk(&format!("outlive: {} left: {}\n", left.len(), for_handler(kind)));
        }
    }

    /// The exit status once nothing is left that can be executed.
    fn drained(&self) -> u8 {
        match (self.failed > 0 || self.refused, self.untrusted.is_empty()) {
            (true, _) => 1,
            (false, false) => status(Code::Untrusted).exit,
            (false, true) => 0,
        }
    }

    /// Warns of a run that is left, once, and of no more than people read.
    fn warn(&mut self, id: String, reason: &str) {
        if !self.untrusted.insert(id.clone()) || self.json {
            return;
        }
        match self.untrusted.len().cmp(&WARNINGS) {
            Ordering::Less | Ordering::Equal => talk(&format!("warning: {id} is left: {reason}\n")),
            Ordering::Greater if self.untrusted.len() == WARNINGS + 1 => {
                talk("warning: more are left; `outlive queue list` tells why\n");
            }
            Ordering::Greater => {}
        }
    }

    /// Counts a run without a command, and names its kind the first time.
    fn leave_to_handler(&mut self, id: String, kind: String) {
        if !self.handlers.contains_key(&kind) && !self.json && !self.drains {
            talk(&format!("warning: {id} is left: {}\n", for_handler(&kind)));
        }
        self.handlers.entry(kind).or_default().insert(id);
    }

    fn work(&mut self, slots: u16) -> std::io::Result<()> {
        for _ in 0..slots {
            self.add_slot()?;
        }
        while !self.slots.is_empty() {
            let (spoke, is_asked) = self.wait();
            self.heed_signals();
            // From the last one on, so that those before keep their places.
            for place in spoke.into_iter().rev() {
                self.listen(place)?;
            }
            // A slot that is free by now makes the run with fewer commits.
            if is_asked
                && self.is_busy()
                && let Some(intake) = &self.intake
            {
                intake.enqueue();
            }
        }
        Ok(())
    }

    fn add_slot(&mut self) -> std::io::Result<()> {
        let slot = Starting::begin_with(&self.words, &SigSet::empty(), self.intake.as_ref().map(AsFd::as_fd))?;
        let (pid, stream) = (slot.pid, slot.into_stream());
        self.slots.push(SlotProcess { pid, said: BufReader::new(stream), is_busy: false, done: false });
        Ok(())
    }

    /// Waits for a signal, a slot, or a caller where every slot is busy. Answers with the places of the slots that have
    /// something to say, and whether there is a caller.
    fn wait(&self) -> (Vec<usize>, bool) {
        let slots = self.slots.iter().map(|slot| PollFd::new(slot.said.get_ref(), PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = [PollFd::new(&self.signals, PollFlags::IN)].into_iter().chain(slots).collect();
        fds.extend(self.intake.iter().filter(|_| self.is_busy()).map(|intake| PollFd::new(intake, PollFlags::IN)));
        let _ = poll(&mut fds, None);
        let (slots, callers) = fds[1..].split_at(self.slots.len());
        let spoke = slots.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty());
        (spoke.map(|(place, _)| place).collect(), callers.iter().any(|fd| !fd.revents().is_empty()))
    }

    /// Whether no slot is free.
    fn is_busy(&self) -> bool {
        self.slots.iter().all(|slot| slot.is_busy)
    }

    /// First nothing more is claimed; then what runs is stopped.
    fn ask_to_end(&mut self) {
        self.asked += 1;
        self.intake = None;
        if self.asked == 1 {
            talk("outlive: claims nothing more, and ends with what runs; once more to stop that too\n");
        }
        for slot in &self.slots {
            if self.asked == 1 {
                // One that cannot be reached has ended.
                let _ = slot.said.get_ref().shutdown(std::net::Shutdown::Write);
            } else {
                let _ = kill_process(slot.pid, Signal::TERM);
            }
        }
    }

    fn listen(&mut self, place: usize) -> std::io::Result<()> {
        loop {
            let slot = &mut self.slots[place];
            let mut line = String::new();
            if slot.said.read_line(&mut line).unwrap_or(0) == 0 {
                let gone = self.slots.remove(place);
                if !gone.done && self.asked == 0 {
                    talk("outlive: a worker was killed; another takes its place\n");
                    self.rest();
                    // A signal may have ended the pause.
                    if self.asked == 0 {
                        self.add_slot()?;
                    }
                }
                return Ok(());
            }
            let said: Value = serde_json::from_str(&line).unwrap_or_default();
            slot.done |= said["event"] == "done";
            match said["event"].as_str() {
                Some("started") => slot.is_busy = true,
                Some("ended" | "again") => slot.is_busy = false,
                _ => {}
            }
            let more = !slot.said.buffer().is_empty();
            self.tell(&said);
            if !more {
                return Ok(());
            }
        }
    }

    /// Pauses for [`REST`], or until it is asked to end. The killed slot's own SIGCHLD does not cut the pause short.
    fn rest(&mut self) {
        let until = SystemClock.awake() + REST;
        while let Some(left) = until.checked_sub(SystemClock.awake()).filter(|left| !left.is_zero()) {
            wait_for(&[&self.signals], left);
            self.heed_signals();
            if self.asked > 0 {
                return;
            }
        }
    }

    fn heed_signals(&mut self) {
        while let Some(arrived) = self.signals.next() {
            if arrived.signal == libc::SIGCHLD {
                collect_ended();
            } else if [libc::SIGHUP, libc::SIGINT, libc::SIGTERM].contains(&arrived.signal) {
                self.ask_to_end();
            }
        }
    }

    fn tell(&mut self, said: &Value) {
        let text = |field: &str| said[field].as_str().map(plain).unwrap_or_default();
        match said["event"].as_str() {
            Some("ended") => {
                self.executed += 1;
                self.failed += usize::from(said["state"] != "succeeded");
                if !self.json {
                    say_line(&format!("{} {} {}", text("id"), text("title"), text("state")));
                }
            }
            Some("refused") => {
                self.refused = true;
                if !self.json {
                    talk(&format!("error: {}\n", text("reason")));
                }
            }
            Some("untrusted") => self.warn(text("id"), &text("reason")),
            Some("handler") => self.leave_to_handler(text("id"), text("kind")),
            Some("trouble") if !self.json => talk(&format!("error: {}\n", text("reason"))),
            _ => {}
        }
        if self.json && said["event"] != "done" {
            let mut line = json!({ "schema": SCHEMA });
            if let (Some(line), Some(said)) = (line.as_object_mut(), said.as_object()) {
                line.extend(said.clone());
            }
            say_line(&line.to_string());
        }
    }
}

/// Whether the other side of a stream will say nothing more.
fn peeks_end(stream: &UnixStream) -> bool {
    use rustix::net::{RecvFlags, recv};
    matches!(recv(stream, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT), Ok((0, _)))
}
