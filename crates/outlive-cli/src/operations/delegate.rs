//! Commands of cool-workflow: started as tracked runs where the home's configuration names the program, else shown to
//! be typed.

use std::path::Path;

use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::index::{IndexRecord, SearchHit};
use outlive::run::{Command, Spec, StateName};
use outlive::settings::CoolWorkflow;

use crate::call::Context;
use crate::exec::detach::Starting;
use crate::exec::take_up;
use crate::operations::queue::entry::home_registry;
use crate::ui::command_line;

/// The program where nothing else is configured.
const PROGRAM: &str = "cw";

/// What became of a command of cool-workflow.
pub struct Delegated {
    /// The run of the home registry that executes it; none where it is to be typed.
    pub run: Option<RunId>,
    /// The command, to be typed anywhere.
    pub command: String,
}

/// What cool-workflow calls a run: its directory.
pub fn foreign_name(record: &IndexRecord) -> &str {
    let dir = record.run_dir.as_deref().and_then(|dir| dir.rsplit('/').next());
    dir.filter(|name| !name.is_empty()).unwrap_or(&record.run_id)
}

/// What to type about a run of cool-workflow.
pub fn foreign_command(listed: &SearchHit, words: &[&str]) -> Result<String, Error> {
    let argv = argv(words)?;
    let repo = command_line([listed.record.repo.as_bytes()]);
    Ok(format!("cd {repo} && {}", command_line(argv.iter().map(String::as_bytes))))
}

fn argv(words: &[&str]) -> Result<Vec<String>, Error> {
    let mut argv = CoolWorkflow::read()?.command;
    if argv.is_empty() {
        argv.push(PROGRAM.into());
    }
    argv.extend(words.iter().map(|word| (*word).to_owned()));
    Ok(argv)
}

/// Has cool-workflow do something with a run, in its repository, as a run of the home registry that is tracked like any
/// other. Where the home's configuration does not name the program, nothing is started.
pub async fn delegate(
    context: &Context,
    listed: &SearchHit,
    words: &[&str],
    dry_run: bool,
) -> Result<Delegated, Error> {
    let command = foreign_command(listed, words)?;
    if dry_run || CoolWorkflow::read()?.command.is_empty() {
        return Ok(Delegated { run: None, command });
    }
    let record = &listed.record;
    let home = home_registry(context)?;
    let registry = home.registry().await?;
    let mut spec = Spec::new("command", registry.me().clone());
    spec.name = Some(format!("cool-workflow {} {}", words.get(1).unwrap_or(&"run"), foreign_name(record)));
    spec.policy = home.policy("command")?;
    let labels = [("source", record.source.as_str()), ("repo", &record.repo), ("run", foreign_name(record))];
    spec.labels.extend(labels.map(|(label, value)| (label.to_owned(), value.to_owned())));
    let argv = argv(words)?.iter().map(|word| std::ffi::OsStr::new(word).into()).collect();
    spec.command = Some(Command::new(argv, Path::new(&record.repo).as_os_str().into()));
    let run = registry.enqueue(spec).await?;
    let words = take_up::words(&registry, run.id, false, false);
    let started = Starting::begin(&words, &SigSet::empty()).and_then(Starting::wait);
    let started = started.map_err(|error| Error::Invalid(format!("its owner cannot be started: {error}")))?;
    // A worker of the home registry may have claimed it first.
    if started.id.is_none() && registry.get(run.id).await?.state == StateName::Pending {
        let why = started.talk.unwrap_or_else(|| "its owner could not begin it".into());
        return Err(Error::Invalid(format!("run `{}` was made and waits: {why}", run.id)));
    }
    Ok(Delegated { run: Some(run.id), command })
}
