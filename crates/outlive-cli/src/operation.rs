//! Operations: what outlive can do, declared once for every surface.
//!
//! The input struct of an operation is its declaration: its doc comment is the help, its fields are the flags and the
//! JSON fields. Its output is the JSON on every surface, and displayed it is the panel for people. Its effect says
//! whether it only reads. A surface is a loop over [`crate::operations::TABLE`].

use std::fmt::Display;

use clap::{ArgMatches, Args, Command};
use outlive::error::{Code, Error};
use outlive::redact::Redactor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::settings::Context;

/// The version of the JSON that every operation answers with.
pub const SCHEMA: u32 = 1;

/// What an operation does to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing, not even a byte.
    Read,
    /// It changes or adds records.
    Write,
}

/// One thing that outlive can do.
pub trait Operate: Args + DeserializeOwned {
    /// Its verb, behind the noun it belongs to where it has one: `ps`, `checkpoint get`.
    const NAME: &'static str;
    /// What it does to the registry.
    const EFFECT: Effect;
    /// Calls that show how it is used, one a line.
    const EXAMPLES: &'static str;
    /// What it answers.
    type Output: Serialize + Display;

    /// Does it.
    fn operate(self, context: &Context) -> impl Future<Output = Result<Self::Output, Error>>;

    /// The exit status of an answer that is no error and yet no plain success.
    fn exit_status(_output: &Self::Output) -> u8 {
        0
    }
}

/// What an answer is rendered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For programs.
    Json,
    /// For people.
    Text,
}

/// An answer, rendered.
pub struct Answer {
    /// What it says, with the end of its last line.
    pub text: String,
    /// For the shell.
    pub exit_status: u8,
}

/// An operation as a surface sees it.
#[allow(dead_code, reason = "the command line needs neither effect nor JSON input; the other surfaces do")]
pub struct Operation {
    /// Its verb.
    pub name: &'static str,
    /// What it does to the registry.
    pub effect: Effect,
    /// Its flags and help.
    pub command: fn() -> Command,
    /// Does what the flags say.
    pub call: fn(&ArgMatches, &Context, Form) -> Result<Answer, Error>,
    /// Does what the fields of a JSON object say.
    pub call_json: fn(Value, &Context) -> Result<Answer, Error>,
}

impl Operation {
    /// The operation that `T` declares.
    pub const fn of<T: Operate>() -> Self {
        Self { name: T::NAME, effect: T::EFFECT, command: command::<T>, call: call::<T>, call_json: call_json::<T> }
    }
}

fn command<T: Operate>() -> Command {
    let examples: Vec<String> = T::EXAMPLES.lines().map(|line| format!("  {line}")).collect();
    let verb = T::NAME.rsplit(' ').next().unwrap_or(T::NAME);
    T::augment_args(Command::new(verb)).after_help(format!("Examples:\n{}", examples.join("\n")))
}

fn call<T: Operate>(matches: &ArgMatches, context: &Context, form: Form) -> Result<Answer, Error> {
    let input = T::from_arg_matches(matches).map_err(|error| Error::Invalid(error.to_string()))?;
    answer(input, context, form)
}

fn call_json<T: Operate>(input: Value, context: &Context) -> Result<Answer, Error> {
    let input = serde_json::from_value(input).map_err(|error| Error::Invalid(format!("{}: {error}", T::NAME)))?;
    answer::<T>(input, context, Form::Json)
}

/// The JSON of an answer: its own fields behind the version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema: u32,
    #[serde(flatten)]
    body: &'a T,
}

fn answer<T: Operate>(input: T, context: &Context, form: Form) -> Result<Answer, Error> {
    context.answer_as(form);
    let output = pollster::block_on(input.operate(context))?;
    let text = match form {
        Form::Json => {
            let versioned = Versioned { schema: SCHEMA, body: &output };
            serde_json::to_string(&versioned).map_err(|error| Error::Invalid(error.to_string()))? + "\n"
        }
        Form::Text => output.to_string(),
    };
    Ok(Answer { text, exit_status: T::exit_status(&output) })
}

/// What an error says, without the secrets that may have been part of what was asked for.
pub fn harmless(error: &Error) -> String {
    Redactor::default().text(&error.to_string())
}

/// The body of every error, on every surface.
pub fn error_body(error: &Error) -> Value {
    body(error.code(), &harmless(error), error.hint())
}

/// The same, of an error that a surface itself has found.
pub fn body(code: Code, message: &str, hint: Option<String>) -> Value {
    json!({ "schema": SCHEMA, "error": { "code": code.as_str(), "message": message, "hint": hint } })
}

/// The exit statuses and what they mean, for the help.
pub fn exit_status_table() -> String {
    let mut codes = Code::ALL;
    codes.sort_by_key(|code| code.exit_status());
    let rows = codes.map(|code| format!("  {:>3}  {}: {}", code.exit_status(), code.as_str(), code.meaning()));
    format!(
        "Exit status:\n    0  done\n    1  done, and the answer is no: `wait`, `attach`, `adopt`, `checkpoint get`, `doctor`,\n       \
         `cancel --wait`, `logs --exit-status`, `resume`, `work --drain`, `service status`\n{}\n  \
         126  `run`: the command cannot be executed\n  127  `run`: the command is not found\n    \
         n  `run`, `wait`, `attach`, `adopt`, `logs --exit-status`: the command's own, or 128 plus\n       \
         the number of the signal that ended it",
        rows.join("\n")
    )
}
