//! `outlive logs`: shows what a run has written, and goes on while it writes.
//!
//! Like `run` it speaks to a terminal or a pipe for as long as it takes, so it is not in the table of operations.

mod screen;
mod tame;

use std::io;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use outlive::error::Error;
use outlive::lifecycle::health::RunStatus;
use outlive::logs::{LogReader, NoLog, Stream};
use outlive::registry::LogDirectory;
use outlive::registry::Registry;
use outlive::run::{End, StateName};
use outlive::store;
use outlive::store::sqlite::{Topic, Watch};
use outlive::time::{Clock, SystemClock, Timestamp, Towards, parse_moment};

use self::screen::Screen;
use crate::call::{Context, Effect, fail};
use crate::lookup::located::{RegistryRef, locate_one};
use crate::lookup::serving::Serving;
use crate::ui::run_view::RunView;
use crate::ui::typed::called;
use crate::ui::{plain, talk};

/// The verb.
pub const NAME: &str = "logs";
/// How many lines of what went before are shown to a new viewer.
const BEFORE: u64 = 20;

/// How often to look whether the run has ended: an owner that dies writes nothing that could wake us.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// How often to look where every write of the run notifies: an owner that dies writes nothing.
const LOOK_SELDOM: Duration = Duration::from_millis(500);

/// What is written is noted within milliseconds, by the watcher of the attempt. What is not noted for so long is
/// shown nevertheless: the watcher is gone.
const NOTED_WITHIN: Duration = Duration::from_millis(250);

/// Print the output of a run
///
/// The run's standard output goes to standard output and its standard error to standard error; if only one of them is
/// selected, it goes to standard output. On a terminal, colours are kept and progress bars redraw their line; escape
/// sequences that move the cursor elsewhere or set titles are made visible, unless --raw is given.
#[derive(Debug, Default, Args)]
struct Logs {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    #[arg(default_value = "@last")]
    run: String,
    /// Follow the output until the run has ended
    #[arg(short, long)]
    follow: bool,
    /// Only its standard output
    #[arg(long, conflicts_with = "stderr")]
    stdout: bool,
    /// Only its standard error
    #[arg(long)]
    stderr: bool,
    /// This attempt, instead of its last
    #[arg(long, value_name = "N")]
    attempt: Option<u32>,
    /// Only what was written since a time such as 18:00, yesterday or 2026-11-15T09:30:00Z, or for so long, such as 10m
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only the last N lines
    #[arg(short = 'n', long = "lines", value_name = "N")]
    lines: Option<u64>,
    /// Begin each line with its time, as RFC 3339 in UTC
    #[arg(long)]
    timestamps: bool,
    /// Print the output unchanged, to a terminal too
    #[arg(long)]
    raw: bool,
    /// Exit with the exit status of the run, as `outlive wait` does
    #[arg(long)]
    exit_status: bool,
    /// It is expected to be in flight.
    #[arg(skip)]
    attached: bool,
}

fn since(text: &str) -> Result<Timestamp, Error> {
    parse_moment(text, SystemClock.now(), Towards::Past).map_err(|error| Error::Invalid(error.to_string()))
}

/// The command's flags and help.
pub fn command() -> Command {
    Logs::augment_args(Command::new(NAME)).after_help(
        "Examples:\n  outlive logs train\n  outlive logs -f --exit-status train\n  outlive logs --stderr --since 10m -n 20 train\n  outlive logs --timestamps --attempt 1 @last",
    )
}

/// Shows the last lines of a run and all that follow until it ends, for `outlive attach`.
pub fn attach(matches: &ArgMatches, context: &Context, json: bool) -> u8 {
    show(context, json, || {
        let run = matches.get_one::<String>("run").cloned().unwrap_or_default();
        Ok(Logs { run, follow: true, lines: Some(BEFORE), exit_status: true, attached: true, ..Logs::default() })
    })
}

/// Shows the logs that the flags name.
pub fn run(matches: &ArgMatches, context: &Context, json: bool) -> u8 {
    show(context, json, || Logs::from_arg_matches(matches))
}

fn show(context: &Context, json: bool, input: impl FnOnce() -> Result<Logs, clap::Error>) -> u8 {
    let shown = input()
        .map_err(|error| Error::Invalid(error.to_string()))
        .and_then(|input| pollster::block_on(input.show(context, json)));
    match shown {
        Ok(status) => status,
        Err(error) => fail(&error, json),
    }
}

/// Why showing a log ended early.
enum Trouble {
    /// It has no reader any more.
    Unread,
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The attempt whose output is meant, by default the last one, and where it is kept.
pub fn attempt_meant(
    registry: &Registry,
    seen: &RunStatus,
    attempt: Option<u32>,
) -> Result<(LogDirectory, u32), Error> {
    let Some(logs) = registry.logs() else {
        let why = "it ends with its process, or this host has no home for them";
        return Err(Error::Invalid(format!("`{}` keeps no logs: {why}", registry.shown())));
    };
    let attempts = seen.run.attempt;
    let attempt = attempt.unwrap_or(attempts);
    if attempt == 0 || attempt > attempts {
        let count = if attempts == 1 { "1 attempt".into() } else { format!("{attempts} attempts") };
        return Err(Error::Invalid(format!("run `{}` has {count}, and no attempt {attempt}", seen.run.id)));
    }
    check_host(&logs, registry, seen, attempt)?;
    Ok((logs, attempt))
}

/// Refuses to look here for what was written on another host, and says on which.
fn check_host(logs: &LogDirectory, registry: &Registry, seen: &RunStatus, attempt: u32) -> Result<(), Error> {
    let run = &seen.run;
    let owner = run.owner().or_else(|| run.ending().and_then(|ending| ending.owner.as_ref()));
    let host = owner.filter(|_| attempt == run.attempt).map(|owner| &owner.identity.vantage.host);
    match host {
        Some(host) if logs.is_of_host() && *host != registry.me().host && logs.read(run.id, attempt)?.is_none() => {
            let id = run.id;
            Err(Error::Invalid(format!(
                "the log of attempt {attempt} of run `{id}` is on host `{host}`: `outlive logs {id}` shows it there"
            )))
        }
        _ => Ok(()),
    }
}

impl Logs {
    async fn show(&self, context: &Context, json: bool) -> Result<u8, Error> {
        self.since.as_deref().map(since).transpose()?;
        let (RegistryRef { registry, .. }, seen) = locate_one(context, &self.run, Effect::Read).await?;
        let (logs, attempt) = attempt_meant(&registry, &seen, self.attempt)?;
        if self.attached && seen.is_over() && !json {
            let stands = RunView::unsigned(&seen, &registry).stands();
            talk(&format!("outlive: run `{}` has already ended: it {stands}\n", called(seen.run.id)));
        }
        match self.follow(&registry, &logs, seen, attempt, json).await {
            Ok(ended) => self.status(&ended, &registry),
            Err(Trouble::Unread) => Ok(0),
            Err(Trouble::Failed(error)) => Err(error),
        }
    }

    fn status(&self, ended: &RunStatus, registry: &Registry) -> Result<u8, Error> {
        if !self.exit_status {
            return Ok(0);
        }
        if !ended.is_over() {
            let id = ended.run.id;
            return Err(Error::Invalid(format!("run `{id}` has not ended; with `-f` its exit status is waited for")));
        }
        Ok(RunView::new(ended, registry).exit_status())
    }

    /// Shows what there is, and with `-f` what comes until the run has ended. Answers with the run as it was then.
    async fn follow(
        &self,
        registry: &Registry,
        logs: &LogDirectory,
        mut seen: RunStatus,
        mut attempt: u32,
        json: bool,
    ) -> Result<RunStatus, Trouble> {
        let mut screen = Screen::new(self.only(), self.timestamps, self.raw, json)?;
        let mut reader = None;
        let mut looked = registry.clock().awake();
        let mut serving = Serving::default();
        let watch = registry.local().and_then(|local| local.watch(&[Topic::Run(seen.run.id)]).ok());
        // Since when there is something that was not noted.
        let mut behind: Option<Duration> = None;
        loop {
            // Looked at before reading: what was written before the end is there by then.
            let now = registry.clock().awake();
            let is_notified = watch.as_ref().map(Watch::forget);
            let pause = if is_notified.is_some() { LOOK_SELDOM } else { LOOK_EVERY };
            if is_notified == Some(true) || now.saturating_sub(looked) >= pause {
                (seen, looked) = (registry.glance(seen.run.id).await?, now);
            }
            if self.follow {
                serving.tell(registry, &seen).await?;
            }
            let ended = seen.is_over() || seen.run.attempt > attempt;
            if reader.is_none() {
                reader = self.open(logs, &seen, attempt)?;
            }
            if let Some(reader) = &mut reader {
                reader.read_unnoted(ended || behind.is_some_and(|since| now.saturating_sub(since) >= NOTED_WITHIN));
                while let Some(piece) = reader.next_piece().map_err(unreadable)? {
                    screen.show(&piece)?;
                    behind = None;
                }
                behind = reader.has_unnoted().map_err(unreadable)?.then(|| behind.unwrap_or(now));
            }
            if ended || !self.follow && behind.is_none() {
                screen.end(reader.as_ref().and_then(LogReader::stopped).is_some())?;
                let is_empty = reader.as_ref().map_or(Ok(true), LogReader::is_empty).map_err(unreadable)?;
                if is_empty && !json {
                    talk(&format!("outlive: {}\n", nothing(logs, &seen, attempt, reader.is_some())?));
                }
                if !self.follow || self.attempt.is_some() || seen.run.attempt <= attempt {
                    return Ok(seen);
                }
                attempt = seen.run.attempt;
                reader = None;
                screen.say(&format!("attempt {attempt}"))?;
                continue;
            }
            if screen.is_unread() {
                return Err(Trouble::Unread);
            }
            match &mut reader {
                Some(reader) => reader.wait(LOOK_EVERY).map_err(unreadable)?,
                None => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    fn only(&self) -> Option<Stream> {
        match (self.stdout, self.stderr) {
            (true, _) => Some(Stream::Out),
            (_, true) => Some(Stream::Err),
            _ => None,
        }
    }

    /// The log of an attempt, where it is wanted from.
    fn open(&self, logs: &LogDirectory, seen: &RunStatus, attempt: u32) -> Result<Option<LogReader>, Trouble> {
        let Some(mut reader) = logs.read(seen.run.id, attempt)? else { return Ok(None) };
        if let Some(only) = self.only() {
            reader = reader.only(only);
        }
        if !self.follow {
            reader.stop_at_present().map_err(unreadable)?;
        }
        if let Some(since) = self.since.as_deref().map(since).transpose()? {
            reader.skip_before(since).map_err(unreadable)?;
        }
        if let Some(lines) = self.lines {
            reader.skip_to_last(lines).map_err(unreadable)?;
        }
        Ok(Some(reader))
    }
}

fn unreadable(error: io::Error) -> Error {
    Error::Store(store::Error::Unavailable(format!("the log cannot be read: {error}")))
}

/// Why there is no log, or with `is_there` nothing in it.
fn nothing(logs: &LogDirectory, seen: &RunStatus, attempt: u32, is_there: bool) -> Result<String, Error> {
    let id = seen.run.id;
    let is_last = seen.run.attempt == attempt;
    let ending = seen.run.ending().filter(|_| is_last);
    let failed_to_start = ending.and_then(|ending| match &ending.how {
        End::Failed(failure) if failure.error_type == "spawn" => Some(&failure.error_message),
        _ => None,
    });
    if seen.state == StateName::Pending && is_last {
        return Ok(format!("run `{id}` has not started yet"));
    }
    if ending.is_some_and(|ending| ending.started_at.is_none()) {
        return Ok(format!("run `{id}` was never started: it is {}", seen.state));
    }
    if let Some(why) = failed_to_start {
        return Ok(format!("attempt {attempt} of run `{id}` was never started: {}", plain(why)));
    }
    let is_over = seen.state.is_ended() || !is_last;
    let why = if is_there { NoLog::Unwritten } else { logs.why_none(id, attempt)? };
    Ok(match why {
        NoLog::Declined => {
            format!("attempt {attempt} of run `{id}` keeps no log: it was started with `--no-log` or a cap of 0")
        }
        NoLog::Removed if is_over => format!("the log of attempt {attempt} of run `{id}` has been removed"),
        NoLog::Unwritten if is_there && is_over => format!("attempt {attempt} of run `{id}` wrote nothing"),
        NoLog::Unwritten if is_there => format!("run `{id}` has written nothing so far"),
        _ if is_over => format!(
            "attempt {attempt} of run `{id}` left no log: it wrote nothing, or its output went straight to where its caller sent it"
        ),
        _ => format!(
            "run `{id}` has no log yet: it has written nothing so far, or its output goes straight to where its caller sends it"
        ),
    })
}
