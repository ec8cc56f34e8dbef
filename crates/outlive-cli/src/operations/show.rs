use std::fmt;

use clap::Args;
use outlive::error::Error;
use serde::{Deserialize, Serialize};

use crate::operation::{Effect, Operate};
use crate::run_view::RunView;
use crate::settings::Context;
use crate::terminal::plain;

/// Show one run: its spec, how it stands, and what to do next
#[derive(Debug, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// An id, the beginning of one, a name, @last, or @~2
    pub run: String,
}

/// One run.
#[derive(Debug, Serialize)]
pub struct Shown {
    #[serde(flatten)]
    run: RunView,
}

impl Operate for Show {
    const NAME: &'static str = "show";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive show train\noutlive show @last --json";
    type Output = Shown;

    async fn operate(self, context: &Context) -> Result<Shown, Error> {
        let registry = context.for_lookup(&self.run).await?;
        let seen = registry.find(&self.run).await?;
        Ok(Shown { run: RunView::new(&seen, &registry) })
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = &self.run;
        let mut line = |label: &str, value: Option<String>| match value {
            Some(value) if !value.is_empty() => writeln!(f, "{label:<10}{value}"),
            _ => Ok(()),
        };
        line("run", Some(run.id.to_string()))?;
        line("name", run.name.as_deref().map(plain))?;
        line("kind", Some(plain(&run.kind)))?;
        line("command", run.command.as_ref().map(|command| plain(&command.join(" "))))?;
        line("in", run.cwd.as_deref().map(plain))?;
        line("state", Some(run.word().into()))?;
        line("reason", run.reason.as_deref().map(plain))?;
        line("attempt", Some(format!("{} (epoch {})", run.attempt, run.epoch)))?;
        line("progress", Some(run.progress()))?;
        line("message", run.progress_message.as_deref().map(plain))?;
        line(
            "owner",
            run.owner_pid.map(|pid| format!("pid {pid} on {}", plain(run.owner_host.as_deref().unwrap_or("?")))),
        )?;
        line("last beat", run.last_beat_at.map(|at| at.to_string()))?;
        line("made", Some(format!("{} by {}", run.created_at, plain(&run.created_by))))?;
        line("started", run.started_at.map(|at| at.to_string()))?;
        line("ended", run.ended_at.map(|at| at.to_string()))?;
        line("took", Some(run.duration()))?;
        line(
            "exit",
            run.exit_code.map(|code| code.to_string()).or(run.signal.map(|signal| format!("signal {signal}"))),
        )?;
        line("error", run.error_type.as_deref().map(plain))?;
        line(
            "labels",
            Some(run.labels.iter().map(|(key, value)| plain(&format!("{key}={value}"))).collect::<Vec<_>>().join(" ")),
        )?;
        let not_mine = "made by somebody else; `outlive trust` allows it to be executed";
        line("trust", (!run.trusted && run.command.is_some()).then(|| not_mine.into()))?;
        line("next", run.next_step())
    }
}
