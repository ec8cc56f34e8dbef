//! The connections to a server: kept while they are of use, tried again where that can do no harm.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use rustls::crypto::ring;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Token;
use super::address::ServerAddress;
use super::connection::{Connection, Failed};
use super::wire::Reply;
use crate::store::{Error, io_thread};
use crate::util::backoff::Backoff;
use crate::util::sync::lock;

/// How often a call is tried that does no harm when it is made twice.
const TRIES: u32 = 3;
/// How long is waited before the first repetition; twice as long before the next.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// The most connections that rest.
const RESTING: usize = 8;

/// Connections to one server.
#[derive(Clone)]
pub(super) struct ConnectionPool {
    shared: Arc<Shared>,
}

struct Shared {
    address: ServerAddress,
    token: Option<Token>,
    tls: Option<Arc<rustls::ClientConfig>>,
    resting: Mutex<Vec<Connection>>,
}

impl ConnectionPool {
    pub(super) fn new(address: ServerAddress, token: Option<Token>) -> Result<Self, Error> {
        let tls = address.is_secret().then(tls).transpose()?;
        Ok(Self { shared: Arc::new(Shared { address, token, tls, resting: Mutex::default() }) })
    }

    /// Makes a call that changes nothing.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        call: &'static str,
        input: &impl Serialize,
    ) -> Result<T, Error> {
        self.call(call, input, Idempotency::ReadOnly).await
    }

    /// Makes a call that may as well be made twice.
    pub(super) async fn repeat<T: DeserializeOwned>(
        &self,
        call: &'static str,
        input: &impl Serialize,
    ) -> Result<T, Error> {
        self.call(call, input, Idempotency::Idempotent).await
    }

    /// Makes a call at most once.
    pub(super) async fn change<T: DeserializeOwned>(
        &self,
        call: &'static str,
        input: &impl Serialize,
    ) -> Result<T, Error> {
        self.call(call, input, Idempotency::AtMostOnce).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        call: &'static str,
        input: &impl Serialize,
        harm: Idempotency,
    ) -> Result<T, Error> {
        let body = serde_json::to_vec(input).map_err(|error| Error::Corrupt(error.to_string()))?;
        let (shared, body) = (self.shared.clone(), Bytes::from(body));
        let answer = io_thread::spawn(move || async move { shared.call(call, body, harm).await }).await?;
        match serde_json::from_slice::<Reply<T>>(&answer) {
            Ok(Reply::Done(done)) => Ok(done),
            Ok(Reply::Failed(error)) => Err(error),
            Err(error) => {
                let why = format!("what {} answered cannot be understood: {error}", self.shared.address);
                Err(if harm == Idempotency::ReadOnly { Error::Unsupported(why) } else { Error::Unknown(why) })
            }
        }
    }
}

/// Whether a call may be sent a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idempotency {
    /// The call changes nothing.
    ReadOnly,
    /// The call changes something; sending it again changes nothing more.
    Idempotent,
    /// The call may be sent again only where it is known to have had no effect.
    AtMostOnce,
}

impl Idempotency {
    /// The error of a call that may have been made.
    fn of(self, why: String) -> Error {
        if self == Self::ReadOnly { Error::Unavailable(why) } else { Error::Unknown(why) }
    }
}

impl Shared {
    async fn call(&self, call: &str, body: Bytes, harm: Idempotency) -> Result<Bytes, Error> {
        let (mut backoff, mut sent) = (PAUSES, false);
        for tried in 1..=TRIES {
            let mut throttled = false;
            let tried_once = self.try_once(call, body.clone()).await;
            let answered = tried_once.or_else(|mut failed| failed.refused.take().ok_or(failed));
            let failed = match answered {
                Ok((StatusCode::OK, answer)) => return Ok(answer),
                // It says when it has too much to do, and has done nothing then.
                Ok((StatusCode::TOO_MANY_REQUESTS, answer)) => {
                    throttled = true;
                    Failed::unsent(message(&answer).unwrap_or_default())
                }
                Ok((status, answer)) => return Err(self.refused(status, &answer, harm)),
                Err(failed) => failed,
            };
            sent |= !failed.unsent;
            if tried < TRIES && (harm != Idempotency::AtMostOnce || failed.unsent) {
                tokio::time::sleep(backoff.pause()).await;
                continue;
            }
            let why = format!("the server at {} cannot be asked: {}", self.address, failed.why);
            return Err(match (sent, throttled) {
                (true, _) => harm.of(why),
                (false, true) => Error::Throttled(why),
                (false, false) => Error::Unavailable(why),
            });
        }
        Err(Error::Unavailable(format!("the server at {} was not asked", self.address)))
    }

    async fn try_once(&self, call: &str, body: Bytes) -> Result<(StatusCode, Bytes), Failed> {
        let resting = || lock(&self.resting);
        let kept = {
            let mut resting = resting();
            resting.retain(Connection::is_open);
            resting.pop()
        };
        let mut line = match kept {
            Some(line) => line,
            None => Connection::open(&self.address, self.token.as_ref(), self.tls.as_ref()).await?,
        };
        let answer = line.ask(&self.address, self.token.as_ref(), call, body).await?;
        let mut resting = resting();
        if resting.len() < RESTING {
            resting.push(line);
        }
        Ok(answer)
    }

    /// What an answer that is none means.
    fn refused(&self, status: StatusCode, answer: &Bytes, harm: Idempotency) -> Error {
        let address = &self.address;
        let says = message(answer).map(|said| format!(": {said}")).unwrap_or_default();
        match status {
            StatusCode::UNAUTHORIZED if self.token.is_none() => {
                Error::Unauthorised(format!("the server at {address} asks for a token, and there is none"))
            }
            StatusCode::UNAUTHORIZED => Error::Unauthorised(format!("the server at {address} does not know the token")),
            StatusCode::FORBIDDEN => Error::Forbidden(format!("the server at {address} refuses{says}")),
            StatusCode::NOT_FOUND => Error::Unsupported(format!(
                "the server at {address} does not serve a registry: it is not outlive, or an older version"
            )),
            StatusCode::BAD_REQUEST | StatusCode::METHOD_NOT_ALLOWED => {
                Error::Unsupported(format!("the server at {address} does not understand what it is asked{says}"))
            }
            _ => harm.of(format!("the server at {address} answered {}{says}", status.as_u16())),
        }
    }
}

fn message(answer: &Bytes) -> Option<String> {
    let said: Value = serde_json::from_slice(answer).ok()?;
    Some(said["error"]["message"].as_str()?.to_owned())
}

/// Encrypted connections, to servers whose certificate this machine trusts.
fn tls() -> Result<Arc<rustls::ClientConfig>, Error> {
    let unusable = |why: &dyn std::fmt::Display| Error::Unsupported(format!("there can be no TLS: {why}"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(unusable(&"this machine has no trusted certificates; SSL_CERT_FILE names a file of them"));
    }
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
