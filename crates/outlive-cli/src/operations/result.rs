//! `outlive result`: what a run has returned.

use std::fmt;

use clap::Args;
use outlive::error::{Code, Error};
use outlive::id::RunId;
use outlive::run::StateName;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::call::{Context, Effect, Operate};
use crate::ui::quote;
use crate::ui::run_view::RunView;

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
        context.remember(&seen.run, &self.run);
        let id = seen.run.id;
        match &seen.run.result {
            Some(result) => Ok(Returned { id, result: (**result).clone() }),
            None => Err(no_result(&RunView::unsigned(&seen, &registry), &quote(self.run.as_bytes()))),
        }
    }
}

/// Why a run has no result, and what to type instead. The run is called as the caller called it, on every surface.
fn no_result(run: &RunView, called: &str) -> Error {
    let hint = match (run.state, &run.command) {
        (state, _) if !state.is_ended() => format!("`outlive wait {called}` waits until it has ended"),
        (StateName::Succeeded, Some(_)) => {
            format!("a command returns no result; `outlive logs {called}` prints its output")
        }
        (_, Some(_)) => {
            format!("`outlive why {called}` shows why; `outlive logs {called} -n 20` prints the end of its output")
        }
        (_, None) => format!("`outlive why {called}` shows why"),
    };
    let message = format!("run `{called}` has no result: it {}", run.stands());
    Error::Reported { code: Code::Invalid, message, hint: Some(hint) }
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.result {
            Value::String(text) => writeln!(f, "{text}"),
            value => writeln!(f, "{value}"),
        }
    }
}
