//! `config.toml` of the user's home.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use outlive::error::Error;
use outlive::redact::Redactor;
use outlive::runtime::sweeper::{GRACE, Spare, UNSURE};
use outlive::time::Timestamp;
use serde::Deserialize;

use super::CONFIG;
use super::config::{Config, config_text, duration};

/// The commands of the user that are told what becomes of runs. Only the home's configuration can name any.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hooks {
    /// When a run has ended, and is not tried again by itself.
    pub on_end: Option<String>,
    /// When the owner of a run was found gone.
    pub on_dead: Option<String>,
    /// When a run makes no progress within its `stall_after`.
    pub on_stalled: Option<String>,
    /// When nothing is queued or executed any more.
    pub on_queue_empty: Option<String>,
    /// When they were written down so.
    #[serde(skip)]
    pub since: Timestamp,
}

/// How often a supervisor deletes what runs made and nobody needs, and what every sweep spares: whoever sweeps by hand can
/// spare more, and never less. Only the home's configuration can have anything deleted unasked.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sweeps {
    /// How often; never where it is unset.
    #[serde(deserialize_with = "duration")]
    pub every: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    grace: Option<Duration>,
    keep_last: usize,
    #[serde(deserialize_with = "duration")]
    older_than: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    forget_after: Option<Duration>,
}

/// `config.toml` of the user's home.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HomeConfig {
    hooks: Hooks,
    sweep: Sweeps,
    /// By URL, what a registry with a directory has in a file of its own.
    registries: BTreeMap<String, toml::Table>,
}

impl HomeConfig {
    /// What it says, and where; none where there is none.
    fn read() -> Result<Option<(Self, PathBuf)>, Error> {
        let Some(path) = outlive::home::home().map(|home| home.join(CONFIG)) else { return Ok(None) };
        let Some(text) = config_text(&path)? else { return Ok(None) };
        let invalid = |error: toml::de::Error| Error::Invalid(format!("`{}`: {}", path.display(), error.message()));
        Ok(Some((toml::from_str::<Self>(&text).map_err(invalid)?, path)))
    }
}

impl Config {
    /// What this user says of the registry at a URL, which has no directory to keep a configuration in.
    pub(super) fn of(url: &str) -> Result<Self, Error> {
        let Some((home, path)) = HomeConfig::read()? else { return Ok(Self::default()) };
        let said = home.registries.into_iter().find(|(named, _)| place(named) == place(url));
        let Some((named, table)) = said else { return Ok(Self::default()) };
        let named = Redactor::default().text(&named);
        let invalid = |error: toml::de::Error| {
            Error::Invalid(format!("`[registries.\"{named}\"]` of `{}`: {}", path.display(), error.message()))
        };
        Ok(Self { is_own: true, ..Self::from_table(table).map_err(invalid)? })
    }
}

/// A URL without who asks and how: `postgres://me:secret@host/db?sslmode=require` is where `postgres://host/db` is.
fn place(url: &str) -> (&str, &str) {
    let url = url.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let host_ends = rest.find('/').unwrap_or(rest.len());
    (scheme, rest[..host_ends].rfind('@').map_or(rest, |at| &rest[at + 1..]))
}

impl Sweeps {
    /// Those that the configuration of the user's home asks for.
    pub fn read() -> Result<Self, Error> {
        Ok(HomeConfig::read()?.map(|(config, _)| config.sweep).unwrap_or_default())
    }

    /// What they spare.
    pub fn spare(&self) -> Spare {
        let grace = self.grace.unwrap_or(GRACE);
        Spare {
            grace,
            keep_last: self.keep_last,
            older_than: self.older_than,
            unsure: UNSURE.min(grace),
            forget_after: self.forget_after,
            ..Spare::default()
        }
    }
}

impl Hooks {
    /// Those that the configuration of the user's home names.
    pub fn read() -> Result<Self, Error> {
        let Some((HomeConfig { hooks, .. }, path)) = HomeConfig::read()? else { return Ok(Self::default()) };
        let written = path.metadata().map_or(0, |found| found.mtime().saturating_mul(1_000_000));
        Ok(Self { since: Timestamp::from_micros(written), ..hooks })
    }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_url_is_told_by_where_it_leads() {
        assert_eq!(place("postgres://me:a@b@host:1/db?sslmode=require"), place("postgres://host:1/db"));
        assert_eq!(place("s3://bucket/prefix/"), place("s3://bucket/prefix?endpoint=http://x"));
        assert_ne!(place("s3://bucket/a@b"), place("s3://bucket/b"));
        assert_ne!(place("https://host"), place("http://host"));
    }
}
