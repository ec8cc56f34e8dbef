//! `outlive fence`: whether an attempt still owns its run, asked from inside it.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::Refusal;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::inside::Claim;
use crate::call::{Context, Effect, Operate};

/// Inside a run: check that this attempt still owns the run
///
/// Exits with 0 while it does, and with `lost` as soon as another attempt may own the run. Call it right before an
/// effect that must not happen twice.
#[derive(Debug, Default, Args)]
pub struct Check {
    #[command(flatten)]
    pub claim: Claim,
}

/// The fence holds.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Holds {
    id: RunId,
    epoch: u64,
}

impl Operate for Check {
    const NAME: &'static str = "fence check";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive fence check && echo publish";
    type Output = Holds;

    async fn operate(self, context: &Context) -> Result<Holds, Error> {
        let (id, epoch) = self.claim.attempt(context)?;
        let registry = context.for_lookup(&id.to_string()).await?;
        let run = registry.get(id).await?.run;
        if !run.is_current(epoch) {
            let refusal = Refusal::Lost { state: run.state.name(), epoch: run.epoch, claimed: epoch };
            return Err(Error::Refused { run: id, refusal });
        }
        Ok(Holds { id, epoch: epoch.0 })
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
