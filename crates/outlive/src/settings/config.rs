//! `config.toml` of a registry.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::CONFIG;
use crate::discovery::Location;
use crate::error::Error;
use crate::logs::{LogPolicy, parse_bytes};
use crate::model::policy::{Lease, Policies, Policy, Retention};
use crate::model::time::parse_duration;
use crate::redact::Redactor;
use crate::store;

const LIMIT: u64 = 1 << 20;
/// The message of a history that cannot be dropped.
pub(super) const HISTORY_ELSEWHERE: &str =
    "`keep_history` is for registries in PostgreSQL: set it in `[registries.\"postgres://…\".retention]` of your home";

/// Refusal of `delete_after` for a registry that deletes no single runs.
pub(super) const DELETION_ELSEWHERE: &str =
    "`delete_after` is not supported there yet, only in `config.toml` of a registry in a directory";

/// `config.toml`. A pattern may spell out what it is to hide, so it cannot be printed.
#[derive(Default)]
pub struct Config {
    /// This user's own: it may have less masked, which that of a repository may not.
    pub(super) is_own: bool,
    pub(super) all: Promises,
    pub(super) kinds: BTreeMap<String, Promises>,
    pub logs: LogPolicy,
    pub(super) redact: Redact,
    pub(super) retention: Keep,
}

/// What a configuration can say of runs that have ended.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Keep {
    pub(super) keep_last: Option<u64>,
    #[serde(deserialize_with = "duration")]
    pub(super) archive_after: Option<Duration>,
    /// Only of a registry in a directory.
    #[serde(deserialize_with = "duration")]
    pub(super) delete_after: Option<Duration>,
    /// Only of a database, and only where the home says so.
    #[serde(deserialize_with = "history")]
    pub(super) keep_history: Option<HistoryKept>,
}

/// For how long a database keeps what has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryKept {
    /// For a time.
    For(Duration),
    /// For ever.
    Forever,
}

impl HistoryKept {
    /// History goes by the day, and a century is the most.
    const DAYS: std::ops::RangeInclusive<u64> = 1..=36_500;
}

fn history<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<HistoryKept>, D::Error> {
    use serde::de::Error;
    let text = String::deserialize(deserializer)?;
    if text == "forever" {
        return Ok(Some(HistoryKept::Forever));
    }
    let keep = parse_duration(&text).map_err(D::Error::custom)?;
    let (least, most) = (HistoryKept::DAYS.start(), HistoryKept::DAYS.end());
    if keep < Duration::from_secs(least * 86_400) || keep > Duration::from_secs(most * 86_400) {
        let why = format!("history is kept from {least}d to {most}d, or `forever`, and not for `{text}`");
        return Err(D::Error::custom(why));
    }
    Ok(Some(HistoryKept::For(keep)))
}

/// What a configuration can say of logs.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Logs {
    #[serde(deserialize_with = "cap")]
    cap: Option<u64>,
}

fn cap<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    use serde::de::Error;
    let text = String::deserialize(deserializer)?;
    match parse_bytes(&text).map_err(D::Error::custom)? {
        cap if cap > 0 && cap < LogPolicy::SMALLEST => {
            let smallest = LogPolicy::SMALLEST >> 10;
            Err(D::Error::custom(format!(
                "a log cap of `{text}` is too small: at least {smallest}KiB, or 0 for no logs"
            )))
        }
        cap => Ok(Some(cap)),
    }
}

/// What is masked before it is stored.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Redact {
    /// The usual shapes of secrets.
    pub(super) defaults: bool,
    /// Regular expressions besides them.
    patterns: Vec<String>,
}

impl Default for Redact {
    fn default() -> Self {
        Self { defaults: true, patterns: Vec::new() }
    }
}

/// What a configuration can promise to runs. Unset fields are left as they are.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Promises {
    #[serde(deserialize_with = "duration")]
    beat: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    lease: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    stall_after: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    timeout: Option<Duration>,
    #[serde(deserialize_with = "duration")]
    hung_after: Option<Duration>,
    max_attempts: Option<u32>,
}

/// A duration in a configuration or in JSON, written as people write it.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    /// The configuration of the registry at a location.
    pub fn at(location: &Location) -> Result<Self, Error> {
        match location {
            Location::Directory(path) => {
                // Only what lies in this user's home was surely written by this user.
                let is_own = crate::host::home::home().is_some_and(|home| *path == home.join("registry"));
                Ok(Self { is_own, ..Self::read(&path.join(CONFIG))? })
            }
            Location::Url(url) => Self::of(url),
        }
    }

    /// What is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), Error> {
        self.redactor()?;
        if !self.redact.defaults && !self.is_own {
            let home = crate::host::home::home().unwrap_or_default().join("registry").join(CONFIG);
            return Err(Error::Invalid(format!(
                "`defaults = false` in `[redact]` of {CONFIG} is ignored: a repository may mask more, not less; \
                 only `{}` may say so, for runs of that registry",
                home.display()
            )));
        }
        let mut kinds = self.kinds.keys().map(String::as_str).chain(["command"]);
        kinds.try_for_each(|kind| self.policy(kind).map(|_| ()))
    }

    /// When ended runs are archived and deleted.
    pub fn retention(&self) -> Retention {
        let Keep { keep_last, archive_after, delete_after, .. } = self.retention;
        Retention { keep_last, archive_after, delete_after }
    }

    /// For how long a database keeps what has ended, where the home says so.
    pub fn history(&self) -> Option<HistoryKept> {
        self.retention.keep_history
    }

    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let Some(text) = config_text(path)? else { return Ok(Self::default()) };
        let invalid = |why: &str| Error::Invalid(format!("`{}`: {why}", path.display()));
        let config = Self::parse(&text).map_err(|error| invalid(error.message()))?;
        if config.retention.keep_history.is_some() {
            return Err(invalid(HISTORY_ELSEWHERE));
        }
        Ok(config)
    }

    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        Self::from_table(toml::from_str(text)?)
    }

    pub(super) fn from_table(mut table: toml::Table) -> Result<Self, toml::de::Error> {
        let kinds = table.remove("kinds").map(BTreeMap::deserialize).transpose()?.unwrap_or_default();
        let logs = table.remove("logs").map(Logs::deserialize).transpose()?.unwrap_or_default();
        let cap = logs.cap.unwrap_or(LogPolicy::default().cap);
        let redact = table.remove("redact").map(Redact::deserialize).transpose()?.unwrap_or_default();
        let retention = table.remove("retention").map(Keep::deserialize).transpose()?.unwrap_or_default();
        let all = Promises::deserialize(table).map_err(|error| match error.message() {
            // It knows its own fields only.
            unknown if unknown.starts_with("unknown field") => serde::de::Error::custom(format!(
                "{unknown}, or one of the sections `kinds`, `logs`, `redact`, `retention`"
            )),
            _ => error,
        })?;
        Ok(Self { is_own: false, all, kinds, logs: LogPolicy { cap }, redact, retention })
    }

    /// What masks secrets.
    pub fn redactor(&self) -> Result<Redactor, Error> {
        let Redact { defaults, patterns } = &self.redact;
        Redactor::new(*defaults || !self.is_own, patterns)
            .map_err(|error| Error::Invalid(format!("`[redact]` of {CONFIG}: {error}")))
    }

    /// The policy of runs of a kind.
    pub fn policy(&self, kind: &str) -> Result<Policy, Error> {
        let mut policy = Policy::default();
        for promises in [Some(&self.all), self.kinds.get(kind)].into_iter().flatten() {
            promises.apply(&mut policy)?;
        }
        Ok(policy)
    }

    /// The policies of runs of every kind. An impossible one is refused, whichever kind it is for.
    pub fn policies(&self) -> Result<Policies, Error> {
        let kinds = self.kinds.keys().map(|kind| Ok((kind.clone(), self.policy(kind)?)));
        Ok(Policies::new(self.policy("")?, kinds.collect::<Result<_, Error>>()?))
    }
}

impl Promises {
    fn apply(&self, policy: &mut Policy) -> Result<(), Error> {
        if self.beat.is_some() || self.lease.is_some() {
            let beat = self.beat.unwrap_or(policy.lease.beat());
            let lasts = self.lease.unwrap_or(policy.lease.lasts());
            policy.lease = Lease::new(beat, lasts).map_err(|error| Error::Invalid(error.to_string()))?;
        }
        policy.limits.stall_after = self.stall_after.or(policy.limits.stall_after);
        policy.limits.timeout = self.timeout.or(policy.limits.timeout);
        policy.limits.hung_after = self.hung_after.or(policy.limits.hung_after);
        policy.retry.max_attempts = self.max_attempts.unwrap_or(policy.retry.max_attempts);
        Ok(())
    }
}

/// The text of a configuration; none where there is none.
pub(super) fn config_text(path: &Path) -> Result<Option<String>, Error> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let invalid = |why: &dyn std::fmt::Display| Error::Invalid(format!("`{}`: {why}", path.display()));
    // It may be anything that a repository can carry: a link, a pipe without a writer.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).unwrap_or(0);
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        // It is the registry that this user may not read, and not what is written there.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Error::Store(store::Error::Denied(format!("`{}`: {error}", path.display()))));
        }
        Err(error) => return Err(invalid(&error)),
    };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(invalid(&"it is not a file"));
    }
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text).map_err(|error| invalid(&error))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(text: &str, kind: &str) -> Result<Policy, String> {
        let config = Config::parse(text).map_err(|error| error.to_string())?;
        config.policy(kind).map_err(|error| error.to_string())
    }

    #[test]
    fn l17_limits_are_set_for_all_and_for_a_kind() {
        let text =
            "timeout = \"1h\"\nbeat = \"1s\"\nlease = \"3s\"\n[kinds.train]\ntimeout = \"2d\"\nlease = \"10s\"\n";
        let (all, train) = (policy(text, "command").unwrap(), policy(text, "train").unwrap());
        assert_eq!(all.limits.timeout, Some(Duration::from_secs(3_600)));
        assert_eq!(all.lease, Lease::new(Duration::from_secs(1), Duration::from_secs(3)).unwrap());
        assert_eq!(train.limits.timeout, Some(Duration::from_secs(2 * 86_400)));
        assert_eq!(train.lease, Lease::new(Duration::from_secs(1), Duration::from_secs(10)).unwrap());
    }

    #[test]
    fn policies_have_a_kind_without_a_section_fall_back() {
        let config = Config::parse("timeout = \"1h\"\n[kinds.train]\nmax_attempts = 3\n").unwrap();
        let policies = config.policies().unwrap();
        for kind in ["train", "python", ""] {
            assert_eq!(*policies.of(kind), config.policy(kind).unwrap(), "{kind}");
        }
        assert_eq!(policies.of("train").retry.max_attempts, 3);
        assert_eq!(policies.of("python").limits.timeout, Some(Duration::from_secs(3_600)));
        let impossible = Config::parse("[kinds.train]\nbeat = \"5s\"\nlease = \"6s\"\n").unwrap();
        assert!(impossible.policies().is_err());
    }

    #[test]
    fn l16_a_lease_that_cannot_hold_is_refused_with_the_numbers() {
        let refused = policy("beat = \"5s\"\nlease = \"10s\"", "command").unwrap_err();
        insta::assert_snapshot!(refused, @"beat 5.0s with lease 10s: a lease must last at least three beats");
    }

    #[test]
    fn the_cap_of_logs_is_set_and_one_without_a_middle_is_refused() {
        let cap =
            |text: &str| Config::parse(text).map(|config| config.logs.cap).map_err(|error| error.message().to_owned());
        assert_eq!(cap(""), Ok(64 << 20));
        assert_eq!(cap("[logs]\ncap = \"1GiB\""), Ok(1 << 30));
        assert_eq!(cap("[logs]\ncap = \"0\""), Ok(0));
        insta::assert_snapshot!(cap("[logs]\ncap = \"4KiB\"").unwrap_err(), @"a log cap of `4KiB` is too small: at least 256KiB, or 0 for no logs");
        insta::assert_snapshot!(cap("[logs]\ncap = \"64\"").unwrap_err(), @"`64` is not an amount such as 64MiB, 500MB or 0");
    }

    #[test]
    fn history_is_kept_for_days_or_for_ever() {
        let kept = |text: &str| {
            let config = Config::parse(&format!("[retention]\nkeep_history = \"{text}\""));
            config.map(|config| config.retention.keep_history).map_err(|error| error.message().to_owned())
        };
        assert_eq!(kept("90d"), Ok(Some(HistoryKept::For(Duration::from_secs(90 * 86_400)))));
        assert_eq!(kept("forever"), Ok(Some(HistoryKept::Forever)));
        insta::assert_snapshot!(kept("1h").unwrap_err(), @"history is kept from 1d to 36500d, or `forever`, and not for `1h`");
        for nonsense in ["0d", "-1d", "36501d", "never", ""] {
            assert!(kept(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn s_35_s_36_a_configuration_cannot_name_commands_or_stores() {
        for text in [
            "on_end = \"curl evil\"",
            "registry = \"s3://evil/x\"",
            "[hooks]\non_dead = \"x\"",
            "endpoint = \"http://evil\"",
        ] {
            let refused = policy(text, "command").expect_err("a configuration named a command or a store");
            assert!(refused.contains("unknown field"), "{refused}");
        }
    }
}
