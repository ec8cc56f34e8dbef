//! Trace parents: the span of a distributed trace that a run was made in, as W3C Trace Context writes it.
//!
//! It is kept with the run, so that whatever executes the run later, elsewhere, continues the trace of its maker.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The variable in which a process is given its trace parent.
pub const TRACE_VARIABLE: &str = "TRACEPARENT";
/// The length of version 00. Later versions may append fields.
const LENGTH: usize = 55;
/// The longest value of a later version that is kept.
const LONGEST: usize = 256;

/// The span that a run belongs to: `00-TRACE-SPAN-FLAGS` in lowercase hexadecimal.
///
/// ```
/// let parent: outlive::TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
/// assert_eq!(parent.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// "00-not-a-trace-01".parse::<outlive::TraceParent>().unwrap_err();
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent(String);

impl TraceParent {
    /// The whole value, as a header or a variable has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id of the trace: 32 hexadecimal digits.
    pub fn trace_id(&self) -> &str {
        self.0.get(3..35).unwrap_or_default()
    }

    /// The id of the span that made the run: 16 hexadecimal digits.
    pub fn span_id(&self) -> &str {
        self.0.get(36..52).unwrap_or_default()
    }
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        is_valid(text).then(|| Self(text.into())).ok_or_else(|| InvalidTraceParent(text.chars().take(LENGTH).collect()))
    }
}

fn is_valid(text: &str) -> bool {
    let mut fields = text.split('-');
    let is_hex = |field: &str, length: usize| {
        field.len() == length && field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_id = |field: &str, length: usize| is_hex(field, length) && field.bytes().any(|byte| byte != b'0');
    let mut next = || fields.next().unwrap_or_default();
    let (version, trace, span, flags) = (next(), next(), next(), next());
    let is_known = is_hex(version, 2) && version != "ff" && is_id(trace, 32) && is_id(span, 16) && is_hex(flags, 2);
    let may_be_longer = version != "00" && text.len() <= LONGEST && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_known && (text.len() == LENGTH || may_be_longer)
}

impl TryFrom<String> for TraceParent {
    type Error = InvalidTraceParent;

    fn try_from(text: String) -> Result<Self, InvalidTraceParent> {
        text.parse()
    }
}

impl From<TraceParent> for String {
    fn from(parent: TraceParent) -> Self {
        parent.0
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that is no trace parent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not a trace parent such as 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 (W3C Trace Context)",
    .0.escape_default()
)]
pub struct InvalidTraceParent(String);

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_parent_is_kept_as_it_was_written() {
        let later = format!("01{}-more", &VALID[2..]);
        for text in [VALID, &later] {
            let parent: TraceParent = text.parse().unwrap();
            assert_eq!(parent.to_string(), text);
            assert_eq!((parent.trace_id(), parent.span_id()), ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"));
            let json = serde_json::to_string(&parent).unwrap();
            assert_eq!(serde_json::from_str::<TraceParent>(&json).unwrap(), parent);
        }
    }

    #[test]
    fn trace_parent_that_is_malformed_is_refused() {
        let [zeros, upper, version] = [
            VALID.replace("00f067aa0ba902b7", "0000000000000000"),
            VALID.replace("4bf9", "4BF9"),
            format!("ff{}", &VALID[2..]),
        ];
        let (longer, huge) = (format!("{VALID}-more"), format!("01{}-{}", &VALID[2..], "x".repeat(300)));
        let (short, open, odd) = (&VALID[..54], format!("01{}x", &VALID[2..]), format!("01{}-\u{1b}", &VALID[2..]));
        for text in ["", "00", &zeros, &upper, &version, &longer, &huge, short, &open, &odd] {
            text.parse::<TraceParent>().unwrap_err();
            serde_json::from_value::<TraceParent>(text.into()).unwrap_err();
        }
    }
}
