//! The listener: where a server listens, how many connections it accepts, which HTTP is spoken on each, and how long a
//! client may take to send its request.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{HOST, HeaderValue};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use outlive::error::Error;
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::ui::talk;

/// How many descriptors are wanted for connections, and for all else.
const DESCRIPTORS: u64 = 8_192;
/// How many connections to a socket in the file system may wait to be accepted.
const UNIX_BACKLOG: i32 = 1_024;
/// How long a client may take to shake hands, or to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// The most bytes of a head.
const HEAD_BYTES: u32 = 32 << 10;
/// The most requests at a time of a connection that carries several.
const STREAMS: u32 = 100;
/// How often a client is asked whether it is still there, where a connection carries several requests.
const PING: Duration = Duration::from_secs(30);
/// The protocols that a client chooses from when it shakes hands, the best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// How long requests may take to end when the server does.
const DRAIN: Duration = Duration::from_secs(10);

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A client at this address.
    Address(IpAddr),
    /// A process of this user, by the word of the kernel.
    User(u32),
}

/// Where a server listens.
pub struct Listener {
    socket: Socket,
    tls: Option<TlsAcceptor>,
    place: String,
}

enum Socket {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at an address or `unix:PATH`, with a certificate and its key if there are any.
    pub async fn open(listen: &str, tls: Option<(&Path, &Path)>) -> Result<Self, Error> {
        let failed = |error: io::Error| {
            Error::Invalid(format!("cannot listen on `{listen}`: {error}; {}", instead(listen, &error)))
        };
        let tls = tls.map(|(chain, key)| acceptor(chain, key)).transpose()?;
        if let Some(path) = listen.strip_prefix("unix:") {
            let listener = listen_unix(Path::new(path)).map_err(failed)?;
            return Ok(Self { socket: Socket::Unix(listener, path.into()), tls: None, place: listen.into() });
        }
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if !address.ip().is_loopback() && tls.is_none() {
            talk(
                "warning: serving without TLS on a public address: others on the network can read the traffic and the tokens\nhint: `--tls-cert` and `--tls-key` serve with TLS, and so does a proxy in front\n",
            );
        }
        let scheme = if tls.is_some() { "https" } else { "http" };
        Ok(Self { socket: Socket::Tcp(listener, address), tls, place: format!("{scheme}://{address}") })
    }

    /// Where that is, for people.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The URL that a browser of this machine opens.
    pub fn url(&self) -> Option<String> {
        match &self.socket {
            Socket::Tcp(_, address) if address.ip().is_unspecified() => {
                let scheme = self.place.split("://").next().unwrap_or("http");
                Some(format!("{scheme}://localhost:{}", address.port()))
            }
            Socket::Tcp(..) => Some(self.place.clone()),
            Socket::Unix(..) => None,
        }
    }

    /// The port, if it has one.
    pub fn port(&self) -> u16 {
        if let Socket::Tcp(_, address) = &self.socket { address.port() } else { 0 }
    }

    /// Whether the connection is encrypted or local.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Lets requests in, on so many connections at a time, until a signal says to stop; then those that are in may end.
    pub async fn serve(self, router: Router, connections: usize, open: &watch::Sender<bool>) {
        let (connections, router) = (Arc::new(Semaphore::new(connections)), TowerToHyperService::new(router));
        let graceful = GracefulShutdown::new();
        let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) else {
            return talk("error: no signal can be caught\n");
        };
        loop {
            let Ok(turn) = connections.clone().acquire_owned().await else { break };
            let accepted = tokio::select! {
                accepted = self.socket.accept() => accepted,
                _ = term.recv() => break,
                _ = int.recv() => break,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                // Out of descriptors, or gone before it was let in: neither ends the server.
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            let (router, tls, watcher) = (router.clone(), self.tls.clone(), graceful.watcher());
            tokio::spawn(async move {
                let _turn = turn;
                let (stream, is_http2) = match tls {
                    None => (stream, false),
                    Some(tls) => match tokio::time::timeout(HEAD, tls.accept(stream)).await {
                        Ok(Ok(stream)) => {
                            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(PROTOCOLS[0]);
                            (Box::new(stream) as Box<dyn Stream>, is_http2)
                        }
                        // A client that does not speak TLS gets no answer.
                        _ => return,
                    },
                };
                answer(stream, is_http2, router, peer, watcher).await;
            });
        }
        open.send_replace(false);
        drop(self);
        if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
            talk("warning: some requests did not end in time\n");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Socket::Unix(_, path) = &self.socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Answers the requests of a connection until it ends. A peer that is gone is no failure of ours.
async fn answer(
    stream: Box<dyn Stream>,
    is_http2: bool,
    router: TowerToHyperService<Router>,
    peer: Peer,
    watcher: Watcher,
) {
    let stream = TokioIo::new(stream);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        if is_http2 {
            name_host(&mut request);
        }
        router.call(request)
    });
    if is_http2 {
        let mut server = http2::Builder::new(TokioExecutor::new());
        server.timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(HEAD);
        server.max_concurrent_streams(STREAMS).max_header_list_size(HEAD_BYTES);
        let _ = watcher.watch(server.serve_connection(stream, service)).await;
    } else {
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES as usize).max_headers(64);
        let _ = watcher.watch(server.serve_connection(stream, service)).await;
    }
}

/// Names the host in a header, as HTTP/1.1 does. A header that names another stays beside it, and two are refused.
fn name_host(request: &mut Request<Incoming>) {
    let named = request.uri().authority().and_then(|named| HeaderValue::from_str(named.as_str()).ok());
    if let Some(named) = named.filter(|named| request.headers().get(HOST) != Some(named)) {
        request.headers_mut().append(HOST, named);
    }
}

/// What can be read and written like a connection.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Socket {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Peer)> {
        match self {
            Self::Tcp(listener, _) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Box::new(stream), Peer::Address(address.ip().to_canonical())))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred()?;
                Ok((Box::new(stream), Peer::User(peer.uid())))
            }
        }
    }
}

/// Has as many descriptors as may be: one for each connection, and some for what is opened to answer.
pub fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if current.is_some_and(|current| current < wanted) {
        // With fewer, fewer get in at a time.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// What to listen at where that cannot be had.
fn instead(listen: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address; `0.0.0.0` stands for all it has",
        io::ErrorKind::AddrInUse if listen.starts_with("unix:") => "--listen names another path",
        io::ErrorKind::AddrInUse => "`--listen 127.0.0.1:0` takes any port that is free",
        io::ErrorKind::PermissionDenied => "a port of 1024 or above needs no rights",
        _ => "it is written `127.0.0.1:7878` or `unix:PATH`",
    }
}

/// Listens in the file system, for this user alone. What an earlier server left there is replaced.
fn listen_unix(path: &Path) -> io::Result<UnixListener> {
    if path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens there"));
        }
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The name that is bound has the mode of the socket, so no other user can connect at any time.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, UNIX_BACKLOG)?;
    UnixListener::from_std(std::os::unix::net::UnixListener::from(socket))
}

fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor, Error> {
    let unusable = |path: &Path, why: &dyn std::fmt::Display| Error::Invalid(format!("`{}`: {why}", path.display()));
    let read = CertificateDer::pem_file_iter(chain).map_err(|error| unusable(chain, &error))?;
    let certificates: Vec<_> = read.collect::<Result<_, _>>().map_err(|error| unusable(chain, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(chain, &error))?
        .with_no_client_auth()
        .with_single_cert(certificates, secret)
        .map_err(|error| unusable(chain, &error))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    Ok(TlsAcceptor::from(Arc::new(config)))
}
