//! The registry: one store of runs, as its users see it.
//!
//! It puts the pieces together: rules from `lifecycle.rs`, a store, the observer of this host, the heartbeat thread, the key
//! that signs. Every change goes through `ownership/commit.rs`, which knows what a lost answer means.

mod adopt;
mod bulk;
mod cancel;
mod change;
mod claim;
mod counts;
#[cfg(feature = "sqlite")]
mod delete;
mod external;
mod facets;
mod find;
#[cfg(feature = "postgres")]
mod history;
mod home;
mod import;
mod keys;
mod log_directory;
mod notify;
mod open;
mod origin;
mod process_tree;
mod queue;
mod reap;
mod requested;
mod rerun;
mod schemes;
mod secrets;
mod sharing;
mod sorted;
mod spool;
mod start;
mod status;
mod steps;
mod summary;
mod trust;
mod unleash;
mod wait;
mod worker_session;

use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Error;
use crate::lifecycle::health::Observation;
use crate::secrets::masking;
use crate::util::sync::lock;

use crate::host::{LifeLock, MadeBy};
use crate::lifecycle::{Action, Fence, Report};
use crate::model::id::{Entropy, Epoch, RunId, Stamp, WorkerId};
use crate::model::owner::Identity;
use crate::model::policy::{Lease, Policies};
use crate::model::run::{Actor, Event, Owner, Run};
use crate::model::time::Clock;
use crate::ownership::heartbeat::{HeartbeatThread, WorkerState};
use crate::ownership::spool::Spool;
use crate::redact::Redactor;
use crate::secrets::trust::{NamedLocation, Trust};
use crate::store::fork_guard;
#[cfg(feature = "object")]
use crate::store::object::ObjectStore;
#[cfg(feature = "postgres")]
use crate::store::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{SqliteStore, bell};
use crate::store::{self, Notification, Record, Store, WorkerCapacity};

pub use self::cancel::{CancelOptions, Cancellation};
pub use self::claim::ResumeOptions;
pub use self::external::{EXTERNAL_KIND, ExternalLease};
pub use self::facets::{Histogram, UsersAndHosts};
pub use self::home::make_home;
pub use self::import::{ForeignOutcome, ForeignRun};
pub use self::keys::KeyUse;
pub use self::log_directory::LogDirectory;
use self::log_directory::home_directory;
pub use self::notify::WorkReady;
pub use self::queue::{Enqueued, Parent, Planned, next_due};
#[doc(hidden)]
pub use self::requested::RequestedRun;
pub use self::rerun::RerunOptions;
pub use self::sorted::SortedPage;
pub use self::spool::Delivered;
use self::spool::spool_key;
pub use self::summary::ListItem;

/// How often a change is tried when others change the run meanwhile.
const TRIES: usize = 32;

/// Opens another connection to the same store, for the keeper's thread.
type Reopen = Arc<dyn Fn() -> Result<Arc<dyn Store>, store::Error> + Send + Sync>;
/// A notification callback.
type OnNotification = Box<dyn Fn(Notification) + Send + Sync>;
/// Subscribes a callback; dropping the returned guard unsubscribes.
type Listen = Arc<dyn Fn(OnNotification) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

/// A store of runs: what programs open first. It starts, enqueues, lists and cancels runs; [`Worker`](crate::Worker)
/// executes those that wait.
///
/// A registry and the runs held through it belong to the process that opened it. In a child of `fork` they are inert:
/// every call answers [`store::Error::Forked`], dropping them changes nothing, and the child opens a registry of its own.
pub struct Registry {
    url: String,
    /// The process that may use it.
    opened_by: MadeBy,
    store: Arc<dyn Store>,
    #[cfg(feature = "sqlite")]
    local: Option<Arc<SqliteStore>>,
    #[cfg(feature = "object")]
    bucket: Option<Arc<ObjectStore>>,
    #[cfg(feature = "postgres")]
    database: Option<PostgresStore>,
    /// What a registry that is no directory calls itself.
    name: Option<String>,
    /// The lease of runs that ask for none, where it is another than elsewhere.
    lease: Option<Lease>,
    /// The policies of new runs, by kind.
    policies: Arc<Policies>,
    reopen: Reopen,
    listen: Option<Listen>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    me: Actor,
    trust: Option<Trust>,
    /// The names that its runs are signed for, as far as the store has reported them.
    identities: Mutex<Vec<String>>,
    /// Locations of artifacts that the user's configuration names for this registry.
    artifacts: Arc<[NamedLocation]>,
    /// Its store withholds the signatures of runs, or no run is signed: who made one cannot be determined.
    signatures_withheld: bool,
    redactor: Arc<Redactor>,
    /// What masks logs, where it is another.
    log_redactor: Option<Arc<Redactor>>,
    unsigned: Option<String>,
    spool: Option<Spool>,
    worker: Mutex<Option<Arc<Working>>>,
    /// What its worker takes from the queue.
    offer: Arc<WorkerCapacity>,
    beats_later: bool,
    recognise: fn(&Record, Stamp) -> bool,
}

/// This process as a worker: from its first claim on.
struct Working {
    keeping: Arc<WorkerState>,
    keeper: Option<HeartbeatThread>,
    /// It has said goodbye with its last end.
    left: AtomicBool,
    /// It hears what is asked of its runs.
    listening: OnceLock<Option<Box<dyn Any + Send + Sync>>>,
    _life: Option<LifeLock>,
}

impl Working {
    fn new(keeping: Arc<WorkerState>, keeper: Option<HeartbeatThread>, life: Option<LifeLock>) -> Self {
        Self { keeping, keeper, left: AtomicBool::default(), listening: OnceLock::new(), _life: life }
    }
}

impl Registry {
    /// Replaces how own writes are recognised after a lost answer, to prove that a wrong way is caught.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn recognising_by(mut self, recognise: fn(&Record, Stamp) -> bool) -> Self {
        self.recognise = recognise;
        self
    }

    /// Keeps results that the store would not take in `home`.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn spooling_to(mut self, home: &std::path::Path) -> Self {
        self.spool = Some(Spool::new(home));
        if let Some(working) = lock(&self.worker).as_mut() {
            let WorkerState { worker, identity, me, clock, entropy, registry, .. } = &*working.keeping;
            let keeping = Arc::new(WorkerState::new(
                *worker,
                identity.clone(),
                me.clone(),
                clock.clone(),
                entropy.clone(),
                registry.clone(),
                self.spool.clone(),
            ));
            *working = Arc::new(Working::new(keeping, None, None));
        }
        self
    }

    /// One beat of this process's worker, now.
    #[cfg(any(test, feature = "testing"))]
    pub async fn tick(&self) -> Result<(), Error> {
        let keeping = self.keeping()?;
        Ok(keeping.tick(&*self.store).await?)
    }

    /// Masks what `redactor` takes for secret before it is stored, instead of what the default one does.
    #[must_use]
    pub fn redacting(mut self, redactor: Redactor) -> Self {
        self.redactor = Arc::new(redactor);
        self
    }

    /// Gives new runs these policies: see [`Registry::spec`].
    #[doc(hidden)]
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.policies = Arc::new(policies);
        self
    }

    /// Keeps and shows the output of runs as they wrote it: nothing of it is masked.
    #[doc(hidden)]
    #[must_use]
    pub fn with_plain_logs(mut self) -> Self {
        self.log_redactor = Some(Arc::new(Redactor::nothing()));
        self
    }

    /// What masks secrets before they are stored.
    #[doc(hidden)]
    pub fn redactor(&self) -> &Arc<Redactor> {
        &self.redactor
    }

    /// The lease of runs that ask for none, where it is another than elsewhere.
    #[doc(hidden)]
    pub fn lease(&self) -> Option<Lease> {
        self.lease
    }

    /// Whether this process opened it. False in a forked child, where it refuses every call.
    pub(crate) fn is_usable(&self) -> bool {
        self.opened_by.is_this_process()
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its URL for people: without a password.
    pub fn shown(&self) -> String {
        Redactor::default().text(&self.url)
    }

    /// The store below.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The local store below, if it is one.
    #[cfg(feature = "sqlite")]
    #[doc(hidden)]
    pub fn local(&self) -> Option<&SqliteStore> {
        self.local.as_deref()
    }

    /// Where the output of its runs is kept, as far as it is on this host; nowhere without a home.
    #[doc(hidden)]
    pub fn logs(&self) -> Option<LogDirectory> {
        let (clock, redactor) = (self.clock.clone(), self.log_redactor.as_ref().unwrap_or(&self.redactor).clone());
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            return Some(LogDirectory::of_registry(local.clone(), clock, redactor));
        }
        Some(LogDirectory::of_home(home_directory(self.name.as_deref())?, clock, redactor))
    }

    /// Who this process acts for.
    pub fn me(&self) -> &Actor {
        &self.me
    }

    /// Its clocks.
    #[doc(hidden)]
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Its clocks, for what outlives a borrow of it.
    #[cfg(all(any(test, feature = "testing"), feature = "object"))]
    pub(crate) fn shared_clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    pub(crate) fn entropy(&self) -> &dyn Entropy {
        &*self.entropy
    }

    /// Whose specs this user executes; none without a home.
    #[doc(hidden)]
    pub fn trust(&self) -> Option<&Trust> {
        self.trust.as_ref()
    }

    /// What is wrong with this user's key, if it is there and cannot be used: what is made then has no signature.
    #[doc(hidden)]
    pub fn unsigned(&self) -> Option<&str> {
        self.unsigned.as_deref()
    }

    /// Whether the stamp on a record is that of our own write.
    pub(crate) fn is_own(&self, record: &Record, stamp: Stamp) -> bool {
        (self.recognise)(record, stamp)
    }

    /// Subscribes `heard` to notifications of the store; dropping the returned guard unsubscribes. None where the store has
    /// none. Notifications may be lost: no caller may rely on them.
    pub(crate) fn listen(
        &self,
        heard: impl Fn(Notification) + Send + Sync + 'static,
    ) -> Option<Box<dyn Any + Send + Sync>> {
        self.listen.as_ref().and_then(|listen| listen(Box::new(heard)))
    }

    /// This process's worker, if it has claimed anything yet.
    pub fn worker(&self) -> Option<WorkerId> {
        lock(&self.worker).as_ref().map(|working| working.keeping.worker)
    }

    fn keeping(&self) -> Result<Arc<WorkerState>, Error> {
        fork_guard::check(self.opened_by)?;
        let mut worker = lock(&self.worker);
        if let Some(working) = &*worker {
            return Ok(working.keeping.clone());
        }
        let id = WorkerId::draw(self.clock.now(), &*self.entropy);
        #[cfg(feature = "sqlite")]
        let (identity, life) = match &self.local {
            Some(local) => local.hold_life_lock(id).map(|(identity, life)| (identity, Some(life)))?,
            None => (Identity::own(), None),
        };
        #[cfg(feature = "sqlite")]
        let bell = self.local.as_ref().and_then(|_| bell(id).ok());
        #[cfg(not(feature = "sqlite"))]
        let (identity, life, bell) = (Identity::own(), None, None);
        let keeping = Arc::new(WorkerState::new(
            id,
            identity,
            self.me.clone(),
            self.clock.clone(),
            self.entropy.clone(),
            self.id().map_or_else(|| self.url.clone(), |id| spool_key(&id)),
            self.spool.clone(),
        ));
        keeping.offer(self.offer.clone());
        let reopen = self.reopen.clone();
        let keeper = HeartbeatThread::new(keeping.clone(), bell, self.store.clone(), move || reopen());
        if !self.beats_later {
            worker_session::start(&keeper)?;
        }
        *worker = Some(Arc::new(Working::new(keeping.clone(), Some(keeper), life)));
        Ok(keeping)
    }

    /// Says something of a run in flight on behalf of its owner, from a process that was handed the owner's epoch.
    pub async fn report(&self, id: RunId, epoch: Epoch, report: Report) -> Result<Run, Error> {
        let report = masking::report(&self.redactor, report);
        let action = |run: &Run| {
            // A run without an owner matches no worker: the epoch alone says that the caller has lost it.
            let worker =
                run.owner().map_or_else(|| WorkerId::draw(run.updated_at, &*self.entropy), |owner| owner.worker);
            Action::Report { fence: Fence { worker, epoch }, report: report.clone() }
        };
        Ok(self.change(id, action).await?.0.run)
    }

    /// What can be seen of the processes of these runs on this host; none where the store is of no host.
    pub(crate) fn look(&self, runs: &[&Run]) -> Option<Vec<Observation>> {
        self.store.witness().map(|witness| witness.look(runs))
    }

    /// Whether the process on record as an owner holds the lock of its worker.
    pub(crate) fn holds_its_lock(&self, owner: &Owner) -> bool {
        #[cfg(feature = "sqlite")]
        return self.local.as_ref().is_some_and(|local| local.holds_its_lock(owner));
        #[cfg(not(feature = "sqlite"))]
        return {
            let _ = owner;
            false
        };
    }

    /// A run's event log, from its first event on.
    pub async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        Ok(self.store.events(id).await?)
    }
}
