//! `outlive trust`: allows runs of other users to be executed, and has the homes of a fleet trust each other.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use clap::{Args, ValueEnum};
use outlive::error::Error;
use outlive::id::SystemEntropy;
use outlive::lifecycle::health::RunStatus;
use outlive::registry::Registry;
use outlive::secrets::trust::FleetKey;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::ui::plain;
use crate::ui::run_view::RunView;

/// How much of the standard input is read: more than any fleet key has.
const LIMIT: u64 = 4 << 10;

/// Allow runs of other users to be executed
///
/// A registry may come with a cloned repository, or others may write to it. Their runs are shown but not executed
/// until you have read and allowed them here. Without --yes it only shows what would be allowed.
///
/// With --fleet the homes of a fleet trust each other. `outlive trust --fleet` makes a key for this registry in this
/// home. `outlive trust --fleet export | ssh HOST outlive trust --fleet import` shares it with another home. From
/// then on the workers of all these homes execute what any of them queues in this registry. The key is a secret: its
/// holder can execute commands on every machine of the fleet.
#[derive(Debug, Default, Args)]
#[command(override_usage = "outlive trust [OPTIONS] <RUNS>... [--yes]\n       outlive trust --fleet [ACTION]")]
pub struct Trust {
    /// Runs: ids or unique prefixes, names, @last, or @~2
    #[arg(required_unless_present = "fleet")]
    pub runs: Vec<String>,
    /// Allow them
    #[arg(long)]
    pub yes: bool,
    /// Make this registry's fleet key in this home, print it, or read one from the standard input
    #[arg(long, value_enum, value_name = "ACTION", num_args = 0..=1, default_missing_value = "create")]
    #[arg(conflicts_with_all = ["runs", "yes"])]
    pub fleet: Option<FleetAction>,
}

/// What is done about the key of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FleetAction {
    /// Make the key, unless this home has it
    Create,
    /// Print the key
    Export,
    /// Read the key from the standard input
    Import,
}

/// What was allowed.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Trusted {
    allowed: bool,
    runs: Vec<TrustedRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<Fleet>,
}

/// This home as a member of a fleet.
#[derive(Debug, JsonSchema, Serialize)]
struct Fleet {
    /// The identity of the registry that the key is for.
    registry: String,
    /// This call made the key.
    made: bool,
    /// The key, where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip)]
    place: String,
}

/// All of a run that would be executed, or changes what is.
#[derive(Debug, JsonSchema, Serialize)]
struct TrustedRun {
    #[serde(flatten)]
    run: RunView,
    /// The file that is executed, where it is on record.
    program: Option<String>,
    env: BTreeMap<String, String>,
    /// What a shell executes when it has ended.
    notify: Option<String>,
}

impl TrustedRun {
    fn new(seen: &RunStatus, registry: &Registry) -> Self {
        let spec = &seen.run.spec;
        let command = spec.command.as_ref();
        Self {
            run: RunView::new(seen, registry),
            program: command.and_then(|command| Some(command.program.as_ref()?.path.to_string())),
            env: command.map(|command| command.env.clone()).unwrap_or_default(),
            notify: spec.notify.clone(),
        }
    }
}

impl Operate for Trust {
    const NAME: &'static str = "trust";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive trust nightly\noutlive trust nightly --yes\noutlive trust --fleet";
    type Output = Trusted;

    async fn operate(self, context: &Context) -> Result<Trusted, Error> {
        if let Some(action) = self.fleet {
            let fleet = Some(join_fleet(action, context).await?);
            return Ok(Trusted { allowed: true, runs: Vec::new(), fleet });
        }
        let registry = context.for_report(self.runs.first().map_or("", String::as_str)).await?;
        let trust = registry
            .trust()
            .ok_or_else(|| Error::Invalid("there is no home to keep it in: set OUTLIVE_HOME".into()))?;
        let mut found = Vec::new();
        for run in &self.runs {
            let seen = registry.find(run).await?;
            context.remember(&seen.run, run);
            found.push(seen);
        }
        if self.yes {
            let identity = registry.identities().into_iter().next().ok_or_else(nameless)?;
            for seen in &found {
                let noted = trust.allow(&identity, &seen.run);
                noted.map_err(|error| Error::Invalid(format!("it cannot be noted: {error}")))?;
            }
        }
        let runs = found.iter().map(|seen| TrustedRun::new(seen, &registry)).collect();
        Ok(Trusted { allowed: self.yes, runs, fleet: None })
    }
}

fn nameless() -> Error {
    Error::Invalid("this registry is a copy: its runs belong to the original until something is written here".into())
}

async fn join_fleet(action: FleetAction, context: &Context) -> Result<Fleet, Error> {
    let registry = context.registry().await?;
    let no_home = || Error::Invalid("there is no home to keep the fleet key in: set OUTLIVE_HOME".into());
    let trust = registry.trust().ok_or_else(no_home)?;
    let identity = registry.identities().into_iter().next().ok_or_else(nameless)?;
    let place = registry.shown();
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            Error::Invalid(format!("this home has no fleet key for {place}: `outlive trust --fleet` makes one"))
        }
        _ => Error::Invalid(format!("the fleet key cannot be kept: {error}")),
    };
    let (made, key) = match action {
        FleetAction::Create => (trust.make_fleet_key(&identity, &SystemEntropy).map_err(failed)?.1, None),
        FleetAction::Export => (false, Some(trust.export_fleet_key(&identity).map_err(failed)?.to_string())),
        FleetAction::Import => {
            let mut text = String::new();
            let read = std::io::stdin().take(LIMIT).read_to_string(&mut text);
            read.map_err(|error| Error::Invalid(format!("the fleet key cannot be read: {error}")))?;
            let key: FleetKey = text.parse().map_err(|error| Error::Invalid(format!("{error}")))?;
            if key.registry != identity {
                let why = format!("this fleet key is for another registry than {place}: name that with --registry");
                return Err(Error::Invalid(why));
            }
            trust.import_fleet_key(&key).map_err(failed)?;
            (false, None)
        }
    };
    Ok(Fleet { registry: identity, made, key, place })
}

impl Fleet {
    fn tell(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(key) = &self.key {
            return writeln!(f, "{key}");
        }
        let made = if self.made { "made, and kept" } else { "kept" };
        writeln!(f, "the fleet key for {} is {made} in this home", plain(&self.place))?;
        writeln!(f, "what is queued here from now on is executed by every home that has it")?;
        writeln!(f, "another home: outlive trust --fleet export | ssh HOST outlive trust --fleet import")
    }
}

impl fmt::Display for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fleet) = &self.fleet {
            return fleet.tell(f);
        }
        for shown in &self.runs {
            let run = &shown.run;
            let command = run.command_line.clone().unwrap_or_else(|| plain(&run.kind));
            writeln!(f, "{}  made by {}", run.id, plain(&run.created_by))?;
            writeln!(f, "  runs: {command}")?;
            writeln!(f, "  in:   {}", plain(run.cwd.as_deref().unwrap_or("-")))?;
            if let Some(program) = &shown.program {
                writeln!(f, "  from: {}", plain(program))?;
            }
            for (name, value) in &shown.env {
                writeln!(f, "  with: {}", plain(&format!("{name}={value}")))?;
            }
            if let Some(notify) = &shown.notify {
                writeln!(f, "  then: {}", plain(notify))?;
            }
        }
        if self.allowed { writeln!(f, "allowed") } else { writeln!(f, "nothing was changed; add --yes to allow this") }
    }
}
