//! The wire to a bucket: every request is counted, every answer's date is noted, and a caller learns how its own request
//! fared, which the crate above does not tell.
//!
//! A request can be made to wait with its last byte until others are as far: that is how a race is made certain.

use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{DATE, SERVER};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::sync::Barrier;

use super::client::{Client, ResponseBody, http_error};
use super::server_time::ServerTime;
use crate::util::sync::lock;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a service for credentials may take: on a host without one, there is no answer.
const METADATA_TIMEOUT: Duration = Duration::from_secs(2);

/// How long what was sent may take to be looked at.
const ARRIVING: Duration = Duration::from_millis(100);

tokio::task_local! {
    /// What the requests of this task came to.
    static FARED: RefCell<RequestOutcome>;
    /// Where this task's request waits with its last byte.
    static GATE: Arc<Gate>;
}

/// How a request fared.
#[derive(Debug, Clone, Default)]
pub(super) struct RequestOutcome {
    /// What the server answered, if it did.
    pub(super) status: Option<u16>,
    /// No connection was made: nothing can have reached the server.
    pub(super) unsent: bool,
    /// It was a request for credentials, to another server than the bucket's.
    pub(super) for_credentials: bool,
    /// Of many objects that were to be deleted, those that were not, each with a code. The crate above takes some codes
    /// for an answer to the whole.
    pub(super) refused: Vec<(String, String)>,
}

/// Does `work`, and answers with how its last request fared too.
pub(super) async fn watched<T>(work: impl Future<Output = T>) -> (T, RequestOutcome) {
    FARED.scope(RefCell::default(), async { (work.await, FARED.with(|fared| fared.borrow().clone())) }).await
}

/// Where one request waits for others.
struct Gate {
    all: Arc<Barrier>,
    is_reached: AtomicBool,
}

impl Gate {
    async fn wait(&self) {
        self.is_reached.store(true, Ordering::Relaxed);
        self.all.wait().await;
    }
}

/// Does `work`, whose request waits with its last byte until all at the gate are as far. None waits for one that never
/// comes there.
pub(super) async fn held_back<T>(all: Arc<Barrier>, work: impl Future<Output = T>) -> T {
    let gate = Arc::new(Gate { all, is_reached: AtomicBool::new(false) });
    let done = GATE.scope(gate.clone(), work).await;
    if !gate.is_reached.load(Ordering::Relaxed) {
        gate.wait().await;
    }
    done
}

/// How many requests there were of each kind.
#[derive(Debug, Default)]
pub struct Requests {
    gets: AtomicU64,
    puts: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
}

/// So many requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// For one object.
    pub gets: u64,
    /// That write one.
    pub puts: u64,
    /// For a page of names.
    pub lists: u64,
    /// That delete, one object or a thousand.
    pub deletes: u64,
}

impl Requests {
    /// How many there were so far.
    pub fn counted(&self) -> Counted {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted {
            gets: read(&self.gets),
            puts: read(&self.puts),
            lists: read(&self.lists),
            deletes: read(&self.deletes),
        }
    }

    fn count(&self, request: &HttpRequest) {
        let query = request.uri().query().unwrap_or_default();
        let is_list = query.contains("list-type=") || query.contains("comp=list") || query.contains("prefix=");
        let count = match request.method().as_str() {
            "GET" | "HEAD" if is_list => &self.lists,
            "GET" | "HEAD" => &self.gets,
            "DELETE" => &self.deletes,
            "POST" if is_of_many(request) => &self.deletes,
            _ => &self.puts,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether a request asks a metadata service or a token service for credentials.
fn is_for_credentials(request: &HttpRequest) -> bool {
    let (host, path) = (request.uri().host().unwrap_or_default(), request.uri().path());
    let is_metadata = path == "/latest/api/token" || path.starts_with("/latest/meta-data/iam/");
    host.starts_with("169.254.") || host.starts_with("sts.") && host.ends_with(".amazonaws.com") || is_metadata
}

/// Whether a request deletes many objects.
fn is_of_many(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == "POST" && query.split('&').any(|pair| pair == "delete" || pair == "delete=")
}

/// Takes out of an answer what was refused, and notes it.
async fn without_refusals(response: HttpResponse) -> Result<HttpResponse, HttpError> {
    let (parts, body) = response.into_parts();
    let text = String::from_utf8_lossy(&body.collect().await?.to_bytes()).into_owned();
    let mut pieces = text.split("<Error>");
    let mut rest = pieces.next().unwrap_or_default().to_owned();
    let mut refused = Vec::new();
    for piece in pieces {
        let (said, after) = piece.split_once("</Error>").unwrap_or((piece, ""));
        let of =
            |name: &str| said.split_once(&format!("<{name}>"))?.1.split_once(&format!("</{name}>")).map(|(of, _)| of);
        refused.push((unescaped(of("Key").unwrap_or_default()), of("Code").unwrap_or_default().to_owned()));
        rest += after;
    }
    // An empty answer is none to the crate above.
    if !refused.is_empty() {
        rest = rest.replace("</DeleteResult>", "<Deleted><Key>-</Key></Deleted></DeleteResult>");
    }
    let _ = FARED.try_with(|fared| fared.borrow_mut().refused = refused);
    Ok(HttpResponse::from_parts(parts, rest.into()))
}

/// Text as XML spells it.
fn unescaped(text: &str) -> String {
    let known = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&#34;", "\""),
        ("&amp;", "&"),
    ];
    known.iter().fold(text.to_owned(), |text, (spelt, meant)| text.replace(spelt, meant))
}

impl std::ops::Sub for Counted {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            gets: self.gets - before.gets,
            puts: self.puts - before.puts,
            lists: self.lists - before.lists,
            deletes: self.deletes - before.deletes,
        }
    }
}

/// What is seen on the wire.
pub(super) struct Wire {
    time: Arc<dyn ServerTime>,
    pub(super) requests: Requests,
    /// What the server calls itself.
    server: Mutex<Option<String>>,
    /// Any request was answered.
    answered: AtomicBool,
    /// An object was reported to be one version of several.
    versions: AtomicBool,
    /// Since when nothing was answered, if that is so.
    unanswered: Mutex<Option<Duration>>,
    /// When that last was so.
    outage: Mutex<Option<Outage>>,
}

/// A time in which the server answered nothing, or with errors of its own; as how long this machine had been up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outage {
    pub(super) began: Duration,
    pub(super) ended: Duration,
}

impl Wire {
    pub(super) fn new(time: Arc<dyn ServerTime>) -> Arc<Self> {
        Arc::new(Self {
            time,
            requests: Requests::default(),
            server: Mutex::default(),
            answered: AtomicBool::new(false),
            versions: AtomicBool::new(false),
            unanswered: Mutex::default(),
            outage: Mutex::default(),
        })
    }

    /// Whether the server has answered any request.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// What the server calls itself, once it has answered.
    pub(super) fn server(&self) -> Option<String> {
        lock(&self.server).clone()
    }

    /// Whether the bucket was seen to keep versions.
    pub(super) fn keeps_versions(&self) -> bool {
        self.versions.load(Ordering::Relaxed)
    }

    /// The last outage that was at least so long, reported once.
    pub(super) fn outage(&self, shortest: Duration) -> Option<Outage> {
        let outage = lock(&self.outage).take()?;
        (outage.ended.saturating_sub(outage.began) >= shortest).then_some(outage)
    }

    fn note_answer(&self, sent: Duration, answer: &Result<HttpResponse, HttpError>) {
        let mut unanswered = lock(&self.unanswered);
        if answer.as_ref().is_ok_and(|response| !response.status().is_server_error()) {
            if let Some(began) = unanswered.take() {
                let outage = Outage { began, ended: self.time.since_boot() };
                *lock(&self.outage) = Some(outage);
            }
        } else {
            unanswered.get_or_insert(sent);
        }
    }

    fn note(&self, sent: Duration, response: &HttpResponse) {
        self.answered.store(true, Ordering::Relaxed);
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        if let Some(date) = text(DATE) {
            self.time.heard(date, sent);
        }
        // A bucket without versions says none, or `null`.
        if response.headers().get("x-amz-version-id").is_some_and(|version| version != "null") {
            self.versions.store(true, Ordering::Relaxed);
        }
        if let Some(server) = text(SERVER) {
            *lock(&self.server) = Some(server.chars().take(128).collect());
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

/// Makes the clients of one bucket.
#[derive(Debug)]
pub(super) struct Connector(pub(super) Arc<Wire>);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let unusable = |error| object_store::Error::Generic { store: "http", source: Box::new(error) };
        let client = Client::new().map_err(unusable)?;
        Ok(HttpClient::new(WatchedClient { client, wire: self.0.clone() }))
    }
}

#[derive(Debug)]
struct WatchedClient {
    client: Client,
    wire: Arc<Wire>,
}

#[async_trait]
impl HttpService for WatchedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let for_credentials = is_for_credentials(&request);
        let timeout = if for_credentials { METADATA_TIMEOUT } else { TIMEOUT };
        if !for_credentials {
            self.wire.requests.count(&request);
        }
        let deletes = is_of_many(&request);
        let sent = self.wire.time.since_boot();
        let answer = tokio::time::timeout(timeout, self.exchange(request)).await;
        let answer = answer.unwrap_or_else(|late| Err(HttpError::new(HttpErrorKind::Timeout, late)));
        if !for_credentials {
            self.wire.note_answer(sent, &answer);
        }
        // Without a watcher there is nothing to report to.
        let _ = FARED.try_with(|fared| {
            *fared.borrow_mut() = RequestOutcome {
                status: answer.as_ref().ok().map(|response| response.status().as_u16()),
                unsent: answer.as_ref().is_err_and(|error| error.kind() == HttpErrorKind::Connect),
                for_credentials,
                refused: Vec::new(),
            }
        });
        let response = answer?;
        if for_credentials {
            // Neither its date nor its name is the bucket's.
            return Ok(response);
        }
        self.wire.note(sent, &response);
        if deletes && response.status().is_success() { without_refusals(response).await } else { Ok(response) }
    }
}

impl WatchedClient {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        // A few kilobytes at most: what is large is never written here.
        let bytes = body.collect().await?.to_bytes();
        let body = match GATE.try_with(Clone::clone) {
            Ok(gate) => HeldBack::new(bytes, gate).boxed(),
            Err(_) => Full::new(bytes).boxed(),
        };
        let answered = self.client.send(http::Request::from_parts(parts, body)).await;
        let (parts, body) = answered.map_err(http_error)?.into_parts();
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(ResponseBody::new(body, TIMEOUT))))
    }
}

type Waiting = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// A body whose last byte waits.
struct HeldBack {
    first: Option<Bytes>,
    last: Option<Bytes>,
    waiting: Waiting,
}

impl HeldBack {
    fn new(mut bytes: Bytes, gate: Arc<Gate>) -> Self {
        let last = bytes.split_off(bytes.len().saturating_sub(1));
        let wait = async move {
            gate.wait().await;
            // What has been sent is on its way: by then it has arrived.
            tokio::time::sleep(ARRIVING).await;
        };
        Self { first: Some(bytes), last: Some(last), waiting: Box::pin(wait) }
    }
}

impl Body for HeldBack {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.last.is_none() {
            return Poll::Ready(None);
        }
        match self.waiting.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(self.last.take().map(|last| Ok(Frame::data(last)))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = |part: &Option<Bytes>| part.as_ref().map_or(0, |part| part.len() as u64);
        SizeHint::with_exact(length(&self.first) + length(&self.last))
    }
}
