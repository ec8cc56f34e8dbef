//! Lists of runs: what `ps` shows of them, where, and what it is told to forget.

use super::running::child_of;
use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, until};

/// `outlive ps` on a terminal of its own that is so wide.
fn on_terminal(sandbox: &Sandbox, width: usize, variables: &[(&str, &str)]) -> String {
    let script = format!("stty cols {width} && outlive ps");
    let mut command = sandbox.command("script", ["-qec", &script, "/dev/null"]);
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env("TERM", "xterm").envs(variables.iter().copied());
    command.succeeds().replace('\r', "")
}

#[test]
fn terminal_gets_a_coloured_bar_within_its_width() {
    let sandbox = Sandbox::new();
    let script = "outlive progress 40/100; echo > said; exec sleep 300";
    let _run = sandbox.start("far", &["sh", "-c", script]);
    until("its progress to be said", || sandbox.work().join("said").exists());
    let wide = on_terminal(&sandbox, 120, &[]);
    assert!(wide.contains("███░░░░░  40%") && wide.contains("\x1b[32mrunning\x1b[0m"), "{wide}");
    for variables in [[("NO_COLOR", "1")], [("TERM", "dumb")]] {
        let quiet = on_terminal(&sandbox, 120, &variables);
        assert!(quiet.contains("40%") && !quiet.contains('\x1b'), "{quiet}");
    }
    for line in on_terminal(&sandbox, 50, &[("NO_COLOR", "1")]).lines() {
        assert!(line.chars().count() <= 50, "{line}");
    }
    let piped = sandbox.outlive(["ps"]).succeeds();
    assert!(piped.contains("40/100") && !piped.contains(['\x1b', '█']), "{piped}");
}

#[test]
fn status_filter_takes_health_words_and_orphans_have_names() {
    let sandbox = Sandbox::new();
    let mut orphan = sandbox.start("orphan", &["sleep", "300"]);
    let _healthy = sandbox.start("healthy", &["sleep", "300"]);
    let child = child_of(orphan.pid());
    orphan.kill();
    for (words, names) in [
        (&["orphaned"][..], &["orphan"][..]),
        (&["healthy"], &["healthy"]),
        (&["orphaned", "healthy"], &["healthy", "orphan"]),
        (&["late", "dead"], &[]),
        (&["running"], &["healthy", "orphan"]),
    ] {
        let mut command = sandbox.outlive(["ps", "--json", "--limit", "1"]);
        command.args(words.iter().flat_map(|word| ["--status", word]));
        let mut found = Vec::new();
        let mut page = command.json();
        loop {
            found.extend(page["runs"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap().to_owned()));
            let Some(next) = page["next"].as_str().map(str::to_owned) else { break };
            let mut command = sandbox.outlive(["ps", "--json", "--limit", "1", "--cursor", &next]);
            page = command.args(words.iter().flat_map(|word| ["--status", word])).json();
        }
        assert_eq!(found, names, "{words:?}");
    }
    let shown = sandbox.show("orphan");
    assert_eq!((&shown["leftover_pids"][0], &shown["leftover_names"][0]), (&child.into(), &"sleep".into()));
    let text = sandbox.outlive(["ps", "--status", "orphaned"]).succeeds();
    assert!(text.contains(&format!("still alive: pid {child} (sleep)")), "{text}");
    let reaped = sandbox.outlive(["reap"]).succeeds();
    assert!(reaped.contains(&format!("pid {child} (sleep)")), "{reaped}");
    signal_pid(child, "KILL");
}

#[test]
fn what_is_archived_is_hidden_and_not_gone() {
    let sandbox = Sandbox::impatient();
    let mut dead = sandbox.start("dead", &["sleep", "300"]);
    let _alive = sandbox.start("alive", &["sleep", "300"]);
    let child = child_of(dead.pid());
    dead.kill();
    signal_pid(child, "KILL");
    until("the command to be gone", || !is_alive(child));
    let refused = sandbox.outlive(["archive", "dead", "alive"]).fails_with(103);
    assert!(refused.contains("it is running; only a run that has ended can be archived"), "{refused}");
    assert_eq!(sandbox.show("dead")["archived"], false);
    sandbox.outlive(["archive", "--status", "running"]).fails_with(2);
    let nothing = sandbox.outlive(["archive", "--dry-run"]).fails_with(2);
    assert!(nothing.contains("--status") && nothing.contains("--older-than"), "{nothing}");
    let refused = sandbox.outlive(["rerun", "alive"]).fails_with(103);
    assert!(refused.contains("outlive rerun --force"), "{refused}");
    let dry = sandbox.outlive(["archive", "--status", "dead", "--dry-run"]).succeeds();
    assert!(dry.contains(" would be archived\n1 selected; nothing was archived; --yes archives\n"), "{dry}");
    assert!(sandbox.show("dead")["archived"] == false, "{dry}");
    // Nobody has put its death on record yet: that is done on the way.
    assert!(sandbox.outlive(["archive", "--status", "dead", "--yes"]).succeeds().ends_with(" archived\n"));
    let listed = |words: &[&str]| sandbox.outlive(words).json()["runs"].as_array().unwrap().len();
    assert_eq!((listed(&["ps", "--json"]), listed(&["ps", "--all", "--json"])), (1, 2));
    let run = sandbox.show("dead");
    assert_eq!(
        (&run["state"], &run["archived"], &run["owner"]),
        (&"dead".into(), &true.into(), &serde_json::Value::Null)
    );
    assert_eq!(sandbox.outlive(["archive", "--status", "dead"]).succeeds(), "nothing to archive\n");
    sandbox.outlive(["unarchive", "dead"]).succeeds();
    assert_eq!(listed(&["ps", "--json"]), 2);
}

#[test]
fn w01_workers_are_listed_with_their_runs_until_they_leave() {
    let sandbox = Sandbox::new();
    let none = sandbox.outlive(["workers"]).succeeds();
    assert!(none.starts_with("no workers in "), "{none}");
    let run = sandbox.start("busy", &["sleep", "300"]);
    let known = sandbox.outlive(["workers", "--json"]).json();
    let [worker] = known["workers"].as_array().unwrap().as_slice() else { panic!("{known}") };
    assert_eq!((worker["pid"].as_u64(), worker["runs"].as_u64()), (Some(run.pid().into()), Some(1)), "{known}");
    assert_eq!(worker["health"], "alive");
    let shown = sandbox.outlive(["workers"]).succeeds();
    assert!(shown.contains(worker["id"].as_str().unwrap()) && shown.contains("alive"), "{shown}");
    sandbox.outlive(["cancel", "--wait", "busy"]).succeeds();
    let known = || sandbox.outlive(["workers", "--json"]).json()["workers"].as_array().unwrap().len();
    until("the worker to say goodbye", || known() == 0);
}

#[test]
fn w01_a_worker_that_was_killed_is_not_called_alive() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.start("busy", &["sleep", "300"]);
    let child = child_of(owner.pid());
    owner.kill();
    let known = sandbox.outlive(["workers", "--json"]).json();
    assert_eq!((&known["workers"][0]["pid"], &known["workers"][0]["health"]), (&owner.pid().into(), &"gone".into()));
    signal_pid(child, "KILL");
}

/// Has the first attempt of a run end with its owner, and nothing of it left.
fn die(sandbox: &Sandbox, name: &str) {
    let script = "kill -9 $PPID";
    let ended = sandbox.outlive(["run", "--name", name, "--", "sh", "-c", script]).output().unwrap();
    assert!(!ended.status.success());
    sandbox.wait_for_state(name, "dead");
}

#[test]
fn t1_21_dead_run_shows_no_unknown_time() {
    let sandbox = Sandbox::new();
    die(&sandbox, "gone");
    assert_eq!(sandbox.show("gone")["duration_ms"], serde_json::Value::Null);
    sandbox.outlive(["reap"]).succeeds();
    let listed = sandbox.outlive(["ps"]).succeeds();
    assert!(listed.contains("gone") && !listed.contains("0ms"), "{listed}");
}

#[test]
fn t1_21_why_tells_many_reports_in_one_line_and_local_times() {
    let sandbox = Sandbox::new();
    let script = "for n in 1 2 3 4 5; do outlive progress $n; done";
    sandbox.outlive(["run", "--name", "talks", "--", "sh", "-ec", script]).succeeds();
    let why = sandbox.outlive(["why", "talks"]).env("TZ", "Asia/Tokyo").succeeds();
    let reports = why.lines().filter(|line| line.contains(" report ")).count();
    assert!(reports <= 1, "{why}");
    let created = sandbox.show("talks")["created_at"].as_str().unwrap().to_owned();
    assert!(!why.contains(&created[..13]), "times are not local: {why}");
}

#[test]
fn t1_21_show_tells_the_schedule_and_what_a_capped_log_keeps() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["queue", "add", "--name", "hourly", "--every", "1h30m", "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "nightly", "--cron", "0 3 * * *", "--", "true"]).succeeds();
    assert!(sandbox.outlive(["show", "hourly"]).succeeds().contains("every 1h 30m"));
    assert!(sandbox.show("nightly")["schedule"].as_str().unwrap().starts_with("cron 0 3 * * *"));
    sandbox.write_config("[logs]\ncap = \"256KiB\"\n");
    let script = "i=0; while [ $i -lt 300 ]; do head -c 10000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done";
    sandbox.outlive(["run", "-d", "--name", "chatty", "--", "sh", "-c", script]).succeeds();
    sandbox.wait_for_state("chatty", "succeeded");
    let logs = sandbox.show("chatty")["logs"].clone();
    let bytes: u64 = logs.as_array().unwrap().iter().map(|log| log["bytes"].as_u64().unwrap()).sum();
    assert!(bytes < 1 << 20, "3 MB were written, 256 KiB are kept: {logs}");
}

#[test]
fn outlive_alone_counts_unfinished_runs_and_lists_them() {
    let sandbox = Sandbox::new();
    let alone = || sandbox.outlive(std::iter::empty::<&str>()).succeeds();
    assert!(alone().ends_with("`outlive --help` lists the verbs.\n"), "{}", alone());
    assert!(!sandbox.work().join(".outlive").exists(), "a status page created a registry");
    let _running = sandbox.start("serving", &["sleep", "300"]);
    sandbox.outlive(["queue", "add", "--name", "later", "--", "true"]).succeeds();
    let page = alone();
    assert!(page.starts_with("In sqlite:"), "{page}");
    assert!(page.contains("\n  running          1\n  queue            1 pending; `outlive queue list`"), "{page}");
    assert!(page.contains("serving") && page.contains("later"), "{page}");
}

#[test]
fn a_sorted_list_is_paged_in_its_order_and_no_other() {
    let sandbox = Sandbox::new();
    for (name, priority) in [("b", "2"), ("c", "0"), ("a", "1")] {
        sandbox.outlive(["queue", "add", "--name", name, "--priority", priority, "--", "true"]).succeeds();
    }
    sandbox.outlive(["queue", "add", "--", "true"]).succeeds();
    let page = |words: &[&str]| {
        let answer = sandbox.outlive([&["ps", "--json", "-n", "3"][..], words].concat()).json();
        let names = answer["runs"].as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap_or("-").to_owned());
        (names.collect::<Vec<_>>().concat(), answer["next"].as_str().map(str::to_owned))
    };
    let (first, next) = page(&["--sort", "name"]);
    let next = next.unwrap();
    assert_eq!(first, "abc");
    assert_eq!(page(&["--sort", "name", "--cursor", &next]), ("-".into(), None));
    assert_eq!(page(&["--sort", "-priority"]).0, "ba-");
    assert_eq!(page(&["--sort", "created"]).0, "bca");
    let text = sandbox.outlive(["ps", "-n", "3", "--sort=-name"]).succeeds();
    assert!(text.contains("--sort=-name --limit 3 --cursor="), "{text}");
    let refused = |words: &[&str]| sandbox.outlive([&["ps"][..], words].concat()).fails_with(2);
    assert!(refused(&["--sort", "-name", "--cursor", &next]).contains("in the order of `name`, not of `-name`"));
    assert!(refused(&["--cursor", &next]).contains("is not the `next` of an earlier page"));
    assert!(refused(&["--sort", "size"]).contains("use one of created, started, ended"));
    assert!(refused(&["--sort", "name", "--global"]).contains("newest first"));
}
