//! `config.toml` of the user's home.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::CONFIG;
use super::config::{Config, DELETION_ELSEWHERE, HISTORY_ELSEWHERE, config_text, duration};
#[cfg(feature = "object")]
use crate::engine::sweeper::{GRACE, SweepPolicy, UNSURE};
use crate::error::Error;
use crate::model::run::Run;
use crate::model::time::Timestamp;
use crate::redact::Redactor;
use crate::registry::Registry;
use crate::secrets::trust::NamedLocation;
use crate::store::Order;
#[cfg(feature = "object")]
use crate::store::object::RUNS;
#[cfg(feature = "postgres")]
use crate::store::postgres::SCHEMA;

// Without the feature no such registry is opened, and whatever its URL leaves out is the same.
#[cfg(not(feature = "object"))]
const RUNS: &str = "";
#[cfg(not(feature = "postgres"))]
const SCHEMA: &str = "";

/// The commands of the user that are called when a run ends. Only the home's configuration can name any.
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

/// How often a supervisor deletes artifacts that no run needs, and what every sweep spares: a sweep by hand can
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
    /// By the URL of a registry that is shared, the locations that its records may have artifacts deleted below.
    artifacts: BTreeMap<String, Vec<String>>,
}

/// In which order the entries of the queue of all repositories are handed out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// By priority, then time, then id.
    #[default]
    Priority,
    /// What waits the longest first, whatever its priority.
    Oldest,
    /// What was added last first, whatever its priority.
    Newest,
}

/// What the home says of the queue of all repositories.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Queue {
    order: QueueOrder,
}

/// How cool-workflow is called. Only the home's configuration can say so: a repository names no command.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoolWorkflow {
    /// The program and its first words, such as `["cw"]`. Where it is unset, outlive says what to type.
    pub command: Vec<String>,
}

impl CoolWorkflow {
    /// What the home says of it.
    pub fn read() -> Result<Self, Error> {
        Ok(HomeConfig::read()?.map(|(home, _)| home.cool_workflow).unwrap_or_default())
    }
}

/// What the home says of the logs of all registries.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HomeLogs {
    /// Whether secrets are masked in them.
    mask: bool,
}

impl Default for HomeLogs {
    fn default() -> Self {
        Self { mask: true }
    }
}

/// The registry, with its logs as they were written where this user's home says so. A repository cannot.
pub fn with_logs(registry: Registry) -> Registry {
    match HomeConfig::read() {
        Ok(Some((HomeConfig { logs: HomeLogs { mask: false }, .. }, _))) => registry.with_plain_logs(),
        // Logs are masked where it cannot be read.
        _ => registry,
    }
}

/// `config.toml` of the user's home.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HomeConfig {
    hooks: Hooks,
    logs: HomeLogs,
    sweep: Sweeps,
    queue: Queue,
    cool_workflow: CoolWorkflow,
    /// By URL, what a registry with a directory has in a file of its own.
    registries: BTreeMap<String, toml::Table>,
}

impl HomeConfig {
    /// What it says, and where; none where there is none.
    fn read() -> Result<Option<(Self, PathBuf)>, Error> {
        let Some(path) = crate::host::home::home().map(|home| home.join(CONFIG)) else { return Ok(None) };
        let Some(text) = config_text(&path)? else { return Ok(None) };
        let invalid = |error: toml::de::Error| Error::Invalid(format!("`{}`: {}", path.display(), error.message()));
        Ok(Some((toml::from_str::<Self>(&text).map_err(invalid)?, path)))
    }
}

impl Config {
    /// What this user says of the registry at a URL, which has no directory to keep a configuration in.
    pub(super) fn of(url: &str) -> Result<Self, Error> {
        let Some((home, path)) = HomeConfig::read()? else { return Ok(Self::default()) };
        let meant = RegistryKey::of(url);
        let named = home.registries.into_iter().filter(|(named, _)| RegistryKey::of(named).may_be(&meant));
        let Some((named, table)) = named.max_by_key(|(named, _)| RegistryKey::of(named).endpoint.is_some()) else {
            return Ok(Self::default());
        };
        let named = Redactor::default().text(&named);
        let invalid = |error: toml::de::Error| {
            Error::Invalid(format!("`[registries.\"{named}\"]` of `{}`: {}", path.display(), error.message()))
        };
        let config = Self { is_own: true, ..Self::from_table(table).map_err(invalid)? };
        if config.retention.keep_history.is_some() && meant.scheme != "postgres" {
            return Err(invalid(serde::de::Error::custom(HISTORY_ELSEWHERE)));
        }
        if config.retention.delete_after.is_some() {
            return Err(invalid(serde::de::Error::custom(DELETION_ELSEWHERE)));
        }
        Ok(config)
    }
}

/// What of a URL names a registry, without who asks and how: `postgres://me:secret@host/db?sslmode=require` is
/// `postgres://host/db`, and not `postgres://host/db?schema=night`.
#[derive(Debug, PartialEq, Eq)]
struct RegistryKey<'a> {
    scheme: &'a str,
    path: &'a str,
    /// Which of the registries there.
    schema: &'a str,
    runs: &'a str,
    endpoint: Option<&'a str>,
}

impl<'a> RegistryKey<'a> {
    fn of(url: &'a str) -> Self {
        let url = url.split('#').next().unwrap_or_default();
        let (url, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, rest) = url.trim_end_matches('/').split_once("://").unwrap_or(("", url));
        let host_ends = rest.find('/').unwrap_or(rest.len());
        let path = rest[..host_ends].rfind('@').map_or(rest, |at| &rest[at + 1..]);
        let said = |name: &str| {
            let values = query.split('&').filter_map(|pair| pair.split_once('='));
            values.filter(|(said, value)| *said == name && !value.is_empty()).map(|(_, value)| value).next_back()
        };
        Self {
            scheme: if scheme == "postgresql" { "postgres" } else { scheme },
            path,
            schema: said("schema").unwrap_or(SCHEMA),
            runs: said("runs").unwrap_or(RUNS),
            endpoint: said("endpoint").map(|endpoint| endpoint.trim_end_matches('/')),
        }
    }

    /// Whether both are one. The environment may name the endpoint of a URL that names none.
    fn may_be(&self, other: &Self) -> bool {
        let endpoints = self.endpoint.zip(other.endpoint);
        endpoints.is_none_or(|(one, other)| one == other) && Self { endpoint: other.endpoint, ..*self } == *other
    }
}

impl QueueOrder {
    /// The one that the configuration of the user's home asks for.
    pub fn read() -> Result<Self, Error> {
        Ok(HomeConfig::read()?.map(|(config, _)| config.queue.order).unwrap_or_default())
    }

    /// Puts runs into it that are in the order in which any are claimed.
    pub fn sort(self, runs: &mut [Run]) {
        match self {
            Self::Priority => {}
            Self::Oldest => runs.sort_by_key(|run| (run.created_at, run.id)),
            Self::Newest => runs.sort_by_key(|run| std::cmp::Reverse((run.created_at, run.id))),
        }
    }
}

impl From<QueueOrder> for Order {
    fn from(order: QueueOrder) -> Self {
        match order {
            QueueOrder::Priority => Self::Claim,
            QueueOrder::Oldest => Self::Oldest,
            QueueOrder::Newest => Self::Newest,
        }
    }
}

impl Sweeps {
    /// Those that the configuration of the user's home asks for.
    pub fn read() -> Result<Self, Error> {
        let sweeps = HomeConfig::read()?.map(|(config, _)| config.sweep).unwrap_or_default();
        if cfg!(not(feature = "object")) && sweeps.every.is_some() {
            let why = "`[sweep] every` needs the cargo feature `object`, which this build lacks";
            return Err(Error::Invalid(why.into()));
        }
        Ok(sweeps)
    }

    /// The locations that records of the registry at `url` may have artifacts deleted below, of all writers. A registry
    /// in a directory has none: it may have come with a repository.
    pub fn locations(&self, url: &str) -> Result<Vec<NamedLocation>, Error> {
        let meant = RegistryKey::of(url);
        let mut found = Vec::new();
        for (registry, locations) in &self.artifacts {
            let shown = Redactor::default().text(registry);
            if !registry.contains("://") {
                return Err(Error::Invalid(format!(
                    "`[sweep.artifacts]` names `{shown}`, which is not the URL of a registry that is shared"
                )));
            }
            if !RegistryKey::of(registry).may_be(&meant) {
                continue;
            }
            for text in locations {
                let invalid = |error| {
                    let text = Redactor::default().text(text);
                    Error::Invalid(format!("`[sweep.artifacts]`: `{text}` for `{shown}`: {error}"))
                };
                found.push(NamedLocation::parse(text).map_err(invalid)?);
            }
        }
        Ok(found)
    }

    /// What they spare.
    #[cfg(feature = "object")]
    pub fn spare(&self) -> SweepPolicy {
        let grace = self.grace.unwrap_or(GRACE);
        SweepPolicy {
            grace,
            keep_last: self.keep_last,
            older_than: self.older_than,
            unsure: UNSURE.min(grace),
            forget_after: self.forget_after,
            ..SweepPolicy::default()
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

// The schemas of PostgreSQL and the runs of buckets are known where these stores are compiled.
#[cfg(all(test, feature = "http", feature = "object", feature = "postgres"))]
mod tests {
    use super::RegistryKey;

    #[test]
    fn a_url_is_known_by_where_it_leads() {
        let is_one = |one: &str, other: &str| {
            let (one, other) = (RegistryKey::of(one), RegistryKey::of(other));
            assert_eq!(one.may_be(&other), other.may_be(&one));
            one.may_be(&other)
        };
        for (one, other) in [
            ("postgres://me:a@b@host:1/db?sslmode=require", "postgresql://host:1/db"),
            ("postgres://host/db?schema=outlive&connections=2", "postgres://host/db"),
            ("postgres://host/db?schema=a", "postgres://me@host/db?connections=1&schema=a"),
            ("s3://bucket/prefix/", "s3://bucket/prefix?endpoint=http://x"),
            ("s3://bucket?endpoint=http://x/&region=here", "s3://key:secret@bucket?runs=runs&endpoint=http://x"),
            ("https://host/", "https://host"),
        ] {
            assert!(is_one(one, other), "{one} is {other}");
        }
        for (one, other) in [
            ("postgres://host/db?schema=a", "postgres://host/db?schema=b"),
            ("postgres://host/db", "postgres://host/db?schema=b"),
            ("s3://bucket/prefix?runs=night", "s3://bucket/prefix"),
            ("s3://bucket/prefix?endpoint=http://x", "s3://bucket/prefix?endpoint=http://y"),
            ("s3://bucket/a@b", "s3://bucket/b"),
            ("https://host", "http://host"),
        ] {
            assert!(!is_one(one, other), "{one} is not {other}");
        }
    }
}
