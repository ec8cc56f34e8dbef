//! Readiness: by what a run that serves others is known to be ready, and for how long it may take.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::time::{millis, show_duration};

/// When a run counts as ready. Its owner looks; a run that is not ready in time fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Readiness {
    /// What must hold, all of it.
    pub checks: Vec<ReadyCheck>,
    /// How long each attempt may take to become ready.
    #[serde(rename = "within_ms", with = "millis")]
    pub within: Duration,
}

/// One thing that must hold for a run to be ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadyCheck {
    /// A connection to this port of the loopback address is accepted.
    Tcp(u16),
    /// A GET of this URL is answered with a status from 200 to 399.
    Http(String),
    /// A line of the output matches this regular expression.
    Output(String),
    /// A shell that executes this ends with status 0.
    Command(String),
}

impl fmt::Display for ReadyCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(port) => write!(f, "port {port} accepts connections"),
            Self::Http(url) => write!(f, "{url} answers"),
            Self::Output(expression) => write!(f, "it writes `{expression}`"),
            Self::Command(command) => write!(f, "`{command}` succeeds"),
        }
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checks: Vec<String> = self.checks.iter().map(ToString::to_string).collect();
        write!(f, "{}, within {}", checks.join(" and "), show_duration(self.within))
    }
}
