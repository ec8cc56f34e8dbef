//! `outlive step`: a part of a run that is done once, however often the run is resumed.
//!
//! It is executed as `outlive run` executes a command, with one difference: all that it writes passes through us, for a
//! later attempt repeats it. Its processes stay those of the run that it is a step of.

mod inputs;
mod replay;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use nix::sys::signal::{SigSet, Signal};
use outlive::error::Error;
use outlive::lifecycle::OwnerEnd;
use outlive::lifecycle::{Outcome, Report};
use outlive::logs::LogPolicy;
use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::ownership::steps::Next;
use outlive::policy::Policy;
use outlive::registry::Registry;
use outlive::run::{self, Arg, Exit, Run};
use outlive::step;
use outlive::step::Fingerprint;

use self::inputs::Input;
use super::child::{self, Child, Ended};
use super::memory::Shield;
use super::own::Job;
use super::signals::Signals;
use super::{keep_log, leave_log, memory, recorded_badly, remark, tree};
use crate::call::inside::{self, Claim};
use crate::call::{Context, fail};
use crate::ui::{plain, talk};

/// The verb.
pub const NAME: &str = "step";

/// Inside a run: run a command that is skipped once it has succeeded
///
/// After a resume, a step with the same command, inputs and variables is replayed: its recorded output is printed and
/// its exit status returned, without running it. The first step that changed is run, and so is every step after it. A
/// step that failed or crashed is run again.
#[derive(Args)]
struct Step {
    /// What to call it; each step of an attempt has a name of its own
    name: String,
    /// What it reads: a file, a directory, a pattern such as 'src/**/*.c', or the result of an earlier step
    /// (repeatable)
    #[arg(long = "input", value_name = "FILE|GLOB|@STEP", num_args = 1..)]
    inputs: Vec<OsString>,
    /// A variable of the environment that it depends on (repeatable)
    #[arg(long = "env", value_name = "VAR")]
    variables: Vec<OsString>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<OsString>,
}

/// The command's flags and help.
pub fn command() -> Command {
    Step::augment_args(Command::new(NAME)).override_usage("outlive step <NAME> [OPTIONS] -- <COMMAND>...").after_help(
        "Examples:\n  outlive step fetch -- date\n  \
         touch in.txt && outlive step sort --input in.txt --env LC_ALL -- sort in.txt\n  \
         outlive step count -- date && outlive step tell --input @count -- echo counted",
    )
}

/// What is to be done.
enum StepExecution {
    /// What an earlier attempt wrote is to be repeated.
    Replayed(Box<Run>),
    /// The command is to be run.
    Live(Box<RunHandle>),
}

/// Runs the step that the flags name, or repeats it, with the signals blocked that `mask` says.
pub fn run(matches: &ArgMatches, context: &Context, json: bool, mask: SigSet) -> u8 {
    let input = match Step::from_arg_matches(matches) {
        Ok(input) => input,
        Err(error) => return fail(&Error::Invalid(error.to_string()), json),
    };
    // Inputs may be large, and the waiting process may give up.
    let fingerprint = match Claim::default()
        .attempt(context)
        .and_then(|(id, epoch)| Ok((id, epoch, input.fingerprint(Fingerprint::of(id))?)))
    {
        Ok(fingerprint) => fingerprint,
        Err(error) => return fail(&error, json),
    };
    let mut replaying = mask;
    replaying.add(Signal::SIGPIPE);
    // Before anything starts a thread: signals are for the one that waits.
    let mut signals = match Signals::take(mask) {
        Ok(signals) => signals,
        Err(error) => return fail(&Error::Invalid(format!("signals cannot be waited for: {error}")), json),
    };
    tree::make_room_for_lock();
    let begun =
        context.log_policy().and_then(|policy| Ok((policy, pollster::block_on(begin(&input, context, fingerprint))?)));
    match begun {
        Ok((_, (registry, StepExecution::Replayed(original)))) => {
            let _ = replaying.thread_set_mask();
            replay::write(&registry, &original)
        }
        Ok((policy, (registry, StepExecution::Live(handle)))) => {
            let exit = supervise(&registry, *handle, input.argv, &policy, &mut signals, json);
            pollster::block_on(registry.close());
            child::exit(exit)
        }
        Err(error) => fail(&error, json),
    }
}

impl Step {
    /// What the result depends on, but for other steps.
    fn fingerprint(&self, mut fingerprint: Fingerprint) -> Result<Fingerprint, Error> {
        let cwd = std::env::current_dir().unwrap_or_default();
        fingerprint.part("directory", cwd.as_os_str().as_bytes());
        for word in &self.argv {
            fingerprint.part("argument", word.as_bytes());
        }
        for name in &self.variables {
            match std::env::var_os(name) {
                Some(value) => fingerprint.part(&format!("variable {}", name.display()), value.as_bytes()),
                None => fingerprint.part("no variable", name.as_bytes()),
            }
        }
        for input in &self.inputs {
            if let Input::Path(path) = Input::from(input.as_os_str()) {
                inputs::digest(path, &mut fingerprint)?;
            }
        }
        Ok(fingerprint)
    }
}

async fn begin(
    input: &Step,
    context: &Context,
    (id, epoch, mut fingerprint): (outlive::id::RunId, outlive::id::Epoch, Fingerprint),
) -> Result<(Registry, StepExecution), Error> {
    let registry = context.for_report(&id.to_string()).await?;
    let attempt = registry.attempt(id, epoch).await?;
    for name in input.inputs.iter().filter_map(|input| Input::from(input.as_os_str()).step()) {
        fingerprint.part("step", name.as_bytes());
        fingerprint.part("result", attempt.result_of(&name)?.as_bytes());
    }
    let fingerprint = fingerprint.finish();
    let mut next = attempt.next(&input.name, &fingerprint)?;
    if let Next::Replay(original) = next
        && !replay::is_possible(&registry, original)
    {
        let name = plain(&input.name);
        talk(&format!(
            "outlive: the step `{name}` is run again: what it wrote was cut, masked or removed, and cannot be repeated\n"
        ));
        next = Next::Live { changed: false };
    }
    let mut spec = attempt.spec(&input.name, fingerprint, &next, inside::step(context), registry.me().clone());
    // Whether it is tried again is for the script to say.
    spec.policy = Policy { retry: Policy::default().retry, ..context.policy(step::KIND)? };
    let cwd = std::env::current_dir().map_or_else(|_| Arg::Text(String::new()), |cwd| cwd.as_os_str().into());
    spec.command = Some(run::Command::new(input.argv.iter().map(|word| word.as_os_str().into()).collect(), cwd));
    let begun = match next {
        Next::Replay(original) => {
            registry.replay_step(&attempt, spec, original).await?;
            StepExecution::Replayed(Box::new(original.clone()))
        }
        Next::Live { .. } => StepExecution::Live(Box::new(registry.start_step(&attempt, spec).await?)),
    };
    Ok((registry, begun))
}

/// Runs the command, and puts on record how it ended and what it wrote.
fn supervise(
    registry: &Registry,
    handle: RunHandle,
    argv: Vec<OsString>,
    policy: &LogPolicy,
    signals: &mut Signals,
    json: bool,
) -> Exit {
    let job = Job::new(argv, None);
    let recording = keep_log(registry, &handle, policy).digesting();
    let killed = memory::kills();
    let mut ended = match Child::start(registry, &handle, &job, false, recording.clone(), None, signals) {
        Ok(child) => {
            let _shield = Shield::raise();
            child.wait(registry, &handle, signals, None)
        }
        Err(error) => Ended::not_started(&job.argv[0], &error),
    };
    if ended.by_kill() && memory::kills() > killed {
        ended.blame_memory();
    }
    // It is done only when all that it wrote is passed on: no attempt would repeat what was lost on the way.
    let is_whole = ended.unread.take().is_none_or(|unread| unread.finish());
    let outcome = recording.outcome().filter(|_| is_whole).and_then(|outcome| serde_json::to_value(outcome).ok());
    let lost = leave_log(registry, &handle.run(), &recording);
    let recorded = match &ended.end {
        Some(end) => {
            let has_succeeded = *end == OwnerEnd::Finished(Outcome::SUCCEEDED);
            let report = outcome.filter(|_| has_succeeded);
            let report = report.map(|outcome| Report { checkpoint: Some(outcome), ..Report::default() });
            pollster::block_on(handle.end(report, end.clone(), Some(ended.exit)))
        }
        None => Ok(Persisted::Committed),
    };
    remark([ended.talk, lost, recorded_badly(recorded)], json);
    ended.exit
}
