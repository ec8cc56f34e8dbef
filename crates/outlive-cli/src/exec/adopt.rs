//! `outlive adopt`: takes over what lives on of a run whose owner is gone, and follows it to its end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::{ArgMatches, Args, Command};
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::host;
use outlive::logs::{Growth, LogPolicy, Stream};
use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::policy::TreePolicy;
use outlive::registry::LogDirectory;
use outlive::registry::Registry;
use outlive::run::Exit;
use serde_json::json;

use super::child::{self, Asked, Ended, bell};
use super::declared;
use super::detach::Report;
use super::follow::Following;
use super::memory::Shield;
use super::own::note_final;
use super::recording::Recording;
use super::signals::Signals;
use super::streams::{Copying, Way};
use super::usage::Meter;
use super::watches::{Leash, Watches};
use super::{hooks, keep_log, leave_log, prepare, recorded_badly, refuse, remark};
use crate::call::{Context, Effect, SCHEMA};
use crate::lookup::located::{RegistryRef, locate_one};
use crate::ui::{say_line, talk};

/// The verb.
pub const NAME: &str = "adopt";

/// How long the parent of the command may take to collect it, before its exit status is given up.
const COLLECTED_WITHIN: Duration = Duration::from_secs(2);

/// Take over a run whose owner died and whose processes still run
///
/// This call becomes the owner of the run: it sends heartbeats, accepts cancel requests and follows the run to its
/// end. The exit status is the command's, where the kernel still reports it (Linux 6.15 and later); otherwise the run
/// has failed with `exit_unknown`. Refused while the owner is alive, and where no process is left.
#[derive(Args)]
struct Adopt {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    run: String,
    /// Follow it in the background, independent of this terminal, and print the id
    #[arg(short, long)]
    detach: bool,
}

/// The command's flags and help.
pub fn command() -> Command {
    Adopt::augment_args(Command::new(NAME))
        .after_help("Examples:\n  outlive adopt train\n  outlive adopt -d train && outlive wait train")
}

/// Takes over the run that the flags name, with the signals blocked that `mask` says. With a `report` this is its new
/// owner, in the background.
pub fn run(matches: &ArgMatches, context: &Context, json: bool, mask: SigSet, report: Option<Report>) -> u8 {
    let prepared = prepare(matches, json, mask, report.as_ref(), |input: &Adopt| input.detach);
    let (input, signals) = match prepared {
        Ok(prepared) => prepared,
        Err(status) => return status,
    };
    match pollster::block_on(take(&input, context)) {
        Ok((policy, registry, handle)) => {
            match report {
                Some(report) => report.owned(handle.id()),
                None if json => say_line(&json!({ "schema": SCHEMA, "id": handle.id() }).to_string()),
                None => talk(&format!("outlive: adopted {}, and follows it to its end\n", handle.id())),
            }
            let exit = supervise(&registry, handle, &policy, signals, json);
            pollster::block_on(registry.close());
            exit.map_or(1, child::exit)
        }
        Err(error) => refuse(&error, json, report),
    }
}

async fn take(input: &Adopt, context: &Context) -> Result<(LogPolicy, Registry, RunHandle), Error> {
    let (RegistryRef { registry, context: there }, seen) = locate_one(context, &input.run, Effect::Write).await?;
    // Its registry says how much is kept, and what cannot be read there is said before anything is taken over.
    let policy = there.as_deref().unwrap_or(context).log_policy()?;
    let handle = registry.adopt(seen.run.id).await?;
    Ok((policy, registry, handle))
}

/// Follows the run to its end, and puts that on record. Answers with how the command ended, where that is known.
fn supervise(
    registry: &Registry,
    handle: RunHandle,
    policy: &LogPolicy,
    mut signals: Signals,
    json: bool,
) -> Option<Exit> {
    let _shield = Shield::raise();
    let run = handle.run();
    let stops: Arc<Mutex<_>> = Arc::default();
    let rung = bell(&handle, &stops);
    let watches = Watches::begin_or_stop(registry, &run, Leash::of(&run), rung.as_ref());
    let recording = record(registry, &handle, policy);
    let copying = Copying::start([Way::Own; 3], &recording).and_then(|(mut copying, _)| {
        let growth = Growth::new()?;
        if recording.watch(&growth) {
            copying.follow(&recording, &growth)?;
        }
        Ok(copying)
    });
    let (command, is_collected) = match registry.command(&run).map(host::HeldCommand::hold) {
        Some(host::Noted::Held(command)) => (Some(command), false),
        Some(host::Noted::Collected) => (None, true),
        Some(host::Noted::Unknown) | None => (None, false),
    };
    let mut asked = Asked::default();
    if let Some(tree) = registry.tree(&run) {
        let (stops, rung) = (&*stops, rung.as_ref());
        let mut meter = Meter::begin(registry, &handle);
        let (command, signals) = (command.as_ref(), &mut signals);
        let meter = Some((&mut meter, &handle));
        let watches = &watches;
        let mut following = Following { registry, tree, command, signals, stops, rung, watches, meter };
        if !is_collected {
            following.wait(&mut asked);
        }
        if (command.is_some() || is_collected) && asked.stop.is_none() && asked.own.is_none() {
            match run.spec.policy.tree {
                TreePolicy::Keep => {}
                TreePolicy::End => following.tree.end(child::GRACE),
                TreePolicy::Wait => {
                    following.command = None;
                    following.wait(&mut asked);
                }
            }
        }
        following.tree.remove_group();
    }
    let exit = command.as_ref().and_then(|command| command.exit(COLLECTED_WITHIN));
    let ended = Ended::of_another(exit, &asked).unless_declared(declared::take(registry, &run), &asked);
    if let Ok(copying) = copying {
        copying.stop();
    }
    let lost = leave_log(registry, &run, &recording);
    let recorded = match &ended.end {
        Some(end) => pollster::block_on(handle.end(None, end.clone(), exit)),
        None => Ok(Persisted::Committed),
    };
    note_final(registry, run.id, ended.end.as_ref(), &recorded);
    hooks::tell_end(registry, run.id);
    remark([ended.talk, lost, recorded_badly(recorded)], json);
    exit
}

/// Goes on with the log of a command that writes into it by itself. One that wrote to its owner has no reader any more.
fn record(registry: &Registry, handle: &RunHandle, policy: &LogPolicy) -> Recording {
    let run = handle.run();
    let kept = |logs: LogDirectory| matches!(logs.read(run.id, run.attempt), Ok(Some(_)));
    if !registry.logs().is_some_and(kept) {
        return Recording::new(None);
    }
    let recording = keep_log(registry, handle, policy);
    for stream in Stream::BOTH {
        drop(recording.file(stream));
    }
    recording
}
