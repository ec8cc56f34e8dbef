//! `outlive completions`: what a shell must know to complete our words, rendered from the command tree.

use std::fmt;

use clap::{Args, ValueEnum};
use clap_complete::{Generator, Shell as Known, generate};
use clap_complete_nushell::Nushell;
use outlive::error::Error;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli;
use crate::operation::{Effect, Operate};
use crate::settings::Context;

/// Print the completions for a shell
///
/// Put them where your shell looks for such files, or have it read them when it starts.
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

    async fn operate(self, _: &Context) -> Result<Script, Error> {
        let script = match self.shell {
            Shell::Bash => render(Known::Bash),
            Shell::Zsh => render(Known::Zsh),
            Shell::Fish => render(Known::Fish),
            Shell::Elvish => render(Known::Elvish),
            Shell::Powershell => render(Known::PowerShell),
            Shell::Nushell => render(Nushell),
        };
        Ok(Script { shell: self.shell, script })
    }
}

fn render(shell: impl Generator) -> String {
    let mut script = Vec::new();
    generate(shell, &mut cli::command(None), "outlive", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.script)
    }
}
