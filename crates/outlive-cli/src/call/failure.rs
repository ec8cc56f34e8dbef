//! Failures as every surface reports them: one body, and the text for people.

use outlive::error::{Candidate, Code, Error};
use outlive::redact::Redactor;
use serde_json::{Value, json};

use super::SCHEMA;
use super::codes::status;
use crate::ui::{plain, talk};

/// A refusal or failure, as every surface tells it.
pub struct Failure {
    /// Its kind.
    pub code: Code,
    /// The body that says so.
    pub body: Value,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { code: error.code(), body: error_body(&error) }
    }
}

impl Failure {
    /// One that a surface itself has found.
    pub fn new(code: Code, message: &str) -> Self {
        Self { code, body: body(code, message, None) }
    }

    /// What it says.
    pub fn message(&self) -> &str {
        self.body["error"]["message"].as_str().unwrap_or_default()
    }

    /// A call whose words or fields make no sense.
    pub fn of_call(error: &clap::Error) -> Self {
        let text = error.render().to_string();
        let message = text.split("\n\n").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let tips: Vec<&str> = text.lines().filter_map(|line| line.trim_start().strip_prefix("tip: ")).collect();
        let hint = if tips.is_empty() {
            "`outlive --help` lists the commands and their flags".into()
        } else {
            tips.join("; ")
        };
        Self { code: Code::Invalid, body: body(Code::Invalid, message.trim_start_matches("error: "), Some(hint)) }
    }
}

/// Prints what went wrong and what to type next. Answers with the exit status of the error.
pub fn fail(error: &Error, json: bool) -> u8 {
    let text = if json {
        format!("{}\n", error_body(error))
    } else {
        let hint = error.hint().map(|hint| format!("hint: {}\n", plain(&hint))).unwrap_or_default();
        format!("outlive: {}\n{hint}", shown(error))
    };
    talk(&text);
    status(error.code()).exit
}

/// An error for people: the runs that may have been meant have a line each.
fn shown(error: &Error) -> String {
    let (what, candidates, more) = match error {
        Error::Ambiguous { what, candidates, more } => {
            (what, candidates.iter().map(Candidate::to_string).collect::<Vec<_>>(), more)
        }
        Error::AmbiguousRepository { what, candidates, more } => (what, candidates.clone(), more),
        _ => return plain(&harmless(error)),
    };
    let lines: String = candidates.iter().map(|line| format!("\n  {}", plain(line))).collect();
    format!("`{}` names several runs:{lines}{}", plain(what), if *more { "\n  and more" } else { "" })
}

/// What an error says, without the secrets that may have been part of what was asked for.
fn harmless(error: &Error) -> String {
    Redactor::default().text(&error.to_string())
}

/// The body of every error, on every surface.
pub fn error_body(error: &Error) -> Value {
    body(error.code(), &harmless(error), error.hint())
}

/// The body of an error that a surface itself has found.
pub fn body(code: Code, message: &str, hint: Option<String>) -> Value {
    json!({ "schema": SCHEMA, "error": { "code": code.as_str(), "message": message, "hint": hint } })
}
