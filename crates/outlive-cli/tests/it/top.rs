//! `outlive top` on a terminal that is not ours: driven by keys, and looked at.

use std::process::Command;

use super::sandbox::{Ends, Sandbox, is_alive, settled, until};

/// A terminal in which `outlive top` runs.
struct Screen<'a> {
    sandbox: &'a Sandbox,
}

impl Drop for Screen<'_> {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

impl<'a> Screen<'a> {
    fn start(sandbox: &'a Sandbox) -> Self {
        Self::sized(sandbox, "80", "8")
    }

    fn sized(sandbox: &'a Sandbox, columns: &str, lines: &str) -> Self {
        let screen = Self { sandbox };
        let words = [
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            columns,
            "-y",
            lines,
            "outlive top; echo left $?; exec sleep 300",
        ];
        screen.tmux(&words).succeeds();
        screen
    }

    fn tmux(&self, words: &[&str]) -> Command {
        let socket = self.sandbox.path().join("tmux").display().to_string();
        self.sandbox.command("tmux", ["-S", &socket].iter().chain(words))
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat()).succeeds();
    }

    /// What is on it, once it says so.
    fn says(&self, wanted: &str) -> String {
        let mut shown = String::new();
        until(&format!("the screen to say `{wanted}`"), || {
            shown = self.tmux(&["capture-pane", "-p"]).succeeds();
            shown.contains(wanted)
        });
        let settle = |line: &str| {
            let time = |word: &str| word.ends_with('s') && word.trim_end_matches(['m', 's']).parse::<f64>().is_ok();
            line.split_whitespace().map(|word| if time(word) { "[TIME]" } else { word }).collect::<Vec<_>>().join(" ")
        };
        shown.lines().map(settle).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn top_resumes_what_was_interrupted() {
    let sandbox = Sandbox::new();
    let mut stopped = sandbox.start("stopped", &["sh", "-c", "test -e go && exit 0; exec sleep 300"]);
    stopped.signal("TERM");
    stopped.wrapper.wait().unwrap();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    let screen = Screen::start(&sandbox);
    screen.press(&["a"]);
    screen.says("interrupted");
    screen.press(&["r"]);
    let asked = screen.says("resume stopped? y: yes, any other key: no");
    screen.press(&["y"]);
    let ended = sandbox.wait_for_state("stopped", "succeeded");
    assert_eq!(ended["attempt"], 2, "{ended}");
    let after = screen.says("succeeded");
    assert!(asked.contains("interrupted") && !after.contains("interrupted"), "{asked}\n---\n{after}");
    screen.press(&["q"]);
    screen.says("left 0");
}

#[test]
fn top_drops_a_filter_before_it_quits_and_tells_its_keys() {
    let sandbox = Sandbox::new();
    for name in ["apple", "melon"] {
        sandbox.outlive(["queue", "add", "--name", name, "--", "true"]).succeeds();
    }
    let screen = Screen::start(&sandbox);
    screen.says("top: 2 in flight");
    screen.press(&["/", "m", "e", "l", "Enter"]);
    screen.says("top: 1 in flight and in need of attention; filter: mel");
    screen.press(&["Escape"]);
    screen.says("top: 2 in flight");
    screen.press(&["?"]);
    screen.says("cancel it");
    screen.press(&["Escape"]);
    screen.says("RUN");
    screen.press(&["Escape"]);
    screen.says("left 0");
}

#[test]
fn top_cancels_the_confirmed_run_though_the_row_has_changed() {
    let sandbox = Sandbox::new();
    let _first = sandbox.start("first", &["sleep", "300"]);
    let screen = Screen::start(&sandbox);
    screen.says("> first");
    screen.press(&["c"]);
    screen.says("cancel first? y: yes, any other key: no");
    let _second = sandbox.start("second", &["sleep", "300"]);
    let shown = screen.says("second");
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[2].starts_with("second") && lines[3].starts_with("> first"), "{shown}");
    assert!(shown.ends_with("cancel first? y: yes, any other key: no"), "{shown}");
    screen.press(&["y"]);
    sandbox.wait_for_state("first", "cancelled");
    // Its owner is asked to stop; that it has is not known yet.
    screen.says("cancel: requested");
    let second = sandbox.show("second");
    assert_eq!((&second["state"], &second["cancel_requested_at"]), (&"running".into(), &serde_json::Value::Null));
}

#[test]
fn u05_s_11_top_shows_filters_and_cancels_runs() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    let script = "outlive progress 1/4; printf 'one \\033]0;title\\007 \\033[31mred\\n'; exec sleep 300";
    sandbox.outlive(["run", "-d", "--name", "talker", "--", "sh", "-c", script]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "later", "--", "true"]).succeeds();
    sandbox.wait_for("talker", |run| run["progress_done"] == 1);
    let screen = Screen::start(&sandbox);
    let mut seen = vec![screen.says("talker")];
    screen.press(&["a"]);
    seen.push(screen.says("done"));
    screen.press(&["/", "t", "a", "l", "k", "Enter"]);
    seen.push(screen.says("1 all runs; filter: talk"));
    screen.press(&["Enter"]);
    seen.push(screen.says("red"));
    screen.press(&["q", "c"]);
    seen.push(screen.says("cancel talker? y: yes, any other key: no"));
    screen.press(&["n"]);
    screen.says("nothing was done");
    let pid = sandbox.show("talker")["owner_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap();
    screen.press(&["c", "y"]);
    seen.push(screen.says("cancelled"));
    assert!(!is_alive(pid), "it is called cancelled and lives");
    screen.press(&["q"]);
    assert_eq!(screen.says("left 0"), "left 0", "the screen was not left as it was");
    let made_by = sandbox.show("talker")["created_by"].as_str().unwrap().to_owned();
    let by_user = format!("by {}", made_by.split('@').next().unwrap());
    insta::assert_snapshot!("top", settled(&sandbox, &seen.join("\n---\n")).replace(&by_user, "by [USER]"));
}

#[test]
fn t4_09_top_shows_details_and_searches_coloured_output() {
    let sandbox = Sandbox::new();
    let script = "outlive progress 3/4 'almost'; for i in $(seq 1 200); do echo line $i; done
                  printf '10%%\\r\\033[31mred alert\\033[0m\\n'; exec sleep 300";
    std::fs::write(sandbox.work().join("talk.sh"), script).unwrap();
    sandbox.outlive(["run", "-d", "--name", "talker", "--", "sh", "talk.sh"]).succeeds();
    sandbox.wait_for("talker", |run| run["progress_done"] == 3 && run["cpu_ms"].is_u64());
    let screen = Screen::sized(&sandbox, "140", "24");
    let listed = screen.says("> talker");
    assert!(listed.contains("CPU MEMORY") && listed.contains("3/4 75%") && listed.contains("memory "), "{listed}");
    screen.press(&["Enter"]);
    let detail = screen.says("red alert");
    assert!(detail.contains("state running") && detail.contains(" of CPU"), "{detail}");
    assert!(detail.contains("progress almost") && detail.contains("command sh talk.sh"), "{detail}");
    assert!(!detail.contains("[31m") && !detail.contains("10%"), "{detail}");
    let coloured = screen.tmux(&["capture-pane", "-p", "-e"]).succeeds();
    assert!(["[31mred alert", "[38;5;1mred alert"].iter().any(|red| coloured.contains(red)), "{coloured:?}");
    screen.press(&["PageUp", "PageUp"]);
    let above = screen.says("line 170");
    assert!(!above.contains("red alert"), "{above}");
    screen.press(&["/", "l", "i", "n", "e", "Space", "4", "2", "Enter"]);
    let found = screen.says("match 1 of 1, line 42");
    assert!(found.contains("line 41") && !found.contains("line 170"), "{found}");
    screen.press(&["End"]);
    screen.says("red alert");
    screen.press(&["q", "q"]);
    screen.says("left 0");
}

#[test]
fn t4_09_top_reruns_with_other_arguments() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "train", "--", "echo", "--lr", "two words"]).succeeds();
    let screen = Screen::sized(&sandbox, "110", "20");
    screen.press(&["a"]);
    screen.says("> train");
    screen.press(&["E"]);
    screen.says("rerun train with: --lr 'two words'");
    screen.press(&["Space", "-", "-", "fast", "Enter"]);
    screen.says("rerun: ");
    let made = sandbox.wait_for("train", |run| run["command"].as_array().is_some_and(|words| words.len() == 4));
    assert_eq!(made["command"], serde_json::json!(["echo", "--lr", "two words", "--fast"]), "{made}");
    screen.press(&["E", "'", "Enter"]);
    screen.says("'▏  Enter starts it, Esc drops it");
    screen.press(&["Escape"]);
    screen.says("nothing was done");
    screen.press(&["q"]);
    screen.says("left 0");
}

#[test]
fn top_lists_what_is_executed_behind_a_long_queue() {
    let sandbox = Sandbox::new();
    let _busy = sandbox.start("busy", &["sleep", "300"]);
    let line = |number: usize| format!("{{\"name\":\"job-{number:04}\",\"argv\":[\"true\"]}}\n");
    std::fs::write(sandbox.work().join("plan.jsonl"), (0..1_200).map(line).collect::<String>()).unwrap();
    sandbox.outlive(["queue", "add", "--file", "plan.jsonl", "--json"]).succeeds();
    let screen = Screen::start(&sandbox);
    screen.says("the first 1001 in flight");
    screen.press(&["/", "busy", "Enter"]);
    screen.says("> busy");
    screen.press(&["Escape", "q"]);
    screen.says("left 0");
}

#[test]
fn top_acts_on_marked_runs_and_shows_queue_keys_and_workers() {
    let sandbox = Sandbox::new();
    for name in ["one", "two", "three"] {
        sandbox.outlive(["queue", "add", "--name", name, "--lock", "db", "--", "true"]).succeeds();
    }
    let screen = Screen::sized(&sandbox, "110", "20");
    screen.says("pending 3");
    for (view, wanted) in [("queue", "queue list"), ("keys", "HELD BY"), ("workers", "no worker")] {
        screen.press(&[":"]);
        screen.says("runs, queue, keys, workers, stats or q");
        screen.press(&[view, "Enter"]);
        screen.says(wanted);
    }
    screen.press(&[":", "runs", "Enter"]);
    screen.says("> three");
    screen.press(&["Space", "Space", "c"]);
    let asked = screen.says("cancel 2 runs? y: yes, any other key: no");
    assert!(asked.contains("* three") && asked.contains("* two") && asked.contains("2 marked"), "{asked}");
    screen.press(&["y"]);
    screen.says("cancel: 2 runs");
    assert_eq!(sandbox.show("one")["state"], "pending");
    for name in ["two", "three"] {
        sandbox.wait_for_state(name, "cancelled");
    }
    screen.press(&["p"]);
    screen.says("paused");
    screen.press(&["a", "p"]);
    screen.says("3 all runs");
    screen.press(&["s"]);
    screen.says("by name");
    screen.press(&["R"]);
    screen.says("rerun one? y: yes");
    screen.press(&["n", "q"]);
    screen.says("left 0");
}

/// The lines of a screen that have one of these words.
fn lines_with(screen: &str, words: &[&str]) -> String {
    let has = |line: &&str| words.iter().any(|word| line.contains(word));
    screen.lines().filter(has).collect::<Vec<_>>().join("\n")
}

#[test]
fn top_does_the_everyday_tasks_of_an_operator() {
    let sandbox = Sandbox::new();
    for (argument, exit) in [("lr=1", "exit 0"), ("lr=2", "exit 1")] {
        let words = ["run", "--name", "train", "--kind", "train", "--", "bash", "-c", exit, argument];
        sandbox.outlive(words).output().unwrap();
    }
    sandbox.outlive(["run", "--kind", "slow", "--", "sleep", "0.3"]).succeeds();
    let dies = "echo working on shard 17; [ $OUTLIVE_ATTEMPT = 1 ] && kill -s KILL $PPID $$; exec sleep 300";
    sandbox.outlive(["run", "-d", "--name", "died", "--", "bash", "-c", dies]).succeeds();
    sandbox.wait_for_state("died", "dead");
    for number in 0..10 {
        sandbox.outlive(["queue", "add", "--name", &format!("batch-{number}"), "--", "true"]).succeeds();
    }
    let watched = "outlive progress 3/4; exec sleep 300";
    sandbox.outlive(["run", "-d", "--name", "watched", "--lock", "db", "--", "sh", "-c", watched]).succeeds();
    sandbox.outlive(["queue", "add", "--name", "waiter", "--lock", "db", "--", "true"]).succeeds();
    sandbox
        .outlive(["queue", "add", "--name", "daily", "--not-before", "20h", "--every", "24h", "--", "true"])
        .succeeds();
    sandbox.wait_for("watched", |run| run["progress_done"] == 3 && run["memory_bytes"].is_u64());
    let screen = Screen::sized(&sandbox, "140", "30");

    // Why last night's run died, and its next attempt.
    screen.says("dead");
    screen.press(&["/", "dead", "Enter"]);
    screen.says("top: 1 in flight and in need of attention; filter: dead");
    screen.press(&["Enter"]);
    let why = screen.says("working on shard 17");
    assert!(why.contains("state dead") && lines_with(&why, &["why"]).contains("owner"), "{why}");
    screen.press(&["/", "SHARD", "Enter"]);
    screen.says("match 1 of 1, line 1");
    screen.press(&["r"]);
    screen.says("resume died? y: yes");
    screen.press(&["y"]);
    assert_eq!(sandbox.wait_for_state("died", "running")["attempt"], 2);
    screen.press(&["q"]);
    screen.says("STATE");
    screen.press(&["Escape"]);
    screen.says("in need of attention\n");

    // Progress and memory of what runs; ten runs cancelled at once.
    let list = screen.says("watched");
    let line = lines_with(&list, &["watched running"]);
    assert!(list.contains("CPU MEMORY") && line.contains("3/4 75%") && line.contains(" MB"), "{list}");
    screen.press(&["/", "batch", "Enter"]);
    screen.says("top: 10 in flight and in need of attention; filter: batch");
    let marks = ["Space"; 10];
    screen.press(&marks);
    screen.says("10 marked");
    screen.press(&["c"]);
    let asked = screen.says("cancel 10 runs? y: yes");
    screen.press(&["y"]);
    screen.says("cancel: 10 runs");
    for number in 0..10 {
        sandbox.wait_for_state(&format!("batch-{number}"), "cancelled");
    }
    screen.press(&["Escape"]);
    screen.says("in need of attention\n");

    // Two runs compared.
    screen.press(&["d"]);
    screen.says("mark two runs with Space to compare them");
    screen.press(&["a"]);
    screen.says("all runs");
    screen.press(&["/", "train", "Enter"]);
    screen.says("top: 2 all runs; filter: train");
    screen.press(&["Space", "Space", "d"]);
    let differs = screen.says("lr=2");
    assert!(differs.contains("lr=1") && differs.contains("failed"), "{differs}");
    screen.press(&["q"]);
    screen.says("2 marked");

    // Who holds a lock, what is scheduled, and which kind is the slowest.
    let mut seen = vec![lines_with(&asked, &["top:", "batch", "cancel"])];
    for (view, wanted) in [("keys", "waiter"), ("queue", "daily"), ("stats", "slow")] {
        screen.press(&[":", view, "Enter"]);
        let shown = screen.says(wanted);
        match view {
            "keys" => seen.push(lines_with(&shown, &["KEY", "db"])),
            "queue" => assert!(lines_with(&shown, &["daily"]).contains("waits until"), "{shown}"),
            _ => assert!(shown.contains("P95") && shown.contains("train"), "{shown}"),
        }
    }
    insta::assert_snapshot!("everyday_tasks", settled(&sandbox, &seen.join("\n---\n")));
    for name in ["watched", "died"] {
        sandbox.outlive(["cancel", name, "--wait"]).succeeds();
    }
}
