//! Results that wait for registries which are gone are in nobody's way.

use serde_json::Value;

use super::faults_registry::{spool_a_result, spooled};
use super::sandbox::{Ends, Sandbox};

/// How many files of the spool a call opens.
fn opened(sandbox: &Sandbox, words: &[&str]) -> usize {
    let trace = sandbox.path().join("trace");
    let strace = ["-f", "-qq", "-o", trace.to_str().unwrap(), "-e", "trace=openat,openat2", "outlive"];
    sandbox.command("strace", strace.iter().chain(words)).succeeds();
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("openat"), "nothing was traced");
    // `01a1e29e-…-1.json`, marked or not: no other file has such a name.
    trace.lines().filter(|line| line.contains("-1.json\"")).count()
}

#[test]
fn l12_results_of_other_registries_are_not_opened() {
    let sandbox = Sandbox::new();
    spool_a_result(&sandbox);
    let own = spooled(&sandbox).pop().unwrap();
    let mut result: Value = serde_json::from_slice(&std::fs::read(&own).unwrap()).unwrap();
    result["registry"] = "registry:gone".into();
    let name = own.file_name().unwrap().to_str().unwrap().split_once('.').unwrap().1.to_owned();
    for number in 0..50 {
        // Of another registry, as this outlive names them, and as an earlier one did.
        let run = format!("{number:08}{}", &name[8..]);
        result["run"] = run.strip_suffix("-1.json").unwrap().into();
        let mark = if number < 30 { format!("{number:024x}.") } else { String::new() };
        std::fs::write(own.with_file_name(format!("{mark}{run}")), result.to_string()).unwrap();
    }
    assert_eq!(opened(&sandbox, &["ps", "--all"]), 1 + 20, "its own, and those that do not say whose they are");
    sandbox.start("held", &["sleep", "600"]);
    assert_eq!(spooled(&sandbox).len(), 50, "its own is on record");
    assert_eq!(opened(&sandbox, &["ps", "--all"]), 0, "what a change has found to be another's is opened again");
}
