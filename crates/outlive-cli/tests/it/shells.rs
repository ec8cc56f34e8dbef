//! Completions and manual pages: rendered from the command tree, and accepted by the programs that read them.

use super::sandbox::{Ends, Sandbox};

/// What a shell is offered for the last of `words`.
fn offered(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    let mut command = sandbox.outlive(["--", "outlive"].into_iter().chain(words.iter().copied()));
    let index = words.len().to_string();
    command.env("OUTLIVE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index).env("_CLAP_COMPLETE_COMP_TYPE", "9");
    command.env("_CLAP_COMPLETE_SPACE", "true").env("_CLAP_IFS", "\n");
    command.succeeds().lines().map(str::to_owned).collect()
}

#[test]
fn t1_22_completion_offers_names_states_keys_and_programs() {
    let sandbox = Sandbox::new();
    assert_eq!(offered(&sandbox, &["show", "x"]), Vec::<String>::new(), "there is no registry yet");
    assert!(!sandbox.work().join(".outlive").exists(), "completion created a registry");
    sandbox.outlive(["run", "--name", "train-small", "--lock", "gpu0", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "train-large", "--", "false"]).fails_with(1);
    sandbox.outlive(["run", "--name", "other", "--", "true"]).succeeds();
    let id = sandbox.show("other")["id"].as_str().unwrap().to_owned();
    for verb in ["show", "logs", "why", "wait", "cancel", "resume", "rerun", "rm", "archive"] {
        assert_eq!(offered(&sandbox, &[verb, "train"]), ["train-large", "train-small"], "{verb}");
    }
    assert_eq!(offered(&sandbox, &["wait", "other", "train-l"]), ["train-large"]);
    assert!(offered(&sandbox, &["show", &id[..1]]).contains(&id));
    assert_eq!(offered(&sandbox, &["ps", "--status", "can"]), ["cancelled"]);
    assert_eq!(offered(&sandbox, &["run", "--lock", "g"]), ["gpu0"]);
    assert_eq!(offered(&sandbox, &["can"]), ["cancel"]);
    assert!(offered(&sandbox, &["run", "--", "slee"]).contains(&"sleep".into()));
    std::fs::write(sandbox.work().join("data.csv"), "").unwrap();
    assert_eq!(offered(&sandbox, &["run", "--", "cat", "dat"]), ["data.csv"]);
}

/// Types `outlive show train-l` and a tab into an interactive shell, and answers with the line as the shell completes it.
fn typed_into(sandbox: &Sandbox, shell: &str) -> String {
    let script = match shell {
        "bash" => {
            "source <(outlive completions bash); COMP_WORDS=(outlive show train-l); COMP_CWORD=2; COMP_TYPE=9; \
             _clap_complete_outlive outlive train-l show; echo \"${COMPREPLY[*]}\""
        }
        "fish" => "outlive completions fish | source; complete -C 'outlive show train-l'",
        // zsh completes at a terminal alone: it has one of its own, in which the line is typed.
        _ => {
            "zmodload zsh/zpty; zpty z 'PS1=; zsh -fi'; \
             zpty -w z 'autoload -U compinit; compinit -u; PS1=; source <(outlive completions zsh); echo re''ady'; \
             zpty -r -m z out '*ready*'; zpty -w -n z $'outlive show train-l\\t'; zpty -r -m z out '*train-large*'; \
             print -r -- $out; zpty -d z"
        }
    };
    sandbox.command(shell, ["-c", script]).succeeds()
}

#[test]
fn t1_22_bash_zsh_and_fish_complete_the_name_of_a_run() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "train-large", "--", "true"]).succeeds();
    for shell in ["bash", "zsh", "fish"] {
        let completed = typed_into(&sandbox, shell);
        assert!(completed.contains("train-large"), "{shell}: {completed}");
    }
}

#[test]
fn completions_are_accepted_by_their_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell", "nushell"] {
        let script = sandbox.outlive(["completions", shell]).succeeds();
        assert!(script.contains("outlive"), "{shell}");
        std::fs::write(sandbox.work().join(shell), script).unwrap();
        if ["bash", "zsh", "fish"].contains(&shell) {
            sandbox.command(shell, ["-n", shell]).succeeds();
        }
    }
}

#[test]
fn every_command_has_a_manual_page_without_warnings() {
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
    for page in listed.lines() {
        let output = sandbox.command("groff", ["-man", "-Tutf8", "-ww", page]).output().unwrap();
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{page}: {warnings}");
    }
}
