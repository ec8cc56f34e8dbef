//! `outlive artifact`: what a run has made, named from inside it.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::transition::Report;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operation::inside::Claim;
use crate::operation::{Effect, Operate};
use crate::settings::Context;

/// Inside a run: name something that it has made
#[derive(Debug, Args)]
pub struct Add {
    /// A path, a URL, anything that finds it again
    pub artifact: String,
    #[command(flatten)]
    pub claim: Claim,
}

/// What the run has made so far.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Added {
    id: RunId,
    artifacts: Vec<String>,
}

impl Operate for Add {
    const NAME: &'static str = "artifact add";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive artifact add model.bin";
    type Output = Added;

    async fn operate(self, context: &Context) -> Result<Added, Error> {
        let (id, epoch) = self.claim.attempt(context)?;
        let registry = context.for_report(&id.to_string()).await?;
        let report = Report { artifact: Some(self.artifact), ..Report::default() };
        Ok(Added { id, artifacts: registry.report(id, epoch, report).await?.artifacts })
    }
}

impl fmt::Display for Added {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
