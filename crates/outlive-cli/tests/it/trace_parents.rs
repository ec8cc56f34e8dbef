//! Trace parents: accepted when a run is made, kept with it, and handed to whatever executes it.

use std::process::Command;

use super::sandbox::{Ends, Sandbox};

const MADE_IN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
const PRINT: &str = "echo \"trace ${TRACEPARENT-none}\"";

/// A call in an environment that has this trace parent, or none.
fn call(sandbox: &Sandbox, words: &[&str], variable: Option<&str>) -> Command {
    let mut command = sandbox.outlive(words);
    command.env_remove("TRACEPARENT");
    variable.map(|value| command.env("TRACEPARENT", value));
    command
}

fn shown(sandbox: &Sandbox, run: &str) -> serde_json::Value {
    sandbox.outlive(["show", run, "--json"]).json()["traceparent"].clone()
}

/// How a run is added, and in which environment; what is kept of it, and what its command finds.
struct Case {
    flags: &'static [&'static str],
    variable: Option<&'static str>,
    kept: Option<&'static str>,
    found: &'static str,
}

#[test]
fn queued_command_has_the_trace_parent_it_was_added_with() {
    let case = |flags, variable, kept, found| Case { flags, variable, kept, found };
    let cases = [
        case(&[], Some(MADE_IN), Some(MADE_IN), MADE_IN),
        case(&["--traceparent", MADE_IN], None, Some(MADE_IN), MADE_IN),
        case(&["--traceparent", MADE_IN], Some(OTHER), Some(MADE_IN), MADE_IN),
        case(&["--env-mode", "clean"], Some(MADE_IN), Some(MADE_IN), MADE_IN),
        case(&["--env", "TRACEPARENT=mine"], Some(MADE_IN), None, "mine"),
        case(&[], None, None, "none"),
    ];
    let sandbox = Sandbox::new();
    for (number, Case { flags, variable, kept, found }) in cases.into_iter().enumerate() {
        let name = format!("job-{number}");
        let words = [&["queue", "add", "--name", &name], flags, &["--", "sh", "-c", PRINT]].concat();
        call(&sandbox, &words, variable).succeeds();
        assert_eq!(shown(&sandbox, &name), serde_json::json!(kept), "{words:?}");
        call(&sandbox, &["work", "--drain"], None).succeeds();
        assert_eq!(sandbox.outlive(["logs", &name]).succeeds(), format!("trace {found}\n"), "{words:?}");
    }
}

#[test]
fn trace_parent_outlives_a_retry_and_ends_with_a_rerun() {
    let sandbox = Sandbox::new();
    let script = format!("{PRINT}; test $OUTLIVE_ATTEMPT = 2");
    let words = ["run", "--name", "job", "--retry", "1", "--backoff", "1ms", "--", "sh", "-c", &script];
    let printed = call(&sandbox, &words, Some(MADE_IN)).succeeds();
    assert_eq!(printed, format!("trace {MADE_IN}\n").repeat(2));
    let text = sandbox.outlive(["show", "job"]).succeeds();
    assert!(text.lines().any(|line| line == format!("trace      {MADE_IN}")), "{text}");
    call(&sandbox, &["rerun", "job"], None).output().unwrap();
    assert_eq!(shown(&sandbox, "@last"), serde_json::Value::Null);
}

#[test]
fn malformed_trace_parent_is_refused_as_a_flag_only() {
    let sandbox = Sandbox::new();
    for words in [
        &["run", "--traceparent", "00-nonsense-01", "--", "true"][..],
        &["queue", "add", "--traceparent", "00-nonsense-01", "--", "true"],
    ] {
        let refused = call(&sandbox, words, None).fails_with(2);
        assert!(refused.contains("`00-nonsense-01` is not a trace parent such as 00-"), "{refused}");
    }
    // It is left as it is, as without outlive.
    let printed = call(&sandbox, &["run", "--name", "job", "--", "sh", "-c", PRINT], Some("nonsense")).succeeds();
    assert_eq!(printed, "trace nonsense\n");
    assert_eq!(shown(&sandbox, "job"), serde_json::Value::Null);
}
