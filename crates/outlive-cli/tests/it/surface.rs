//! What people and programs see: help, panels and JSON.

use super::sandbox::{Ends, Sandbox, Started, binary, masked, settled};

/// Every command but `run`, and whether it is for the inside of a run.
const VERBS: [(&str, bool); 66] = [
    ("step", true),
    ("ps", false),
    ("show", false),
    ("why", false),
    ("wait", false),
    ("output", false),
    ("logs", false),
    ("attach", false),
    ("adopt", false),
    ("send", false),
    ("cancel", false),
    ("resume", false),
    ("unpark", false),
    ("pause", false),
    ("unpause", false),
    ("reap", false),
    ("sweep", false),
    ("rerun", false),
    ("search", false),
    ("history", false),
    ("list", false),
    ("stats", false),
    ("gc", false),
    ("registry add", false),
    ("registry remove", false),
    ("registry list", false),
    ("registry refresh", false),
    ("registry show", false),
    ("registry check", false),
    ("queue add", false),
    ("queue list", false),
    ("queue show", false),
    ("queue cancel", false),
    ("queue edit", false),
    ("queue drain", false),
    ("queue beat", false),
    ("queue done", false),
    ("queue release", false),
    ("archive", false),
    ("unarchive", false),
    ("rm", false),
    ("progress", true),
    ("checkpoint set", true),
    ("checkpoint get", true),
    ("artifact add", true),
    ("artifact manifest", true),
    ("fence check", true),
    ("workers", false),
    ("service install", false),
    ("service remove", false),
    ("service status", false),
    ("token create", false),
    ("token list", false),
    ("token revoke", false),
    ("init", false),
    ("trust", false),
    ("doctor", false),
    ("mcp install", false),
    ("result", false),
    ("diff", false),
    ("grep", false),
    ("keys", false),
    ("facets", false),
    ("import", false),
    ("completions", false),
    ("man", false),
];

fn help(sandbox: &Sandbox, verb: &str) -> String {
    sandbox.outlive(verb.split(' ').chain(["--help"])).succeeds()
}

#[test]
fn the_help_is_as_it_was_agreed() {
    let sandbox = Sandbox::new();
    let mut all = sandbox.outlive(["--help"]).succeeds();
    for verb in STAYING.into_iter().chain(OF_A_DATABASE).chain(VERBS.map(|(verb, _)| verb)) {
        all.push_str(&format!("\n# {verb}\n{}", help(&sandbox, verb)));
    }
    insta::assert_snapshot!("help", all);
}

/// The most lines of a short help: what a screen shows.
const SCREEN: usize = 40;

#[test]
fn short_help_of_every_verb_fits_on_a_screen() {
    let sandbox = Sandbox::new();
    let short = |verb: &str| sandbox.outlive(verb.split_whitespace().chain(["-h"])).succeeds().lines().count();
    let verbs = STAYING.into_iter().chain(OF_A_DATABASE).chain(VERBS.map(|(verb, _)| verb)).chain([""]);
    let long: Vec<(&str, usize)> = verbs.map(|verb| (verb, short(verb))).filter(|(_, lines)| *lines > SCREEN).collect();
    assert_eq!(long, [], "more than {SCREEN} lines");
}

/// What the examples of a verb are about: `train`, `nightly`, and what else it takes.
fn prepare(sandbox: &Sandbox, verb: &str) -> Vec<Started> {
    let command = match verb {
        "wait" | "logs" | "attach" => ["sleep", "1"],
        "adopt" | "resume" => ["sleep", "3"],
        _ => ["sleep", "300"],
    };
    match verb {
        "unpark" => {
            super::resuming::park(sandbox, "train");
            return Vec::new();
        }
        "queue show" | "queue cancel" | "queue edit" | "pause" | "unpause" => {
            sandbox.outlive(["queue", "add", "--name", "nightly", "--", "true"]).succeeds();
            if verb == "unpause" {
                sandbox.outlive(["pause", "nightly"]).succeeds();
            }
            return Vec::new();
        }
        "import" => {
            let row = r#"{"id": 1, "status": "DONE", "created_at": "2026-01-01T00:00:00Z"}"#;
            std::fs::write(sandbox.path().join("task_run.jsonl"), format!("{row}\n")).unwrap();
            return Vec::new();
        }
        "result" => {
            super::sandbox::make_result(sandbox, "migrate");
            return Vec::new();
        }
        "send" => {
            let words = ["run", "-d", "--stdin", "--name", "repl", "--", "sh", "-c", "read line; echo \"$line\""];
            sandbox.outlive(words).succeeds();
        }
        "queue add" => {
            sandbox.outlive(["queue", "add", "--name", "build", "--", "true"]).succeeds();
            std::fs::write(sandbox.work().join("jobs.jsonl"), "{\"argv\":[\"true\"]}\n").unwrap();
        }
        "service install" | "service remove" => {
            // The program that keeps crontabs, for a table of this sandbox.
            let bin = sandbox.path().join("bin");
            std::fs::create_dir(&bin).unwrap();
            std::fs::write(bin.join("crontab"), "#!/bin/sh\ncase $1 in -) cat > /dev/null;; esac\n").unwrap();
            sandbox.command("chmod", ["+x", bin.join("crontab").to_str().unwrap()]).succeeds();
            if verb == "service remove" {
                let mut install = sandbox.outlive(["service", "install", "--yes"]);
                install.env("XDG_CONFIG_HOME", sandbox.path().join("config")).succeeds();
            }
        }
        _ => {}
    }
    let mut train = sandbox.start("train", &command);
    match verb {
        "adopt" => train.kill(),
        "resume" => {
            train.signal("TERM");
            train.wrapper.wait().unwrap();
        }
        _ => {}
    }
    vec![train, sandbox.start("nightly", &command)]
}

/// Commands that stay with a terminal, or go on until they are stopped.
const STAYING: [&str; 6] = ["run", "serve", "mcp", "top", "work", "supervise"];

/// Commands for a database alone, which `history_export.rs` calls.
const OF_A_DATABASE: [&str; 1] = ["history export"];

#[test]
fn every_command_is_among_those_whose_examples_are_tried() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["man", "pages"]).succeeds();
    let pages = std::fs::read_dir(sandbox.work().join("pages")).unwrap().flatten();
    let names: Vec<String> = pages.filter_map(|page| page.file_name().into_string().ok()).collect();
    let verbs = names.iter().filter_map(|name| name.strip_prefix("outlive-")?.strip_suffix(".1"));
    for verb in verbs.map(|verb| verb.replace('-', " ")) {
        let is_group = VERBS.iter().any(|(known, _)| known.starts_with(&format!("{verb} ")));
        let is_tried = VERBS.iter().any(|(known, _)| *known == verb);
        let is_elsewhere = STAYING.contains(&verb.as_str()) || OF_A_DATABASE.contains(&verb.as_str());
        assert!(is_tried || is_group || is_elsewhere, "the examples of `{verb}` are not tried");
    }
}

/// Tries the examples of one part of the commands.
fn examples_work(part: usize) {
    let mut examples = 0;
    for (verb, inside) in VERBS.into_iter().skip(part).step_by(PARTS) {
        let help = help(&Sandbox::new(), verb);
        let lines = help.split("Examples:").nth(1).unwrap_or_else(|| panic!("{verb} has no example")).lines();
        for example in lines.map(str::trim).filter(|line| !line.is_empty()) {
            let sandbox = Sandbox::impatient();
            let _runs = prepare(&sandbox, verb);
            let mut example = example.replace("/srv", sandbox.path().to_str().unwrap());
            if example.contains(BUCKET) {
                let url = outlive::testing::bucket::Bucket::shared().fresh_url();
                example = example.replace(BUCKET, &format!("'{url}'"));
            }
            if inside {
                example = format!("outlive run -- sh -ec 'outlive checkpoint set 1; {}'", example.replace('\'', "\""));
            }
            let path = format!("{}:{}", sandbox.path().join("bin").display(), std::env::var("PATH").unwrap());
            let found = binary().parent().unwrap().display();
            let mut shell = sandbox.shell(&example);
            shell.env("PATH", format!("{found}:{path}")).env("XDG_CONFIG_HOME", sandbox.path().join("config"));
            let output = shell.output().unwrap();
            // `service status` says by its exit status that no supervisor works.
            let fits = if verb == "service status" { output.status.code() == Some(1) } else { output.status.success() };
            assert!(fits, "`{example}`: {}", String::from_utf8_lossy(&output.stderr));
            examples += 1;
        }
    }
    assert!(examples >= VERBS.len() / PARTS);
}

/// The bucket of examples.
const BUCKET: &str = "s3://bucket/prefix";

/// In how many parts examples are tried, each beside the others.
const PARTS: usize = 3;

#[test]
fn every_example_of_the_help_works() {
    examples_work(0);
}

#[test]
fn every_example_of_the_help_works_of_the_second_part() {
    examples_work(1);
}

#[test]
fn every_example_of_the_help_works_of_the_third_part() {
    examples_work(2);
}

#[test]
fn the_panels_are_as_they_were_agreed() {
    let sandbox = Sandbox::new();
    let mut panels = Vec::new();
    let mut panel = |words: &[&str]| {
        let output = sandbox.outlive(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let text = settled(&sandbox, &said);
        // Whether runs have control groups differs from one machine to the next, and what they use from time to time.
        let lines = text.lines().filter(|line| !line.contains("control group") && !line.starts_with("used "));
        let lines: Vec<String> = with_equal_times(lines).iter().map(|line| without_durations(line)).collect();
        let durations = lines.join("\n");
        panels.push(format!("$ outlive {}\n{durations}\n", words.join(" ")));
    };
    panel(&["ps"]);
    panel(&["ps", "--all"]);
    panel(&["doctor"]);
    panel(&["doctor", "--registry", "sqlite:/etc/hostname"]);
    sandbox.outlive(["run", "--name", "good", "--label", "team=search", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "bad", "--", "sh", "-c", "exit 3"]).status().unwrap();
    let mut run = sandbox.start("killed", &["sh", "-c", "exec sleep 300"]);
    let child = super::running::child_of(run.pid());
    run.kill();
    super::sandbox::signal_pid(child, "KILL");
    sandbox.wait_for_state("killed", "dead");
    panel(&["ps", "--all"]);
    panel(&["show", "good"]);
    panel(&["show", "bad"]);
    panel(&["why", "killed"]);
    panel(&["reap", "--dry-run"]);
    panel(&["reap"]);
    panel(&["why", "killed"]);
    panel(&["show", "killed"]);
    panel(&["ps"]);
    panel(&["trust", "good"]);
    panel(&["doctor"]);
    panel(&["cancel", "--all"]);
    panel(&["cancel", "--all", "--yes"]);
    panel(&["archive", "--status", "dead", "--dry-run"]);
    panel(&["archive", "killed"]);
    panel(&["archive", "killed"]);
    panel(&["ps"]);
    panel(&["ps", "--all", "--status", "dead"]);
    panel(&["unarchive", "killed"]);
    panel(&["unarchive", "killed"]);
    panel(&["ps", "--limit", "1", "--all", "--kind", "command"]);
    sandbox.outlive(["run", "--name", "busy", "--", "sh", "-ec", REPORTS]).succeeds();
    panel(&["show", "busy"]);
    insta::assert_snapshot!("panels", panels.join("\n"));
}

/// A command that says all that can be said from inside a run.
const REPORTS: &str = "outlive progress 2/3 'half way, and more'; outlive checkpoint set '{\"epoch\": 4}'; \
                       outlive artifact add model.bin; outlive artifact add 'other model.bin'; echo made it";

/// Lines of a panel with the column TIME of a table as wide as its mask: it is as wide as the durations in it, and all
/// columns behind it are moved by that.
fn with_equal_times<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut column: Option<(usize, usize)> = None;
    let mut equal = Vec::new();
    for line in lines {
        if line.starts_with("ID ") {
            let from = line.find(" TIME ").map(|at| at + 1);
            column = from.map(|from| (from, line.len() - line[from + 4..].trim_start().len()));
        } else if !line.starts_with("[ID]") {
            column = None;
        }
        let cell = column.and_then(|(from, to)| Some((line.get(..from)?, line.get(from..to)?, line.get(to..)?)));
        equal.push(match cell {
            Some((before, cell, after)) => {
                let is_time = cell.contains(|c: char| c.is_ascii_digit());
                format!("{before}{:<8}{after}", if is_time { "[TIME]" } else { cell.trim() })
            }
            None => line.to_owned(),
        });
    }
    equal
}

/// Durations, hosts and pids differ from one machine and moment to the next. Columns stay as they are printed.
pub(crate) fn without_durations(line: &str) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_duration = |word: &str| {
        let word = word.trim_start_matches(['(', '+']);
        let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        number.len() < word.len() && !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    let mut words: Vec<String> = Vec::new();
    let mut rest = line.split(' ').peekable();
    while let Some(word) = rest.next() {
        let is_pid =
            words.last().is_some_and(|last| last.ends_with("pid")) && word.contains(|c: char| c.is_ascii_digit());
        if is_duration(word) && word.starts_with('+') {
            // It is moved to the right by as much as it is shorter.
            while words.len() > 1 && words[words.len() - 2..].iter().all(String::is_empty) {
                words.pop();
            }
        }
        let mask = if is_duration(word) {
            format!("{}[TIME]", if word.starts_with('(') { "(" } else { "" })
        } else if is_pid {
            word.chars().filter(|c| !c.is_ascii_digit()).fold("[PID]".into(), |all: String, c| all + &c.to_string())
        } else {
            let of_person = word.split_once(&format!("@{host}"));
            of_person.map_or_else(|| word.to_owned(), |(_, rest)| format!("[USER]@[HOST]{rest}"))
        };
        words.push(masked(&mask, word, rest.peek()));
    }
    words.join(" ").trim_end().to_owned()
}

#[test]
fn json_is_flat_versioned_and_paged() {
    let sandbox = Sandbox::new();
    for index in 0..5 {
        sandbox.outlive(["run", "--name", &format!("run-{index}"), "--", "true"]).succeeds();
    }
    let mut names = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut command = sandbox.outlive(["ps", "--all", "--limit", "2", "--json"]);
        command.args(after.iter().flat_map(|next| ["--cursor", next]));
        let page = command.json();
        assert_eq!(page["schema"], 1);
        let runs = page["runs"].as_array().unwrap();
        assert!(runs.len() <= 2);
        for run in runs {
            for field in [
                "id",
                "name",
                "state",
                "health",
                "attempt",
                "epoch",
                "owner",
                "created_at",
                "started_at",
                "ended_at",
                "updated_at",
            ] {
                assert!(run.get(field).is_some(), "no `{field}` in {run}");
            }
            let nested = run
                .as_object()
                .unwrap()
                .iter()
                .filter(|(name, value)| value.is_object() && !["labels", "ports"].contains(&name.as_str()));
            assert_eq!(nested.count(), 0, "{run}");
            names.push(run["name"].as_str().unwrap().to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.into()),
            None => break,
        }
    }
    assert_eq!(names, ["run-4", "run-3", "run-2", "run-1", "run-0"]);
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    let script = "set -o pipefail; for i in $(seq 20); do outlive ps --all | true; done; echo done";
    assert_eq!(sandbox.command("bash", ["-ec", script]).succeeds(), "done\n");
}

#[test]
fn c02_a_read_writes_not_a_byte_not_even_a_registry() {
    let sandbox = Sandbox::new();
    for words in
        [&["ps"][..], &["ps", "--all", "--json"], &["reap", "--dry-run"], &["doctor"], &["cancel", "--all", "--yes"]]
    {
        sandbox.outlive(words).succeeds();
    }
    assert!(!sandbox.registry().exists(), "a read made a registry");
}

#[test]
fn l25_the_same_names_in_two_registries_never_meet() {
    let (one, other) = (Sandbox::new(), Sandbox::new());
    let mut run = one.start("same", &["sleep", "300"]);
    other.outlive(["run", "--name", "same", "--", "true"]).succeeds();
    assert_eq!(other.show("same")["state"], "succeeded");
    other.outlive(["cancel", "--all", "--yes"]).succeeds();
    assert_eq!(one.show("same")["state"], "running");
    run.signal("TERM");
    run.wrapper.wait().unwrap();
}

#[test]
fn group_member_sees_all_runs_and_executes_only_its_own() {
    if !super::sandbox::is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let url = format!("sqlite:{}", sandbox.path().join("shared").display());
    sandbox.outlive(["--registry", &url, "init", "--shared"]).succeeds();
    sandbox.outlive(["--registry", &url, "run", "--name", "roots", "--", "true"]).succeeds();
    sandbox.shell(&format!("chmod 711 {}", sandbox.path().display())).succeeds();
    let home = sandbox.path().join("others-home");
    let script = format!(
        "mkdir -m 700 {0}; chown 65534 {0}; cd /; setpriv --reuid=65534 --regid=65534 --groups=0 sh -ec 'export OUTLIVE_HOME={0}; umask 077; \
         outlive --registry {url} run --name theirs -- true; outlive --registry {url} ps --all --json'",
        home.display()
    );
    let seen: serde_json::Value = serde_json::from_str(&sandbox.shell(&script).succeeds()).unwrap();
    let of = |seen: &serde_json::Value, name: &str| {
        seen["runs"].as_array().unwrap().iter().find(|run| run["name"] == name).cloned().unwrap()
    };
    assert_eq!((&of(&seen, "roots")["trusted"], &of(&seen, "theirs")["trusted"]), (&false.into(), &true.into()));
    assert!(of(&seen, "theirs")["created_by"].as_str().unwrap().starts_with("nobody@"), "{seen}");
    // And the first user again, after the other has written.
    let mine = sandbox.outlive(["--registry", &url, "ps", "--all", "--json"]).json();
    assert_eq!((&of(&mine, "roots")["trusted"], &of(&mine, "theirs")["trusted"]), (&true.into(), &false.into()));
    sandbox.outlive(["--registry", &url, "run", "--", "true"]).succeeds();
}
