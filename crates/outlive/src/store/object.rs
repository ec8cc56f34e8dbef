//! Runs of writers that share only a bucket: one `run.yaml` per run, and its owner's lease inside it.
//!
//! Every change of a run is one conditional write on one object, its beats included, so that a late beat never undoes an
//! end. Nothing is locked. The server's clock is the only one that is asked. Whether the server really refuses what its
//! conditions forbid is tried out before a registry is made (ADR 0016).

mod address;
mod beats;
mod bucket;
mod cache;
mod charter;
mod client;
mod commits;
mod credentials;
mod delete;
mod ended;
mod keys;
mod neighbours;
mod outage;
mod probe;
mod record;
mod server_time;
mod store_impl;
mod sweeps;
#[cfg(any(test, feature = "testing"))]
mod test_support;
mod wire;
mod yaml;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use crate::util::sync::lock;

pub use self::address::{BucketAddress, InvalidBucketAddress, RUNS};
#[cfg(feature = "postgres")]
pub(crate) use self::bucket::Landed;
pub(crate) use self::bucket::{Bucket, DELETED_AT_ONCE, ListedObject};
use self::cache::Cache;
use self::ended::EndedRecords;
pub(crate) use self::neighbours::{records_below, registries_at};
pub use self::probe::{BucketFinding, Probed};
use self::server_time::Dates;
pub use self::server_time::ServerTime;
pub use self::wire::Counted;
pub(crate) use self::yaml::read as read_yaml;
pub(crate) use super::io_thread::spawn;
use super::{Error, io_thread};
use crate::model::id::{RunId, Stamp, WorkerId};
use crate::model::run::LastHeartbeat;
use crate::model::time::{SystemClock, Timestamp};

/// The file of one run.
const RECORD: &str = "run.yaml";

/// A registry in a bucket.
///
/// Clones share what they know of it.
#[derive(Clone)]
pub struct ObjectStore {
    inner: Arc<Inner>,
}

impl fmt::Debug for ObjectStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStore")
            .field("bucket", &self.inner.address.bucket)
            .field("prefix", &self.inner.address.prefix)
            .finish_non_exhaustive()
    }
}

struct Inner {
    address: BucketAddress,
    bucket: Bucket,
    /// What tells this registry from any other.
    id: Mutex<String>,
    cache: Mutex<Cache>,
    /// Ended records on this host's disk; absent where they are not cached there.
    ended: Mutex<Option<EndedRecords>>,
    /// When the records of the last full look were put, by the server's clock.
    dates: Mutex<HashMap<RunId, Timestamp>>,
    /// Nothing is written: it was opened for reading.
    read_only: bool,
    /// Claims whose answer was lost, by worker.
    doubtful: Mutex<HashMap<WorkerId, BTreeSet<RunId>>>,
    /// The last replies to workers that beat through this store.
    answers: Mutex<HashMap<WorkerId, beats::LastAnswer>>,
    /// Since when the bucket is reachable, in microseconds since 1970.
    reachable_since: AtomicI64,
}

impl ObjectStore {
    /// Opens the registry at `address`. It is made if it is missing, by the first process, on a server that keeps to its
    /// conditions and on no other.
    pub async fn open(address: &BucketAddress) -> Result<Self, Error> {
        let store = Self::at(address, system_time())?;
        let opening = store.clone();
        io_thread::spawn(move || async move { opening.open_charter(true).await }).await?;
        Ok(store)
    }

    /// Opens the registry at `address` for reading. Nothing is written, so that read permission suffices; without a
    /// registry there, the records of other writers are read and [`ObjectStore::id`] is empty. A failing request is
    /// repeated for at most `timeout`; absent means as long as for a store that writes.
    pub async fn read(address: &BucketAddress, timeout: Option<std::time::Duration>) -> Result<Self, Error> {
        let mut store = Self::at(address, system_time())?;
        if let Some(inner) = Arc::get_mut(&mut store.inner) {
            inner.read_only = true;
            inner.bucket.timeout = timeout.unwrap_or(inner.bucket.timeout);
        }
        let opening = store.clone();
        io_thread::spawn(move || async move { opening.read_charter().await }).await?;
        Ok(store)
    }

    /// Opens a registry on a server that is known to keep to its conditions, with an injected clock. For tests.
    #[cfg(any(test, feature = "testing"))]
    pub async fn open_by(
        address: &BucketAddress,
        time: Arc<dyn ServerTime>,
        timeout: std::time::Duration,
    ) -> Result<Self, Error> {
        let mut store = Self::at(address, time)?;
        if let Some(inner) = Arc::get_mut(&mut store.inner) {
            inner.bucket.timeout = timeout;
        }
        let opening = store.clone();
        io_thread::spawn(move || async move { opening.open_charter(false).await }).await?;
        Ok(store)
    }

    fn at(address: &BucketAddress, time: Arc<dyn ServerTime>) -> Result<Self, Error> {
        let bucket = Bucket::new(address, time).map_err(|error| Error::Unsupported(error.to_string()))?;
        Ok(Self {
            inner: Arc::new(Inner {
                address: address.clone(),
                bucket,
                id: Mutex::default(),
                cache: Mutex::default(),
                ended: Mutex::default(),
                dates: Mutex::default(),
                read_only: false,
                doubtful: Mutex::default(),
                answers: Mutex::default(),
                reachable_since: AtomicI64::new(i64::MIN),
            }),
        })
    }

    /// What tells this registry from any other, wherever it is copied to.
    pub fn id(&self) -> String {
        lock(&self.inner.id).clone()
    }

    /// Where it is.
    pub fn address(&self) -> &BucketAddress {
        &self.inner.address
    }

    /// The URL of the object that has the record of a run, without credentials.
    pub fn record_url(&self, id: RunId) -> String {
        let (address, key) = (self.address(), self.key_of(id));
        let below = key.strip_prefix(&address.prefix).unwrap_or(&key).trim_start_matches('/');
        format!("{address}/{below}")
    }

    /// How many requests it has made.
    pub fn counted(&self) -> Counted {
        self.bucket().counted()
    }

    /// Whether what is deleted in this bucket is only hidden, as far as its answers have shown.
    pub fn keeps_versions(&self) -> bool {
        self.bucket().keeps_versions()
    }

    fn bucket(&self) -> &Bucket {
        &self.inner.bucket
    }

    /// What is below the prefix under that name.
    fn below(&self, name: &str) -> String {
        let prefix = &self.inner.address.prefix;
        if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") }
    }

    /// What the records of runs are in.
    fn runs(&self) -> String {
        self.below(&self.inner.address.runs)
    }

    /// What is the registry's own, and of no run.
    fn own(&self, name: &str) -> String {
        self.below(&format!(".outlive/{}/{name}", self.inner.address.runs))
    }

    /// Where the record of a run is: the same for every process that knows its id. Names sort by time.
    fn key_of(&self, id: RunId) -> String {
        let unique = Stamp::of(id.as_bytes()).to_string().replace('-', "");
        format!("{}/{}_run_id={id}_{unique}/{RECORD}", self.runs(), id.time())
    }

    /// The server's time.
    fn now(&self) -> Result<Timestamp, Error> {
        let none = || Error::Unsupported("the server's answers bear no date, by which owners could be judged".into());
        self.bucket().time.now().ok_or_else(none)
    }

    /// What was heard of the owner of a document that was put at `modified`.
    fn heard(&self, document: &record::Document, modified: Option<Timestamp>, now: Timestamp) -> LastHeartbeat {
        let beats = document.beats;
        let at = match modified {
            Some(modified) if beats.fresh => self.bucket().time.put_at(modified, beats.at),
            _ => beats.at,
        };
        let reachable_since = Timestamp::from_micros(self.inner.reachable_since.load(Ordering::Relaxed));
        LastHeartbeat { beat: beats.count, at, silent_for: now.since(at.max(reachable_since)) }
    }
}

/// The time of whatever server answers.
pub(crate) fn system_time() -> Arc<dyn ServerTime> {
    Arc::new(Dates::new(Arc::new(SystemClock)))
}
