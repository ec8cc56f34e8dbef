//! A registry that is opened as the command opens it: found, configured, and with what is spooled delivered.

use crate::discovery::{Location, is_missing};
use crate::error::Error;
use crate::model::policy::Policies;
use crate::redact::Redactor;
use crate::registry::Registry;

use super::{Config, with_logs};

impl Registry {
    /// Opens the registry that `named` names, made if it is missing. Where it names none, it is the one that the command
    /// finds: `OUTLIVE_REGISTRY`, else the nearest `.outlive`, else that of the repository, else that of the home.
    ///
    /// Its configuration applies: [`Registry::spec`] has the policy of its kind, and the patterns of `[redact]` are masked.
    /// What earlier processes could not record is delivered first.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), outlive::Error> {
    /// let registry = outlive::Registry::discover(None).await?;
    /// let run = registry.start(registry.spec("import")).await?;
    /// # run.succeed().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn discover(named: Option<&str>) -> Result<Self, Error> {
        let found = ConfiguredLocation::look(named)?;
        let registry = match &found.location {
            #[cfg(feature = "sqlite")]
            Location::Directory(path) => {
                if let Some(home) = crate::host::home::home().filter(|home| path.parent() == Some(home)) {
                    crate::registry::make_home(&home)?;
                }
                Self::open_local(path, Some(crate::store::sqlite::Sharing::Private))?
            }
            location => Self::open(&location.url()).await?,
        };
        let registry = found.configure(registry);
        #[cfg(feature = "sqlite")]
        crate::index::register_own(&registry);
        registry.deliver_spooled().await?;
        Ok(registry)
    }

    /// Opens a registry as [`Registry::discover`] does, and refuses where there is none: none is made.
    pub async fn discover_existing(named: Option<&str>) -> Result<Self, Error> {
        let found = ConfiguredLocation::look(named)?;
        let registry = match &found.location {
            Location::Directory(path) if is_missing(path) => {
                return Err(Error::NoRegistry { sought: None, place: path.display().to_string() });
            }
            #[cfg(feature = "sqlite")]
            Location::Directory(path) => Self::open_local(path, None)?,
            location => Self::open(&location.url()).await?,
        };
        let registry = found.configure(registry);
        registry.deliver_spooled().await?;
        Ok(registry)
    }
}

/// A registry that is not opened yet, and what its configuration says of it.
struct ConfiguredLocation {
    location: Location,
    redactor: Redactor,
    policies: Policies,
}

impl ConfiguredLocation {
    /// A configuration that cannot be used is refused before anything is made.
    fn look(named: Option<&str>) -> Result<Self, Error> {
        let location = Location::find(named)?;
        let config = Config::at(&location)?;
        Ok(Self { location, redactor: config.redactor()?, policies: config.policies()? })
    }

    /// Has a registry mask secrets, and make runs, as the configuration says.
    fn configure(self, registry: Registry) -> Registry {
        with_logs(registry.redacting(self.redactor).with_policies(self.policies))
    }
}
