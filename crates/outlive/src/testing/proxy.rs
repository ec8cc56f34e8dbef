//! A proxy between a client and an HTTP server of the loopback, which passes requests on, or does not.
//!
//! Each request is asked for once it has arrived whole: the maker of the proxy says what becomes of it. A connection
//! serves one request, so that no fault touches another.

#![allow(clippy::unwrap_used, reason = "a test without its proxy has failed")]

use crate::util::sync::lock;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Request {
    /// `PUT`, `GET`…
    pub method: String,
    /// The path, and what is asked behind it.
    pub target: String,
    /// The head, as text.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// The next one that a client sends, whole; none where it has gone.
    pub fn read(mut client: &TcpStream) -> Option<Self> {
        client.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
        let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
        let end = loop {
            if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&buffer[..count]);
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:").map(str::to_owned));
        let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        while bytes.len() < end + length {
            let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&buffer[..count]);
        }
        let mut words = head.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        Some(Self { method, target, body: bytes[end..end + length].to_vec(), head })
    }

    /// Whether it writes an object on a condition.
    pub fn is_conditional(&self) -> bool {
        let head = self.head.to_ascii_lowercase();
        self.method == "PUT" && (head.contains("\r\nif-match:") || head.contains("\r\nif-none-match:"))
    }
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Fate {
    /// It is passed on, and the answer too.
    Pass,
    /// The connection is cut before the server has seen it.
    Cut,
    /// It is passed on; the answer is not.
    LoseAnswer,
    /// It is answered here with that status and code, and not passed on.
    Answer(u16, &'static str),
    /// It is answered here with these bytes, and not passed on.
    Say(Vec<u8>),
    /// It is passed on, and answered here as if it had not been.
    PassAndAnswer(u16, &'static str),
    /// The connection is cut at once, and the request passed on when the gate opens.
    Late(Arc<Gate>),
    /// It is passed on when the gate opens, with its answer.
    Hold(Arc<Gate>),
}

/// A gate that opens once.
#[derive(Debug, Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    /// How many came through.
    passed: Mutex<usize>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lets everybody through, now and later.
    pub fn open(&self) {
        *lock(&self.open) = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let open = lock(&self.open);
        drop(self.opened.wait_while(open, |open| !*open));
    }

    fn pass(&self) {
        *lock(&self.passed) += 1;
        self.opened.notify_all();
    }

    /// Waits until that many requests came through and were answered.
    pub fn wait_passed(&self, count: usize) {
        let passed = lock(&self.passed);
        drop(self.opened.wait_while(passed, |passed| *passed < count));
    }
}

type Decide = dyn Fn(&Request) -> Fate + Send + Sync;

/// A running proxy. It ends with this value.
pub struct Proxy {
    port: u16,
    down: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy to a port of the loopback.
    pub fn new(to: u16, decide: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (down, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_down, is_over, decide): (_, _, Arc<Decide>) = (down.clone(), over.clone(), Arc::new(decide));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                if is_down.load(Ordering::SeqCst) {
                    continue;
                }
                let decide = decide.clone();
                std::thread::spawn(move || serve(client, to, &*decide));
            }
        });
        Self { port, down, over }
    }

    /// Its port on the loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts every connection from now on, or lets them through again.
    pub fn cut_off(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // The thread that listens looks when a client connects.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(mut client: TcpStream, to: u16, decide: &Decide) {
    let Some(request) = Request::read(&client) else { return };
    match decide(&request) {
        Fate::Pass => drop(client.write_all(&forward(&request, to))),
        Fate::Cut => drop(client.shutdown(Shutdown::Both)),
        Fate::LoseAnswer => {
            forward(&request, to);
            drop(client.shutdown(Shutdown::Both));
        }
        Fate::Answer(status, code) => drop(client.write_all(&answer(status, code))),
        Fate::Say(bytes) => drop(client.write_all(&bytes)),
        Fate::PassAndAnswer(status, code) => {
            forward(&request, to);
            drop(client.write_all(&answer(status, code)));
        }
        Fate::Late(gate) => {
            drop(client.shutdown(Shutdown::Both));
            gate.wait();
            forward(&request, to);
            gate.pass();
        }
        Fate::Hold(gate) => {
            gate.wait();
            drop(client.write_all(&forward(&request, to)));
            gate.pass();
        }
    }
}

fn answer(status: u16, code: &str) -> Vec<u8> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>");
    let length = body.len();
    format!("HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// A whole answer that bears an XML document.
pub fn document(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// Passes a request on to a port of the loopback, and answers with what came back.
pub fn forward(request: &Request, to: u16) -> Vec<u8> {
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)) else { return Vec::new() };
    let head = request.head.trim_end();
    let mut bytes = format!("{head}\r\nConnection: close\r\n\r\n").into_bytes();
    bytes.extend_from_slice(&request.body);
    let mut answer = Vec::new();
    if server.write_all(&bytes).is_ok() {
        // What came before a failure is passed on as far as it came.
        let _ = server.read_to_end(&mut answer);
    }
    answer
}
