//! Tokens: who may ask a server for what.
//!
//! A token is 256 random bits, so its digest is enough to know it by and nothing else is kept. This user's own token
//! lies in the home in the clear, for our own clients, and is good on this machine alone. All others are made by hand
//! for a client, with a role.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use outlive::error::Error;
use outlive::id::{Entropy, SystemEntropy};
use outlive::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Effect;

/// The file of this user's own token.
const OWN: &str = "token";
/// The file of everybody else's.
const OTHERS: &str = "tokens.json";
/// The most tokens, and the most bytes of either file.
const MOST: usize = 1_000;
const LIMIT: u64 = 1 << 20;

/// What a client may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Look at everything
    Read,
    /// And cancel, resume and archive runs
    Operate,
    /// And queue commands
    Admin,
}

impl Role {
    /// The most that it may have done.
    pub fn may(self) -> Effect {
        match self {
            Self::Read => Effect::Read,
            Self::Operate => Effect::Stop,
            Self::Admin => Effect::Destroy,
        }
    }

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// The token of a client, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Whose; event logs tell it.
    pub name: String,
    /// The operations that the token allows.
    pub role: Role,
    /// What it is known by.
    pub digest: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// The registry that it is for, as that calls itself; none for all that this user serves, and what they know of
    /// others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
}

/// 256 random bits, as text.
pub fn draw() -> String {
    format!("{:032x}{:032x}", SystemEntropy.draw(), SystemEntropy.draw())
}

/// What a token is known by.
pub fn digest(token: &str) -> String {
    Sha256::digest(token.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two digests are the same. How long that takes says nothing of where they differ.
pub fn is_same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// The tokens in a home.
#[derive(Debug, Clone)]
pub struct Tokens {
    home: PathBuf,
}

impl Tokens {
    /// Those of this user's home.
    pub fn open() -> Result<Self, Error> {
        let none = || Error::Invalid("there is no home to keep tokens in: set OUTLIVE_HOME".into());
        Self::at(outlive::host::home::home().ok_or_else(none)?)
    }

    /// Those of a home.
    pub fn at(home: PathBuf) -> Result<Self, Error> {
        outlive::registry::make_home(&home)?;
        Ok(Self { home })
    }

    /// The home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// This user's own token, made if it is missing.
    pub fn own(&self) -> Result<String, Error> {
        self.secret(OWN)
    }

    /// A secret of 256 random bits in a file of the home, made if it is missing.
    pub fn secret(&self, name: &str) -> Result<String, Error> {
        let path = self.home.join(name);
        // Once made it is only read.
        if let Ok(Some(secret)) = read(&path)
            && secret.trim().len() >= 64
        {
            return Ok(secret.trim().into());
        }
        let _turn = self.turn()?;
        match read(&path) {
            Ok(Some(token)) if token.trim().len() >= 64 => return Ok(token.trim().into()),
            Ok(_) => {}
            Err(error) => return Err(failed(&path, &error)),
        }
        let token = draw();
        write(&path, token.as_bytes()).map_err(|error| failed(&path, &error))?;
        Ok(token)
    }

    /// Everybody else's.
    pub fn list(&self) -> Result<Vec<Kept>, Error> {
        let path = self.home.join(OTHERS);
        let text = read(&path).map_err(|error| failed(&path, &error))?.unwrap_or_else(|| "[]".into());
        serde_json::from_str(&text).map_err(|error| failed(&path, &error.into()))
    }

    /// Makes a token for a client, and shows it this once.
    pub fn create(&self, name: &str, role: Role, registry: Option<String>, now: Timestamp) -> Result<String, Error> {
        let fits = |c: char| c.is_alphanumeric() || "-_.@".contains(c);
        if name.is_empty() || name.chars().count() > 64 || !name.chars().all(fits) {
            return Err(Error::Invalid(format!(
                "`{name}` is no name for a token: letters, digits, `-`, `_`, `.` and `@`"
            )));
        }
        let _turn = self.turn()?;
        let mut kept = self.list()?;
        if kept.iter().any(|kept| kept.name == name) {
            return Err(Error::Invalid(format!("there is a token `{name}`; `outlive token revoke {name}` ends it")));
        }
        if kept.len() >= MOST {
            return Err(Error::Invalid(format!("there are {MOST} tokens; `outlive token revoke NAME` ends one")));
        }
        let token = draw();
        kept.push(Kept { name: name.into(), role, digest: digest(&token), created_at: now, registry });
        self.keep(&kept)?;
        Ok(token)
    }

    /// Has a token known no longer.
    pub fn revoke(&self, name: &str) -> Result<(), Error> {
        let _turn = self.turn()?;
        let mut kept = self.list()?;
        let before = kept.len();
        kept.retain(|kept| kept.name != name);
        if kept.len() == before {
            return Err(Error::NoSuch { what: "token", name: name.into(), list: "outlive token list" });
        }
        self.keep(&kept)
    }

    fn keep(&self, kept: &[Kept]) -> Result<(), Error> {
        let path = self.home.join(OTHERS);
        let text = serde_json::to_vec_pretty(kept).map_err(|error| failed(&path, &error.into()))?;
        write(&path, &text).map_err(|error| failed(&path, &error))
    }

    /// One at a time changes them.
    fn turn(&self) -> Result<File, Error> {
        let path = self.home.join("tokens.lock");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = file.map_err(|error| failed(&path, &error))?;
        file.lock().map_err(|error| failed(&path, &error))?;
        Ok(file)
    }
}

/// What stands right behind the word `token` would be masked as if it were one.
fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Invalid(format!("`{}` cannot be used: {error}", path.display()))
}

fn read(path: &Path) -> io::Result<Option<String>> {
    let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text)?;
    Ok(Some(text))
}

/// Put into place whole, for its owner alone.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension(format!("{:x}", SystemEntropy.draw()));
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&beside)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&beside, path));
    written.inspect_err(|_| _ = std::fs::remove_file(&beside))
}
