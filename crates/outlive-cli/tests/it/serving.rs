//! A server among strangers: other sites, other users, other people's names.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, is_root, signal_pid, until};
use super::served::{Agent, Reply, Served};

pub(crate) fn code(reply: &Reply) -> (u16, String) {
    (reply.status, reply.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn server_without_its_port_names_a_free_one() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let path = format!("unix:{}", sandbox.path().join("no/such/directory/socket").display());
    for (listen, instead) in [
        (&*served.address, "`--listen 127.0.0.1:0` takes any port that is free"),
        ("nonsense", "it is written `127.0.0.1:7878` or `unix:PATH`"),
        ("127.0.0.1:99999", "it is written `127.0.0.1:7878` or `unix:PATH`"),
        (&path, "it is written `127.0.0.1:7878` or `unix:PATH`"),
    ] {
        let refused = sandbox.outlive(["serve", "--listen", listen]).fails_with(2);
        assert!(refused.contains(instead), "{refused}");
    }
}

#[test]
fn s_06_ids_that_are_paths_name_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    let served = Served::start(&sandbox, &[]);
    for id in [
        "../../etc/passwd",
        "..%2f..%2fetc",
        "%2e%2e/",
        "a\u{0}b",
        "..\\..\\x",
        "CON",
        &"x".repeat(5_000),
        "",
        "/",
        ".",
    ] {
        for operation in ["show", "why", "output", "queue/show"] {
            let refused = served.post(&format!("/v1/{operation}"), &json!({ "run": id }));
            assert!([400, 404].contains(&refused.status), "{operation} {id:?}: {}", refused.body);
        }
    }
    for path in [
        "/v1/../../etc/passwd",
        "/v1/%2e%2e/%2e%2e/etc/passwd",
        "/assets/../../Cargo.toml",
        "/assets/%2e%2e/app.js",
        "//etc/passwd",
        "/v1/",
        "/v1/ps/",
    ] {
        let refused = served.get(path);
        assert_eq!(refused.status, 404, "{path}: {}", refused.body);
    }
}

#[test]
fn u04_s_13_s_22_foreign_host_name_is_refused() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--host", "runs.example.org"]);
    let port = served.address.rsplit(':').next().unwrap().to_owned();
    let token = format!("Bearer {}", served.token);
    for path in ["/", "/healthz", "/v1/ps", "/mcp", "/metrics", "/nothing"] {
        for host in ["evil.test", &format!("evil.test:{port}"), "localhost.evil.test", "127.0.0.1.evil.test", ""] {
            let refused = served.request(&format!("GET {path}"), &[("Host", host), ("Authorization", &token)], "");
            assert_eq!(code(&refused), (403, "forbidden".into()), "{path} {host}");
        }
    }
    for host in [
        "localhost",
        &format!("localhost:{port}"),
        &served.address,
        "[::1]:9",
        "runs.example.org",
        "RUNS.example.org:443",
    ] {
        assert_eq!(
            served.request("GET /v1/ps", &[("Host", host), ("Authorization", &token)], "").status,
            200,
            "{host}"
        );
    }
}

#[test]
fn u04_s_14_s_15_s_26_requests_of_another_site_are_refused() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let served = Served::start(&sandbox, &[]);
    let token = format!("Bearer {}", served.token);
    let own = format!("http://{}", served.address);
    let cancel = json!({ "runs": ["busy"] }).to_string();
    let foreign: [&[(&str, &str)]; 6] = [
        &[("Origin", "https://evil.test")],
        &[("Origin", "null")],
        &[("Origin", "http://127.0.0.1:1")],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
        &[("Origin", &own), ("Sec-Fetch-Site", "cross-site")],
    ];
    for headers in foreign {
        for line in [
            "POST /v1/cancel",
            "GET /v1/changes",
            "GET /v1/follow?run=busy",
            "POST /session",
            "POST /mcp",
            "GET /v1/ps",
        ] {
            let all = [headers, &[("Authorization", &token), ("Content-Type", "application/json")]].concat();
            let body = if line.starts_with("POST") { cancel.as_str() } else { "" };
            let refused = served.request(line, &all, body);
            assert_eq!(code(&refused), (403, "forbidden".into()), "{line} {headers:?}");
        }
    }
    // A form can send no JSON.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let headers = [("Authorization", &*token), ("Content-Type", kind), ("Origin", &own)];
        let refused = served.request("POST /v1/cancel", &headers, &cancel);
        assert_eq!(code(&refused), (400, "invalid".into()), "{kind}");
    }
    // Nor does a picture: what is asked for by its address alone changes nothing.
    for path in ["/v1/cancel?runs=busy", "/v1/archive?runs=busy", "/v1/queue/add?argv=true"] {
        assert_eq!(served.get(path).status, 405, "{path}");
    }
    assert_eq!(sandbox.show("busy")["cancel_requested_at"], Value::Null);
    // A token that somebody else gave out is none of ours, at /mcp as elsewhere.
    for path in ["POST /mcp", "POST /v1/ps"] {
        let theirs = [("Authorization", "Bearer eyJhbGciOiJub25lIn0.e30."), ("Content-Type", "application/json")];
        assert_eq!(code(&served.request(path, &theirs, "{}")), (401, "unauthorised".into()), "{path}");
    }
    let headers = [
        ("Authorization", &*token),
        ("Content-Type", "application/json"),
        ("Origin", &own),
        ("Sec-Fetch-Site", "same-origin"),
    ];
    assert_eq!(served.request("POST /v1/cancel", &headers, &cancel).status, 200);
}

#[test]
fn s_09_s_10_s_19_page_is_not_framed_and_executes_own_files() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    for path in ["/", "/assets/app.js", "/v1/ps", "/nothing", "/healthz"] {
        let reply = served.get(path);
        let policy = reply.header("content-security-policy").unwrap_or_default().to_owned();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            // Files are asked for again with their entity tag; nothing that runs say is kept.
            ("cache-control", if path == "/" || path.starts_with("/assets") { "no-cache" } else { "no-store" }),
        ] {
            assert_eq!(reply.header(name), Some(value), "{path}: {name}");
        }
    }
    // No script stands in the page itself, and no markup is made of text.
    let page = served.get("/").body;
    assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick="), "{page}");
    let loaded = page.split("src=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let (mut files, mut seen) = (vec![loaded.to_owned(), "/assets/net/live.js".into()], BTreeSet::new());
    while let Some(file) = files.pop().filter(|file| seen.insert(file.clone())) {
        let script = served.get(&file).body;
        assert!(script.starts_with("// @ts-check"), "{file}: {script}");
        let directory = file.rsplit_once('/').unwrap().0;
        for imported in script.split("from \"").skip(1).filter_map(|rest| rest.split_once("\";")).map(|(name, _)| name)
        {
            let parent = directory.rsplit_once('/').unwrap().0;
            files.push(match imported.strip_prefix("../") {
                Some(name) => format!("{parent}/{name}"),
                None => format!("{directory}/{}", imported.trim_start_matches("./")),
            });
        }
        files.retain(|file| !seen.contains(file));
        for way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "javascript:"]
        {
            assert!(!script.contains(way), "{file} uses {way}");
        }
        // The view sets links and refuses those that do not lead to a page of ours. The icon and a download are set elsewhere.
        let sets = [".href =", "setAttribute(\"href\""].iter().any(|way| script.contains(way));
        let may = ["/assets/app.js", "/assets/pages/log.js"].contains(&file.as_str());
        assert!(!sets || may, "{file} sets links");
        assert!(!script.contains("src:") && !script.contains("location ="), "{file} leads elsewhere");
    }
    assert!(seen.len() > 25 && seen.contains("/assets/view/view.js"), "{seen:?}");
    assert!(served.get("/assets/view/view.js").body.contains(r##"startsWith("#/")"##));
}

#[test]
fn u04_s_16_s_17_local_caller_needs_the_owners_token() {
    let sandbox = Sandbox::new();
    let mut served = Served::start(&sandbox, &[]);
    assert!(served.address.starts_with("127.0.0.1:"), "{}", served.address);
    for path in ["/v1/ps", "/v1/openapi.json", "/v1/changes", "/v1/follow?run=x", "/metrics", "/mcp"] {
        let refused = served.request(&format!("GET {path}"), &[], "");
        assert_eq!(code(&refused), (401, "unauthorised".into()), "{path}");
    }
    let mode = |name: &str| sandbox.home().join(name).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("token"), mode("")), (0o600, 0o700));
    // The key of the link is no token, and is not in what the server was called with.
    let key = served.link.split("#key=").nth(1).unwrap().to_owned();
    let words = std::fs::read(format!("/proc/{}/cmdline", served.child.id())).unwrap();
    assert!(!String::from_utf8_lossy(&words).contains(&key));
    let own = std::mem::replace(&mut served.token, key.clone());
    assert_eq!(code(&served.get("/v1/ps")), (401, "unauthorised".into()));
    // It is exchanged for a cookie that no script reads and no other site sends.
    let headers = [("Content-Type", "application/json")];
    let begun = served.request("POST /session", &headers, &json!({ "key": key }).to_string());
    let cookie = begun.header("set-cookie").unwrap().to_owned();
    // Without TLS a browser would not send back what is `Secure`.
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(served.request("GET /v1/ps", &[("Cookie", cookie)], "").status, 200);
    assert_eq!(served.request("GET /v1/ps", &[("Cookie", &cookie[..cookie.len() - 1])], "").status, 401);
    served.token = own;
    assert_eq!(served.get("/v1/ps").status, 200);
}

#[test]
fn s_17_browser_is_opened_without_the_key_in_its_arguments() {
    let sandbox = Sandbox::new();
    let (bin, called) = (sandbox.path().join("bin"), sandbox.path().join("called"));
    std::fs::create_dir(&bin).unwrap();
    let opener = format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > {0}.new; mv {0}.new {0}\n", called.display());
    std::fs::write(bin.join("xdg-open"), opener).unwrap();
    sandbox.command("chmod", ["+x", bin.join("xdg-open").to_str().unwrap()]).succeeds();
    let mut command = sandbox.outlive(["serve", "--json", "--listen", "127.0.0.1:0", "--open"]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let mut served = Served::begin(&mut command, &sandbox);
    let key = served.link.split("#key=").nth(1).unwrap().to_owned();
    until("the browser to be called", || called.exists());
    let words = std::fs::read_to_string(&called).unwrap();
    assert!(!words.contains(&key), "every user of this machine can read {words}");
    // It is led to the link by a page that only its user can read.
    let page = std::path::PathBuf::from(words.trim_end());
    assert_eq!((page.parent(), words.lines().count()), (Some(&*sandbox.home()), 1), "{words}");
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let leads = std::fs::read_to_string(&page).unwrap();
    assert!(leads.contains(&format!("content=\"0; url={}\"", served.link)), "{leads}");
    // Once somebody has come by it, it is gone.
    let (headers, body) = ([("Content-Type", "application/json")], json!({ "key": key }).to_string());
    assert_eq!(served.request("POST /session", &headers, &body).status, 200);
    until("the page to be gone", || !page.exists());
    // And so it is when the server ends before anybody comes.
    signal_pid(served.child.id(), "TERM");
    assert!(served.child.wait().unwrap().success());
    std::fs::remove_file(&called).unwrap();
    let mut served = Served::begin(&mut command, &sandbox);
    until("the browser to be called again", || called.exists());
    signal_pid(served.child.id(), "TERM");
    assert!(served.child.wait().unwrap().success());
    let left = std::fs::read_dir(sandbox.home()).unwrap().flatten().map(|file| file.file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().ends_with(".html")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn s_16_open_address_warns_and_still_needs_a_token() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.outlive(["serve", "--json", "--listen", "0.0.0.0:0"]);
    let mut served = Served::begin(command.stderr(Stdio::piped()), &sandbox);
    assert_eq!(served.request("GET /v1/ps", &[], "").status, 401);
    signal_pid(served.child.id(), "TERM");
    let mut said = String::new();
    served.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("warning: serving without TLS on a public address"), "{said}");
}

#[test]
fn s_17_unix_socket_is_for_its_user_by_the_word_of_the_kernel() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "good", "--", "true"]).succeeds();
    let path = sandbox.work().join("socket");
    let listen = format!("unix:{}", path.display());
    let mut server = sandbox.outlive(["serve", "--listen", &listen]).stderr(Stdio::null()).spawn().unwrap();
    until("the socket to be there", || path.exists());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let request = b"GET /v1/ps?all=true HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"good\""), "{answer}");
    if is_root() {
        // Another user does not get in, though the file let them.
        sandbox
            .shell(&format!("chmod 755 {} {0}/work; chmod 666 {0}/work/socket", sandbox.path().display()))
            .succeeds();
        let script = format!(
            "import socket;s=socket.socket(socket.AF_UNIX);s.connect('{}');s.sendall({:?}.encode());print(s.recv(4096).decode())",
            path.display(),
            String::from_utf8_lossy(request)
        );
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", &script];
        let said = sandbox.command("setpriv", words).succeeds();
        assert!(said.starts_with("HTTP/1.1 403"), "{said}");
    }
    signal_pid(server.id(), "TERM");
    assert!(server.wait().unwrap().success());
    assert!(!path.exists(), "the socket was left behind");
}

#[test]
fn roles_allow_what_they_say_and_events_name_the_user() {
    let sandbox = Sandbox::new();
    let _run = sandbox.start("busy", &["sleep", "300"]);
    let mut served = Served::start(&sandbox, &[]);
    let token = |role: &str| {
        let made = sandbox.outlive(["token", "create", &format!("{role}-of-ada"), "--role", role, "--json"]).json();
        made["token"].as_str().unwrap().to_owned()
    };
    let kept = |name: &str| std::fs::read_to_string(sandbox.home().join(name)).unwrap();
    let calls = [
        ("/v1/ps", json!({}), [200, 200, 200]),
        ("/v1/reap", json!({ "dry_run": true }), [403, 200, 200]),
        // A selection is only counted until it is meant.
        ("/v1/archive", json!({ "status": ["failed"] }), [200, 200, 200]),
        ("/v1/archive", json!({ "status": ["failed"], "yes": true }), [403, 200, 200]),
        ("/v1/queue/add", json!({ "argv": ["true"] }), [403, 403, 200]),
        ("/v1/init", json!({}), [403, 403, 403]),
    ];
    for (place, role) in ["read", "operate", "admin"].into_iter().enumerate() {
        served.token = token(role);
        assert!(!kept("tokens.json").contains(&served.token), "a token is kept as it is");
        for (path, input, statuses) in &calls {
            assert_eq!(served.post(path, input).status, statuses[place], "{role} {path}");
        }
    }
    served.token = token_of(&sandbox, "cleo", "operate");
    assert_eq!(served.post("/v1/cancel", &json!({ "runs": ["busy"] })).status, 200);
    let why = sandbox.outlive(["why", "busy", "--json"]).json();
    assert!(why["events"].to_string().contains("\"user\":\"cleo\""), "{why}");
    sandbox.outlive(["token", "revoke", "cleo"]).succeeds();
    assert_eq!(served.get("/v1/ps").status, 401, "a token that was revoked is still known");
    let listed = sandbox.outlive(["token", "list"]).succeeds();
    assert!(listed.contains("read-of-ada") && !listed.contains("cleo"), "{listed}");
}

pub fn token_of(sandbox: &Sandbox, name: &str, role: &str) -> String {
    let made = sandbox.outlive(["token", "create", name, "--role", role, "--json"]).json();
    made["token"].as_str().unwrap().to_owned()
}

#[test]
fn u05_s_23_s_27_what_runs_say_and_write_does_not_speak_for_us() {
    let sandbox = Sandbox::new();
    let word = "a\u{1b}]0;x\u{7}\u{202e}\u{e0041}b\n{\"jsonrpc\":\"2.0\"}";
    let name = "a]0;x\u{202e}\u{e0041}b";
    let id = sandbox.outlive(["run", "-d", "--name", name, "--", "printf", "%s", word]).succeeds().trim().to_owned();
    sandbox.outlive(["wait", &id]).succeeds();
    let noisy = "echo noise; echo noise >&2; : > said; exec sleep 300";
    let mut stopped = sandbox.start("stopped", &["sh", "-c", noisy]);
    stopped.signal("TERM");
    stopped.wrapper.wait().unwrap();
    let said = sandbox.work().join("said");
    std::fs::remove_file(&said).unwrap();
    // Where no log is kept of it, what it writes goes where its owner's does.
    sandbox.write_config("[logs]\ncap = \"0\"\n");
    let mut agent = Agent::start(&sandbox, &["--allow", "stop"]);
    // Every line that is heard is a message: `hear` refuses all else.
    assert_eq!(agent.call("resume", &json!({ "runs": ["stopped"] }))["resumed"][0]["attempt"], 2);
    until("it to have made its noise", || said.exists());
    for told in [
        agent.call("ps", &json!({ "all": true })),
        agent.call("show", &json!({ "run": name })),
        agent.call("show", &json!({ "run": format!("no {name}") })),
        agent.ask("resources/list", json!({})),
        agent.ask("resources/read", json!({ "uri": format!("outlive://runs/{id}/output") })),
    ] {
        let told = told.to_string();
        assert!(told.contains("a]0;xb"), "it is not told at all: {told}");
        assert!(!told.contains('\u{202e}') && !told.contains("\\u001b") && !told.contains('\u{e0041}'), "{told}");
    }
    agent.call("cancel", &json!({ "runs": ["stopped"], "wait": true }));
}

#[test]
fn changes_and_output_are_streamed_and_end_with_the_server() {
    let sandbox = Sandbox::new();
    let mut served = Served::start(&sandbox, &[]);
    let mut changes = served.listen("/v1/changes");
    let heard = read_until(&mut changes, "event: hello");
    assert!(heard.contains("text/event-stream"), "{heard}");
    let script = "echo one; until [ -e go ]; do sleep 0.05; done; echo two; exec sleep 300";
    sandbox.outlive(["run", "-d", "--name", "talker", "--", "sh", "-c", script]).succeeds();
    read_until(&mut changes, "\"talker\"");
    let mut output = served.listen("/v1/follow?run=talker");
    read_until(&mut output, "one\\n");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    read_until(&mut output, "two\\n");
    sandbox.outlive(["cancel", "talker"]).succeeds();
    read_until(&mut output, "event: end");
    read_until(&mut changes, "\"cancelled\"");
    // A server that is asked to stop ends what it can end, and fails nobody.
    signal_pid(served.child.id(), "TERM");
    let mut rest = String::new();
    changes.read_to_string(&mut rest).unwrap();
    assert!(served.child.wait().unwrap().success());
}

pub(crate) fn read_until(stream: &mut std::net::TcpStream, wanted: &str) -> String {
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    while !String::from_utf8_lossy(&heard).contains(wanted) {
        let read = stream
            .read(&mut buffer)
            .unwrap_or_else(|error| panic!("{error} before {wanted:?}: {}", String::from_utf8_lossy(&heard)));
        assert!(read > 0, "it ended before {wanted:?}: {}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&buffer[..read]);
    }
    String::from_utf8_lossy(&heard).into_owned()
}

/// Makes a certificate for `localhost` and its key.
fn certify(sandbox: &Sandbox) {
    sandbox
        .shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout key.pem -out chain.pem 2>/dev/null")
        .succeeds();
}

#[test]
fn a_certificate_makes_it_unreadable_to_others() {
    let sandbox = Sandbox::new();
    certify(&sandbox);
    let served = Served::start(&sandbox, &["--tls-cert", "chain.pem", "--tls-key", "key.pem"]);
    let port = served.address.rsplit(':').next().unwrap();
    let script = format!(
        "import ssl,urllib.request as u;c=ssl.create_default_context(cafile='chain.pem');\
         r=u.Request('https://localhost:{port}/v1/ps',headers={{'Authorization':'Bearer {}'}});print(u.urlopen(r,context=c).status)",
        served.token
    );
    assert_eq!(sandbox.command("python3", ["-c", &script]).succeeds(), "200\n");
    // The cookie of a browser is for such a connection alone.
    let key = served.link.split("#key=").nth(1).unwrap();
    let script = format!(
        "import json,ssl,urllib.request as u;c=ssl.create_default_context(cafile='chain.pem');\
         r=u.Request('https://localhost:{port}/session',data=json.dumps({{'key':'{key}'}}).encode(),headers={{'Content-Type':'application/json'}});\
         print(u.urlopen(r,context=c).headers['Set-Cookie'])"
    );
    let cookie = sandbox.command("python3", ["-c", &script]).succeeds();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict; Secure\n"), "{cookie}");
    assert_eq!(served.get("/v1/ps").status, 0, "it was spoken to in the clear");
}

#[test]
fn a_client_that_offers_http2_over_tls_is_served_by_it() {
    let sandbox = Sandbox::new();
    certify(&sandbox);
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    let served = Served::start(&sandbox, &["--tls-cert", "chain.pem", "--tls-key", "key.pem"]);
    let port = served.address.rsplit(':').next().unwrap();
    let key = served.link.split("#key=").nth(1).unwrap();
    // As a browser does: one connection, several requests at once, each cookie in a header of its own.
    let script = format!(
        r#"
const http2 = require("node:http2");
const session = http2.connect("https://localhost:{port}", {{ ca: require("node:fs").readFileSync("chain.pem") }});
const ask = (headers, body) => new Promise((done, failed) => {{
  const request = session.request(headers);
  let [status, cookie, text] = [0, "", ""];
  request.on("response", (answer) => (status = answer[":status"], cookie = String(answer["set-cookie"] ?? "")));
  request.on("data", (data) => (text += data)).on("end", () => done({{ status, cookie, text }})).on("error", failed);
  request.end(body);
}});
(async () => {{
  const post = {{ ":method": "POST", "content-type": "application/json" }};
  const {{ cookie }} = await ask({{ ...post, ":path": "/session" }}, JSON.stringify({{ key: "{key}" }}));
  const cookies = {{ cookie: ["other=1", cookie.split(";")[0], "last=2"] }};
  const calls = Array.from({{ length: 20 }}, () => ask({{ ":path": "/v1/ps?all=true", ...cookies }}));
  const answers = await Promise.all(calls);
  const done = answers.filter(({{ status, text }}) => status === 200 && text.includes('"done"')).length;
  const other = await ask({{ ":path": "/v1/ps", ":authority": "evil.example", ...cookies }});
  const two = await ask({{ ":path": "/v1/ps", ":authority": "localhost:{port}", host: "evil.example", ...cookies }});
  console.log(session.alpnProtocol, done, other.status, two.status);
  session.close();
}})();
"#
    );
    assert_eq!(sandbox.command("node", ["-e", &script]).succeeds(), "h2 20 403 400\n");
}

#[test]
fn token_is_for_its_registry_unless_it_is_for_all() {
    let sandbox = Sandbox::new();
    let other = sandbox.path().join("other");
    std::fs::create_dir_all(other.join(".git")).unwrap();
    sandbox.outlive(["run", "--name", "here", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "there", "--", "true"]).current_dir(&other).succeeds();
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let mut served = Served::start(&sandbox, &[]);
    let bound = token_of(&sandbox, "bound", "admin");
    let made =
        sandbox.outlive(["token", "create", "roaming", "--role", "admin", "--all-repositories", "--json"]).json();
    let beyond = [
        ("search", json!({ "query": ["there"] })),
        ("history", json!({})),
        ("list", json!({})),
        ("stats", json!({})),
        ("gc", json!({ "dry_run": true })),
        ("registry/list", json!({})),
        ("registry/show", json!({})),
        ("registry/refresh", json!({})),
        ("ps", json!({ "global": true })),
        ("archive", json!({ "status": ["failed"], "scope": "home", "dry_run": true })),
        ("queue/drain", json!({ "limit": 1 })),
        ("queue/add", json!({ "app": "audit" })),
    ];
    served.token = made["token"].as_str().unwrap().into();
    for (operation, input) in &beyond {
        let told = served.post(&format!("/v1/{operation}"), input);
        assert_eq!(told.status, 200, "{operation}: {}", told.body);
    }
    served.token = bound.clone();
    for (operation, input) in &beyond {
        let refused = served.post(&format!("/v1/{operation}"), input);
        assert_eq!(code(&refused), (403, "forbidden".into()), "{operation}");
        assert!(!refused.body.contains("there\""), "{operation}: {}", refused.body);
    }
    let listed = served.post("/v1/queue/list", &json!({})).json();
    assert_eq!(listed["entries"], json!([]), "the queue of all repositories was told");
    assert_eq!(served.post("/v1/show", &json!({ "run": "here" })).status, 200);
    for name in ["there", "other:there"] {
        for verb in ["show", "why", "output"] {
            assert_eq!(served.post(&format!("/v1/{verb}"), &json!({ "run": name })).status, 404, "{verb} {name}");
        }
        for verb in ["wait", "cancel", "archive"] {
            assert_eq!(served.post(&format!("/v1/{verb}"), &json!({ "runs": [name] })).status, 404, "{verb} {name}");
        }
    }
    // And the server of the other registry does not take it.
    let registry = format!("sqlite:{}", other.join(".outlive").display());
    let mut elsewhere = Served::start(&sandbox, &["--registry", &registry]);
    elsewhere.token = bound;
    assert_eq!(code(&elsewhere.get("/v1/ps")), (403, "forbidden".into()));
    elsewhere.token = made["token"].as_str().unwrap().into();
    assert_eq!(elsewhere.get("/v1/ps").status, 200);
}
