//! Continues a run that was made earlier: as its owner, in the background.

use std::ffi::OsString;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::ownership::handle::RunHandle;
use outlive::ownership::reaper::Reaper;
use outlive::registry::{Registry, ResumeOptions};

use super::detach::Report;
use super::own::{Job, Owning, record_end};
use super::signals::Signals;
use super::{child, hooks, tree};
use crate::call::Context;

/// The word by which this program knows that it is to go on with a run.
pub const NAME: &str = "__own";

/// Goes on with a run. Called by outlive itself.
#[derive(Args)]
struct TakeUp {
    run: RunId,
    #[arg(long)]
    failed: bool,
    #[arg(long)]
    by_another: bool,
}

/// The arguments with which this program continues a run of a registry.
pub fn words(registry: &Registry, run: RunId, failed: bool, by_another: bool) -> Vec<OsString> {
    let flags = [(failed, "--failed"), (by_another, "--by-another")];
    let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag.into());
    let words = ["outlive".into(), NAME.into(), "--registry".into(), registry.url().into(), run.to_string().into()];
    words.into_iter().chain(flags).collect()
}

/// The command's flags.
pub fn command() -> Command {
    TakeUp::augment_args(Command::new(NAME)).hide(true)
}

/// Goes on with the run that the flags name.
pub fn run(matches: &ArgMatches, context: &Context, mask: SigSet, report: Option<Report>) -> u8 {
    let (Ok(input), Some(report)) = (TakeUp::from_arg_matches(matches), report) else { return 2 };
    let failed = |error: Error, report: Report| report.refused(&error);
    // Before anything starts a thread: signals are for the one that waits.
    let signals = match Signals::take(mask) {
        Ok(signals) => signals,
        Err(error) => return failed(Error::Invalid(format!("signals cannot be waited for: {error}")), report),
    };
    tree::make_room_for_lock();
    let taken = context.log_policy().and_then(|policy| Ok((policy, pollster::block_on(take(&input, context))?)));
    match taken {
        Ok((policy, (registry, handle, job))) => {
            let mut owning = Owning {
                registry: &registry,
                policy: &policy,
                signals,
                detached: true,
                json: false,
                stays: false,
                growth: None,
            };
            let exit = owning.see_through(handle, job, Some(report), &mut record_end);
            pollster::block_on(registry.close());
            child::status(exit)
        }
        Err(error) => failed(error, report),
    }
}

async fn take(input: &TakeUp, context: &Context) -> Result<(Registry, RunHandle, Job), Error> {
    let registry = context.for_report(&input.run.to_string()).await?;
    let job = Job::of(&registry, &registry.get(input.run).await?.run, input.by_another)?;
    let handle = match registry.take_up(input.run, ResumeOptions { failed_too: input.failed }).await {
        // A holder that is dead must not keep the living out.
        Err(Error::KeyBusy { holders, .. }) => {
            hooks::reap(&registry, &mut Reaper::new(registry.worker()), Filter::of(holders)).await?;
            registry.take_up(input.run, ResumeOptions { failed_too: input.failed }).await?
        }
        taken => taken?,
    };
    Ok((registry, handle, job))
}
