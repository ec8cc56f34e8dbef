//! Steps: other programs, called one after the other from the root of the repository.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What failed, for a person to read.
#[derive(Debug)]
pub struct Failed(pub String);

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_owned).unwrap_or_default()
}

/// The cargo that called us.
pub fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

/// Says what is called, calls it, and fails if it does.
pub fn step(program: &str, words: &[&str]) -> Result<(), Failed> {
    let shown = format!("{} {}", program.rsplit('/').next().unwrap_or(program), words.join(" "));
    println!("$ {shown}");
    let status = Command::new(program).args(words).current_dir(root()).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failed(format!("`{shown}` ended with {status}"))),
        Err(error) => Err(Failed(format!("`{shown}` cannot be called: {error}"))),
    }
}

/// Whether a program can be called and succeeds, whatever it says.
pub fn succeeds(program: &str, words: &[&str]) -> bool {
    let quiet = || Stdio::null();
    let status =
        Command::new(program).args(words).current_dir(root()).stdin(quiet()).stdout(quiet()).stderr(quiet()).status();
    status.is_ok_and(|status| status.success())
}

/// What a program says, without the end of its last line.
pub fn output(program: &str, words: &[&str]) -> Result<String, Failed> {
    let failed = |why: String| Failed(format!("`{program} {}`: {why}", words.join(" ")));
    let output = Command::new(program).args(words).current_dir(root()).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
