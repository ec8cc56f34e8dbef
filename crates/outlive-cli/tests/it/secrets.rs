//! Secrets: nothing that a registry holds or a command says has one in it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::sandbox::{Ends, Sandbox, text};
use super::served::{Agent, Served};
use super::serving::read_until;

const CORPUS: &str = include_str!("../../../outlive/tests/corpus/secrets.txt");

/// A line of the corpus: its words, and the secrets among them.
fn command(line: &str) -> (Vec<String>, Vec<String>) {
    let line = line.replace('~', "");
    let bare = line.replace(['«', '»'], "");
    // Only behind the first tab can a word have spaces in it.
    let (plain, rest) = bare.split_once('\t').map_or((bare.as_str(), None), |(plain, rest)| (plain, Some(rest)));
    let rest = rest.into_iter().flat_map(|rest| rest.split('\t'));
    let words = plain.split(' ').chain(rest).map(str::to_owned).collect();
    let secrets = line.split('«').skip(1).filter_map(|rest| rest.split('»').next()).map(str::to_owned).collect();
    (words, secrets)
}

pub(super) fn files(below: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(below).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            files.extend(self::files(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}

/// Every byte below a directory.
pub(super) fn all_bytes(below: &Path) -> Vec<u8> {
    files(below).iter().filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

pub(super) fn holds(bytes: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(bytes).contains(text)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

/// Everything that the commands say of every run.
pub(super) fn all_said(sandbox: &Sandbox) -> Vec<u8> {
    let mut said = Vec::new();
    let mut say = |words: &[&str]| {
        for json in [&["--json"][..], &[]] {
            let output = sandbox.outlive([words, json].concat()).output().unwrap();
            said.extend([output.stdout, output.stderr].concat());
        }
    };
    say(&["ps", "--all", "--limit", "1000"]);
    say(&["doctor"]);
    for run in sandbox.runs() {
        let id = run["id"].as_str().unwrap();
        say(&["show", id]);
        say(&["why", id]);
        say(&["trust", id]);
    }
    said
}

#[test]
fn s_28_secret_of_a_command_line_is_not_stored_or_printed() {
    let sandbox = Sandbox::new();
    let mut secrets = Vec::new();
    let lines: Vec<&str> = CORPUS.lines().filter(|line| !line.starts_with('#')).collect();
    let runs: Vec<&[&str]> = lines.chunks(12).collect();
    for lines in &runs {
        // A program that hears all of it, and does nothing. A semicolon ends each command, as it would in a script.
        let mut run = sandbox.outlive(["run", "--", "sh", "-c", "test -n \"$*\"", "sh"]);
        for (words, found) in lines.iter().map(|line| command(line)) {
            run.args(words).arg(";");
            secrets.extend(found);
        }
        run.succeeds();
    }
    assert!(secrets.len() >= 60 && sandbox.runs().len() == runs.len());
    let (stored, said) = (all_bytes(&sandbox.registry()), all_said(&sandbox));
    assert!(holds(&stored, "[redacted]") && holds(&said, "[redacted]"));
    let leaked = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        secrets.iter().filter(|secret| text.contains(*secret)).cloned().collect::<Vec<_>>()
    };
    assert_eq!((leaked(&stored), leaked(&said)), (vec![], vec![]));

    let kept = files(&sandbox.home().join("argv"));
    assert_eq!(kept.len(), runs.len(), "one file for each command with a secret");
    assert_eq!(mode(&sandbox.home().join("argv")), 0o700);
    assert!(kept.iter().all(|file| mode(file) == 0o600));
}

#[test]
fn s_28_sealed_words_of_a_run_that_never_was_are_deleted() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true", "--password", "canary-a"]).succeeds();
    let kept = files(&sandbox.home().join("argv"));
    let [known] = kept.as_slice() else { panic!("{kept:?}") };
    // As if whoever was to record the others had been killed before that; one was to be recorded elsewhere.
    let (fresh, old) = ("00000000-0000-7000-8000-000000000001.json", "00000000-0000-7000-8000-000000000002.json");
    let elsewhere = sandbox.home().join("argv/00000000-0000-7000-8000-000000000003.json");
    let (fresh, old) = (known.with_file_name(fresh), known.with_file_name(old));
    for copy in [&fresh, &old] {
        std::fs::copy(known, copy).unwrap();
    }
    std::fs::write(&elsewhere, "{\"argv\":[],\"seal\":\"\",\"registry\":\"another\"}").unwrap();
    for file in [known, &old, &elsewhere] {
        sandbox.command("touch", ["-d", "2 hours ago", file.to_str().unwrap()]).succeeds();
    }
    let said = text(&sandbox.outlive(["doctor"]).output().unwrap().stdout);
    assert!(said.contains("00000000-0000-7000-8000-000000000002, which was never recorded"), "{said}");
    assert!(old.exists());
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    assert_eq!([known, &fresh, &old, &elsewhere].map(|file| file.exists()), [true, true, false, true]);
    sandbox.outlive(["doctor"]).succeeds();
}

#[test]
fn s_28_a_command_without_secrets_leaves_nothing_in_the_home() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true", "--token-count", "5"]).succeeds();
    assert!(!sandbox.home().join("argv").exists());
    assert_eq!(sandbox.show("@last")["command"], serde_json::json!(["true", "--token-count", "5"]));
}

#[test]
fn s_28_arguments_are_not_stored_where_that_is_asked_for() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--no-argv", "--name", "quiet", "--", "sh", "-c", "exit 0", "canary-9471"]).succeeds();
    assert_eq!(sandbox.show("quiet")["command"], serde_json::json!(["sh"]));
    assert!(!holds(&all_bytes(sandbox.path()), "canary-9471"));
}

#[test]
fn s_28_messages_reasons_and_labels_are_stored_masked() {
    let sandbox = Sandbox::new();
    let script = "outlive progress 1 'login with --password canary-1-pw'; exec sleep 300";
    let words = ["run", "--name", "talker", "--label", "token=canary-2-tok", "--label", "team=search", "--"];
    let mut run = sandbox.outlive(words.into_iter().chain(["sh", "-ec", script])).spawn().unwrap();
    sandbox.wait_for("talker", |run| run["progress_message"].is_string());
    let cancel = ["cancel", "talker", "--reason", "leaked postgres://app:canary-3-pw@db/x"];
    sandbox.outlive(cancel).succeeds();
    run.wait().unwrap();
    let shown = sandbox.wait_for_state("talker", "cancelled");
    assert_eq!(shown["labels"], serde_json::json!({"team": "search", "token": "[redacted]"}));
    assert_eq!(shown["progress_message"], "login with --password [redacted]");
    assert_eq!(shown["reason"], "by root: leaked postgres://app:[redacted]@db/x".replace("root", &user(&shown)));
    // And a message of the library's own: the program that cannot be started bears a secret in its name.
    sandbox.outlive(["run", "--name", "spawn", "--", "/nonexistent/--token=canary-4-tok"]).fails_with(127);
    let everything = [all_bytes(&sandbox.registry()), all_said(&sandbox)].concat();
    for canary in ["canary-1-pw", "canary-2-tok", "canary-3-pw", "canary-4-tok"] {
        assert!(!holds(&everything, canary), "{canary} was stored or said");
    }
}

/// Runs that know a secret, and words of theirs that may be told.
#[test]
fn u04_s_28_no_secret_is_sent_over_http_mcp_or_as_an_event() {
    let sandbox = Sandbox::new();
    // Put together here: nobody who searches this file for keys finds one.
    let canary = format!("AKIA{}", "Q7ZC4XKD9WTN2VBE");
    let url = format!("postgres://app:{canary}@db/x");
    let served = Served::start(&sandbox, &["--allow", "destroy"]);
    let mut changes = served.listen("/v1/changes");
    let mut heard = read_until(&mut changes, "event: hello");
    let label = format!("key={canary}");
    let script = format!("outlive progress 1 'with {canary}'; exec sleep 300");
    let words = ["run", "-d", "--name", "talker", "--label", &label, "--", "sh", "-c", &script, "sh", &canary, &url];
    sandbox.outlive(words).succeeds();
    sandbox.wait_for("talker", |run| run["progress_message"].is_string());
    let queued = serde_json::json!({ "name": "later", "labels": [&label], "argv": ["true", &canary, &url] });
    let mut told = vec![served.post("/v1/queue/add", &queued).body];
    sandbox.outlive(["cancel", "talker", "--reason", &format!("it leaked {canary}")]).succeeds();
    sandbox.wait_for_state("talker", "cancelled");
    heard.push_str(&read_until(&mut changes, "it leaked"));
    sandbox.outlive(["registry", "refresh"]).succeeds();
    let calls = [
        ("ps", serde_json::json!({ "all": true })),
        ("show", serde_json::json!({ "run": "talker" })),
        ("show", serde_json::json!({ "run": url })),
        ("why", serde_json::json!({ "run": "talker" })),
        ("output", serde_json::json!({ "run": "talker" })),
        ("queue list", serde_json::json!({})),
        ("queue show", serde_json::json!({ "run": "later" })),
        ("search", serde_json::json!({ "query": ["talker"] })),
        ("history", serde_json::json!({})),
        ("list", serde_json::json!({})),
        ("stats", serde_json::json!({})),
        ("rerun", serde_json::json!({ "run": "talker", "dry_run": true })),
        ("doctor", serde_json::json!({})),
    ];
    let session = served.begin_mcp();
    let mut agent = Agent::start(&sandbox, &["--allow", "destroy"]);
    for (operation, input) in &calls {
        let tool = operation.replace(' ', "_");
        told.push(served.post(&format!("/v1/{}", operation.replace(' ', "/")), input).body);
        told.push(agent.call(&tool, input).to_string());
        let call = serde_json::json!({ "name": tool, "arguments": input });
        told.push(served.mcp("tools/call", &call, Some(&session)).body);
    }
    told.push(agent.ask("resources/list", serde_json::json!({})).to_string());
    told.extend(["/", "/metrics", "/v1/openapi.json"].map(|path| served.get(path).body));
    let all = [told.concat(), heard].concat();
    assert!(all.matches("[redacted]").count() >= 20, "nothing was masked: {all}");
    for secret in [&canary, &canary.to_lowercase()] {
        assert!(!all.contains(secret), "{}", all.split(secret.as_str()).next().unwrap());
    }
}

fn user(run: &serde_json::Value) -> String {
    run["created_by"].as_str().unwrap().split('@').next().unwrap().to_owned()
}

#[test]
fn s_28_patterns_of_the_configuration_are_masked_too() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    sandbox.write_config("[redact]\npatterns = ['ACME-[0-9]+']\n");
    sandbox.outlive(["run", "--", "true", "ACME-9471", "--password", "canary-5"]).succeeds();
    assert_eq!(sandbox.show("@last")["command"], serde_json::json!(["true", "[redacted]", "--password", "[redacted]"]));
    // With patterns that cannot be understood nothing starts, and nothing that is said meanwhile is stored.
    sandbox.write_config("");
    let _run = sandbox.start("held", &["sleep", "300"]);
    sandbox.write_config("[redact]\npatterns = ['ACME-(']\n");
    let refused = sandbox.outlive(["run", "--", "touch", "started"]).fails_with(2);
    assert_eq!(refused, "error: `[redact]` of config.toml: the pattern `ACME-(`: unclosed group\n");
    assert!(!sandbox.work().join("started").exists());
    sandbox.outlive(["cancel", "held", "--reason", "ACME-9471"]).succeeds();
    assert_eq!(
        sandbox.wait_for_state("held", "cancelled")["reason"].as_str().unwrap().split(": ").nth(1),
        Some("[redacted]")
    );
}

#[test]
fn t1_23_logs_are_masked_unless_the_home_says_otherwise() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let output = r#"{"token": "world", "best_token": "the"} best_token=Paris --password canary-log-9"#;
    let print = |name: &str| sandbox.outlive(["run", "--name", name, "--", "printf", "%s\n", output]).succeeds();
    let logs = |name: &str| sandbox.outlive(["logs", name]).succeeds();
    assert_eq!(print("first"), format!("{output}\n"), "the terminal shows what the command writes");
    let masked = output.replace("canary-log-9", &"*".repeat("canary-log-9".len()));
    assert_eq!(logs("first"), format!("{masked}\n"));
    // A repository cannot have less masked.
    sandbox.write_config("[logs]\nmask = false\n");
    sandbox.outlive(["run", "--", "true"]).fails_with(2);
    sandbox.write_config("");
    sandbox.write_home_config("[logs]\nmask = false\n");
    print("second");
    assert_eq!(logs("second"), format!("{output}\n"));
    assert_eq!(logs("first"), format!("{masked}\n"), "what was masked before stays so");
}

#[test]
fn s_35_repository_configuration_masks_more_and_never_less() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let config = "[redact]\ndefaults = false\npatterns = ['ACME-[0-9]+']\n";
    sandbox.write_config(config);
    sandbox.outlive(["run", "--", "true", "ACME-9471", "--password", "canary-8-pw"]).succeeds();
    assert_eq!(sandbox.show("@last")["command"], serde_json::json!(["true", "[redacted]", "--password", "[redacted]"]));
    assert!(!holds(&all_bytes(&sandbox.registry()), "canary-8-pw"));
    let said = text(&sandbox.outlive(["doctor"]).output().unwrap().stdout);
    assert!(said.contains("problem") && said.contains("`defaults = false`"), "{said}");
    // What lies in the home is this user's own.
    let home = sandbox.home().join("registry");
    let own = ["--registry", &format!("sqlite:{}", home.display())];
    sandbox.outlive(own.into_iter().chain(["init"])).succeeds();
    std::fs::write(home.join("config.toml"), config).unwrap();
    sandbox.outlive(own.into_iter().chain(["run", "--", "true", "ACME-9471", "--password", "plain"])).succeeds();
    let seen = sandbox.outlive(own.into_iter().chain(["show", "@last", "--json"])).json();
    assert_eq!(seen["command"], serde_json::json!(["true", "[redacted]", "--password", "plain"]));
}

#[test]
fn s_29_the_environment_is_not_stored() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.outlive(["run", "--", "sh", "-ec", "test \"$CANARY\" = canary-6-env"]);
    run.env("CANARY", "canary-6-env").env("AWS_SECRET_ACCESS_KEY", "canary-7-env").succeeds();
    let everything = [all_bytes(sandbox.path()), all_said(&sandbox)].concat();
    assert!(!holds(&everything, "canary-7-env"));
    // The script names it; its value came from the environment alone.
    assert!(holds(&everything, "$CANARY"));
}

#[test]
fn s_31_an_error_does_not_repeat_the_password_of_a_url() {
    let sandbox = Sandbox::new();
    for json in [&["--json"][..], &[]] {
        let words = [&["--registry", "mysql://app:canary-8-pw@db/x", "ps"], json].concat();
        let said = sandbox.outlive(words).fails_with(2);
        assert!(said.contains("mysql://app:[redacted]@db/x"), "{said}");
        let words = [&["--registry", "mysql://app:canary-8-pw@db/x", "run"], json, &["--", "true"]].concat();
        assert!(!sandbox.outlive(words).fails_with(2).contains("canary-8-pw"));
    }
    // Nobody answers there.
    for words in [&["ps"][..], &["ps", "--json"], &["run", "--", "true"]] {
        let words = [&["--registry", "postgres://app:canary-8-pw@127.0.0.1:1/x"], words].concat();
        let said = sandbox.outlive(words).fails_with(107);
        assert!(said.contains("127.0.0.1") && !said.contains("canary-8-pw"), "{said}");
    }
    let said = sandbox.outlive(["show", "https://app:canary-9-pw@db/x"]).fails_with(101);
    assert!(!said.contains("canary-9-pw"), "{said}");
}

#[test]
fn s_32_the_home_is_private_whatever_the_umask() {
    let sandbox = Sandbox::new();
    sandbox.shell("umask 000; outlive run -- true --password canary").succeeds();
    let private = files(&sandbox.home());
    assert!(private.iter().any(|file| file.starts_with(sandbox.home().join("argv"))));
    for file in private {
        assert_eq!(mode(&file) & 0o077, 0, "others may use {}", file.display());
    }
}
