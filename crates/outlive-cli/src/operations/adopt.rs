//! `adopt` for callers of a server: an owner of its own takes over the live processes of a run.
//!
//! On the command line `outlive adopt` becomes that owner itself.

use std::fmt;

use clap::Args;
use nix::sys::signal::SigSet;
use outlive::error::Error;
use outlive::id::RunId;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::exec::adopt;
use crate::exec::detach::Starting;
use crate::lookup::located::{RegistryRef, locate_one};
use crate::operations::run::collect;

/// Take over a run whose owner died and whose processes still run
///
/// An owner in the background sends heartbeats for it, accepts cancel requests and follows it to its end. Refused while
/// the owner is alive, and where no process is left.
#[derive(Debug, Default, Args)]
pub struct Adopt {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    pub run: String,
}

/// A run that has an owner again.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Adopted {
    id: RunId,
}

impl Operate for Adopt {
    const NAME: &'static str = adopt::NAME;
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive adopt -d train";
    type Output = Adopted;

    async fn operate(self, context: &Context) -> Result<Adopted, Error> {
        let (RegistryRef { registry, .. }, seen) = locate_one(context, &self.run, Self::EFFECT).await?;
        let id = seen.run.id;
        let run = id.to_string();
        let words = ["outlive", "--registry", registry.url(), adopt::NAME, "--detach", &run];
        let failed = |error| Error::Invalid(format!("run `{id}` cannot be adopted: {error}"));
        let starting = Starting::begin(&words.map(Into::into), &SigSet::empty()).map_err(failed)?;
        collect(starting.pid);
        starting.wait().map_err(failed)?.owned()?;
        Ok(Adopted { id })
    }
}

impl fmt::Display for Adopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.id)
    }
}
