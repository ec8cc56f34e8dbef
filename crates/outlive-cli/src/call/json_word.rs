//! A JSON value as a word of a call: said in place, or read from a file or the standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use outlive::error::Error;
use serde_json::Value;

/// The most that is read: more than any document of a run may have.
const LIMIT: u64 = 64 << 20;

/// A JSON value, or where it is.
#[derive(Debug, Clone, PartialEq)]
pub enum JsonWord {
    /// `{"a": 1}`
    Value(Value),
    /// `@FILE`
    File(PathBuf),
    /// `-`
    Stdin,
}

impl JsonWord {
    /// Reads the word of a call.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some(path) => Ok(Self::File(path.into())),
            None if text == "-" => Ok(Self::Stdin),
            None => serde_json::from_str(text).map(Self::Value).map_err(|error| {
                format!("it is not JSON: {error}; a text is written '\"…\"', a file @FILE, and - is the standard input")
            }),
        }
    }

    /// Whether a file of the process that executes the call is read.
    pub fn is_local(&self) -> bool {
        !matches!(self, Self::Value(_))
    }

    /// The value.
    pub fn read(&self) -> Result<Value, Error> {
        match self {
            Self::Value(value) => Ok(value.clone()),
            Self::Stdin => read("the standard input", std::io::stdin()),
            Self::File(path) => read_file(path),
        }
    }
}

fn read_file(path: &Path) -> Result<Value, Error> {
    let name = format!("`{}`", path.display());
    let file = std::fs::File::open(path).map_err(|error| Error::Invalid(format!("{name} cannot be read: {error}")))?;
    read(&name, file)
}

fn read(name: &str, from: impl Read) -> Result<Value, Error> {
    let mut text = String::new();
    let read = from.take(LIMIT).read_to_string(&mut text);
    read.map_err(|error| Error::Invalid(format!("{name} cannot be read: {error}")))?;
    serde_json::from_str(&text).map_err(|error| Error::Invalid(format!("{name} is not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_json_a_file_or_the_standard_input() {
        assert_eq!(JsonWord::parse("[1]"), Ok(JsonWord::Value(serde_json::json!([1]))));
        assert_eq!(JsonWord::parse("@a.json"), Ok(JsonWord::File("a.json".into())));
        assert_eq!(JsonWord::parse("-"), Ok(JsonWord::Stdin));
        assert_eq!(JsonWord::parse("\"@a.json\""), Ok(JsonWord::Value("@a.json".into())));
        assert!(JsonWord::parse("{tenant: 1}").unwrap_err().starts_with("it is not JSON"));
        assert!(
            JsonWord::File("missing.json".into())
                .read()
                .unwrap_err()
                .to_string()
                .contains("`missing.json` cannot be read")
        );
    }
}
