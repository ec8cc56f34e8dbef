//! `outlive run`: starts a command, owns its run, and ends as the command ended.
//!
//! The wrapper does as little as it can: it waits. The keeper beats on its own thread; what the command writes is
//! copied on others, where it is to be kept and does not go to a file anyway.

pub mod adopt;
pub mod attach;
mod child;
mod contain;
mod declared;
pub mod descriptors;
pub mod detach;
pub mod flags;
mod follow;
mod glob;
pub mod hooks;
mod input;
pub mod line_search;
mod memory;
pub mod own;
pub mod ports;
mod pty;
mod readers;
mod ready;
mod recording;
mod shim;
pub mod signals;
pub mod sockets;
pub mod spawn;
pub mod start;
pub mod step;
mod streams;
pub mod take_up;
mod tree;
mod usage;
mod viewers;
mod watches;

use std::ffi::OsString;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::sys::signal::SigSet;
use outlive::error::{Code, Error};
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::logs::LogPolicy;
use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::ownership::reaper::Reaper;
use outlive::redact::Redactor;
use outlive::registry::Registry;
use outlive::run::{self, NAME_LIMIT};

use self::detach::Report;
use self::flags::SpecFlags;
use self::own::{Job, Owning};
use self::ports::Leases;
use self::recording::Recording;
use self::signals::Signals;
use self::start::{Begun, LeashTo, RunFlags};
use self::watches::Leash;
use crate::call::{Context, body, fail};
use crate::ui::run_view::RunView;
use crate::ui::{plain, talk};

/// The verb.
pub const NAME: &str = "run";

/// Run a command and track it
///
/// The command is executed as given, without a shell, with the standard streams and the terminal of this call. The
/// exit status is the command's own and decides the outcome of the run. Signals are forwarded: a command that handles
/// a signal and exits has succeeded or failed by its exit status; only a command that died of the signal is
/// interrupted.
#[derive(Debug, Args)]
struct Run {
    /// Run in the background, independent of this terminal, and print the id
    #[arg(short, long)]
    detach: bool,
    #[command(flatten)]
    flags: RunFlags,
    /// The user of a server who asked for it. Said by the server itself.
    #[arg(long, hide = true)]
    requested_by: Option<String>,
    /// The leader of the session of the caller. This program itself sets it.
    #[arg(long, hide = true)]
    session_leader: Option<u32>,
}

/// The command's flags and help.
pub fn command() -> Command {
    let command = Run::augment_args(Command::new(NAME)).mut_arg("argv", |argv| argv.required(true));
    command.override_usage("outlive run [OPTIONS] [--] <COMMAND>...").after_help(
        "Examples:\n  outlive run -- python train.py\n  outlive run --name nightly --timeout 6h --lock db -- ./backup.sh\n  \
         outlive run --retry 3 --backoff 10s -- ./flaky-upload.sh\n  \
         outlive run -d --name dev --port web --ready-http 'http://127.0.0.1:$PORT/' -- npm run dev",
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

/// Runs the command that the flags name, with the signals blocked that `mask` says. With a `report` this is the owner
/// of a detached run.
pub fn run(matches: &ArgMatches, context: &Context, json: bool, mask: SigSet, report: Option<Report>) -> u8 {
    let prepared = prepare(matches, json, mask, report.as_ref(), |input: &Run| input.detach);
    match prepared {
        Ok((input, signals)) => own(input, context, json, signals, report),
        Err(status) => status,
    }
}

/// The registry and the command of a call that says nothing else, `outlive run -- COMMAND`: so most are, and to read
/// one needs no table of flags.
pub fn plain_call(words: &[OsString]) -> Option<(Option<String>, &[OsString])> {
    let (registry, rest) = match words.get(1..)? {
        [flag, registry, rest @ ..] if flag == "--registry" => (Some(registry.to_str()?.to_owned()), rest),
        rest => (None, rest),
    };
    match rest {
        [verb, dashes, argv @ ..] if verb == NAME && dashes == "--" && !argv.is_empty() => Some((registry, argv)),
        _ => None,
    }
}

/// Runs a command about which nothing else is said.
pub fn run_plainly(argv: &[OsString], context: &Context, mask: SigSet) -> u8 {
    match Signals::take(mask) {
        Ok(signals) => own(plainly(argv), context, false, signals, None),
        Err(error) => fail(&Error::Invalid(format!("signals cannot be waited for: {error}")), false),
    }
}

fn plainly(argv: &[OsString]) -> Run {
    let spec = SpecFlags { argv: argv.to_vec(), ..SpecFlags::default() };
    Run { detach: false, flags: RunFlags { spec, ..RunFlags::default() }, requested_by: None, session_leader: None }
}

fn own(mut input: Run, context: &Context, json: bool, signals: Signals, report: Option<Report>) -> u8 {
    let alone = [
        (
            input.flags.spec.tty,
            "a run in the foreground has the terminal that it is started at: `--tty` goes with `-d`",
        ),
        (input.flags.spec.stdin, "a run in the foreground has the input of this call: `--stdin` goes with `-d`"),
    ];
    if let Some((_, error)) = alone.into_iter().find(|(is_set, _)| *is_set && report.is_none()) {
        return fail(&Error::Invalid(error.into()), json);
    }
    tree::make_room_for_lock();
    let registered = input.leash(report.is_some()).and_then(|leash| {
        let policy = context.log_policy()?;
        Ok((leash, policy, pollster::block_on(register(&mut input, context, report.is_some()))?))
    });
    match registered {
        Ok((leash, policy, Registered::Own(registry, handle, _leases))) => {
            // They could be read a moment ago.
            let spec = &input.flags.spec;
            let listed = spec.listed_variables().unwrap_or_default();
            let job = Job::new(spec.argv(), spec.notify.clone()).found_by(&handle.run());
            let job = job.with_variables(spec.mode(), listed).leashed(leash);
            let detached = report.is_some();
            let mut owning =
                Owning { registry: &registry, policy: &policy, signals, detached, json, stays: false, growth: None };
            let exit = owning.see_through(handle, job, report, &mut own::record_end);
            pollster::block_on(registry.close_leaking());
            child::exit(exit)
        }
        Ok((_, _, Registered::Held(begun))) => report.map_or(0, |report| report.held(&begun)),
        Err(error) => refuse(&error, json, report),
    }
}

/// The flags of a call that is to own a run, and the signals of its process. Where another process is to own it
/// instead, or none can, the status to end with.
fn prepare<Input: FromArgMatches>(
    matches: &ArgMatches,
    json: bool,
    mask: SigSet,
    report: Option<&Report>,
    detaches: impl FnOnce(&Input) -> bool,
) -> Result<(Input, Signals), u8> {
    let invalid = |error: String| fail(&Error::Invalid(error), json);
    let input = Input::from_arg_matches(matches).map_err(|error| invalid(error.to_string()))?;
    if report.is_none() && detaches(&input) {
        return Err(detach::start(json, &mask, session_leader()));
    }
    // Before anything starts a thread: signals are for the one that waits.
    let signals = Signals::take(mask).map_err(|error| invalid(format!("signals cannot be waited for: {error}")))?;
    Ok((input, signals))
}

/// Tells the caller why there is no run to own.
fn refuse(error: &Error, json: bool, report: Option<Report>) -> u8 {
    match report {
        Some(report) => report.refused(error),
        None => fail(error, json),
    }
}

/// What came of registering a run.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, and it is taken apart at once")]
enum Registered {
    /// The run is ours, with the ports that it was leased.
    Own(Registry, RunHandle, Leases),
    /// Another run holds its unique key.
    Held(Begun),
}

impl Run {
    /// The process that the run ends with. The owner of a detached run has a session of its own: only the call that
    /// started it can say which one is meant.
    fn leash(&self, detached: bool) -> Result<Option<Leash>, Error> {
        let pid = match self.flags.leash {
            None | Some(LeashTo::None) => return Ok(None),
            Some(LeashTo::Process(pid)) => pid,
            Some(LeashTo::Session) => {
                let leader = if detached { self.session_leader } else { session_leader() };
                leader.ok_or_else(|| {
                    Error::Invalid("the session of this call has no leader here: `--leash PID` names a process".into())
                })?
            }
        };
        Leash::to(pid).map(Some)
    }
}

/// The leader of the session that this process belongs to. `None` where it is outside this pid namespace, as in most
/// containers: the kernel then answers 0.
fn session_leader() -> Option<u32> {
    let leader = nix::unistd::getsid(None).ok()?;
    u32::try_from(leader.as_raw()).ok().filter(|pid| *pid > 0)
}

async fn register(input: &mut Run, context: &Context, detached: bool) -> Result<Registered, Error> {
    let (registry, elsewhere) = match context.registry().await {
        Err(error) => (context.instead(&error).await?.ok_or(error)?, true),
        found => (found?, false),
    };
    let registry = registry.defer_heartbeat();
    let leases = input.flags.prepare()?;
    let mut spec = input.flags.spec.spec(&registry, context)?;
    if let Some(user) = &input.requested_by {
        spec.labels.insert("requested_by".into(), user.chars().take(NAME_LIMIT).collect());
    }
    if elsewhere {
        // What it was meant for, so that it is found by that.
        spec.labels.insert("registry".into(), context.place()?.chars().take(NAME_LIMIT).collect());
    }
    let handle = match registry.start(spec.clone()).await {
        // A holder that is dead must not keep the living out.
        Err(Error::KeyBusy { holders, .. }) => {
            hooks::reap(&registry, &mut Reaper::new(registry.worker()), Filter::of(holders)).await?;
            registry.start(spec).await
        }
        started => started,
    };
    match handle {
        Ok(handle) => Ok(Registered::Own(registry, handle, leases)),
        Err(error) => match start::holder(&error) {
            Some(holder) => {
                let held = Begun::of(&registry, &registry.glance(holder).await?.run, false);
                // A caller that starts a run in the background gets the one that is there.
                if detached { Ok(Registered::Held(held)) } else { Err(start::held(error, &held)) }
            }
            None => Err(error),
        },
    }
}

/// Says what there is to say about an end: to people, or to programs as the body of an error.
fn remark<const N: usize>(remarks: [Option<(Code, String)>; N], json: bool) {
    for (code, text) in remarks.into_iter().flatten() {
        match json {
            true => talk(&format!("{}\n", body(code, &Redactor::default().text(&text), None))),
            false => talk(&format!("error: {}\n", plain(&text))),
        }
    }
}

/// Starts the command that is called with the end of a run, and does not wait for it.
fn notify(registry: &Registry, run: RunId, command: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::process::CommandExt;
    let seen = pollster::block_on(registry.glance(run)).map_err(std::io::Error::other)?;
    let view = serde_json::to_vec(&RunView::new(&seen, registry))?;
    let mut shell = std::process::Command::new("/bin/sh");
    // A group of its own: what ends this call does not end it.
    let mut started = shell.args(["-c", command]).process_group(0).stdin(std::process::Stdio::piped()).spawn()?;
    // One that does not want to read need not.
    let _ = started.stdin.take().map(|mut stdin| stdin.write_all(&view));
    Ok(())
}

/// Collects what has ended of the processes that this one started, or that became its own.
pub fn collect_ended() {
    tree::collect_orphans(&[]);
}

/// Where what the command writes is kept.
fn keep_log(registry: &Registry, handle: &RunHandle, policy: &LogPolicy) -> Recording {
    match registry.logs().map(|logs| logs.write(&handle.run(), policy)).transpose() {
        Ok(log) => Recording::new(log),
        Err(error) => Recording::lost(&error),
    }
}

/// Writes down what is left of the log of an attempt that is over, and removes the files about its processes. In this
/// order: what tells of them lies where the log does, and what nothing is left in goes with it.
fn leave_log(registry: &Registry, run: &run::Run, recording: &Recording) -> Option<(Code, String)> {
    let lost = recording.finish(|| registry.is_written_on(run));
    registry.leave_tree(run);
    lost.map(|lost| (Code::Unavailable, lost))
}

/// Keeps nothing, and notes that for later readers.
fn keep_no_log(registry: &Registry, handle: &RunHandle) -> Recording {
    // A reader that does not learn it sees that there is none.
    let _ = registry.logs().map(|logs| logs.decline(&handle.run()));
    Recording::new(None)
}

/// What to tell about a result that is not on record, if it is not.
fn recorded_badly(recorded: Result<Persisted, Error>) -> Option<(Code, String)> {
    match recorded {
        Ok(Persisted::Committed) => None,
        Ok(_) => {
            Some((Code::Unavailable, "the registry cannot be written; the result is kept, and recorded by the next `outlive run`, `cancel`, `reap` or `doctor --fix`".into()))
        }
        Err(error) => Some((error.code(), format!("the outcome could not be recorded: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_call_is_read_as_any_other() {
        let read = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        for line in ["outlive run -- true", "outlive --registry sqlite:/r run -- make -j --name x -- --json"] {
            let words = read(line);
            let (registry, argv) = plain_call(&words).unwrap();
            let matches = crate::cli::command(Some(NAME)).try_get_matches_from(&words).unwrap();
            assert_eq!(matches.get_one::<String>("registry"), registry.as_ref(), "{line}");
            let whole = Run::from_arg_matches(matches.subcommand_matches(NAME).unwrap()).unwrap();
            assert_eq!(format!("{:?}", plainly(argv)), format!("{whole:?}"), "{line}");
        }
        for line in
            ["outlive run true", "outlive run --", "outlive run -d -- true", "outlive --json run -- true", "outlive"]
        {
            assert!(plain_call(&read(line)).is_none(), "{line}");
        }
    }
}
