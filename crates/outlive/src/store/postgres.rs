//! Runs of a fleet, in a PostgreSQL database.
//!
//! The database is the truth, and its clock the only one that is asked. What a run was made with is written once; how it
//! stands moves between three tables as it does: those that wait, those that run, those that have ended (ADR 0012).

mod address;
mod batch;
mod beats;
mod claim_range;
mod clock;
mod copy_in;
mod dialect;
mod due;
mod event_log;
mod examine;
mod export;
mod exported;
mod foreign;
mod heads;
mod keys;
mod maintenance;
mod notify;
mod owner_cache;
mod pool;
mod reads;
mod rows;
mod schema;
mod session;
mod store_impl;
mod tls;
mod transaction;
mod updates;
mod writes;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

pub use self::address::{DatabaseAddress, SCHEMA};
use self::clock::ServerClock;
use self::dialect::Dialect;
pub use self::dialect::Feature;
pub use self::examine::DatabaseFinding;
#[doc(hidden)]
pub use self::export::{Export, HistoryPart};
use self::exported::History;
#[doc(hidden)]
pub use self::foreign::{ForeignRow, ForeignRows, ForeignTables};
use self::maintenance::MaintenanceState;
pub use self::notify::Listening;
use self::notify::NotifyLimiter;
use self::owner_cache::Owners;
use self::pool::Pool;
use super::Error;
use crate::model::id::WorkerId;
use crate::model::time::Clock;
use crate::util::sync::lock;

/// A registry in a database.
///
/// Clones share its connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("schema", &self.inner.schema).finish_non_exhaustive()
    }
}

struct Inner {
    links: Pool,
    /// The schema, as SQL names it.
    schema: String,
    /// What tells this registry from any other.
    id: String,
    /// What its engine can do.
    dialect: Dialect,
    /// The workers that beat through this store, and how often a change of theirs went through it.
    own: Mutex<HashMap<WorkerId, u64>>,
    owners: Owners,
    maintenance: MaintenanceState,
    notify_limiter: NotifyLimiter,
    clock: Arc<ServerClock>,
    /// What was exported and dropped.
    exported: History,
    /// Keys that a claim passed over because another had them locked.
    contended: AtomicU64,
    /// The last claim found nothing.
    found_nothing: AtomicBool,
}

impl PostgresStore {
    /// Opens the registry at `address`. It is made if it is missing, by the first process.
    pub async fn open(address: &DatabaseAddress) -> Result<Self, Error> {
        let (links, schema, clock) = (Pool::new(address.clone()), address.quoted_schema(), Arc::default());
        let made = schema::open(&links, &schema, address, &clock).await?;
        Ok(Self::over(links, schema, made, clock))
    }

    /// Opens the registry at `address` to be read: nothing is made, and a server that can only be read will do.
    pub async fn read(address: &DatabaseAddress) -> Result<Self, Error> {
        let none = || Error::Unavailable(format!("`{address}`: there is no registry of this format in the schema"));
        Self::open_existing(address).await?.ok_or_else(none)
    }

    /// Opens the registry at `address` to be read; none where there is none of this format.
    pub async fn open_existing(address: &DatabaseAddress) -> Result<Option<Self>, Error> {
        let (links, schema, clock) = (Pool::new(address.clone()), address.quoted_schema(), Arc::default());
        let made = schema::find(&links, &schema, address, &clock).await?;
        Ok(made.map(|made| Self::over(links, schema, made, clock)))
    }

    fn over(links: Pool, schema: String, made: schema::Made, clock: Arc<ServerClock>) -> Self {
        Self {
            inner: Arc::new(Inner {
                links,
                schema,
                id: made.id,
                dialect: made.dialect,
                own: Mutex::default(),
                owners: Owners::default(),
                maintenance: MaintenanceState::default(),
                notify_limiter: NotifyLimiter::default(),
                clock,
                exported: History::default(),
                contended: AtomicU64::default(),
                found_nothing: AtomicBool::default(),
            }),
        }
    }

    /// What tells this registry from any other, wherever it is moved to.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Whether the engine of its database has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.inner.dialect.has(feature)
    }

    /// The time of its server, as far as this host can tell.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock.clone()
    }

    fn owners(&self) -> &Owners {
        &self.inner.owners
    }

    fn exported_history(&self) -> &History {
        &self.inner.exported
    }

    fn notify_limiter(&self) -> &NotifyLimiter {
        &self.inner.notify_limiter
    }

    fn maintenance(&self) -> &MaintenanceState {
        &self.inner.maintenance
    }

    fn found_nothing(&self) -> &AtomicBool {
        &self.inner.found_nothing
    }

    fn links(&self) -> &Pool {
        &self.inner.links
    }

    /// SQL with the schema's name where it has `@`.
    #[track_caller]
    fn sql(&self, text: &str) -> String {
        #[cfg(any(test, feature = "testing"))]
        super::called::note(std::panic::Location::caller());
        self.inner.dialect.said(text).replace('@', &self.inner.schema)
    }

    /// What counts the changes of workers that beat through this store.
    fn own(&self) -> std::sync::MutexGuard<'_, HashMap<WorkerId, u64>> {
        // A count that a panic left as it was is as good as any.
        lock(&self.inner.own)
    }
}
