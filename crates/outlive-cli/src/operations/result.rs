//! `outlive result`: what a run has returned.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::call::{Context, Effect, Operate};

/// Print what a run has returned
///
/// The result of a handler: JSON, or a text as it is. A command has none; `outlive logs` prints what it wrote.
#[derive(Debug, Args)]
pub struct GetResult {
    /// A run: id or unique prefix, name, @last, or @~2
    pub run: String,
}

/// What a run has returned.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Returned {
    id: RunId,
    result: Value,
}

impl Operate for GetResult {
    const NAME: &'static str = "result";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive result migrate\noutlive result @last --json";
    type Output = Returned;

    async fn operate(self, context: &Context) -> Result<Returned, Error> {
        let registry = context.for_lookup(&self.run).await?;
        let seen = registry.find(&self.run).await?;
        let id = seen.run.id;
        match &seen.run.result {
            Some(result) => Ok(Returned { id, result: (**result).clone() }),
            None => Err(Error::Invalid(format!("run `{}` has no result: it is {}", self.run, seen.run.state.name()))),
        }
    }
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Value::String(text) => writeln!(f, "{text}"),
            value => writeln!(f, "{value}"),
        }
    }
}
