//! Operations: what outlive can do, declared once for every surface.
//!
//! The input struct of an operation is its declaration: its doc comment is the help, its fields are the flags and the
//! JSON fields. Its output is the JSON on every surface, and displayed it is the panel for people. Its effect says
//! whether it only reads. A surface is a loop over [`crate::operations::TABLE`].
#![cfg_attr(
    not(all(feature = "mcp", feature = "server")),
    allow(dead_code, reason = "needed by surfaces that are left out")
)]

#[cfg(any(feature = "mcp", feature = "server"))]
pub mod allowed;
#[cfg(any(feature = "mcp", feature = "server"))]
pub mod calls;
pub mod codes;
mod context;
mod failure;
mod fields;
pub mod inside;
pub mod json_word;
pub mod misuse;
pub mod progress;
#[cfg(feature = "server")]
pub mod tokens;

use std::ffi::OsString;
use std::fmt::Display;

use clap::{ArgMatches, Args, Command};
use outlive::error::{Code, Error};
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, ReplaceBoolSchemas};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};

pub use self::context::{Context, deliver};
pub use self::failure::{Failure, body, error_body, fail};
#[cfg(feature = "server")]
pub use self::fields::from_query;

/// The version of the JSON that every operation answers with.
pub const SCHEMA: u32 = 1;

/// The effect of an operation. A role that allows one allows all before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Nothing, not even a byte.
    Read,
    /// It changes or adds records.
    Write,
    /// It ends work that is in flight.
    Stop,
    /// It has something executed that the call names.
    Execute,
    /// It removes what cannot be restored.
    Destroy,
    /// It changes this machine, or whom this user trusts, or looks into this user's files: a call from a shell alone
    /// may.
    Local,
}

impl Effect {
    /// The permission that allows it, as `--allow` names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Stop => "stop",
            Self::Execute => "execute",
            Self::Destroy => "destroy",
            Self::Local => "local",
        }
    }

    /// The least role of a token that allows it.
    pub fn role(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write | Self::Stop => "operate",
            Self::Execute | Self::Destroy | Self::Local => "admin",
        }
    }
}

/// One thing that outlive can do.
pub trait Operate: Args {
    /// Its verb, behind the noun it belongs to where it has one: `ps`, `checkpoint get`.
    const NAME: &'static str;
    /// What it does.
    const EFFECT: Effect;
    /// Calls that show how it is used, one a line.
    const EXAMPLES: &'static str;
    /// What it answers.
    type Output: Serialize + Display + JsonSchema;

    /// Does it.
    fn operate(self, context: &Context) -> impl Future<Output = Result<Self::Output, Error>>;

    /// What this call does, where its fields say more of it than its verb.
    fn effect(&self) -> Effect {
        Self::EFFECT
    }

    /// Whether this call looks beyond the registry that is named, into the index or the queue of all repositories.
    fn is_beyond(&self) -> bool {
        false
    }

    /// The command with what its fields cannot say of each other.
    fn shape(command: Command) -> Command {
        command
    }

    /// The input with the words that said it, for an operation that hands them on.
    #[must_use]
    fn said_by(self, _words: Vec<OsString>) -> Self {
        self
    }

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
pub struct Operation {
    /// Its verb.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
    /// Its flags and help.
    pub command: fn() -> Command,
    /// The JSON Schema of its answer.
    pub output: fn() -> Value,
    /// Does what the flags say.
    pub call: fn(&ArgMatches, &Context, Form) -> Result<Answer, Error>,
    /// Does what the fields of a JSON object say.
    pub call_json: fn(Value, &Context) -> Result<Answer, Failure>,
}

impl Operation {
    /// The operation that `T` declares.
    pub const fn of<T: Operate>() -> Self {
        Self {
            name: T::NAME,
            effect: T::EFFECT,
            command: command::<T>,
            output: output::<T>,
            call: call::<T>,
            call_json: call_json::<T>,
        }
    }

    /// The JSON Schema of its input.
    pub fn input(&self) -> Value {
        fields::schema(&(self.command)())
    }

    /// Its help in one line, and all of it.
    pub fn about(&self) -> (String, String) {
        let command = (self.command)();
        let short = command.get_about().map(ToString::to_string).unwrap_or_default();
        let long = command.get_long_about().map(ToString::to_string);
        (short.clone(), long.unwrap_or(short))
    }
}

fn command<T: Operate>() -> Command {
    let examples: Vec<String> = T::EXAMPLES.lines().map(|line| format!("  {line}")).collect();
    let verb = T::NAME.rsplit(' ').next().unwrap_or(T::NAME);
    T::shape(T::augment_args(Command::new(verb))).after_help(format!("Examples:\n{}", examples.join("\n")))
}

fn output<T: Operate>() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
        // Some clients know no schema that is a mere `true`, and none knows a `uint32`.
        settings.transforms.push(Box::new(ReplaceBoolSchemas::default()));
        settings.transforms.push(Box::new(RecursiveTransform(|schema: &mut Schema| {
            if schema.get("format").and_then(Value::as_str).is_some_and(|format| format.contains("int")) {
                schema.remove("format");
            }
        })));
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T::Output>().to_value();
    // Of one that is either this or that, too.
    schema["type"] = "object".into();
    schema["properties"]["schema"] = json!({ "const": SCHEMA });
    schema
}

fn call<T: Operate>(matches: &ArgMatches, context: &Context, form: Form) -> Result<Answer, Error> {
    let input = T::from_arg_matches(matches).map_err(|error| Error::Invalid(error.to_string()))?;
    answer(input, context, form)
}

fn call_json<T: Operate>(input: Value, context: &Context) -> Result<Answer, Failure> {
    Ok(answer(read::<T>(input)?, context, Form::Json)?)
}

/// The input that a JSON object says.
pub fn read<T: Operate>(input: Value) -> Result<T, Failure> {
    let command = command::<T>().no_binary_name(true);
    let words = fields::words(&command, input).map_err(|why| Failure::new(Code::Invalid, &why))?;
    let matches = command.try_get_matches_from(&words).map_err(|error| Failure::of_fields(&error, T::NAME))?;
    Ok(T::from_arg_matches(&matches).map_err(|error| Failure::of_fields(&error, T::NAME))?.said_by(words))
}

/// The JSON of an answer: its own fields behind the version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    schema: u32,
    #[serde(flatten)]
    body: &'a T,
}

/// Does what the input says, and renders the answer.
pub fn answer<T: Operate>(input: T, context: &Context, form: Form) -> Result<Answer, Error> {
    context.permit(T::NAME, input.effect())?;
    if input.is_beyond() {
        context.permit_beyond(T::NAME)?;
    }
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
