//! Comparing two runs, and repeating one with other arguments.

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, settled, text};

fn field<'a>(compared: &'a Value, name: &str) -> &'a Value {
    let fields = compared["fields"].as_array().unwrap();
    fields.iter().find(|field| field["field"] == name).unwrap_or_else(|| panic!("no {name} in {compared}"))
}

#[test]
fn diff_names_what_two_runs_were_asked_and_how_they_ended() {
    let sandbox = Sandbox::new();
    let steps = "outlive step build -- true; outlive step test -- sh -c \"exit $1\"";
    for (name, status) in [("good", "0"), ("bad", "3")] {
        let words = ["run", "--name", name, "--env", &format!("MODE={name}"), "--label", "team=a", "--", "sh", "-c"];
        sandbox.outlive(words.into_iter().chain([steps, "sh", status])).output().unwrap();
    }
    let compared = sandbox.outlive(["diff", "good", "bad", "--json"]).json();
    assert_eq!(compared["same"], false);
    assert_eq!(field(&compared, "state")["left"], "succeeded");
    assert_eq!(field(&compared, "state")["right"], "failed");
    assert_eq!(field(&compared, "exit_code")["right"], 3);
    assert_eq!(field(&compared, "labels")["equal"], true);
    assert_eq!(field(&compared, "env MODE")["right"], "bad");
    let measured = field(&compared, "cpu_ms");
    assert!(measured["left"].is_u64() && measured["measured"] == true, "{measured}");
    let steps: Vec<(&Value, &Value)> =
        compared["steps"].as_array().unwrap().iter().map(|step| (&step["name"], &step["equal"])).collect();
    assert_eq!(steps, [(&json!("build"), &json!(true)), (&json!("test"), &json!(false))]);
    let shown = sandbox.outlive(["diff", "good", "bad"]).succeeds();
    let stable = |line: &&str| ["command", "env", "state", "exit", "error"].iter().any(|word| line.starts_with(word));
    let stable: Vec<&str> = shown.lines().filter(stable).collect();
    insta::assert_snapshot!("diff", settled(&sandbox, &stable.join("\n")));
    assert!(shown.contains("step         test: succeeded in ") && !shown.contains("step         build"), "{shown}");
    assert!(sandbox.outlive(["diff", "good", "bad", "--all"]).succeeds().contains("step         build: "));
}

#[test]
fn diff_of_equal_runs_says_so_and_hides_kept_values() {
    let sandbox = Sandbox::new();
    for (name, value) in [("one", "hunter2"), ("two", "swordfish")] {
        let mut command = sandbox.outlive(["run", "--name", name, "--", "sh", "-c", "exit 7"]);
        command.env("PASSPHRASE_OF_TEST", value).output().unwrap();
    }
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    sandbox.outlive(["rerun", "done", "--idempotency-key", "k"]).succeeds();
    let again = sandbox.outlive(["rerun", "done", "--idempotency-key", "k", "--json"]).json();
    let again = again["id"].as_str().unwrap().to_owned();
    sandbox.outlive(["wait", &again]).succeeds();
    let first = sandbox.outlive(["show", "done", "--json"]).json();
    let compared = sandbox.outlive(["diff", &again, "done", "--json"]).json();
    assert!(compared["same"] == true || first["id"] == again.as_str(), "{compared}");
    let shown = sandbox.outlive(["diff", "one", "two"]).succeeds();
    assert!(shown.contains("environment PASSPHRASE_OF_TEST"), "{shown}");
    assert!(!shown.contains("hunter2") && !shown.contains("swordfish"), "{shown}");
}

#[test]
fn rerun_with_other_arguments_and_variables_keeps_its_origin() {
    let sandbox = Sandbox::new();
    let script = "echo \"$1 $GREETING $KEPT\"";
    let mut run =
        sandbox.outlive(["run", "--name", "greet", "--env", "KEPT=kept", "--", "sh", "-c", script, "sh", "a"]);
    run.succeeds();
    let again = ["rerun", "greet", "--env", "GREETING=hello", "--json", "--", "-c", script, "sh", "b --c"];
    let again = sandbox.outlive(again).json();
    let id = again["id"].as_str().unwrap();
    sandbox.outlive(["wait", id]).succeeds();
    assert_eq!(sandbox.outlive(["logs", id]).succeeds(), "b --c hello kept\n");
    assert_eq!(again["generation"], 1, "{again}");
    let compared = sandbox.outlive(["diff", again["rerun_of"].as_str().unwrap(), id, "--json"]).json();
    assert_eq!(field(&compared, "command")["equal"], false);
    assert_eq!(field(&compared, "env GREETING")["left"], Value::Null);
    for env in ["GREETING", "=x", "OUTLIVE_RUN_ID=x"] {
        let refused = sandbox.outlive(["rerun", id, "--env", env]).output().unwrap();
        assert!(text(&refused.stderr).contains("sets no variable"), "{}", text(&refused.stderr));
    }
}
