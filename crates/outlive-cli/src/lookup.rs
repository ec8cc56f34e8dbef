//! Lookup: which registry has a run that a call names.
//!
//! What is meant by a scope, which index is asked, and where a run is found that the registry here does not know.

pub mod located;
pub mod serving;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use outlive::discovery::{DIRECTORY, is_registry};
use outlive::error::Error;
use outlive::id::RunId;
use outlive::index::{Freshness, Index, Kind, Lookup, Registered, SearchHit, SourceAddress};
use outlive::lifecycle::health::RunStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::call::Context;
use crate::ui::command_line;

/// How many runs or repositories are named where there are several.
pub const SHOWN: usize = 5;

/// Which repositories are meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The one of the working directory
    Repo,
    /// Every one that is known in the home
    #[default]
    Home,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Repo => "repo",
            Self::Home => "home",
        })
    }
}

/// The user's home.
pub fn home() -> Result<PathBuf, Error> {
    outlive::host::home::home()
        .ok_or_else(|| Error::Invalid("there is no home: neither HOME nor OUTLIVE_HOME is set".into()))
}

/// The index in the user's home. Reads of it cover the repository of the working directory, registered or not.
pub fn index() -> Result<Index, Error> {
    Ok(Index::of(&home()?).with_here(here()))
}

/// The sources of the repository of the working directory.
pub fn here() -> Vec<SourceAddress> {
    let found = repository()
        .and_then(|root| SourceAddress::in_directory(&root).map_err(|error| Error::Invalid(error.to_string())));
    let is_source = |address: &SourceAddress| match address.url.strip_prefix("sqlite:") {
        Some(path) => path.ends_with(&format!("/{DIRECTORY}")) && is_registry(Path::new(path)),
        None => true,
    };
    found.unwrap_or_default().into_iter().filter(is_source).collect()
}

/// The repository of the working directory: the nearest directory with a registry, runs of cool-workflow, or a `.git`.
pub fn repository() -> Result<PathBuf, Error> {
    let gone = |error| Error::Invalid(format!("the working directory is gone: {error}"));
    let here = std::env::current_dir().and_then(|here| here.canonicalize()).map_err(gone)?;
    let is_root = |dir: &&Path| [DIRECTORY, ".cw", ".git"].iter().any(|name| dir.join(name).exists());
    Ok(here.ancestors().find(is_root).map_or_else(|| here.clone(), Into::into))
}

/// The repository that a scope narrows to, as the index calls it.
pub fn narrowed(scope: Scope) -> Result<Option<String>, Error> {
    match scope {
        Scope::Home => Ok(None),
        Scope::Repo => Ok(Some(repository()?.display().to_string())),
    }
}

/// Where a run is that the registry here does not know.
pub enum Elsewhere {
    /// In another registry of ours: what to call there, and its id.
    Registry(Box<Context>, String),
    /// In a source that is only read.
    Foreign(Box<SearchHit>),
    /// Nowhere any more: this is the last that was known of it.
    Gone(Box<SearchHit>),
}

/// Looks for a run beyond the registry here, after `error` has said that it is not there: in the repository of the
/// working directory, and, unless the scope is that repository, in every one that is known. The index is asked, then
/// the sources themselves, for a run may be younger than the index.
pub async fn elsewhere(context: &Context, scope: Scope, text: &str, error: Error) -> Result<Elsewhere, Error> {
    if !matches!(error, Error::NotFound(_) | Error::Exported { .. } | Error::NoRegistry { .. }) || context.is_confined()
    {
        return Err(error);
    }
    let Ok(index) = index() else { return Err(error) };
    let (repo, id) = match text.rsplit_once(':') {
        Some((repo, id)) if !repo.is_empty() && !id.is_empty() => (Some(repo), id),
        _ => (None, text),
    };
    let own = repository()?.display().to_string();
    let mut found = match repo {
        Some(repo) => index.find(id, Some(repo), SHOWN + 1)?,
        None => index.find(id, Some(&own), SHOWN + 1)?,
    };
    if scope == Scope::Repo {
        found.runs.retain(|listed| listed.record.repo == own && listed.record.source == Kind::CoolWorkflow);
        found.unreadable.retain(|named| named.repo == own);
    } else if repo.is_none() && found.runs.is_empty() && found.unreadable.is_empty() {
        found = index.find(id, None, SHOWN + 1)?;
    }
    let Lookup { runs: mut found, unreadable } = found;
    // What is gone is meant only where nothing else is.
    if found.iter().any(|listed| listed.freshness != Freshness::Missing) {
        found.retain(|listed| listed.freshness != Freshness::Missing);
    }
    match (found.len(), unreadable.into_iter().next()) {
        (0, Some(named)) => {
            let reason = named.reason.unwrap_or_default();
            Err(Error::Unreadable { run: named.name, repo: named.repo, reason })
        }
        (0, None) if scope == Scope::Repo => Err(error),
        (0, None) => unindexed(context, &index.sources()?, (text, repo, id), error).await,
        (1, _) => place(context, &index, found.remove(0)),
        (several, _) => {
            let one = |listed: &SearchHit| {
                let record = &listed.record;
                format!("{}:{} {} ({})", record.repo, record.run_id, record.title, record.lifecycle)
            };
            let candidates = found.iter().take(SHOWN).map(one).collect();
            Err(Error::AmbiguousRepository { what: text.into(), candidates, more: several > SHOWN })
        }
    }
}

/// Asks the registries that are known for a run, behind `error`. One that is on another machine is asked for a whole id
/// alone: no caller waits for it because of a slip.
async fn unindexed(
    context: &Context,
    sources: &[Registered],
    (text, repo, id): (&str, Option<&str>, &str),
    error: Error,
) -> Result<Elsewhere, Error> {
    let meant: Vec<&SourceAddress> = sources
        .iter()
        .map(|known| &known.address)
        .filter(|address| repo.is_none_or(|repo| address.is_repo(repo)))
        .collect();
    if let Some(repo) = repo.filter(|_| meant.is_empty()) {
        return Err(Error::NoRepository { sought: text.into(), repo: repo.into() });
    }
    // It is unknown which registry's last is meant.
    let is_any = repo.is_none() && id.starts_with('@');
    let is_asked = |address: &&SourceAddress| {
        let is_here = address.url.starts_with("sqlite:") || id.parse::<RunId>().is_ok();
        address.kind == Kind::Outlive && is_here && !is_any
    };
    let mut found: Vec<(&SourceAddress, Box<Context>, RunStatus)> = Vec::new();
    for address in meant.iter().copied().filter(is_asked) {
        let there = Box::new(context.at(address.url.clone()));
        // One that is away hides no other.
        let Ok(Some(registry)) = there.existing().await else { continue };
        match registry.find(id).await {
            Ok(seen) => found.push((address, there, seen)),
            Err(several @ Error::Ambiguous { .. }) => return Err(several),
            Err(_) => {}
        }
    }
    match found.len() {
        // Where other sources were looked at, that there is no registry here is not why the run is not found.
        0 if meant.is_empty() || is_any => Err(error),
        0 => Err(Error::NotFound(text.into())),
        1 => {
            let (_, there, seen) = found.remove(0);
            Ok(Elsewhere::Registry(there, seen.run.id.to_string()))
        }
        several => {
            let one = |(address, _, seen): &(&SourceAddress, Box<Context>, RunStatus)| {
                let name = seen.run.spec.name.as_deref().unwrap_or_default();
                format!("{}:{} {name} ({})", address.repo(), seen.run.id, seen.state)
            };
            let candidates = found.iter().take(SHOWN).map(one).collect();
            Err(Error::AmbiguousRepository { what: text.into(), candidates, more: several > SHOWN })
        }
    }
}

fn place(context: &Context, index: &Index, listed: SearchHit) -> Result<Elsewhere, Error> {
    let record = &listed.record;
    match (listed.freshness, record.source) {
        (Freshness::Missing, _) => Ok(Elsewhere::Gone(Box::new(listed))),
        (_, Kind::CoolWorkflow) => Ok(Elsewhere::Foreign(Box::new(listed))),
        (_, Kind::Outlive) => {
            let sources = index.sources()?;
            let own = |known: &&Registered| known.address.kind == Kind::Outlive && known.address.repo() == record.repo;
            let url = sources.iter().find(own).map(|known| known.address.url.clone());
            let url = url.ok_or_else(|| Error::NotFound(record.run_id.clone()))?;
            Ok(Elsewhere::Registry(Box::new(context.at(url)), record.run_id.clone()))
        }
    }
}

/// Says that a run is gone.
pub fn gone(listed: &SearchHit) -> Error {
    Error::Gone {
        run: listed.record.run_id.clone(),
        repo: listed.record.repo.clone(),
        reason: listed.freshness_reason.clone().unwrap_or_default(),
    }
}

/// How a repository is forgotten that is gone for good.
pub fn forget(repo: &str) -> String {
    let call = command_line(["outlive", "registry", "remove", repo].map(str::as_bytes));
    format!("`{call}` forgets it if it is gone for good")
}

/// What to do about a run that is gone.
pub fn after_gone(listed: &SearchHit) -> Result<String, Error> {
    let record = &listed.record;
    let sources = index()?.sources()?;
    let own = sources.iter().find(|known| known.address.kind == record.source && known.address.repo() == record.repo);
    Ok(match own.map(|known| known.address.out_of_reach()) {
        None => "`outlive registry refresh` forgets it: its repository was removed".into(),
        Some(Some(reason)) => format!("its repository is unavailable: {reason}; {}", forget(&record.repo)),
        Some(None) => "`outlive registry refresh`; `outlive gc` forgets what is gone".into(),
    })
}
