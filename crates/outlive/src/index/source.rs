//! Sources: whatever runs can be read from. To add a sort of source is to add a file that implements [`Source`].

use sha2::{Digest, Sha256};

use super::record::{IndexRecord, Lifecycle, Marks};
use crate::model::hex::hex;
use crate::model::time::Timestamp;

/// Something that runs can be read from, and never written to.
///
/// # Contract
///
/// 1. **Tokens tell of changes.** Two equal tokens of a run, both settled, mean that reading it gives equal records.
/// 2. **A survey reads no run.** It looks at each from outside, and answers in the order of their names.
/// 3. **One run spoils no other.** What is wrong with one is said of that one. An error of the whole source says that
///    nothing is known of it, and never that its runs are gone.
/// 4. **Nothing is written, nothing is waited for.** Not even where a pipe lies in place of a file.
pub(crate) trait Source: Send + Sync {
    /// What is wrong beside its runs; why it cannot be read, where it cannot. A survey finds no other.
    fn reach(&self) -> Result<Vec<Problem>, String>;

    /// How the whole of it looks, where one look tells whether anything in it has changed.
    fn whole(&self) -> Option<Look>;

    /// When runs were last added to it or taken away, or its marks changed, as far as a few looks tell.
    fn written_at(&self) -> Option<Timestamp>;

    /// Whether what was written since a moment is more than heartbeats, as far as one question tells.
    fn has_news(&self, since: Timestamp) -> bool;

    /// What is known of its runs without reading them.
    fn survey(&self) -> Result<Survey, String>;

    /// Whether there is a run of this name, by a look at that name alone. False where only a question would tell.
    fn has(&self, name: &str) -> bool;

    /// Why the marks that lie beside its runs cannot be understood, where they cannot.
    fn unknown_marks(&self) -> Option<String>;

    /// Reads one run.
    fn read(&self, name: &str) -> Reading;

    /// What a run looks like from outside, now; none where it is gone. Unsettled where only reading it tells.
    fn look(&self, name: &str) -> Option<Look>;

    /// Says which runs are asked for next: one question may do for all of them.
    fn foresee(&self, names: &[&str]);

    /// How a run in flight stands, where more than its record tells; none where nothing does.
    fn stands(&self, name: &str) -> Option<Lifecycle>;

    /// The marks on a run that lie beside it.
    fn marks(&self, run_id: &str) -> Marks;

    /// The ids of the runs that bear such marks.
    fn marked(&self) -> Vec<String>;
}

/// Everything that is known of a source without reading its runs.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Its runs, in the order of their names.
    pub(crate) found: Vec<Found>,
    /// What is wrong beside its runs.
    pub(crate) problems: Vec<Problem>,
}

/// A run, seen from outside.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: Box<str>,
    pub(crate) look: Look,
}

/// What a run looks like from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) token: Token,
    /// The token alone tells whether it has changed.
    pub(crate) settled: bool,
}

/// Something in a source that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Problem {
    /// The file or record.
    pub what: String,
    /// Why it cannot be parsed.
    pub reason: String,
}

/// What reading a run came to.
#[derive(Debug)]
pub(crate) enum Reading {
    /// It was read, and looked so while it was. Something that belongs to it may not be understood, for this reason.
    Read(Box<IndexRecord>, Look, Option<Problem>),
    /// It is there and cannot be understood.
    Unreadable(String, Look),
    /// It is gone.
    Gone,
    /// The source does not answer any more, for this reason: nothing is known of any of its runs.
    Away(String),
}

/// Tells one state of a run from another, by how it looks from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token([u8; 16]);

impl Token {
    pub(crate) fn of(parts: &[u64]) -> Self {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update(part.to_ne_bytes());
        }
        let mut token = [0; 16];
        token.copy_from_slice(&hash.finalize()[..16]);
        Self(token)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A digest of what a run was read from.
pub(crate) fn content_fingerprint(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)[..16]))
}
