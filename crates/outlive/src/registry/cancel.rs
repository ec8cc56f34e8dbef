//! Cancelling runs: the durable request, and the end of processes that no owner will end.
//!
//! A run counts as cancelled only when nothing of its process tree is left. An owner sees to that for a run that it owns.
//! Without an owner it is done here, as far as the processes are on this host. Processes on another host cannot be
//! observed from here, and the answer says so.

use std::time::Duration;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::{Health, RunStatus};
use crate::lifecycle::{Action, Refusal};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::owner::HostContext;
use crate::model::owner::LiveProcesses;
use crate::model::run::{Ending, Owner, Run, State, StateName};
use crate::ownership::reaper::Reaper;

/// The grace period of processes whose owner is gone, where the caller names none.
const GRACE: Duration = Duration::from_secs(5);

/// How a run is to be cancelled, for [`Registry::cancel_and_end`](crate::Registry::cancel_and_end): when processes of
/// the run are to be ended from here. Handlers need only [`Registry::cancel`](crate::Registry::cancel).
#[derive(Debug, Clone, Default)]
pub struct CancelOptions {
    /// The reason, kept in the run's event log.
    pub reason: Option<String>,
    /// How long its processes may take to end by themselves before they are killed.
    pub grace: Option<Duration>,
    /// Also end an owner that lives but does not beat, with all processes of its run.
    pub force: bool,
}

/// What a request to cancel a run has achieved so far.
#[derive(Debug, Clone)]
pub struct Cancellation {
    /// The run after it.
    pub run: Run,
    /// Live processes of a run without an owner.
    pub live: LiveProcesses,
    /// The host of its last attempt, where that is another one: its processes cannot be observed from here.
    pub elsewhere: Option<String>,
    /// The pid of an owner that lives but does not beat, and may never see the request.
    pub silent_owner: Option<u32>,
}

impl Cancellation {
    /// Whether the run is cancelled and nothing of its process tree is left.
    pub fn is_done(&self) -> bool {
        self.run.state.name() == StateName::Cancelled && self.live.is_empty() && self.elsewhere.is_none()
    }
}

impl Registry {
    /// Requests that a run be cancelled. It has stopped only if the answer is in the state `cancelled`.
    pub async fn cancel(&self, id: RunId, reason: Option<String>) -> Result<Run, Error> {
        self.cancel_within(id, reason, None).await
    }

    /// Requests that a run be cancelled, and its processes killed if they have not ended after `grace`.
    pub async fn cancel_within(
        &self,
        id: RunId,
        reason: Option<String>,
        grace: Option<Duration>,
    ) -> Result<Run, Error> {
        let reason = reason.map(|reason| self.redactor.text(&reason));
        let request =
            |run: &Run| Action::RequestCancel { reason: reason.clone(), grace, live: self.live_processes(run) };
        Ok(self.change(id, request).await?.0.run)
    }

    /// Requests that a run be cancelled, and ends its processes on this host where no owner will.
    ///
    /// A run that is cancelled already is accepted if processes of it live on: they are ended. Only processes that are
    /// proven to be of the run are signalled.
    pub async fn cancel_and_end(&self, id: RunId, how: &CancelOptions) -> Result<Cancellation, Error> {
        let run = match self.cancel_within(id, how.reason.clone(), how.grace).await {
            Err(error) if is_cancelled(&error) => match self.get(id).await? {
                unfinished if !unfinished.leftovers.is_empty() => unfinished.run,
                _ => return Err(error),
            },
            requested => requested?,
        };
        if run.started_attempt().is_none() {
            return Ok(Cancellation { run, live: LiveProcesses::default(), elsewhere: None, silent_owner: None });
        }
        let grace = how.grace.unwrap_or(GRACE);
        // Its owner may have recorded an end since, and left processes behind: a run without an owner is observed.
        let mut seen = self.get(id).await?;
        if seen.run.owner().is_some() {
            seen = self.end_without_owner(seen, grace, how.force).await?;
        }
        if seen.run.owner().is_none() && !seen.leftovers.is_empty() {
            self.end_tree(&seen.run, grace);
            if !seen.state.is_final() {
                // The first request stands; this one makes the run final if its processes are gone.
                self.cancel_within(id, how.reason.clone(), how.grace).await?;
            }
            seen = self.get(id).await?;
        }
        let silent = seen.health == Some(Health::Unresponsive);
        let silent_owner = seen.run.owner().filter(|_| silent).map(|owner| owner.identity.pid);
        if seen.run.owner().is_none() && seen.leftovers.is_empty() {
            self.leave_tree(&seen.run);
        }
        let elsewhere = self.elsewhere(&seen.run).await?;
        Ok(Cancellation { live: seen.leftovers, run: seen.run, elsewhere, silent_owner })
    }

    /// Ends the processes of a running run whose owner is gone, or is to be ended by force, and reaps it.
    async fn end_without_owner(&self, seen: RunStatus, grace: Duration, force: bool) -> Result<RunStatus, Error> {
        let id = seen.run.id;
        let mut reaper = Reaper::new(self.worker());
        if seen.is_without_owner() {
            self.end_tree(&seen.run, grace);
            reaper.pass_over(self, Filter::of([id])).await?;
        } else if force && seen.health == Some(Health::Unresponsive) {
            reaper.force(self, &seen.run).await?;
        } else {
            return Ok(seen);
        }
        self.get(id).await
    }

    /// Live processes of the last attempt of a run without an owner, as far as the store or this host can observe them.
    pub(super) fn live_processes(&self, run: &Run) -> LiveProcesses {
        if run.owner().is_some() || run.copied || run.started_attempt().is_none() {
            return LiveProcesses::default();
        }
        let observation = self.look(&[run]).and_then(|mut observations| observations.pop());
        self.with_processes_here(run, observation.map(|observation| observation.leftovers).unwrap_or_default())
    }

    /// Adds the live processes of a run that a registry without a directory cannot observe: those that this host has on
    /// record in its home.
    pub(super) fn with_processes_here(&self, run: &Run, mut live: LiveProcesses) -> LiveProcesses {
        #[cfg(feature = "sqlite")]
        if self.local.is_some() {
            return live;
        }
        if let Some(tree) = self.tree(run).filter(|tree| tree.is_on_record()) {
            let members = tree.members();
            live.unseen |= members.is_empty() && tree.is_held();
            live.pids.extend(members.iter().map(|member| member.pid));
            live.pids.sort_unstable();
            live.pids.dedup();
        }
        live
    }

    /// The host of a run's last attempt, where its processes can be observed neither by the store nor on this host.
    async fn elsewhere(&self, run: &Run) -> Result<Option<String>, Error> {
        #[cfg(feature = "sqlite")]
        if self.local.is_some() {
            return Ok(None);
        }
        let never_started = run.started_attempt().is_none() || run.spec.command.is_none();
        if never_started || run.owner().is_some() || is_proven_ended(run) {
            return Ok(None);
        }
        let is_seen = |owner: &Owner| self.store.witness().is_some() && !owner.identity.is_far();
        let host = match run.ending().and_then(|ending| ending.owner.as_ref()) {
            Some(owner) if is_seen(owner) || owner.identity.is_unknown() => return Ok(None),
            Some(owner) => Some(owner.identity.vantage.host.clone()),
            // The record of a pending run does not say who owned its last attempt; its event log does.
            None => {
                let events = self.events(run.id).await?;
                events.iter().rfind(|event| event.to == StateName::Running).map(|event| event.by.host.clone())
            }
        };
        let here = HostContext::here().host;
        Ok(host.filter(|host| *host != here).map(|host| host.to_string()))
    }
}

/// Whether a request was refused because the run is cancelled already.
fn is_cancelled(error: &Error) -> bool {
    let state = match error {
        Error::Refused { refusal: Refusal::WrongState { state, .. }, .. } => Some(*state),
        _ => None,
    };
    state == Some(StateName::Cancelled)
}

/// Whether the owner of a cancelled run ended it on request, with its processes, and recorded how its command exited.
fn is_proven_ended(run: &Run) -> bool {
    let State::Ended(Ending { at, exit: Some(_), .. }) = &run.state else { return false };
    run.cancel.as_ref().is_some_and(|request| *at > request.at)
}
