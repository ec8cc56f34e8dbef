//! The command of a run: what is executed, where, and with what.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{EnvMode, Variables};
use crate::redact::Redactor;

/// What the names of the variables begin with that tell a command of the ports that it was leased.
pub const PORT_PREFIX: &str = "OUTLIVE_PORT_";
/// The variable of the first port that a command was leased.
pub const FIRST_PORT: &str = "PORT";

/// What of a command is not in its spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Withheld {
    /// Secrets, which are masked. The maker's home has the words as they were.
    Secrets,
    /// All arguments, because the caller asked for it. They are kept nowhere.
    Arguments,
}

/// A command as it is executed: no shell in between.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments.
    pub argv: Vec<Arg>,
    /// The directory it starts in.
    pub cwd: Arg,
    /// The file that the first word meant when the run was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<Program>,
    /// The variables that are listed with the run and are no secrets: every attempt is given them, on every host.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Which other variables an attempt is given.
    #[serde(default, skip_serializing_if = "EnvMode::is_default")]
    pub env_mode: EnvMode,
    /// The variables to keep in the maker's home when the run is made. They are never on record.
    #[serde(skip)]
    pub sealed: Option<Variables>,
}

impl Command {
    /// These words, executed there.
    pub fn new(argv: Vec<Arg>, cwd: Arg) -> Self {
        Self { argv, cwd, program: None, env: BTreeMap::new(), env_mode: EnvMode::default(), sealed: None }
    }

    /// The ports that it was leased, by name.
    pub fn ports(&self) -> BTreeMap<String, u16> {
        let port = |(name, value): (&String, &String)| {
            Some((name.strip_prefix(PORT_PREFIX)?.to_ascii_lowercase(), value.parse().ok()?))
        };
        self.env.iter().filter_map(port).collect()
    }

    /// The name of the first port that it was leased.
    pub fn first_port(&self) -> Option<String> {
        let first: u16 = self.env.get(FIRST_PORT)?.parse().ok()?;
        self.ports().into_iter().find_map(|(name, port)| (port == first).then_some(name))
    }
}

/// Words with their secrets masked.
pub(crate) fn mask_argv(redactor: &Redactor, argv: &[Arg]) -> Vec<Arg> {
    let words: Vec<Vec<u8>> = argv.iter().map(|word| word.to_os().into_vec()).collect();
    let masked = redactor.argv(&words);
    masked.into_iter().map(|word| OsString::from_vec(word).as_os_str().into()).collect()
}

/// A program as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The path of the file.
    pub path: Arg,
    /// Which file it was.
    pub inode: u64,
    /// How long it was.
    pub size: u64,
    /// When it was last written to, in nanoseconds since 1970.
    pub written_at: i64,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let argv = mask_argv(&Redactor::default(), &self.argv);
        let redactor = Redactor::default();
        let named = |(name, value): (&String, &String)| (name.clone(), redactor.named(name, value));
        f.debug_struct("Command")
            .field("argv", &argv)
            .field("cwd", &self.cwd)
            .field("program", &self.program)
            .field("env", &self.env.iter().map(named).collect::<BTreeMap<_, _>>())
            .field("env_mode", &self.env_mode)
            .field("sealed", &self.sealed)
            .finish()
    }
}

/// A word of a command line. Bytes that are not UTF-8 survive as hexadecimal.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Arg {
    /// Ordinary text.
    Text(String),
    /// Anything else.
    Bytes {
        /// Two digits a byte.
        hex: String,
    },
}

impl<'de> Deserialize<'de> for Arg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ArgVisitor)
    }
}

/// Reads a word as it comes: it is a text or an object, and which is seen at once.
struct ArgVisitor;

impl<'de> Visitor<'de> for ArgVisitor {
    type Value = Arg;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a word, or its bytes in hexadecimal")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Arg, E> {
        Ok(Arg::Text(text.into()))
    }

    fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Arg, E> {
        Ok(Arg::Text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Arg, A::Error> {
        #[derive(Deserialize)]
        struct Bytes {
            hex: String,
        }
        let Bytes { hex } = Bytes::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Arg::Bytes { hex })
    }
}

impl From<&OsStr> for Arg {
    fn from(word: &OsStr) -> Self {
        match word.to_str() {
            Some(text) => Self::Text(text.into()),
            None => Self::Bytes { hex: crate::model::hex::hex(word.as_bytes()) },
        }
    }
}

impl Arg {
    /// The word to execute. Hexadecimal that is none reads as nothing.
    pub fn to_os(&self) -> OsString {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes { hex } => {
                let digits: Vec<u8> = hex.bytes().filter_map(|c| char::from(c).to_digit(16)).map(|d| d as u8).collect();
                OsString::from_vec(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
            }
        }
    }
}

impl fmt::Debug for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Redactor::default().text(&self.to_string()), f)
    }
}

impl fmt::Display for Arg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_os().to_string_lossy())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_not_utf8_survive() {
        let word = OsString::from_vec(vec![b'a', 0xff, 0x00, 0x7f]);
        let json = serde_json::to_string(&Arg::from(word.as_os_str())).unwrap();
        assert_eq!(serde_json::from_str::<Arg>(&json).unwrap().to_os(), word);
    }
}
