//! One connection to a server: made, proven, asked one thing at a time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::ServerAddress;
use super::token::{Token, known_by, proof};
use crate::model::id::{Entropy, SystemEntropy};
use crate::model::time::{Clock, SystemClock};

/// How long a connection may take to be made.
const CONNECTING: Duration = Duration::from_secs(3);
/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const ANSWER: usize = 256 << 20;
/// How long a connection may rest before the server may have closed it.
const REST: Duration = Duration::from_secs(5);

/// How a call failed.
pub(super) struct Failed {
    /// Nothing reached the server, so it has done nothing.
    pub(super) unsent: bool,
    pub(super) why: String,
    /// What it answered when it was to prove itself, where that was no proof.
    pub(super) refused: Option<(StatusCode, Bytes)>,
}

impl Failed {
    pub(super) fn unsent(why: impl std::fmt::Display) -> Self {
        Self { unsent: true, why: why.to_string(), refused: None }
    }

    fn sent(why: impl std::fmt::Display) -> Self {
        Self { unsent: false, why: why.to_string(), refused: None }
    }
}

/// A connection whose server is known to be ours, where that can be asked.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    used: Duration,
}

impl Connection {
    /// Connects, and has the server prove that it knows the token that it will be shown.
    pub(super) async fn open(
        address: &ServerAddress,
        token: Option<&Token>,
        tls: Option<&Arc<rustls::ClientConfig>>,
    ) -> Result<Self, Failed> {
        let connecting = async {
            let stream = TcpStream::connect((address.host(), address.port())).await.map_err(Failed::unsent)?;
            stream.set_nodelay(true).map_err(Failed::unsent)?;
            let Some(tls) = tls else { return Self::shake_hands(stream).await };
            let name = ServerName::try_from(address.host().to_owned()).map_err(Failed::unsent)?;
            let stream = TlsConnector::from(tls.clone()).connect(name, stream).await.map_err(Failed::unsent)?;
            Self::shake_hands(stream).await
        };
        let in_time = tokio::time::timeout(CONNECTING, connecting).await;
        let mut line = in_time.map_err(|_| Failed::unsent("no connection was made in time"))??;
        if let Some(token) = token.filter(|_| !address.is_secret() && address.is_loopback()) {
            line.demand_proof(address, token).await?;
        }
        Ok(line)
    }

    async fn shake_hands<S>(stream: S) -> Result<Self, Failed>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(Failed::unsent)?;
        // It ends with its sender. Its errors reach the sender.
        tokio::task::spawn_local(connection);
        Ok(Self { sender, used: SystemClock.awake() })
    }

    /// Whether it can still be asked something.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed() && SystemClock.awake().saturating_sub(self.used) < REST
    }

    async fn demand_proof(&mut self, address: &ServerAddress, token: &Token) -> Result<(), Failed> {
        let (digest, question) = (token.digest(), format!("{:032x}", SystemEntropy.draw()));
        // Only our own server is asked at the port that it listens at: any other may be reached through a tunnel.
        let port = token.is_own().then(|| address.port());
        let asked = json!({ "token": known_by(&digest), "question": question, "port": port });
        let (status, body) = self.ask(address, None, "prove", Bytes::from(asked.to_string())).await?;
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status == StatusCode::OK && said["proof"] == proof(&digest, &question, port) {
            return Ok(());
        }
        let known = if token.is_own() { "this user's server" } else { "one that knows the token" };
        // One that says that it knows no such token, or no such question, may be believed: it is shown nothing.
        let is_refusal =
            matches!(status, StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND | StatusCode::TOO_MANY_REQUESTS);
        let why = format!("the server there does not prove to be {known}, so the token was not sent");
        Err(Failed { refused: is_refusal.then_some((status, body)), ..Failed::unsent(why) })
    }

    /// Sends one call and waits for its answer.
    pub(super) async fn ask(
        &mut self,
        address: &ServerAddress,
        token: Option<&Token>,
        call: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failed> {
        let mut request = Request::builder().method(Method::POST).uri(address.path(call));
        request = request.header(HOST, address.authority()).header(CONTENT_TYPE, "application/json");
        if let Some(token) = token {
            let mut shown = HeaderValue::try_from(format!("Bearer {}", token.text())).map_err(Failed::unsent)?;
            shown.set_sensitive(true);
            request = request.header(AUTHORIZATION, shown);
        }
        let request = request.body(Full::new(body)).map_err(Failed::unsent)?;
        self.sender.ready().await.map_err(Failed::unsent)?;
        let asking = async {
            let sent = self.sender.send_request(request).await;
            let response =
                sent.map_err(|error| Failed { unsent: error.is_canceled(), ..Failed::sent(describe(&error)) })?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER).collect().await.map_err(Failed::sent)?;
            Ok((status, body.to_bytes()))
        };
        let answer =
            tokio::time::timeout(TIMEOUT, asking).await.map_err(|_| Failed::sent("it did not answer in time"))?;
        self.used = SystemClock.awake();
        answer
    }
}

/// What an error says, with its cause.
fn describe(error: &hyper::Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}
