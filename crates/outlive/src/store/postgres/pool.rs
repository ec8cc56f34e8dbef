//! Connections: made when they are needed, given back when what they were taken for is over, dropped when it is not.
//!
//! They are driven by a runtime of their own, on a thread of its own, so that callers of the store may await it on any
//! executor or none. No state of a session is relied on: a pooler may hand every transaction to another one.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join, join3, select_ok};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Socket};

use super::address::DatabaseAddress;
use super::copy_in::Copy;
use super::reads::Query;
use super::session::{self, Session};
use super::tls::Tls;
use crate::host::PerProcess;
use crate::model::time::show_duration;
use crate::store::Error;
use crate::util::backoff::Backoff;
use crate::util::sync::lock;

/// How long a call waits for the server before its connection is given up.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a beat does at the most.
pub(super) const BEAT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a transaction is tried that the server broke off in favour of another.
const TRIES: u32 = 8;
/// The longest pauses before the next tries.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(6), Duration::from_millis(192));

/// A value of a statement, with its type: nothing is asked of the server before.
pub(super) type Bound<'a> = (&'a (dyn ToSql + Sync), Type);

fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: PerProcess<Result<Runtime, String>> = PerProcess::new();
    let built = RUNTIME.get_or_init(|| {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("outlive-pg").enable_io().enable_time();
        builder.build().map_err(|error| error.to_string())
    });
    built.as_ref().map_err(|error| Error::Unavailable(format!("no thread for the database's connections: {error}")))
}

/// Spawns work that no caller waits for.
pub(super) fn in_passing(work: impl Future<Output = ()> + Send + 'static) -> Result<JoinHandle<()>, Error> {
    Ok(runtime()?.spawn(work))
}

/// How a call failed.
#[derive(Debug)]
pub(super) enum CallError {
    /// A final error: retrying the call does not help.
    Error(Error),
    /// The server aborted the transaction for another one (serialization failure or deadlock). It had no effect.
    Retryable(Error),
    /// The connection was closed before the call was sent.
    StaleConnection(Error),
    /// A row that was to be inserted exists already. The call had no effect.
    AlreadyExists(Error),
    /// The server did not answer in time. It may never do so on any connection.
    Unanswered(Error),
    /// A pooler shares the session: a prepared statement is missing or another client's. The call had no effect.
    PoolerDetected(Error),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl CallError {
    fn into_error(self) -> Error {
        match self {
            Self::Error(error)
            | Self::Retryable(error)
            | Self::StaleConnection(error)
            | Self::AlreadyExists(error)
            | Self::Unanswered(error)
            | Self::PoolerDetected(error) => error,
        }
    }
}

/// Whether what was sent may have been carried out though no answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    Possible,
}

/// Does `$work` on a connection, again where the server broke it off or the connection had gone stale unnoticed.
macro_rules! with_retry {
    ($links:expr, |$link:ident| $work:expr) => {{
        let mut tries = $crate::store::postgres::pool::Tries::default();
        loop {
            let mut $link = $links.take().await?;
            match $work.await {
                Ok(done) => {
                    $link.put_back();
                    break Ok(done);
                }
                Err(fault) => {
                    $link.end_after(&fault);
                    if let Err(error) = tries.again(fault).await {
                        break Err(error);
                    }
                }
            }
        }
    }};
}
pub(super) use with_retry;

/// How often a call was tried.
pub(super) struct Tries {
    count: u32,
    backoff: Backoff,
}

impl Default for Tries {
    fn default() -> Self {
        Self { count: 0, backoff: PAUSES }
    }
}

impl Tries {
    /// Waits for the next try: longer with each, and not as long as others do. The fault where there is none.
    pub(super) async fn again(&mut self, fault: CallError) -> Result<(), Error> {
        use crate::model::id::Entropy;
        self.count += 1;
        let is_final = matches!(fault, CallError::Error(_) | CallError::AlreadyExists(_) | CallError::Unanswered(_));
        if is_final || self.count >= TRIES {
            return Err(fault.into_error());
        }
        let spread = (crate::model::id::SystemEntropy.draw() % 1_000) as u32;
        rest(self.backoff.pause() * spread / 1_000).await
    }
}

/// A client, and what must be polled for it to be answered.
type RawConnection = (Client, tokio_postgres::Connection<Socket, <Tls as MakeTlsConnect<Socket>>::Stream>);

/// Connects to the server that can be written to. All are asked at once: one that hangs keeps none from the others.
async fn connect_to_any(address: &DatabaseAddress) -> Result<RawConnection, tokio_postgres::Error> {
    let connecting = address.servers.iter().map(|server| Box::pin(server.connect(address.tls.clone())));
    Ok(select_ok(connecting).await?.0)
}

/// The connections of one store.
pub(super) struct Pool {
    address: DatabaseAddress,
    idle: Mutex<Vec<Session>>,
    room: Arc<Semaphore>,
    beating: tokio::sync::Mutex<Option<Session>>,
    /// A pooler has been seen: nothing is prepared.
    pub(super) shared: AtomicBool,
    /// A pooler has refused the settings of sessions: every transaction sets them.
    unset: AtomicBool,
}

/// A connection that is taken. It goes back only if it is said to be in order.
pub(super) struct PooledClient<'a> {
    links: &'a Pool,
    session: Option<Session>,
    /// What is said behind the next commit.
    news: Option<String>,
    _room: SemaphorePermit<'a>,
}

impl Pool {
    pub(super) fn new(address: DatabaseAddress) -> Self {
        let room = Arc::new(Semaphore::new(address.connections));
        let (shared, unset) = (AtomicBool::default(), AtomicBool::default());
        Self { address, idle: Mutex::default(), room, beating: tokio::sync::Mutex::default(), shared, unset }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        lock(&self.idle)
    }

    async fn connect(&self, timeout: Duration) -> Result<Session, Error> {
        let has_settings = !self.unset.load(Ordering::Relaxed);
        match self.connect_with(has_settings, timeout).await? {
            Err(error) if has_settings && is_unset(&error) => {
                self.unset.store(true, Ordering::Relaxed);
                let refused = |error| from_connecting(&self.address.to_string(), &error);
                self.connect_with(false, timeout).await?.map_err(refused)
            }
            connected => connected.map_err(|error| from_connecting(&self.address.to_string(), &error)),
        }
    }

    async fn connect_with(
        &self,
        has_settings: bool,
        timeout: Duration,
    ) -> Result<Result<Session, tokio_postgres::Error>, Error> {
        let mut address = self.address.clone();
        if has_settings {
            for server in &mut address.servers {
                let theirs = server.get_options().unwrap_or_default().to_owned();
                server.options(format!("{theirs} {}", session::SETTINGS));
            }
        }
        let shown = self.address.to_string();
        let connecting = runtime()?.spawn(async move {
            let (client, connection) = connect_to_any(&address).await?;
            // The user of the client notices its end.
            tokio::spawn(async move { drop(connection.await) });
            Ok::<Client, tokio_postgres::Error>(client)
        });
        match within(timeout, connecting).await? {
            Some(Ok(connected)) => Ok(connected.map(|client| Session::new(client, has_settings))),
            Some(Err(error)) => Err(Error::Unavailable(format!("`{shown}` cannot be reached: {error}"))),
            None => Err(Error::Unavailable(format!("`{shown}` did not answer for {} s", timeout.as_secs()))),
        }
    }

    /// A connection that another task drives, on the runtime.
    pub(super) async fn connect_raw(&self) -> Result<RawConnection, Error> {
        connect_to_any(&self.address).await.map_err(|error| from_connecting(&self.address.to_string(), &error))
    }

    fn idle_one(&self) -> Option<Session> {
        std::iter::from_fn(|| self.idle().pop()).find(|session| !session.is_closed())
    }

    /// A connection, an idle one if there is any.
    pub(super) async fn take(&self) -> Result<PooledClient<'_>, Error> {
        let permit = within(TIMEOUT, self.room.acquire()).await?.and_then(Result::ok);
        let room = permit.ok_or_else(|| {
            Error::Unavailable(format!("all {} connections to the database are in use", self.address.connections))
        })?;
        let session = match self.idle_one() {
            Some(session) => session,
            None => self.connect(TIMEOUT).await?,
        };
        Ok(PooledClient { links: self, session: Some(session), news: None, _room: room })
    }

    /// Beats have a connection of their own, which no other call delays.
    pub(super) async fn beat(&self, sql: &str, bound: &[Bound<'_>], timeout: Duration) -> Result<Vec<Row>, Error> {
        let mut beating = self.beating.lock().await;
        let stale = beating.is_some();
        match self.beat_on(&mut beating, sql, bound, timeout).await {
            // It may have been lost between two beats.
            Err(Error::Unknown(_)) if stale => self.beat_on(&mut beating, sql, bound, timeout).await,
            done => done,
        }
    }

    async fn beat_on(
        &self,
        beating: &mut Option<Session>,
        sql: &str,
        bound: &[Bound<'_>],
        timeout: Duration,
    ) -> Result<Vec<Row>, Error> {
        let mut is_borrowed = false;
        // Taken out, so that one whose answer was not awaited is not used again.
        let session = match beating.take().filter(|session| !session.is_closed()) {
            Some(session) => session,
            None => match self.connect(BEAT_TIMEOUT).await {
                Ok(session) => session,
                // Where the server has no room for another, the beats borrow an idle one.
                Err(error) => {
                    is_borrowed = true;
                    self.idle_one().ok_or(error)?
                }
            },
        };
        let rows = session.ask(sql, bound, timeout, Effect::Possible).await.map_err(CallError::into_error)?;
        if is_borrowed {
            self.idle().push(session);
        } else {
            *beating = Some(session);
        }
        Ok(rows)
    }
}

impl PooledClient<'_> {
    fn session(&mut self) -> Result<&mut Session, CallError> {
        let gone = || Error::Unavailable("the connection was given back".into());
        Ok(self.session.as_mut().ok_or_else(gone)?)
    }

    fn may_prepare(&self) -> bool {
        !self.links.shared.load(Ordering::Relaxed)
    }

    /// Has something said behind the next commit.
    pub(super) fn tell(&mut self, news: Option<String>) {
        self.news = news;
    }

    fn commit_words(&mut self) -> String {
        self.news.take().map_or_else(|| "COMMIT".to_owned(), |news| format!("COMMIT; {news}"))
    }

    /// Leaves the connection to the next. Nothing is open on it.
    pub(super) fn put_back(mut self) {
        if let Some(session) = self.session.take().filter(|session| !session.is_closed()) {
            self.links.idle().push(session);
        }
    }

    /// Gives the connection up after a failed call. Where the server is silent, idle connections are given up too: each would
    /// be waited for in its turn while another server leads already.
    pub(super) fn end_after(self, fault: &CallError) {
        if matches!(fault, CallError::Unanswered(_)) {
            self.links.idle().clear();
        }
    }

    /// Gives the connection up: what is open on it ends without effect.
    pub(super) fn give_up(&mut self) {
        self.session = None;
    }

    /// One statement that changes nothing.
    pub(super) async fn read(&mut self, sql: &str, bound: &[Bound<'_>]) -> Result<Vec<Row>, CallError> {
        stale_if_lost(self.session()?.ask(sql, bound, TIMEOUT, Effect::None).await)
    }

    /// A transaction of one statement, in one round trip.
    pub(super) async fn write(&mut self, sql: &str, bound: &[Bound<'_>]) -> Result<Vec<Row>, CallError> {
        let may_prepare = self.may_prepare();
        let session = self.session()?;
        let is_prepared = session.prepare_alone(may_prepare, sql, bound).await;
        self.note_pooler(is_prepared)?;
        let commit = self.commit_words();
        let session = self.session()?;
        let begin = session.begin();
        let (begun, rows, committed) = join3(
            session.say(&begin, Effect::Possible),
            session.ask_within(sql, bound, Effect::Possible),
            session.say(&commit, Effect::Possible),
        )
        .await;
        self.note_pooler(begun)?;
        let rows = self.note_pooler(rows)?;
        committed?;
        Ok(rows)
    }

    /// A transaction that copies new rows. Answers whether it did: not where one of them is there already, nor on a session
    /// on which nothing is prepared.
    pub(super) async fn copy(&mut self, copies: &[Copy]) -> Result<bool, CallError> {
        for Copy { sql, .. } in copies {
            let may_prepare = self.may_prepare();
            let prepared = self.session()?.prepare_alone(may_prepare, sql, &[]).await;
            self.note_pooler(stale_if_lost(prepared))?;
            if !self.session()?.is_prepared(sql) {
                return Ok(false);
            }
        }
        let session = self.session()?;
        let begin = session.begin();
        let copying = async {
            for copy in copies {
                session.copy(copy).await?;
            }
            Ok(())
        };
        let (begun, copied) = join(session.say(&begin, Effect::None), copying).await;
        self.note_pooler(stale_if_lost(begun))?;
        match self.note_pooler(copied) {
            Err(CallError::AlreadyExists(_)) => {
                self.roll_back().await?;
                Ok(false)
            }
            copied => {
                copied?;
                self.commit().await?;
                Ok(true)
            }
        }
    }

    /// Begins a transaction with a statement, and one before it whose answer does not matter.
    pub(super) async fn begin_with(
        &mut self,
        before: Option<&str>,
        sql: &str,
        bound: &[Bound<'_>],
    ) -> Result<Vec<Row>, CallError> {
        let may_prepare = self.may_prepare();
        let session = self.session()?;
        let is_prepared = session.prepare_alone(may_prepare, sql, bound).await;
        self.note_pooler(stale_if_lost(is_prepared))?;
        let session = self.session()?;
        let begin = before.map_or_else(|| session.begin(), |before| format!("{}; {before}", session.begin()));
        let (begun, rows) = join(session.say(&begin, Effect::None), session.ask_within(sql, bound, Effect::None)).await;
        self.note_pooler(stale_if_lost(begun))?;
        self.note_pooler(rows)
    }

    /// Begins a transaction with statements that are sent at once.
    pub(super) async fn begin_with_all(&mut self, queries: &[Query]) -> Result<Vec<Vec<Row>>, CallError> {
        let may_prepare = self.may_prepare();
        let is_prepared = self.session()?.prepare_all_alone(may_prepare, queries).await;
        self.note_pooler(stale_if_lost(is_prepared))?;
        let session = self.session()?;
        let begin = session.begin();
        let (begun, rows) = join(session.say(&begin, Effect::None), session.ask_all_within(queries)).await;
        self.note_pooler(stale_if_lost(begun))?;
        self.note_pooler(rows)
    }

    /// Statements of a transaction that are sent at once.
    pub(super) async fn then_all(&mut self, queries: &[Query]) -> Result<Vec<Vec<Row>>, CallError> {
        let may_prepare = self.may_prepare();
        for query in queries {
            let prepared = self.session()?.prepare_within(may_prepare, &query.sql, &query.bound()).await;
            self.note_pooler(prepared)?;
        }
        let rows = self.session()?.ask_all_within(queries).await;
        self.note_pooler(rows)
    }

    /// One statement of a transaction.
    pub(super) async fn then(&mut self, sql: &str, bound: &[Bound<'_>]) -> Result<Vec<Row>, CallError> {
        let may_prepare = self.may_prepare();
        let session = self.session()?;
        let prepared = session.prepare_within(may_prepare, sql, bound).await;
        self.note_pooler(prepared)?;
        let rows = self.session()?.ask_within(sql, bound, Effect::None).await;
        self.note_pooler(rows)
    }

    /// The last statement of a transaction, and its end.
    pub(super) async fn commit_with(&mut self, sql: &str, bound: &[Bound<'_>]) -> Result<Vec<Row>, CallError> {
        let may_prepare = self.may_prepare();
        let prepared = self.session()?.prepare_within(may_prepare, sql, bound).await;
        self.note_pooler(prepared)?;
        let commit = self.commit_words();
        let session = self.session()?;
        let last = session.ask_within(sql, bound, Effect::Possible);
        let (rows, committed) = join(last, session.say(&commit, Effect::Possible)).await;
        let rows = self.note_pooler(rows)?;
        committed?;
        Ok(rows)
    }

    /// Ends a transaction.
    pub(super) async fn commit(&mut self) -> Result<(), CallError> {
        let commit = self.commit_words();
        self.session()?.say(&commit, Effect::Possible).await
    }

    /// Ends a transaction without effect.
    pub(super) async fn roll_back(&mut self) -> Result<(), CallError> {
        self.session()?.say("ROLLBACK", Effect::None).await
    }

    /// A statement without values that takes as long as it takes, outside of any transaction.
    pub(super) async fn run_patiently(&mut self, sql: &str) -> Result<(), CallError> {
        self.session()?.say_patiently(sql).await
    }

    /// Several statements without values.
    pub(super) async fn run(&mut self, sql: &str) -> Result<(), CallError> {
        self.session()?.say(sql, Effect::None).await
    }

    /// Notes that sessions are shared with others, where an answer says so.
    fn note_pooler<T>(&self, answer: Result<T, CallError>) -> Result<T, CallError> {
        if matches!(answer, Err(CallError::PoolerDetected(_))) {
            self.links.shared.store(true, Ordering::Relaxed);
        }
        answer
    }
}

/// Whether a pooler refuses to open sessions with settings.
fn is_unset(error: &tokio_postgres::Error) -> bool {
    let said = error.as_db_error();
    said.is_some_and(|said| said.code().code() == "08P01" || said.message().contains("startup parameter"))
}

/// A session that was ended while it was idle says so when it is used.
fn is_ended(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code(), "57P01" | "57P02" | "57P05" | "25P03" | "08P01"))
}

fn stale_if_lost<T>(answer: Result<T, CallError>) -> Result<T, CallError> {
    answer.map_err(|fault| match fault {
        CallError::Error(error @ Error::Unavailable(_)) if is_lost(&error) => CallError::StaleConnection(error),
        fault => fault,
    })
}

const LOST: &str = "the connection to the database was lost";

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Unavailable(text) if text.starts_with(LOST))
}

pub(super) fn answered<T>(
    answer: Option<Result<T, tokio_postgres::Error>>,
    timeout: Duration,
    effect: Effect,
) -> Result<T, CallError> {
    match answer {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(error)) => {
            let broken_off = [SqlState::T_R_SERIALIZATION_FAILURE, SqlState::T_R_DEADLOCK_DETECTED];
            let is_broken_off = error.code().is_some_and(|code| broken_off.contains(code));
            if error.code().is_some_and(|code| session::SHARED.contains(&code.code())) {
                return Err(CallError::PoolerDetected(from_postgres(&error, Effect::None)));
            }
            if effect == Effect::None && is_ended(&error) {
                return Err(CallError::Error(Error::Unavailable(format!("{LOST}: {error}"))));
            }
            let is_taken = error.code() == Some(&SqlState::UNIQUE_VIOLATION);
            let error = from_postgres(&error, effect);
            Err(match (is_broken_off, is_taken) {
                (true, _) => CallError::Retryable(error),
                (_, true) => CallError::AlreadyExists(error),
                _ => CallError::Error(error),
            })
        }
        None => {
            let text = format!("the database did not answer for {}", show_duration(timeout));
            Err(CallError::Unanswered(match effect {
                Effect::Possible => Error::Unknown(text),
                Effect::None => Error::Unavailable(text),
            }))
        }
    }
}

/// Sleeps for `pause`.
pub(super) async fn rest(pause: Duration) -> Result<(), Error> {
    within(pause, std::future::pending::<()>()).await.map(drop)
}

/// The answer of `work`, or none after `timeout`.
pub(super) async fn within<T>(timeout: Duration, work: impl Future<Output = T>) -> Result<Option<T>, Error> {
    let timed = {
        let _entered = runtime()?.enter();
        tokio::time::timeout(timeout, work)
    };
    Ok(timed.await.ok())
}

/// Names the registry in an error.
pub(super) fn named(shown: &str, error: Error) -> Error {
    let name = |text: String| if text.contains(shown) { text } else { format!("`{shown}`: {text}") };
    match error {
        Error::Unavailable(text) => Error::Unavailable(name(text)),
        Error::Denied(text) => Error::Denied(name(text)),
        Error::Unsupported(text) => Error::Unsupported(name(text)),
        other => other,
    }
}

/// What an error on the way to a connection means. Nothing was asked yet.
fn from_connecting(shown: &str, error: &tokio_postgres::Error) -> Error {
    if error.as_db_error().is_some() {
        return named(shown, from_postgres(error, Effect::None));
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let failed = cause.downcast_ref::<std::io::Error>();
    let is_untrusted = failed.and_then(std::io::Error::get_ref).is_some_and(|inner| inner.is::<rustls::Error>());
    match failed.map(std::io::Error::kind) {
        // How the driver tells of a server that is not the one to be written to.
        Some(std::io::ErrorKind::PermissionDenied) if cause.to_string().contains("writes") => read_only(shown),
        _ if is_untrusted || cause.to_string().contains("TLS") => {
            Error::Denied(format!("`{shown}` cannot be talked to in private: {cause}"))
        }
        _ => Error::Unavailable(format!("`{shown}` cannot be reached: {cause}")),
    }
}

/// A server on which nothing can be decided.
pub(super) fn read_only(shown: &str) -> Error {
    Error::Denied(format!("`{shown}` can only be read: it is a replica, or set to be; name the primary"))
}

/// What an error of PostgreSQL means for a store.
fn from_postgres(error: &tokio_postgres::Error, effect: Effect) -> Error {
    let Some(said) = error.as_db_error() else {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        let text = format!("{LOST}: {}", cause.unwrap_or_else(|| error.to_string()));
        return if effect == Effect::Possible { Error::Unknown(text) } else { Error::Unavailable(text) };
    };
    let text = said.message().to_owned();
    let code = said.code().code();
    match (code.get(..2).unwrap_or_default(), code) {
        (_, "55P03") => Error::Unavailable(format!("another session holds what is to be written: {text}")),
        (_, "53300") => Error::Unavailable(format!("the server has no connection to spare: {text}")),
        (_, "25006") => Error::Denied(format!("{text}: this server can only be read")),
        (_, "42501") | ("28", _) | (_, "3D000") => Error::Denied(text),
        (_, "53100") => Error::Full(text),
        // The server goes down, or an operator ended the session: it may have done what it was asked before.
        ("57", "57P01" | "57P02" | "57P03") | ("08", _) if effect == Effect::Possible => Error::Unknown(text),
        (_, "42P01" | "3F000" | "42703" | "42883") => {
            Error::Corrupt(format!("the registry's tables are not what they should be: {text}"))
        }
        ("22" | "XX", _) => Error::Corrupt(text),
        _ => Error::Unavailable(text),
    }
}
