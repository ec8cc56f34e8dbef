//! Bad input: a clear error, a status of its own, nothing lost.

use super::sandbox::{Ends, Sandbox, settled};

/// What `outlive` says to these words, with its exit status.
fn said(sandbox: &Sandbox, words: &[&str]) -> String {
    let output = sandbox.outlive(words).output().unwrap();
    let code = output.status.code().unwrap();
    settled(
        sandbox,
        &format!("exit {code}\n{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
    )
}

#[test]
fn every_refusal_says_what_to_what_and_what_next() {
    let sandbox = Sandbox::new();
    for name in ["twin", "twin-2"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    // The kernel passes no word on that is longer than 128 KiB; the library is given a megabyte in its own tests.
    let long = "x".repeat(100_000);
    let cases: [(&str, &[&str]); 28] = [
        ("unknown name", &["show", "missing"]),
        ("unknown id", &["why", "01890000-0000-7000-8000-000000000000"]),
        ("path as id", &["show", "../../etc/passwd"]),
        ("ambiguous beginning", &["show", "01"]),
        ("cancel of an ended run", &["cancel", "twin"]),
        ("name too long", &["run", "--name", &long, "--", "true"]),
        ("escape in name", &["run", "--name", "a\u{1b}[2Jb", "--", "true"]),
        ("name that is a word for a run", &["run", "--name", "@last", "--", "true"]),
        ("name like an id", &["run", "--name", "01a1e1d5-a1db", "--", "true"]),
        ("empty name", &["run", "--name", "", "--", "true"]),
        ("registry that is not there", &["--registry", "sqlite:/nowhere", "show", "twin"]),
        ("unknown state", &["ps", "--status", "running-ish"]),
        ("unknown page", &["ps", "--cursor", "nowhere"]),
        ("page of nothing", &["ps", "--limit", "0"]),
        ("label without value", &["run", "--label", "team", "--", "true"]),
        ("limit without number", &["run", "--max-concurrent", "gpu", "--", "true"]),
        ("flag of an earlier version", &["run", "--limit", "gpu=2", "--", "true"]),
        ("dependency by its earlier name", &["queue", "add", "--after", "twin", "--", "true"]),
        ("verb of another tool", &["kill", "twin"]),
        ("number that is none", &["logs", "-n", "x", "twin"]),
        ("edit without a change", &["queue", "edit", "twin"]),
        ("result of a command", &["result", "twin"]),
        ("entry that is a run", &["queue", "done", "twin", "--epoch", "1"]),
        ("unknown token", &["token", "revoke", "zz"]),
        ("unknown repository", &["registry", "remove", "/nowhere"]),
        ("resume of a run that has ended", &["resume", "--dry-run", "twin", "twin-2", "missing"]),
        ("unknown registry", &["--registry", "ftp://x", "ps"]),
        ("registry that is a file", &["--registry", "sqlite:/etc/hostname", "ps"]),
    ];
    let all: Vec<String> = cases.iter().map(|(what, words)| format!("# {what}\n{}", said(&sandbox, words))).collect();
    for refused in &all {
        assert!(refused.contains("\nhint: ") || refused.contains("  twin"), "no next step: {refused}");
    }
    insta::assert_snapshot!("refusals", without_ages(&all.join("\n")));
    assert_eq!(sandbox.runs().len(), 2, "a refused run was registered");
}

/// Ages differ from one moment to the next.
fn without_ages(text: &str) -> String {
    let is_age =
        |word: &str| word.ends_with("ms") || word.ends_with('s') && word.starts_with(|c: char| c.is_ascii_digit());
    let line = |line: &str| {
        line.split(' ').map(|word| if is_age(word) { "[AGE]" } else { word }).collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn run_in_a_missing_registry_is_reported_as_such() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!(said(&sandbox, &["show", "missing"]), @r"
    exit 101
    error: no run `missing`: there is no registry at `[SANDBOX]/work/.outlive`
    hint: the first `outlive run -- COMMAND` makes it; `outlive init` makes one in this directory
    ");
}

#[test]
fn errors_are_json_where_json_was_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    let output = sandbox.outlive(["show", "missing", "--json"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(101), true));
    let body: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&body["schema"], &body["error"]["code"]), (&1.into(), &"not_found".into()));
    assert!(body["error"]["hint"].as_str().unwrap().contains("outlive ps --all"));
}

#[test]
fn calls_that_make_no_sense_are_json_too() {
    let sandbox = Sandbox::new();
    let mut all = String::new();
    let calls: [&[&str]; 6] = [
        &["ps", "--nope", "--json"],
        &["--json", "sho", "x"],
        &["--json"],
        &["run", "--json"],
        &["run", "--json", "--nmae", "x", "--", "true"],
        &["cancel", "x", "--grace", "soon", "--json"],
    ];
    for words in calls {
        let output = sandbox.outlive(words).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{words:?}");
        let body: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        let error = &body["error"];
        assert_eq!(error["code"], "invalid");
        let said = format!("{}\n  {}\n", error["message"].as_str().unwrap(), error["hint"].as_str().unwrap());
        all.push_str(&format!("$ outlive {}\n  {said}", words.join(" ")));
    }
    insta::assert_snapshot!("usage", all);
    // What belongs to the command asks for nothing of ours.
    let said = sandbox.outlive(["run", "--nope", "--", "echo", "--json"]).fails_with(2);
    assert!(said.starts_with("error: "), "{said}");
}

#[test]
fn a_command_needs_no_dashes_before_it_and_keeps_its_own() {
    let sandbox = Sandbox::new();
    for (words, said) in [
        (&["run", "echo", "hi"][..], "hi\n"),
        (&["run", "--name", "x", "echo", "--name", "--json", "--", "y"], "--name --json -- y\n"),
        (&["run", "--", "echo", "--", "hi"], "-- hi\n"),
    ] {
        assert_eq!(sandbox.outlive(words).succeeds(), said);
    }
    assert_eq!(sandbox.outlive(["run", "sh", "-c", "exit 3"]).status().unwrap().code(), Some(3));
}

#[test]
fn commands_that_cannot_start_fail_with_the_shells_status() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.work().join("plain"), "not a program").unwrap();
    for (name, word, code) in [("missing", "/nonexistent", 127), ("plain", "./plain", 126), ("directory", "/", 126)] {
        let said = sandbox.outlive(["run", "--name", name, "--", word]).fails_with(code);
        assert!(said.starts_with(&format!("error: `{word}` cannot be executed")), "{said}");
        for detach in [&[][..], &["-d"]] {
            let words = [&["run", "--json"], detach, &["--", word]].concat();
            let body: serde_json::Value = serde_json::from_str(&sandbox.outlive(words).fails_with(code)).unwrap();
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.starts_with(&format!("`{word}` cannot be executed")), "{body}");
            assert_eq!((&body["schema"], &body["error"]["code"]), (&1.into(), &"invalid".into()));
        }
        let run = sandbox.show(name);
        assert_eq!(
            (&run["state"], &run["error_type"], &run["exit_code"]),
            (&"failed".into(), &"spawn".into(), &code.into())
        );
    }
}

#[test]
fn l16_impossible_configuration_is_refused_before_the_start() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let mut all = Vec::new();
    for config in
        ["beat = \"5s\"\nlease = \"10s\"", "beat = \"0s\"", "lease = \"-1s\"", "on_end = \"evil\"", "nonsense"]
    {
        sandbox.write_config(config);
        all.push(format!("# {}\n{}", config.replace('\n', ", "), said(&sandbox, &["run", "--", "touch", "started"])));
    }
    let url = "postgres://me:secret@127.0.0.1:1/db";
    sandbox.write_home_config(&format!("[registries.\"{url}\"]\non_end = \"evil\"\n"));
    let said = said(&sandbox, &["--registry", url, "run", "--", "touch", "started"]);
    all.push(format!("# on_end = \"evil\", of a URL, in the home\n{said}"));
    insta::assert_snapshot!("configurations", all.join("\n"));
    assert!(!sandbox.work().join("started").exists());
}

#[test]
fn u05_s_01_s_05_hostile_records_are_shown_and_not_trusted() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "victim", "--", "echo", "\u{1b}]0;owned\u{7}\u{202e}"]).succeeds();
    let shown = sandbox.outlive(["show", "victim"]).succeeds();
    assert!(shown.contains(r"echo $'\033]0;owned\007\342\200\256'") && !shown.contains('\u{1b}'), "{shown}");
    assert!(sandbox.show("victim")["trusted"] == true);
    // Another user's home: the same registry, and nothing in it is theirs to execute until they allow it.
    let other = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.env("OUTLIVE_HOME", sandbox.path().join("other-home"));
        command
    };
    assert_eq!(other(&["show", "victim", "--json"]).json()["trusted"], false);
    assert!(other(&["trust", "victim"]).succeeds().contains("nothing was changed"));
    assert_eq!(other(&["show", "victim", "--json"]).json()["trusted"], false);
    assert!(other(&["trust", "victim", "--yes"]).succeeds().contains("allowed"));
    assert_eq!(other(&["show", "victim", "--json"]).json()["trusted"], true);
}

#[test]
fn a_directory_that_holds_other_things_is_not_made_a_registry() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.work().join("README"), "mine").unwrap();
    let refused = sandbox.outlive(["--registry", "sqlite:.", "run", "--", "true"]).fails_with(109);
    assert!(refused.contains("is no registry and holds other things"), "{refused}");
    assert!(!sandbox.work().join(".gitignore").exists());
}

#[test]
fn s_05_pipe_in_place_of_the_configuration_hangs_nothing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    sandbox.command("mkfifo", [".outlive/config.toml"]).succeeds();
    let refused = sandbox.outlive(["run", "--", "true"]).fails_with(2);
    assert!(refused.contains("it is not a file"), "{refused}");
}

#[test]
fn s_05_link_in_place_of_a_registry_file_is_not_followed() {
    let elsewhere = Sandbox::new();
    for (name, says) in [
        ("registry.id", "registry.id"),
        ("registry.db", "registry.db"),
        ("config.toml", "config.toml"),
        ("runs", "runs"),
        ("workers", "workers"),
    ] {
        let sandbox = Sandbox::new();
        sandbox.outlive(["run", "--", "true"]).succeeds();
        sandbox.write_config("beat = \"1s\"");
        let (inside, outside) = (sandbox.work().join(".outlive").join(name), elsewhere.path().join(name));
        std::fs::rename(&inside, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &inside).unwrap();
        let output = sandbox.outlive(["run", "--", "true"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{name} was followed: {said}");
    }
}

#[test]
fn t1_21_a_blank_name_is_refused() {
    let sandbox = Sandbox::new();
    for name in [" ", "\u{3000}"] {
        assert!(sandbox.outlive(["run", "--name", name, "--", "true"]).fails_with(2).contains("empty name"));
    }
}

#[test]
fn t1_21_times_of_day_and_several_units_are_accepted() {
    let sandbox = Sandbox::new();
    for (number, at) in ["18:00", "tomorrow", "tomorrow 9:00", "1h30m", "1w", "2099-01-01 09:30"].iter().enumerate() {
        let name = format!("job-{number}");
        sandbox.outlive(["queue", "add", "--name", &name, "--not-before", at, "--", "true"]).succeeds();
        assert!(sandbox.show(&name)["not_before"].is_string(), "{at}");
    }
    let said = sandbox.outlive(["queue", "add", "--not-before", "soon", "--", "true"]).fails_with(2);
    assert!(said.contains("such as 18:00"), "{said}");
}

#[test]
fn t1_21_denied_home_is_reported_alike_by_every_verb() {
    let sandbox = Sandbox::new();
    std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
    // Nothing can be made below it, not even by root.
    let denied = std::path::Path::new("/proc/outlive-home");
    for words in [&["run", "--", "true"][..], &["queue", "add", "--", "true"]] {
        let status = sandbox.outlive(words).env("OUTLIVE_HOME", denied).output().unwrap().status.code();
        assert!(matches!(status, Some(107 | 109)), "{words:?}: {status:?}");
    }
}
