//! The queue: what waits, for what, and who executes it.

use std::process::Stdio;

use serde_json::Value;

use super::resuming::kill_everything;
use super::sandbox::{Ends, Sandbox, settled, signal_pid, text, until};

fn add(sandbox: &Sandbox, name: &str, flags: &[&str], script: &str) -> String {
    let words = ["queue", "add", "--name", name].into_iter().chain(flags.iter().copied());
    sandbox.outlive(words.chain(["--", "sh", "-c", script])).succeeds().trim().to_owned()
}

fn lines(sandbox: &Sandbox, file: &str) -> Vec<String> {
    std::fs::read_to_string(sandbox.work().join(file)).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn drain(sandbox: &Sandbox, slots: &str) -> i32 {
    let drained = sandbox.outlive(["work", "--drain", "--slots", slots]).output().unwrap();
    drained.status.code().unwrap_or_else(|| panic!("{}", text(&drained.stderr)))
}

#[test]
fn the_queue_is_executed_by_priority_and_then_by_age() {
    let sandbox = Sandbox::new();
    for (name, priority) in [("third", "1"), ("fourth", "1"), ("first", "-7"), ("second", "0")] {
        add(&sandbox, name, &["--priority", priority], &format!("echo {name} >> order"));
    }
    let mut listed = settled(&sandbox, &sandbox.outlive(["queue", "list"]).succeeds());
    add(&sandbox, "later", &["--not-before", "1h"], "echo later >> order");
    listed.push_str(&settled(&sandbox, &sandbox.outlive(["queue", "show", "fourth"]).succeeds()));
    insta::assert_snapshot!(listed);
    assert_eq!(drain(&sandbox, "1"), 0);
    assert_eq!(lines(&sandbox, "order"), ["first", "second", "third", "fourth"]);
    assert_eq!(sandbox.show("later")["state"], "pending", "a drain waits for no clock");
    sandbox.outlive(["queue", "cancel", "later"]).succeeds();
    assert_eq!(sandbox.outlive(["queue", "list"]).succeeds(), "nothing is queued\n");
}

#[test]
fn run_for_a_handler_is_left_by_work_and_needs_a_program() {
    let sandbox = Sandbox::new();
    for kind in ["migrate", "migrate", "resize"] {
        sandbox.outlive(["queue", "add", "--kind", kind, "--input", "{}"]).succeeds();
    }
    let mut said = settled(&sandbox, &sandbox.outlive(["queue", "list"]).succeeds());
    let drained = sandbox.outlive(["work", "--drain", "--slots", "2"]).output().unwrap();
    assert_eq!(drained.status.code(), Some(0));
    said.push_str(&text(&drained.stderr));
    insta::assert_snapshot!(said);
}

#[test]
fn queue_add_with_wait_ends_with_the_exit_status() {
    let sandbox = Sandbox::new();
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let waited = |script: &str| sandbox.outlive(["queue", "add", "--wait", "--", "sh", "-c", script]).output().unwrap();
    let failed = waited("exit 7");
    assert_eq!(failed.status.code(), Some(7), "{}", text(&failed.stderr));
    insta::assert_snapshot!(settled(&sandbox, &text(&failed.stdout)));
    assert_eq!(waited("kill -TERM $$").status.code(), Some(143));
    assert_eq!(waited("exit 0").status.code(), Some(0));
    signal_pid(worker.id(), "TERM");
    worker.wait().unwrap();
}

#[test]
fn worker_executes_other_runs_until_the_next_attempt_is_due() {
    let sandbox = Sandbox::new();
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    add(&sandbox, "later", &["--retry", "1", "--backoff", "1h", "--notify", "touch told"], "exit 3");
    sandbox.wait_for("later", |run| run["state"] == "pending" && run["attempt"] == 2);
    sandbox.outlive(["queue", "add", "--wait", "--", "true"]).succeeds();
    signal_pid(worker.id(), "TERM");
    assert!(worker.wait().unwrap().success(), "it waited for what is not due");
    assert!(!sandbox.work().join("told").exists(), "it has not ended");
    // A drain waits for whatever time a policy sets.
    sandbox.outlive(["cancel", "later"]).succeeds();
    add(&sandbox, "soon", &["--retry", "1", "--backoff", "10ms", "--notify", "touch told"], "[ $OUTLIVE_ATTEMPT = 2 ]");
    assert_eq!(drain(&sandbox, "1"), 0, "an attempt that failed is not the end of its run");
    assert_eq!((&sandbox.show("soon")["state"], &sandbox.show("soon")["attempt"]), (&"succeeded".into(), &2.into()));
    until("whoever wants to know to be told", || sandbox.work().join("told").exists());
}

#[test]
fn a_run_that_is_retried_at_once_notifies_only_of_its_end() {
    let sandbox = Sandbox::new();
    let script = "[ $OUTLIVE_ATTEMPT = 2 ] || exit 3; until [ -e go ]; do sleep 0.02; done";
    add(&sandbox, "again", &["--retry", "1", "--backoff", "0s", "--notify", "cat >> told; echo >> told"], script);
    let mut worker = sandbox.outlive(["work", "--drain"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sandbox.wait_for("again", |run| run["state"] == "running" && run["attempt"] == 2);
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert!(worker.wait().unwrap().success());
    until("the notification", || lines(&sandbox, "told").iter().any(|line| line.contains("\"succeeded\"")));
    assert_eq!(lines(&sandbox, "told").len(), 1, "it was notified of more than its end");
}

#[test]
fn many_workers_execute_each_run_once() {
    let sandbox = Sandbox::new();
    let plan: String = (0..60)
        .map(|n| format!("{}\n", serde_json::json!({ "argv": ["sh", "-c", format!("echo {n} >> done")] })))
        .collect();
    std::fs::write(sandbox.work().join("plan.jsonl"), plan).unwrap();
    assert_eq!(sandbox.outlive(["queue", "add", "--file", "plan.jsonl"]).succeeds().lines().count(), 60);
    let workers: Vec<_> = (0..3)
        .map(|_| {
            sandbox
                .outlive(["work", "--drain", "--slots", "2", "--json"])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut ended = Vec::new();
    for worker in workers {
        let output = worker.wait_with_output().unwrap();
        assert!(output.status.success());
        let events = text(&output.stdout);
        ended.push(events.lines().filter(|line| line.contains("\"ended\"")).count());
    }
    println!("the three workers executed {ended:?}");
    assert_eq!(ended.iter().sum::<usize>(), 60, "a run was executed by nobody, or by two");
    let mut done: Vec<usize> = lines(&sandbox, "done").iter().map(|line| line.parse().unwrap()).collect();
    done.sort_unstable();
    assert_eq!(done, (0..60).collect::<Vec<_>>());
}

#[test]
fn r09_dependents_of_a_failed_run_fail_or_start_by_policy() {
    let sandbox = Sandbox::new();
    add(&sandbox, "parent", &[], "exit 4");
    add(&sandbox, "needs", &["--needs", "parent"], "echo needs >> order");
    add(&sandbox, "grandchild", &["--needs", "needs"], "echo grandchild >> order");
    add(&sandbox, "cleanup", &["--needs-any", "needs", "--needs-any", "parent"], "echo cleanup >> order");
    let waits = sandbox.show("needs");
    assert!(waits["reason"].as_str().unwrap().starts_with("waits for"), "{waits}");
    assert_eq!(drain(&sandbox, "2"), 1, "a drain in which something failed says so");
    assert_eq!(lines(&sandbox, "order"), ["cleanup"]);
    for name in ["needs", "grandchild"] {
        let run = sandbox.show(name);
        assert_eq!((&run["state"], &run["error_type"]), (&"failed".into(), &"parent".into()), "{run}");
    }
    // One that may yet be resumed keeps those who wait for it waiting.
    sandbox.outlive(["run", "-d", "--name", "crashed", "--", "sleep", "300"]).succeeds();
    kill_everything(&sandbox);
    add(&sandbox, "patient", &["--needs", "crashed"], "true");
    assert_eq!(drain(&sandbox, "1"), 0);
    assert_eq!(sandbox.show("patient")["state"], "pending");
}

#[test]
fn a_queued_run_waits_for_its_key_and_says_for_which() {
    let sandbox = Sandbox::new();
    add(&sandbox, "holder", &["--lock", "db"], "until [ -e go ]; do sleep 0.02; done");
    add(&sandbox, "waiter", &["--lock", "db"], "true");
    let mut worker = sandbox
        .outlive(["work", "--drain", "--slots", "2"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    sandbox.wait_for_state("holder", "running");
    let waits = sandbox.show("waiter");
    let holder = sandbox.show("holder")["id"].as_str().unwrap().to_owned();
    assert_eq!(waits["reason"], format!("waits for key `db`, held by `{holder}`"));
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert!(worker.wait().unwrap().success());
    assert_eq!(sandbox.show("waiter")["state"], "succeeded");
}

#[test]
fn concurrent_adds_of_a_unique_run_make_one() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let words = ["queue", "add", "--unique", "report", "--json", "--", "true"];
    let adding: Vec<_> = (0..8).map(|_| sandbox.outlive(words).stdout(Stdio::piped()).spawn().unwrap()).collect();
    let mut runs = Vec::new();
    for added in adding {
        let output = added.wait_with_output().unwrap();
        assert!(output.status.success());
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        runs.push(answer["runs"][0].clone());
    }
    let made: Vec<&Value> = runs.iter().filter(|run| run["made"] == true).collect();
    println!("{} of {} made it", made.len(), runs.len());
    assert_eq!(made.len(), 1, "{runs:?}");
    assert!(runs.iter().all(|run| run["id"] == made[0]["id"]), "{runs:?}");
    let id = made[0]["id"].as_str().unwrap();
    let said = sandbox.outlive(["queue", "add", "--unique", "report", "--", "true"]).succeeds();
    assert_eq!(said, format!("{id} is there already\n"));
    let refused = sandbox.outlive(["run", "--unique", "report", "--", "true"]).fails_with(105);
    assert!(refused.contains(&format!("unique key `report` is held by {}", &id[..18])), "{refused}");
    // It is over when it has ended, and not before.
    assert_eq!(drain(&sandbox, "1"), 0);
    sandbox.outlive(["run", "--unique", "report", "--", "true"]).succeeds();
    let refused = sandbox.outlive(["queue", "add", "--every", "1h", "--unique", "report", "--", "true"]).fails_with(2);
    assert!(refused.contains("again and again"), "{refused}");
}

#[test]
fn a_unique_run_whose_owner_was_killed_keeps_no_other_out() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "-d", "--name", "killed", "--unique", "report", "--", "sleep", "300"]).succeeds();
    kill_everything(&sandbox);
    let added = sandbox.outlive(["queue", "add", "--unique", "report", "--json", "--", "true"]).json();
    assert_eq!(added["runs"][0]["made"], true, "{added}");
    assert_eq!(sandbox.show("killed")["state"], "dead");
    // It is not gone on with while there is another.
    let refused = sandbox.outlive(["resume", "killed"]).fails_with(2);
    assert!(refused.contains("unique key `report`"), "{refused}");
}

#[test]
fn rate_limits_starts_and_waiting_runs_say_until_when() {
    let sandbox = Sandbox::new();
    for name in ["one", "two", "three"] {
        add(&sandbox, name, &["--rate", "api=2/1h"], "true");
    }
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sandbox.wait_for_state("two", "succeeded");
    let waits = sandbox.show("three");
    let reason = waits["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("waits for rate `api` of 2 in 1h 0m, free at "), "{waits}");
    let listed = sandbox.outlive(["queue", "list"]).succeeds();
    assert!(listed.contains("waits for rate `api`"), "{listed}");
    let refused = sandbox.outlive(["run", "--rate", "api=2/1h", "--", "true"]).fails_with(105);
    assert!(refused.contains("is used up; the next may start at"), "{refused}");
    sandbox.outlive(["run", "--rate", "api=3/1h", "--", "true"]).succeeds();
    signal_pid(worker.id(), "TERM");
    worker.wait().unwrap();
    for wrong in ["api", "api=2", "api=x/1m", "api=2/never", "api=2/0s", "=2/1m"] {
        sandbox.outlive(["queue", "add", "--rate", wrong, "--", "true"]).fails_with(2);
    }
}

#[test]
fn recurring_work_recurs_and_ends_when_it_is_removed() {
    let sandbox = Sandbox::new();
    add(&sandbox, "tick", &["--every", "1s"], "echo tick >> ticks");
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it to have come three times", || lines(&sandbox, "ticks").len() >= 3);
    sandbox.outlive(["queue", "cancel", "--all", "--yes"]).succeeds();
    signal_pid(worker.id(), "TERM");
    worker.wait().unwrap();
    let runs = sandbox.runs();
    let executed = runs.iter().filter(|run| run["state"] == "succeeded").count();
    assert_eq!(lines(&sandbox, "ticks").len(), executed);
    assert_eq!(runs.iter().filter(|run| run["state"] == "pending").count(), 0, "it comes again");
    // Every slot was made once, however often it was looked at.
    let mut slots: Vec<String> = runs.iter().map(|run| run["id"].to_string()).collect();
    slots.dedup();
    assert_eq!(slots.len(), runs.len());
}

#[test]
fn stopping_worker_finishes_its_runs_and_claims_no_more() {
    let sandbox = Sandbox::new();
    add(&sandbox, "current", &[], "touch begun; until [ -e go ]; do sleep 0.02; done; echo whole > whole");
    add(&sandbox, "next", &[], "true");
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it to begin", || sandbox.work().join("begun").exists());
    signal_pid(worker.id(), "TERM");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert!(worker.wait().unwrap().success());
    assert_eq!(sandbox.show("current")["state"], "succeeded");
    assert_eq!(lines(&sandbox, "whole"), ["whole"]);
    assert_eq!(sandbox.show("next")["state"], "pending");
}

#[test]
fn a_worker_that_is_killed_loses_nothing_that_it_is_at() {
    let sandbox = Sandbox::new();
    add(&sandbox, "current", &[], "touch begun; until [ -e go ]; do sleep 0.02; done");
    add(&sandbox, "next", &[], "true");
    let mut worker = sandbox.outlive(["work"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("it to begin", || sandbox.work().join("begun").exists());
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert_eq!(sandbox.show("current")["health"], "healthy");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.outlive(["wait", "current"]).succeeds();
    assert_eq!(sandbox.show("next")["state"], "pending", "hands without a head went on");
}

#[test]
fn bad_input_is_refused_with_the_reason_and_adds_nothing() {
    let sandbox = Sandbox::new();
    add(&sandbox, "there", &[], "true");
    let plan = |lines: &[Value]| {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(sandbox.work().join("plan"), text).unwrap();
    };
    let argv = serde_json::json!(["true"]);
    let mut refusals = Vec::new();
    let mut refuse = |words: &[&str]| {
        let refused = sandbox.outlive(["queue", "add"].iter().chain(words)).output().unwrap();
        assert!(!refused.status.success(), "{words:?} was taken");
        refusals.push(format!("{words:?}: {}", settled(&sandbox, &text(&refused.stderr))));
    };
    refuse(&["--needs", "nosuch", "--", "true"]);
    refuse(&["--cron", "0 0 31 2 *", "--", "true"]);
    refuse(&["--cron", "* * * *", "--", "true"]);
    refuse(&["--every", "0s", "--", "true"]);
    refuse(&["--not-before", "yesterday", "--", "true"]);
    refuse(&["--missed", "skip", "--", "true"]);
    refuse(&["--max-concurrent", "gpu=0", "--", "true"]);
    refuse(&["--name", "none"]);
    refuse(&["--resume-on", "never,crash", "--", "true"]);
    refuse(&["--file", "nosuch"]);
    plan(&[
        serde_json::json!({ "name": "a", "argv": argv, "needs": ["b"] }),
        serde_json::json!({ "name": "b", "argv": argv, "needs": ["a"] }),
    ]);
    refuse(&["--file", "plan"]);
    plan(&[serde_json::json!({ "name": "a", "argv": argv }), serde_json::json!({ "name": "a", "argv": argv })]);
    refuse(&["--file", "plan"]);
    plan(&[serde_json::json!({ "name": "a", "argv": argv }), serde_json::json!({ "naem": "b", "argv": argv })]);
    refuse(&["--file", "plan"]);
    insta::assert_snapshot!(refusals.join("\n"));
    let names: Vec<Value> = sandbox.runs().iter().map(|run| run["name"].clone()).collect();
    assert_eq!(names, ["there"], "something was added in spite of it");
}

#[test]
fn s_01_run_of_another_user_is_not_executed_before_trust() {
    let sandbox = Sandbox::new();
    add(&sandbox, "foreign", &["--notify", "touch notified"], "touch executed");
    let mine = sandbox.path().join("another home");
    let work = |words: &[&str]| sandbox.outlive(words).env("OUTLIVE_HOME", &mine).output().unwrap();
    assert_eq!(work(&["work", "--drain"]).status.code(), Some(106));
    assert!(work(&["supervise", "--once"]).status.success());
    assert!(!sandbox.work().join("executed").exists(), "a stranger's command was executed");
    assert!(work(&["trust", "foreign", "--yes"]).status.success());
    assert!(work(&["work", "--drain"]).status.success());
    assert!(sandbox.work().join("executed").exists());
    until("it to be notified", || sandbox.work().join("notified").exists());
}

/// The processes whose command line has all of these words.
fn pids_of(words: &[&str]) -> Vec<u32> {
    let names = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let has_words = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        words.iter().all(|word| line.contains(word))
    };
    pids.filter(has_words).collect()
}

/// Starts a worker on a registry in `place`. Answers when its slots wait for work.
fn idle_worker(sandbox: &Sandbox, place: &std::path::Path, slots: usize) -> (std::process::Child, String) {
    std::fs::create_dir(place).unwrap();
    let registry = format!("sqlite:{}", place.join("registry").display());
    let mut work = sandbox.outlive(["work", "--slots", &slots.to_string(), "--registry", &registry]);
    let worker = work.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let waits = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/wchan")).is_ok_and(|wchan| wchan.contains("poll"))
            && std::fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|fds| fds.count() > 5)
    };
    until("the slots to wait for work", || {
        pids_of(&["__slot", &registry]).iter().filter(|pid| waits(pid)).count() == slots
    });
    (worker, registry)
}

/// Removes a directory while these processes stand still: one that runs may make in it what it misses.
fn remove_under(place: &std::path::Path, pids: &[u32]) {
    pids.iter().for_each(|pid| signal_pid(*pid, "STOP"));
    std::fs::remove_dir_all(place).unwrap();
    pids.iter().for_each(|pid| signal_pid(*pid, "CONT"));
}

#[test]
fn t1_24_slots_of_a_killed_worker_end_without_a_registry() {
    let sandbox = Sandbox::new();
    let place = sandbox.path().join("elsewhere");
    let (mut worker, registry) = idle_worker(&sandbox, &place, 2);
    remove_under(&place, &pids_of(&["__slot", &registry]));
    worker.kill().unwrap();
    worker.wait().unwrap();
    until("the slots to end", || pids_of(&["__slot", &registry]).is_empty());
    assert!(!place.exists(), "a slot has made the registry again");
}

#[test]
fn t1_24_worker_whose_registry_is_gone_ends_with_a_message() {
    let sandbox = Sandbox::new();
    let place = sandbox.path().join("elsewhere");
    let (worker, registry) = idle_worker(&sandbox, &place, 1);
    remove_under(&place, &pids_of(&["__slot", &registry]));
    let ended = worker.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("is gone"), "{}", text(&ended.stderr));
}

/// How often the main thread of a process has slept and was woken.
fn wakeups(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/status")).unwrap_or_default();
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

#[test]
fn t1_07_idle_slots_and_waiters_sleep_through_other_reports() {
    const REPORTS: u64 = 200;
    let sandbox = Sandbox::new();
    let (mut worker, registry) = idle_worker(&sandbox, &sandbox.path().join("elsewhere"), 2);
    let script = format!(
        "while [ ! -e go ]; do sleep 0.05; done
         for done in $(seq {REPORTS}); do outlive progress $done; done
         touch reported; while [ ! -e end ]; do sleep 0.05; done"
    );
    let run = |name: &str, script: &str| {
        let words = ["run", "-d", "--registry", &registry, "--name", name, "--", "sh", "-c", script];
        sandbox.outlive(words).succeeds();
    };
    run("reports", &script);
    run("quiet", "while [ ! -e end ]; do sleep 0.05; done");
    let waiter = sandbox.outlive(["wait", "--registry", &registry, "quiet"]).stdout(Stdio::null()).spawn().unwrap();
    let mut idle = pids_of(&["__slot", &registry]);
    assert_eq!(idle.len(), 2);
    idle.push(waiter.id());
    until("all to wait", || idle.iter().all(|pid| wakeups(*pid) > 0));
    let before: Vec<u64> = idle.iter().map(|pid| wakeups(*pid)).collect();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    until("the reports", || sandbox.work().join("reported").exists());
    let woken: Vec<u64> = idle.iter().zip(before).map(|(pid, before)| wakeups(*pid) - before).collect();
    println!("{woken:?} wake-ups beside {REPORTS} reports");
    assert!(woken.iter().all(|woken| *woken < REPORTS / 2), "{woken:?} wake-ups beside {REPORTS} reports");
    std::fs::write(sandbox.work().join("end"), "").unwrap();
    assert!(waiter.wait_with_output().unwrap().status.success(), "the end of the run did not wake its waiter");
    signal_pid(worker.id(), "TERM");
    worker.wait().unwrap();
}

#[test]
fn t1_18_wait_says_that_no_worker_serves_the_run() {
    use std::io::{BufRead, BufReader};
    let sandbox = Sandbox::new();
    add(&sandbox, "unserved", &[], "true");
    let late = sandbox.outlive(["wait", "unserved", "--timeout", "10ms"]).output().unwrap();
    insta::assert_snapshot!(settled(&sandbox, &text(&late.stderr)));
    let mut followers: Vec<_> = [["wait", "unserved"].as_slice(), &["logs", "-f", "unserved"], &["attach", "unserved"]]
        .iter()
        .map(|words| {
            let command = &mut sandbox.outlive(words.iter());
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.contains("no worker or supervisor is there")), "{words:?} said nothing");
            (child, lines)
        })
        .collect();
    assert_eq!(drain(&sandbox, "1"), 0);
    for (child, _) in &mut followers {
        assert!(child.wait().unwrap().success());
    }
}
