//! Failures as every surface reports them: one body, and the text for people.

use outlive::error::{Candidate, Code, Error};
use outlive::redact::Redactor;
use outlive::time::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};

use super::SCHEMA;
use super::codes::status;
use super::misuse::{Misuse, where_described};
use crate::ui::run_view::moment;
use crate::ui::typed::in_words;
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

    /// A call of this process whose words make no sense.
    pub fn of_call(error: &clap::Error) -> Self {
        Self::of_misuse(Misuse::of(error))
    }

    /// A call of a verb whose fields make no sense.
    pub fn of_fields(error: &clap::Error, verb: &str) -> Self {
        Self::of_misuse(Misuse::of_verb(error, Some(verb)))
    }

    fn of_misuse(misuse: Misuse) -> Self {
        let Misuse { message, hints, .. } = misuse;
        Self { code: Code::Invalid, body: body(Code::Invalid, &message, Some(hints.join("; "))) }
    }
}

/// Prints what went wrong and what to type next. Answers with the exit status of the error.
pub fn fail(error: &Error, json: bool) -> u8 {
    // What to type is in the help where the error itself names nothing.
    let hint = error.hint().or_else(|| where_described().filter(|_| matches!(error, Error::Invalid(_))));
    let text = if json {
        format!("{}\n", error_body(error))
    } else {
        let hint = hint.map(|hint| format!("hint: {}\n", plain(&in_words(&hint, &error.runs()))));
        format!("error: {}\n{}", shown(error), hint.unwrap_or_default())
    };
    talk(&text);
    status(error.code()).exit
}

/// An error for people: runs have the names that were typed, times are local, and the runs that may have been meant have a
/// line each.
fn shown(error: &Error) -> String {
    let (what, candidates, more) = match error {
        Error::Ambiguous { what, candidates, more } => {
            (what, candidates.iter().map(Candidate::to_string).collect::<Vec<_>>(), more)
        }
        Error::AmbiguousRepository { what, candidates, more } => (what, candidates.clone(), more),
        _ => {
            let text = in_words(&harmless(error), &error.runs());
            let now = SystemClock.now();
            let local = |text: String, at: Timestamp| text.replace(&at.to_string(), &moment(at, now));
            return plain(&error.time().into_iter().fold(text, local));
        }
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
