//! `outlive mcp install`: the configuration by which an agent's client starts `outlive mcp`.
//!
//! It shows what it would write. With --yes it adds one entry to the client's file, keeps everything else in it, and
//! leaves an entry of that name alone that says something else.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use outlive::error::Error;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

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
        let found = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(unreadable(&file, &error)),
        };
        let (entry, whole) = match self.client {
            Client::Codex => in_toml(&found, &words),
            Client::Vscode => in_json(&found, "servers", &words),
            Client::ClaudeCode | Client::Cursor => in_json(&found, "mcpServers", &words),
        }
        .map_err(|why| Error::Invalid(format!("`{}`: {why}", file.display())))?;
        let unchanged = whole.is_none();
        if let Some(whole) = whole.filter(|_| self.yes) {
            write(&file, &whole).map_err(|error| unreadable(&file, &error))?;
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

fn in_json(found: &str, servers: &str, words: &[String]) -> Planned {
    let entry = json!({ "command": "outlive", "args": words });
    let shown = pretty(&json!({ (servers): { (ENTRY): entry } }))?;
    let mut whole: Value = match found.trim() {
        "" => json!({}),
        text => {
            serde_json::from_str(text).map_err(|error| format!("it is no JSON that can be kept as it is: {error}"))?
        }
    };
    let fields = whole.as_object_mut().ok_or("it is no JSON object")?;
    let list = fields.entry(servers).or_insert_with(|| Value::Object(Map::new()));
    let list = list.as_object_mut().ok_or_else(|| format!("`{servers}` is no object"))?;
    match list.get(ENTRY) {
        Some(there) if *there == entry => return Ok((shown, None)),
        Some(_) => return Err(OTHER.into()),
        None => _ = list.insert(ENTRY.into(), entry),
    }
    Ok((shown, Some(pretty(&whole)?)))
}

fn pretty(value: &Value) -> Result<String, String> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| error.to_string())
}

/// Tables may stand anywhere in TOML, so the entry is put behind what is there, byte for byte.
fn in_toml(found: &str, words: &[String]) -> Planned {
    let args: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    let entry = format!("[mcp_servers.{ENTRY}]\ncommand = \"outlive\"\nargs = [{}]\n", args.join(", "));
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

/// Writes a file whole or not at all, with the permissions that it had.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    // A link is kept: what it leads to is written.
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let beside = parent.join(format!(".{name}.{}", std::process::id()));
    let written = std::fs::write(&beside, text).and_then(|()| {
        if let Ok(found) = file.metadata() {
            std::fs::set_permissions(&beside, found.permissions())?;
        }
        std::fs::File::open(&beside)?.sync_all()?;
        std::fs::rename(&beside, &file)
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
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
        let whole = in_json(found, "mcpServers", &words()).unwrap().1.unwrap();
        let read: Value = serde_json::from_str(&whole).unwrap();
        assert_eq!((&read["theme"], &read["mcpServers"]["other"]["command"]), (&json!("dark"), &json!("x")));
        assert_eq!(read["mcpServers"]["outlive"]["args"], json!(["mcp", "--allow", "execute"]));
        assert_eq!(in_json(&whole, "mcpServers", &words()).unwrap().1, None);
        let found = "# mine\nmodel = \"m\"\n\n[mcp_servers.other]\ncommand = \"x\"\n";
        let whole = in_toml(found, &words()).unwrap().1.unwrap();
        assert!(whole.starts_with(found), "{whole}");
        assert_eq!(in_toml(&whole, &words()).unwrap().1, None);
    }

    #[test]
    fn what_cannot_be_kept_or_is_called_alike_is_refused() {
        for found in ["{", "[]", "// a comment\n{}", r#"{"mcpServers": []}"#, r#"{"mcpServers": {"outlive": {}}}"#] {
            assert!(in_json(found, "mcpServers", &words()).is_err(), "{found}");
        }
        for found in ["a = ", "[mcp_servers.outlive]\ncommand = \"x\"\n", "mcp_servers = { other = {} }\n"] {
            assert!(in_toml(found, &words()).is_err(), "{found}");
        }
    }
}
