//! Tokens: what a server knows its callers by, and how it proves that it does before it is shown one.
//!
//! Any process of this machine can listen where our server did. So no listener is shown a token before it has answered a
//! question that only a process that knows the token's digest can answer. The question names the port that is asked: a listener
//! that passes it on to the real server elsewhere gets no answer to it.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::ServerAddress;
use crate::host::home::home;
use crate::model::hex::hex;
use crate::store::Error;

/// The variable that has the token for a server.
pub const TOKEN_VARIABLE: &str = "OUTLIVE_TOKEN";
/// The file of this user's own token, in the home.
const OWN: &str = "token";
/// The most bytes of a token.
const LIMIT: u64 = 1 << 10;

/// The token that a client shows to `outlive serve`.
#[derive(Clone)]
pub struct Token {
    text: String,
    /// It lies in this user's home, and is sent only to this user's own server.
    is_own: bool,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("is_own", &self.is_own).finish_non_exhaustive()
    }
}

impl Token {
    /// The token for a server: the one in the environment, or, on this machine, this user's own.
    pub fn of(address: &ServerAddress) -> Result<Option<Self>, Error> {
        if let Some(text) = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.trim().is_empty()) {
            return Ok(Some(Self { text: text.trim().into(), is_own: false }));
        }
        if !address.is_loopback() {
            return Ok(None);
        }
        let Some(path) = home().map(|home| home.join(OWN)) else { return Ok(None) };
        let flags = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
        // What stands right behind the word is masked as if it were one.
        let denied = |why: &dyn std::fmt::Display| Error::Denied(format!("`{}` is not used: {why}", path.display()));
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(denied(&error)),
        };
        let found = file.metadata().map_err(|error| denied(&error))?;
        if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o077 != 0 {
            return Err(denied(&"others could have read or written it; it is yours alone, with mode 600"));
        }
        let mut text = String::new();
        file.take(LIMIT).read_to_string(&mut text).map_err(|error| denied(&error))?;
        Ok(Some(Self { text: text.trim().into(), is_own: true }))
    }

    /// One that is given.
    pub fn given(text: &str) -> Self {
        Self { text: text.into(), is_own: false }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// What a server keeps of it.
    pub(super) fn digest(&self) -> String {
        hex(&Sha256::digest(self.text.as_bytes()))
    }
}

/// By what a question says which token is meant, given its digest. It tells nothing of either.
pub fn known_by(digest: &str) -> String {
    answer(digest, "which token is meant")
}

/// The answer of a process that knows a token's digest to a question that was asked at `port`, if that was said.
pub fn proof(digest: &str, question: &str, port: Option<u16>) -> String {
    let at = port.map(|port| port.to_string()).unwrap_or_default();
    answer(digest, &format!("who listens at {at}: {question}"))
}

fn answer(digest: &str, question: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(digest.as_bytes()).expect("a key of any length will do");
    mac.update(question.as_bytes());
    hex(&mac.finalize().into_bytes())
}
