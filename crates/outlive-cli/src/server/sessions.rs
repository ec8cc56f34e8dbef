//! Sessions of browsers: signed cookies that survive a restart of the server, and can be ended.
//!
//! A cookie says whose session it is and until when, and bears a code made with a key of the home. So no server has to
//! remember it, and every server of this home accepts it. A session of a token lasts no longer than the token. A session
//! that was ended is remembered until it would have expired; another key ends all of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use outlive::error::Error;
use outlive::time::{Clock, SystemClock, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::call::tokens::{self, Tokens, digest, draw, is_same};

/// How long a browser stays signed in.
const LASTS: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// The files of the key, and of sessions that were ended.
const KEY: &str = "session_key";
const ENDED: &str = "sessions_ended.json";
/// The most sessions that are remembered to have ended. Beyond that, all are ended by another key.
const MOST: usize = 1_000;

/// Whose session it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// This user's, with every permission.
    Own,
    /// A token's, by what the token is known by.
    Token(String),
}

impl Subject {
    fn as_str(&self) -> &str {
        match self {
            Self::Own => "own",
            Self::Token(known_by) => known_by,
        }
    }

    fn parse(text: &str) -> Self {
        if text == "own" { Self::Own } else { Self::Token(text.into()) }
    }
}

/// A session that was ended before it expired.
#[derive(Debug, Serialize, Deserialize)]
struct EndedSession {
    id: String,
    until: Timestamp,
}

/// The sessions of a home.
pub struct Sessions {
    home: PathBuf,
}

impl Sessions {
    /// Those whose key is in this home.
    pub fn at(home: &Path) -> Self {
        Self { home: home.into() }
    }

    /// The cookie of a new session.
    pub fn begin(&self, tokens: &Tokens, subject: &Subject) -> Result<String, Error> {
        let (id, until) = (&draw()[..32], SystemClock.now().after(LASTS).as_micros());
        let said = format!("{id}.{until}.{}", subject.as_str());
        let key = tokens.secret(KEY)?;
        Ok(format!("{said}.{}", code(&key, &said)))
    }

    /// Whose session a cookie is; none where it is not ours, has expired or was ended.
    pub fn subject(&self, tokens: &Tokens, cookie: &str) -> Option<Subject> {
        let (said, code_shown) = cookie.rsplit_once('.')?;
        let key = tokens.secret(KEY).ok()?;
        if !is_same(&digest(&code(&key, said)), &digest(code_shown)) {
            return None;
        }
        let (id, rest) = said.split_once('.')?;
        let (until, subject) = rest.split_once('.')?;
        let until: i64 = until.parse().ok()?;
        let is_over = until <= SystemClock.now().as_micros() || self.ended().iter().any(|ended| ended.id == id);
        (!is_over).then(|| Subject::parse(subject))
    }

    /// Ends the session of a cookie.
    pub fn end(&self, cookie: &str) -> Result<(), Error> {
        let now = SystemClock.now();
        let Some((id, _)) = cookie.split_once('.') else { return Ok(()) };
        let mut ended = self.ended();
        ended.retain(|ended| ended.until > now && ended.id != id);
        if ended.len() >= MOST {
            return self.end_all();
        }
        ended.push(EndedSession { id: id.into(), until: now.after(LASTS) });
        let text = serde_json::to_vec(&ended).map_err(|error| Error::Invalid(error.to_string()))?;
        self.write(ENDED, &text)
    }

    /// Ends all sessions of this home: none of their codes is made with the new key.
    pub fn end_all(&self) -> Result<(), Error> {
        self.write(KEY, draw().as_bytes())?;
        self.write(ENDED, b"[]")
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.home.join(name);
        let failed = |error: std::io::Error| Error::Invalid(format!("`{}` cannot be written: {error}", path.display()));
        tokens::write(&path, bytes).map_err(failed)
    }

    fn ended(&self) -> Vec<EndedSession> {
        let text = std::fs::read(self.home.join(ENDED)).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

fn code(key: &str, said: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key of any length will do");
    mac.update(b"session ");
    mac.update(said.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t4_10_sessions_survive_a_restart_and_can_be_ended() {
        let home = tempfile::tempdir().unwrap();
        let tokens = Tokens::at(home.path().join("home")).unwrap();
        let before = Sessions::at(tokens.home());
        let [own, other] = [Subject::Own, Subject::Token("f00".into())].map(|of| before.begin(&tokens, &of).unwrap());
        let after = Sessions::at(tokens.home());
        assert_eq!(after.subject(&tokens, &own), Some(Subject::Own));
        assert_eq!(after.subject(&tokens, &other), Some(Subject::Token("f00".into())));
        // Nothing in a cookie can be changed.
        for changed in [
            own.replace(".own.", ".f00."),
            other.replace(".f00.", ".own."),
            own[1..].to_owned(),
            own.replacen('.', ".9", 1),
        ] {
            assert_eq!(after.subject(&tokens, &changed), None, "{changed}");
        }
        after.end(&own).unwrap();
        assert_eq!((before.subject(&tokens, &own), before.subject(&tokens, &other).is_some()), (None, true));
        after.end_all().unwrap();
        assert_eq!(before.subject(&tokens, &other), None);
        assert!(before.begin(&tokens, &Subject::Own).is_ok_and(|made| after.subject(&tokens, &made).is_some()));
    }
}
