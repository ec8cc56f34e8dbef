//! The queue: runs that wait for a worker, for each other, and for their time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::{Registry, TRIES};
use crate::error::Error;
use crate::lifecycle::{Action, Start, enqueued, has_room, starts_at};
use crate::model::filter::Filter;
use crate::model::id::{RunId, Stamp};
use crate::model::policy::Policy;
use crate::model::run::{After, Hold, Key, Lineage, Release, Run, Spec, State, StateName};
use crate::model::time::Timestamp;
use crate::store::{self, Expect, Order, Page, Pages, Write, WriteOutcome};

/// A run to be enqueued together with others, some of which may wait for it: the parts of
/// [`Registry::enqueue_all`](crate::Registry::enqueue_all).
#[derive(Debug, Clone)]
pub struct Planned {
    /// What is to be done.
    pub spec: Spec,
    /// What it waits for, besides what its spec says.
    pub after: Vec<(Parent, Release)>,
}

/// The answer to an enqueue that may find its run there already:
/// [`Registry::enqueue_once`](crate::Registry::enqueue_once), [`Registry::rerun`](crate::Registry::rerun).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Enqueued {
    /// The run that there is.
    pub run: Run,
    /// This call made it. Otherwise it was there: it has a unique key of the run that was to be made, or repeats the same
    /// run by the same idempotency key.
    pub made: bool,
}

impl Enqueued {
    pub(super) fn made(run: Run) -> Self {
        Self { run, made: true }
    }

    pub(super) fn there(run: Run) -> Self {
        Self { run, made: false }
    }
}

/// The run that a [`Planned`](crate::Planned) one waits for: one that exists, or another of the same plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// One that there is.
    Run(RunId),
    /// The one at this place of the plan.
    Planned(usize),
}

impl Registry {
    /// A spec of a kind, made by this process's user, to be changed and started or enqueued. Its policy is the one that the
    /// configuration has for the kind, where the registry was opened with [`Registry::discover`].
    pub fn spec(&self, kind: impl Into<String>) -> Spec {
        let mut spec = Spec::new(kind, self.me.clone());
        spec.policy.clone_from(self.policies.of(&spec.kind));
        spec
    }

    /// Gives new runs of a kind this policy: how long they may take, what is tried again and how often. It is resolved when
    /// [`Registry::spec`] makes a spec, and part of the run from then on: no worker changes it later.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), outlive::Error> {
    /// let policy = outlive::Policy::default().with_retries(3).with_timeout(Duration::from_secs(60));
    /// let registry = outlive::Registry::open("memory:").await?.with_policy("charge", policy);
    /// assert_eq!(registry.spec("charge").policy.retry.max_attempts, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_policy(mut self, kind: impl Into<String>, policy: Policy) -> Self {
        Arc::make_mut(&mut self.policies).set(kind.into(), policy);
        self
    }

    /// Makes a run that waits to be claimed.
    pub async fn enqueue(&self, spec: Spec) -> Result<Run, Error> {
        self.check_parents(&[&spec], &[]).await?;
        let run = self.draft(Spec { queued: true, ..spec })?;
        let made = enqueued(&run, &self.me);
        Ok(self.create(run, vec![made]).await?.run)
    }

    /// Makes a run that waits to be claimed, inside a transaction of the caller's own on the same database: it is there
    /// when that commits, and never otherwise. Answers with its id.
    ///
    /// A run with a unique key takes it when it is made, which a transaction that may last cannot: it is refused. The runs
    /// that it waits for are there already. In SQL, or
    /// through another driver, `SELECT outlive.enqueue(kind, input)` makes a run for a handler the same way.
    #[cfg(feature = "postgres")]
    pub async fn enqueue_in(&self, client: &impl tokio_postgres::GenericClient, spec: Spec) -> Result<RunId, Error> {
        let Some(database) = &self.database else {
            return Err(Error::Invalid(format!("`{}` is no registry in PostgreSQL", self.url)));
        };
        if spec.keys.iter().any(Key::is_unique) {
            return Err(Error::Invalid(
                "a unique run cannot be enqueued in a transaction: others would wait for it".into(),
            ));
        }
        self.check_parents(&[&spec], &[]).await?;
        let run = self.draft(Spec { queued: true, ..spec })?;
        let (id, events) = (run.id, vec![enqueued(&run, &self.me)]);
        let write = Write { expect: Expect::Absent, run, events, ended: None, stamp: Stamp::draw(&*self.entropy) };
        let made = database.enqueue_in(client, &[write]).await;
        if made.is_err() {
            let _ = self.forget_sealed(id);
        }
        Ok(made.map(|()| id)?)
    }

    /// Makes a run that waits to be claimed, unless one that has not ended has a unique key of it. Answers with the run
    /// that there is then: of many calls at once, one makes it.
    pub async fn enqueue_once(&self, spec: Spec) -> Result<Enqueued, Error> {
        self.check_parents(&[&spec], &[]).await?;
        let spec = Spec { queued: true, ..spec };
        let mut tries = 0;
        loop {
            let run = self.draft(spec.clone())?;
            let made = enqueued(&run, &self.me);
            match self.create(run, vec![made]).await {
                Err(Error::KeyBusy { key, holders, free_at }) if key.is_unique() => {
                    if let Some(holder) = self.holder(&key, &holders).await? {
                        return Ok(Enqueued::there(holder));
                    }
                    // It has ended since, or is on its way to be made.
                    tries += 1;
                    if tries == TRIES {
                        return Err(Error::KeyBusy { key, holders, free_at });
                    }
                }
                made => return Ok(Enqueued::made(made?.run)),
            }
        }
    }

    async fn holder(&self, key: &Key, holders: &[RunId]) -> Result<Option<Run>, Error> {
        let found = self.store.get(holders).await?;
        Ok(found.into_iter().map(|record| record.run).find(|run| run.holds(key)))
    }

    /// Makes runs that wait to be claimed, and for each other. Where any of them cannot be, none is made. In place of one
    /// whose unique key another has, that one is answered with.
    pub async fn enqueue_all(&self, plan: Vec<Planned>) -> Result<Vec<Run>, Error> {
        Ok(self.enqueue_each(plan).await?.into_iter().map(|enqueued| enqueued.run).collect())
    }

    /// Enqueues a plan of runs. Answers for each whether this call made it.
    pub async fn enqueue_each(&self, plan: Vec<Planned>) -> Result<Vec<Enqueued>, Error> {
        check_cycles(&plan)?;
        check_unique(&plan)?;
        let now = self.clock.now();
        let ids: Vec<RunId> = plan.iter().map(|_| RunId::draw(now, &*self.entropy)).collect();
        let mut specs = Vec::new();
        for Planned { mut spec, after } in plan {
            for (parent, release) in after {
                let run = match parent {
                    Parent::Run(run) => run,
                    Parent::Planned(place) => *ids.get(place).ok_or_else(|| no_place(place))?,
                };
                spec.after.push(After { run, release });
            }
            specs.push(Spec { queued: true, ..spec });
        }
        self.check_parents(&specs.iter().collect::<Vec<_>>(), &ids).await?;
        // What may be there already is asked for again, should that be over by then.
        let is_unique = |spec: &&Spec| spec.keys.iter().any(Key::is_unique);
        let asked: Vec<Option<Spec>> = specs.iter().map(|spec| Some(spec).filter(is_unique).cloned()).collect();
        let drafts: Result<Vec<Run>, Error> = ids
            .iter()
            .zip(specs)
            .enumerate()
            .map(|(place, (id, spec))| {
                // A moment after the one before it, so that they are claimed in the order of the plan.
                self.draft_as(*id, spec, now.after(Duration::from_micros(place as u64)))
            })
            .collect();
        let writes = drafts?.into_iter().map(|run| {
            let events = vec![enqueued(&run, &self.me)];
            Write { expect: Expect::Absent, run, events, ended: None, stamp: Stamp::draw(&*self.entropy) }
        });
        let writes: Vec<Write> = writes.collect();
        let runs: Vec<Run> = writes.iter().map(|write| write.run.clone()).collect();
        let written = self.store.commit(writes).await;
        if written.as_ref().is_err_and(|error| !matches!(error, store::Error::Unknown(_))) {
            for run in &runs {
                let _ = self.forget_sealed(run.id);
            }
        }
        let written = written?;
        let mut there = Vec::new();
        for ((run, asked), written) in runs.into_iter().zip(asked).zip(written) {
            there.push(match (written, asked) {
                (WriteOutcome::Done(_), _) => Enqueued::made(run),
                (WriteOutcome::KeyBusy { key, holders, .. }, Some(asked)) => {
                    // What stays behind of it is sealed, private and never asked for.
                    let _ = self.forget_sealed(run.id);
                    match self.holder(&key, &holders).await? {
                        Some(holder) => Enqueued::there(holder),
                        None => self.enqueue_once(asked).await?,
                    }
                }
                _ => return Err(Error::Invalid(format!("there is a run `{}` already", run.id))),
            });
        }
        Ok(there)
    }

    /// Refuses to wait for a run that neither there is nor is `planned`: it would never end.
    async fn check_parents(&self, specs: &[&Spec], planned: &[RunId]) -> Result<(), Error> {
        let parents: BTreeSet<RunId> = specs.iter().flat_map(|spec| &spec.after).map(|after| after.run).collect();
        let sought: Vec<RunId> = parents.into_iter().filter(|run| !planned.contains(run)).collect();
        let found: BTreeSet<RunId> = self.store.get(&sought).await?.iter().map(|record| record.run.id).collect();
        match sought.iter().find(|run| !found.contains(run)) {
            Some(missing) => Err(Error::NotFound(missing.to_string())),
            None => Ok(()),
        }
    }

    /// The runs that wait, in the order in which they are claimed.
    #[doc(hidden)]
    pub async fn waiting(&self) -> Result<Vec<Run>, Error> {
        let pending = Filter::in_states([StateName::Pending]);
        let mut walk = Pages::from(pending, Page { order: Order::Claim, ..Page::default() });
        let mut waiting = Vec::new();
        while let Some(records) = walk.next(self.store()).await? {
            waiting.extend(records.into_iter().map(|record| record.run));
        }
        Ok(waiting)
    }

    /// Tells the runs among those that wait of the ends that they wait for. Answers with how many have changed.
    ///
    /// A parent that has failed may fail its children, and they theirs: so it is repeated until nothing changes.
    #[doc(hidden)]
    pub async fn release(&self, waiting: &[Run]) -> Result<usize, Error> {
        let mut changed = 0;
        let mut left: BTreeMap<RunId, Vec<RunId>> = waiting.iter().filter_map(waits_for).collect();
        loop {
            let parents: BTreeSet<RunId> = left.values().flatten().copied().collect();
            let parents: Vec<RunId> = parents.into_iter().collect();
            let ended: BTreeMap<RunId, StateName> = self
                .store
                .get(&parents)
                .await?
                .iter()
                .filter_map(|record| record.run.ending().map(|ending| (record.run.id, ending.how.name())))
                .collect();
            let mut released = 0;
            for (id, waits_for) in &mut left {
                let mut still = Vec::new();
                for parent in waits_for.drain(..) {
                    let Some(ended) = ended.get(&parent).copied() else {
                        still.push(parent);
                        continue;
                    };
                    match self.change(*id, |_| Action::Release { parent, ended }).await {
                        Ok(_) => released += 1,
                        // Another process has released it, or its parent may yet be resumed.
                        Err(Error::Refused { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                *waits_for = still;
            }
            changed += released;
            if released == 0 {
                return Ok(changed);
            }
        }
    }

    /// Makes the next run of every schedule whose slot has come. Answers with the runs whose follower there is: only those
    /// may be claimed, so that no schedule ends because a process died in between.
    #[doc(hidden)]
    pub async fn materialize_schedules(&self, waiting: &[Run]) -> Result<BTreeSet<RunId>, Error> {
        let now = self.clock.now();
        let mut followed = BTreeSet::new();
        for run in waiting {
            let (Some(schedule), State::Pending(pending)) = (&run.spec.schedule, &run.state) else { continue };
            let slot = run.slot();
            if !pending.is_due(now) || self.startable(run).is_err() {
                continue;
            }
            // Later attempts belong to a slot whose follower was made for the first.
            let follower = schedule.follower(slot, now).filter(|_| run.attempt == 1);
            let Some(next) = follower else {
                followed.insert(run.id);
                continue;
            };
            if !self.make_follower(run, next).await? {
                continue;
            }
            if schedule.passes_over(slot, now) {
                self.pass_over(run.id).await?;
            } else {
                followed.insert(run.id);
            }
        }
        Ok(followed)
    }

    /// Makes the run of a schedule's next slot. The second maker finds it made. False where this user has not got what
    /// it would execute.
    async fn make_follower(&self, run: &Run, slot: Timestamp) -> Result<bool, Error> {
        let mut spec = (*run.spec).clone();
        if let Some(command) = &mut spec.command {
            let Some(argv) = self.original_argv(run) else { return Ok(false) };
            command.argv = argv;
            command.sealed = self.kept_environment(run);
            spec.withheld = None;
        }
        let before = run.spec.lineage.as_ref();
        let origin = before.map_or(run.id, |lineage| lineage.origin);
        let generation = before.map_or(0, |lineage| lineage.generation).saturating_add(1);
        spec.lineage = Some(Lineage { rerun_of: run.id, origin, generation, reason: Some("its schedule".into()) });
        spec.not_before = Some(slot);
        spec.after.clear();
        // The trace that the first was made in is over.
        spec.traceparent = None;
        let id = RunId::derived(slot, format!("slot {origin} {}", slot.as_micros()).as_bytes());
        let follower = self.draft_as(id, spec, self.clock.now())?;
        let made = enqueued(&follower, &self.me);
        match self.create(follower, vec![made]).await {
            Ok(_) => Ok(true),
            Err(_) if !self.store.get(&[id]).await?.is_empty() => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Those of the runs that could be claimed by now but for a key that others hold, or a rate that is used up, each with
    /// which.
    #[doc(hidden)]
    pub async fn blocked_by_keys(&self, waiting: &[&Run]) -> Result<BTreeMap<RunId, String>, Error> {
        let now = self.clock.now();
        let is_due = |run: &Run| matches!(&run.state, State::Pending(pending) if pending.is_due(now));
        let with_keys: Vec<&Run> =
            waiting.iter().copied().filter(|run| is_due(run) && !run.spec.keys.is_empty()).collect();
        if with_keys.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut busy = self.used_up(&with_keys).await?;
        if with_keys.iter().flat_map(|run| &run.spec.keys).all(|key| key.hold != Hold::Running) {
            return Ok(busy);
        }
        let mut walk = Pages::from(Filter::in_states([StateName::Running]), Page::default());
        let mut running = Vec::new();
        while let Some(records) = walk.next(self.store()).await? {
            running.extend(records.into_iter().map(|record| record.run).filter(|run| !run.spec.keys.is_empty()));
        }
        busy.extend(busy_keys(&with_keys, &running));
        Ok(busy)
    }

    /// Those of the runs that could start but for a rate.
    async fn used_up(&self, waiting: &[&Run]) -> Result<BTreeMap<RunId, String>, Error> {
        let mut used_up = BTreeMap::new();
        for (rate, free_at) in self.rates_used_up(waiting).await? {
            let wanting = waiting.iter().filter(|run| run.spec.keys.contains(&rate));
            used_up.extend(wanting.map(|run| (run.id, format!("waits for {rate}, free at {free_at}"))));
        }
        Ok(used_up)
    }

    /// The rates of these runs that let none of them start now, and when each does.
    #[doc(hidden)]
    pub async fn rates_used_up(&self, waiting: &[&Run]) -> Result<Vec<(Key, Timestamp)>, Error> {
        let mut rates: Vec<Key> = Vec::new();
        for (key, _) in waiting.iter().flat_map(|run| run.rates()) {
            if !rates.contains(key) {
                rates.push(key.clone());
            }
        }
        if rates.is_empty() {
            return Ok(Vec::new());
        }
        let starts = self.store.starts(&rates).await?;
        let free_at = |(rate, starts): (Key, &Vec<Start>)| {
            // The store returned only those that count by its own clock.
            let now = starts.iter().map(|start| start.at).max()?;
            starts_at(&rate, starts, now).map(|free_at| (rate, free_at))
        };
        Ok(rates.into_iter().zip(&starts).filter_map(free_at).collect())
    }

    async fn pass_over(&self, id: RunId) -> Result<(), Error> {
        match self.cancel(id, Some("its slot was missed".into())).await {
            Ok(_) | Err(Error::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Why each of the runs waits that could be claimed by now, and is not: a key that others hold.
fn busy_keys(waiting: &[&Run], running: &[Run]) -> BTreeMap<RunId, String> {
    let mut busy = BTreeMap::new();
    for run in waiting {
        for key in run.spec.keys.iter().filter(|key| key.hold == Hold::Running) {
            let holders: Vec<&Run> = running.iter().filter(|holder| holder.holds(key)).collect();
            if !has_room(key, &holders) {
                let names: Vec<String> = holders.iter().map(|holder| format!("`{}`", holder.id)).collect();
                busy.insert(run.id, format!("waits for {key}, held by {}", names.join(", ")));
            }
        }
    }
    busy
}

/// How long it is until the next of the waiting runs is due by the clock.
pub fn next_due(waiting: &[Run], now: Timestamp) -> Option<Duration> {
    let left = waiting.iter().filter_map(|run| match &run.state {
        State::Pending(pending) if pending.paused.is_some() => None,
        State::Pending(pending) => pending.not_before.filter(|at| *at > now).map(|at| at.since(now)),
        _ => None,
    });
    // A moment later, so that it is due by then.
    left.min().map(|left| left + Duration::from_millis(1))
}

fn waits_for(run: &Run) -> Option<(RunId, Vec<RunId>)> {
    match &run.state {
        State::Pending(pending) if !pending.waits_for.is_empty() => Some((run.id, pending.waits_for.clone())),
        _ => None,
    }
}

fn no_place(place: usize) -> Error {
    Error::Invalid(format!("there is no run {place} in the plan"))
}

/// Refuses to wait for a run that may not be made, because there is another like it.
fn check_unique(plan: &[Planned]) -> Result<(), Error> {
    for (parent, _) in plan.iter().flat_map(|planned| &planned.after) {
        let Parent::Planned(place) = parent else { continue };
        if let Some(key) = plan.get(*place).and_then(|parent| parent.spec.keys.iter().find(|key| key.is_unique())) {
            let name = &key.name;
            return Err(Error::Invalid(format!(
                "another run of the plan waits for one with unique key `{name}`, which may be there already: add that first"
            )));
        }
    }
    Ok(())
}

/// Refuses runs that would wait for each other for ever.
fn check_cycles(plan: &[Planned]) -> Result<(), Error> {
    let name = |place: usize| {
        plan.get(place).and_then(|planned| planned.spec.name.clone()).unwrap_or_else(|| format!("run {}", place + 1))
    };
    let parents = |place: usize| {
        plan.get(place).into_iter().flat_map(|planned| &planned.after).filter_map(|(parent, _)| match parent {
            Parent::Planned(parent) => Some(*parent),
            Parent::Run(_) => None,
        })
    };
    // Whatever waits for nothing that is left can go; what stays in the end waits for itself.
    let mut left: BTreeSet<usize> = (0..plan.len()).collect();
    while let Some(free) = left.iter().copied().find(|place| !parents(*place).any(|parent| left.contains(&parent))) {
        left.remove(&free);
    }
    let Some(mut place) = left.first().copied() else { return Ok(()) };
    let mut path = Vec::new();
    while !path.contains(&place) {
        path.push(place);
        place = parents(place).find(|parent| left.contains(parent)).unwrap_or(place);
    }
    let start = path.iter().position(|step| *step == place).unwrap_or(0);
    let names: Vec<String> = path[start..].iter().chain([&place]).map(|step| format!("`{}`", name(*step))).collect();
    Err(Error::Invalid(format!("these runs would wait for each other for ever: {}", names.join(" after "))))
}
