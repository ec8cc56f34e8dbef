//! Outcomes: what a handler may answer, and what is recorded of it.

use std::error::Error;
use std::fmt;

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
/// people. `?` makes one of every type that implements [`std::error::Error`], with the class `error`.
/// [`Failed::from_error`] makes one of the others: `anyhow::Error`, `Box<dyn Error + Send + Sync>` and text.
///
/// ```
/// use outlive::Failed;
///
/// fn charge(card: &str) -> Result<(), Failed> {
///     let number: u64 = card.parse()?; // the class is `error`, and the policy of the run says whether it is retried
///     if number == 0 {
///         return Err(Failed::new("card", "no card has the number 0").permanent()); // never retried
///     }
///     Err("the bank is closed").map_err(Failed::from_error)
/// }
/// assert_eq!(charge("0").unwrap_err().to_string(), "card: no card has the number 0");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failed {
    /// A class that a policy can name.
    pub error_type: String,
    /// For people.
    pub error_message: String,
    /// No further attempt would change it: the run is not retried, whatever its policy says.
    pub permanent: bool,
}

impl Failed {
    /// A failure of this class.
    pub fn new(error_type: impl Into<String>, error_message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), error_message: error_message.into(), permanent: false }
    }

    /// A failure of the class `error`, with the causes of the error: of any error, boxed ones and `anyhow::Error` included.
    pub fn from_error(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        Self::of(error.to_string(), error.source())
    }

    /// This failure, as one that no further attempt would change: the run is not retried, whatever its policy says.
    #[must_use]
    pub fn permanent(self) -> Self {
        Self { permanent: true, ..self }
    }

    fn of(mut message: String, mut cause: Option<&(dyn Error + 'static)>) -> Self {
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

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.error_type, self.error_message)
    }
}

impl<E: Error> From<E> for Failed {
    /// A failure of the class `error`, with the causes of the error.
    fn from(error: E) -> Self {
        Self::of(error.to_string(), error.source())
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
            .map_err(|error| unkept(format!("its result cannot be written as JSON: {error}")))?;
        Done::Succeeded(value).into_done()
    }
}

impl IntoDone for Done {
    fn into_done(self) -> Result<Done, Failed> {
        match &self {
            Self::Succeeded(result) => match result.to_string().len() {
                size if size > DOCUMENT_LIMIT => {
                    Err(unkept(format!("its result has {size} bytes, more than {DOCUMENT_LIMIT}: store it elsewhere")))
                }
                _ if is_deeper(result, DEPTH_LIMIT) => {
                    Err(unkept(format!("its result is nested more than {DEPTH_LIMIT} levels deep")))
                }
                _ => Ok(self),
            },
            Self::Suspended(_) | Self::Stopped => Ok(self),
        }
    }
}

/// The failure of a handler whose result cannot be kept. It would return the same another time.
fn unkept(why: String) -> Failed {
    Failed::new("result", why).permanent()
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
        assert_eq!(failed.to_string(), "error: the import failed: no such table");
        let boxed: Box<dyn Error + Send + Sync> = Box::new(Import(std::io::Error::other("no such table")));
        assert_eq!(Failed::from_error(boxed), failed);
    }
}
