//! `outlive artifact`: what a run has made, named from inside it.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::Report;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::inside::Claim;
use crate::call::{Context, Effect, Operate};

/// Inside a run: record an artifact
#[derive(Debug, Args)]
pub struct Add {
    /// A path, a URL, anything that finds it again
    pub artifact: String,
    #[command(flatten)]
    pub claim: Claim,
}

/// Inside a run: record the manifest that lists the artifacts to keep
///
/// Call it once the manifest is in place and before anything points at it: the reference is durable when this
/// returns, and refused with `lost` where another attempt may own the run.
#[derive(Debug, Args)]
pub struct Manifest {
    /// Where it is: below what `outlive run --artifacts` named
    pub manifest: String,
    #[command(flatten)]
    pub claim: Claim,
}

/// The manifest on record.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Named {
    id: RunId,
    manifest_ref: Option<String>,
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

impl Operate for Manifest {
    const NAME: &'static str = "artifact manifest";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive artifact manifest manifests/latest.json && echo point at it";
    type Output = Named;

    async fn operate(self, context: &Context) -> Result<Named, Error> {
        let (id, epoch) = self.claim.attempt(context)?;
        let registry = context.for_report(&id.to_string()).await?;
        let report = Report { manifest_ref: Some(self.manifest), ..Report::default() };
        Ok(Named { id, manifest_ref: registry.report(id, epoch, report).await?.manifest_ref })
    }
}

impl fmt::Display for Named {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl fmt::Display for Added {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
