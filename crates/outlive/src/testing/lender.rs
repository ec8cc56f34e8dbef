//! A server that serves a store to every client, for tests of what is between the two.

#![allow(clippy::unwrap_used, reason = "a test without its server has failed")]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use super::proxy::Request;
use crate::store::Store;
use crate::store::http::ServerAddress;
use crate::store::http::server::{ServeContext, answer};

/// A server on a port of the loopback. It lends for as long as the process lives.
pub struct Lender {
    port: u16,
}

impl Lender {
    /// Lends a store.
    pub fn of(store: Arc<dyn Store>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let store = store.clone();
                std::thread::spawn(move || while serve(&client, &*store).is_some() {});
            }
        });
        Self { port }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it is.
    pub fn address(&self) -> ServerAddress {
        format!("http://127.0.0.1:{}", self.port).parse().unwrap()
    }
}

fn serve(mut client: &TcpStream, store: &dyn Store) -> Option<()> {
    let request = Request::read(client)?;
    let call = request.target.strip_prefix("/v1/store/")?;
    let answered = pollster::block_on(answer(store, &ServeContext::default(), call, &request.body));
    let (status, body) = match answered {
        Ok(answered) => ("200 OK", answered.body),
        Err(error) => ("400 Bad Request", error.to_string().into_bytes()),
    };
    let is_last = request.head.to_ascii_lowercase().contains("\r\nconnection: close");
    let close = if is_last { "connection: close\r\n" } else { "" };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{close}\r\n", body.len());
    client.write_all(&[head.as_bytes(), &body].concat()).ok().filter(|()| !is_last)
}
