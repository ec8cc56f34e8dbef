//! `outlive completions`: the script by which a shell asks `outlive` for completions.

use std::fmt;

use clap::{Args, ValueEnum};
use clap_complete::env::Shells;
use clap_complete::generate;
use clap_complete_nushell::Nushell;
use outlive::error::Error;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};

/// The variable by which a shell asks for completions; its value is the shell.
pub const VARIABLE: &str = "OUTLIVE_COMPLETE";

/// Print the completions for a shell
///
/// Put the script where your shell looks for such files, or have it read the script when it starts. It asks `outlive`
/// for each completion, so that names of runs, keys and programs are offered as they are then; nushell completes verbs
/// and flags alone.
#[derive(Debug, Args)]
pub struct Completions {
    /// Which shell
    pub shell: Shell,
}

/// A shell that can be taught to complete.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
    Elvish,
    Powershell,
    Nushell,
}

/// A script for a shell.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Script {
    shell: Shell,
    script: String,
}

impl Operate for Completions {
    const NAME: &'static str = "completions";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive completions bash > outlive.bash\noutlive completions fish > outlive.fish";
    type Output = Script;

    async fn operate(self, context: &Context) -> Result<Script, Error> {
        let script = match self.shell {
            Shell::Bash => registration("bash"),
            Shell::Zsh => registration("zsh"),
            Shell::Fish => registration("fish"),
            Shell::Elvish => registration("elvish"),
            Shell::Powershell => registration("powershell"),
            Shell::Nushell => Ok(static_nushell(context)),
        };
        Ok(Script { shell: self.shell, script: script? })
    }
}

/// The script that has a shell call `outlive` for completions. It names the program by its name, not by its path: a
/// script that a package installs is read wherever the program is.
fn registration(shell: &str) -> Result<String, Error> {
    let mut script = Vec::new();
    let shells = Shells::builtins();
    let completer = shells.completer(shell).ok_or_else(|| Error::Invalid(format!("`{shell}` cannot be completed")))?;
    completer
        .write_registration(VARIABLE, "outlive", "outlive", "outlive", &mut script)
        .map_err(|error| Error::Invalid(format!("the script for `{shell}` cannot be written: {error}")))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Verbs and flags as they are now: nushell cannot ask for them later.
fn static_nushell(context: &Context) -> String {
    let mut script = Vec::new();
    generate(Nushell, &mut context.tree()(), "outlive", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.script)
    }
}
