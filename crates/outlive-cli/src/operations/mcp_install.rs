//! `outlive mcp install`: the configuration by which an agent's client starts `outlive mcp`.
//!
//! It shows what it would write. With --yes it adds one entry to the client's file, keeps every other byte of it, and
//! leaves an entry of that name alone that says something else. Such files hold secrets of other entries: the new file is
//! as private as the old one from its first moment.

mod json;

use std::fmt;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use outlive::error::Error;
use outlive::id::{Entropy, SystemEntropy};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::call::allowed::Allowed;
use crate::call::{Context, Effect, Operate};
use crate::ui::plain;

/// What the entry is called.
const ENTRY: &str = "outlive";

/// Configure an agent's client to use outlive
///
/// Shows the entry and the file that it belongs into. With --yes it is written there; other entries stay as they are,
/// and one that is called `outlive` and says something else is refused.
#[derive(Debug, Args)]
pub struct Install {
    /// The client
    pub client: Client,
    /// What its tools may do
    #[arg(long, value_enum, value_name = "EFFECT", default_value = "execute")]
    pub allow: Allowed,
    /// For this repository alone, in its own file, where the client has one
    #[arg(long)]
    pub project: bool,
    /// Write it
    #[arg(long)]
    pub yes: bool,
}

/// A client that speaks MCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    /// ~/.claude.json, or .mcp.json of the repository
    ClaudeCode,
    /// ~/.codex/config.toml
    Codex,
    /// ~/.cursor/mcp.json, or .cursor/mcp.json of the repository
    Cursor,
    /// .vscode/mcp.json of the repository
    Vscode,
}

/// What is to be written, and whether it was.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Installed {
    /// The file of the client.
    file: PathBuf,
    /// What belongs into it.
    entry: String,
    /// It is there now.
    written: bool,
    /// It was there before.
    unchanged: bool,
}

impl Operate for Install {
    const NAME: &'static str = "mcp install";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive mcp install vscode\noutlive mcp install cursor --project --allow read";
    type Output = Installed;

    async fn operate(self, _: &Context) -> Result<Installed, Error> {
        let file = self.file()?;
        let words: Vec<String> = ["mcp", "--allow", self.allow.as_str()].map(str::to_owned).into();
        let program = program()?;
        let found = read(&file).map_err(|error| unreadable(&file, &error))?;
        let text = found.as_deref().unwrap_or_default();
        let (entry, whole) = match self.client {
            Client::Codex => in_toml(text, &program, &words),
            Client::Vscode => in_json(text, "servers", &program, &words),
            Client::ClaudeCode | Client::Cursor => in_json(text, "mcpServers", &program, &words),
        }
        .map_err(|why| Error::Invalid(format!("`{}`: {why}", file.display())))?;
        let unchanged = whole.is_none();
        if let Some(whole) = whole.filter(|_| self.yes) {
            replace(&file, found.as_deref(), &whole).map_err(|error| unreadable(&file, &error))?;
            return Ok(Installed { file, entry, written: true, unchanged });
        }
        Ok(Installed { file, entry, written: false, unchanged })
    }
}

impl Install {
    fn file(&self) -> Result<PathBuf, Error> {
        let home = || std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let home = || home().ok_or_else(|| Error::Invalid("HOME names no directory".into()));
        match (self.client, self.project) {
            (Client::ClaudeCode, true) => Ok(".mcp.json".into()),
            (Client::ClaudeCode, false) => Ok(home()?.join(".claude.json")),
            (Client::Cursor, true) => Ok(".cursor/mcp.json".into()),
            (Client::Cursor, false) => Ok(home()?.join(".cursor/mcp.json")),
            (Client::Vscode, _) => Ok(".vscode/mcp.json".into()),
            (Client::Codex, false) => Ok(home()?.join(".codex/config.toml")),
            (Client::Codex, true) => Err(Error::Invalid("codex has one configuration for all repositories".into())),
        }
    }
}

fn unreadable(file: &Path, error: &std::io::Error) -> Error {
    Error::Invalid(format!("`{}`: {error}", file.display()))
}

/// What is to be in a file: the entry for people, and the whole file where it is to change.
type Planned = Result<(String, Option<String>), String>;

const OTHER: &str = "it has an entry `outlive` that says something else; change it by hand";

fn in_json(found: &str, servers: &str, program: &str, words: &[String]) -> Planned {
    let entry = json!({ "command": program, "args": words });
    Ok((json::shown(servers, ENTRY, &entry)?, json::with_entry(found, servers, ENTRY, &entry)?))
}

/// What a client is to start: the program by its name where that is found as this very file, else by its path.
fn program() -> Result<String, Error> {
    let own = std::env::current_exe().and_then(|own| own.canonicalize());
    let own = own.map_err(|error| Error::Invalid(format!("this program's own file cannot be found: {error}")))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(ENTRY)).find(|file| is_executable(file));
    if found.and_then(|file| file.canonicalize().ok()).as_ref() == Some(&own) {
        return Ok(ENTRY.into());
    }
    let no_text = || Error::Invalid(format!("`{}` is no text, and a configuration is", own.display()));
    own.to_str().map(str::to_owned).ok_or_else(no_text)
}

fn is_executable(file: &Path) -> bool {
    file.is_absolute() && file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Tables may stand anywhere in TOML, so the entry is put behind what is there, byte for byte.
fn in_toml(found: &str, program: &str, words: &[String]) -> Planned {
    // A text of JSON is one of TOML.
    let args: Vec<String> = words.iter().map(|word| Value::from(word.as_str()).to_string()).collect();
    let program = Value::from(program);
    let entry = format!("[mcp_servers.{ENTRY}]\ncommand = {program}\nargs = [{}]\n", args.join(", "));
    let table: toml::Table = found.parse().map_err(|error| format!("it is no TOML: {error}"))?;
    let wanted: toml::Table = entry.parse().map_err(|error| format!("{error}"))?;
    let of = |table: &toml::Table| table.get("mcp_servers").and_then(|servers| servers.get(ENTRY)).cloned();
    match of(&table) {
        Some(there) if Some(&there) == of(&wanted).as_ref() => return Ok((entry, None)),
        Some(_) => return Err(OTHER.into()),
        None => {}
    }
    let gap = if found.is_empty() || found.ends_with("\n\n") { "" } else { "\n" };
    let end = if found.is_empty() || found.ends_with('\n') { "" } else { "\n" };
    let whole = format!("{found}{end}{gap}{entry}");
    // An inline table of servers cannot be added to from outside.
    whole.parse::<toml::Table>().map_err(|error| format!("the entry cannot be added: {error}"))?;
    Ok((entry, Some(whole)))
}

/// What a file says; none where there is no file.
fn read(file: &Path) -> io::Result<Option<String>> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file that said `found` whole or not at all. The new one has its permissions; without an old one it is its
/// owner's alone. Refused where the file has changed.
fn replace(file: &Path, found: Option<&str>, text: &str) -> io::Result<()> {
    // A link is kept: what it leads to is written.
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let mode = file.metadata().map_or(0o600, |found| found.permissions().mode() & 0o777);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = parent.join(format!(".{name}.{:x}", SystemEntropy.draw()));
    let mut new = OpenOptions::new().create_new(true).write(true).mode(mode & 0o600).open(&beside)?;
    let mut put = || {
        new.write_all(text.as_bytes())?;
        new.set_permissions(Permissions::from_mode(mode))?;
        new.sync_all()?;
        if read(&file)?.as_deref() != found {
            return Err(io::Error::other("it has changed meanwhile, and nothing was written: try again"));
        }
        match found {
            Some(_) => std::fs::rename(&beside, &file)?,
            None => match renameat_with(CWD, &beside, CWD, &file, RenameFlags::NOREPLACE) {
                // A file system that cannot do that, such as NFS.
                Err(Errno::INVAL) => std::fs::rename(&beside, &file)?,
                renamed => renamed?,
            },
        }
        File::open(parent)?.sync_all()
    };
    let put = put();
    if put.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    put
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = plain(&self.file.display().to_string());
        match (self.written, self.unchanged) {
            (true, _) => writeln!(f, "added to {file}:")?,
            (false, true) => writeln!(f, "already in {file}:")?,
            (false, false) => writeln!(f, "--yes would add to {file}:")?,
        }
        f.write_str(&self.entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<String> {
        ["mcp", "--allow", "execute"].map(str::to_owned).into()
    }

    #[test]
    fn an_entry_is_added_once_and_everything_else_is_kept() {
        let found = r#"{ "theme": "dark", "mcpServers": { "other": { "command": "x" } } }"#;
        let whole = in_json(found, "mcpServers", "outlive", &words()).unwrap().1.unwrap();
        let read: Value = serde_json::from_str(&whole).unwrap();
        assert_eq!((&read["theme"], &read["mcpServers"]["other"]["command"]), (&json!("dark"), &json!("x")));
        assert_eq!(read["mcpServers"]["outlive"]["args"], json!(["mcp", "--allow", "execute"]));
        assert_eq!(in_json(&whole, "mcpServers", "outlive", &words()).unwrap().1, None);
        let found = "# mine\nmodel = \"m\"\n\n[mcp_servers.other]\ncommand = \"x\"\n";
        let whole = in_toml(found, "outlive", &words()).unwrap().1.unwrap();
        assert!(whole.starts_with(found), "{whole}");
        assert_eq!(in_toml(&whole, "outlive", &words()).unwrap().1, None);
    }

    #[test]
    fn file_that_changed_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("settings.json");
        std::fs::write(&file, "theirs").unwrap();
        for found in [Some("before"), None] {
            assert!(replace(&file, found, "ours").is_err());
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "theirs");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing stays behind");
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        replace(&file, Some("theirs"), "ours").unwrap();
        let mode = |file: &Path| file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((std::fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("ours", 0o640));
        let new = dir.path().join("new.json");
        replace(&new, None, "ours").unwrap();
        assert_eq!(mode(&new), 0o600);
    }

    #[test]
    fn what_cannot_be_kept_or_is_called_alike_is_refused() {
        for found in ["{", "[]", "// a comment\n{}", r#"{"mcpServers": []}"#, r#"{"mcpServers": {"outlive": {}}}"#] {
            assert!(in_json(found, "mcpServers", "outlive", &words()).is_err(), "{found}");
        }
        for found in ["a = ", "[mcp_servers.outlive]\ncommand = \"x\"\n", "mcp_servers = { other = {} }\n"] {
            assert!(in_toml(found, "outlive", &words()).is_err(), "{found}");
        }
    }
}
