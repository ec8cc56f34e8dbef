//! Outcomes: what a handler may answer, and what is recorded of it.

use serde::Serialize;
use serde_json::Value;

use crate::model::run::{DEPTH_LIMIT, DOCUMENT_LIMIT, is_deeper};

/// What a handler returns that is not a failure. A handler that always succeeds returns its result instead; one that
/// may stop or wait returns this.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Done {
    /// It did what it was to do, and returned this. `Null` is no result.
    Succeeded(Value),
    /// It waits for something, such as the approval of a person, and this is the question. `outlive resume`, an MCP client
    /// that answers it or [`Registry::wake_queued`](crate::Registry::wake_queued) has a worker call the handler again, in
    /// the same attempt and with its checkpoint.
    Suspended(String),
    /// It stopped because it was asked to, and is recorded as what was asked for.
    Stopped,
}

/// A failure that a handler returns: a class that [`Retry::permanent`](crate::Retry) can name, and a message for
/// people. `?` makes one of any error, with the class `error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// A class that a policy can name.
    pub error_type: String,
    /// For people.
    pub error_message: String,
}

impl Failed {
    /// A failure of this class.
    pub fn new(error_type: impl Into<String>, error_message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), error_message: error_message.into() }
    }
}

impl<E: std::error::Error> From<E> for Failed {
    /// A failure of the class `error`, with the causes of the error.
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let said = error.to_string();
            if !message.contains(&said) {
                message = format!("{message}: {said}");
            }
            cause = error.source();
        }
        Self::new("error", message)
    }
}

/// What a handler may return: anything that serialises, which becomes the run's result, or a [`Done`].
pub trait IntoDone {
    /// The outcome. Fails where the value cannot be written as JSON, or is too large to be kept with a run.
    fn into_done(self) -> Result<Done, Failed>;
}

impl<T: Serialize> IntoDone for T {
    fn into_done(self) -> Result<Done, Failed> {
        let value = serde_json::to_value(self)
            .map_err(|error| Failed::new("result", format!("its result cannot be written as JSON: {error}")))?;
        Done::Succeeded(value).into_done()
    }
}

impl IntoDone for Done {
    fn into_done(self) -> Result<Done, Failed> {
        match &self {
            Self::Succeeded(result) => match result.to_string().len() {
                size if size > DOCUMENT_LIMIT => Err(Failed::new(
                    "result",
                    format!("its result has {size} bytes, more than {DOCUMENT_LIMIT}: store it elsewhere"),
                )),
                _ if is_deeper(result, DEPTH_LIMIT) => {
                    Err(Failed::new("result", format!("its result is nested more than {DEPTH_LIMIT} levels deep")))
                }
                _ => Ok(self),
            },
            Self::Suspended(_) | Self::Stopped => Ok(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_becomes_the_result_and_one_too_large_a_failure() {
        assert_eq!(().into_done(), Ok(Done::Succeeded(Value::Null)));
        assert_eq!(vec![1, 2].into_done(), Ok(Done::Succeeded(serde_json::json!([1, 2]))));
        assert_eq!(Done::Stopped.into_done(), Ok(Done::Stopped));
        assert_eq!("x".repeat(DOCUMENT_LIMIT).into_done().unwrap_err().error_type, "result");
        let deep = (0..60).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
        assert_eq!(deep.into_done().unwrap_err().error_message, "its result is nested more than 48 levels deep");
        let keyed: std::collections::BTreeMap<Vec<u8>, u8> = [(vec![1], 1)].into();
        assert_eq!(keyed.into_done().unwrap_err().error_type, "result");
    }

    #[test]
    fn a_failure_names_the_causes_of_its_error_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("the import failed")]
        struct Import(#[source] std::io::Error);
        let failed = Failed::from(Import(std::io::Error::other("no such table")));
        assert_eq!(failed.error_message, "the import failed: no such table");
    }
}
