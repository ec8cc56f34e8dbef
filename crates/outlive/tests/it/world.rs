//! A world: one store, its clock, and as many processes as a test needs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outlive::conformance::Ground;
use outlive::filter::Filter;
use outlive::id::{Entropy, RunId};
use outlive::lifecycle::Start;
use outlive::lifecycle::health::{ProcessObserver, RunStatus};
use outlive::owner::{HostContext, Identity};
use outlive::ownership::reaper::{Reaped, Reaper};
use outlive::policy::Lease;
use outlive::registry::Registry;
use outlive::run::{Event, Key, QueueHead, Spec};
use outlive::store::{
    Beat, BeatReply, Count, Error, Listing, Page, Record, Rule, Selection, Store, WorkerRecord, Write, WriteOutcome,
};
use outlive::testing::{ManualClock, SeededEntropy, person};

use crate::ground::{BucketGround, HttpGround, MemoryGround, PostgresGround, SqliteGround};

/// The lease of runs that ask for none.
pub(crate) const LEASE: Duration = Duration::from_secs(12);

pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ground: Box<dyn Ground>,
    /// Where the registry is, if it is a directory.
    pub(crate) path: Option<PathBuf>,
    /// Every call takes several times as long as elsewhere.
    pub(crate) is_slow: bool,
    processes: AtomicU64,
}

/// Runs a test on every store.
pub(crate) fn on_each(test: impl AsyncFn(World)) {
    for (name, make) in [
        ("memory", World::memory as fn() -> World),
        ("sqlite", World::sqlite),
        ("postgres", World::postgres),
        ("bucket", World::bucket),
        ("http", World::http),
    ] {
        println!("on {name}");
        pollster::block_on(test(make()));
    }
}

impl World {
    pub(crate) fn memory() -> Self {
        let clock = ManualClock::new();
        let ground = MemoryGround::new(clock.clone());
        let store = Arc::new(ground.make());
        Self { clock, store, ground: Box::new(ground), path: None, is_slow: false, processes: first_process() }
    }

    pub(crate) fn sqlite() -> Self {
        let clock = ManualClock::new();
        let ground = SqliteGround::new(clock.clone());
        let path = ground.next_path();
        let store = Arc::new(ground.open(&path));
        Self { clock, store, ground: Box::new(ground), path: Some(path), is_slow: false, processes: first_process() }
    }

    pub(crate) fn postgres() -> Self {
        let clock = ManualClock::new();
        let ground = PostgresGround::new(clock.clone());
        let store = Arc::new(pollster::block_on(ground.make()));
        Self { clock, store, ground: Box::new(ground), path: None, is_slow: false, processes: first_process() }
    }

    pub(crate) fn bucket() -> Self {
        let clock = ManualClock::new();
        let ground = BucketGround::new(clock.clone());
        let store = Arc::new(pollster::block_on(ground.make()));
        Self { clock, store, ground: Box::new(ground), path: None, is_slow: true, processes: first_process() }
    }

    pub(crate) fn http() -> Self {
        let clock = ManualClock::new();
        let ground = HttpGround::new(clock.clone());
        let store = Arc::new(pollster::block_on(ground.make()));
        Self { clock, store, ground: Box::new(ground), path: None, is_slow: true, processes: first_process() }
    }

    fn number(&self) -> u64 {
        self.processes.fetch_add(1, Ordering::SeqCst)
    }

    /// A process that nobody here can see.
    pub(crate) fn process(&self) -> Registry {
        self.process_on(self.store.clone(), unseen(1))
    }

    /// A process of this host.
    pub(crate) fn process_as(&self, identity: Identity) -> Registry {
        self.process_on(self.store.clone(), identity)
    }

    pub(crate) fn process_on(&self, store: Arc<dyn Store>, identity: Identity) -> Registry {
        self.process_drawing(store, identity, Arc::new(SeededEntropy::new(self.number())))
    }

    pub(crate) fn process_drawing(
        &self,
        store: Arc<dyn Store>,
        identity: Identity,
        entropy: Arc<dyn Entropy>,
    ) -> Registry {
        Registry::over(store, self.clock.clone(), entropy, person("ada"), identity)
    }

    /// One pass of somebody who reaps and owns nothing.
    pub(crate) async fn reap(&self) -> Reaped {
        Reaper::new(None).pass(&self.process()).await.unwrap()
    }

    pub(crate) async fn see(&self, id: RunId) -> RunStatus {
        self.process().get(id).await.unwrap()
    }

    pub(crate) async fn record(&self, id: RunId) -> Record {
        self.store.get(&[id]).await.unwrap().pop().unwrap()
    }

    pub(crate) async fn actions(&self, id: RunId) -> Vec<String> {
        self.store.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect()
    }
}

/// Where a world begins to count: no two give a run the same id, and so none sees another's processes for its own.
fn first_process() -> AtomicU64 {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    AtomicU64::new(u64::from(std::process::id()) << 32 | WORLDS.fetch_add(1, Ordering::SeqCst) << 16)
}

/// A process of another pid namespace of this boot: its pid proves nothing here, so its lease decides.
pub(crate) fn unseen(pid: u32) -> Identity {
    let vantage = HostContext { pid_ns: 1, ..HostContext::here() };
    Identity { vantage, pid, start_ticks: 1, pidfs_inode: None, lock_inode: None }
}

pub(crate) fn with_lease(spec: Spec, beat: Duration, lasts: Duration) -> Spec {
    let mut spec = spec;
    spec.policy.lease = Lease::new(beat, lasts).unwrap();
    spec
}

/// Draws a worker and a run that another process draws too, and then numbers of its own.
pub(crate) struct SameIds {
    drawn: AtomicUsize,
    shared: SeededEntropy,
    own: SeededEntropy,
}

impl SameIds {
    pub(crate) fn new(own: u64) -> Arc<Self> {
        Arc::new(Self { drawn: AtomicUsize::new(0), shared: SeededEntropy::new(99), own: SeededEntropy::new(own) })
    }
}

impl Entropy for SameIds {
    fn draw(&self) -> u128 {
        if self.drawn.fetch_add(1, Ordering::SeqCst) < 2 { self.shared.draw() } else { self.own.draw() }
    }
}

/// Called with the name of every call before it is made; an error is answered instead.
type Hook = Box<dyn Fn(&'static str) -> Result<(), Error> + Send + Sync>;

/// A store that can be interfered with between two calls.
pub(crate) struct Watched {
    inner: Arc<dyn Store>,
    hook: Hook,
    /// How many outcomes of an update came too late.
    pub(crate) lost: AtomicUsize,
    /// How many updates that changed anything are still to be answered with silence.
    pub(crate) silent_updates: AtomicUsize,
    /// Commits are never answered.
    pub(crate) hangs: AtomicBool,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

impl Watched {
    pub(crate) fn new(
        inner: Arc<dyn Store>,
        hook: impl Fn(&'static str) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (lost, silent_updates, hangs) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { inner, hook: Box::new(hook), lost, silent_updates, hangs })
    }

    fn before(&self, call: &'static str) -> Result<(), Error> {
        (self.hook)(call)
    }
}

#[async_trait]
impl Store for Watched {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        self.before("get")?;
        self.inner.get(ids).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        self.before("list")?;
        self.inner.list(filter, page).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        self.before("commit")?;
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inner.commit(writes).await
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        self.before("update")?;
        let changed = self.inner.update(selection, rule).await?;
        let silent = |left: usize| left.checked_sub(1).filter(|_| !changed.is_empty());
        if self.silent_updates.fetch_update(Ordering::SeqCst, Ordering::SeqCst, silent).is_ok() {
            return Err(Error::Unknown("the answer was lost".into()));
        }
        let meant = selection.filter.ids.as_ref().map_or(0, Vec::len);
        self.lost.fetch_add(meant.saturating_sub(changed.len()), Ordering::SeqCst);
        Ok(changed)
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.before("beat")?;
        self.inner.beat(beat).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.before("counts")?;
        self.inner.counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.before("workers")?;
        self.inner.workers().await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.before("next_due")?;
        self.inner.next_due(filter).await
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.before("heads")?;
        self.inner.heads(filter).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.before("starts")?;
        self.inner.starts(rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.before("events")?;
        self.inner.events(id).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        self.before("witness").ok().and_then(|()| self.inner.witness())
    }
}

/// What tells whether a file was written again.
pub(crate) fn inode_and_mtime(path: &Path) -> (u64, i64, i64) {
    use std::os::unix::fs::MetadataExt;
    let meta = std::fs::metadata(path).unwrap();
    (meta.ino(), meta.mtime(), meta.mtime_nsec())
}
