//! Grounds: where the stores of this crate are made, with clocks that are moved by hand.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outlive::conformance::Ground;
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::id::SystemEntropy;
use outlive::lifecycle::Start;
use outlive::lifecycle::health::ProcessObserver;
use outlive::run::{Event, Key, QueueHead};
use outlive::store::http::HttpStore;
use outlive::store::memory::MemoryStore;
use outlive::store::object::{ObjectStore, ServerTime};
use outlive::store::postgres::{Feature, PostgresStore};
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::store::{
    Beat, BeatReply, Count, Error, Listing, Page, Record, Rule, Selection, Store, WorkerRecord, Write, WriteOutcome,
};
use outlive::testing::ManualClock;
use outlive::testing::bucket::{Bucket, KEY, url_at};
use outlive::testing::lender::Lender;
use outlive::testing::proxy::{Fate, Proxy};
use outlive::testing::server::Server;
use outlive::time::{Clock, Timestamp};
use tempfile::TempDir;

use crate::fleet::Pooler;

/// The end of a URL that makes a registry without any feature of PostgreSQL that another engine may lack.
pub(crate) static WITHOUT_ALL: LazyLock<String> =
    LazyLock::new(|| format!("&without={}", Feature::ALL.map(Feature::name).join(",")));

/// Longer than any lease that the tests use by default.
const STRETCH: Duration = Duration::from_secs(60);

pub(crate) struct MemoryGround {
    clock: Arc<ManualClock>,
    made: Mutex<Vec<MemoryStore>>,
}

impl MemoryGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, made: Mutex::default() }
    }

    pub(crate) fn make(&self) -> MemoryStore {
        let store = MemoryStore::new(self.clock.clone());
        self.made.lock().unwrap().push(store.clone());
        store
    }
}

#[async_trait]
impl Ground for MemoryGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.make())
    }

    async fn again(&self) -> Arc<dyn Store> {
        Arc::new(self.made.lock().unwrap().last().unwrap().clone())
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    async fn deafen(&self, duration: Duration) {
        self.clock.pass(duration);
        self.made.lock().unwrap().iter().for_each(MemoryStore::was_deaf);
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }
}

pub(crate) struct SqliteGround {
    clock: Arc<ManualClock>,
    dir: TempDir,
    made: AtomicUsize,
    last: Mutex<PathBuf>,
}

impl SqliteGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, dir: tempfile::tempdir().unwrap(), made: AtomicUsize::new(0), last: Mutex::default() }
    }

    /// Where the next registry will be.
    pub(crate) fn next_path(&self) -> PathBuf {
        let path = self.dir.path().join(self.made.fetch_add(1, Ordering::SeqCst).to_string());
        *self.last.lock().unwrap() = path.clone();
        path
    }

    pub(crate) fn open(&self, path: &std::path::Path) -> SqliteStore {
        SqliteStore::create(path, Sharing::Private, self.clock.clone(), Arc::new(SystemEntropy)).unwrap()
    }
}

#[async_trait]
impl Ground for SqliteGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.open(&self.next_path()))
    }

    async fn again(&self) -> Arc<dyn Store> {
        Arc::new(self.open(&self.last.lock().unwrap()))
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    async fn deafen(&self, duration: Duration) {
        self.clock.sleep(duration);
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }
}

/// Schemas of the tests' server, whose clocks are those of the test.
pub(crate) struct PostgresGround {
    clock: Arc<ManualClock>,
    last: Mutex<String>,
    /// Whom it is reached through, if not directly.
    pooler: Option<Pooler>,
    /// What is behind the URL of each registry.
    behind: String,
}

impl PostgresGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, last: Mutex::default(), pooler: None, behind: String::new() }
    }

    /// The same server, as an engine that has none of the features that others lack.
    pub(crate) fn plain(clock: Arc<ManualClock>) -> Self {
        Self { behind: WITHOUT_ALL.clone(), ..Self::new(clock) }
    }

    /// The same server, through a pooler that has so many connections to it.
    pub(crate) fn pooled(clock: Arc<ManualClock>, connections: usize) -> Self {
        Self { pooler: Some(Pooler::start(Server::shared().port(), connections)), ..Self::new(clock) }
    }

    pub(crate) async fn make(&self) -> ByOurClock {
        let direct = Server::shared().fresh_url() + &self.behind;
        let url = self.pooler.as_ref().map_or(direct.clone(), |pooler| pooler.url(&direct));
        let store = ByOurClock::open(&url, self.clock.clone()).await;
        let set = |function: &str, name: &str| {
            let body = format!("SELECT value::int8 FROM {}.meta WHERE name = '{name}'", store.schema);
            format!(
                "CREATE OR REPLACE FUNCTION {}.{function}() RETURNS int8 LANGUAGE sql AS $$ {body} $$;",
                store.schema
            )
        };
        let now = server_time(&self.clock);
        Server::shared().psql(&format!(
            "INSERT INTO {0}.meta VALUES ('now', '{now}'), ('hears', '{now}'); {1} {2}",
            store.schema,
            set("clock", "now"),
            set("reachable_since", "hears"),
        ));
        *self.last.lock().unwrap() = url;
        store
    }
}

#[async_trait]
impl Ground for PostgresGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.make().await)
    }

    async fn again(&self) -> Arc<dyn Store> {
        let url = self.last.lock().unwrap().clone();
        Arc::new(ByOurClock::open(&url, self.clock.clone()).await)
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    async fn deafen(&self, duration: Duration) {
        self.clock.pass(duration);
        let url = self.last.lock().unwrap().clone();
        let now = server_time(&self.clock);
        Server::shared().psql(&format!("UPDATE {}.meta SET value = '{now}' WHERE name = 'hears'", schema_of(&url)));
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }
}

/// The server's clock, which nobody sets when the hosts' are.
fn server_time(clock: &ManualClock) -> i64 {
    const START: i64 = 1_790_000_000_000_000;
    START + i64::try_from(clock.since_boot().as_micros()).unwrap()
}

fn schema_of(url: &str) -> String {
    url.split_once("schema=").unwrap().1.split('&').next().unwrap().to_owned()
}

/// A store whose server is told the time of the test before every call.
pub(crate) struct ByOurClock {
    store: PostgresStore,
    schema: String,
    clock: Arc<ManualClock>,
    told: Mutex<i64>,
}

impl fmt::Debug for ByOurClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByOurClock").finish_non_exhaustive()
    }
}

impl ByOurClock {
    async fn open(url: &str, clock: Arc<ManualClock>) -> Self {
        let store = PostgresStore::open(&url.parse().unwrap()).await.unwrap_or_else(|error| panic!("{error}"));
        Self { store, schema: schema_of(url), told: Mutex::default(), clock }
    }

    fn tell(&self) -> &PostgresStore {
        let (mut told, now) = (self.told.lock().unwrap(), server_time(&self.clock));
        if *told != now {
            let schema = &self.schema;
            Server::shared().psql(&format!("UPDATE {schema}.meta SET value = '{now}' WHERE name = 'now'"));
            *told = now;
        }
        &self.store
    }
}

#[async_trait]
impl Store for ByOurClock {
    async fn get(&self, ids: &[RunId]) -> Result<Vec<Record>, Error> {
        self.tell().get(ids).await
    }

    async fn list(&self, filter: &Filter, page: &Page) -> Result<Listing, Error> {
        self.tell().list(filter, page).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Vec<WriteOutcome>, Error> {
        self.tell().commit(writes).await
    }

    async fn update(&self, selection: &Selection, rule: Rule<'_>) -> Result<Vec<Record>, Error> {
        self.tell().update(selection, rule).await
    }

    async fn beat(&self, beat: &Beat) -> Result<BeatReply, Error> {
        self.tell().beat(beat).await
    }

    async fn counts(&self) -> Result<Vec<Count>, Error> {
        self.tell().counts().await
    }

    async fn workers(&self) -> Result<Vec<WorkerRecord>, Error> {
        self.tell().workers().await
    }

    async fn next_due(&self, filter: &Filter) -> Result<Option<Duration>, Error> {
        self.tell().next_due(filter).await
    }

    async fn heads(&self, filter: &Filter) -> Result<Vec<QueueHead>, Error> {
        self.tell().heads(filter).await
    }

    async fn starts(&self, rates: &[Key]) -> Result<Vec<Vec<Start>>, Error> {
        self.tell().starts(rates).await
    }

    async fn events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        self.tell().events(id).await
    }

    fn witness(&self) -> Option<Arc<dyn ProcessObserver>> {
        self.store.witness()
    }
}

/// Prefixes of the tests' bucket, whose server goes by the clock of the test.
pub(crate) struct BucketGround {
    clock: Arc<ManualClock>,
    last: Mutex<String>,
}

impl BucketGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, last: Mutex::default() }
    }

    pub(crate) async fn make(&self) -> ObjectStore {
        let url = Bucket::shared().fresh_url();
        *self.last.lock().unwrap() = url.clone();
        self.open(&url, Duration::from_secs(20)).await
    }

    async fn open(&self, url: &str, patience: Duration) -> ObjectStore {
        let time = Arc::new(ByTheTest(self.clock.clone()));
        let opened = ObjectStore::open_by(&url.parse().unwrap(), time, patience).await;
        opened.unwrap_or_else(|error| panic!("{error}"))
    }
}

#[async_trait]
impl Ground for BucketGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.make().await)
    }

    async fn again(&self) -> Arc<dyn Store> {
        let url = self.last.lock().unwrap().clone();
        Arc::new(self.open(&url, Duration::from_secs(20)).await)
    }

    async fn pass(&self, duration: Duration) {
        self.clock.pass(duration);
    }

    /// Somebody asks in vain all the while, and is answered in the end.
    async fn deafen(&self, duration: Duration) {
        let proxy = Proxy::new(Bucket::shared().port(), |_| Fate::Pass);
        let last = self.last.lock().unwrap().clone();
        let prefix = last.split_once('@').unwrap().1.split('?').next().unwrap().split_once('/').unwrap().1.to_owned();
        let asking = self.open(&url_at(proxy.port(), KEY, &prefix), Duration::from_millis(200)).await;
        proxy.cut_off(true);
        asking.list(&Filter::default(), &Page::default()).await.unwrap_err();
        self.clock.pass(duration);
        proxy.cut_off(false);
        asking.list(&Filter::default(), &Page::default()).await.unwrap();
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }

    fn knows_deletions(&self) -> bool {
        true
    }
}

/// Registries in memory that are lent over HTTP.
pub(crate) struct HttpGround {
    lent: MemoryGround,
    last: Mutex<Option<Lender>>,
}

impl HttpGround {
    pub(crate) fn new(clock: Arc<ManualClock>) -> Self {
        Self { lent: MemoryGround::new(clock), last: Mutex::default() }
    }

    pub(crate) async fn make(&self) -> HttpStore {
        let lender = Lender::of(Arc::new(self.lent.make()));
        let address = lender.address();
        *self.last.lock().unwrap() = Some(lender);
        HttpStore::open_as(&address, None).await.unwrap_or_else(|error| panic!("{error}"))
    }
}

#[async_trait]
impl Ground for HttpGround {
    async fn fresh(&self) -> Arc<dyn Store> {
        Arc::new(self.make().await)
    }

    async fn again(&self) -> Arc<dyn Store> {
        let address = self.last.lock().unwrap().as_ref().unwrap().address();
        Arc::new(HttpStore::open_as(&address, None).await.unwrap_or_else(|error| panic!("{error}")))
    }

    async fn pass(&self, duration: Duration) {
        self.lent.pass(duration).await;
    }

    async fn deafen(&self, duration: Duration) {
        self.lent.deafen(duration).await;
    }

    fn stretch(&self) -> Duration {
        STRETCH
    }
}

/// A server whose clock is the test's, and whose objects are dated by it.
pub(crate) struct ByTheTest(pub(crate) Arc<ManualClock>);

impl ServerTime for ByTheTest {
    fn since_boot(&self) -> Duration {
        self.0.since_boot()
    }

    fn heard(&self, _: &str, _: Duration) {}

    fn now(&self) -> Option<Timestamp> {
        Some(Timestamp::from_micros(server_time(&self.0)))
    }

    fn put_at(&self, _: Timestamp, claimed: Timestamp) -> Timestamp {
        claimed
    }
}
