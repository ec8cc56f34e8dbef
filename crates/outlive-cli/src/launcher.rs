//! `outlive run`: starts a command, owns its run, and ends as the command ended.
//!
//! The wrapper does as little as it can: it waits. The keeper beats on its own thread; what the command writes is copied
//! on others, where it is to be kept and does not go to a file anyway.

pub mod adopt;
mod child;
mod detach;
mod follow;
mod pty;
mod readers;
mod recording;
mod shim;
mod signals;
mod spawn;
mod streams;
mod tree;

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::logs::LogPolicy;
use outlive::policy::{OnLeaseLoss, OrphanPolicy, TreePolicy};
use outlive::registry::Registry;
use outlive::run::{self, Arg, Exit, Key, Spec};
use outlive::runtime::handle::{Recorded, RunHandle};
use outlive::runtime::reaper::Reaper;
use outlive::time::parse_duration;

use self::child::{Child, Ended};
use self::detach::Report;
use self::recording::Recording;
use self::signals::Signals;
use crate::cli::{fail, talk};
use crate::operations::ps::parse_label;
use crate::run_view::RunView;
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
    #[arg(long, value_enum, default_value_t = OnDeath::Dead)]
    on_death: OnDeath,
    /// What becomes of processes that live on when the command has ended
    #[arg(long, value_enum, default_value_t = Orphans::Keep)]
    orphans: Orphans,
    /// The run ends with the last of its processes; the exit status is the command's
    #[arg(long, conflicts_with = "orphans")]
    wait_tree: bool,
    /// What it does when its registry cannot be reached for so long that somebody else may take it over (default: it stops
    /// if it holds a key, and goes on otherwise)
    #[arg(long, value_enum)]
    on_lease_loss: Option<LeaseLoss>,
    /// Have a shell execute this when it has ended, with the run as JSON on its standard input
    #[arg(long, value_name = "COMMAND")]
    notify: Option<String>,
    /// Leave it running in the background, whatever becomes of this terminal, and say its id
    #[arg(short, long)]
    detach: bool,
    /// Keep nothing of what it writes, and stay out of its way
    #[arg(long)]
    no_log: bool,
    /// Have a shell execute it: the words are joined as they are
    #[arg(long)]
    shell: bool,
    /// Store the program's name without its arguments; the run cannot be resumed then
    #[arg(long)]
    no_argv: bool,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    argv: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Orphans {
    /// They live on, as they would without outlive
    Keep,
    /// They are asked to end, and killed if they do not, before the run's end is put on record
    End,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnDeath {
    /// It is dead and can be resumed
    Dead,
    /// It failed
    Fail,
    /// It waits to be claimed again
    Requeue,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LeaseLoss {
    /// It goes on until it is told that it is lost
    Continue,
    /// It stops before anyone may take it over
    Stop,
}

impl Run {
    /// The words to execute.
    fn argv(&self) -> Vec<OsString> {
        if self.shell {
            ["/bin/sh".into(), "-c".into(), self.argv.join(OsStr::new(" "))].into()
        } else {
            self.argv.clone()
        }
    }
}

/// The command's flags and help.
pub fn command() -> Command {
    Run::augment_args(Command::new(NAME)).override_usage("outlive run [OPTIONS] [--] <COMMAND>...").after_help(
        "Examples:\n  outlive run -- python train.py\n  outlive run --name nightly --timeout 6h --lock db -- ./backup.sh",
    )
}

/// What this program was started for, where it was started by itself.
pub enum Role {
    /// It was something else, and has done it.
    Done(u8),
    /// It is the owner of a detached run: these are its words, and this is whom it reports to.
    Detached(Vec<OsString>, Report),
}

/// Does what this program was started for, where it was started by itself.
pub fn role(words: &[OsString]) -> Option<Role> {
    let done = shim::main(words).or_else(|| streams::pass_on(words)).map(Role::Done);
    done.or_else(|| detach::role(words).map(|(words, report)| Role::Detached(words, report)))
}

/// Runs the command that the flags name, with the signals blocked that `mask` says. With a `report` this is the owner of a
/// detached run.
pub fn run(matches: &ArgMatches, context: &Context, json: bool, mask: SigSet, report: Option<Report>) -> u8 {
    let input = match Run::from_arg_matches(matches) {
        Ok(input) => input,
        Err(error) => return fail(&Error::Invalid(error.to_string()), json),
    };
    if input.detach && report.is_none() {
        return detach::start(json, &mask);
    }
    // Before anything starts a thread: signals are for the one that waits.
    let signals = match Signals::take(mask) {
        Ok(signals) => signals,
        Err(error) => return fail(&Error::Invalid(format!("signals cannot be waited for: {error}")), json),
    };
    tree::make_room_for_lock();
    let registered =
        context.log_policy().and_then(|policy| Ok((policy, pollster::block_on(register(&input, context))?)));
    match registered {
        Ok((policy, (registry, handle))) => {
            let exit = supervise(&registry, handle, &input, &policy, signals, report);
            pollster::block_on(registry.close());
            child::exit(exit)
        }
        Err(error) => match report {
            Some(report) => report.refused(&error),
            None => fail(&error, json),
        },
    }
}

async fn register(input: &Run, context: &Context) -> Result<(Registry, RunHandle), Error> {
    let policy = context.policy(&input.kind)?;
    let registry = context.registry().await?.beating_later();
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
    spec.policy.on_lease_loss = input.on_lease_loss.map_or(spec.policy.on_lease_loss, |choice| {
        Some(match choice {
            LeaseLoss::Continue => OnLeaseLoss::Continue,
            LeaseLoss::Stop => OnLeaseLoss::Stop,
        })
    });
    spec.policy.orphans = match input.on_death {
        OnDeath::Dead => OrphanPolicy::Dead,
        OnDeath::Fail => OrphanPolicy::Fail,
        OnDeath::Requeue => OrphanPolicy::Requeue,
    };
    spec.policy.tree = match input.orphans {
        _ if input.wait_tree => TreePolicy::Wait,
        Orphans::Keep => TreePolicy::Keep,
        Orphans::End => TreePolicy::End,
    };
    let cwd = std::env::current_dir().map_or_else(|_| Arg::Text(String::new()), |cwd| cwd.as_os_str().into());
    spec.command = Some(run::Command { argv: input.argv().iter().map(|word| word.as_os_str().into()).collect(), cwd });
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
fn supervise(
    registry: &Registry,
    handle: RunHandle,
    input: &Run,
    policy: &LogPolicy,
    signals: Signals,
    report: Option<Report>,
) -> Exit {
    let argv = input.argv();
    let recording = if input.no_log { Recording::new(None) } else { keep_log(registry, &handle, policy) };
    let started = Child::start(registry, &handle, &argv, report.is_some(), recording.clone(), &signals);
    // While the command gets going. Nothing is killed for memory before it has taken any.
    let oom_kills = tree::oom_kills();
    let mut ended = match started {
        Ok(child) => {
            if let Some(report) = report {
                report.started(handle.id());
            }
            if let Some(local) = registry.local() {
                local.foresee_end(handle.id());
            }
            child.wait(registry, &handle, signals)
        }
        Err(error) => {
            let ended = Ended::not_started(&argv[0], &error);
            if let Some(report) = report {
                report.not_started(handle.id(), ended.exit, ended.talk.as_deref());
            }
            ended
        }
    };
    if ended.by_kill() && tree::oom_kills() > oom_kills {
        ended.blame_memory();
    }
    let unread = ended.unread.take();
    let lost = recording.finish();
    let run = handle.id();
    let recorded = match &ended.end {
        Some(end) => pollster::block_on(registry.end_and_leave(handle, end.clone(), Some(ended.exit))),
        None => Ok(Recorded::Now),
    };
    if let Some(unread) = unread {
        unread.finish();
    }
    let unheard = input.notify.as_ref().and_then(|command| notify(registry, run, command).err());
    let unheard = unheard.map(|error| format!("nobody could be notified: {}", plain(&error.to_string())));
    for line in [ended.talk, lost, recorded_badly(recorded), unheard].into_iter().flatten() {
        talk(&format!("outlive: {line}\n"));
    }
    ended.exit
}

/// Starts the command that wants to know how a run has ended. Nobody waits for it.
fn notify(registry: &Registry, run: RunId, command: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    let seen = pollster::block_on(registry.get(run)).map_err(std::io::Error::other)?;
    let view = serde_json::to_vec(&RunView::new(&seen, registry))?;
    let mut shell = std::process::Command::new("/bin/sh");
    // A group of its own: what ends this call does not end it.
    let mut started = shell.args(["-c", command]).process_group(0).stdin(std::process::Stdio::piped()).spawn()?;
    // One that does not want to read need not.
    let _ = started.stdin.take().map(|mut stdin| stdin.write_all(&view));
    Ok(())
}

/// Where what the command writes is kept.
fn keep_log(registry: &Registry, handle: &RunHandle, policy: &LogPolicy) -> Recording {
    let log = registry.local().map(|local| local.write_logs(&handle.run(), policy)).transpose();
    match log {
        Ok(log) => Recording::new(log.map(|log| log.masking(Box::new(registry.redactor().clone())))),
        Err(error) => Recording::lost(&error),
    }
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
