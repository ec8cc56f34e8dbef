//! The context of a call: which registry it means, who makes it, and what they may do.

use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Command;
use outlive::discovery::{Location, REGISTRY_VARIABLE, is_missing};
use outlive::error::Error;
use outlive::logs::LogPolicy;
use outlive::policy::{Policy, Retention};
use outlive::redact::Redactor;
use outlive::registry::Registry;
use outlive::run::Run;
#[cfg(feature = "postgres")]
use outlive::settings::HistoryKept;
use outlive::settings::{Config, Hooks, with_logs};
#[cfg(feature = "object")]
use outlive::store::object;
#[cfg(feature = "postgres")]
use outlive::store::postgres::{self, PostgresStore};
use outlive::store::sqlite::{Sharing, SqliteStore};

use super::progress::CallProgress;
use super::{Effect, Form};
use crate::ui::{plain, talk, typed};

/// What an operation works with.
pub struct Context {
    named: Option<String>,
    config: OnceCell<Config>,
    form: Cell<Form>,
    caller: Option<Caller>,
    /// How far a call of the command line is.
    progress: CallProgress,
    /// Builds the command tree, which the command line gives: it stands above all operations.
    tree: fn() -> Command,
}

/// A client on whose behalf a server works.
#[derive(Clone)]
pub struct Caller {
    /// What they are called in event logs; none for the server's own user.
    pub user: Option<String>,
    /// The most that they may have done.
    pub may: Effect,
    /// They may look beyond the registry that is served.
    pub everywhere: bool,
    /// For how long they may be kept waiting.
    pub timeout: Duration,
    /// The process of their session, where it has one on this machine.
    pub session: Option<u32>,
    /// Whether they still want it, and how far it is.
    pub going: CallProgress,
    /// The server's registry, where it is one to be opened once.
    pub registry: Option<Arc<Registry>>,
}

impl Context {
    /// The context of a call that names a registry, or does not.
    pub fn new(named: Option<String>) -> Self {
        Self {
            named,
            config: OnceCell::new(),
            form: Cell::new(Form::Json),
            caller: None,
            progress: CallProgress::default(),
            tree: || Command::new("outlive"),
        }
    }

    /// The context of a call that a server answers.
    pub fn served(registry: String, caller: Caller) -> Self {
        Self { caller: Some(caller), ..Self::new(Some(registry)) }
    }

    /// Lets operations describe the whole program: its manual pages and completions.
    pub fn with_tree(self, tree: fn() -> Command) -> Self {
        Self { tree, ..self }
    }

    /// Builds the command tree of the whole program.
    pub fn tree(&self) -> fn() -> Command {
        self.tree
    }

    /// The context of the same call for another registry: the same caller, with the same permissions.
    pub fn at(&self, url: String) -> Self {
        let caller = self.caller.clone().map(|caller| Caller { registry: None, ..caller });
        let progress = self.progress.clone();
        Self { caller, form: self.form.clone(), progress, tree: self.tree, ..Self::new(Some(url)) }
    }

    /// Whether runs of other registries cannot be meant: a command names its registry, or a caller may use this one
    /// alone.
    pub fn is_confined(&self) -> bool {
        match &self.caller {
            Some(caller) => !caller.everywhere,
            None => self.named().is_some(),
        }
    }

    /// Whether another client asks, who has neither this process's environment nor its standard input.
    pub fn is_served(&self) -> bool {
        self.caller.is_some()
    }

    /// Notes the word that the user typed for a run, for messages about it. A server's answers name runs by their ids.
    pub fn remember(&self, run: &Run, word: &str) {
        if !self.is_served() {
            typed::remember(run.id, word);
        }
    }

    /// For how long the caller may be kept waiting.
    pub fn timeout(&self) -> Option<Duration> {
        self.caller.as_ref().map(|caller| caller.timeout)
    }

    /// The process of the session of the caller, where it has one on this machine.
    pub fn session(&self) -> Option<u32> {
        self.caller.as_ref().and_then(|caller| caller.session)
    }

    /// The caller of a server, where that is not the server's own user.
    pub fn user(&self) -> Option<&str> {
        self.caller.as_ref().and_then(|caller| caller.user.as_deref())
    }

    /// Here the call may be stopped, with so many done of so many. An error where the caller has gone away.
    pub fn pass(&self, done: usize, total: usize) -> Result<(), Error> {
        self.progress().pass(done, total)
    }

    /// How far the call is.
    pub fn progress(&self) -> &CallProgress {
        self.caller.as_ref().map_or(&self.progress, |caller| &caller.going)
    }

    /// Refuses what the caller has no permission for.
    pub fn permit(&self, name: &str, effect: Effect) -> Result<(), Error> {
        match &self.caller {
            Some(_) if effect == Effect::Local => Err(Error::Forbidden(format!(
                "`{name}` with these fields is for a shell on the server's machine: it changes that machine or its user's trust, or reads their files or variables"
            ))),
            Some(caller) if effect > caller.may => Err(Error::Forbidden(format!(
                "you may not call `{name}`: it needs the permission `{}`, which the role `{}` has, and you have `{}`",
                effect.as_str(),
                effect.role(),
                caller.may.as_str()
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses to look beyond the registry that is served for a client that was let in to that one alone.
    pub fn permit_beyond(&self, name: &str) -> Result<(), Error> {
        match &self.caller {
            Some(caller) if !caller.everywhere => Err(Error::Forbidden(format!(
                "`{name}` with these fields looks into other repositories, and your token is for this registry alone; `outlive token create --all-repositories` makes one for all"
            ))),
            _ => Ok(()),
        }
    }

    /// A registry as the caller sees it.
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

    /// The registries that the call or the environment names, as they are written there.
    pub fn named_text(&self) -> Option<String> {
        self.named.clone().or_else(|| std::env::var(REGISTRY_VARIABLE).ok())
    }

    /// The registry that the call or the environment names.
    pub fn named(&self) -> Option<Location> {
        Location::named(self.named.as_deref())
    }

    /// Where the registry is: as named, or found as every program that uses the library finds it.
    pub fn location(&self) -> Result<Location, Error> {
        Location::find(self.named.as_deref())
    }

    /// Says that runs of a checkout which cannot be written to are recorded in the home, where the registry is that of the
    /// home.
    pub fn tell_home(&self, path: &Path) {
        if outlive::host::home::home().is_none_or(|home| path.parent() != Some(&home)) {
            return;
        }
        let here = std::env::current_dir().ok();
        let checkout = here.iter().flat_map(|here| here.ancestors()).find(|dir| dir.join(".git").exists());
        if let Some(checkout) = checkout.filter(|checkout| self.named().is_none() && !path.starts_with(checkout)) {
            let shown = checkout.display().to_string();
            talk(&format!(
                "outlive: `{}` cannot be written to; the run is recorded in {}\n",
                plain(&shown),
                path.display()
            ));
        }
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
                if let Some(home) = outlive::host::home::home().filter(|home| path.parent() == Some(home)) {
                    outlive::registry::make_home(&home)?;
                }
                self.tell_home(&path);
                Registry::open_local(&path, Some(Sharing::Private))?
            }
            Location::Url(url) => self.open_url(&url).await?,
        };
        let registry = self.seen_by_caller(with_logs(registry.redacting(redactor)));
        tell_damage(&registry);
        outlive::index::register_own(&registry);
        deliver(&registry).await?;
        Ok(registry)
    }

    /// Where runs are recorded while a bucket cannot be reached: in the user's own registry. None where that is no
    /// answer to the error.
    pub async fn instead(&self, error: &Error) -> Result<Option<Registry>, Error> {
        let is_away = matches!(error, Error::Store(error) if error.is_transient());
        #[cfg(feature = "object")]
        let is_bucket = matches!(self.location()?, Location::Url(url) if object::BucketAddress::is_meant(&url));
        #[cfg(not(feature = "object"))]
        let is_bucket = false;
        let Some(home) = outlive::host::home::home().filter(|_| is_away && is_bucket) else { return Ok(None) };
        outlive::registry::make_home(&home)?;
        let path = home.join("registry");
        let said = Redactor::default().text(&error.to_string());
        talk(&format!("outlive: {}; the run is recorded in {} instead\n", plain(&said), path.display()));
        let redactor = self.config()?.redactor()?;
        Ok(Some(with_logs(Registry::open_local(&path, Some(Sharing::Private))?.redacting(redactor))))
    }

    /// The registry as it is, for reading; none where there is none yet. Nothing is written.
    pub async fn existing(&self) -> Result<Option<Registry>, Error> {
        #[cfg(any(feature = "object", feature = "postgres"))]
        let is_shared = self.caller.as_ref().is_some_and(|caller| caller.registry.is_some());
        #[cfg(feature = "object")]
        if let Location::Url(url) = self.location()?
            && object::BucketAddress::is_meant(&url)
            && !is_shared
        {
            return Ok(Some(self.seen_by_caller(Registry::read_bucket(&url).await?)));
        }
        #[cfg(feature = "postgres")]
        if let Location::Url(url) = self.location()?
            && postgres::DatabaseAddress::is_meant(&url)
            && !is_shared
        {
            return Ok(Registry::find_shared(&url).await?.map(|found| self.seen_by_caller(found)));
        }
        self.open(Registry::read_local).await
    }

    /// The registry as it is, for changes; none where there is none yet.
    pub async fn to_change(&self) -> Result<Option<Registry>, Error> {
        self.open(|path| Registry::open_local(path, None)).await
    }

    async fn open(&self, open: impl Fn(&Path) -> Result<Registry, Error>) -> Result<Option<Registry>, Error> {
        match self.location()? {
            // A registry that is named must be there; one that is only looked for need not be.
            Location::Directory(path) if is_missing(&path) => match self.named() {
                Some(_) => Err(Error::NoRegistry { sought: None, place: path.display().to_string() }),
                None => Ok(None),
            },
            Location::Directory(path) => {
                // A configuration that cannot be read prevents neither looking nor cancelling; what is said meanwhile
                // is not stored.
                let redactor = self.config().and_then(|config| config.redactor());
                let registry = match redactor {
                    Ok(redactor) => with_logs(open(&path)?.redacting(redactor)),
                    Err(_) => open(&path)?.redacting(Redactor::everything()),
                };
                if let Some(trouble) = registry.local().and_then(SqliteStore::trouble) {
                    let hint = Error::Store(trouble.clone()).hint().unwrap_or_default();
                    talk(&format!(
                        "warning: {}; shown is what the files of the runs say\nhint: {hint}\n",
                        plain(&trouble.to_string())
                    ));
                }
                tell_damage(&registry);
                Ok(Some(self.seen_by_caller(registry)))
            }
            Location::Url(url) => Ok(Some(self.seen_by_caller(with_logs(self.open_url(&url).await?)))),
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
        self.config()?.check()
    }

    /// The policy that a run of this kind is given.
    pub fn policy(&self, kind: &str) -> Result<Policy, Error> {
        self.config()?.policy(kind)
    }

    /// How much of the logs of a run is kept.
    pub fn log_policy(&self) -> Result<LogPolicy, Error> {
        Ok(self.config()?.logs)
    }

    /// When ended runs are archived and deleted.
    pub fn retention(&self) -> Result<Retention, Error> {
        Ok(self.config()?.retention())
    }

    /// Tells a database for how long it is to keep what has ended, where the home says so.
    #[cfg(feature = "postgres")]
    pub async fn keep_history(&self) -> Result<(), Error> {
        let (Some(history), Location::Url(url)) = (self.config()?.history(), self.location()?) else {
            return Ok(());
        };
        let address: postgres::DatabaseAddress = url.parse().map_err(|error| Error::Invalid(format!("{error}")))?;
        let keep = match history {
            HistoryKept::For(time) => Some(time),
            HistoryKept::Forever => None,
        };
        Ok(PostgresStore::open(&address).await?.keep_history(keep).await?)
    }

    /// Does nothing: without the feature `postgres` there is no database to tell.
    #[cfg(not(feature = "postgres"))]
    pub async fn keep_history(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The configuration, read once: one call goes by one configuration.
    fn config(&self) -> Result<&Config, Error> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let config = Config::at(&self.location()?)?;
        Ok(self.config.get_or_init(|| config))
    }
}

/// Says which records cannot be understood and are left out, as soon as they are met.
fn tell_damage(registry: &Registry) {
    if let Some(unsigned) = registry.unsigned() {
        talk(&format!(
            "warning: {}\nhint: until then your runs are unsigned, and are not resumed without `outlive trust`\n",
            plain(unsigned)
        ));
    }
    if let Some(store) = registry.local() {
        store.on_damage(|damage| {
            let damage = plain(damage);
            talk(&format!(
                "warning: {damage}; it is left out\nhint: `outlive doctor --fix` rebuilds it from the files of the run\n"
            ));
        });
    }
}

/// Records what earlier processes could not, and says what still cannot be. Answers with how many are on record.
pub async fn deliver(registry: &Registry) -> Result<usize, Error> {
    let delivered = registry.deliver_spooled().await?;
    for (run, why) in &delivered.left {
        let why = plain(&why.to_string());
        talk(&format!(
            "warning: the result of run {run} still waits to be recorded: {why}\nhint: `outlive doctor --fix` clears the way\n"
        ));
    }
    Ok(delivered.recorded)
}
