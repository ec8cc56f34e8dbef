//! Identifiers, and the only place that draws random numbers.
//!
//! Every id is its own type, so that a worker can never be passed where a run is meant. Ids are drawn from an
//! [`Entropy`], the kernel's in a real process and a seeded one in the simulation.

use std::fmt;
use std::str::FromStr;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::time::Timestamp;

/// Where random bits come from.
pub trait Entropy: Send + Sync {
    /// 128 random bits, unique in practice.
    fn draw(&self) -> u128;
}

/// The kernel's generator. It is asked for every number anew, so that a process cloned by a restored
/// virtual machine does not repeat what its twin draws.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(clippy::disallowed_methods, reason = "the one place that draws random numbers")]
    fn draw(&self) -> u128 {
        let mut bytes = [0; 16];
        let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty()));
        // So few bytes are never handed out in part.
        assert_eq!(drawn, Ok(bytes.len()), "the kernel hands out random numbers");
        u128::from_ne_bytes(bytes)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// Its 16 bytes.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            pub(crate) fn as_uuid(&self) -> Uuid {
                self.0
            }

            #[cfg(feature = "postgres")]
            pub(crate) fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// Whether this is its canonical spelling.
            pub(crate) fn is_spelt(&self, text: &str) -> bool {
                self.0.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            /// Accepts the canonical spelling alone: 36 characters, lower case, hyphenated.
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let id = Uuid::try_parse(text).map_err(|_| InvalidId(text.chars().take(64).collect()))?;
                if Self(id).is_spelt(text) { Ok(Self(id)) } else { Err(InvalidId(text.into())) }
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "format": "uuid" })
            }
        }
    };
}

uuid_id!(
    /// The id of a run, a version 7 UUID: ids sort by the millisecond in which they were made. Store it beside your own rows;
    /// it reads and prints as text.
    RunId
);
uuid_id!(
    /// The id of one incarnation of a process that owns runs; a restarted process is another worker. Find its runs with
    /// [`Filter::owner`](crate::Filter::owner).
    WorkerId
);
uuid_id!(
    /// Marks one write, so that its author recognises it after the answer was lost.
    ///
    /// Equality of content would not do: two reapers write the same outcome, and only one of them won.
    Stamp
);

/// Text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an id")]
pub struct InvalidId(String);

impl RunId {
    /// A new id for a run made at `now`.
    #[doc(hidden)]
    pub fn draw(now: Timestamp, entropy: &dyn Entropy) -> Self {
        Self(version_7(now, &tail(entropy)))
    }

    /// The id that every process draws for the same `source` and time: the second process finds the run made.
    pub fn derived(now: Timestamp, source: &[u8]) -> Self {
        use sha2::{Digest, Sha256};
        let mut tail = [0; 10];
        tail.copy_from_slice(&Sha256::digest(source)[..10]);
        Self(version_7(now, &tail))
    }

    /// The id of a run that others made, who know no such ids: it follows from where its record is.
    #[cfg(feature = "object")]
    pub(crate) fn foreign(now: Timestamp, source: &[u8]) -> Self {
        let mut bytes = *Self::derived(now, source).as_bytes();
        bytes[6] = bytes[6] & 0x0f | 0x80;
        Self(Uuid::from_bytes(bytes))
    }

    /// Whether it is the id of a run that others made.
    #[cfg(feature = "object")]
    pub(crate) fn is_foreign(&self) -> bool {
        self.0.get_version_num() == 8
    }

    /// When it was drawn, to the millisecond.
    pub(crate) fn time(&self) -> Timestamp {
        let [a, b, c, d, e, f, ..] = *self.as_bytes();
        Timestamp::from_micros(i64::from_be_bytes([0, 0, a, b, c, d, e, f]) * 1_000)
    }

    /// Whether `text` is an id, or so long a beginning of one that it can hardly be meant as anything else. The first
    /// digit of a time is 0 for centuries to come, which leaves dates and most words free.
    pub fn may_begin_with(text: &str) -> bool {
        const SHORTEST: usize = 8;
        let fits = |(index, c): (usize, char)| match index {
            8 | 13 | 18 | 23 => c == '-',
            _ => matches!(c, '0'..='9' | 'a'..='f'),
        };
        let is_beginning = (SHORTEST..=36).contains(&text.len()) && text.starts_with('0');
        text.parse::<Self>().is_ok() || is_beginning && text.chars().enumerate().all(fits)
    }
}

/// The id that `source` alone gives, for what has none of its own.
fn hashed(source: &[u8]) -> Uuid {
    use sha2::{Digest, Sha256};
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&Sha256::digest(source)[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

impl WorkerId {
    /// The worker of which nothing is known but `source`.
    #[cfg(feature = "object")]
    pub(crate) fn of(source: &[u8]) -> Self {
        Self(hashed(source))
    }

    /// A new id for a process that starts at `now`.
    #[doc(hidden)]
    pub fn draw(now: Timestamp, entropy: &dyn Entropy) -> Self {
        Self(version_7(now, &tail(entropy)))
    }
}

impl Stamp {
    /// The stamp that `source` alone gives.
    pub(crate) fn of(source: &[u8]) -> Self {
        Self(hashed(source))
    }

    /// A stamp that no other write bears.
    #[doc(hidden)]
    pub fn draw(entropy: &dyn Entropy) -> Self {
        Self(uuid::Builder::from_random_bytes(entropy.draw().to_be_bytes()).into_uuid())
    }
}

fn tail(entropy: &dyn Entropy) -> [u8; 10] {
    let mut tail = [0; 10];
    tail.copy_from_slice(&entropy.draw().to_be_bytes()[..10]);
    tail
}

fn version_7(now: Timestamp, tail: &[u8; 10]) -> Uuid {
    let millis = u64::try_from(now.as_micros() / 1_000).unwrap_or(0);
    uuid::Builder::from_unix_timestamp_millis(millis, tail).into_uuid()
}

/// The fencing number of a run, which rises by one with every claim, resume or reap. Write it beside external
/// effects, and refuse a lower one there: see [`Fence`](crate::Fence).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(
        description = "The fence of a run. Rises by one with every claim, resume or reap; never reset, never reused."
    )
)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        let early = RunId::draw(Timestamp::from_micros(1_000_000), &SystemEntropy);
        let late = RunId::draw(Timestamp::from_micros(2_000_000), &SystemEntropy);
        assert!(early < late);
        assert_eq!(early.to_string().parse(), Ok(early));
    }

    #[test]
    fn s_07_ids_of_one_millisecond_differ_in_unguessable_bits() {
        let now = Timestamp::from_micros(1_790_000_000_000_000);
        let ids: Vec<RunId> = (0..100_000).map(|_| RunId::draw(now, &SystemEntropy)).collect();
        let different: std::collections::HashSet<&RunId> = ids.iter().collect();
        assert_eq!(different.len(), ids.len());
        // All that the format leaves: what varies is drawn, and is drawn anew each time.
        let first = u128::from_be_bytes(*ids[0].as_bytes());
        let varies = ids.iter().fold(0, |varies, id| varies | (first ^ u128::from_be_bytes(*id.as_bytes())));
        assert_eq!(varies.count_ones(), 74);
        let close = ids.windows(2).filter(|pair| pair[0].as_bytes()[..12] == pair[1].as_bytes()[..12]).count();
        assert_eq!(close, 0, "an id follows from the one before");
    }

    #[test]
    fn s_06_only_the_canonical_spelling_is_an_id() {
        let id = RunId::draw(Timestamp::from_micros(1), &SystemEntropy).to_string();
        for text in
            ["", "..", "../../etc/passwd", "CON", "\0", &id.to_uppercase(), &id.replace('-', ""), &format!("{{{id}}}")]
        {
            assert!(text.parse::<RunId>().is_err(), "{text:?} was taken for an id");
        }
    }
}
