//! `outlive send`: writes to the standard input of a run, or sends a signal to its command.

use std::fmt;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::Signal;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::health::RunStatus;
use outlive::lifecycle::{ActionKind, Refusal};
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::time::parse_duration;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::attach::wire;
use crate::exec::signals;
use crate::lookup::located::{RegistryRef, locate_one};
use crate::operations::output::Output;

/// The longest text of one call.
const TEXT: usize = 64 << 10;
/// How long an owner is given to take what is sent.
const TAKEN_WITHIN: Duration = Duration::from_secs(2);
/// How often to look for output, and for how long it must have been silent to be taken for all of the answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const SILENT: Duration = Duration::from_millis(150);
/// The most output that is answered, in bytes.
const BYTES: u64 = 2048;
/// The key that ends the input at a terminal.
const END_KEY: &str = "\u{4}";

/// Write to the standard input of a running run, or send it a signal
///
/// A run that was started with --stdin or --tty has an input. The text is followed by a line end. A signal is sent to
/// the command itself; `outlive cancel` stops all of its processes.
#[derive(Debug, Default, Args)]
pub struct Send {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    pub run: String,
    /// What to write
    pub text: Option<String>,
    /// Write the text without a line end behind it
    #[arg(long, requires = "text")]
    pub raw: bool,
    /// End its input, behind the text
    #[arg(long)]
    pub eof: bool,
    /// Send this signal: HUP, INT, USR1, or a number
    #[arg(long, value_name = "SIGNAL", conflicts_with_all = ["text", "eof"])]
    pub signal: Option<SignalName>,
    /// Also wait up to this long for output that follows, and answer with it
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub watch: Option<Duration>,
}

/// What was sent.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Sent {
    id: RunId,
    /// How many bytes were written.
    bytes: usize,
    /// The command has not read what was sent before: this waits behind it.
    waits: bool,
    /// The input ends.
    eof: bool,
    /// The number of the signal that was sent.
    signal: Option<i32>,
    /// What the run has written since, where that was waited for.
    output: Option<String>,
}

/// A signal as it is written: by its name or its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalName(i32);

impl FromStr for SignalName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LAST: i32 = 64;
        let name = text.to_uppercase();
        let named = || format!("SIG{}", name.trim_start_matches("SIG")).parse::<Signal>().map(|signal| signal as i32);
        match text.parse() {
            Ok(number @ 1..=LAST) => Ok(Self(number)),
            _ => named().map(Self).map_err(|_| format!("it is a signal such as HUP, or a number from 1 to {LAST}")),
        }
    }
}

impl Operate for Send {
    const NAME: &'static str = "send";
    const EFFECT: Effect = Effect::Execute;
    const EXAMPLES: &'static str = "outlive send train --signal USR1\noutlive send repl 'print(6 * 7)' --watch 5s";
    type Output = Sent;

    async fn operate(self, context: &Context) -> Result<Sent, Error> {
        let (text, eof) = (self.text.as_deref(), self.eof);
        if text.is_none() && !eof && self.signal.is_none() {
            return Err(Error::Invalid("nothing is sent: a text, `eof` or a signal is needed".into()));
        }
        let end = if self.raw { "" } else { "\n" };
        let bytes = text.map(|text| format!("{text}{end}")).unwrap_or_default();
        if bytes.len() > TEXT {
            return Err(Error::Invalid(format!("a text of {} bytes; the longest is {TEXT}", bytes.len())));
        }
        let (RegistryRef { registry, .. }, seen) = locate_one(context, &self.run, Self::EFFECT).await?;
        let id = seen.run.id;
        if seen.state != StateName::Running {
            return Err(Error::Refused {
                run: id,
                refusal: Refusal::WrongState { action: ActionKind::Send, state: seen.state },
            });
        }
        let before = match self.watch {
            Some(_) => page(context, id, None).await.map(|(_, next)| next),
            None => None,
        };
        let waits = match self.signal {
            Some(SignalName(signal)) => {
                send_signal(&registry, &seen, signal)?;
                false
            }
            None => write(&registry, &seen, &bytes, eof)?,
        };
        let output = match (self.watch, before) {
            (Some(watch), Some(next)) => answer(context, &registry, id, next, watch).await?,
            _ => None,
        };
        Ok(Sent { id, bytes: bytes.len(), waits, eof, signal: self.signal.map(|signal| signal.0), output })
    }
}

/// Sends a signal to the command, on full evidence that it is the one.
fn send_signal(registry: &Registry, seen: &RunStatus, signal: i32) -> Result<(), Error> {
    let unknown = || {
        let id = seen.run.id;
        Error::Invalid(format!("run `{id}` is sent no signal: its command is not known to run on this machine"))
    };
    let process = registry.command(&seen.run).and_then(|command| command.watch()).ok_or_else(unknown)?;
    signals::send(process, signal);
    Ok(())
}

/// Writes to the input of a run. Answers whether it waits behind what was sent before.
fn write(registry: &Registry, seen: &RunStatus, text: &str, eof: bool) -> Result<bool, Error> {
    let (id, spec) = (seen.run.id, &seen.run.spec);
    if !spec.tty && !spec.stdin {
        return Err(Error::Invalid(format!("run `{id}` has no input: it was started without `--stdin` and `--tty`")));
    }
    let closed =
        || Error::Invalid(format!("run `{id}` has no input any more: it has ended, or the owner that held it is gone"));
    let there = registry.local().and_then(|local| local.terminal(&seen.run).ok());
    let mut stream = there.and_then(|(dir, name)| wire::connect(&dir, &name).ok()).ok_or_else(closed)?;
    let text = if spec.tty && eof { format!("{text}{END_KEY}") } else { text.to_owned() };
    let end = if eof && !spec.tty { wire::message(wire::END, b".") } else { Vec::new() };
    let message = [wire::message(wire::KEYS, text.as_bytes()), end].concat();
    let asked = stream
        .set_write_timeout(Some(TAKEN_WITHIN))
        .and_then(|()| stream.set_read_timeout(Some(TAKEN_WITHIN)))
        .and_then(|()| stream.write_all(&message))
        .and_then(|()| stream.shutdown(Shutdown::Write));
    match asked.map(|()| is_taken(&stream, spec.tty)) {
        Ok(Some(true)) => Ok(false),
        Ok(None) => Ok(true),
        Ok(Some(false)) | Err(_) => Err(closed()),
    }
}

/// Whether the owner has taken what was sent. None where it has not said so in time.
fn is_taken(mut stream: &UnixStream, is_terminal: bool) -> Option<bool> {
    let (mut heard, mut buffer) = (Vec::new(), [0; 4 << 10]);
    loop {
        match stream.read(&mut buffer) {
            // A terminal says nothing but what is shown at it.
            Ok(0) => return Some(is_terminal || heard.first() == Some(&wire::TAKEN)),
            Ok(read) => heard.extend_from_slice(&buffer[..read.min(1)]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Some(is_terminal),
            Err(_) => return None,
        }
    }
}

/// What a run has written after a place, and where that ends. From its end where no place is named.
async fn page(context: &Context, run: RunId, after: Option<String>) -> Option<(String, String)> {
    let lines = after.is_none().then_some(1);
    let output = Output { run: run.to_string(), lines, cursor: after, text: true, limit: BYTES, ..Output::default() };
    output.operate(context).await.ok().map(crate::operations::output::Written::into_page)
}

/// What a run writes after a place: until it is silent for a moment, or for as long as is watched.
async fn answer(
    context: &Context,
    registry: &Registry,
    run: RunId,
    from: String,
    watch: Duration,
) -> Result<Option<String>, Error> {
    let clock = registry.clock();
    let began = clock.awake();
    let watch = context.timeout().into_iter().chain([watch]).min().unwrap_or(watch);
    let (mut said, mut changed) = (None, began);
    loop {
        context.pass(0, 1)?;
        let now = clock.awake();
        let text = page(context, run, Some(from.clone())).await.map(|(text, _)| text).filter(|text| !text.is_empty());
        if text != said {
            (said, changed) = (text, now);
        }
        let is_silent = said.is_some() && now.saturating_sub(changed) >= SILENT;
        if is_silent || now.saturating_sub(began) >= watch {
            return Ok(said);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(signal) = self.signal {
            writeln!(f, "{} was sent signal {signal}", self.id)?;
        } else {
            let waits = if self.waits { "; it waits behind what the command has not read" } else { "" };
            writeln!(f, "{} was sent {} bytes{waits}", self.id, self.bytes)?;
        }
        self.output
            .iter()
            .flat_map(|output| output.lines())
            .try_for_each(|line| writeln!(f, "{}", crate::ui::plain(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_number() {
        for (text, signal) in [("HUP", 1), ("sigusr1", 10), ("SIGTERM", 15), ("9", 9), ("64", 64)] {
            assert_eq!(text.parse(), Ok(SignalName(signal)), "{text}");
        }
        for text in ["", "0", "65", "-1", "SIG", "MINE"] {
            assert!(text.parse::<SignalName>().is_err(), "{text}");
        }
    }
}
