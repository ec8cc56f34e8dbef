//! Hooks: commands of the user that are called when runs end.
//!
//! They are named in the configuration of the user's home, and nowhere else: a repository cannot bring any. A process
//! that puts an end on record has them called by a process of its own, and waits for nothing. Each delivery is noted
//! beside the run, so that no hook is called twice; what was not delivered, because its process died, is delivered by
//! the next supervisor.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::ownership::reaper::{Reaped, Reaper};
use outlive::registry::Registry;
use outlive::run::{Run, StateName};
use outlive::settings::Hooks;
use outlive::store::sqlite::HookReceipts;
use outlive::store::{Page, Pages};
use serde_json::json;

use super::descriptors::wait_for;
use super::detach::Starting;
use crate::call::{Context, SCHEMA};
use crate::ui::run_view::RunView;

/// The word by which this program knows that it is to tell a hook.
pub const NAME: &str = "__tell";

/// How often a hook that fails is tried.
const TRIES: u32 = 3;
/// How many missed deliveries are made at a time; the rest is made later.
const MISSED_AT_ONCE: usize = 64;
/// How long a hook may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether a hook has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What a hook can be called for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// A run has ended, and is not tried again by itself.
    End,
    /// The owner of a run was gone.
    Dead,
    /// A run makes no progress.
    Stalled,
    /// Nothing is queued or executed any more; called with the run that was the last.
    QueueEmpty,
}

impl Event {
    fn as_str(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Dead => "dead",
            Self::Stalled => "stalled",
            Self::QueueEmpty => "queue-empty",
        }
    }

    fn command(self, hooks: &Hooks) -> Option<&str> {
        match self {
            Self::End => hooks.on_end.as_deref(),
            Self::Dead => hooks.on_dead.as_deref(),
            Self::Stalled => hooks.on_stalled.as_deref(),
            Self::QueueEmpty => hooks.on_queue_empty.as_deref(),
        }
    }
}

/// Tells a hook. Called by outlive itself.
#[derive(Args)]
struct Tell {
    run: RunId,
    attempt: u32,
    #[arg(value_enum)]
    event: Event,
}

/// The command's flags.
pub fn command() -> Command {
    Tell::augment_args(Command::new(NAME)).hide(true)
}

/// Calls the hook, if there is one, by a process that is not waited for.
pub fn tell(registry: &Registry, run: RunId, attempt: u32, event: Event) {
    // A configuration that cannot be read names no hooks; `outlive doctor` says what is wrong with it.
    if Hooks::read().is_ok_and(|hooks| event.command(&hooks).is_some()) {
        let words = ["outlive", NAME, "--registry", registry.url(), &run.to_string(), &attempt.to_string()];
        let words: Vec<_> = words.into_iter().chain([event.as_str()]).map(Into::into).collect();
        // Where no process can be started now, the next supervisor tells it.
        drop(Starting::begin(&words, &SigSet::empty()));
    }
}

/// Calls the hooks for the end of a run, if it has ended.
pub fn tell_end(registry: &Registry, run: RunId) {
    if Hooks::read().is_ok_and(|hooks| hooks.on_end.is_some())
        && let Ok(seen) = pollster::block_on(registry.glance(run))
        && seen.run.ending().is_some()
    {
        tell(registry, run, seen.run.attempt, Event::End);
    }
}

/// Marks runs whose owner is gone as dead, and calls the hooks for them. A process that has left a result here that
/// could not be recorded has not died without one: it is recorded first.
pub async fn reap(registry: &Registry, reaper: &mut Reaper, filter: Filter) -> Result<Reaped, Error> {
    registry.deliver_spooled().await?;
    let mut reaped = reaper.pass_over(registry, filter).await?;
    registry.end_unleashed_of(&mut reaped).await?;
    tell_reaped(registry, &reaped);
    Ok(reaped)
}

/// Calls the hooks for the runs that were reaped.
pub fn tell_reaped(registry: &Registry, reaped: &Reaped) {
    // The run that a step is part of calls the hooks for it.
    for run in reaped.ended.iter().filter(|run| run.spec.step.is_none()) {
        for (attempt, event) in events(run) {
            tell(registry, run.id, attempt, event);
        }
    }
}

/// What there is to tell of a run that was reaped: one that goes on has died in the attempt before.
fn events(run: &Run) -> Vec<(u32, Event)> {
    match run.ending() {
        Some(_) => vec![(run.attempt, Event::Dead), (run.attempt, Event::End)],
        None => vec![(run.attempt.saturating_sub(1), Event::Dead)],
    }
}

/// Makes deliveries that are missing because their process died. Only of runs made since `since`.
pub fn catch_up(registry: &Registry, filter: &Filter) -> Result<(), Error> {
    let hooks = Hooks::read()?;
    if hooks.on_end.is_none() {
        return Ok(());
    }
    let Some(local) = registry.local() else { return Ok(()) };
    let mut walk = Pages::from(filter.clone(), Page::default());
    let mut missed = 0;
    while let Some(records) = pollster::block_on(walk.next(registry.store()))? {
        // Hooks are not called for what had ended before they were configured as they are.
        let is_meant = |run: &&Run| run.ending().is_some_and(|ending| ending.at >= hooks.since) && !run.copied;
        for run in records.iter().map(|record| &record.run).filter(is_meant) {
            let delivered = local.telling(run.id, run.attempt)?.map(|mut telling| telling.has(Event::End.as_str()));
            if matches!(delivered, Some(Ok(false))) {
                tell(registry, run.id, run.attempt, Event::End);
                missed += 1;
            }
            if missed >= MISSED_AT_ONCE {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Tells the hook that the flags name, once.
pub fn run(matches: &ArgMatches, context: &Context) -> u8 {
    let Ok(input) = Tell::from_arg_matches(matches) else { return 2 };
    u8::from(deliver(&input, context).is_err())
}

fn deliver(input: &Tell, context: &Context) -> Result<(), Error> {
    let hooks = Hooks::read()?;
    let Some(command) = input.event.command(&hooks) else { return Ok(()) };
    let registry = pollster::block_on(context.for_lookup(&input.run.to_string()))?;
    let failed = |error: std::io::Error| Error::Invalid(format!("the hook cannot be started: {error}"));
    let Some(mut telling) = take_turn(&registry, input)? else { return Ok(()) };
    if telling.has(input.event.as_str()).map_err(failed)? {
        return Ok(());
    }
    let seen = pollster::block_on(registry.get(input.run))?;
    let event_id = format!("{}/{}/{}", input.run, input.attempt, input.event.as_str());
    let message = json!({
        "schema": SCHEMA, "event": input.event.as_str(), "event_id": event_id, "attempt": input.attempt,
        "run": RunView::new(&seen, &registry),
    });
    let mut failure = None;
    for tried in 0..TRIES {
        failure = match call(command, &event_id, &message.to_string()) {
            Ok(status) if status.success() => None,
            Ok(status) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if failure.is_none() {
            break;
        }
        wait_for(&[], Duration::from_secs(1 << tried));
    }
    note_failure(input, failure.as_deref());
    // One that fails again and again was called often enough.
    telling.note(input.event.as_str()).map_err(failed)
}

/// The file of the home that tells of the last call of a hook that failed, for `outlive doctor`.
fn failure_file() -> Option<std::path::PathBuf> {
    outlive::host::home::home().map(|home| home.join("hook-failure"))
}

/// Notes that a hook failed as often as it is tried, or that the same one succeeded since.
fn note_failure(input: &Tell, failure: Option<&str>) {
    let Some(path) = failure_file() else { return };
    let hook = format!("on_{}", input.event.as_str().replace('-', "_"));
    match failure {
        Some(why) => {
            let text = format!("the hook `{hook}` failed {TRIES} times for run {}: {why}", input.run);
            // A failure to report a failure is ignored.
            let _ = std::fs::write(path, text);
        }
        None if last_failure().is_some_and(|text| text.contains(&format!("`{hook}`"))) => {
            let _ = std::fs::remove_file(path);
        }
        None => {}
    }
}

/// What to tell of the last call of a hook that failed, unless the configuration was changed since.
pub fn last_failure() -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let path = failure_file()?;
    let at = path.metadata().ok()?.mtime().saturating_mul(1_000_000);
    let text = std::fs::read_to_string(path).ok()?;
    Hooks::read().is_ok_and(|hooks| hooks.since.as_micros() <= at).then_some(text)
}

/// Calls the hooks for an empty queue, after this queued run has ended.
pub fn tell_queue_empty(registry: &Registry, last: &Run) -> Result<(), Error> {
    if !last.spec.queued || !Hooks::read().is_ok_and(|hooks| hooks.on_queue_empty.is_some()) {
        return Ok(());
    }
    let filter = Filter::in_states([StateName::Pending, StateName::Running]);
    let mut walk = Pages::from(filter, Page::default());
    while let Some(records) = pollster::block_on(walk.next(registry.store()))? {
        if records.iter().any(|record| record.run.spec.queued) {
            return Ok(());
        }
    }
    tell(registry, last.id, 1, Event::QueueEmpty);
    Ok(())
}

/// The right to deliver hooks of an attempt, once another process is done with it. None where that takes too long.
fn take_turn(registry: &Registry, input: &Tell) -> Result<Option<HookReceipts>, Error> {
    let Some(local) = registry.local() else { return Ok(None) };
    let mut waited = Duration::ZERO;
    while waited < PATIENCE * TRIES * 2 {
        if let Some(telling) = local.telling(input.run, input.attempt)? {
            return Ok(Some(telling));
        }
        wait_for(&[], LOOK_EVERY);
        waited += LOOK_EVERY;
    }
    Ok(None)
}

/// Has a shell execute a hook. Answers with how it ended.
fn call(command: &str, event_id: &str, message: &str) -> std::io::Result<ExitStatus> {
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", command]).env("OUTLIVE_EVENT_ID", event_id).process_group(0);
    let mut hook = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    // One that does not want to read need not.
    let _ = hook.stdin.take().map(|mut stdin| stdin.write_all(message.as_bytes()));
    wait(&mut hook)
}

fn wait(hook: &mut Child) -> std::io::Result<ExitStatus> {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(status) = hook.try_wait()? {
            return Ok(status);
        }
        if waited > PATIENCE {
            hook.kill()?;
        }
        wait_for(&[], LOOK_EVERY);
        waited += LOOK_EVERY;
    }
}
