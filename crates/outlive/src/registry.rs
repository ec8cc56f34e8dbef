//! The registry: one store of runs, as its users see it.
//!
//! It puts the pieces together: rules from `lifecycle.rs`, a store, the witness of this host, the keeper that beats,
//! the key that signs. Every change goes through `commit_until_known.rs`, which knows what a lost answer means.

mod adopt;
#[cfg(feature = "object")]
mod bucket;
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
mod home;
mod import;
mod keys;
mod log_directory;
mod notify;
mod origin;
mod process_tree;
mod queue;
mod reading;
mod reap;
mod rerun;
mod schemes;
mod secrets;
#[cfg(feature = "http")]
mod served;
mod sharing;
mod spool;
mod start;
mod status;
mod steps;
mod summary;
mod trust;
mod worker_session;

use std::any::Any;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::error::Error;
use crate::host::home::{actor, home};
use crate::lifecycle::health::Observation;
use crate::secrets::masking;
use crate::util::sync::lock;

use crate::host::{LifeLock, MadeBy};
use crate::lifecycle::{Action, Fence, Report};
use crate::model::id::{Entropy, Epoch, RunId, Stamp, SystemEntropy, WorkerId};
use crate::model::owner::Identity;
use crate::model::policy::{Lease, Policies};
use crate::model::run::{Actor, Event, Owner, Run};
use crate::model::time::{Clock, SystemClock};
use crate::ownership::heartbeat::{HeartbeatThread, WorkerState};
use crate::ownership::spool::Spool;
use crate::redact::Redactor;
use crate::secrets::trust::{NamedLocation, Trust, has_key};
use crate::store::fork_guard::{self, ForkGuard};
use crate::store::memory::MemoryStore;
#[cfg(feature = "object")]
use crate::store::object::{BucketAddress, ObjectStore};
#[cfg(feature = "postgres")]
use crate::store::postgres::{DatabaseAddress, PostgresStore};
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{Sharing, SqliteStore, bell};
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
pub use self::rerun::RerunOptions;
pub use self::spool::Delivered;
use self::spool::spool_key;
pub use self::summary::ListItem;

/// How often a change is tried when others change the run meanwhile.
const TRIES: usize = 32;
/// How long a beat waits for its turn before it is given up and the next one is due.
const BEAT_PATIENCE: Duration = Duration::from_secs(2);

/// Opens another connection to the same store, for the keeper's thread.
type Reopen = Arc<dyn Fn() -> Result<Arc<dyn Store>, store::Error> + Send + Sync>;
/// A notification callback.
type OnNotification = Box<dyn Fn(Notification) + Send + Sync>;
/// Subscribes a callback; dropping the returned guard unsubscribes.
type Listen = Arc<dyn Fn(OnNotification) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync>;

#[cfg(feature = "postgres")]
fn shared_address(url: &str) -> Result<DatabaseAddress, Error> {
    url.parse().map_err(|error| {
        Error::Invalid(format!("the registry's URL cannot be used: {error}; it is written `{}`", DatabaseAddress::FORM))
    })
}

/// One store of runs.
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

impl Registry {
    /// Opens the registry that `url` names, made if it is missing: `sqlite:PATH` for a directory of this machine,
    /// `postgres://…` for a database that many share, `http://…` for what a server lends, or `memory:` for one that ends
    /// with this process.
    pub async fn open(url: &str) -> Result<Self, Error> {
        if url == "memory:" {
            let store = MemoryStore::default();
            let reopened = store.clone();
            let reopen: Reopen = Arc::new(move || Ok(Arc::new(reopened.clone()) as Arc<dyn Store>));
            return Self::assemble(url.into(), Arc::new(store), reopen, |home| {
                Trust::open(home, &SystemEntropy).map(Some)
            });
        }
        #[cfg(feature = "sqlite")]
        if let Some(path) = url.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            return Self::open_local(Path::new(path), Some(Sharing::Private));
        }
        #[cfg(feature = "postgres")]
        if DatabaseAddress::is_meant(url) {
            return Self::open_shared(url).await;
        }
        #[cfg(feature = "object")]
        if BucketAddress::is_meant(url) {
            return Self::open_bucket(url).await;
        }
        #[cfg(feature = "http")]
        if store::http::ServerAddress::is_meant(url) {
            return Self::open_served(url).await;
        }
        if let Some(refusal) = schemes::refusal(url) {
            return Err(Error::Invalid(refusal));
        }
        // A URL may bear a password.
        let url = Redactor::default().text(url);
        Err(Error::Invalid(format!(
            "`{url}` is not a registry: use sqlite:PATH, postgres://…, s3://BUCKET/PREFIX, http://… or memory:"
        )))
    }

    #[cfg(feature = "postgres")]
    async fn open_shared(url: &str) -> Result<Self, Error> {
        Self::over_shared(url, PostgresStore::open(&shared_address(url)?).await?)
    }

    /// Opens the registry in the database that `url` names, where there is one. Nothing is made there.
    #[cfg(feature = "postgres")]
    pub async fn find_shared(url: &str) -> Result<Option<Self>, Error> {
        let found = PostgresStore::open_existing(&shared_address(url)?).await?;
        found.map(|store| Self::over_shared(url, store)).transpose()
    }

    #[cfg(feature = "postgres")]
    fn over_shared(url: &str, store: PostgresStore) -> Result<Self, Error> {
        let (name, beating, listening) = (store.id().to_owned(), store.clone(), store.clone());
        let database = Some(store.clone());
        let clock = store.clock();
        let listen: Listen = Arc::new(move |heard| Some(Box::new(listening.listen(heard).ok()?)));
        // Its beats have a connection of their own in any case.
        let reopen: Reopen = Arc::new(move || Ok(Arc::new(beating.clone()) as Arc<dyn Store>));
        let trust = |home: &Path| Trust::open(home, &SystemEntropy).map(Some);
        let assembled = Self::assemble(url.into(), Arc::new(store), reopen, trust)?;
        Ok(Self { name: Some(name), database, listen: Some(listen), clock, ..assembled })
    }

    /// Opens the registry in a directory of this machine. With `create` it is made if it is missing.
    #[cfg(feature = "sqlite")]
    pub fn open_local(path: &Path, create: Option<Sharing>) -> Result<Self, Error> {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let store = match create {
            Some(sharing) => SqliteStore::create(path, sharing, clock, entropy)?,
            None => SqliteStore::open(path, clock, entropy)?,
        };
        Self::over_local(store, |home| Trust::open(home, &SystemEntropy).map(Some))
    }

    /// Opens the registry in a directory of this machine to be read. Nothing is written, there or in the home.
    #[cfg(feature = "sqlite")]
    pub fn read_local(path: &Path) -> Result<Self, Error> {
        Self::over_local(SqliteStore::read(path, Arc::new(SystemClock), Arc::new(SystemEntropy))?, Trust::read)
    }

    #[cfg(feature = "sqlite")]
    fn over_local(store: SqliteStore, trust: impl Fn(&Path) -> std::io::Result<Option<Trust>>) -> Result<Self, Error> {
        let store = Arc::new(store);
        let url = format!("sqlite:{}", store.path().display());
        let reopened = store.clone();
        let reopen: Reopen =
            Arc::new(move || Ok(Arc::new(reopened.another()?.with_patience(BEAT_PATIENCE)) as Arc<dyn Store>));
        let mut registry = Self::assemble(url, store.clone(), reopen, trust)?;
        registry.local = Some(store);
        Ok(registry)
    }

    /// A registry over a store of the caller's own, called `name` where it is shown. Hold the store to the contract of
    /// [`Store`] with the conformance suite (feature `testing`) first.
    pub fn with_store(name: impl Into<String>, store: Arc<dyn Store>) -> Result<Self, Error> {
        let beating = store.clone();
        let reopen: Reopen = Arc::new(move || Ok(beating.clone()));
        Self::assemble(name.into(), store, reopen, |home| Trust::open(home, &SystemEntropy).map(Some))
    }

    fn assemble(
        url: String,
        store: Arc<dyn Store>,
        reopen: Reopen,
        trust: impl Fn(&Path) -> std::io::Result<Option<Trust>>,
    ) -> Result<Self, Error> {
        let home = home();
        let denied = |error: std::io::Error| Error::Store(store::Error::Denied(error.to_string()));
        let trust = home.as_deref().map(trust).transpose();
        let mut unsigned = None;
        let trust = match trust {
            Ok(trust) => trust.flatten(),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                unsigned = Some(error.to_string());
                None
            }
            // A home that cannot be written does not prevent runs: they are then made without a signature.
            Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied || !has_key(home.as_deref()) => None,
            Err(error) => return Err(denied(error)),
        };
        Ok(Self {
            url,
            opened_by: MadeBy::this_process(),
            store: Arc::new(ForkGuard::new(store)),
            #[cfg(feature = "sqlite")]
            local: None,
            #[cfg(feature = "object")]
            bucket: None,
            #[cfg(feature = "postgres")]
            database: None,
            name: None,
            lease: None,
            policies: Arc::default(),
            reopen,
            listen: None,
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            me: actor(),
            trust,
            identities: Mutex::default(),
            artifacts: Arc::default(),
            signatures_withheld: false,
            redactor: Arc::default(),
            log_redactor: None,
            unsigned,
            spool: home.as_deref().map(Spool::new),
            worker: Mutex::new(None),
            offer: Arc::default(),
            beats_later: false,
            recognise: |record, stamp| record.stamp == stamp,
        })
    }

    /// A registry over any store, with clocks and randomness given, no home, and no thread: its worker beats only when
    /// [`Registry::tick`] is called. For tests and simulations.
    #[cfg(any(test, feature = "testing"))]
    pub fn over(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        me: Actor,
        identity: Identity,
    ) -> Self {
        let reopened = store.clone();
        let worker = WorkerId::draw(clock.now(), &*entropy);
        let keeping = Arc::new(WorkerState::new(
            worker,
            identity,
            me.clone(),
            clock.clone(),
            entropy.clone(),
            "test:".into(),
            None,
        ));
        Self {
            url: "test:".into(),
            opened_by: MadeBy::this_process(),
            store,
            #[cfg(feature = "sqlite")]
            local: None,
            #[cfg(feature = "object")]
            bucket: None,
            #[cfg(feature = "postgres")]
            database: None,
            name: None,
            lease: None,
            policies: Arc::default(),
            reopen: Arc::new(move || Ok(reopened.clone())),
            listen: None,
            clock,
            entropy,
            me,
            trust: None,
            identities: Mutex::default(),
            artifacts: Arc::default(),
            signatures_withheld: true,
            redactor: Arc::default(),
            log_redactor: None,
            unsigned: None,
            spool: None,
            offer: Arc::default(),
            beats_later: true,
            worker: Mutex::new(Some(Arc::new(Working {
                keeping,
                keeper: None,
                left: AtomicBool::default(),
                listening: OnceLock::new(),
                _life: None,
            }))),
            recognise: |record, stamp| record.stamp == stamp,
        }
    }

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
    pub fn spooling_to(mut self, home: &Path) -> Self {
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
            *working = Arc::new(Working {
                keeping,
                keeper: None,
                left: AtomicBool::default(),
                listening: OnceLock::new(),
                _life: None,
            });
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
        let (keeper, left, listening) = (Some(keeper), AtomicBool::default(), OnceLock::new());
        *worker = Some(Arc::new(Working { keeping: keeping.clone(), keeper, left, listening, _life: life }));
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
