//! Values of steps: the fingerprint of what a step depends on, and what it brought about.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::hex::hex;
use super::id::RunId;
use super::run::Run;

/// The kind of runs that are steps of others, and of no others.
pub const KIND: &str = "step";

/// A digest of what the result of a step depends on. It begins with the run, so that no table can reveal what
/// short secrets went into it.
#[derive(Debug, Clone)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// That of a step of `run` of which nothing is known yet.
    pub fn of(run: RunId) -> Self {
        let mut fingerprint = Self(Sha256::new());
        fingerprint.part("outlive step 1", run.as_bytes());
        fingerprint
    }

    /// Adds one input. Lengths separate the parts: no two lists of parts are alike.
    pub fn part(&mut self, what: &str, bytes: &[u8]) {
        for part in [what.as_bytes(), bytes] {
            self.0.update((part.len() as u64).to_be_bytes());
            self.0.update(part);
        }
    }

    /// The digest.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// What a step brought about. It is kept as the checkpoint of the step's own run, with its success, in one write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepOutcome {
    /// What a command wrote. The bytes are in its log; these tell whether they are all there and as they were.
    Output {
        /// To its standard output.
        stdout: Content,
        /// To its standard error.
        stderr: Content,
    },
    /// What a function returned.
    Answer(Value),
}

impl StepOutcome {
    /// What the step brought about, as far as that is on record.
    pub fn of(step: &Run) -> Option<Self> {
        serde_json::from_value(step.checkpoint.clone()?).ok()
    }
}

/// Bytes, known by their digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// How many.
    pub bytes: u64,
    /// Their digest.
    pub sha256: String,
}

/// Bytes that are being digested.
#[derive(Debug, Clone, Default)]
pub struct Digesting {
    bytes: u64,
    digest: Sha256,
}

impl Digesting {
    /// More of them.
    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.digest.update(bytes);
    }

    /// That was all.
    pub fn finish(self) -> Content {
        Content { bytes: self.bytes, sha256: hex(&self.digest.finalize()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::time::Timestamp;

    #[test]
    fn fingerprints_differ_by_where_a_part_ends_and_by_run() {
        let run = RunId::draw(Timestamp::from_micros(1), &SystemEntropy);
        let of = |run, parts: &[(&str, &str)]| {
            let mut fingerprint = Fingerprint::of(run);
            parts.iter().for_each(|(what, bytes)| fingerprint.part(what, bytes.as_bytes()));
            fingerprint.finish()
        };
        assert_eq!(of(run, &[("argument", "ab")]), of(run, &[("argument", "ab")]));
        assert_ne!(of(run, &[("argument", "ab")]), of(run, &[("argument", "a"), ("argument", "b")]));
        assert_ne!(of(run, &[("argument", "ab")]), of(run, &[("argumenta", "b")]));
        let other = RunId::draw(Timestamp::from_micros(1), &SystemEntropy);
        assert_ne!(of(run, &[]), of(other, &[]));
    }
}
