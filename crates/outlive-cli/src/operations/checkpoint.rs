//! `outlive checkpoint`: what a run's next attempt is handed, set and read from inside it.

use std::fmt;
use std::io::Read;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::lifecycle::Report;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::call::inside::{Claim, Which};
use crate::call::{Context, Effect, Operate};

/// Inside a run: save a checkpoint for the next attempt
///
/// Durable when the command returns. Text that is not JSON is kept as text.
#[derive(Debug, Args)]
pub struct Set {
    /// JSON, or any text; `-` reads it from the standard input
    pub checkpoint: String,
    #[command(flatten)]
    pub claim: Claim,
}

/// How much of the standard input is read: more than any checkpoint may have.
const LIMIT: u64 = 64 << 20;

/// Inside a run: print the last checkpoint
///
/// Without one it prints nothing and ends with status 1.
#[derive(Debug, Default, Args)]
pub struct Get {
    #[command(flatten)]
    pub which: Which,
}

/// A checkpoint.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Checkpoint {
    id: RunId,
    checkpoint: Option<Value>,
    #[serde(skip)]
    quiet: bool,
}

impl Operate for Set {
    const NAME: &'static str = "checkpoint set";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive checkpoint set '{\"epoch\": 4}'";
    type Output = Checkpoint;

    fn effect(&self) -> Effect {
        if self.checkpoint == "-" { Effect::Local } else { Self::EFFECT }
    }

    async fn operate(self, context: &Context) -> Result<Checkpoint, Error> {
        let (id, epoch) = self.claim.attempt(context)?;
        let mut text = self.checkpoint;
        if text == "-" {
            text.clear();
            let read = std::io::stdin().take(LIMIT).read_to_string(&mut text);
            read.map_err(|error| Error::Invalid(format!("the checkpoint cannot be read: {error}")))?;
        }
        let checkpoint: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
        let registry = context.for_report(&id.to_string()).await?;
        registry.report(id, epoch, Report { checkpoint: Some(checkpoint.clone()), ..Report::default() }).await?;
        Ok(Checkpoint { id, checkpoint: Some(checkpoint), quiet: true })
    }
}

impl Operate for Get {
    const NAME: &'static str = "checkpoint get";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive checkpoint get";
    type Output = Checkpoint;

    async fn operate(self, context: &Context) -> Result<Checkpoint, Error> {
        let id = self.which.run(context)?;
        let registry = context.for_lookup(&id.to_string()).await?;
        Ok(Checkpoint { id, checkpoint: registry.get(id).await?.run.checkpoint, quiet: false })
    }

    fn exit_status(output: &Checkpoint) -> u8 {
        output.checkpoint.is_none().into()
    }
}

impl fmt::Display for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.checkpoint {
            Some(Value::String(text)) if !self.quiet => writeln!(f, "{text}"),
            Some(value) if !self.quiet => writeln!(f, "{value}"),
            _ => Ok(()),
        }
    }
}
