//! Claims: how every worker, of the library and of the command, gets its runs. The store is asked for what can be claimed by
//! an index; no worker reads the queue.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use crate::error::Error;
use crate::lifecycle::OwnerEnd;
use crate::lifecycle::fairness::Turns;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::policy::Lease;
use crate::model::run::{Exit, Run};
use crate::ownership::handle::{Persisted, RunHandle};
use crate::registry::Registry;
use crate::util::sync::lock;

/// The most runs of schedules that are remembered as followed.
const FOLLOWED: usize = 10_000;
/// The most runs with a rate that are remembered of a claim.
const RATED: usize = 64;

/// How long a worker that met no run of a share claims without a look for one.
const UNSHARED: Duration = Duration::from_millis(100);
/// The most times that one claim divides what is left among shares.
const MOST_ROUNDS: usize = 32;

/// What was claimed is not lost for a failure behind it: the next claim meets the failure again.
fn unless_some<T: Default>(handles: &[RunHandle]) -> impl Fn(Error) -> Result<T, Error> + use<T> {
    let has_some = !handles.is_empty();
    move |error| if has_some { Ok(T::default()) } else { Err(error) }
}

/// What one claim was offered beside what it claimed.
#[derive(Default)]
struct Offered {
    /// Runs of schedules that were passed over because their next run is not made.
    scheduled: Mutex<Vec<Run>>,
    /// Runs with a rate.
    rated: Mutex<Vec<Run>>,
}

impl Offered {
    /// Whether a run is to be claimed, of those that are `wanted`. Notes what is to be remembered of it.
    fn is_claimed(&self, run: &Run, followed: &BTreeSet<RunId>, wanted: &(dyn Fn(&Run) -> bool + Send + Sync)) -> bool {
        if run.rates().next().is_some() {
            let mut rated = lock(&self.rated);
            let is_known = rated.iter().any(|known: &Run| known.spec.keys == run.spec.keys);
            if !is_known && rated.len() < RATED {
                rated.push(run.clone());
            }
        }
        if run.spec.schedule.is_none() || followed.contains(&run.id) {
            return wanted(run);
        }
        let mut scheduled = lock(&self.scheduled);
        if scheduled.iter().all(|known: &Run| known.id != run.id) {
            scheduled.push(run.clone());
        }
        false
    }

    fn into_parts(self) -> (Vec<Run>, Vec<Run>) {
        (std::mem::take(&mut *lock(&self.scheduled)), std::mem::take(&mut *lock(&self.rated)))
    }
}

/// What a worker claims, and what it remembers between two claims.
#[derive(Debug, Default)]
pub struct Claims {
    kinds: BTreeSet<String>,
    longest: Option<Lease>,
    /// Runs of schedules whose next run is made: only those may be claimed.
    followed: BTreeSet<RunId>,
    /// Runs with a rate that the last claim was offered.
    rated: Vec<Run>,
    /// Whose turn it is among shares.
    turns: Turns,
    /// Until when no run of a share is expected, in time awake.
    unshared_until: Duration,
    /// Runs of shares were met by the last look.
    has_shares: bool,
    /// The last claim brought less than it asked for.
    is_drained: bool,
}

impl Claims {
    /// Claims of runs of these kinds, or of any if none is named.
    pub fn of(kinds: impl IntoIterator<Item = String>) -> Self {
        Self { kinds: kinds.into_iter().collect(), ..Self::default() }
    }

    /// Limits the lease of claimed runs to `longest`.
    #[must_use]
    pub fn within(self, longest: Lease) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// Claims up to `limit` runs of those that are `wanted`. Answers with them, and whether there may be more.
    pub async fn claim(
        &mut self,
        registry: &Registry,
        limit: usize,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<(Vec<RunHandle>, bool), Error> {
        let (handles, scheduled) = if self.is_drained {
            self.claim_drained(registry, limit, wanted).await?
        } else {
            self.claim_in_turn(registry, limit, wanted).await?
        };
        let has_followed = match self.follow(registry, &scheduled).await {
            // What was claimed is not lost for it: the next claim meets the failure again.
            Err(_) if !handles.is_empty() => false,
            followed => followed?,
        };
        if handles.is_empty() && has_followed {
            let (handles, _) = self.claim_in_turn(registry, limit, wanted).await?;
            return Ok((handles, true));
        }
        Ok((handles, !self.is_drained || has_followed))
    }

    /// Claims where the last claim left nothing behind: a worker that waits asks the store for one thing, and not for whose
    /// turn it is among runs that are not there. Where shares were met, it claims one run, whosever it is, and the next
    /// claims are in turn again.
    async fn claim_drained(
        &mut self,
        registry: &Registry,
        limit: usize,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<(Vec<RunHandle>, Vec<Run>), Error> {
        let most = if self.has_shares { limit.min(1) } else { limit };
        let (handles, scheduled) = self.claim_once(registry, self.filter(), most, wanted).await?;
        self.has_shares |= handles.iter().any(|handle| handle.run().spec.share.is_some());
        if !self.has_shares {
            self.unshared_until = registry.clock().awake() + UNSHARED;
        }
        self.is_drained = handles.len() < most;
        Ok((handles, scheduled))
    }

    /// How long it is until a run can be claimed by the clock alone, as far as the last claim can tell.
    pub async fn until_next(&self, registry: &Registry) -> Result<Option<Duration>, Error> {
        let due = registry.store().next_due(&self.filter()).await?;
        let rates = registry.rates_used_up(&self.rated.iter().collect::<Vec<_>>()).await?;
        let now = registry.clock().now();
        let free = rates.into_iter().map(|(_, free_at)| free_at.since(now)).min();
        // A moment later, so that it is due by then.
        Ok(due.into_iter().chain(free).min().map(|left| left + Duration::from_millis(1)))
    }

    fn filter(&self) -> Filter {
        // One kind can be looked up in the order of the queue.
        let only = (self.kinds.len() == 1).then(|| self.kinds.first().cloned()).flatten();
        let several = Some(&self.kinds).filter(|kinds| kinds.len() > 1).cloned();
        Filter { kind: only, kinds: several, ..Filter::default() }
    }

    /// Claims from every share in its turn, and tells which runs of schedules were passed over.
    ///
    /// While no run has a share, the queue is claimed from as it is, and asked for shares no more than now and then: when
    /// it brings less than was asked for, or [`UNSHARED`] after the last look.
    async fn claim_in_turn(
        &mut self,
        registry: &Registry,
        limit: usize,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<(Vec<RunHandle>, Vec<Run>), Error> {
        let (mut handles, mut scheduled) = (Vec::new(), Vec::new());
        let mut rated = Vec::new();
        let mut passed = BTreeSet::new();
        let is_unshared = registry.clock().awake() < self.unshared_until;
        if is_unshared {
            let of_none = Filter { share: Some(String::new()), ..self.filter() };
            (handles, scheduled) = self.claim_once(registry, of_none, limit, wanted).await?;
            rated.append(&mut self.rated);
            if handles.len() >= limit {
                self.rated = rated;
                self.is_drained = false;
                return Ok((handles, scheduled));
            }
        }
        for _ in 0..MOST_ROUNDS {
            let heads = registry.store().heads(&self.filter()).await.map_err(Error::from);
            let heads = heads.or_else(unless_some(&handles))?;
            self.has_shares = heads.iter().any(|head| head.share.is_some());
            if !self.has_shares {
                self.unshared_until = registry.clock().awake() + UNSHARED;
                if is_unshared {
                    break;
                }
                let of_none = Filter { share: Some(String::new()), ..self.filter() };
                let (more, passed_over) = self
                    .claim_once(registry, of_none, limit - handles.len(), wanted)
                    .await
                    .or_else(unless_some(&handles))?;
                handles.extend(more);
                scheduled.extend(passed_over);
                rated.append(&mut self.rated);
                break;
            }
            self.unshared_until = Duration::ZERO;
            let turns = self.turns.divide(&heads, &passed, limit - handles.len());
            for turn in &turns {
                let of_share =
                    Filter { share: Some(turn.tenant.clone()), priority: Some(turn.priority), ..self.filter() };
                let (more, passed_over) =
                    self.claim_once(registry, of_share, turn.runs, wanted).await.or_else(unless_some(&handles))?;
                if more.len() < turn.runs {
                    passed.insert((turn.tenant.clone(), turn.priority));
                    self.turns.unused(turn, more.len());
                }
                handles.extend(more);
                scheduled.extend(passed_over);
                rated.append(&mut self.rated);
            }
            if turns.is_empty() || handles.len() >= limit {
                break;
            }
        }
        self.rated = rated;
        self.is_drained = handles.len() < limit;
        Ok((handles, scheduled))
    }

    /// Claims, and tells which runs of schedules were passed over because their next run is not made.
    async fn claim_once(
        &mut self,
        registry: &Registry,
        filter: Filter,
        limit: usize,
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> Result<(Vec<RunHandle>, Vec<Run>), Error> {
        let offered = Offered::default();
        let is_claimed = |run: &Run| offered.is_claimed(run, &self.followed, wanted);
        let handles = registry.claim_within(filter, limit, self.longest, &is_claimed).await?;
        let (scheduled, rated) = offered.into_parts();
        self.rated = rated;
        Ok((handles, scheduled))
    }

    /// Ends a run and claims the next one with the same write, never the next attempt of the run that ends, where a look for whose turn it is among shares is not due.
    /// Where it is, or the registry is not local, the run is ended alone and the next claim brings the next run.
    pub async fn end_and_claim(
        &mut self,
        registry: &Registry,
        handle: RunHandle,
        end: (OwnerEnd, Option<Exit>),
        wanted: &(dyn Fn(&Run) -> bool + Send + Sync),
    ) -> (Result<Persisted, Error>, Option<RunHandle>) {
        if self.has_shares || registry.clock().awake() >= self.unshared_until {
            return (handle.end(None, end.0, end.1).await, None);
        }
        let (offered, ends) = (Offered::default(), handle.id());
        let is_claimed = |run: &Run| run.id != ends && offered.is_claimed(run, &self.followed, wanted);
        let of_none = Filter { share: Some(String::new()), ..self.filter() };
        let ended = registry.end_and_claim(handle, end, (of_none, self.longest), &is_claimed).await;
        (_, self.rated) = offered.into_parts();
        ended
    }

    /// Makes the next runs of schedules. Answers whether any run may be claimed because of that.
    async fn follow(&mut self, registry: &Registry, scheduled: &[Run]) -> Result<bool, Error> {
        if scheduled.is_empty() {
            return Ok(false);
        }
        if self.followed.len() > FOLLOWED {
            self.followed.clear();
        }
        let before = self.followed.len();
        self.followed.extend(registry.materialize_schedules(scheduled).await?);
        Ok(self.followed.len() > before)
    }
}
