//! Servers that must not be trusted, F-67 and F-68: a few lines that speak as much S3 as the probe does.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use outlive::registry::Registry;
use outlive::store::object::ObjectStore;
use outlive::testing::bucket::{Bucket, KEY, url_at};

/// How a server treats the conditions of writes.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    /// It ignores them.
    Never,
    /// It looks when a request begins, and writes when it has arrived.
    Early,
    /// It looks and writes at once.
    Always,
}

type Objects = Arc<Mutex<HashMap<String, Vec<u8>>>>;

fn serve(keeps: Keeps) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let objects = Objects::default();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let objects = objects.clone();
            std::thread::spawn(move || while answer(&client, &objects, keeps).is_some() {});
        }
    });
    port
}

fn tag(bytes: &[u8]) -> String {
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    format!("\"{sum:x}\"")
}

/// Answers one request; none where the client has gone.
fn answer(mut client: &TcpStream, objects: &Objects, keeps: Keeps) -> Option<()> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let header = |name: &str| {
        let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let mut words = head.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let path = path.replace("%3D", "=").replace("%3A", ":");
    let (none_match, matches) = (header("if-none-match"), header("if-match"));
    let refuses = |objects: &HashMap<String, Vec<u8>>| {
        let found = objects.get(&path).map(|bytes| tag(bytes));
        none_match.is_some() && found.is_some() || matches.is_some() && matches != found
    };
    let early = refuses(&objects.lock().unwrap());
    let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while bytes.len() < end + length {
        let count = client.read(&mut buffer).ok().filter(|count| *count > 0)?;
        bytes.extend_from_slice(&buffer[..count]);
    }
    let body = bytes[end..end + length].to_vec();
    let mut objects = objects.lock().unwrap();
    let reply = |status: &str, headers: &str, body: &[u8]| {
        let length = body.len();
        let date = "Date: Mon, 16 Nov 2026 11:54:39 GMT\r\nServer: untrusted\r\n";
        let head = format!(
            "HTTP/1.1 {status}\r\n{date}Last-Modified: Mon, 16 Nov 2026 11:54:39 GMT\r\n{headers}Content-Length: {length}\r\n\r\n"
        );
        [head.as_bytes(), body].concat()
    };
    let answer = match method.as_str() {
        "PUT" => {
            let refused = match keeps {
                Keeps::Never => false,
                Keeps::Early => early,
                Keeps::Always => refuses(&objects),
            };
            if refused {
                reply("412 Precondition Failed", "", b"<Error><Code>PreconditionFailed</Code></Error>")
            } else {
                let tag = tag(&body);
                objects.insert(path, body);
                reply("200 OK", &format!("ETag: {tag}\r\n"), b"")
            }
        }
        "GET" if query.contains("list-type=2") => {
            let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or_default();
            let prefix = prefix.replace("%2F", "/");
            let bucket = format!("{}/", path.trim_end_matches('/'));
            let keys = objects.iter().filter_map(|(key, bytes)| Some((key.strip_prefix(&bucket)?, bytes)));
            let entry = |(key, bytes): (&str, &Vec<u8>)| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-11-16T11:54:39.000Z</LastModified><ETag>{}</ETag><Size>{}</Size></Contents>",
                    tag(bytes).replace('"', "&quot;"),
                    bytes.len()
                )
            };
            let entries: String = keys.filter(|(key, _)| key.starts_with(&prefix)).map(entry).collect();
            reply(
                "200 OK",
                "",
                format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>").as_bytes(),
            )
        }
        "GET" => match objects.get(&path) {
            Some(bytes) => reply("200 OK", &format!("ETag: {}\r\n", tag(bytes)), bytes),
            None => reply("404 Not Found", "", b"<Error><Code>NoSuchKey</Code></Error>"),
        },
        _ => reply("200 OK", "", b"<DeleteResult></DeleteResult>"),
    };
    drop(objects);
    client.write_all(&answer).ok()
}

fn refused(keeps: Keeps) -> String {
    match pollster::block_on(Registry::open(&url_at(serve(keeps), KEY, "p"))) {
        Ok(_) => "opened".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn f_67_a_server_that_ignores_conditions_is_refused() {
    insta::assert_snapshot!(refused(Keeps::Never), @"untrusted does not keep to the conditions of writes, so that two owners could both hold one run: a second object of the same name: was taken, and the first is gone; a write over an older version: was taken, and what was there is gone; a write over what is not there: was taken; what was written is listed: 4 objects of 3 are");
}

#[test]
fn f_68_a_server_that_looks_first_and_writes_then_is_refused() {
    insta::assert_snapshot!(refused(Keeps::Early), @"untrusted does not keep to the conditions of writes, so that two owners could both hold one run: writers who race to make an object: 8 of 8 were told to have won; writers who race to replace one: 8 of 8 were told to have won");
}

#[test]
fn f_68_a_server_that_does_both_at_once_is_taken() {
    assert_eq!(refused(Keeps::Always), "opened");
}

#[test]
fn l21_whoever_opens_a_new_registry_at_once_with_others_opens_the_same() {
    let url = Bucket::shared().fresh_url();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let open = || pollster::block_on(ObjectStore::open(&url.parse().unwrap())).unwrap().id();
        let threads: Vec<_> = (0..30).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0] && !id.is_empty()), "{ids:?}");
}
