//! Settings: which registry is meant, and what its configuration says.
//!
//! A configuration lies beside the runs of a repository and comes from whoever wrote it there. It can set intervals and
//! limits; it cannot name a command, a store or an address, so there is nothing in it to be trusted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outlive::error::Error;
use outlive::policy::{Lease, Policy};
use outlive::registry::Registry;
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::time::parse_duration;
use serde::{Deserialize, Deserializer};

/// The variable that names the registry.
pub const REGISTRY_VARIABLE: &str = "OUTLIVE_REGISTRY";
/// The directory of a repository's registry.
pub const DIRECTORY: &str = ".outlive";
const CONFIG: &str = "config.toml";
const CONFIG_LIMIT: u64 = 1 << 20;

/// What an operation works with.
pub struct Context {
    named: Option<String>,
}

/// Where a registry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory of this machine.
    Directory(PathBuf),
    /// Anything else that a URL names.
    Url(String),
}

impl Context {
    /// The context of a call that names a registry, or does not.
    pub fn new(named: Option<String>) -> Self {
        Self { named }
    }

    /// The registry that the call or the environment names.
    pub fn named(&self) -> Option<Location> {
        let variable = || std::env::var(REGISTRY_VARIABLE).ok().filter(|url| !url.is_empty());
        let url = self.named.clone().or_else(variable)?;
        Some(match url.strip_prefix("sqlite:") {
            Some(path) if !path.is_empty() => Location::Directory(path.into()),
            _ => Location::Url(url),
        })
    }

    /// Where the registry is: as named, or in the environment, or the nearest `.outlive` of this directory or one above
    /// it, or the repository's own, or the user's.
    pub fn location(&self) -> Result<Location, Error> {
        if let Some(named) = self.named() {
            return Ok(named);
        }
        let here = std::env::current_dir().ok();
        let above = |name: &str| here.iter().flat_map(|here| here.ancestors()).find(|dir| dir.join(name).exists());
        if let Some(found) = above(DIRECTORY) {
            return Ok(Location::Directory(found.join(DIRECTORY)));
        }
        if let Some(repository) = above(".git") {
            return Ok(Location::Directory(repository.join(DIRECTORY)));
        }
        let home = outlive::home::home()
            .ok_or_else(|| Error::Invalid("no registry: neither HOME nor OUTLIVE_HOME is set".into()))?;
        Ok(Location::Directory(home.join("registry")))
    }

    /// The registry, made if it is missing. What earlier processes could not record is delivered first.
    pub async fn registry(&self) -> Result<Registry, Error> {
        let registry = match self.location()? {
            Location::Directory(path) => {
                if let Some(home) = outlive::home::home().filter(|home| path.parent() == Some(home)) {
                    let failed = |error| Error::Invalid(format!("`{}` cannot be made: {error}", home.display()));
                    outlive::home::make(&home).map_err(failed)?;
                }
                Registry::open_local(&path, Some(Sharing::Private))?
            }
            Location::Url(url) => Registry::open(&url).await?,
        };
        tell_damage(&registry);
        deliver(&registry).await?;
        Ok(registry)
    }

    /// The registry as it is; none where there is none yet. Nothing is written.
    pub async fn existing(&self) -> Result<Option<Registry>, Error> {
        self.open(Registry::read_local).await
    }

    /// The same, to be changed.
    pub async fn to_change(&self) -> Result<Option<Registry>, Error> {
        self.open(|path| Registry::open_local(path, None)).await
    }

    async fn open(&self, open: impl Fn(&Path) -> Result<Registry, Error>) -> Result<Option<Registry>, Error> {
        match self.location()? {
            // One that is named must be there; one that is only looked for need not be.
            Location::Directory(path) if self.named().is_none() && is_missing(&path) => Ok(None),
            Location::Directory(path) => {
                let registry = open(&path)?;
                if let Some(trouble) = registry.local().and_then(SqliteStore::trouble) {
                    let hint = Error::Store(trouble.clone()).hint().unwrap_or_default();
                    crate::cli::talk(&format!(
                        "outlive: {}; shown is what the files of the runs say\nhint: {hint}\n",
                        crate::terminal::plain(&trouble.to_string())
                    ));
                }
                tell_damage(&registry);
                Ok(Some(registry))
            }
            Location::Url(url) => Ok(Some(Registry::open(&url).await?)),
        }
    }

    /// The registry to look a run up in.
    pub async fn for_lookup(&self, run: &str) -> Result<Registry, Error> {
        self.existing().await?.ok_or_else(|| Error::NotFound(run.chars().take(80).collect()))
    }

    /// The registry to say something of a run in.
    pub async fn for_report(&self, run: &str) -> Result<Registry, Error> {
        self.to_change().await?.ok_or_else(|| Error::NotFound(run.chars().take(80).collect()))
    }

    /// The registry to change a run in: like [`Context::for_report`], with what is spooled delivered first.
    pub async fn for_change(&self, run: &str) -> Result<Registry, Error> {
        let registry = self.for_report(run).await?;
        deliver(&registry).await?;
        Ok(registry)
    }

    /// What is wrong with the configuration, if anything is.
    pub fn check_config(&self) -> Result<(), Error> {
        let Location::Directory(path) = self.location()? else { return Ok(()) };
        let config = Config::read(&path.join(CONFIG))?;
        let mut kinds = config.kinds.keys().map(String::as_str).chain(["command"]);
        kinds.try_for_each(|kind| config.policy(kind).map(|_| ()))
    }

    /// The policy that a run of this kind is given.
    pub fn policy(&self, kind: &str) -> Result<Policy, Error> {
        match self.location()? {
            Location::Directory(path) => Config::read(&path.join(CONFIG))?.policy(kind),
            Location::Url(_) => Ok(Policy::default()),
        }
    }
}

/// Says which records cannot be understood and are left out, as soon as they are met.
fn tell_damage(registry: &Registry) {
    if let Some(unsigned) = registry.unsigned() {
        crate::cli::talk(&format!(
            "outlive: {}\nhint: until then what you run is signed by nobody, and nobody resumes it without `outlive trust`\n",
            crate::terminal::plain(unsigned)
        ));
    }
    if let Some(store) = registry.local() {
        store.on_damage(|damage| {
            let damage = crate::terminal::plain(damage);
            crate::cli::talk(&format!(
                "outlive: {damage}; it is left out\nhint: `outlive doctor --fix` rebuilds it from the files of the run\n"
            ));
        });
    }
}

/// Records what earlier processes could not, and says what still cannot be. Answers with how many are on record.
pub async fn deliver(registry: &Registry) -> Result<usize, Error> {
    let delivered = registry.deliver_spooled().await?;
    for (run, why) in &delivered.left {
        let why = crate::terminal::plain(&why.to_string());
        crate::cli::talk(&format!(
            "outlive: the result of run {run} still waits to be recorded: {why}\nhint: `outlive doctor --fix` clears the way\n"
        ));
    }
    Ok(delivered.recorded)
}

/// Whether there is no registry here yet. One that may not be looked into, or has lost its identity, is not missing.
fn is_missing(path: &Path) -> bool {
    let absent = |path: &Path| path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    absent(path) || absent(&path.join("registry.id")) && absent(&path.join("runs"))
}

/// `config.toml`.
#[derive(Debug, Default)]
struct Config {
    all: Promises,
    kinds: BTreeMap<String, Promises>,
}

/// What a configuration can promise to runs. Unset fields are left as they are.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Promises {
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

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    fn read(path: &Path) -> Result<Self, Error> {
        use std::io::Read;
        use std::os::unix::fs::OpenOptionsExt;
        let invalid = |why: &dyn std::fmt::Display| Error::Invalid(format!("`{}`: {why}", path.display()));
        // It may be anything that a repository can carry: a link, a pipe that nobody writes to.
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
        let flags = i32::try_from(flags).unwrap_or(0);
        let file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(invalid(&error)),
        };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(invalid(&"it is not a file"));
        }
        let mut text = String::new();
        file.take(CONFIG_LIMIT).read_to_string(&mut text).map_err(|error| invalid(&error))?;
        Self::parse(&text).map_err(|error| invalid(&error.message()))
    }

    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let mut table: toml::Table = toml::from_str(text)?;
        let kinds = table.remove("kinds").map(BTreeMap::deserialize).transpose()?.unwrap_or_default();
        Ok(Self { all: Promises::deserialize(table)?, kinds })
    }

    fn policy(&self, kind: &str) -> Result<Policy, Error> {
        let mut policy = Policy::default();
        for promises in [Some(&self.all), self.kinds.get(kind)].into_iter().flatten() {
            promises.apply(&mut policy)?;
        }
        Ok(policy)
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
    fn l16_a_lease_that_cannot_hold_is_refused_with_the_numbers() {
        let refused = policy("beat = \"5s\"\nlease = \"10s\"", "command").unwrap_err();
        insta::assert_snapshot!(refused, @"beat 5.0s with lease 10s: a lease must last at least three beats");
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
