//! `outlive run`: starts a command, owns its run, and ends as the command ended.
//!
//! The wrapper does as little as it can: it waits. The keeper beats on its own thread, the command has its own
//! standard streams, and nothing of ours lies between it and its terminal.

mod child;
mod signals;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::policy::OrphanPolicy;
use outlive::registry::Registry;
use outlive::run::{self, Arg, Exit, Key, Spec};
use outlive::runtime::handle::{Recorded, RunHandle};
use outlive::runtime::reaper::Reaper;
use outlive::time::parse_duration;

use self::child::{Child, Ended};
use self::signals::Signals;
use crate::cli::{fail, talk};
use crate::operations::ps::parse_label;
use crate::settings::Context;
use crate::terminal::plain;

/// The verb.
pub const NAME: &str = "run";

/// Run a command, so that it is known, watched and can be cancelled
///
/// The command is executed as given, without a shell, with the standard streams and the terminal of this call. The exit
/// status is the command's own.
#[derive(Args)]
struct Run {
    /// What to call it; need not be unique
    #[arg(long)]
    name: Option<String>,
    /// What sort of work it is
    #[arg(long, default_value = "command")]
    kind: String,
    /// A mark to find it by (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// End it after this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Call it stalled after this long without progress
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    stall_after: Option<Duration>,
    /// End it, with all its processes, if its owner hangs for this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    hung_after: Option<Duration>,
    /// Refuse to start (status 105) while another run holds this key (repeatable)
    #[arg(long = "lock", value_name = "KEY")]
    locks: Vec<String>,
    /// Refuse to start (status 105) while N runs or more hold this key (repeatable)
    #[arg(long = "limit", value_name = "KEY=N")]
    limits: Vec<String>,
    /// What becomes of it if its owner dies
    #[arg(long, value_enum, default_value_t = Orphans::Dead)]
    orphans: Orphans,
    /// Store the program's name without its arguments; the run cannot be resumed then
    #[arg(long)]
    no_argv: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Orphans {
    /// It is dead and can be resumed
    Dead,
    /// It failed
    Fail,
    /// It waits to be claimed again
    Requeue,
}

/// The command's flags and help.
pub fn command() -> Command {
    Run::augment_args(Command::new(NAME)).after_help(
        "Examples:\n  outlive run -- python train.py\n  outlive run --name nightly --timeout 6h --lock db -- ./backup.sh",
    )
}

/// Runs the command that the flags name.
pub fn run(matches: &ArgMatches, context: &Context, json: bool) -> ExitCode {
    // Before anything starts a thread: signals are for the one that waits.
    let signals = match Signals::take() {
        Ok(signals) => signals,
        Err(error) => return fail(&Error::Invalid(format!("signals cannot be waited for: {error}")), json),
    };
    let registered = Run::from_arg_matches(matches)
        .map_err(|error| Error::Invalid(error.to_string()))
        .and_then(|input| Ok((pollster::block_on(register(&input, context))?, input.argv)));
    match registered {
        Ok(((registry, handle), argv)) => {
            let exit = supervise(&registry, handle, &argv, signals);
            pollster::block_on(registry.close());
            child::exit(exit)
        }
        Err(error) => fail(&error, json),
    }
}

async fn register(input: &Run, context: &Context) -> Result<(Registry, RunHandle), Error> {
    let policy = context.policy(&input.kind)?;
    let registry = context.registry().await?;
    let mut spec = Spec::new(input.kind.clone(), registry.me().clone());
    spec.name = input.name.clone();
    for label in &input.labels {
        let (key, value) = parse_label(label)?;
        spec.labels.insert(key, value);
    }
    spec.keys = input.locks.iter().map(|lock| Key { name: lock.clone(), limit: 1 }).collect();
    for limit in &input.limits {
        let parsed = limit
            .rsplit_once('=')
            .and_then(|(name, limit)| Some(Key { name: name.into(), limit: limit.parse().ok()? }));
        spec.keys.push(parsed.ok_or_else(|| Error::Invalid(format!("`{limit}` is not a limit such as gpu=2")))?);
    }
    spec.policy = policy;
    let limits = &mut spec.policy.limits;
    limits.timeout = input.timeout.or(limits.timeout);
    limits.stall_after = input.stall_after.or(limits.stall_after);
    limits.hung_after = input.hung_after.or(limits.hung_after);
    spec.policy.orphans = match input.orphans {
        Orphans::Dead => OrphanPolicy::Dead,
        Orphans::Fail => OrphanPolicy::Fail,
        Orphans::Requeue => OrphanPolicy::Requeue,
    };
    let cwd = std::env::current_dir().map_or_else(|_| Arg::Text(String::new()), |cwd| cwd.as_os_str().into());
    spec.command = Some(run::Command { argv: input.argv.iter().map(|word| word.as_os_str().into()).collect(), cwd });
    spec.withheld = input.no_argv.then_some(run::Withheld::Arguments);
    let handle = match registry.start(spec.clone()).await {
        // A holder that is dead must not keep the living out.
        Err(Error::KeyBusy { holders, .. }) => {
            Reaper::new(registry.worker()).pass_over(&registry, Filter::of(holders)).await?;
            registry.start(spec).await?
        }
        started => started?,
    };
    Ok((registry, handle))
}

/// Starts the command, waits for it, and puts its end on record. Answers with how this process should end.
fn supervise(registry: &Registry, handle: RunHandle, argv: &[OsString], signals: Signals) -> Exit {
    let ended = match Child::start(registry, &handle, argv) {
        Ok(child) => child.wait(registry, &handle, signals),
        Err(error) => Ended::not_started(&argv[0], &error),
    };
    let recorded = match &ended.end {
        Some(end) => pollster::block_on(handle.end(end.clone(), Some(ended.exit))),
        None => Ok(Recorded::Now),
    };
    for line in [ended.talk, recorded_badly(recorded)].into_iter().flatten() {
        talk(&format!("outlive: {line}\n"));
    }
    ended.leave_by.unwrap_or(ended.exit)
}

/// What to tell about a result that is not on record, if it is not.
fn recorded_badly(recorded: Result<Recorded, Error>) -> Option<String> {
    match recorded {
        Ok(Recorded::Now) => None,
        Ok(Recorded::Later) => {
            Some("the registry cannot be written; the result is kept, and recorded by the next `outlive run`, `cancel`, `reap` or `doctor --fix`".into())
        }
        Err(error) => Some(format!("the result is not on record: {}", plain(&error.to_string()))),
    }
}
