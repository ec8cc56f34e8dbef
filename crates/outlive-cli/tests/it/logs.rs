//! `outlive logs`, over logs that this process writes as a wrapper would.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::Arc;

use outlive::id::SystemEntropy;
use outlive::logs::{LogPolicy, LogWriter, Stream};
use outlive::store::Store;
use outlive::store::sqlite::SqliteStore;
use outlive::time::SystemClock;
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, Started, is_alive, settled, text, until};

const WAIT: &str = "while [ ! -e go ]; do sleep 0.02; done; exit 7";

/// A run that says nothing itself, and the log that is written for it.
fn silent_run(sandbox: &Sandbox, name: &str) -> (Started, LogWriter) {
    let run = sandbox.start(name, &["sh", "-c", WAIT]);
    (run, writer(sandbox, name))
}

fn writer(sandbox: &Sandbox, name: &str) -> LogWriter {
    let id = sandbox.show(name)["id"].as_str().unwrap().parse().unwrap();
    let store = SqliteStore::open(&sandbox.registry(), Arc::new(SystemClock), Arc::new(SystemEntropy)).unwrap();
    let found = pollster::block_on(store.get(&[id])).unwrap().pop().unwrap();
    store.write_logs(&found.run, &LogPolicy { cap: 1 << 20 }).unwrap()
}

fn end(sandbox: &Sandbox, name: &str) {
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.wait_for_state(name, "failed");
}

#[test]
fn r04_what_a_run_wrote_is_read_from_any_shell() {
    let sandbox = Sandbox::new();
    let (_run, mut writer) = silent_run(&sandbox, "talks");
    for number in 1..=3 {
        writer.write(Stream::Out, format!("out {number}\n").as_bytes()).unwrap();
        writer.write(Stream::Err, format!("err {number}\n").as_bytes()).unwrap();
    }
    writer.finish().unwrap();
    let both = sandbox.outlive(["logs", "talks"]).output().unwrap();
    assert_eq!(
        (text(&both.stdout), text(&both.stderr)),
        ("out 1\nout 2\nout 3\n".into(), "err 1\nerr 2\nerr 3\n".into())
    );
    assert!(both.status.success());
    let together = sandbox.shell("outlive logs talks 2>&1").succeeds();
    assert_eq!(together, "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n");
    let shown = |words: &[&str]| sandbox.outlive(["logs", "talks"].iter().chain(words)).succeeds();
    assert_eq!(shown(&["--stdout"]), "out 1\nout 2\nout 3\n");
    assert_eq!(shown(&["--stderr"]), "err 1\nerr 2\nerr 3\n");
    assert_eq!(sandbox.shell("outlive logs -n 3 talks 2>&1").succeeds(), "err 2\nout 3\nerr 3\n");
    assert_eq!(shown(&["--since", "1h", "--stdout", "-n", "1"]), "out 3\n");
    assert_eq!(shown(&["--since", "2099-01-01T00:00:00Z"]), "");
    assert_eq!(settled(&sandbox, &shown(&["--timestamps", "--stderr"])), "[TIME] err 1\n[TIME] err 2\n[TIME] err 3\n");
}

#[test]
fn r04_json_has_text_as_text_and_bytes_in_base_64() {
    let sandbox = Sandbox::new();
    let (_run, mut writer) = silent_run(&sandbox, "talks");
    let pieces: [&[u8]; 4] = [b"gr\xc3", b"\xbc\xc3\x9f\n", b"\x00\xff", b"cut \xe2\x82"];
    for (number, piece) in pieces.into_iter().enumerate() {
        let other = [Stream::Out, Stream::Err][number % 2];
        writer.write(Stream::Out, piece).unwrap();
        writer.write(other, b"").unwrap();
        writer.write(Stream::Err, b".").unwrap();
    }
    writer.finish().unwrap();
    let lines = sandbox.outlive(["logs", "talks", "--stdout", "--json"]).succeeds();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["stream"] == "out" && line["at"].as_str().unwrap().ends_with('Z')));
    let shown: Vec<_> = lines.iter().map(|line| (line["text"].as_str(), line["data"].as_str())).collect();
    assert_eq!(
        shown,
        [(Some("gr"), None), (Some("üß\n"), None), (None, Some("AP8=")), (Some("cut "), None), (None, Some("4oI="))]
    );
}

#[test]
fn r04_following_shows_output_and_ends_with_the_runs_status() {
    let sandbox = Sandbox::new();
    let (_run, mut writer) = silent_run(&sandbox, "talks");
    writer.write(Stream::Out, b"before\n").unwrap();
    let mut follow = sandbox
        .outlive(["logs", "-f", "--exit-status", "talks"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "before");
    for number in 0..100 {
        writer.write(Stream::Out, format!("line {number}\n").as_bytes()).unwrap();
        assert_eq!(lines.next().unwrap(), format!("line {number}"));
    }
    writer.write(Stream::Err, b"last words").unwrap();
    writer.finish().unwrap();
    end(&sandbox, "talks");
    assert_eq!(lines.next(), None);
    let ended = follow.wait_with_output().unwrap();
    assert_eq!(text(&ended.stderr), "last words");
    assert_eq!(ended.status.code(), Some(7));
    // On a run that has ended, it ends at once.
    assert!(sandbox.outlive(["logs", "-f", "talks"]).succeeds().ends_with("line 99\n"));
    sandbox.outlive(["logs", "--exit-status", "talks"]).fails_with(7);
}

#[test]
fn r04_f_17_following_ends_with_the_last_process_of_the_run() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("talks", &["sh", "-c", "exec sleep 300"]);
    let mut writer = writer(&sandbox, "talks");
    writer.write(Stream::Out, b"said\n").unwrap();
    let mut follow = sandbox.outlive(["logs", "-f", "--exit-status", "talks"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), "said");
    let child = super::running::child_of(run.pid());
    run.kill();
    // As long as its processes live, they may have something to say, though nobody is left to note it.
    use std::io::Write;
    let mut own = writer.file(Stream::Out).map(std::fs::File::from).unwrap();
    drop(writer);
    own.write_all(b"an orphan\n").unwrap();
    assert_eq!(lines.next().unwrap(), "an orphan");
    super::sandbox::signal_pid(child, "KILL");
    assert_eq!(lines.next(), None);
    assert_eq!(follow.wait().unwrap().code(), Some(1));
}

#[test]
fn r04_a_reader_that_has_seen_enough_is_no_failure() {
    let sandbox = Sandbox::new();
    let (_run, mut writer) = silent_run(&sandbox, "talks");
    writer.write(Stream::Out, "a line of text\n".repeat(20_000).as_bytes()).unwrap();
    let first = sandbox.command("bash", ["-c", "set -o pipefail; outlive logs talks | head -n 1"]).succeeds();
    assert_eq!(first, "a line of text\n");
    // The run goes on and says nothing more; whoever follows need not wait for it.
    let mut follow = sandbox.outlive(["logs", "-f", "-n", "1", "talks"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 15];
    follow.stdout.take().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"a line of text\n");
    assert!(follow.wait().unwrap().success());
}

#[test]
fn r13_s_38_what_was_left_out_is_said_beside_the_log() {
    let sandbox = Sandbox::new();
    let (_run, mut writer) = silent_run(&sandbox, "talks");
    for _ in 0..500 {
        writer.write(Stream::Out, &[0; 20_000]).unwrap();
    }
    writer.finish().unwrap();
    let shown = sandbox.outlive(["logs", "talks"]).output().unwrap();
    let kept = shown.stdout.len();
    assert!((1 << 20..5 << 18).contains(&kept), "{kept} bytes are kept");
    let left_out = outlive::logs::show_bytes(10_000_000 - kept as u64);
    assert_eq!(text(&shown.stderr), format!("[outlive: {left_out} left out here]\n"));
}

#[test]
fn u05_s_11_on_a_terminal_colours_pass_and_nothing_else() {
    let sandbox = Sandbox::new();
    let (_run, mut writer) = silent_run(&sandbox, "talks");
    writer.write(Stream::Out, b"\x1b[31mred\x1b[0m \x1b]0;evil\x07\x1b[2J\n").unwrap();
    writer.finish().unwrap();
    let on_terminal = |command: &str| {
        let shown = sandbox.command("script", ["-qec", command, "/dev/null"]).succeeds();
        shown.replace('\r', "")
    };
    assert_eq!(on_terminal("outlive logs talks"), "\x1b[31mred\x1b[0m \\e]0;evil\\u{7}\\e[2J\n\x1b[0m");
    let raw = "\x1b[31mred\x1b[0m \x1b]0;evil\x07\x1b[2J\n";
    assert_eq!(on_terminal("outlive logs --raw talks"), raw);
    assert_eq!(sandbox.outlive(["logs", "talks"]).succeeds(), raw);
}

/// Never started, not to be kept, removed, and nothing written: each is told from the others.
#[test]
fn which_nothing_a_log_is_is_said() {
    let sandbox = Sandbox::new();
    let said = |name: &str| {
        let output = sandbox.outlive(["logs", name]).output().unwrap();
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()));
        format!("{name}: {}", settled(&sandbox, &text(&output.stderr)))
    };
    sandbox.outlive(["run", "--name", "unstartable", "--", "/none/such"]).fails_with(127);
    sandbox.outlive(["run", "--no-log", "--name", "unwanted", "--", "echo", "hello"]).succeeds();
    sandbox.outlive(["run", "--name", "silent", "--", "true"]).succeeds();
    sandbox.outlive(["run", "-d", "--name", "quiet", "--", "sh", "-c", WAIT]).succeeds();
    let mut all = vec![said("unstartable"), said("unwanted"), said("silent"), said("quiet")];
    end(&sandbox, "quiet");
    sandbox.outlive(["run", "--name", "bereft", "--", "echo", "hello"]).succeeds();
    let attempts =
        |name: &str| sandbox.registry().join("runs").join(sandbox.show(name)["id"].as_str().unwrap()).join("attempts");
    std::fs::remove_file(attempts("bereft").join("0001.out")).unwrap();
    std::fs::remove_dir_all(attempts("silent")).unwrap();
    all.extend([said("bereft"), said("silent")]);
    sandbox.write_config("[logs]\ncap = \"0\"\n");
    sandbox.outlive(["run", "--name", "capped", "--", "echo", "hello"]).succeeds();
    all.push(said("capped"));
    insta::assert_snapshot!(all.join(""));
}

#[test]
fn why_there_is_no_log_is_said() {
    let sandbox = Sandbox::new();
    let run = sandbox.start("talks", &["sh", "-c", WAIT]);
    let said = |words: &[&str]| {
        let output = sandbox.outlive(["logs", "talks"].iter().chain(words)).output().unwrap();
        assert!(output.stdout.is_empty());
        format!("{}: {}", output.status.code().unwrap(), settled(&sandbox, &text(&output.stderr)))
    };
    let mut all = vec![said(&[]), said(&["--exit-status"])];
    end(&sandbox, "talks");
    drop(run);
    all.extend([said(&[]), said(&["--attempt", "2"]), said(&["--attempt", "0"])]);
    let memory = sandbox.outlive(["logs", "talks", "--registry", "memory:"]).output().unwrap();
    all.push(text(&memory.stderr));
    all.push(said(&["--since", "yesterday"]));
    insta::assert_snapshot!(all.join(""));
}

#[test]
fn r04_late_output_of_a_silent_command_is_masked_and_read() {
    let sandbox = Sandbox::impatient();
    let late = format!("until [ -e late ]; do sleep 0.02; done; echo late AKIA{}; {WAIT}", "Q7ZC4XKD9WTN2VBE");
    let words = ["run", "-d", "--name", "left", "--wait-tree", "--", "sh", "-c"];
    let script = format!("echo $$ > command; ({late}) &\nexit 0");
    sandbox.outlive(words.into_iter().chain([script.as_str()])).succeeds();
    let command = super::faults_tree::number(&sandbox, "command");
    until("the command to end", || !is_alive(command));
    std::fs::write(sandbox.work().join("late"), "").unwrap();
    read_live(&sandbox, "left");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.wait_for_state("left", "succeeded");
}

#[test]
fn r04_of_jobs_one_after_the_other_each_is_read_while_it_runs() {
    let sandbox = Sandbox::impatient();
    let secret = format!("AKIA{}", "Q7ZC4XKD9WTN2VBE");
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    for name in ["first", "second", "third"] {
        let _ = std::fs::remove_file(sandbox.work().join("go"));
        sandbox.outlive(["queue", "add", "--wait", "--name", "silent", "--", "true"]).succeeds();
        let script = format!("sleep 0.1; echo late {secret}; {WAIT}");
        sandbox.outlive(["queue", "add", "--name", name, "--", "sh", "-c", &script]).succeeds();
        read_live(&sandbox, name);
        end(&sandbox, name);
    }
    super::sandbox::signal_pid(worker.id(), "TERM");
    assert!(worker.wait().unwrap().success());
}

#[test]
fn r04_output_written_after_the_end_is_kept() {
    let sandbox = Sandbox::new();
    let script = "(until [ -e late ]; do sleep 0.02; done; echo out; echo err >&2; touch written) & exit 0";
    sandbox.outlive(["run", "-d", "--name", "left", "--", "sh", "-c", script]).succeeds();
    sandbox.wait_for_state("left", "succeeded");
    std::fs::write(sandbox.work().join("late"), "").unwrap();
    until("it to have written", || sandbox.work().join("written").exists());
    let read = sandbox.outlive(["logs", "left"]).output().unwrap();
    assert_eq!((text(&read.stdout), text(&read.stderr)), ("out\n".into(), "err\n".into()));
}

#[test]
fn s_30_secret_written_after_the_last_reader_is_not_shown() {
    let sandbox = Sandbox::new();
    let late = format!("until [ -e late ]; do sleep 0.02; done; echo late AKIA{}", "Q7ZC4XKD9WTN2VBE");
    let left = format!("({late}; echo left > left) & exit 0");
    sandbox.outlive(["run", "-d", "--name", "left", "--", "sh", "-c", &left]).succeeds();
    sandbox.wait_for_state("left", "succeeded");
    let orphaned = format!("{late}; echo orphaned > orphaned");
    sandbox.outlive(["run", "-d", "--name", "orphaned", "--", "sh", "-c", &orphaned]).succeeds();
    let owner = sandbox.show("orphaned")["owner_pid"].as_u64().unwrap().try_into().unwrap();
    super::sandbox::signal_pid(owner, "KILL");
    until("the owner to be gone", || !is_alive(owner));
    std::fs::write(sandbox.work().join("late"), "").unwrap();
    for name in ["left", "orphaned"] {
        until("it to have written", || sandbox.has_line(name));
        assert_eq!(sandbox.outlive(["logs", name]).succeeds(), format!("late {}\n", "*".repeat(20)), "{name}");
    }
}

/// Waits until what a run wrote is noted while it runs, and reads it without its secret.
fn read_live(sandbox: &Sandbox, name: &str) {
    let id = sandbox.show(name)["id"].as_str().unwrap().to_owned();
    let notes = sandbox.registry().join(format!("runs/{id}/attempts/0001.log"));
    until("what was written to be noted", || notes.exists());
    let read = sandbox.outlive(["logs", name]).succeeds();
    assert!(read.starts_with("late ") && !read.contains("AKIA"), "{read}");
    assert_eq!(sandbox.show(name)["state"], "running");
}
