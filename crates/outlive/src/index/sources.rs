//! Which sources there are: what was registered in the home, and what cool-workflow knows of its own.
//!
//! Each has a small file of its own in the home, named by its address, that appears whole or not at all: any number of
//! processes register at once, and whether one is known already takes one look.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::cool_workflow::Tree;
use super::record::Kind;
use super::registries::Runs;
use super::source::{Problem, Source};
use crate::model::hex::hex;
use crate::model::time::Timestamp;
use crate::redact::Redactor;
use crate::util::files::{self, Prepared, Published};

/// The longest file that names sources.
const LIMIT: u64 = 8 << 20;
/// The file in which cool-workflow lists its repositories.
const REPOS: &str = "repos.json";
/// The variable that names the home of cool-workflow.
const CW_HOME: &str = "CW_HOME";

/// A source, by its address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceAddress {
    /// What can be read there.
    pub kind: Kind,
    /// `sqlite:PATH`, `cw:PATH` or the URL of a registry.
    pub url: String,
}

/// A source that is known in a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// Where it is.
    pub address: SourceAddress,
    /// When it was registered; none of those that were not, and are known all the same.
    pub added_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct File {
    #[serde(flatten)]
    address: SourceAddress,
    added_at: Timestamp,
    /// The name of a registry, which it keeps wherever it is moved to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registry: Option<String>,
}

impl SourceAddress {
    /// The registry in a directory. Its path is taken as it is: canonical, if two are to be distinguished.
    pub fn of_registry(path: &Path) -> Self {
        Self { kind: Kind::Outlive, url: format!("sqlite:{}", path.display()) }
    }

    /// The cool-workflow runs of a repository.
    pub fn of_tree(root: &Path) -> Self {
        Self { kind: Kind::CoolWorkflow, url: format!("cw:{}", root.display()) }
    }

    /// The sources in a directory: a registry, a repository with one, a repository with runs of cool-workflow.
    pub fn in_directory(path: &Path) -> io::Result<Vec<Self>> {
        let path = path.canonicalize()?;
        let is_registry = |path: &Path| path.join("registry.id").is_file() || path.join("runs").is_dir();
        let mut found = Vec::new();
        if is_registry(&path) && !path.join(".outlive").is_dir() {
            found.push(Self::of_registry(&path));
        }
        if path.join(".outlive").is_dir() {
            found.push(Self::of_registry(&path.join(".outlive")));
        }
        if path.join(".cw/runs").is_dir() {
            found.push(Self::of_tree(&path));
        }
        Ok(found)
    }

    /// The repository: the directory that its registry or runs are in, or its URL without a password.
    pub fn repo(&self) -> String {
        let path = self.url.strip_prefix("cw:").or_else(|| self.url.strip_prefix("sqlite:"));
        let Some(path) = path else { return Redactor::default().text(&self.url) };
        let root = Path::new(path).parent().filter(|_| path.ends_with("/.outlive"));
        root.map_or_else(|| path.to_owned(), |root| root.display().to_string())
    }

    /// Whether a word means its repository: the path, the end of it, or its name.
    pub fn is_repo(&self, sought: &str) -> bool {
        is_repo(&self.repo(), sought)
    }

    /// Why it cannot be read, where it cannot.
    pub fn out_of_reach(&self) -> Option<String> {
        self.open(None).and_then(|source| source.reach()).err()
    }

    /// Its URL, for people.
    pub fn shown(&self) -> String {
        Redactor::default().text(&self.url)
    }

    fn file(&self, home: &Path) -> PathBuf {
        let digest = hex(&Sha256::digest(self.url.as_bytes())[..12]);
        home.join("sources").join(format!("{digest}.json"))
    }

    /// Whether it is registered in `home`: one look.
    pub fn is_registered(&self, home: &Path) -> bool {
        rustix::fs::access(self.file(home), rustix::fs::Access::EXISTS).is_ok()
    }

    /// The name that a registry on this machine gives itself.
    fn registry(&self) -> Option<String> {
        let dir = files::open_dir(rustix::fs::CWD, self.url.strip_prefix("sqlite:")?.as_ref()).ok()?;
        let identity: Value = serde_json::from_slice(&files::read(&dir, Path::new("registry.id"), LIMIT).ok()?).ok()?;
        identity["uuid"].as_str().map(str::to_owned)
    }

    /// Registers it. False where it was already. One that was moved here is no longer registered where it was.
    pub fn register(&self, home: &Path, now: Timestamp) -> io::Result<bool> {
        let path = self.file(home);
        let dir = home.join("sources");
        files::make_private_dirs(&dir)?;
        let dir = files::open_dir(rustix::fs::CWD, &dir)?;
        let registry = self.registry();
        let bytes = serde_json::to_vec(&File { address: self.clone(), added_at: now, registry: registry.clone() })?;
        let name = Path::new(path.file_name().unwrap_or_default());
        let published = Prepared::new(&dir, &bytes, Mode::from_raw_mode(0o600), false)?.publish(&dir, name)?;
        let is_new = published == Published::Done;
        if is_new && registry.is_some() {
            let is_before = |file: &File| file.registry == registry && file.address != *self;
            let is_gone =
                |file: &File| file.address.url.strip_prefix("sqlite:").is_some_and(|path| !Path::new(path).exists());
            for file in files_in(home, &mut |_, _| {})?.iter().filter(|file| is_before(file) && is_gone(file)) {
                file.address.forget(home)?;
            }
        }
        Ok(is_new)
    }

    /// Forgets it. False where it was not registered.
    pub fn forget(&self, home: &Path) -> io::Result<bool> {
        match std::fs::remove_file(self.file(home)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether it is on another machine, as far as its address tells: to look at it is to wait.
    pub(crate) fn is_away(&self) -> bool {
        self.url.contains("://")
    }

    /// Whether marks are kept beside its runs, where no token of a run tells of them.
    pub(crate) fn has_marks(&self) -> bool {
        self.kind == Kind::CoolWorkflow
    }

    /// The source itself, to be read, with the marks that a home keeps on its runs.
    pub(crate) fn open(&self, home: Option<&Path>) -> Result<Box<dyn Source>, String> {
        match self.kind {
            Kind::CoolWorkflow => {
                let root = self.url.strip_prefix("cw:").unwrap_or(&self.url);
                Ok(Box::new(Tree::open(Path::new(root), home)?))
            }
            Kind::Outlive => Ok(Box::new(Runs::open(&self.url, &self.repo())?)),
        }
    }
}

/// Whether a repository is meant: by its path, the end of it, or its name.
pub(super) fn is_repo(repo: &str, sought: &str) -> bool {
    let ends = |rest: &str| rest.is_empty() || rest.ends_with('/');
    repo.strip_suffix(sought.trim_end_matches('/')).is_some_and(ends)
}

/// Every source that is known in `home`, by address, and what there cannot be understood.
pub(super) fn known(home: &Path) -> io::Result<(Vec<Registered>, Vec<Problem>)> {
    let mut problems = Vec::new();
    let mut note = |path: PathBuf, reason: String| problems.push(Problem { what: path.display().to_string(), reason });
    let registered = |file: File| Registered { address: file.address, added_at: Some(file.added_at) };
    let mut known: Vec<Registered> = files_in(home, &mut note)?.into_iter().map(registered).collect();
    let own = home.join("registry");
    if own.join("registry.id").is_file() {
        let own = own.canonicalize().unwrap_or(own);
        known.push(Registered { address: SourceAddress::of_registry(&own), added_at: None });
    }
    known.extend(of_cool_workflow(&mut note).into_iter().map(|address| Registered { address, added_at: None }));
    // What was registered comes before what is known otherwise.
    known.sort_by(|one, other| (&one.address, one.added_at.is_none()).cmp(&(&other.address, other.added_at.is_none())));
    known.dedup_by(|one, other| one.address == other.address);
    Ok((known, problems))
}

/// The files that name a source each. `note` is called with those that cannot be understood.
fn files_in(home: &Path, note: &mut dyn FnMut(PathBuf, String)) -> io::Result<Vec<File>> {
    let dir = match files::open_dir(rustix::fs::CWD, &home.join("sources")) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut known = Vec::new();
    for name in files::names(&dir)?.iter().filter(|name| name.ends_with(".json")) {
        match read(&dir, name).and_then(|bytes| serde_json::from_slice(&bytes).map_err(not_understood)) {
            Ok(file) => known.push(file),
            Err(reason) => note(home.join("sources").join(name), reason),
        }
    }
    Ok(known)
}

/// The bytes of a file that names sources, or why there are none.
pub(super) fn read(dir: &OwnedFd, name: &str) -> Result<Vec<u8>, String> {
    files::read(dir, Path::new(name), LIMIT).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => format!("larger than {} MiB", LIMIT >> 20),
        _ => error.to_string(),
    })
}

fn not_understood(error: serde_json::Error) -> String {
    format!("not understood: {error}")
}

/// The directory in which cool-workflow keeps what belongs to no repository. A blank variable counts as unset, as it does there.
pub(super) fn cool_workflow_registry() -> Option<PathBuf> {
    let is_set = |value: &OsString| !value.to_string_lossy().trim().is_empty();
    let set = |variable: &str| std::env::var_os(variable).filter(is_set).map(PathBuf::from);
    let home = set(CW_HOME)
        .or_else(|| set("XDG_STATE_HOME").map(|state| state.join("cool-workflow")))
        .or_else(|| set("HOME").map(|home| home.join(".local/state/cool-workflow")));
    home.map(|home| home.join("registry"))
}

/// The repositories that cool-workflow knows of: its home lists them. `note` is called where the list cannot be understood.
fn of_cool_workflow(note: &mut dyn FnMut(PathBuf, String)) -> Vec<SourceAddress> {
    let Some(registry) = cool_workflow_registry() else { return Vec::new() };
    let is_there = std::fs::symlink_metadata(registry.join(REPOS)).is_ok();
    let listed = match files::open_dir(rustix::fs::CWD, &registry) {
        Ok(dir) if is_there => {
            read(&dir, REPOS).and_then(|bytes| serde_json::from_slice(&bytes).map_err(not_understood))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.to_string()),
        _ => return Vec::new(),
    };
    let repos = listed.and_then(|listed: Value| match &listed["repos"] {
        Value::Array(repos) => Ok(repos.clone()),
        _ => Err("not understood: its `repos` are no list".into()),
    });
    let repos = repos.unwrap_or_else(|reason| {
        note(registry.join(REPOS), reason);
        Vec::new()
    });
    let roots = repos.iter().filter_map(|repo| repo["root"].as_str());
    // Not canonical there; one that has vanished stays known as it was written.
    roots.map(|root| SourceAddress::of_tree(&Path::new(root).canonicalize().unwrap_or_else(|_| root.into()))).collect()
}
