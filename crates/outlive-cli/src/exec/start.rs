//! The options of `outlive run` beside the spec, and its report of the run that it started or found.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::logs::Stream;
use outlive::registry::Registry;
use outlive::run::{Hold, Run};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::flags::SpecFlags;
use super::ports::Leases;

/// The longest argument that the kernel takes, and the longest command line that we pass on.
const ARGUMENT: usize = 128 << 10;
const COMMAND_LINE: usize = 1 << 20;

/// What a run is to be, and where and for how long it is to live.
#[derive(Debug, Default, Args)]
pub struct RunFlags {
    /// Execute it in this directory
    #[arg(long, value_name = "DIR", help_heading = "Environment")]
    pub cwd: Option<PathBuf>,
    /// Lease a free port of this machine (repeatable)
    ///
    /// The command finds it in OUTLIVE_PORT_<NAME>, and the first also in PORT.
    #[arg(id = "port", long = "port", value_name = "NAME", help_heading = "Environment")]
    pub ports: Vec<String>,
    /// End it, with all its processes, when this process ends; `session`: when the session ends that this call belongs
    /// to [default: none]
    #[arg(long, value_name = "PID|session|none", value_parser = parse_leash, help_heading = "Limits", hide_short_help = true)]
    pub leash: Option<LeashTo>,
    #[command(flatten)]
    pub spec: SpecFlags,
}

/// What a run ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeashTo {
    /// Nothing.
    None,
    /// The session of the caller.
    Session,
    /// A process.
    Process(u32),
}

fn parse_leash(text: &str) -> Result<LeashTo, String> {
    match text {
        "none" => Ok(LeashTo::None),
        "session" => Ok(LeashTo::Session),
        pid => match pid.parse() {
            Ok(pid) if pid > 1 => Ok(LeashTo::Process(pid)),
            _ => Err("it is the number of a process, `session` or `none`".into()),
        },
    }
}

/// A run that a call started, or that was there already under its unique key.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Begun {
    /// The run.
    pub id: RunId,
    /// What it is called.
    pub name: Option<String>,
    /// This call started it. Otherwise it holds the unique key of the run that was to be started.
    pub made: bool,
    /// The file that its standard output is kept in, where it is kept in one.
    pub log: Option<PathBuf>,
    /// The ports that it was leased, by name.
    pub ports: BTreeMap<String, u16>,
    /// Where the first of them is reached.
    pub url: Option<String>,
}

impl Begun {
    /// What is said of a run.
    pub fn of(registry: &Registry, run: &Run, made: bool) -> Self {
        let file = format!("{:04}.{}", run.attempt, Stream::Out.as_str());
        let log = registry.logs().map(|logs| logs.path(run.id).join(file)).filter(|path| path.is_file());
        Self { id: run.id, name: run.spec.name.clone(), made, log, ports: run.ports(), url: run.url() }
    }
}

impl RunFlags {
    /// Enters the directory of the command, and leases its ports. They are held for as long as the answer lives.
    pub fn prepare(&mut self) -> Result<Leases, Error> {
        if let Some(cwd) = &self.cwd {
            let failed = |error| Error::Invalid(format!("`{}` cannot be entered: {error}", cwd.display()));
            std::env::set_current_dir(cwd).map_err(failed)?;
        }
        let leases = Leases::take(&self.ports)?;
        self.spec.leased = leases.variables();
        Ok(leases)
    }

    /// Refuses a command that could not be started from here, before anything is made.
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |why: String| Err(Error::Invalid(why));
        let here = std::env::current_dir().unwrap_or_default();
        let cwd = self.cwd.as_ref().map_or(here.clone(), |cwd| here.join(cwd));
        if !cwd.is_dir() {
            return invalid(format!("`{}` is no directory", cwd.display()));
        }
        let mut whole = 0;
        for (place, word) in self.spec.argv.iter().enumerate() {
            whole += word.len();
            if word.as_encoded_bytes().contains(&0) {
                return invalid(format!("argument {place} contains a NUL byte"));
            }
            if word.len() >= ARGUMENT {
                return invalid(format!(
                    "argument {place} has {} bytes; an argument has less than {ARGUMENT}",
                    word.len()
                ));
            }
        }
        if whole > COMMAND_LINE {
            return invalid(format!("the command has {whole} bytes; it has at most {COMMAND_LINE}"));
        }
        match self.spec.argv.first() {
            Some(program) if self.spec.shell || is_found(Path::new(program), &cwd) => Ok(()),
            Some(program) => invalid(format!("`{}` is not found, or cannot be executed", program.display())),
            None => invalid("a run needs a command".into()),
        }
    }
}

/// Whether a program is found as a shell would look for it.
fn is_found(program: &Path, cwd: &Path) -> bool {
    let executable =
        |path: PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return executable(cwd.join(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    !program.as_os_str().is_empty() && std::env::split_paths(&path).any(|dir| executable(cwd.join(dir).join(program)))
}

/// The refusal of a run in the foreground whose unique key another run holds, with what its caller needs of that one.
pub fn held(error: Error, held: &Begun) -> Error {
    let url = held.url.as_ref().map(|url| format!("; it is at {url}")).unwrap_or_default();
    let log = held.log.as_ref().map(|log| format!("; its output is in `{}`", log.display())).unwrap_or_default();
    if url.is_empty() && log.is_empty() {
        return error;
    }
    Error::Reported { code: error.code(), message: format!("{error}{url}{log}"), hint: error.hint() }
}

/// The run that holds the unique key of one that was to be started.
pub fn holder(error: &Error) -> Option<RunId> {
    match error {
        Error::KeyBusy { key, holders, .. } if key.hold == Hold::Active => holders.first().copied(),
        _ => None,
    }
}
