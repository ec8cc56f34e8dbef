//! `outlive progress`: how far a run is, said from inside it.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::Report;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::inside::Claim;
use crate::call::{Context, Effect, Operate};

/// Inside a run: report progress
#[derive(Debug, Args)]
pub struct Progress {
    /// How much is done, or how much of how much: 40 or 40/100
    pub done: String,
    /// What is being done
    pub message: Option<String>,
    #[command(flatten)]
    pub claim: Claim,
}

/// How far it is.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Said {
    id: RunId,
    done: u64,
    total: Option<u64>,
    message: Option<String>,
}

impl Operate for Progress {
    const NAME: &'static str = "progress";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive progress 40/100 'epoch 4'";
    type Output = Said;

    async fn operate(self, context: &Context) -> Result<Said, Error> {
        let (id, epoch) = self.claim.attempt(context)?;
        let (done, total) = parse(&self.done)?;
        let progress = outlive::run::Progress { done: Some(done), total, message: self.message, ..Default::default() };
        let registry = context.for_report(&id.to_string()).await?;
        let run = registry.report(id, epoch, Report { progress: Some(progress), ..Report::default() }).await?;
        Ok(Said { id, done, total, message: run.progress.and_then(|progress| progress.message) })
    }
}

fn parse(text: &str) -> Result<(u64, Option<u64>), Error> {
    let invalid = || Error::Invalid(format!("`{text}` is not progress such as 40 or 40/100"));
    let number = |text: &str| text.parse::<u64>().map_err(|_| invalid());
    match text.split_once('/') {
        Some((done, total)) => Ok((number(done)?, Some(number(total)?))),
        None => Ok((number(text)?, None)),
    }
}

impl fmt::Display for Said {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
