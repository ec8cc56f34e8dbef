//! `outlive service`: has the machine start a supervisor by itself.

mod cron;
mod systemd;

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use outlive::discovery::Location;
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::run::StateName;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::call::{Context, Effect, Operate};
use crate::lookup::serving::SUPERVISOR_KIND;
use crate::workers::supervise;

/// Start `outlive supervise` at boot, by systemd or cron
///
/// Without --yes it only shows what would be written, and where.
#[derive(Debug, Default, Args)]
pub struct Install {
    #[command(flatten)]
    pub way: Way,
    /// How many runs of the queue it executes at a time
    #[arg(long, default_value_t = 1)]
    pub slots: u16,
    /// Write it, and start it
    #[arg(long)]
    pub yes: bool,
}

/// Stop starting `outlive supervise` at boot
///
/// Without --yes it only shows what would be removed. Runs that a supervisor has started keep running.
#[derive(Debug, Default, Args)]
pub struct Remove {
    #[command(flatten)]
    pub way: Way,
    /// Remove it
    #[arg(long)]
    pub yes: bool,
}

/// Report whether `outlive supervise` starts at boot and whether it is running
#[derive(Debug, Default, Args)]
pub struct Status {}

/// How the machine is to start it.
#[derive(Debug, Default, Args)]
pub struct Way {
    /// By a systemd user unit (the default)
    #[arg(long, conflicts_with = "cron")]
    pub systemd: bool,
    /// By lines of the crontab: every five minutes, and when the machine starts
    #[arg(long)]
    pub cron: bool,
}

/// What is started, and for which registry.
pub struct Service {
    /// A name that no other registry's has.
    name: String,
    /// The registry, as its URL.
    registry: String,
    /// The home of this user's outlive. The machine starts the supervisor without the environment that names it.
    home: String,
    /// This program.
    program: PathBuf,
    slots: u16,
}

impl Service {
    fn of(context: &Context, slots: u16) -> Result<Self, Error> {
        let Location::Directory(path) = context.location()? else {
            return Err(Error::Invalid("only a registry of this machine has a supervisor on it".into()));
        };
        let text = nameable(&path)?;
        let home = outlive::host::home::home();
        let home = home.ok_or_else(|| Error::Invalid("no home: neither HOME nor OUTLIVE_HOME is set".into()))?;
        let program = std::env::current_exe().map_err(|error| Error::Invalid(error.to_string()))?;
        let digest: String = Sha256::digest(text.as_bytes())[..4].iter().map(|byte| format!("{byte:02x}")).collect();
        let (name, home) = (format!("outlive-{digest}"), nameable(&home)?);
        Ok(Self { name, registry: format!("sqlite:{text}"), home, program, slots })
    }

    /// The variable that gives the supervisor its home, whatever the machine sets.
    fn environment(&self) -> (&'static str, &str) {
        (outlive::host::home::HOME_VARIABLE, &self.home)
    }

    /// The words that it executes.
    fn words(&self, once: bool) -> Vec<String> {
        let slots = self.slots.to_string();
        let words =
            [&*self.program.to_string_lossy(), supervise::NAME, "--registry", &self.registry, "--slots", &slots];
        words.into_iter().chain(once.then_some("--once")).map(str::to_owned).collect()
    }
}

/// A path as a unit or a crontab can name it: absolute, and one line of text.
fn nameable(path: &Path) -> Result<String, Error> {
    let absolute = std::path::absolute(path).map_err(|error| Error::Invalid(error.to_string()))?;
    let path = absolute.canonicalize().unwrap_or(absolute);
    let text = path.to_str().filter(|text| !text.chars().any(char::is_control));
    text.map(str::to_owned).ok_or_else(|| Error::Invalid(format!("`{}` cannot be named in a service", path.display())))
}

/// What was written or removed.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ServiceChange {
    /// Whether it was done, or only shown.
    done: bool,
    verb: &'static str,
    /// The file, or the crontab.
    place: String,
    text: String,
    /// What to know, or to do, besides.
    notes: Vec<String>,
}

/// How the machine starts a supervisor, and whether one works.
#[derive(Debug, JsonSchema, Serialize)]
pub struct ServiceStatus {
    registry: String,
    /// The unit, if it is installed.
    systemd: Option<PathBuf>,
    /// What systemd says of it.
    unit: Option<String>,
    cron: bool,
    /// The run of the supervisor that works.
    supervisor: Option<RunId>,
}

impl Operate for Install {
    const NAME: &'static str = "service install";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive service install\noutlive service install --slots 2 --yes\n\
                                    outlive service install --cron --yes";
    type Output = ServiceChange;

    async fn operate(self, context: &Context) -> Result<ServiceChange, Error> {
        let service = Service::of(context, self.slots)?;
        if self.yes {
            // It is made before a supervisor is to look after it.
            context.registry().await?;
        }
        if self.way.cron { cron::install(&service, self.yes) } else { systemd::install(&service, self.yes) }
    }
}

impl Operate for Remove {
    const NAME: &'static str = "service remove";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive service remove\noutlive service remove --yes";
    type Output = ServiceChange;

    async fn operate(self, context: &Context) -> Result<ServiceChange, Error> {
        let service = Service::of(context, 1)?;
        if self.way.cron { cron::remove(&service, self.yes) } else { systemd::remove(&service, self.yes) }
    }
}

impl Operate for Status {
    const NAME: &'static str = "service status";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive service status";
    type Output = ServiceStatus;

    async fn operate(self, context: &Context) -> Result<ServiceStatus, Error> {
        let service = Service::of(context, 1)?;
        let mut supervisor = None;
        if let Some(registry) = context.existing().await? {
            let filter = Filter { kind: Some(SUPERVISOR_KIND.into()), ..Filter::in_states([StateName::Running]) };
            supervisor = registry.all(&filter).await?.first().map(|seen| seen.run.id);
        }
        let systemd = systemd::installed(&service);
        let unit = systemd.as_ref().and_then(|_| systemd::state(&service));
        let cron = cron::is_installed(&service);
        Ok(ServiceStatus { registry: service.registry, systemd, unit, cron, supervisor })
    }

    fn exit_status(found: &ServiceStatus) -> u8 {
        u8::from(found.supervisor.is_none())
    }
}

impl fmt::Display for ServiceChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}:", self.place)?;
        self.text.lines().try_for_each(|line| writeln!(f, "  {line}"))?;
        if self.done {
            writeln!(f, "{}", self.verb)?;
        } else {
            writeln!(f, "nothing was changed; add --yes to have this {}", self.verb)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

impl fmt::Display for ServiceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.systemd, &self.unit) {
            (Some(path), Some(state)) => writeln!(f, "systemd: {} ({state})", path.display())?,
            (Some(path), None) => writeln!(f, "systemd: {} (its state cannot be asked for)", path.display())?,
            (None, _) => writeln!(f, "systemd: not installed")?,
        }
        writeln!(f, "cron: {}", if self.cron { "installed" } else { "not installed" })?;
        match self.supervisor {
            Some(run) => writeln!(f, "a supervisor works: run {run}"),
            None => writeln!(f, "no supervisor works for {}", self.registry),
        }
    }
}
