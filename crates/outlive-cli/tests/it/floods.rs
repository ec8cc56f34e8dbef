//! Those who send a server too much, take too long over it, or send what may be read as more than it is.

use std::io::{Read, Write};

use super::sandbox::{Sandbox, until};
use super::served::{Reply, Served};
use super::serving::{code, read_until, token_of};

#[test]
fn s_20_bodies_heads_and_patience_have_an_end() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let token = format!("Bearer {}", served.token);
    let headers = [("Authorization", &*token), ("Content-Type", "application/json")];
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(2 << 20));
    let refused = served.request("POST /v1/ps", &headers, &long);
    assert_eq!(code(&refused), (400, "invalid".into()));
    assert!(refused.body.contains("longer than 1048576 bytes"), "{}", refused.body);
    let name = "x".repeat(64 << 10);
    assert!([0, 400, 431].contains(&served.request("GET /v1/ps", &[("X-Long", &name)], "").status));
    let many: Vec<(String, String)> = (0..80).map(|index| (format!("X-{index}"), "x".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert!([0, 400, 431].contains(&served.request("GET /v1/ps", &many, "").status));
    // Whoever says half of what they want is not waited for, and keeps nobody out.
    let mut half = served.connect();
    let head = format!("Host: {}\r\nAuthorization: {token}\r\nContent-Type: application/json", served.address);
    write!(half, "POST /v1/ps HTTP/1.1\r\n{head}\r\nContent-Length: 100\r\n\r\n{{").unwrap();
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = served.connect();
        stream.write_all(b"GET /v1/ps HTTP/1.1\r\nHost: local").unwrap();
        slow.push(stream);
    }
    assert_eq!(served.get("/v1/ps").status, 200);
    let mut rest = Vec::new();
    let ended = slow[0].read_to_end(&mut rest);
    let is_waited_for = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!is_waited_for && !String::from_utf8_lossy(&rest).contains("200 OK"));
    read_until(&mut half, "the body did not come in time");
}

#[test]
fn s_20_only_so_many_follow_runs_at_a_time() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let served = Served::start(&sandbox, &[]);
    let follow = || {
        let mut stream = served.connect();
        let head = format!("Host: {}\r\nAuthorization: Bearer {}", served.address, served.token);
        write!(stream, "GET /v1/follow?run=busy HTTP/1.1\r\n{head}\r\n\r\n").unwrap();
        let answer = read_until(&mut stream, "\r\n\r\n");
        (stream, answer)
    };
    let all: Vec<(std::net::TcpStream, String)> = (0..65).map(|_| follow()).collect();
    assert!(all[..64].iter().all(|(_, answer)| answer.starts_with("HTTP/1.1 200")));
    assert!(all[64].1.starts_with("HTTP/1.1 429"), "{}", all[64].1);
    // Others are answered meanwhile.
    assert_eq!(served.get("/v1/ps").status, 200);
}

#[test]
fn s_20_listeners_are_limited_and_a_closed_one_makes_room() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--limit", "listeners=2"]);
    let listen = || {
        let mut stream = served.listen("/v1/changes");
        let answer = read_until(&mut stream, "\r\n\r\n");
        (stream, answer)
    };
    let mut all: Vec<(std::net::TcpStream, String)> = (0..3).map(|_| listen()).collect();
    assert!(all[..2].iter().all(|(_, answer)| answer.starts_with("HTTP/1.1 200")), "{all:?}");
    assert!(all[2].1.starts_with("HTTP/1.1 429"), "{}", all[2].1);
    assert_eq!(served.get("/v1/ps").status, 200);
    all.clear();
    until("there to be room", || listen().1.starts_with("HTTP/1.1 200"));
}

#[test]
fn s_20_connections_are_limited_and_the_next_follows_a_leaver() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--limit", "connections=2"]);
    let first = served.listen("/v1/changes");
    let mut second = served.connect();
    let ask = |stream: &mut std::net::TcpStream| {
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", served.address).unwrap();
    };
    ask(&mut second);
    read_until(&mut second, "ok\n");
    let mut third = served.connect();
    ask(&mut third);
    // Whoever is in is answered time and again, and whoever is not, is not.
    for _ in 0..50 {
        ask(&mut second);
        read_until(&mut second, "ok\n");
    }
    third.set_nonblocking(true).unwrap();
    let heard = third.read(&mut [0; 64]);
    assert!(heard.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "{heard:?}");
    third.set_nonblocking(false).unwrap();
    drop(first);
    read_until(&mut third, "ok\n");
}

#[test]
fn s_20_rate_limits_one_caller_on_every_surface_and_no_other() {
    let sandbox = Sandbox::new();
    let mut served = Served::start(&sandbox, &["--limit", "burst=3", "--limit", "rate=0"]);
    let answers: Vec<u16> = (0..4).map(|_| served.get("/v1/ps").status).collect();
    assert_eq!(answers, [200, 200, 200, 429]);
    for path in ["/v1/ps", "/v1/changes", "/v1/openapi.json", "/metrics", "/mcp", "/v1/nothing"] {
        assert_eq!(code(&served.get(path)), (429, "throttled".into()), "{path}");
    }
    assert_eq!(served.post("/v1/store/hello", &serde_json::json!({})).status, 429);
    served.token = token_of(&sandbox, "ada", "read");
    assert_eq!(served.get("/v1/ps").status, 200, "somebody else's requests were counted");
}

/// What a proxy before us takes for one request is one to us too, or none; and who asks is not what a proxy says.
#[test]
fn s_21_smuggled_requests_and_proxy_headers_are_refused() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let head = format!("Host: {}\r\nAuthorization: Bearer {}", served.address, served.token);
    let hidden = format!("GET /v1/openapi.json HTTP/1.1\r\n{head}\r\n\r\n");
    let length = hidden.len();
    for (framing, body) in [
        (format!("Content-Length: {}\r\nTransfer-Encoding: chunked", 5 + length), "0\r\n\r\n"),
        (format!("Transfer-Encoding: chunked\r\nContent-Length: {}", 5 + length), "0\r\n\r\n"),
        (format!("Content-Length: 0\r\nContent-Length: {length}"), ""),
        (format!("Content-Length: 0, {length}"), ""),
        ("Content-Length: +0".into(), ""),
        ("Content-Length : 0".into(), ""),
        ("Content-Length: 0x0".into(), ""),
        ("Transfer-Encoding: xchunked".into(), "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity".into(), "0\r\n\r\n"),
        ("Transfer-Encoding : chunked".into(), "0\r\n\r\n"),
        ("X: y\r\n Transfer-Encoding: chunked".into(), "0\r\n\r\n"),
        ("Transfer-Encoding: chunked".into(), "0x0\r\n\r\n"),
        ("Transfer-Encoding: chunked".into(), "-0\r\n\r\n"),
        ("Transfer-Encoding: chunked".into(), "0\n\n"),
    ] {
        let request = format!("POST /v1/ps HTTP/1.1\r\n{head}\r\n{framing}\r\n\r\n{body}{hidden}");
        let answer = served.send(request.as_bytes());
        let told = format!("{}{}", answer.head, answer.body);
        assert!(!told.contains("\"openapi\""), "{framing:?} {body:?}: {told}");
        assert!(told.matches("HTTP/1.1 ").count() <= 1, "{framing:?} {body:?}: {told}");
    }
    // An address that somebody names is not theirs: who guesses is told by where they are.
    let wrong = format!("Bearer {:064}", 0);
    let guess = |number: usize| {
        let (from, forwarded) = (format!("203.0.113.{number}"), format!("for=203.0.113.{number}"));
        let headers = [("Authorization", &*wrong), ("X-Forwarded-For", &from), ("Forwarded", &forwarded)];
        served.request("GET /v1/ps", &[&headers[..], &[("X-Real-IP", &from)]].concat(), "").status
    };
    let answers: Vec<u16> = (1..=40).map(guess).collect();
    assert_eq!(answers[39], 429, "an address was believed: {answers:?}");
    // Nor is a name, or a scheme.
    let token = format!("Bearer {}", served.token);
    for (name, value) in [("X-Forwarded-Host", "localhost"), ("Forwarded", "host=localhost")] {
        let headers = [("Authorization", &*token), ("Host", "evil.test"), (name, value)];
        assert_eq!(served.request("GET /v1/ps", &headers, "").status, 403, "{name}");
    }
    let headers = [("Authorization", &*token), ("Origin", "https://evil.test"), ("X-Forwarded-Host", "evil.test")];
    assert_eq!(served.request("GET /v1/ps", &headers, "").status, 403);
}

#[test]
fn s_17_s_20_guessing_caller_is_throttled_alone() {
    let sandbox = Sandbox::new();
    let mut served = Served::start(&sandbox, &[]);
    let key = served.link.split("#key=").nth(1).unwrap().to_owned();
    let begin = |key: &str| {
        let body = serde_json::json!({ "key": key }).to_string();
        served.request("POST /session", &[("Content-Type", "application/json")], &body)
    };
    let cookie = |reply: &Reply| reply.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let ps = |header: (&str, &str)| served.request("GET /v1/ps", &[header], "").status;
    let first = cookie(&begin(&key));
    let name = first.split('=').next().unwrap();
    // All users of this machine have one address.
    let guesses: Vec<u16> = (0..40).map(|guess| ps(("Cookie", &format!("{name}={guess:064}")))).collect();
    assert_eq!((guesses[0], guesses[39]), (401, 429), "{guesses:?}");
    assert!(guesses.iter().filter(|status| **status == 401).count() <= 20, "{guesses:?}");
    assert_eq!(ps(("Authorization", &format!("Bearer {:064}", 0))), 429);
    assert_eq!(begin("guess").status, 429);
    // Its own user's token, the link and a token for somebody else: none was shown before.
    for token in [served.token.clone(), token_of(&sandbox, "ada", "read")] {
        assert_eq!(ps(("Authorization", &format!("Bearer {token}"))), 200);
    }
    // The link was followed; a browser that is signed in makes another.
    let made =
        served.request("POST /session/link", &[("Cookie", &first), ("Content-Type", "application/json")], "{}").json();
    let link = made["link"].as_str().unwrap().split("#key=").nth(1).unwrap().to_owned();
    for cookie in [first, cookie(&begin(&link))] {
        assert_eq!(ps(("Cookie", &cookie)), 200);
    }
    assert_eq!([begin(&key).status, begin(&link).status], [429, 429], "a link is good once");
    served.token = format!("{:064}", 0);
    assert_eq!(served.get("/v1/ps").status, 429, "they are no longer told to stop");
}
