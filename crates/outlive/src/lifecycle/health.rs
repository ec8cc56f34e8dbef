//! Health: what a reader makes of a running run. Reading classifies; it never writes.
//!
//! [`judge`] weighs what the store heard of an owner against what can be seen of its processes on this host. Readers
//! and the reaper use the same judgement, so what `ps` shows as dead is what a reap would end.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lifecycle::survives_reap;
use crate::model::owner::{Evidence, LiveProcesses, Liveness};
use crate::model::run::{End, Owner, Pending, Run, State, StateName};
use crate::model::time::{Timestamp, show_duration};

/// Observes the processes of this host.
pub trait ProcessObserver: Send + Sync {
    /// Looks at the owner of each run, present or last, and at what its attempt left alive. Many at a time, because a
    /// look around the host costs the same for one as for all.
    #[doc(hidden)]
    fn look(&self, runs: &[&Run]) -> Vec<Observation>;

    /// Looks at owners, whether or not they own a run.
    #[doc(hidden)]
    fn look_at_owners(&self, owners: &[Owner]) -> Vec<Liveness>;
}

/// What was seen of the processes of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observation {
    /// Its owner.
    pub owner: Liveness,
    /// What else lives of its attempt. Looked for only where the owner does not live, or the attempt is over.
    pub leftovers: LiveProcesses,
}

/// What was found out about the owner of a running run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerStatus {
    /// It is there, as far as anyone can tell.
    Live,
    /// It lives on this host, but its lease lapsed.
    Unresponsive,
    /// It is gone; processes that it started are not.
    Orphaned {
        /// What proves the first.
        evidence: Evidence,
        /// The second.
        leftovers: LiveProcesses,
    },
    /// It is gone.
    Dead(Evidence),
}

/// Judges the owner of a running run.
///
/// With a witness the registry is of one host, and a process that lives is never called dead however silent it is.
/// Without one, or where the witness could not see, the lease decides.
pub fn judge(owner: &Owner, observation: Option<&Observation>) -> OwnerStatus {
    let silent_for = owner.heard.silent_for;
    let lapsed = owner.lease.lapsed(silent_for);
    let by_lease = || {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let silent_ms = ms(silent_for);
        let evidence = if owner.identity.is_unknown() {
            Evidence::OwnerUnknown { silent_ms }
        } else {
            Evidence::LeaseLapsed { silent_ms, lease_ms: ms(owner.lease.lasts()) }
        };
        if lapsed { OwnerStatus::Dead(evidence) } else { OwnerStatus::Live }
    };
    let Some(observation) = observation else { return by_lease() };
    match &observation.owner {
        Liveness::Alive if lapsed => OwnerStatus::Unresponsive,
        Liveness::Alive => OwnerStatus::Live,
        // An owner that cannot be observed but has live processes is not gone.
        Liveness::Unknown(_) if lapsed && !observation.leftovers.is_empty() => OwnerStatus::Unresponsive,
        Liveness::Unknown(_) => by_lease(),
        Liveness::Dead(evidence) if observation.leftovers.is_empty() => OwnerStatus::Dead(evidence.clone()),
        Liveness::Dead(evidence) => {
            OwnerStatus::Orphaned { evidence: evidence.clone(), leftovers: observation.leftovers.clone() }
        }
    }
}

/// Why a run is to be ended for which no owner is left: the process that it is tied to is proven gone. A leash that
/// lives, or of which nothing is proven, ends nothing; and while its owner may live, that ends the run.
pub fn unleashed(seen: &RunStatus, pid: u32, leash: &Liveness) -> Option<String> {
    match (seen.health, leash) {
        (Some(Health::Orphaned), Liveness::Dead(evidence)) if is_leash_gone(leash) => {
            Some(format!("its leash ended, process {pid}, and its owner is gone: {evidence}"))
        }
        _ => None,
    }
}

/// Whether the leash of an attempt is proven gone of which processes live here. One of another boot is of another host:
/// no process of that boot could live here.
pub fn is_leash_gone(leash: &Liveness) -> bool {
    matches!(leash, Liveness::Dead(evidence) if !matches!(evidence, Evidence::OtherBoot { .. }))
}

/// How a running run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Beats and, where that is asked for, progress arrive.
    Healthy,
    /// Beats are missing; its lease holds.
    Late,
    /// Beats arrive; progress does not.
    Stalled,
    /// It should have ended.
    Overdue,
    /// Its owner lives, but is silent.
    Unresponsive,
    /// Its owner is gone; processes that it started are not.
    Orphaned,
}

impl Health {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Healthy, Self::Late, Self::Stalled, Self::Overdue, Self::Unresponsive, Self::Orphaned];

    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Late => "late",
            Self::Stalled => "stalled",
            Self::Overdue => "overdue",
            Self::Unresponsive => "unresponsive",
            Self::Orphaned => "orphaned",
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A run as a reader sees it, from [`Registry::get`](crate::Registry::get), [`Registry::wait`](crate::Registry::wait)
/// and [`Registry::list`](crate::Registry::list): what is on record, judged by whether its owner lives.
#[derive(Debug, Clone, PartialEq)]
pub struct RunStatus {
    /// What is on record.
    pub run: Run,
    /// How it stands: as on record, except that a running run whose owner is gone is dead.
    pub state: StateName,
    /// How it does, if it runs.
    pub health: Option<Health>,
    /// Why it is so, for people.
    pub reason: Option<String>,
    /// Live processes of a run whose owner is gone, that is dead or interrupted, or, where one run was read alone, that
    /// has no owner.
    pub leftovers: LiveProcesses,
    /// What proves that its owner is gone, where that is not recorded yet.
    pub evidence: Option<Evidence>,
}

/// The shortest time until its last heartbeat that says for how long a dead run lived.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);

impl RunStatus {
    /// Whether it is running on record, and nothing is left that could stop it on request.
    pub fn is_without_owner(&self) -> bool {
        self.run.owner().is_some() && (self.evidence.is_some() || self.health == Some(Health::Orphaned))
    }

    /// Appends to the reason.
    pub(crate) fn add_reason(&mut self, further: String) {
        self.reason = Some(self.reason.take().map_or(further.clone(), |reason| format!("{reason}; {further}")));
    }

    /// Appends that its cancellation was requested, where it is not final yet.
    pub(crate) fn add_cancel_request(&mut self) {
        if let Some(request) = self.run.cancel.as_ref().filter(|_| !self.state.is_final()) {
            let why = request.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let requested = format!("cancel requested by {}{why}", request.by.user);
            self.add_reason(requested);
        }
    }

    /// When its last attempt was started.
    pub fn started_at(&self) -> Option<Timestamp> {
        match &self.run.state {
            State::Running(running) => Some(running.started_at),
            State::Suspended(suspended) => Some(suspended.started_at),
            State::Ended(ending) => ending.started_at,
            State::Pending(_) => None,
        }
    }

    /// When the end of its last attempt was recorded.
    pub fn ended_at(&self) -> Option<Timestamp> {
        self.run.ending().map(|ending| ending.at)
    }

    /// How long its last attempt took, or has taken until `now`. A dead one lived until its last heartbeat, as far as is
    /// known; where that came within a second, it may have lived for any time, and nothing is answered.
    pub fn duration(&self, now: Timestamp) -> Option<Duration> {
        let died_at = match (self.state, self.run.ending().map(|ending| &ending.how)) {
            (_, Some(End::Dead(reap))) => Some(reap.last_heard),
            (StateName::Dead, None) => self.run.owner().map(|owner| owner.heard.at),
            _ => None,
        };
        let lasted = died_at.or(self.ended_at()).unwrap_or(now).since(self.started_at()?);
        (died_at.is_none() || lasted >= SHORTEST_LIFE).then_some(lasted)
    }

    /// When it is to be started until `until`: at its next time and, where it repeats, at those after it. None of a run
    /// that is paused, or does not wait for a time.
    #[doc(hidden)]
    pub fn upcoming(&self, now: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
        let next = match &self.run.state {
            State::Pending(Pending { paused: None, not_before, .. }) => Some(not_before.unwrap_or(now)),
            _ => None,
        };
        let schedule = self.run.spec.schedule.as_ref().zip(next);
        let later = schedule.map(|(schedule, next)| schedule.slots(self.run.slot(), next.max(now), until));
        next.filter(|next| *next > now && *next < until).into_iter().chain(later.into_iter().flatten())
    }

    /// Whether it is over. A run that only looks dead, and is resumed once a worker has seen that, is not.
    pub fn is_over(&self) -> bool {
        let goes_on = self.run.owner().is_some() && survives_reap(&self.run);
        self.state.is_ended() && !goes_on
    }
}

/// Reads a run: judges its owner, if it has one, and says how it does.
pub fn see(run: Run, observation: Option<&Observation>, now: Timestamp) -> RunStatus {
    let mut seen = RunStatus {
        state: run.state.name(),
        health: None,
        reason: None,
        leftovers: LiveProcesses::default(),
        evidence: None,
        run,
    };
    if let (true, Some(owner)) = (seen.run.foreign, seen.run.owner()) {
        let ends = owner.heard.at.after(owner.lease.lasts());
        if owner.lease.lapsed(owner.heard.silent_for) {
            seen.state = StateName::Dead;
            seen.reason = Some(format!("abandoned: written by another program, whose lease ended {ends}"));
        } else {
            seen.reason = Some(format!("written by another program, with a lease until {ends}"));
        }
        return seen;
    }
    if seen.run.copied && !seen.state.is_ended() {
        seen.reason = Some("copied: it belongs to the registry this one was copied from".into());
        return seen;
    }
    let State::Running(running) = &seen.run.state else {
        seen.reason = standing(&seen.run, now);
        seen.leftovers = observation.map(|observation| observation.leftovers.clone()).unwrap_or_default();
        if !seen.leftovers.is_empty() {
            seen.add_reason(format!("still alive: {}", seen.leftovers));
        }
        seen.add_cancel_request();
        return seen;
    };
    let (owner, limits) = (&running.owner, &seen.run.spec.policy.limits);
    let over = |limit: Option<Duration>, since: Timestamp| limit.filter(|limit| now.since(since) > *limit);
    match judge(owner, observation) {
        OwnerStatus::Dead(evidence) => {
            seen.state = StateName::Dead;
            let goes_on = if survives_reap(&seen.run) { "; a worker or supervisor tries it again" } else { "" };
            seen.reason = Some(format!("{evidence}{goes_on}"));
            seen.evidence = Some(evidence);
        }
        OwnerStatus::Orphaned { evidence, leftovers } => {
            seen.health = Some(Health::Orphaned);
            seen.reason = Some(format!("{evidence}; still alive: {leftovers}"));
            seen.leftovers = leftovers;
            seen.evidence = Some(evidence);
        }
        OwnerStatus::Unresponsive => {
            seen.health = Some(Health::Unresponsive);
            let silent = show_duration(owner.heard.silent_for);
            seen.reason =
                Some(format!("its owner, pid {}, lives but has been silent for {silent}", owner.identity.pid));
        }
        OwnerStatus::Live => {
            let (health, reason) = if let Some(timeout) = over(limits.timeout, running.started_at) {
                (Health::Overdue, Some(format!("its timeout is {}", show_duration(timeout))))
            } else if let Some(limit) = over(limits.stall_after, running.progressed_at) {
                (Health::Stalled, Some(format!("no progress for more than {}", show_duration(limit))))
            } else if owner.heard.silent_for > owner.lease.beat() * 2 {
                (Health::Late, Some(format!("silent for {}", show_duration(owner.heard.silent_for))))
            } else {
                (Health::Healthy, None)
            };
            seen.health = Some(health);
            seen.reason = reason;
            if owner.identity.is_unknown() {
                seen.reason = Some(joined("its owner is unknown: it has no record", seen.reason));
            }
        }
    }
    if seen.state == StateName::Running {
        seen.add_cancel_request();
    }
    seen
}

fn joined(reason: &str, further: Option<String>) -> String {
    further.map_or_else(|| reason.to_owned(), |further| format!("{reason}; {further}"))
}

/// What the record of a run that is not running has to say for itself.
fn standing(run: &Run, now: Timestamp) -> Option<String> {
    match &run.state {
        State::Pending(Pending { paused: Some(paused), .. }) => {
            let why = paused.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            Some(format!("paused by {}{why}", paused.by.user))
        }
        State::Pending(pending) if !pending.waits_for.is_empty() => {
            let parents: Vec<String> = pending.waits_for.iter().map(|run| format!("`{run}`")).collect();
            Some(format!("waits for {}", parents.join(", ")))
        }
        State::Pending(pending) => {
            let later = pending.not_before.filter(|not_before| *not_before > now);
            let later = later.map(|not_before| format!("waits until {not_before}"));
            let parts: Vec<String> = later.into_iter().chain(pending.reason.clone()).collect();
            (!parts.is_empty()).then(|| parts.join("; "))
        }
        State::Suspended(suspended) => Some(suspended.reason.clone()),
        State::Running(_) => None,
        State::Ended(ending) => why_ended(&ending.how),
    }
}

/// What the record of an end has to say for itself.
pub fn why_ended(how: &End) -> Option<String> {
    match how {
        End::Succeeded => None,
        End::Failed(failure) => {
            let gave_up = failure.gave_up.map(|gave_up| format!(" ({gave_up})")).unwrap_or_default();
            Some(format!("{}{gave_up}", failure.error_message))
        }
        End::Cancelled(request) => {
            let why = request.reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            Some(format!("by {}{why}", request.by.user))
        }
        End::Interrupted(interruption) => Some(interruption.to_string()),
        End::Dead(reap) => Some(reap.evidence.to_string()),
    }
}
