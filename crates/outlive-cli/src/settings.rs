//! Settings: which registry is meant, and what its configuration says.
//!
//! A configuration lies beside the runs of a repository and comes from whoever wrote it there. It can set intervals and
//! limits; it cannot name a command, a store or an address, so there is nothing in it to be trusted.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outlive::error::Error;
use outlive::logs::{LogPolicy, parse_bytes};
use outlive::policy::{Lease, Policy, Retention};
use outlive::redact::Redactor;
use outlive::registry::Registry;
use outlive::runtime::sweeper::{GRACE, Spare, UNSURE};
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::time::{Timestamp, parse_duration};
use serde::{Deserialize, Deserializer};

use crate::operation::{Effect, Form};

/// The variable that names the registry.
pub const REGISTRY_VARIABLE: &str = "OUTLIVE_REGISTRY";
/// The directory of a repository's registry.
pub const DIRECTORY: &str = ".outlive";
const CONFIG: &str = "config.toml";
const CONFIG_LIMIT: u64 = 1 << 20;

/// What an operation works with.
pub struct Context {
    named: Option<String>,
    config: OnceCell<Config>,
    form: Cell<Form>,
    caller: Option<Caller>,
}

/// Somebody on whose behalf a server works.
#[derive(Clone)]
pub struct Caller {
    /// What they are called in stories; none for the server's own user.
    pub user: Option<String>,
    /// The most that they may have done.
    pub may: Effect,
    /// They may look beyond the registry that is served.
    pub everywhere: bool,
    /// For how long they may be kept waiting.
    pub patience: Duration,
    /// The server's registry, where it is one to be opened once.
    pub registry: Option<Arc<Registry>>,
}

/// Where a registry is.
#[derive(Clone, PartialEq, Eq)]
pub enum Location {
    /// A directory of this machine.
    Directory(PathBuf),
    /// Anything else that a URL names.
    Url(String),
}

impl Context {
    /// The context of a call that names a registry, or does not.
    pub fn new(named: Option<String>) -> Self {
        Self { named, config: OnceCell::new(), form: Cell::new(Form::Json), caller: None }
    }

    /// The context of a call that a server answers.
    pub fn served(registry: String, caller: Caller) -> Self {
        Self { caller: Some(caller), ..Self::new(Some(registry)) }
    }

    /// Whether somebody else asks, who has neither this process's environment nor its standard input.
    pub fn is_served(&self) -> bool {
        self.caller.is_some()
    }

    /// For how long whoever asks may be kept waiting.
    pub fn patience(&self) -> Option<Duration> {
        self.caller.as_ref().map(|caller| caller.patience)
    }

    /// Refuses what whoever asks may not have done.
    pub fn permit(&self, name: &str, effect: Effect) -> Result<(), Error> {
        match &self.caller {
            Some(_) if effect == Effect::Local => Err(Error::Forbidden(format!(
                "this call of `{name}` is for a shell on the server's machine: it changes that machine or whom its user trusts, or reads their files or variables"
            ))),
            Some(caller) if effect > caller.may => {
                Err(Error::Forbidden(format!("this call of `{name}` is more than you may have done here")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses to look beyond the registry that is served for whoever was let in to that one alone.
    pub fn permit_beyond(&self, name: &str) -> Result<(), Error> {
        match &self.caller {
            Some(caller) if !caller.everywhere => Err(Error::Forbidden(format!(
                "this call of `{name}` looks into other repositories, and your token is for this registry alone; `outlive token create --all-repositories` makes one for all"
            ))),
            _ => Ok(()),
        }
    }

    /// A registry as whoever asks sees it.
    fn seen_by_caller(&self, registry: Registry) -> Registry {
        match self.caller.as_ref().and_then(|caller| caller.user.as_deref()) {
            Some(user) => registry.acting_for(user),
            None => registry,
        }
    }

    async fn open_url(&self, url: &str) -> Result<Registry, Error> {
        match self.caller.as_ref().and_then(|caller| caller.registry.as_ref()) {
            Some(shared) => Ok(shared.again()),
            None => Registry::open(url).await,
        }
    }

    /// The answer is to be rendered so: what would not be in it need not be found out.
    pub fn answer_as(&self, form: Form) {
        self.form.set(form);
    }

    /// What the answer is rendered as.
    pub fn form(&self) -> Form {
        self.form.get()
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

    /// Where the registry is, for people.
    pub fn place(&self) -> Result<String, Error> {
        Ok(match self.location()? {
            Location::Directory(path) => path.display().to_string(),
            // It may bear a password.
            Location::Url(url) => Redactor::default().text(&url),
        })
    }

    /// The words of this call that name its registry, for people to repeat in another; a password is left to them.
    pub fn flags(&self) -> Vec<String> {
        let shown = |url: &String| Redactor::default().text(url);
        self.named.iter().flat_map(|url| ["--registry".to_owned(), shown(url)]).collect()
    }

    /// The registry, made if it is missing. What earlier processes could not record is delivered first.
    pub async fn registry(&self) -> Result<Registry, Error> {
        let redactor = self.config()?.redactor()?;
        let registry = match self.location()? {
            Location::Directory(path) => {
                if let Some(home) = outlive::home::home().filter(|home| path.parent() == Some(home)) {
                    let failed = |error| Error::Invalid(format!("`{}` cannot be made: {error}", home.display()));
                    outlive::home::make(&home).map_err(failed)?;
                }
                Registry::open_local(&path, Some(Sharing::Private))?
            }
            Location::Url(url) => self.open_url(&url).await?,
        };
        let registry = self.seen_by_caller(registry.redacting(redactor));
        tell_damage(&registry);
        crate::operations::plane::register_own(&registry);
        deliver(&registry).await?;
        Ok(registry)
    }

    /// Where runs are recorded while a bucket cannot be reached: in the user's own registry. None where that is no answer to
    /// the error.
    pub async fn instead(&self, error: &Error) -> Result<Option<Registry>, Error> {
        let is_away = matches!(error, Error::Store(error) if error.is_passing());
        let is_bucket =
            matches!(self.location()?, Location::Url(url) if outlive::store::object::Address::is_meant(&url));
        let Some(home) = outlive::home::home().filter(|_| is_away && is_bucket) else { return Ok(None) };
        let failed = |error| Error::Invalid(format!("`{}` cannot be made: {error}", home.display()));
        outlive::home::make(&home).map_err(failed)?;
        let path = home.join("registry");
        let said = Redactor::default().text(&error.to_string());
        crate::cli::talk(&format!(
            "outlive: {}; the run is recorded in {} instead\n",
            crate::terminal::plain(&said),
            path.display()
        ));
        let redactor = self.config()?.redactor()?;
        Ok(Some(Registry::open_local(&path, Some(Sharing::Private))?.redacting(redactor)))
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
            Location::Directory(path) if is_absent(&path) && self.named().is_some() => {
                Err(Error::NoRegistry { sought: None, place: path.display().to_string() })
            }
            Location::Directory(path) if self.named().is_none() && is_missing(&path) => Ok(None),
            Location::Directory(path) => {
                // A configuration that cannot be read keeps nobody from looking or cancelling; what is said meanwhile
                // is not stored.
                let redactor = self.config().and_then(|config| config.redactor());
                let registry = open(&path)?.redacting(redactor.unwrap_or_else(|_| Redactor::everything()));
                if let Some(trouble) = registry.local().and_then(SqliteStore::trouble) {
                    let hint = Error::Store(trouble.clone()).hint().unwrap_or_default();
                    crate::cli::talk(&format!(
                        "outlive: {}; shown is what the files of the runs say\nhint: {hint}\n",
                        crate::terminal::plain(&trouble.to_string())
                    ));
                }
                tell_damage(&registry);
                Ok(Some(self.seen_by_caller(registry)))
            }
            Location::Url(url) => Ok(Some(self.seen_by_caller(self.open_url(&url).await?))),
        }
    }

    /// The registry to look a run up in.
    pub async fn for_lookup(&self, run: &str) -> Result<Registry, Error> {
        self.existing().await?.map_or_else(|| self.none_for(run), Ok)
    }

    /// The registry to say something of a run in.
    pub async fn for_report(&self, run: &str) -> Result<Registry, Error> {
        self.to_change().await?.map_or_else(|| self.none_for(run), Ok)
    }

    fn none_for(&self, run: &str) -> Result<Registry, Error> {
        Err(Error::NoRegistry { sought: Some(run.chars().take(80).collect()), place: self.place()? })
    }

    /// The registry to change a run in: like [`Context::for_report`], with what is spooled delivered first.
    pub async fn for_change(&self, run: &str) -> Result<Registry, Error> {
        let registry = self.for_report(run).await?;
        deliver(&registry).await?;
        Ok(registry)
    }

    /// What is wrong with the configuration, if anything is.
    pub fn check_config(&self) -> Result<(), Error> {
        Hooks::read()?;
        let config = self.config()?;
        config.redactor()?;
        if !config.redact.defaults && !config.is_own {
            let home = outlive::home::home().unwrap_or_default().join("registry").join(CONFIG);
            return Err(Error::Invalid(format!(
                "`defaults = false` in `[redact]` of {CONFIG} is not heeded: a repository may have more masked, not less; \
                 only `{}` may say so, for runs of that registry",
                home.display()
            )));
        }
        let mut kinds = config.kinds.keys().map(String::as_str).chain(["command"]);
        kinds.try_for_each(|kind| config.policy(kind).map(|_| ()))
    }

    /// The policy that a run of this kind is given.
    pub fn policy(&self, kind: &str) -> Result<Policy, Error> {
        self.config()?.policy(kind)
    }

    /// How much of the logs of a run is kept.
    pub fn log_policy(&self) -> Result<LogPolicy, Error> {
        Ok(self.config()?.logs)
    }

    /// When ended runs are put away.
    pub fn retention(&self) -> Result<Retention, Error> {
        let Keep { keep_last, archive_after } = self.config()?.retention;
        Ok(Retention { keep_last, archive_after })
    }

    /// The configuration, read once: one call goes by one configuration.
    fn config(&self) -> Result<&Config, Error> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let config = match self.location()? {
            Location::Directory(path) => {
                // Only what lies in this user's home was surely written by this user.
                let is_own = outlive::home::home().is_some_and(|home| path == home.join("registry"));
                Config { is_own, ..Config::read(&path.join(CONFIG))? }
            }
            Location::Url(_) => Config::default(),
        };
        Ok(self.config.get_or_init(|| config))
    }
}

impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            // It may bear a password.
            Self::Url(url) => f.debug_tuple("Url").field(&Redactor::default().text(url)).finish(),
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
    is_absent(path) || is_absent(&path.join("registry.id")) && is_absent(&path.join("runs"))
}

/// Whether a directory is a registry.
pub fn is_registry(path: &Path) -> bool {
    !is_absent(&path.join("registry.id"))
}

fn is_absent(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// `config.toml`. A pattern may spell out what it is to hide, so it cannot be printed.
#[derive(Default)]
struct Config {
    /// This user's own: it may have less masked, which that of a repository may not.
    is_own: bool,
    all: Promises,
    kinds: BTreeMap<String, Promises>,
    logs: LogPolicy,
    redact: Redact,
    retention: Keep,
}

/// What a configuration can say of runs that have ended.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Keep {
    keep_last: Option<u64>,
    #[serde(deserialize_with = "duration")]
    archive_after: Option<Duration>,
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
struct Redact {
    /// The usual shapes of secrets.
    defaults: bool,
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

/// A duration in a configuration or in JSON, written as people write it.
pub fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).map_err(serde::de::Error::custom)
}

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

/// The text of a configuration; none where there is none.
fn config_text(path: &Path) -> Result<Option<String>, Error> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    let invalid = |why: &dyn std::fmt::Display| Error::Invalid(format!("`{}`: {why}", path.display()));
    // It may be anything that a repository can carry: a link, a pipe that nobody writes to.
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).unwrap_or(0);
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(invalid(&error)),
    };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(invalid(&"it is not a file"));
    }
    let mut text = String::new();
    file.take(CONFIG_LIMIT).read_to_string(&mut text).map_err(|error| invalid(&error))?;
    Ok(Some(text))
}

impl Config {
    fn read(path: &Path) -> Result<Self, Error> {
        let Some(text) = config_text(path)? else { return Ok(Self::default()) };
        Self::parse(&text).map_err(|error| Error::Invalid(format!("`{}`: {}", path.display(), error.message())))
    }

    fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let mut table: toml::Table = toml::from_str(text)?;
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

    fn redactor(&self) -> Result<Redactor, Error> {
        let Redact { defaults, patterns } = &self.redact;
        Redactor::new(*defaults || !self.is_own, patterns)
            .map_err(|error| Error::Invalid(format!("`[redact]` of {CONFIG}: {error}")))
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
