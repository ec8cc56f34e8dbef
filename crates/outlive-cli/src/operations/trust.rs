//! `outlive trust`: allows what somebody else made to be executed.

use std::collections::BTreeMap;
use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::health::Seen;
use outlive::registry::Registry;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operation::{Effect, Operate};
use crate::run_view::RunView;
use crate::settings::Context;
use crate::terminal::plain;

/// Allow runs to be executed that somebody else made
///
/// A registry may have come with a cloned repository, or be written by others. What they put there is shown and never
/// executed, until you have read it and allowed it here. Without --yes it only shows what would be allowed.
#[derive(Debug, Default, Args)]
pub struct Trust {
    /// Ids, beginnings of ids, names, @last, or @~2
    #[arg(required = true)]
    pub runs: Vec<String>,
    /// Allow them
    #[arg(long)]
    pub yes: bool,
}

/// What was allowed.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Trusted {
    allowed: bool,
    runs: Vec<Shown>,
}

/// All of a run that would be executed, or changes what is.
#[derive(Debug, JsonSchema, Serialize)]
struct Shown {
    #[serde(flatten)]
    run: RunView,
    /// The file that is executed, where it is on record.
    program: Option<String>,
    env: BTreeMap<String, String>,
    /// What a shell executes when it has ended.
    notify: Option<String>,
}

impl Shown {
    fn new(seen: &Seen, registry: &Registry) -> Self {
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
    const EXAMPLES: &'static str = "outlive trust nightly\noutlive trust nightly --yes";
    type Output = Trusted;

    async fn operate(self, context: &Context) -> Result<Trusted, Error> {
        let registry = context.for_report(self.runs.first().map_or("", String::as_str)).await?;
        let trust = registry
            .trust()
            .ok_or_else(|| Error::Invalid("there is no home to keep it in: set OUTLIVE_HOME".into()))?;
        let mut found = Vec::new();
        for run in &self.runs {
            found.push(registry.find(run).await?);
        }
        if self.yes {
            for seen in &found {
                trust.allow(&seen.run).map_err(|error| Error::Invalid(format!("it cannot be noted: {error}")))?;
            }
        }
        Ok(Trusted { allowed: self.yes, runs: found.iter().map(|seen| Shown::new(seen, &registry)).collect() })
    }
}

impl fmt::Display for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
