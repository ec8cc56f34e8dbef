//! `run` for callers of a server: starts a command in the background, and answers when it is on record.
//!
//! On the command line `outlive run` is the launcher. Here the same flags are handed to it: an owner of its own is
//! started, as `outlive run --detach` does, so that the run outlives its caller and the server too.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::time::Duration;

use clap::{Args, Command};
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::time::parse_duration;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::detach::Starting;
use crate::exec::start::{Begun, LeashTo, RunFlags};
use crate::operations::output::Output;
use crate::operations::wait::{Until, until};
use crate::ui::run_view::RunView;

/// The most of the first output that is returned, in lines and bytes.
const LINES: u64 = 60;
const BYTES: u64 = 2048;
/// The most lines of a run that has succeeded: how it ended is known, and what it did is in its log.
const LINES_OF_SUCCESS: u64 = 10;

/// Start a command in the background, and answer when it is registered
///
/// The command is executed as given, without a shell unless `shell` is true, in the environment of the server. It
/// outlives this call, the session and the server. `unique` answers with the run that is already there, and starts
/// nothing. A command that cannot be executed is refused and leaves nothing.
#[derive(Debug, Default, Args)]
pub struct Run {
    #[command(flatten)]
    pub flags: RunFlags,
    /// Also wait up to this long, until it has ended or is ready, and answer with its first output
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub watch: Option<Duration>,
    /// What was said, in the words of the command line.
    #[arg(skip)]
    words: Vec<OsString>,
}

/// A run that was started, or found.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Started {
    #[serde(flatten)]
    begun: Begun,
    /// How it stands, where that was waited for.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunView>,
    /// What it has written by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<String>,
}

impl Operate for Run {
    const NAME: &'static str = crate::exec::NAME;
    const EFFECT: Effect = Effect::Execute;
    const EXAMPLES: &'static str = "outlive run -d --unique dev --port web --ready-tcp '$PORT' -- npm run dev";
    type Output = Started;

    fn shape(command: Command) -> Command {
        command.mut_arg("argv", |argv| argv.required(true).value_name("argv"))
    }

    fn said_by(self, words: Vec<OsString>) -> Self {
        Self { words, ..self }
    }

    fn effect(&self) -> Effect {
        // Variables are those of the server; one that is set reads none.
        if self.flags.spec.reads_environment() { Effect::Local } else { Self::EFFECT }
    }

    async fn operate(self, context: &Context) -> Result<Started, Error> {
        self.flags.check()?;
        let words = self.owner_words(context)?;
        let registry = context.registry().await?;
        let starting = Starting::begin(&with_registry(words, &registry), &SigSet::empty());
        let failed = |error| Error::Invalid(format!("the run cannot be started: {error}"));
        let starting = starting.map_err(failed)?;
        collect(starting.pid);
        let started = starting.wait().map_err(failed)?;
        let begun = started.owned()?.begun.ok_or_else(|| Error::Invalid("the run cannot be started".into()))?;
        let Some(watch) = self.watch else { return Ok(Started { begun, run: None, output: None }) };
        until(context, vec![(&registry, begun.id)], false, Some(watch), &Until::Ready).await?;
        let run = RunView::new(&registry.glance(begun.id).await?, &registry);
        let lines = Some(if run.state == StateName::Succeeded { LINES_OF_SUCCESS } else { LINES });
        let output = Output { run: begun.id.to_string(), lines, text: true, limit: BYTES, ..Output::default() };
        // A run that keeps no output has none to tell.
        let output = output.operate(context).await.ok().and_then(|written| written.into_text());
        Ok(Started { begun, run: Some(run), output })
    }
}

impl Run {
    /// The words by which an owner is started: those of the call, without what this call does itself.
    fn owner_words(&self, context: &Context) -> Result<Vec<OsString>, Error> {
        let is_ours = |word: &OsString| {
            let word = word.to_string_lossy();
            word.starts_with("--watch=") || word.starts_with("--leash=")
        };
        let flags = self.words.iter().take_while(|word| *word != "--").filter(|word| !is_ours(word)).cloned();
        let argv = self.words.iter().skip_while(|word| *word != "--").cloned();
        let leash = match self.flags.leash {
            None | Some(LeashTo::None) => None,
            Some(LeashTo::Process(pid)) => Some(pid),
            Some(LeashTo::Session) => Some(context.session().ok_or_else(|| {
                Error::Invalid("a session over HTTP has no process: `leash` names a process, or is `none`".into())
            })?),
        };
        let leash = leash.map(|pid| format!("--leash={pid}").into());
        let user = context.user().map(|user| format!("--requested-by={user}").into());
        let words: Vec<OsString> = flags.chain(leash).chain(user).chain(argv).collect();
        words.iter().try_for_each(|word| refuse_nul(word))?;
        Ok(words)
    }
}

/// Refuses a word that no process can be given, and names it.
fn refuse_nul(word: &OsStr) -> Result<(), Error> {
    let word = word.to_string_lossy();
    if !word.contains('\0') {
        return Ok(());
    }
    let what = if word.starts_with("--") { word.split('=').next().unwrap_or_default() } else { "an argument" };
    Err(Error::Invalid(format!("{} contains a NUL byte", what.replace('\0', "\\0"))))
}

fn with_registry(words: Vec<OsString>, registry: &Registry) -> Vec<OsString> {
    let own = ["outlive".into(), "--registry".into(), registry.url().into(), crate::exec::NAME.into()];
    own.into_iter().chain(["--detach".into()]).chain(words).collect()
}

/// Collects the owner when it ends: it is a child of this process for as long as that lives.
pub fn collect(owner: Pid) {
    let wait = move || {
        let _ = waitid(WaitId::Pid(owner), WaitIdOptions::EXITED);
    };
    // Without a thread it is collected with this process.
    let _ = std::thread::Builder::new().name("outlive-collect".into()).stack_size(64 << 10).spawn(wait);
}

impl fmt::Display for Started {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.begun.id)
    }
}
