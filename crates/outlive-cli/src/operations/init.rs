//! `outlive init`: makes a registry where none is made by itself.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use outlive::discovery::{DIRECTORY, Location};
use outlive::error::Error;
use outlive::registry::Registry;
use outlive::store::sqlite::Sharing;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};

/// Create a registry in this directory
///
/// Optional: the first run creates one. Use it for a registry that a group shares, where every member sees all runs
/// and executes only their own, or for a directory that is not a repository.
#[derive(Debug, Default, Args)]
pub struct Init {
    /// Let the group of the directory see and use it
    #[arg(long)]
    pub shared: bool,
}

/// Where the registry is.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Initialised {
    registry: String,
    path: PathBuf,
    shared: bool,
}

impl Operate for Init {
    const NAME: &'static str = "init";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive init\noutlive --registry sqlite:/srv/runs init --shared";
    type Output = Initialised;

    async fn operate(self, context: &Context) -> Result<Initialised, Error> {
        let path = match context.named() {
            Some(Location::Directory(path)) => path,
            Some(Location::Url(url)) => {
                return Err(Error::Invalid(format!("`{url}` is made by its server; `init` makes directories")));
            }
            None => std::env::current_dir()
                .map_err(|error| Error::Invalid(format!("the working directory is gone: {error}")))?
                .join(DIRECTORY),
        };
        let sharing = if self.shared { Sharing::Group } else { Sharing::Private };
        let registry = Registry::open_local(&path, Some(sharing))?;
        let store = registry.local().ok_or_else(|| Error::Invalid("not a directory".into()))?;
        let shared = store.sharing()? == Sharing::Group;
        if self.shared && !shared {
            return Err(Error::Invalid(format!("`{}` is there already, and is private", store.path().display())));
        }
        Ok(Initialised { registry: registry.url().into(), path: store.path().into(), shared })
    }
}

impl fmt::Display for Initialised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = if self.shared { " shared by its group" } else { "" };
        writeln!(f, "registry{shared} at {}", self.path.display())
    }
}
