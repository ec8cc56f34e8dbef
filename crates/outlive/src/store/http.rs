//! Runs of a server: `outlive serve` shares the registry that it serves with the holders of tokens.
//!
//! The calls of the store trait are sent as they are, and the server makes them on its own store: its clock, its keys, its
//! locks, its eyes on its processes. What cannot be sent is a rule. So an update is two calls: what the selection offers,
//! with the server's time, and what the rule made of it, which takes effect only where nothing has changed and nothing was
//! heard since.

mod address;
mod connection;
mod pool;
#[doc(hidden)]
pub mod server;
mod store_impl;
mod token;
mod wire;

use std::fmt;
use std::sync::Arc;

pub use self::address::{InvalidServerAddress, ServerAddress};
use self::pool::ConnectionPool;
pub use self::token::{TOKEN_VARIABLE, Token, known_by, proof};
use self::wire::Handshake;
use super::Error;
use crate::model::policy::Lease;

/// The format of what is sent. A server that speaks a later one is not understood.
pub const FORMAT: i64 = 1;

/// A registry that a server lends.
///
/// Clones share its connections.
#[derive(Clone)]
pub struct HttpStore {
    inner: Arc<RemoteRegistry>,
}

impl fmt::Debug for HttpStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpStore").finish_non_exhaustive()
    }
}

struct RemoteRegistry {
    pool: ConnectionPool,
    hello: Handshake,
}

impl HttpStore {
    /// Asks the server at `address` for its registry, and shows it this user's token for it.
    pub async fn open(address: &ServerAddress) -> Result<Self, Error> {
        Self::open_as(address, Token::of(address)?).await
    }

    /// Opens the registry of a server with this token, or none.
    pub async fn open_as(address: &ServerAddress, token: Option<Token>) -> Result<Self, Error> {
        let pool = ConnectionPool::new(address.clone(), token)?;
        let hello: Handshake = pool.ask("hello", &()).await?;
        if hello.format > FORMAT {
            return Err(Error::Newer { what: address.to_string(), found: hello.format, known: FORMAT });
        }
        Ok(Self { inner: Arc::new(RemoteRegistry { pool, hello }) })
    }

    /// What tells the server's registry from any other.
    pub fn id(&self) -> Option<&str> {
        self.inner.hello.registry.as_deref()
    }

    /// The name that the server gives to the holder of this token; none for the server's own user.
    pub fn user(&self) -> Option<&str> {
        self.inner.hello.user.as_deref()
    }

    /// Whether the token only reads: then the signatures of runs are withheld, and it is unknown here who made one.
    pub fn reads_only(&self) -> bool {
        self.inner.hello.reads_only
    }

    /// The lease of runs that ask for none there.
    pub fn lease(&self) -> Option<Lease> {
        self.inner.hello.lease
    }
}
