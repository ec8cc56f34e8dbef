//! Opening a registry: which store a URL names, and what is put around it.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::{Registry, schemes};
use crate::error::Error;
use crate::host::MadeBy;
use crate::host::home::{actor, home};
use crate::model::id::{Entropy, SystemEntropy};
use crate::model::run::Actor;
use crate::model::time::{Clock, SystemClock};
use crate::ownership::spool::Spool;
use crate::redact::Redactor;
use crate::secrets::trust::{Trust, has_key};
use crate::store::fork_guard::ForkGuard;
#[cfg(feature = "http")]
use crate::store::http::{HttpStore, ServerAddress};
use crate::store::memory::MemoryStore;
#[cfg(feature = "postgres")]
use crate::store::postgres::{DatabaseAddress, PostgresStore};
#[cfg(feature = "sqlite")]
use crate::store::sqlite::{Sharing, SqliteStore};
use crate::store::{self, Store};
#[cfg(any(test, feature = "testing"))]
use crate::{model::id::WorkerId, model::owner::Identity, ownership::heartbeat::WorkerState};
#[cfg(feature = "object")]
use crate::{
    model::policy::Lease,
    store::object::{BucketAddress, ObjectStore},
};

/// How long a heartbeat waits for its turn before it is given up and the next one is due.
#[cfg(feature = "sqlite")]
const BEAT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);
/// How long a reader of many registries tries to reach a bucket.
#[cfg(feature = "object")]
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3);
/// How the URL of a bucket is written.
#[cfg(feature = "object")]
const BUCKET_FORM: &str = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=NAME";

impl Registry {
    /// Opens the registry that `url` names, made if it is missing: `sqlite:PATH` for a directory of this machine,
    /// `postgres://…` for a database that many share, `s3://BUCKET/PREFIX` for a bucket, `http://…` for what a server lends,
    /// or `memory:` for one that ends with this process. Each but `memory:` needs the cargo feature of its store.
    ///
    /// What this user has for all registries is in the home: the directory that `OUTLIVE_HOME` names, else
    /// `$XDG_STATE_HOME/outlive`, else `~/.local/state/outlive`. There are the key that signs runs, outcomes that a
    /// store would not take (`spool/`) and sealed environments. Without a home that can be written, runs have no signature and
    /// an outcome that the store does not take ends with the process.
    pub async fn open(url: &str) -> Result<Self, Error> {
        if url == "memory:" {
            return Self::assemble(url.into(), Arc::new(MemoryStore::default()), open_trust);
        }
        #[cfg(feature = "sqlite")]
        if let Some(path) = local_path(url) {
            return Self::open_local(path, Some(Sharing::Private));
        }
        #[cfg(feature = "postgres")]
        if DatabaseAddress::is_meant(url) {
            let store = PostgresStore::open(&parse_address(url, DatabaseAddress::FORM)?).await?;
            return Self::over_shared(url, store);
        }
        #[cfg(feature = "object")]
        if BucketAddress::is_meant(url) {
            let store = Arc::new(ObjectStore::open(&parse_address(url, BUCKET_FORM)?).await?);
            let registry = Self::assemble(url.into(), store.clone(), open_trust)?.in_bucket(store);
            return Ok(Self { lease: Some(Lease::far_away()), ..registry });
        }
        #[cfg(feature = "http")]
        if ServerAddress::is_meant(url) {
            let store = HttpStore::open(&parse_address(url, ServerAddress::FORM)?).await?;
            return Self::over_served(url, store);
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

    /// Opens the registry that `url` names for reading, among many others: a bucket that does not answer is given up
    /// soon, and one without a registry is refused. Nothing is written there; what has ended in a bucket is cached in the
    /// home. A server of `http://…` is opened as [`Registry::open`] does, and its token says what may be written; `memory:` is
    /// refused, as each opening of it is another registry.
    pub async fn read(url: &str) -> Result<Self, Error> {
        if url == "memory:" {
            let why = "`memory:` cannot be opened for reading: each opening of it is another registry";
            return Err(Error::Invalid(format!("{why}; use `Registry::open`")));
        }
        #[cfg(feature = "http")]
        if ServerAddress::is_meant(url) {
            return Self::open(url).await;
        }
        #[cfg(feature = "sqlite")]
        if let Some(path) = local_path(url) {
            return Self::read_local(path);
        }
        #[cfg(feature = "postgres")]
        if DatabaseAddress::is_meant(url) {
            let store = PostgresStore::read(&url.parse().map_err(|error| unusable(url, error))?).await?;
            if let Some(home) = home() {
                store.reading_history_of(home);
            }
            let (name, database) = (Some(store.id().to_owned()).filter(|name| !name.is_empty()), Some(store.clone()));
            return Ok(Self { name, database, ..Self::over_read(url, Arc::new(store))? });
        }
        #[cfg(feature = "object")]
        if BucketAddress::is_meant(url) {
            let address = url.parse().map_err(|error| unusable(url, error))?;
            let store = ObjectStore::read(&address, Some(READ_TIMEOUT)).await?;
            if store.id().is_empty() && !store.has_records().await? {
                return Err(Error::NoRegistry { sought: None, place: address.to_string() });
            }
            let store = Arc::new(store);
            return Ok(Self::over_read(url, store.clone())?.in_bucket(store));
        }
        Err(schemes::refusal(url).map_or_else(|| unusable(url, "it names none"), Error::Invalid))
    }

    /// Opens the registry in the database that `url` names, where there is one. Nothing is made there.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    pub async fn find_shared(url: &str) -> Result<Option<Self>, Error> {
        let found = PostgresStore::open_existing(&parse_address(url, DatabaseAddress::FORM)?).await?;
        found.map(|store| Self::over_shared(url, store)).transpose()
    }

    #[cfg(feature = "postgres")]
    fn over_shared(url: &str, store: PostgresStore) -> Result<Self, Error> {
        let (name, clock, listening) = (store.id().to_owned(), store.clock(), store.clone());
        if let Some(home) = home() {
            store.reading_history_of(home);
        }
        let listen: super::Listen = Arc::new(move |heard| Some(Box::new(listening.listen(heard).ok()?)));
        let assembled = Self::assemble(url.into(), Arc::new(store.clone()), open_trust)?;
        Ok(Self { name: Some(name), database: Some(store), listen: Some(listen), clock, ..assembled })
    }

    #[cfg(feature = "http")]
    fn over_served(url: &str, store: HttpStore) -> Result<Self, Error> {
        let (name, lease, user) = (store.id().map(str::to_owned), store.lease(), store.user().map(str::to_owned));
        let signatures_withheld = store.reads_only();
        let assembled = Self::assemble(url.into(), Arc::new(store), open_trust)?;
        let registry = Self { name, lease, signatures_withheld, ..assembled };
        Ok(match user {
            Some(user) => registry.acting_for(&user),
            None => registry,
        })
    }

    /// Opens the registry in a directory of this machine. With `create` it is made if it is missing.
    #[cfg(feature = "sqlite")]
    #[doc(hidden)]
    pub fn open_local(path: &Path, create: Option<Sharing>) -> Result<Self, Error> {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let store = match create {
            Some(sharing) => SqliteStore::create(path, sharing, clock, entropy)?,
            None => SqliteStore::open(path, clock, entropy)?,
        };
        Self::over_local(store, open_trust)
    }

    /// Opens the registry in a directory of this machine to be read. Nothing is written, there or in the home.
    #[cfg(feature = "sqlite")]
    #[doc(hidden)]
    pub fn read_local(path: &Path) -> Result<Self, Error> {
        Self::over_local(SqliteStore::read(path, Arc::new(SystemClock), Arc::new(SystemEntropy))?, Trust::read)
    }

    #[cfg(feature = "sqlite")]
    fn over_local(store: SqliteStore, trust: impl Fn(&Path) -> std::io::Result<Option<Trust>>) -> Result<Self, Error> {
        let store = Arc::new(store);
        let (url, reopened) = (format!("sqlite:{}", store.path().display()), store.clone());
        // Heartbeats wait for no transaction of another thread: they have a connection of their own.
        let reopen = move || Ok(Arc::new(reopened.another()?.with_timeout(BEAT_TIMEOUT)) as Arc<dyn Store>);
        let assembled = Self::assemble(url, store.clone(), trust)?;
        Ok(Self { local: Some(store), reopen: Arc::new(reopen), ..assembled })
    }

    /// Opens the bucket that `url` names for reading. Read permission suffices, and nothing is written there: where there
    /// is no registry yet, it has no runs, or those of other writers.
    #[cfg(feature = "object")]
    #[doc(hidden)]
    pub async fn read_bucket(url: &str) -> Result<Self, Error> {
        let address = url.parse().map_err(|error| unusable(url, error))?;
        let store = Arc::new(ObjectStore::read(&address, None).await?);
        Ok(Self::over_read(url, store.clone())?.in_bucket(store))
    }

    /// The bucket below, if it is one.
    #[cfg(feature = "object")]
    #[doc(hidden)]
    pub fn bucket(&self) -> Option<&ObjectStore> {
        self.bucket.as_deref().filter(|_| self.opened_by.is_this_process())
    }

    /// The registry in this bucket. Ended records are cached in the home, if there is one.
    #[cfg(feature = "object")]
    fn in_bucket(self, store: Arc<ObjectStore>) -> Self {
        if let Some(home) = home() {
            store.cache_ended(&home.join("cache"));
        }
        Self { name: Some(store.id()).filter(|name| !name.is_empty()), bucket: Some(store), ..self }
    }

    #[cfg(any(feature = "object", feature = "postgres"))]
    fn over_read(url: &str, store: Arc<dyn Store>) -> Result<Self, Error> {
        // A reader sends no heartbeats.
        let reopen = || Err(store::Error::Unsupported("it was opened to be read".into()));
        Ok(Self { reopen: Arc::new(reopen), ..Self::assemble(url.into(), store, Trust::read)? })
    }

    /// A registry over a store of the caller's own, called `name` where it is shown. Hold the store to the contract of
    /// [`Store`] with the conformance suite (feature `testing`) first.
    pub fn with_store(name: impl Into<String>, store: Arc<dyn Store>) -> Result<Self, Error> {
        Self::assemble(name.into(), store, open_trust)
    }

    /// A registry of this user over a store, with the key and the spool of the home.
    fn assemble(
        url: String,
        store: Arc<dyn Store>,
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
        let spool = home.as_deref().map(Spool::new);
        let bare = Self::bare(url, store.clone(), Arc::new(SystemClock), Arc::new(SystemEntropy), actor());
        Ok(Self { store: Arc::new(ForkGuard::new(store)), trust, unsigned, spool, ..bare })
    }

    /// A registry over a store, without a key, a spool and a worker. Its heartbeats use the store itself.
    fn bare(url: String, store: Arc<dyn Store>, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>, me: Actor) -> Self {
        let reopened = store.clone();
        Self {
            url,
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
            signatures_withheld: false,
            redactor: Arc::default(),
            log_redactor: None,
            unsigned: None,
            spool: None,
            worker: Mutex::new(None),
            offer: Arc::default(),
            beats_later: false,
            recognise: |record, stamp| record.stamp == stamp,
        }
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
        let worker = WorkerId::draw(clock.now(), &*entropy);
        let (now, random) = (clock.clone(), entropy.clone());
        let keeping = WorkerState::new(worker, identity, me.clone(), now, random, "test:".into(), None);
        let worker = Mutex::new(Some(Arc::new(super::Working::new(Arc::new(keeping), None, None))));
        let bare = Self::bare("test:".into(), store, clock, entropy, me);
        Self { signatures_withheld: true, beats_later: true, worker, ..bare }
    }

    /// This registry with notifications of a test's own: `listen` subscribes a callback, until what it answers with is dropped.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn listening_by(
        self,
        listen: impl Fn(super::OnNotification) -> Option<Box<dyn std::any::Any + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        Self { listen: Some(Arc::new(listen)), ..self }
    }

    /// A registry over an [`ObjectStore`], with injected clock and entropy and no heartbeat thread. For tests.
    #[cfg(all(any(test, feature = "testing"), feature = "object"))]
    pub fn over_bucket(
        store: Arc<ObjectStore>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
        me: Actor,
        identity: Identity,
    ) -> Self {
        let over = Self::over(store.clone(), clock, entropy, me, identity);
        Self { bucket: Some(store), lease: Some(Lease::far_away()), ..over }
    }
}

fn open_trust(home: &Path) -> std::io::Result<Option<Trust>> {
    Trust::open(home, &SystemEntropy).map(Some)
}

/// The directory that a URL names.
#[cfg(feature = "sqlite")]
fn local_path(url: &str) -> Option<&Path> {
    url.strip_prefix("sqlite:").filter(|path| !path.is_empty()).map(Path::new)
}

/// The address that a URL names, which is written as `form` says.
#[cfg(any(feature = "http", feature = "object", feature = "postgres"))]
fn parse_address<A: std::str::FromStr<Err: std::fmt::Display>>(url: &str, form: &str) -> Result<A, Error> {
    let unusable =
        |error| Error::Invalid(format!("the registry's URL cannot be used: {error}; it is written `{form}`"));
    url.parse().map_err(unusable)
}

fn unusable(url: &str, why: impl std::fmt::Display) -> Error {
    // A URL may bear a password.
    Error::Invalid(format!("`{}` cannot be used as a registry: {why}", Redactor::default().text(url)))
}
