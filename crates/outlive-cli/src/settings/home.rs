//! `config.toml` of the user's home.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use outlive::error::Error;
use outlive::runtime::sweeper::{GRACE, Spare, UNSURE};
use outlive::time::Timestamp;
use serde::Deserialize;

use super::CONFIG;
use super::config::{config_text, duration};

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

/// How often a supervisor deletes what runs made and nobody needs, and what it spares. Only the home's configuration can have
/// anything deleted.
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
