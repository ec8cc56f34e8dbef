//! Completions and manual pages: rendered from the command tree, and accepted by the programs that read them.

use std::process::{Command, Stdio};

use super::sandbox::{Ends, Sandbox};

/// Whether this machine has the program. Elsewhere its tests say that they did nothing.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        eprintln!("skipped: there is no {program} here");
    }
    found
}

#[test]
fn completions_name_every_verb_and_are_accepted_by_their_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell", "nushell"] {
        let script = sandbox.outlive(["completions", shell]).succeeds();
        for word in ["run", "ps", "cancel", "checkpoint", "completions", "registry"] {
            assert!(script.contains(word), "{shell} does not complete `{word}`");
        }
        std::fs::write(sandbox.work().join(shell), script).unwrap();
        if ["bash", "zsh", "fish"].contains(&shell) && has(shell) {
            sandbox.command(shell, ["-n", shell]).succeeds();
        }
    }
    if has("bash") {
        let words =
            "source ./bash; COMP_WORDS=(outlive ca); COMP_CWORD=1; _outlive outlive ca outlive; echo ${COMPREPLY[*]}";
        assert_eq!(sandbox.command("bash", ["-c", words]).succeeds(), "cancel\n");
    }
}

#[test]
fn every_command_has_a_manual_page_that_no_formatter_warns_about() {
    let sandbox = Sandbox::new();
    let listed = sandbox.outlive(["man", "pages"]).succeeds();
    for page in ["outlive.1", "outlive-run.1", "outlive-ps.1", "outlive-checkpoint-set.1"] {
        assert!(listed.lines().any(|line| line == format!("pages/{page}")), "{listed}");
    }
    let main = sandbox.outlive(["man"]).succeeds();
    assert_eq!(sandbox.outlive(["man", "-"]).succeeds(), main);
    assert!(!sandbox.work().join("-").exists());
    assert!(main.contains("EXIT STATUS") && main.contains("SUBCOMMANDS"), "{main}");
    assert_eq!(main, std::fs::read_to_string(sandbox.work().join("pages/outlive.1")).unwrap());
    if has("groff") {
        for page in listed.lines() {
            let output = sandbox.command("groff", ["-man", "-Tutf8", "-ww", page]).output().unwrap();
            let warnings = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && warnings.is_empty(), "{page}: {warnings}");
        }
    }
}
