//! A bucket that makes its objects up: records of dead writers by the old contract, and the shards they left.
//!
//! It keeps what is put, and counts what it is asked. Every name of a shard follows from its number, so a million of them
//! take no room. What is deleted is only counted.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outlive::store::object::Counted;
use outlive::testing::proxy::Request;

use crate::scratch::Outcome;

/// How many names an answer holds.
const PAGE: usize = 1_000;
const DATE: &str = "Mon, 16 Nov 2026 12:00:00 GMT";
/// When everything was put: long ago, for what has just come is left to the next sweep.
const PUT: &str = "Thu, 01 Jan 2026 01:00:00 GMT";

struct Bucket {
    runs: usize,
    objects: usize,
    put: Mutex<BTreeMap<String, Vec<u8>>>,
    counts: [AtomicU64; 4],
}

/// The bucket, and where it is.
pub struct Server {
    port: u16,
    bucket: Arc<Bucket>,
}

impl Server {
    /// Starts one with so many runs of so many objects each.
    pub fn start(runs: usize, objects: usize) -> Outcome<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let bucket = Arc::new(Bucket { runs, objects, put: Mutex::default(), counts: Default::default() });
        let serving = bucket.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let bucket = serving.clone();
                std::thread::spawn(move || while bucket.answer(&client).is_some() {});
            }
        });
        Ok(Self { port, bucket })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn counted(&self) -> Counted {
        let [gets, puts, lists, deletes] = self.bucket.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        Counted { gets, puts, lists, deletes }
    }
}

impl Bucket {
    fn record(&self, run: usize) -> String {
        format!("p/runs/2026-01-01T00:00:00.000000Z_run_id={run:06}_{run:032x}/run.yaml")
    }

    fn shard(&self, number: usize) -> String {
        let (run, object) = (number / self.objects, number % self.objects);
        format!("p/shards/run_id={run:06}/db={object:05}/attempt=00/data.sst")
    }

    /// The names below a prefix behind another, in order, and whether there are more.
    fn page(&self, prefix: &str, after: &str) -> (Vec<String>, bool) {
        let is_meant = |key: &String| key.starts_with(prefix) && key.as_str() > after;
        let put = self.put.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys: Vec<String> = put.keys().filter(|key| is_meant(key)).cloned().collect();
        if "p/runs/".starts_with(prefix) || prefix.starts_with("p/runs") {
            keys.extend((0..self.runs).map(|run| self.record(run)).filter(is_meant));
        }
        if prefix.starts_with("p/shards") {
            // Names sort as their numbers do: the first one behind is found without making the others up.
            let total = self.runs * self.objects;
            let (mut low, mut high) = (0, total);
            while low < high {
                let middle = (low + high) / 2;
                if self.shard(middle).as_str() > after { high = middle } else { low = middle + 1 }
            }
            keys.extend((low..total.min(low + PAGE + 1)).map(|number| self.shard(number)));
        }
        keys.sort();
        let more = keys.len() > PAGE;
        keys.truncate(PAGE);
        (keys, more)
    }

    fn body(&self, key: &str) -> Option<Vec<u8>> {
        if let Some(found) = self.put.lock().unwrap_or_else(PoisonError::into_inner).get(key) {
            return Some(found.clone());
        }
        let run = key.split_once("_run_id=")?.1.split('_').next()?;
        Some(
            format!(
                "db_path_template: db={{db_id:05d}}\nerror_message: x\nerror_type: x\nformat_version: 1\n\
                 lease_expires_at: '2026-01-01T01:00:00Z'\nmanifest_ref: null\nrun_id: '{run}'\ns3_prefix: s3://bench/p\n\
                 shard_prefix: shards\nstarted_at: '2026-01-01T00:00:00Z'\nstatus: failed\nupdated_at: '2026-01-01T01:00:00Z'\n\
                 writer_type: bench\n"
            )
            .into_bytes(),
        )
    }

    fn count(&self, kind: usize) {
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// Answers one request; none where the client has gone.
    fn answer(&self, mut client: &TcpStream) -> Option<()> {
        let Request { method, target, head, body } = Request::read(client)?;
        let header = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let key =
            unescaped(path).trim_start_matches('/').split_once('/').map_or(String::new(), |(_, key)| key.to_owned());
        let answer = match method.as_str() {
            "PUT" => {
                self.count(1);
                let mut put = self.put.lock().unwrap_or_else(PoisonError::into_inner);
                let found = put.get(&key).map(|bytes| tag(bytes));
                let (none, this) = (header("if-none-match:"), header("if-match:"));
                if none.is_some() && found.is_some() || this.is_some() && this != found {
                    reply("412 Precondition Failed", "", b"<Error><Code>PreconditionFailed</Code></Error>")
                } else {
                    let tag = tag(&body);
                    put.insert(key, body);
                    reply("200 OK", &format!("ETag: {tag}\r\n"), b"")
                }
            }
            "GET" if query.contains("list-type=2") => {
                self.count(2);
                self.list(query)
            }
            "GET" => {
                self.count(0);
                match self.body(&key) {
                    Some(bytes) => reply("200 OK", &format!("ETag: {}\r\n", tag(&bytes)), &bytes),
                    None => reply("404 Not Found", "", b"<Error><Code>NoSuchKey</Code></Error>"),
                }
            }
            _ => {
                self.count(3);
                let asked = String::from_utf8_lossy(&body).into_owned();
                let keys = asked.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
                let deleted: String = keys.map(|(key, _)| format!("<Deleted><Key>{key}</Key></Deleted>")).collect();
                reply("200 OK", "", format!("<DeleteResult>{deleted}</DeleteResult>").as_bytes())
            }
        };
        client.write_all(&answer).ok()
    }

    fn list(&self, query: &str) -> Vec<u8> {
        let said = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)).map(unescaped);
        let after = said("continuation-token=").or_else(|| said("start-after=")).unwrap_or_default();
        let (keys, more) = self.page(&said("prefix=").unwrap_or_default(), &after);
        let last = keys.last().cloned().unwrap_or_default();
        let entry = |key: &String| {
            let (tag, size) = if key.contains("/shards/") { ("1".into(), 5) } else { self.described(key) };
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T01:00:00.000Z</LastModified>\
                 <ETag>&quot;{tag}&quot;</ETag><Size>{size}</Size></Contents>"
            )
        };
        let entries: String = keys.iter().map(entry).collect();
        let next = if more { format!("<NextContinuationToken>{last}</NextContinuationToken>") } else { String::new() };
        let text = format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>{next}{entries}</ListBucketResult>");
        reply("200 OK", "", text.as_bytes())
    }

    fn described(&self, key: &str) -> (String, usize) {
        let bytes = self.body(key).unwrap_or_default();
        (tag(&bytes).trim_matches('"').to_owned(), bytes.len())
    }
}

fn tag(bytes: &[u8]) -> String {
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("\"{:x}\"", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

fn reply(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let dates = format!("Date: {DATE}\r\nLast-Modified: {PUT}\r\nServer: bench\r\n");
    [format!("HTTP/1.1 {status}\r\n{dates}{headers}Content-Length: {length}\r\n\r\n").as_bytes(), body].concat()
}

fn unescaped(text: &str) -> String {
    let mut parts = text.split('%');
    let mut said = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        said.push(char::from(byte.unwrap_or(b'%')));
        said.push_str(part.get(2..).unwrap_or_default());
    }
    said
}
