//! `outlive send` and the tool `adopt`: agents reach a command that runs, and take over one whose owner died.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, signal_pid, until};
use super::served::Agent;

const EXECUTE: &[&str] = &["--allow", "execute"];

/// Answers each line, and says when its input has ended.
const ECHO: &str = "while read line; do echo \"got $line\"; done; echo over";

fn text(agent: &mut Agent, run: &str) -> String {
    agent.call("output", &json!({ "run": run }))["text"].as_str().unwrap().to_owned()
}

#[test]
fn lines_of_an_agent_reach_the_command_from_another_session() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let begun = agent.call("run", &json!({ "argv": ["sh", "-c", ECHO], "name": "repl", "stdin": true }));
    assert_eq!(begun["made"], true, "{begun}");
    let sent = agent.call("send", &json!({ "run": "repl", "text": "one", "watch": "20s" }));
    assert_eq!(
        (&sent["bytes"], &sent["waits"], &sent["output"]),
        (&json!(4), &json!(false), &json!("got one\n")),
        "{sent}"
    );
    agent.kill();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    agent.call("send", &json!({ "run": "repl", "text": "tw", "raw": true }));
    let sent = agent.call("send", &json!({ "run": "repl", "text": "o", "eof": true }));
    assert_eq!(sent["eof"], true, "{sent}");
    let ended = agent.call("wait", &json!({ "runs": ["repl"] }));
    assert_eq!(ended["runs"][0]["state"], "succeeded", "{ended}");
    assert_eq!(text(&mut agent, "repl"), "got one\ngot two\nover\n");
    let refused = agent.call("send", &json!({ "run": "repl", "text": "three" }));
    assert_eq!(refused["error"]["code"], "refused", "{refused}");
}

/// A socket below a directory.
fn socket_below(dir: &Path) -> Option<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().find_map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_socket() => Some(entry.path()),
        Ok(kind) if kind.is_dir() => socket_below(&entry.path()),
        _ => None,
    })
}

#[test]
fn text_that_a_command_read_before_it_ended_is_confirmed() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--stdin", "--name", "once", "--", "sh", "-c", "read line; echo $line"]).succeeds();
    let socket = socket_below(sandbox.path()).expect("the owner listens beside the run");
    let dir = std::fs::File::open(socket.parent().unwrap()).unwrap();
    let short = format!("/proc/self/fd/{}/{}", dir.as_raw_fd(), socket.file_name().unwrap().display());
    // A writer whose side is still open when the command has read the text and ended.
    let mut writer = UnixStream::connect(short).unwrap();
    writer.write_all(b"k\0\0\0\x04one\n").unwrap();
    sandbox.wait_for_state("once", "succeeded");
    let mut heard = Vec::new();
    let _ = writer.read_to_end(&mut heard);
    assert_eq!(heard.first(), Some(&b't'));
    assert_eq!(sandbox.outlive(["logs", "once"]).succeeds(), "one\n");
}

#[test]
fn twenty_writers_at_once_lose_no_line_and_mix_none() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--stdin", "--name", "sink", "--", "cat"]).succeeds();
    let line = |writer: usize| format!("{writer}:{}", "x".repeat(3_000 + writer));
    let writers: Vec<_> =
        (0..20).map(|writer| sandbox.outlive(["send", "sink", &line(writer)]).spawn().unwrap()).collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    sandbox.outlive(["send", "sink", "--eof"]).succeeds();
    sandbox.wait_for_state("sink", "succeeded");
    let logged = sandbox.outlive(["logs", "sink"]).succeeds();
    let mut found: Vec<&str> = logged.lines().collect();
    found.sort_unstable();
    let mut wanted: Vec<String> = (0..20).map(line).collect();
    wanted.sort_unstable();
    assert!(found == wanted, "{} lines", found.len());
}

#[test]
fn command_that_does_not_read_blocks_its_writers_alone() {
    let sandbox = Sandbox::new();
    let script = "until [ -e go ]; do sleep 0.05; done; wc -c";
    sandbox.outlive(["run", "-d", "--stdin", "--name", "slow", "--", "sh", "-c", script]).succeeds();
    let block = "x".repeat(60_000);
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let send = |agent: &mut Agent| agent.call("send", &json!({ "run": "slow", "text": block, "raw": true }));
    // What a pipe and the owner take at once, and then no more.
    let mut sent = 0;
    until("a writer to wait", || {
        sent += 1;
        send(&mut agent)["waits"] == true
    });
    assert_eq!(sandbox.show("slow")["health"], "healthy");
    let refused = agent.call("send", &json!({ "run": "slow", "text": "x".repeat(70_000) }));
    assert_eq!(refused["error"]["code"], "invalid", "{refused}");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    until("what waited to be taken", || agent.call("send", &json!({ "run": "slow", "eof": true }))["waits"] == false);
    sandbox.wait_for_state("slow", "succeeded");
    assert_eq!(text(&mut agent, "slow").trim(), (sent * block.len()).to_string());
}

#[test]
fn keys_are_sent_to_a_terminal_and_signals_to_the_command() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    agent
        .call("run", &json!({ "argv": ["sh", "-c", "read line; echo \"typed $line\""], "name": "typed", "tty": true }));
    agent.call("send", &json!({ "run": "typed", "text": "hello" }));
    let ended = agent.call("wait", &json!({ "runs": ["typed"] }));
    assert_eq!(ended["runs"][0]["state"], "succeeded", "{ended}");
    assert!(text(&mut agent, "typed").contains("typed hello"));
    let script = "trap 'echo reloaded' HUP; trap 'echo bye; exit 5' USR1; echo up; while :; do sleep 0.05; done";
    agent.call("run", &json!({ "argv": ["sh", "-c", script], "name": "served", "ready_output": "up", "watch": "20s" }));
    let sent = agent.call("send", &json!({ "run": "served", "signal": "HUP", "watch": "20s" }));
    assert_eq!((&sent["signal"], &sent["output"]), (&json!(1), &json!("reloaded\n")), "{sent}");
    agent.call("send", &json!({ "run": "served", "signal": "SIGUSR1" }));
    assert_eq!(sandbox.wait_for_state("served", "failed")["exit_code"], 5);
}

#[test]
fn what_cannot_be_sent_is_refused_with_the_reason() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--name", "deaf", "--", "sleep", "300"]).succeeds();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    for (input, why) in [
        (json!({ "run": "deaf", "text": "x" }), "started without `--stdin` and `--tty`"),
        (json!({ "run": "deaf" }), "nothing is sent"),
        (json!({ "run": "deaf", "signal": "NOPE" }), "it is a signal such as HUP"),
        (json!({ "run": "deaf", "text": "x", "signal": "HUP" }), "cannot be used with"),
        (json!({ "run": "nothing", "text": "x" }), "no run `nothing`"),
    ] {
        let refused = agent.call("send", &input);
        let message = refused["error"]["message"].as_str().unwrap_or_else(|| panic!("{refused}"));
        assert!(message.contains(why), "{why}: {message}");
    }
    let mut stopping = Agent::start(&sandbox, &["--allow", "stop"]);
    assert_eq!(stopping.call("send", &json!({ "run": "deaf", "signal": "TERM" }))["error"]["code"], "forbidden");
    let said = sandbox.outlive(["run", "--stdin", "--", "cat"]).fails_with(2);
    assert!(said.contains("`--stdin` goes with `-d`"), "{said}");
    sandbox.outlive(["cancel", "deaf", "--wait"]).succeeds();
}

#[test]
fn an_agent_adopts_a_run_whose_owner_died() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, EXECUTE);
    let script = "until [ -e over ]; do sleep 0.05; done; echo done";
    let begun = agent.call("run", &json!({ "argv": ["sh", "-c", script], "name": "job" }));
    let id = begun["id"].as_str().unwrap().to_owned();
    let refused = agent.call("adopt", &json!({ "run": "job" }));
    assert_eq!(refused["error"]["code"], "refused", "{refused}");
    let owner = agent.call_whole("show", &json!({ "run": "job" }))["owner_pid"].as_u64().unwrap();
    signal_pid(u32::try_from(owner).unwrap(), "KILL");
    until("it to be orphaned", || sandbox.show("job")["health"] == "orphaned");
    let adopted = agent.call("adopt", &json!({ "run": "job" }));
    assert_eq!(adopted["id"], *id, "{adopted}");
    assert_eq!(sandbox.show("job")["health"], "healthy");
    std::fs::write(sandbox.work().join("over"), "").unwrap();
    let ended: Value = agent.call("wait", &json!({ "runs": ["job"] }));
    assert_eq!(ended["runs"][0]["state"], "succeeded", "{ended}");
    assert_eq!(text(&mut agent, "job"), "done\n");
    let mut looking = Agent::start(&sandbox, &[]);
    assert_eq!(looking.call("adopt", &json!({ "run": "job" }))["error"]["code"], "forbidden");
}
