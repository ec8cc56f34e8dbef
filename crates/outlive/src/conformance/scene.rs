//! A scene: a fresh store, and the people and runs that a check puts into it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Ground, Work};
use crate::lifecycle::{Action, Fence, Outcome, Report, apply, enqueued};
use crate::model::id::{Epoch, RunId, Stamp, WorkerId};
use crate::model::policy::Lease;
use crate::model::run::{Owner, Run, Spec};
use crate::model::time::Timestamp;
use crate::store::{Beat, BeatReply, Error, Expect, Record, Store, Write, WriteOutcome};
use crate::testing::{SeededEntropy, owner, person, spec, stranger};
use crate::util::sync::lock;

/// What the runs of a scene are dated from: later than any clock, so that a store which sorts by its own shows.
const LONG_FROM_NOW: i64 = 4_000_000_000_000_000;

pub(super) struct Scene {
    pub(super) store: Arc<dyn Store>,
    pub(super) entropy: SeededEntropy,
    made: AtomicI64,
}

/// Commits writes at once, each through a connection of its own. Answers how many were done, and how many learned that
/// a key is busy.
pub(super) async fn race(ground: &dyn Ground, writes: Vec<Write>) -> (usize, usize) {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let mut work: Vec<Work> = Vec::new();
    for write in writes {
        let (store, answers) = (ground.again().await, answers.clone());
        work.push(Box::pin(async move {
            let answer = store.commit(vec![write]).await;
            lock(&answers).push(answer);
        }));
    }
    ground.at_once(work).await;
    let answers = lock(&answers);
    let done = answers.iter().filter(|answer| matches!(answer.as_deref(), Ok([WriteOutcome::Done(_)]))).count();
    let busy = answers.iter().filter(|answer| matches!(answer.as_deref(), Ok([WriteOutcome::KeyBusy { .. }]))).count();
    (done, busy)
}

impl Scene {
    pub(super) async fn on(ground: &dyn Ground) -> Self {
        Self { store: ground.fresh().await, entropy: SeededEntropy::new(7), made: AtomicI64::new(0) }
    }

    /// A moment later than the one before.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(LONG_FROM_NOW + 1_000 * self.made.fetch_add(1, Ordering::SeqCst))
    }

    pub(super) fn worker(&self) -> WorkerId {
        WorkerId::draw(self.now(), &self.entropy)
    }

    pub(super) fn stamp(&self) -> Stamp {
        Stamp::draw(&self.entropy)
    }

    pub(super) fn draft(&self, spec: Spec) -> Run {
        let now = self.now();
        Run::new(RunId::draw(now, &self.entropy), Arc::new(spec), None, now)
    }

    /// The write that makes `run`, owned by `worker` at once if there is one.
    pub(super) fn making(&self, run: Run, worker: Option<WorkerId>) -> Result<Write, String> {
        let made = enqueued(&run, &person("ada"));
        let (run, events) = match worker {
            None => (run, vec![made]),
            Some(worker) => {
                let claim = Action::Claim { owner: by(worker), early: false, leftovers: Default::default() };
                let claimed = apply(&run, &claim, &person("ada"), self.now()).map_err(|refusal| refusal.to_string())?;
                (claimed.run, vec![made, claimed.event])
            }
        };
        Ok(Write { expect: Expect::Absent, run, events, ended: None, stamp: self.stamp() })
    }

    /// The write by which `action` changes `record`.
    pub(super) fn changing(&self, record: &Record, action: &Action) -> Result<Write, String> {
        let changed = apply(&record.run, action, &person("bob"), self.now()).map_err(|refusal| refusal.to_string())?;
        Ok(Write::change(record, changed, self.stamp()))
    }

    pub(super) async fn enqueue(&self, spec: Spec) -> Result<Record, String> {
        let id = self.done(self.making(self.draft(spec), None)?).await?;
        self.read(id).await
    }

    /// A run of no particular kind that `worker` owns.
    pub(super) async fn start(&self, worker: WorkerId) -> Result<Record, String> {
        self.start_as(worker, spec("job")).await
    }

    pub(super) async fn start_as(&self, worker: WorkerId, spec: Spec) -> Result<Record, String> {
        let id = self.done(self.making(self.draft(spec), Some(worker))?).await?;
        self.read(id).await
    }

    /// Applies `action` to what is on record.
    pub(super) async fn act(&self, record: &Record, action: &Action) -> Result<Record, String> {
        let current = self.read(record.run.id).await?;
        let id = self.done(self.changing(&current, action)?).await?;
        self.read(id).await
    }

    async fn done(&self, write: Write) -> Result<RunId, String> {
        let id = write.run.id;
        match self.commit(write).await? {
            WriteOutcome::Done(_) => Ok(id),
            refused => Err(format!("a write that nothing speaks against was refused: {refused:?}")),
        }
    }

    pub(super) async fn commit(&self, write: Write) -> Result<WriteOutcome, String> {
        let mut written = self.store.commit(vec![write]).await.map_err(failed)?;
        let one = written.pop().filter(|_| written.is_empty());
        one.ok_or_else(|| "one write was not answered by one answer".into())
    }

    pub(super) async fn find(&self, id: RunId) -> Result<Option<Record>, String> {
        Ok(self.store.get(&[id]).await.map_err(failed)?.into_iter().find(|record| record.run.id == id))
    }

    pub(super) async fn read(&self, id: RunId) -> Result<Record, String> {
        self.find(id).await?.ok_or_else(|| format!("run {id} was written and is not read"))
    }

    pub(super) async fn silence_of(&self, record: &Record) -> Result<Duration, String> {
        let run = self.read(record.run.id).await?.run;
        run.owner().map(|owner| owner.heard.silent_for).ok_or_else(|| format!("run {} lost its owner", run.id))
    }

    pub(super) async fn beat(
        &self,
        worker: WorkerId,
        held: &[&Record],
        attention: Option<u64>,
    ) -> Result<BeatReply, String> {
        let held = held.iter().map(|record| (record.run.id, record.run.epoch)).collect();
        self.store.beat(&Beat { held, attention, ..beat(worker) }).await.map_err(failed)
    }
}

/// A beat of `worker` that holds nothing and asks for everything.
pub(super) fn beat(worker: WorkerId) -> Beat {
    Beat {
        worker,
        identity: stranger(1),
        lease: Lease::default(),
        held: [].into(),
        attention: None,
        leaving: false,
        offer: Arc::default(),
    }
}

pub(super) fn by(worker: WorkerId) -> Owner {
    owner(worker, Lease::default())
}

pub(super) fn failed(error: Error) -> String {
    format!("the store failed: {error}")
}

pub(super) fn fence(worker: WorkerId, record: &Record) -> Fence {
    Fence { worker, epoch: record.run.epoch }
}

pub(super) fn finish(worker: WorkerId, record: &Record) -> Action {
    Action::Finish { fence: fence(worker, record), outcome: Outcome::SUCCEEDED, exit: None }
}

pub(super) fn suspend(worker: WorkerId, record: &Record) -> Action {
    Action::Suspend { fence: fence(worker, record), reason: "an approval".into() }
}

/// A report of the artifact `name`.
pub(super) fn report(worker: WorkerId, record: &Record, name: &str) -> Action {
    let report = Report { artifact: Some(name.into()), ..Report::default() };
    Action::Report { fence: fence(worker, record), report }
}

pub(super) fn cancel() -> Action {
    Action::RequestCancel { reason: Some("no longer needed".into()), grace: None, live: Default::default() }
}

/// What is on record, without what the store only tells.
pub(super) fn recorded(run: &Run) -> Run {
    let mut run = run.clone();
    if let Some(owner) = run.owner_mut() {
        owner.heard = Default::default();
    }
    run
}

/// An epoch that the run never had.
pub(super) fn before(epoch: Epoch) -> Epoch {
    Epoch(epoch.0.wrapping_sub(1))
}
