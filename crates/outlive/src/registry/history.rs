//! Exported history of a registry in a database: where it may go, and where a run went that is not found.

use std::time::Duration;

use super::Registry;
use crate::error::Error;
use crate::model::id::RunId;
use crate::secrets::trust::NamedLocation;
use crate::store::postgres::PostgresStore;

impl Registry {
    /// The database below, if it is one.
    #[doc(hidden)]
    pub fn database(&self) -> Option<&PostgresStore> {
        self.database.as_ref().filter(|_| self.opened_by.is_this_process())
    }

    /// Has a database keep what has ended for `keep`, rounded up to days, and for ever where that is none, which it does unless it
    /// is told. What is older goes a table of time at a time, and stays gone. Said once, it holds for all processes. Registries
    /// of other kinds are refused: `[retention]` of their `config.toml` has their settings.
    ///
    /// ```no_run
    /// # async fn keep() -> Result<(), outlive::Error> {
    /// let registry = outlive::Registry::open("postgres://app@localhost/app").await?;
    /// registry.keep_history(Some(std::time::Duration::from_secs(90 * 86_400))).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn keep_history(&self, keep: Option<Duration>) -> Result<(), Error> {
        let Some(database) = self.database() else {
            let why = "is not in a database: set `[retention]` in its `config.toml`";
            return Err(Error::Invalid(format!("`{}` {why}", self.shown())));
        };
        Ok(database.keep_history(keep).await?)
    }

    /// The location of exported history that a caller means: the one that it names, else the only one that this home names for
    /// the registry. Where `is_own` is false the caller is not this user, and may mean only what this home names: no client of a
    /// server has this user's credentials sent to an endpoint.
    #[doc(hidden)]
    pub fn history_location(&self, named: Option<&str>, is_own: bool) -> Result<NamedLocation, Error> {
        let known = self.database().map(PostgresStore::history_known).transpose()?.unwrap_or_default();
        let Some(text) = named else {
            return match known.as_slice() {
                [only] => Ok(only.clone()),
                [] => Err(Error::Invalid("this home knows no location for the history: name one with --to".into())),
                _ => {
                    Err(Error::Invalid("this home knows several locations for the history: name one with --to".into()))
                }
            };
        };
        let invalid = |error| {
            Error::Invalid(format!("the location cannot be used: {error}; it is s3://BUCKET/PREFIX or a directory"))
        };
        let meant = NamedLocation::parse(text).map_err(invalid)?;
        match known.into_iter().find(|known| known.location == meant.location) {
            Some(known) if !is_own || !text.contains(['?', '@']) => Ok(known),
            _ if is_own => Ok(meant),
            _ => Err(Error::Forbidden(format!(
                "history is exported to `{}` for other callers once a shell on this machine has done so",
                meant.location
            ))),
        }
    }

    /// Has this home look for exported runs at a location.
    #[doc(hidden)]
    pub fn remember_history(&self, location: &NamedLocation) -> Result<(), Error> {
        let Some(database) = self.database() else { return Ok(()) };
        Ok(database.remember_history(location)?)
    }

    /// Where a run was exported to that this home does not find, as the registry has it on record.
    pub(super) async fn exported_to(&self, id: RunId) -> Result<Option<String>, Error> {
        match self.database() {
            Some(database) => Ok(database.exported_to(id).await?),
            None => Ok(None),
        }
    }
}
