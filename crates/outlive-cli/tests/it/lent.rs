//! A registry that a server lends: `http://…` is a registry URL like any other.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::running::child_of;
use super::sandbox::{Ends, Sandbox, is_alive, is_root, settled, signal_pid, until};
use super::served::Served;

/// Somebody elsewhere: a home of their own, and the token that they were given.
struct Elsewhere {
    sandbox: Sandbox,
    url: String,
    token: String,
}

impl Elsewhere {
    fn with(server: &Sandbox, served: &Served, name: &str, role: &str) -> Self {
        let made = server.outlive(["token", "create", name, "--role", role, "--json"]).json();
        let token = made["token"].as_str().unwrap().to_owned();
        Self { sandbox: Sandbox::new(), url: format!("http://{}", served.address), token }
    }

    fn outlive(&self, words: &[&str]) -> Command {
        let mut command = self.sandbox.outlive(words);
        command.env("OUTLIVE_REGISTRY", &self.url).env("OUTLIVE_TOKEN", &self.token);
        command
    }
}

#[test]
fn w01_remote_command_sees_that_a_worker_is_gone() {
    let server = Sandbox::new();
    let mut owner = server.start("busy", &["sleep", "300"]);
    let served = Served::start(&server, &[]);
    let ada = Elsewhere::with(&server, &served, "ada", "read");
    let health = || ada.outlive(&["workers", "--json"]).json()["workers"][0]["health"].clone();
    assert_eq!(health(), "alive");
    let child = child_of(owner.pid());
    owner.kill();
    assert_eq!(health(), "gone");
    signal_pid(child, "KILL");
}

#[test]
fn remote_commands_run_look_cancel_and_resume_as_local_ones() {
    let (server, script) =
        (Sandbox::new(), "outlive progress 1/2 half; outlive checkpoint set '{\"at\":1}'; echo said");
    server.outlive(["init"]).succeeds();
    let served = Served::start(&server, &[]);
    let ada = Elsewhere::with(&server, &served, "ada", "operate");
    let said = ada.outlive(&["run", "--name", "far", "--", "sh", "-ec", script]).succeeds();
    assert_eq!(said, "said\n");
    for run in [ada.outlive(&["show", "far", "--json"]).json(), server.show("far")] {
        assert_eq!((run["state"].as_str(), run["progress_done"].as_u64()), (Some("succeeded"), Some(1)), "{run}");
    }
    let events = server.outlive(["why", "far", "--json"]).json()["events"].to_string();
    assert!(events.contains("\"user\":\"ada\""), "{events}");
    // Failures and their exit statuses are those of the command.
    assert_eq!(ada.outlive(&["run", "--name", "bad", "--", "sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    assert_eq!(ada.outlive(&["wait", "bad"]).status().unwrap().code(), Some(7));
    // It is cancelled by whoever sits at the server.
    let mut run = ada.outlive(&["run", "--name", "long", "--", "sleep", "300"]).stderr(Stdio::null()).spawn().unwrap();
    server.wait_for("long", |run| run["state"] == "running");
    server.outlive(["cancel", "long", "--reason", "enough"]).succeeds();
    assert!(!run.wait().unwrap().success());
    let ended = server.wait_for_state("long", "cancelled");
    assert!(ended["reason"].to_string().contains("enough"), "{ended}");
    // And what was interrupted goes on where it was made.
    let mut run = ada
        .outlive(&["run", "--name", "again", "--", "sh", "-c", "test -e go && exit; exec sleep 300"])
        .spawn()
        .unwrap();
    server.wait_for("again", |run| run["state"] == "running");
    signal_pid(run.id(), "TERM");
    run.wait().unwrap();
    server.wait_for_state("again", "interrupted");
    std::fs::write(ada.sandbox.work().join("go"), "").unwrap();
    ada.outlive(&["resume", "again"]).succeeds();
    let ended = server.wait_for_state("again", "succeeded");
    assert_eq!(ended["attempt"], 2, "{ended}");
}

#[test]
fn killed_remote_owner_is_seen_by_all() {
    let server = Sandbox::new();
    server.outlive(["init"]).succeeds();
    let served = Served::start(&server, &[]);
    let ada = Elsewhere::with(&server, &served, "ada", "operate");
    let mut run =
        ada.outlive(&["run", "--name", "killed", "--", "sleep", "300"]).stderr(Stdio::null()).spawn().unwrap();
    server.wait_for("killed", |run| run["state"] == "running");
    let child = child_of(run.id());
    signal_pid(run.id(), "KILL");
    run.wait().unwrap();
    // What it started lives on, and is named.
    let orphaned = server.wait_for("killed", |run| run["health"] == "orphaned");
    assert!(orphaned.to_string().contains(&child.to_string()), "{orphaned}");
    let there = ada.outlive(&["show", "killed", "--json"]).json();
    assert_eq!(there["health"], "orphaned", "{there}");
    signal_pid(child, "KILL");
    until("its command to be gone", || !is_alive(child));
    assert_eq!(server.wait_for_state("killed", "dead")["state"], "dead");
    ada.outlive(&["reap"]).succeeds();
    assert_eq!(ada.outlive(&["show", "killed", "--json"]).json()["state"], "dead");
}

#[test]
fn f_65_unreachable_server_ends_nothing_and_results_wait_for_it() {
    let server = Sandbox::new();
    server.outlive(["init"]).succeeds();
    let mut served = Served::start(&server, &[]);
    let ada = Elsewhere::with(&server, &served, "ada", "operate");
    let script = "while ! test -e go; do sleep 0.05; done; exit 3";
    let mut run =
        ada.outlive(&["run", "--name", "job", "--", "sh", "-c", script]).stderr(Stdio::null()).spawn().unwrap();
    server.wait_for("job", |run| run["state"] == "running");
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    std::fs::write(ada.sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(3));
    assert_eq!(server.show("job")["state"], "dead", "its owner is gone, and nobody knows how it did");
    let served = Served::begin(&mut server.outlive(["serve", "--json", "--listen", &served.address]), &server);
    // Whoever works there next delivers it.
    ada.outlive(&["run", "--", "true"]).succeeds();
    assert_eq!(server.show("job")["state"], "failed");
    drop(served);
}

#[test]
fn f_65_paused_server_reaps_no_run_it_could_not_hear() {
    if !is_root() {
        println!("skipped: only root can seem to be another machine");
        return;
    }
    let server = Sandbox::new();
    server.outlive(["init"]).succeeds();
    let served = Served::start(&server, &[]);
    let ada = Elsewhere::with(&server, &served, "ada", "operate");
    ada.sandbox.write_home_config(&format!("[registries.\"{}\"]\nbeat = \"1s\"\nlease = \"3s\"\n", ada.url));
    std::fs::write(ada.sandbox.work().join("boot"), "00000000-0000-4000-8000-000000000000\n").unwrap();
    // What it executes tells nobody in the process table whose it is.
    let script = "mount --bind boot /proc/sys/kernel/random/boot_id && exec outlive run --name far -- \
                  env -i sh -c 'until test -e go; do sleep 0.1; done'";
    let mut command = ada.sandbox.command("unshare", ["-m", "sh", "-c", script]);
    let mut far = command.env("OUTLIVE_REGISTRY", &ada.url).env("OUTLIVE_TOKEN", &ada.token).spawn().unwrap();
    server.wait_for("far", |run| run["state"] == "running");
    let ended = || server.outlive(["reap", "--json"]).json()["reaped"].as_array().unwrap().len();
    signal_pid(served.child.id(), "STOP");
    let lapsed = std::time::Duration::from_secs(3);
    for _ in 0..2 {
        std::thread::park_timeout(lapsed);
        assert_eq!(ended(), 0, "it could not be heard");
    }
    signal_pid(served.child.id(), "CONT");
    for _ in 0..10 {
        assert_eq!(ended(), 0, "it has a full lease to be heard");
    }
    std::fs::write(ada.sandbox.work().join("go"), "").unwrap();
    assert!(far.wait().unwrap().success());
    assert_eq!(server.show("far")["state"], "succeeded");
}

#[test]
fn server_with_a_trusted_certificate_is_a_registry() {
    let sandbox = Sandbox::new();
    sandbox
        .shell("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out chain.pem 2>/dev/null")
        .succeeds();
    let served = Served::start(&sandbox, &["--tls-cert", "chain.pem", "--tls-key", "key.pem"]);
    let url = format!("https://localhost:{}", served.address.rsplit(':').next().unwrap());
    let outlive = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.env("OUTLIVE_REGISTRY", &url);
        command
    };
    outlive(&["run", "--name", "hidden", "--", "true"]).env("SSL_CERT_FILE", "chain.pem").succeeds();
    assert_eq!(sandbox.show("hidden")["state"], "succeeded");
    let refused = outlive(&["ps"]).fails_with(107);
    assert!(refused.contains("certificate"), "{refused}");
}

/// What people are told when a server cannot be used.
#[test]
fn what_is_said_of_a_server_that_cannot_be_used() {
    let server = Sandbox::new();
    server.outlive(["init"]).succeeds();
    let served = Served::start(&server, &[]);
    let reader = Elsewhere::with(&server, &served, "bob", "read");
    let mut all = String::new();
    let mut told = |what: &str, command: &mut Command| {
        let output = command.output().unwrap();
        let said = settled(&reader.sandbox, &String::from_utf8_lossy(&output.stderr));
        let said = said.replace(&served.address, "[SERVER]");
        all.push_str(&format!("# {what}: {}\n{said}\n", output.status.code().unwrap_or(-1)));
    };
    told("a reader looks", &mut reader.outlive(&["ps"]));
    told("a reader runs something", &mut reader.outlive(&["run", "--", "true"]));
    told("a wrong token", reader.outlive(&["ps"]).env("OUTLIVE_TOKEN", "f".repeat(64)));
    told("no token", reader.outlive(&["ps"]).env_remove("OUTLIVE_TOKEN"));
    told("a token in the URL", reader.outlive(&["ps"]).env("OUTLIVE_REGISTRY", "http://me:secret@127.0.0.1:1"));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    told("no server there", reader.outlive(&["ps"]).env("OUTLIVE_REGISTRY", format!("http://{gone}")));
    all = all.replace(&gone.to_string(), "[GONE]");
    for (what, status, body) in [
        (
            "a later version",
            "200 OK",
            "{\"done\":{\"format\":99,\"registry\":null,\"user\":null,\"lease\":null,\"sees\":false}}",
        ),
        ("an older version", "404 Not Found", "{\"error\":{\"message\":\"there is no such operation\"}}"),
        ("something else", "200 OK", "<html>hello</html>"),
    ] {
        let other = answering(status, body);
        // A token that is proven over no loopback would be shown; here there is none to show.
        let output = reader
            .outlive(&["ps"])
            .env_remove("OUTLIVE_TOKEN")
            .env("OUTLIVE_REGISTRY", format!("http://{other}"))
            .output()
            .unwrap();
        let said = settled(&reader.sandbox, &String::from_utf8_lossy(&output.stderr)).replace(&other, "[OTHER]");
        all.push_str(&format!("# {what}: {}\n{said}\n", output.status.code().unwrap_or(-1)));
    }
    insta::assert_snapshot!(all);
}

/// Somebody who answers every request alike.
fn answering(status: &'static str, body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut heard = [0; 4096];
            let _ = client.read(&mut heard);
            let answer =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
            let _ = client.write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn s_18_impostor_at_the_port_gets_no_token() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let url = format!("http://{}", served.address);
    assert_eq!(sandbox.outlive(["--registry", &url, "ps", "--json"]).json()["runs"], Value::Array(Vec::new()));
    // A listener at another port that says what it is told to say, and one that has our own server say it.
    for relays in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let rogue = listener.local_addr().unwrap();
        let (heard, server) = (std::sync::Arc::new(std::sync::Mutex::new(String::new())), served.address.clone());
        let hears = heard.clone();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut bytes = [0; 16 << 10];
                let count = client.read(&mut bytes).unwrap_or(0);
                hears.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
                let mut answer = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{\"proof\":\"ok\"}".to_vec();
                if relays {
                    let mut real = std::net::TcpStream::connect(&server).unwrap();
                    real.write_all(&bytes[..count]).unwrap();
                    count_answer(&mut real, &mut answer);
                }
                let _ = client.write_all(&answer);
            }
        });
        let refused = sandbox.outlive(["--registry", &format!("http://{rogue}"), "ps"]).fails_with(107);
        assert!(refused.contains("does not prove to be this user's server"), "{refused}");
        let heard = heard.lock().unwrap().clone();
        assert!(heard.contains("/v1/store/prove"), "nobody was asked: {heard}");
        assert!(!heard.contains(&served.token) && !heard.contains("Authorization"), "the token was shown: {heard}");
    }
}

#[test]
fn s_17_token_file_open_to_others_is_not_used() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &[]);
    let url = format!("http://{}", served.address);
    let token = sandbox.home().join("token");
    let mode = |mode| std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    let refused = sandbox.outlive(["--registry", &url, "ps"]).fails_with(109);
    assert!(refused.contains("others could have read or written it"), "{refused}");
    mode(0o600);
    sandbox.outlive(["--registry", &url, "ps"]).succeeds();
    std::fs::rename(&token, sandbox.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(sandbox.path().join("elsewhere"), &token).unwrap();
    let refused = sandbox.outlive(["--registry", &url, "ps"]).fails_with(109);
    assert!(refused.contains("symbolic links"), "{refused}");
    let mut server = sandbox.outlive(["serve", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let heard = server.stdout.take().unwrap().read(&mut [0; 1]).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(heard, 0, "it serves");
}

fn count_answer(real: &mut std::net::TcpStream, answer: &mut Vec<u8>) {
    let mut bytes = [0; 16 << 10];
    let count = real.read(&mut bytes).unwrap();
    *answer = bytes[..count].to_vec();
}

#[test]
fn what_is_lent_is_held_to_what_every_rule_keeps_to() {
    let server = Sandbox::new();
    server.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    let served = Served::start(&server, &[]);
    let id = server.show("done")["id"].clone();
    let got = served.post("/v1/store/get", &serde_json::json!([id])).json();
    let record = &got["done"][0];
    let write = |change: &dyn Fn(&mut Value)| {
        let mut run = record["run"]["run"].clone();
        change(&mut run);
        let write = serde_json::json!({
            "expect": { "revision": record["revision"] }, "run": run, "events": [], "ended": null,
            "stamp": "01890000-0000-4000-8000-000000000000",
        });
        served.post("/v1/store/commit", &serde_json::json!({ "writes": [write] })).body
    };
    for (change, why) in [
        (&(|run: &mut Value| run["spec"]["name"] = "other".into()) as &dyn Fn(&mut Value), "never changes"),
        (&|run: &mut Value| run["epoch"] = 0.into(), "only rise"),
        (&|run: &mut Value| run["epoch"] = 99.into(), "by one"),
        (&|run: &mut Value| run["ended"]["how"] = serde_json::json!("succeeded_not"), "cannot be understood"),
        (
            &|run: &mut Value| {
                let ended = run["ended"].take();
                run.as_object_mut().unwrap().remove("ended");
                run["pending"] = serde_json::json!({ "since": ended["at"] });
            },
            "does not continue",
        ),
    ] {
        let refused = write(change);
        assert!(refused.contains(why), "{why}: {refused}");
    }
    assert_eq!(server.show("done")["state"], "succeeded");
    // Calls that are none, and bodies that are none.
    for (call, body) in [("nothing", "{}"), ("get", "{}"), ("get", "[\"../../x\"]"), ("commit", "[]")] {
        let refused = served.post(&format!("/v1/store/{call}"), &serde_json::from_str(body).unwrap());
        assert!([400, 404].contains(&refused.status), "{call} {body}: {}", refused.body);
    }
}
