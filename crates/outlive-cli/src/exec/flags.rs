//! What a run is to be, said on the command line: by `outlive run`, and by `outlive queue add`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use outlive::discovery::own_trace_parent;
use outlive::error::Error;
use outlive::policy::{FailureClass, OnLeaseLoss, OrphanPolicy, Policy, TreePolicy};
use outlive::registry::Registry;
use outlive::run::{
    Actor, Arg, Command, EnvMode, FIRST_PORT, InvalidTraceParent, Key, Output, Program, Spec, TRACE_VARIABLE,
    TraceParent, Variables, Withheld,
};
use outlive::time::parse_duration;

use super::glob;
use super::ready::ReadyFlags;
use crate::call::Context;

/// What the names of variables begin with that tell a process of its run.
pub const RESERVED: &str = "OUTLIVE_";

/// What a run is to be.
#[derive(Debug, Default, Args)]
pub struct SpecFlags {
    /// A name, which need not be unique
    #[arg(long)]
    pub name: Option<String>,
    /// The kind of work, for per-kind settings and filters [default: command]
    #[arg(long, hide_short_help = true)]
    pub kind: Option<String>,
    /// A label to find it by (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Stop it after this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Limits")]
    pub timeout: Option<Duration>,
    /// Show it as stalled after this long without progress
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Limits", hide_short_help = true)]
    pub stall_after: Option<Duration>,
    /// Stop it, with all its processes, if its owner sends no heartbeat for this long; a worker or supervisor notices
    /// within about ten seconds after that
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Limits", hide_short_help = true)]
    pub hung_after: Option<Duration>,
    /// Mutual exclusion: only one running run holds this key (repeatable)
    ///
    /// While another run holds it, `run` exits with 105 and a queued run waits.
    #[arg(id = "lock", long = "lock", value_name = "KEY", help_heading = "Limits")]
    pub locks: Vec<String>,
    /// Limit concurrency: at most N running runs hold this key (repeatable)
    ///
    /// While N runs hold it, `run` exits with 105 and a queued run waits.
    #[arg(id = "max_concurrent", long = "max-concurrent", value_name = "KEY=N", help_heading = "Limits")]
    pub limits: Vec<String>,
    /// At most one unfinished run has this key (repeatable)
    ///
    /// While there is one, `run` exits with 105, and `run -d` and `queue add` return that run.
    #[arg(id = "unique", long = "unique", value_name = "KEY", help_heading = "Limits")]
    pub uniques: Vec<String>,
    /// Rate limit: at most N runs with this key start per DURATION, such as api=10/1m; otherwise `run` exits with 105
    /// and a queued run waits (repeatable)
    #[arg(id = "rate", long = "rate", value_name = "KEY=N/DURATION", help_heading = "Limits", hide_short_help = true)]
    pub rates: Vec<String>,
    /// The state of the run if its owner dies [default: dead]
    #[arg(long, value_enum, help_heading = "Retries and ends", hide_short_help = true)]
    pub on_death: Option<OnDeath>,
    /// Retry automatically after a crash, an interruption or a failure; `never` also excludes it from `outlive resume
    /// --all` (repeatable, or comma-separated)
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "WHEN",
        help_heading = "Retries and ends",
        hide_short_help = true
    )]
    pub resume_on: Vec<ResumeOn>,
    /// Retry after a crash or a failure, up to N times
    ///
    /// Short for --resume-on crash,failure --max-attempts N+1.
    #[arg(long, value_name = "N", conflicts_with_all = ["resume_on", "max_attempts"], help_heading = "Retries and ends")]
    pub retry: Option<u32>,
    /// The number of attempts that may fail, including the first
    #[arg(long, value_name = "N", help_heading = "Retries and ends", hide_short_help = true)]
    pub max_attempts: Option<u32>,
    /// The backoff after the first failure; it doubles with each
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, help_heading = "Retries and ends")]
    pub backoff: Option<Duration>,
    /// An exit code or error type that is not retried (repeatable)
    #[arg(long = "permanent", value_name = "CODE|TYPE", help_heading = "Retries and ends", hide_short_help = true)]
    pub permanent: Vec<String>,
    /// What to do with processes that outlive the command [default: keep]
    #[arg(long, value_enum, help_heading = "Retries and ends", hide_short_help = true)]
    pub orphans: Option<Orphans>,
    /// End the run with the last of its processes; the exit status is the command's
    #[arg(long, conflicts_with = "orphans", help_heading = "Retries and ends", hide_short_help = true)]
    pub wait_tree: bool,
    /// What to do when the registry was unreachable for so long that another worker may claim the run (default: stop
    /// if it holds a key, otherwise continue)
    #[arg(long, value_enum, help_heading = "Retries and ends", hide_short_help = true)]
    pub on_lease_loss: Option<LeaseLoss>,
    /// A shell command to execute when the run has ended
    ///
    /// It is given the run as JSON on its standard input.
    #[arg(long, value_name = "COMMAND", help_heading = "Retries and ends")]
    pub notify: Option<String>,
    /// The span of a distributed trace that it belongs to, as W3C Trace Context writes it; its processes and handlers
    /// are given it [default: TRACEPARENT of the environment, if that is valid]
    #[arg(long, value_name = "TRACEPARENT", value_parser = parse_trace_parent, help_heading = "Environment", hide_short_help = true)]
    pub traceparent: Option<TraceParent>,
    /// Where it writes artifacts, for `outlive sweep`: s3://BUCKET/PREFIX, or a directory
    #[arg(long, value_name = "PREFIX", help_heading = "Artifacts", hide_short_help = true)]
    pub artifacts: Option<String>,
    /// The directory layout below --artifacts. TREES: artifacts are in TREES/run_id=ID/, and objects that the
    /// manifest of a succeeded run does not name are swept. TREES:PART: they are in TREES/run_id=ID/PART/attempt=NN/,
    /// and attempts are swept. See docs/bucket.md [default: shards:db={db_id:05d}]
    #[arg(
        long,
        value_name = "TREES[:PART]",
        requires = "artifacts",
        help_heading = "Retries and ends",
        hide_short_help = true
    )]
    pub layout: Option<String>,
    /// The query that lists the winners in a manifest that is a SQLite database [default: every text in it]
    #[arg(long, value_name = "SQL", requires = "artifacts", help_heading = "Retries and ends", hide_short_help = true)]
    pub winners: Option<String>,
    /// Record environment variables with the run (repeatable)
    ///
    /// For every attempt on every host: NAME with its current value, 'CUDA_*' for all that match, NAME=VALUE as given.
    /// Secrets are kept in your home, not in the registry.
    #[arg(long = "env", value_name = "NAME[=VALUE]", help_heading = "Environment")]
    pub env: Vec<String>,
    /// The environment of attempts, in addition to --env [default: keep]
    #[arg(long, value_name = "MODE", help_heading = "Environment", hide_short_help = true)]
    pub env_mode: Option<EnvModeFlag>,
    /// Do not capture output; the command uses the streams of this call directly
    #[arg(long, help_heading = "Environment", hide_short_help = true)]
    pub no_log: bool,
    /// Allocate a terminal, for `outlive attach`: with --detach
    #[arg(long, help_heading = "Environment", hide_short_help = true)]
    pub tty: bool,
    /// Keep standard input open, for `outlive send`: with --detach
    #[arg(long, help_heading = "Environment", hide_short_help = true)]
    pub stdin: bool,
    /// Execute the words, joined by spaces, with a shell
    #[arg(long, help_heading = "Environment", hide_short_help = true)]
    pub shell: bool,
    /// Store the program's name without its arguments; the run cannot be resumed then
    #[arg(long, help_heading = "Environment", hide_short_help = true)]
    pub no_argv: bool,
    #[command(flatten)]
    pub ready: ReadyFlags,
    /// The variables of the ports that were leased.
    #[arg(skip)]
    pub leased: BTreeMap<String, String>,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub argv: Vec<OsString>,
}

/// Which environment the attempts of a run are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EnvModeFlag {
    /// The environment of now, also from a queue, a supervisor or `resume`, where the same user executes it on this
    /// host: it is kept in your home, readable by you alone, without variables of the session (SSH_*, DISPLAY, TERM
    /// ...)
    Keep,
    /// That of the process that executes the attempt
    Inherit,
    /// Only HOME, USER, LOGNAME, SHELL, PATH, LANG, LC_*, TZ, TMPDIR and XDG_RUNTIME_DIR
    Clean,
}

/// What becomes of processes that live on.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Orphans {
    /// Leave them running, as without outlive
    Keep,
    /// Terminate them, and kill them if that does not help, before the run ends
    End,
}

/// What becomes of a run whose owner dies.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum OnDeath {
    /// It is dead and can be resumed
    Dead,
    /// It failed
    Fail,
    /// It waits to be claimed again
    Requeue,
}

/// After what a run is tried again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResumeOn {
    /// Its owner died
    Crash,
    /// Its owner was asked to stop, but not from a keyboard
    Interrupt,
    /// It failed
    Failure,
    /// Never
    Never,
}

/// What an owner does that cannot reach its registry.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum LeaseLoss {
    /// Continue until the registry says that the run is lost
    Continue,
    /// Stop before another worker may claim the run
    Stop,
}

impl SpecFlags {
    /// The words to execute.
    pub fn argv(&self) -> Vec<OsString> {
        if self.shell {
            ["/bin/sh".into(), "-c".into(), self.argv.join(OsStr::new(" "))].into()
        } else {
            self.argv.clone()
        }
    }

    /// What it is called, where it is not said.
    fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("command")
    }

    /// The spec that the flags and the configuration say.
    pub fn spec(&self, registry: &Registry, context: &Context) -> Result<Spec, Error> {
        Ok(Spec { created_by: registry.me().clone(), ..self.unsigned_spec(context)? })
    }

    /// The spec that the flags and the configuration say, without its author: the registry that the run is made in names
    /// them.
    pub fn unsigned_spec(&self, context: &Context) -> Result<Spec, Error> {
        let unknown = Actor { user: String::new().into(), host: String::new().into(), pid: std::process::id() };
        let mut spec = Spec::new(self.kind(), unknown);
        spec.name.clone_from(&self.name);
        for label in &self.labels {
            let (key, value) = parse_label(label)?;
            spec.labels.insert(key, value);
        }
        spec.keys = self.keys()?;
        spec.policy = context.policy(self.kind())?;
        self.promise(&mut spec.policy)?;
        let argv = self.argv();
        let cwd = std::env::current_dir().map_or_else(|_| Arg::Text(String::new()), |cwd| cwd.as_os_str().into());
        let mut command = Command::new(argv.iter().map(|word| word.as_os_str().into()).collect(), cwd);
        command.program = argv.first().and_then(|word| program(word));
        command.env = self.listed_variables()?;
        command.env_mode = self.mode();
        spec.traceparent = self.trace_parent(&command.env, context);
        if command.env_mode == EnvMode::Keep && !context.is_served() {
            command.sealed = Some(Variables::without_session(std::env::vars_os()));
        }
        spec.command = Some(command);
        spec.no_log = self.no_log;
        spec.tty = self.tty;
        spec.stdin = self.stdin;
        spec.ready = self.ready.readiness(self.leased.get(FIRST_PORT).and_then(|port| port.parse().ok()))?;
        spec.notify.clone_from(&self.notify);
        spec.output = self.output()?;
        spec.withheld = self.no_argv.then_some(Withheld::Arguments);
        Ok(spec)
    }

    /// Which environment its attempts are given.
    pub fn mode(&self) -> EnvMode {
        match self.env_mode {
            None | Some(EnvModeFlag::Keep) => EnvMode::Keep,
            Some(EnvModeFlag::Inherit) => EnvMode::Inherit,
            Some(EnvModeFlag::Clean) => EnvMode::Clean,
        }
    }

    /// Whether a variable of this process is to be recorded.
    pub fn reads_environment(&self) -> bool {
        self.env.iter().any(|word| !word.contains('='))
    }

    /// The variables that `--env` names or sets. A later word has precedence.
    pub fn listed_variables(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut listed = self.leased.clone();
        for word in &self.env {
            let name = word.split('=').next().unwrap_or_default();
            if name.is_empty() || name.starts_with(RESERVED) {
                return Err(Error::Invalid(format!("`--env {word}` names no variable that a run can be given")));
            }
            if let Some((name, value)) = word.split_once('=') {
                listed.insert(name.into(), value.into());
            } else if glob::is_magic(word.as_bytes()) {
                let matching = |(name, _): &(String, String)| {
                    glob::fits(word.as_bytes(), name.as_bytes()) && !name.starts_with(RESERVED)
                };
                let text =
                    |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value.into_string().ok()?));
                listed.extend(std::env::vars_os().filter_map(text).filter(matching));
            } else {
                let value = std::env::var(word).map_err(|error| {
                    Error::Invalid(format!("`--env {word}`: {error}; `--env {word}=VALUE` sets it"))
                })?;
                listed.insert(word.clone(), value);
            }
        }
        Ok(listed)
    }

    /// The span that it belongs to: as it is said, else that of the listed variables, else of this process. A server's
    /// own is none of its callers'.
    fn trace_parent(&self, listed: &BTreeMap<String, String>, context: &Context) -> Option<TraceParent> {
        match (&self.traceparent, listed.get(TRACE_VARIABLE)) {
            (Some(said), _) => Some(said.clone()),
            (None, Some(listed)) => listed.parse().ok(),
            (None, None) if context.is_served() => None,
            (None, None) => own_trace_parent(),
        }
    }

    /// Where what it makes is.
    fn output(&self) -> Result<Option<Output>, Error> {
        let Some(artifacts) = &self.artifacts else { return Ok(None) };
        let prefix = if artifacts.contains("://") {
            artifacts.trim_end_matches('/').to_owned()
        } else {
            let path =
                std::path::absolute(artifacts).map_err(|error| Error::Invalid(format!("`{artifacts}`: {error}")))?;
            path.to_str().ok_or_else(|| Error::Invalid(format!("`{artifacts}` is not UTF-8")))?.to_owned()
        };
        let mut output = Output { prefix, winners: self.winners.clone(), ..Output::default() };
        if let Some(layout) = &self.layout {
            output = output.laid_out(layout);
        }
        output.check().map_err(|error| Error::Invalid(error.to_string()))?;
        Ok(Some(output))
    }

    fn keys(&self) -> Result<Vec<Key>, Error> {
        let mut keys: Vec<Key> = self.locks.iter().map(|lock| Key::limit(lock, 1)).collect();
        for limit in &self.limits {
            let parsed = limit.rsplit_once('=').and_then(|(name, limit)| Some(Key::limit(name, limit.parse().ok()?)));
            keys.push(parsed.ok_or_else(|| Error::Invalid(format!("`{limit}` is not a limit such as gpu=2")))?);
        }
        keys.extend(self.uniques.iter().map(Key::unique));
        for rate in &self.rates {
            keys.push(
                parse_rate(rate).ok_or_else(|| Error::Invalid(format!("`{rate}` is not a rate such as api=10/1m")))?,
            );
        }
        Ok(keys)
    }

    fn promise(&self, policy: &mut Policy) -> Result<(), Error> {
        let limits = &mut policy.limits;
        limits.timeout = self.timeout.or(limits.timeout);
        limits.stall_after = self.stall_after.or(limits.stall_after);
        limits.hung_after = self.hung_after.or(limits.hung_after);
        policy.on_lease_loss = self.on_lease_loss.map_or(policy.on_lease_loss, |choice| {
            Some(match choice {
                LeaseLoss::Continue => OnLeaseLoss::Continue,
                LeaseLoss::Stop => OnLeaseLoss::Stop,
            })
        });
        policy.orphans = match self.on_death {
            None | Some(OnDeath::Dead) => OrphanPolicy::Dead,
            Some(OnDeath::Fail) => OrphanPolicy::Fail,
            Some(OnDeath::Requeue) => OrphanPolicy::Requeue,
        };
        policy.tree = match self.orphans {
            _ if self.wait_tree => TreePolicy::Wait,
            None | Some(Orphans::Keep) => TreePolicy::Keep,
            Some(Orphans::End) => TreePolicy::End,
        };
        self.promise_attempts(policy)
    }

    fn promise_attempts(&self, policy: &mut Policy) -> Result<(), Error> {
        let short = [ResumeOn::Crash, ResumeOn::Failure];
        let resume_on = if self.retry.is_some() { &short[..] } else { &self.resume_on };
        let resumes = |when| resume_on.contains(&when);
        if resumes(ResumeOn::Never) && resume_on.len() > 1 {
            return Err(Error::Invalid("`--resume-on never` goes with nothing else".into()));
        }
        if resumes(ResumeOn::Crash) {
            if matches!(self.on_death, Some(OnDeath::Dead | OnDeath::Fail)) {
                return Err(Error::Invalid("`--resume-on crash` contradicts `--on-death`: give one of them".into()));
            }
            policy.orphans = OrphanPolicy::Requeue;
        }
        let retry = &mut policy.retry;
        retry.on_failure = resumes(ResumeOn::Failure);
        retry.on_interrupt = resumes(ResumeOn::Interrupt);
        retry.never = resumes(ResumeOn::Never);
        let max_attempts = self.retry.map(|retries| retries.saturating_add(1)).or(self.max_attempts);
        retry.max_attempts = max_attempts.unwrap_or(retry.max_attempts);
        if let Some(backoff) = self.backoff {
            (retry.backoff, retry.backoff_cap) = (backoff, retry.backoff_cap.max(backoff));
        }
        // Any word names a failure.
        retry.permanent = self.permanent.iter().filter_map(|class| class.parse::<FailureClass>().ok()).collect();
        Ok(())
    }
}

fn parse_rate(rate: &str) -> Option<Key> {
    let (name, often) = rate.rsplit_once('=')?;
    let (limit, per) = often.split_once('/')?;
    Some(Key::rate(name, limit.parse().ok()?, parse_duration(per).ok()?))
}

/// The file that the first word of a command means, found as a shell finds it.
fn program(word: &OsStr) -> Option<Program> {
    let found = if word.as_encoded_bytes().contains(&b'/') {
        std::path::absolute(Path::new(word)).ok()?
    } else {
        let executable = |found: &Metadata| found.is_file() && found.mode() & 0o111 != 0;
        let look = |path: PathBuf| Some((path.metadata().ok().filter(executable)?, path));
        let (found, path) =
            std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(word)).find_map(look)?;
        return Some(described(&path, &found));
    };
    seen(&found)
}

/// A program as it is now.
pub fn seen(path: &Path) -> Option<Program> {
    Some(described(path, &path.metadata().ok()?))
}

fn described(path: &Path, found: &Metadata) -> Program {
    let written_at = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
    Program { path: path.as_os_str().into(), inode: found.ino(), size: found.len(), written_at }
}

fn parse_trace_parent(text: &str) -> Result<TraceParent, InvalidTraceParent> {
    text.parse()
}

/// The key and the value of a label, given as `KEY=VALUE`.
pub fn parse_label(text: &str) -> Result<(String, String), Error> {
    let (key, value) =
        text.split_once('=').ok_or_else(|| Error::Invalid(format!("`{text}` is not a label such as team=search")))?;
    Ok((key.into(), value.into()))
}
