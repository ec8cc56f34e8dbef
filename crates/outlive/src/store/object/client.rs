//! The HTTP client of a bucket: connections that are kept, made in time, encrypted where the address says so, and through
//! the proxy that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name.
//!
//! A larger client brings HTTP/2, redirects and decompression, which no bucket needs (ADR 0028).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http::header::{HeaderValue, USER_AGENT};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use object_store::client::{HttpError, HttpErrorKind};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tower_service::Service;

/// How long a connection may take to be made, encryption included.
const CONNECTING: Duration = Duration::from_secs(3);
/// How long a connection may rest before it is closed.
const REST: Duration = Duration::from_secs(90);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// What a request carries.
pub(super) type RequestBody = BoxBody<Bytes, std::convert::Infallible>;

/// Sends requests to one bucket, and to what issues its credentials.
#[derive(Debug, Clone)]
pub(super) struct Client(legacy::Client<InTime, RequestBody>);

impl Client {
    /// A client that trusts the certificates that this machine trusts.
    pub(super) fn new() -> Result<Self, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let proxied = Proxied { tcp, proxies: Arc::new(Matcher::from_env()) };
        let connector = InTime(HttpsConnector::from((proxied, config)));
        let mut client = legacy::Client::builder(TokioExecutor::new());
        client.pool_idle_timeout(REST).pool_timer(TokioTimer::new());
        Ok(Self(client.build(connector)))
    }

    /// Sends one request.
    pub(super) fn send(&self, mut request: http::Request<RequestBody>) -> ResponseFuture {
        let agent = HeaderValue::from_static(concat!("outlive/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().entry(USER_AGENT).or_insert(agent);
        self.0.request(request)
    }
}

/// What became of a request that was not answered.
pub(super) fn http_error(error: legacy::Error) -> HttpError {
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Interrupted };
    HttpError::new(kind, error)
}

/// Connects directly, or through the proxy of the environment.
#[derive(Debug, Clone)]
struct Proxied {
    tcp: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Service<Uri> for Proxied {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.intercept(&uri) else {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(connecting.await?) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.tcp.clone());
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        let connecting = tunnel.call(uri);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

/// Gives up a connection that takes too long to be made, which is then known to have sent nothing.
#[derive(Debug, Clone)]
struct InTime(HttpsConnector<Proxied>);

impl Service<Uri> for InTime {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Connecting<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { tokio::time::timeout(CONNECTING, connecting).await? })
    }
}

/// An answer's body that is given up where the next part of it takes too long.
pub(super) struct ResponseBody {
    body: Incoming,
    longest: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

impl ResponseBody {
    /// A body of which each part may take as long as `longest`.
    pub(super) fn new(body: Incoming, longest: Duration) -> Self {
        Self { body, longest, waiting: None }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.waiting = None;
            let interrupted = |error| HttpError::new(HttpErrorKind::Interrupted, error);
            return Poll::Ready(frame.map(|read| read.map_err(interrupted)));
        }
        let longest = self.longest;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(longest)));
        let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
        waiting.as_mut().poll(context).map(|()| Some(Err(HttpError::new(HttpErrorKind::Timeout, late()))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
