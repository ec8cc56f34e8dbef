//! Policies: how long silence is forgiven, how often a run is tried, what becomes of an orphan.
//!
//! A policy is resolved once, when a run is made, and is part of its spec from then on: changing a setting changes
//! later runs, never one in flight.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::time::{millis, show_duration};

/// The longest time any setting may name: ten years. Beyond it lies overflow.
pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How often an owner beats, and after which silence it counts as gone. Shorter leases find a death sooner and cost more
/// writes; a worker has its own ([`WorkerTiming`](crate::WorkerTiming)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "UncheckedLease")]
pub struct Lease {
    #[serde(rename = "beat_ms", with = "millis")]
    beat: Duration,
    #[serde(rename = "lease_ms", with = "millis")]
    lasts: Duration,
}

#[derive(Deserialize)]
struct UncheckedLease {
    beat_ms: u64,
    lease_ms: u64,
}

impl TryFrom<UncheckedLease> for Lease {
    type Error = InvalidPolicy;

    fn try_from(lease: UncheckedLease) -> Result<Self, InvalidPolicy> {
        Self::new(Duration::from_millis(lease.beat_ms), Duration::from_millis(lease.lease_ms))
    }
}

impl Lease {
    /// A lease whose numbers can hold: two beats in a row may be lost before it ends.
    pub fn new(beat: Duration, lasts: Duration) -> Result<Self, InvalidPolicy> {
        let refuse = |why: &str| {
            Err(InvalidPolicy(format!("beat {} with lease {}: {why}", show_duration(beat), show_duration(lasts))))
        };
        // It is kept in milliseconds.
        if beat < Duration::from_millis(1) || lasts < Duration::from_millis(1) {
            refuse("neither may be shorter than 1ms")
        } else if lasts > LONGEST {
            refuse("the lease may last ten years at most")
        } else if beat.saturating_mul(3) > lasts {
            refuse("a lease must last at least three beats")
        } else {
            Ok(Self { beat, lasts })
        }
    }

    /// The lease of a run in a bucket, unless it is said otherwise: each beat is a write of its own there, of which some
    /// allow one a second, and credentials may take their time to be renewed.
    #[cfg(feature = "object")]
    pub(crate) fn far_away() -> Self {
        Self { beat: Duration::from_secs(20), lasts: Duration::from_secs(60) }
    }

    /// How often the owner beats.
    pub fn beat(&self) -> Duration {
        self.beat
    }

    /// How long the owner may be silent.
    pub fn lasts(&self) -> Duration {
        self.lasts
    }

    /// When an owner that cannot reach its store must have stopped what it may do alone: one beat before anyone
    /// may reap it.
    pub fn own_deadline(&self) -> Duration {
        self.lasts - self.beat
    }

    /// Whether silence for `silent_for` ended it. Exactly at the end it still holds.
    pub fn lapsed(&self, silent_for: Duration) -> bool {
        silent_for > self.lasts
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self { beat: Duration::from_secs(4), lasts: Duration::from_secs(12) }
    }
}

/// What becomes of a run whose owner died. [`Policy::with_retries`] requeues it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrphanPolicy {
    /// The attempt is over and the run can be resumed.
    #[default]
    Dead,
    /// The run failed.
    Fail,
    /// The run waits for its next attempt, as long as it has any left.
    Requeue,
}

/// What becomes of processes that a command has left behind when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TreePolicy {
    /// They live on, as they would without us. The run has ended.
    #[default]
    Keep,
    /// They are ended before the run is.
    End,
    /// The run ends with the last of them.
    Wait,
}

impl TreePolicy {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What an owner does whose lease ran out because it could not reach the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLeaseLoss {
    /// Go on until the store says that the run is lost.
    Continue,
    /// Stop before anyone may take the run over.
    Stop,
}

/// After which ends a run is tried again by itself, how often, and how long it waits between attempts. What becomes of a
/// run whose owner dies is its [`OrphanPolicy`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retry {
    /// After a failure.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_failure: bool,
    /// After an interruption, but for one from a keyboard: what a person stopped is not revived.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub on_interrupt: bool,
    /// Only where it is named: resuming all runs leaves it alone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub never: bool,
    /// Failures that no further attempt would change.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permanent: Vec<FailureClass>,
    /// Attempts that may fail, the first included.
    pub max_attempts: u32,
    /// Reaps in all. Counted apart from failures: a host that dies says little about the work. After the last of them the
    /// run is parked.
    pub max_reaps: u32,
    /// The wait after the first failure, and after the second reap; it doubles with every further one.
    #[serde(rename = "backoff_ms", with = "millis")]
    pub backoff: Duration,
    /// The longest wait.
    #[serde(rename = "backoff_cap_ms", with = "millis")]
    pub backoff_cap: Duration,
}

/// A kind of failure that a policy can name, for [`Retry::permanent`]: failures that no further attempt would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum FailureClass {
    /// By the command's exit code.
    Code(i32),
    /// By the failure's `error_type`.
    Type(String),
}

impl FailureClass {
    /// Whether a failure with that type and exit code is of this class.
    pub fn covers(&self, error_type: &str, code: Option<i32>) -> bool {
        match self {
            Self::Code(class) => code == Some(*class),
            Self::Type(class) => error_type == class,
        }
    }
}

impl std::str::FromStr for FailureClass {
    type Err = std::convert::Infallible;

    /// A number is an exit code; anything else is an `error_type`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::Type(text.into()), Self::Code))
    }
}

impl Retry {
    /// How long to wait after something has gone wrong for the `count`th time, with `jitter` in 0..=255 spreading it over
    /// half to all of the step.
    pub fn wait_after(&self, count: u32, jitter: u8) -> Duration {
        let doublings = count.saturating_sub(1).min(31);
        let step = self.backoff.saturating_mul(1 << doublings).min(self.backoff_cap);
        step / 2 + step / 2 * u32::from(jitter) / 255
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            on_failure: false,
            on_interrupt: false,
            never: false,
            permanent: Vec::new(),
            max_attempts: 10,
            max_reaps: 10,
            backoff: Duration::from_secs(1),
            backoff_cap: Duration::from_secs(300),
        }
    }
}

/// How long a run may take, stand still, or have a living but silent owner. Liveness is not progress: both have limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Without progress for this long a run is `stalled`.
    #[serde(rename = "stall_after_ms", with = "millis::option", skip_serializing_if = "Option::is_none")]
    pub stall_after: Option<Duration>,
    /// After this long an attempt is ended.
    #[serde(rename = "timeout_ms", with = "millis::option", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// After this long of silence a living owner on this host is ended, with its tree. Without it, only by a person.
    #[serde(rename = "hung_after_ms", with = "millis::option", skip_serializing_if = "Option::is_none")]
    pub hung_after: Option<Duration>,
}

/// What a run is promised when it is made: retries, backoff, timeout, lease. Set it for a kind with
/// [`Registry::with_policy`], or for one run in [`Spec::policy`].
///
/// ```
/// use std::time::Duration;
/// let policy = outlive::Policy::default()
///     .with_retries(5)
///     .with_backoff(Duration::from_millis(500), Duration::from_secs(60))
///     .with_timeout(Duration::from_secs(600));
/// assert!(policy.retry.on_failure && policy.retry.on_interrupt);
/// ```
///
/// [`Registry::with_policy`]: crate::Registry::with_policy
/// [`Spec::policy`]: crate::Spec::policy
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    /// When silence counts as death.
    pub lease: Lease,
    /// How long the run may take or stand still.
    pub limits: Limits,
    /// How often it is tried.
    pub retry: Retry,
    /// What a reap makes of it.
    pub orphans: OrphanPolicy,
    /// What becomes of processes that its command leaves behind.
    #[serde(skip_serializing_if = "TreePolicy::is_default")]
    #[doc(hidden)]
    pub tree: TreePolicy,
    /// What its owner does when the store is out of reach. Unset: go on, unless the run holds a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lease_loss: Option<OnLeaseLoss>,
}

impl Policy {
    /// Has a run tried again until it succeeds, is cancelled or has failed `max_attempts` times. For handlers that may be
    /// called again after a crash: they are idempotent, or go on from their checkpoint.
    ///
    /// A failed attempt is followed by the next after [`Policy::with_backoff`]. One that a graceful shutdown interrupted is
    /// followed at once, and so is the first whose worker died; later ones wait as after failures, and after ten deaths the run
    /// is parked until a person unparks it. Neither counts as failed. Without this call a run that failed, was
    /// interrupted or is dead rests until a person or a program resumes it.
    #[must_use]
    pub fn with_retries(mut self, max_attempts: u32) -> Self {
        (self.retry.on_failure, self.retry.on_interrupt) = (true, true);
        (self.retry.max_attempts, self.orphans) = (max_attempts, OrphanPolicy::Requeue);
        self
    }

    /// Waits for `first` after the first failure and twice as long after each further one, up to `longest`. A second and
    /// five minutes, unless it is said otherwise; each wait is shortened by up to half, so that runs that failed together
    /// do not return together.
    #[must_use]
    pub fn with_backoff(mut self, first: Duration, longest: Duration) -> Self {
        (self.retry.backoff, self.retry.backoff_cap) = (first, longest);
        self
    }

    /// Asks an attempt to stop that takes longer than `timeout`, and records it as failed.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.limits.timeout = Some(timeout);
        self
    }

    /// Refuses numbers that no clock can hold.
    pub fn check(&self) -> Result<(), InvalidPolicy> {
        let named = [
            ("stall_after", self.limits.stall_after),
            ("timeout", self.limits.timeout),
            ("hung_after", self.limits.hung_after),
            ("backoff", Some(self.retry.backoff)),
            ("backoff_cap", Some(self.retry.backoff_cap)),
        ];
        for (name, value) in named {
            if value.is_some_and(|value| value > LONGEST) {
                return Err(InvalidPolicy(format!("`{name}` may be ten years at most")));
            }
        }
        if self.retry.max_attempts == 0 {
            return Err(InvalidPolicy("`max_attempts` of 0 would never run anything".into()));
        }
        Ok(())
    }
}

/// The policies that new runs are given: for all kinds, and for single ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policies {
    all: Policy,
    kinds: BTreeMap<String, Policy>,
}

impl Policies {
    /// `all` is the policy of every kind that `kinds` does not have.
    pub fn new(all: Policy, kinds: BTreeMap<String, Policy>) -> Self {
        Self { all, kinds }
    }

    /// Gives a kind a policy of its own.
    pub(crate) fn set(&mut self, kind: String, policy: Policy) {
        self.kinds.insert(kind, policy);
    }

    /// The policy of a run of this kind.
    pub fn of(&self, kind: &str) -> &Policy {
        self.kinds.get(kind).unwrap_or(&self.all)
    }
}

/// When ended runs are put away. The default puts nothing away, ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Retention {
    /// The newest so many ended runs stay, whatever their age.
    pub keep_last: Option<u64>,
    /// Ended for this long, a run is archived. Unset: never.
    #[serde(rename = "archive_after_ms", with = "millis::option")]
    pub archive_after: Option<Duration>,
    /// Ended for this long, a run is deleted with its logs. Unset: never.
    #[serde(rename = "delete_after_ms", with = "millis::option")]
    pub delete_after: Option<Duration>,
}

impl Retention {
    /// Whether the ended run of this rank, the newest having rank 0, is to be archived. Each setting only ever protects
    /// more.
    pub fn archives(&self, rank: u64, ended_for: Duration) -> bool {
        let old_enough = self.archive_after.is_some_and(|limit| ended_for > limit);
        old_enough && self.keep_last.is_none_or(|keep| rank >= keep)
    }

    /// Whether the ended run of this rank is to be deleted, if its state allows it.
    pub fn deletes(&self, rank: u64, ended_for: Duration) -> bool {
        let old_enough = self.delete_after.is_some_and(|limit| ended_for > limit);
        old_enough && self.keep_last.is_none_or(|keep| rank >= keep)
    }
}

/// Settings that cannot hold, with the numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPolicy(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l16_leases_that_cannot_hold_are_refused_with_the_numbers() {
        let seconds = Duration::from_secs;
        for (beat, lease) in [(0, 15), (5, 0), (5, 14), (6, 15), (1, u64::MAX), (u64::MAX, u64::MAX)] {
            let refused = Lease::new(seconds(beat), seconds(lease)).expect_err("an impossible lease was taken");
            assert!(refused.to_string().contains("beat"), "{refused}");
        }
        assert!(Lease::new(seconds(5), seconds(15)).is_ok());
        let negative: Result<Lease, _> = serde_json::from_str(r#"{"beat_ms":-5,"lease_ms":15}"#);
        assert!(negative.is_err());
        let short: Result<Lease, _> = serde_json::from_str(r#"{"beat_ms":5000,"lease_ms":10000}"#);
        assert!(short.expect_err("taken").to_string().contains("three beats"));
    }

    #[test]
    fn a_lease_holds_exactly_at_its_end() {
        let lease = Lease::default();
        assert!(!lease.lapsed(lease.lasts()));
        assert!(lease.lapsed(lease.lasts() + Duration::from_micros(1)));
        assert!(lease.own_deadline() < lease.lasts());
    }

    #[test]
    fn retention_archives_nothing_by_default_and_settings_protect() {
        let (day, week) = (Duration::from_secs(86_400), Duration::from_secs(7 * 86_400));
        assert!(!Retention::default().archives(u64::MAX, Duration::MAX));
        let by_age = Retention { archive_after: Some(day), ..Retention::default() };
        assert!(by_age.archives(0, week) && !by_age.archives(0, day));
        let both = Retention { keep_last: Some(10), ..by_age };
        assert!(both.archives(10, week) && !both.archives(9, week) && !both.archives(10, day));
    }

    #[test]
    fn backoff_doubles_is_capped_and_jittered() {
        let retry = Retry { backoff: Duration::from_secs(1), backoff_cap: Duration::from_secs(10), ..Retry::default() };
        let most = [1, 2, 3, 4, 5, 40, u32::MAX].map(|count| retry.wait_after(count, 255).as_secs());
        assert_eq!(most, [1, 2, 4, 8, 10, 10, 10]);
        assert_eq!(retry.wait_after(2, 0), Duration::from_secs(1));
    }
}
