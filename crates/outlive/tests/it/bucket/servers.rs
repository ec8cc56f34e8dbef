//! Servers that must not be trusted, F-67 and F-68: a few lines that speak as much S3 as the probe does.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use outlive::registry::Registry;
use outlive::store::object::ObjectStore;
use outlive::testing::bucket::{Bucket, KEY, url_at};
use outlive::testing::proxy::{Fate, Proxy, Request, forward};

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
    client.write_all(&answer).ok()?;
    let closes = header("connection").is_some_and(|said| said.eq_ignore_ascii_case("close"));
    (!closes).then_some(())
}

fn refused(keeps: Keeps) -> String {
    match pollster::block_on(Registry::open(&url_at(serve(keeps), KEY, "p"))) {
        Ok(_) => "opened".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn f_67_a_server_that_ignores_conditions_is_refused() {
    insta::assert_snapshot!(refused(Keeps::Never), @"untrusted does not keep to the conditions of writes, so that two owners could both hold one run: a second object of the same name: was taken, and the first is gone; a write over an older version: was taken, and what was there is gone; a write over what is not there: was taken");
}

#[test]
fn f_68_a_server_that_looks_first_and_writes_then_is_refused() {
    insta::assert_snapshot!(refused(Keeps::Early), @"untrusted does not keep to the conditions of writes, so that two owners could both hold one run: writers who race to make an object: 8 of 8 got the answer that they won");
}

#[test]
fn f_68_a_server_that_does_both_at_once_is_taken() {
    assert_eq!(refused(Keeps::Always), "opened");
}

/// Whether a request is one of a race of the probe.
fn races(request: &Request) -> bool {
    request.is_conditional() && request.target.contains("race-")
}

/// What comes of a registry on a good server, where `fate` befalls those who are meant, by the race and their number in it.
fn opened_amid(fate: Fate, is_meant: fn(&str, usize) -> bool) -> (String, usize) {
    let (seen, hit) = (Mutex::new(HashMap::<String, usize>::new()), Arc::new(AtomicUsize::new(0)));
    let hits = hit.clone();
    let proxy = Proxy::new(serve(Keeps::Always), move |request| {
        if !races(request) {
            return Fate::Pass;
        }
        let mut seen = seen.lock().unwrap();
        let number = seen.entry(request.target.clone()).or_default();
        *number += 1;
        if is_meant(&request.target, *number) {
            hits.fetch_add(1, Ordering::SeqCst);
            return fate.clone();
        }
        Fate::Pass
    });
    let opened = match pollster::block_on(Registry::open(&url_at(proxy.port(), KEY, "p"))) {
        Ok(_) => "opened".into(),
        Err(error) => error.to_string(),
    };
    (opened, hit.load(Ordering::SeqCst))
}

#[test]
fn f_68_a_probe_race_with_a_lost_reply_is_repeated() {
    for fate in [Fate::Cut, Fate::LoseAnswer, Fate::Answer(503, "SlowDown"), Fate::PassAndAnswer(500, "InternalError")]
    {
        // One of the first race and two of its second try.
        let is_meant = |race: &str, number| {
            race.contains("race-create-0-0") && number == 4
                || race.contains("race-create-0-1") && [2, 5].contains(&number)
        };
        let (opened, hit) = opened_amid(fate.clone(), is_meant);
        assert_eq!((opened.as_str(), hit), ("opened", 3), "{fate:?}");
    }
}

#[test]
fn f_68_server_that_drops_racers_is_refused_as_not_proven() {
    for fate in [Fate::Cut, Fate::LoseAnswer, Fate::Answer(503, "SlowDown")] {
        let (said, hit) = opened_amid(fate.clone(), |_, number| number == 5);
        assert!(said.contains("untrusted could not be proven to keep to the conditions of writes"), "{fate:?}: {said}");
        assert!(said.contains("writers who race to make an object: 1 of 8 got no answer"), "{fate:?}: {said}");
        assert_eq!(hit, 5 * 4, "of 5 races, one was held for ever, or not again");
    }
    // Where nobody is heard at all, everybody may have won.
    let (said, _) = opened_amid(Fate::LoseAnswer, |_, _| true);
    assert!(said.contains("could not be proven") && said.contains("8 of 8 got no answer"), "{said}");
}

#[test]
fn f_68_a_server_whose_probe_race_has_no_winner_is_refused() {
    insta::assert_snapshot!(opened_amid(Fate::Answer(412, "PreconditionFailed"), |_, _| true).0, @"untrusted could not be proven to keep to the conditions of writes, without which two owners could both hold one run: writers who race to make an object: all 8 got the answer that they lost");
    insta::assert_snapshot!(opened_amid(Fate::Answer(409, "ConditionalRequestConflict"), |_, _| true).0, @"untrusted could not be proven to keep to the conditions of writes, without which two owners could both hold one run: writers who race to make an object: all 8 got the answer that they lost");
}

#[test]
fn f_68_losers_of_a_probe_race_with_a_conflict_count() {
    // The first of each race wins, whichever comes first at the server behind; so all others are told of a conflict there.
    let winner = Arc::new(Mutex::new(HashMap::<String, bool>::new()));
    let port = serve(Keeps::Always);
    let proxy = Proxy::new(port, move |request| {
        if !races(request) {
            return Fate::Pass;
        }
        let mut won = winner.lock().unwrap();
        let said = forward(request, port);
        let name = request.target.clone();
        if said.starts_with(b"HTTP/1.1 412") && won.insert(name, true).is_some() {
            return Fate::Answer(409, "ConcurrentModification");
        }
        Fate::Say(said)
    });
    pollster::block_on(Registry::open(&url_at(proxy.port(), KEY, "p"))).unwrap();
}

#[test]
fn f_71_a_conflict_that_was_carried_out_all_the_same_is_seen() {
    // Everybody is told of a conflict, and one of them has won: who, nobody knows.
    let (said, _) = opened_amid(Fate::PassAndAnswer(409, "ConditionalRequestConflict"), |_, _| true);
    assert!(said.contains("could not be proven") && said.contains("all 8 got the answer that they lost"), "{said}");
}

#[test]
fn l21_concurrent_openers_of_a_new_registry_open_one() {
    let url = Bucket::shared().fresh_url();
    let ids: Vec<String> = std::thread::scope(|scope| {
        let open = || pollster::block_on(ObjectStore::open(&url.parse().unwrap())).unwrap().id();
        let threads: Vec<_> = (0..30).map(|_| scope.spawn(open)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0] && !id.is_empty()), "{ids:?}");
}
