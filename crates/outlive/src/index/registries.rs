//! Runs of outlive: a registry, wherever it is.
//!
//! A registry on this machine is a database whose files change with every write: where they look as they did, nothing in
//! it is read. Otherwise only those runs are read whose revision is another. One that is elsewhere is asked for its
//! revisions. It is waited for with an end, and once it has not answered it is not asked again.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::fs::AtFlags;

use super::record::{IndexRecord, Kind, Lifecycle, Marks, Provenance, Tasks};
use super::source::{Found, Look, Problem, Reading, Source, Survey, Token, content_fingerprint};
use super::sources::SourceAddress;
use super::stat_token::{is_past, parts, written_at};
use crate::host::home::home;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Run, State};
use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::registry::Registry;
use crate::store::sqlite::WRITTEN;
use crate::store::{self, PAGE_LIMIT, Page, Pages};
use crate::util::sync::lock;

/// The longest digest of a command.
const DIGEST: usize = 360;
/// For how long a registry that is elsewhere is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most runs that are kept because they are asked for next.
const FORESEEN: usize = 8 * PAGE_LIMIT;

/// Registers the repository of a registry in the home, unless it is known there: one look, mostly.
pub fn register_own(registry: &Registry) {
    let (Some(home), Some(local)) = (home(), registry.local()) else { return };
    let Some(path) = local.path().parent().and_then(|parent| parent.canonicalize().ok()) else { return };
    let path = path.join(local.path().file_name().unwrap_or_default());
    let address = SourceAddress::of_registry(&path);
    // The registry of the home is known anyway. A registry that cannot be registered is found where it is.
    if !path.starts_with(&home) && !address.is_registered(&home) {
        let _ = address.register(&home, SystemClock.now());
    }
}

/// The runs of a registry. It is opened when something has to be read.
pub(crate) struct Runs {
    url: String,
    /// The directory of one on this machine.
    path: Option<PathBuf>,
    repo: String,
    registry: OnceLock<Result<Registry, String>>,
    /// Why it does not answer any more.
    away: OnceLock<String>,
    foreseen: Mutex<HashMap<RunId, store::Record>>,
}

/// Why a run was not read.
enum Unread {
    /// It cannot be understood.
    Run(String),
    /// Nothing is known of any run.
    Source(String),
}

impl Runs {
    /// The registry that `url` names. Nothing is written, and none is made.
    pub(crate) fn open(url: &str, repo: &str) -> Result<Self, String> {
        let path = url.strip_prefix("sqlite:").map(PathBuf::from);
        if let Some(path) = path.as_deref().filter(|path| !path.is_dir()) {
            return Err(format!("there is no directory `{}`", path.display()));
        }
        Ok(Self {
            url: url.into(),
            path,
            repo: repo.into(),
            registry: OnceLock::new(),
            away: OnceLock::new(),
            foreseen: Mutex::default(),
        })
    }

    /// The registry itself.
    fn registry(&self) -> Result<&Registry, String> {
        if let Some(reason) = self.away.get() {
            return Err(reason.clone());
        }
        let open = || match &self.path {
            Some(path) => Registry::read_local(path).map_err(|error| error.to_string()),
            None => open_away(&self.url),
        };
        self.registry.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    fn revisions(&self) -> Result<Vec<(RunId, store::Revision)>, String> {
        let registry = self.registry()?;
        if let Some(local) = registry.local() {
            return local.revisions().map_err(|error| error.to_string());
        }
        #[cfg(feature = "object")]
        if let Some(bucket) = registry.bucket() {
            // A page of a bucket is all of it.
            let (records, ..) = pollster::block_on(bucket.everything()).map_err(|error| error.to_string())?;
            let runs = records.iter().filter(|record| record.run.spec.kind != crate::model::step::KIND);
            let mut found: Vec<_> = runs.map(|record| (record.run.id, record.revision)).collect();
            found.sort_unstable_by_key(|(id, _)| *id);
            return Ok(found);
        }
        let mut walk = Pages::from(Filter { is_step: Some(false), ..Filter::default() }, Page::default());
        let mut found = Vec::new();
        while let Some(records) = pollster::block_on(walk.next(registry.store())).map_err(|error| error.to_string())? {
            found.extend(records.into_iter().map(|record| (record.run.id, record.revision)));
        }
        #[cfg(feature = "postgres")]
        if let Some(database) = registry.database() {
            found.extend(pollster::block_on(database.exported_revisions()).map_err(|error| error.to_string())?);
        }
        found.sort_unstable_by_key(|(id, _)| *id);
        found.dedup_by_key(|(id, _)| *id);
        Ok(found)
    }

    fn get(&self, name: &str) -> Result<Option<store::Record>, Unread> {
        let Ok(id) = name.parse::<RunId>() else { return Ok(None) };
        if let Some(record) = self.foreseen().get(&id) {
            return Ok(Some(record.clone()));
        }
        let registry = self.registry().map_err(Unread::Source)?;
        match pollster::block_on(registry.store().get(&[id])) {
            Ok(mut found) => Ok(found.pop()),
            Err(error @ store::Error::Corrupt(_)) => Err(Unread::Run(error.to_string())),
            Err(error) => Err(Unread::Source(self.away.get_or_init(|| error.to_string()).clone())),
        }
    }

    fn foreseen(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, store::Record>> {
        // Whatever is in it is whole.
        lock(&self.foreseen)
    }
}

/// Opens a registry that is elsewhere, to be read. A caller that times out leaves the thread that does behind.
fn open_away(url: &str) -> Result<Registry, String> {
    let (send, receive) = sync_channel(1);
    let opened = url.to_owned();
    let open = move || _ = send.send(pollster::block_on(Registry::read(&opened)));
    std::thread::Builder::new().name("outlive-source".into()).spawn(open).map_err(|error| error.to_string())?;
    match receive.recv_timeout(PATIENCE) {
        Ok(opened) => opened.map_err(|error| error.to_string()),
        Err(_) => Err(format!("it has not answered for {} s", PATIENCE.as_secs())),
    }
}

impl Source for Runs {
    /// A database may be opened that cannot be read.
    fn reach(&self) -> Result<Vec<Problem>, String> {
        let reached = if self.path.is_some() { self.revisions().map(drop) } else { self.registry().map(drop) };
        reached.map(|()| Vec::new())
    }

    /// Who reads may change who owns the files, and so their last time; who writes changes the one before.
    fn whole(&self) -> Option<Look> {
        let dir = self.path.as_ref()?;
        let (mut all, mut settled) = (Vec::new(), true);
        for name in WRITTEN {
            if let Ok(stat) = rustix::fs::statat(rustix::fs::CWD, dir.join(name), AtFlags::SYMLINK_NOFOLLOW) {
                settled &= is_past(written_at(&stat));
                all.extend(&parts(&stat)[..5]);
            }
        }
        Some(Look { token: Token::of(&all), settled })
    }

    fn written_at(&self) -> Option<Timestamp> {
        let dir = self.path.as_ref()?;
        let stat = |name: &&str| rustix::fs::statat(rustix::fs::CWD, dir.join(name), AtFlags::SYMLINK_NOFOLLOW).ok();
        WRITTEN.iter().filter_map(stat).map(|stat| written_at(&stat)).max()
    }

    fn has_news(&self, since: Timestamp) -> bool {
        let news = |registry: &Registry| registry.local().and_then(|local| local.has_news(since).ok());
        self.registry().ok().and_then(news).unwrap_or(true)
    }

    fn survey(&self) -> Result<Survey, String> {
        let revisions = self.revisions()?;
        let found = revisions.into_iter().map(|(id, revision)| Found {
            name: id.to_string().into(),
            look: Look { token: Token::of(&[revision.0]), settled: true },
        });
        Ok(Survey { found: found.collect(), problems: Vec::new() })
    }

    fn has(&self, _: &str) -> bool {
        false
    }

    fn unknown_marks(&self) -> Option<String> {
        None
    }

    fn read(&self, name: &str) -> Reading {
        match self.get(name) {
            Ok(None) => Reading::Gone,
            Ok(Some(found)) => {
                let look = Look { token: Token::of(&[found.revision.0]), settled: true };
                Reading::Read(Box::new(record(&found.run, &self.repo, self.path.as_deref())), look, None)
            }
            Err(Unread::Run(error)) => Reading::Unreadable(error, Look { token: Token::of(&[]), settled: false }),
            Err(Unread::Source(reason)) => Reading::Away(reason),
        }
    }

    fn look(&self, name: &str) -> Option<Look> {
        match self.get(name) {
            Ok(found) => found.map(|found| Look { token: Token::of(&[found.revision.0]), settled: true }),
            Err(_) => Some(Look { token: Token::of(&[]), settled: false }),
        }
    }

    fn foresee(&self, names: &[&str]) {
        let Ok(registry) = self.registry() else { return };
        let ids: Vec<RunId> = names.iter().filter_map(|name| name.parse().ok()).collect();
        for ids in ids.chunks(PAGE_LIMIT) {
            // What is not answered now is asked for by itself.
            let Ok(found) = pollster::block_on(registry.store().get(ids)) else { return };
            let mut foreseen = self.foreseen();
            if foreseen.len() >= FORESEEN {
                foreseen.clear();
            }
            foreseen.extend(found.into_iter().map(|record| (record.run.id, record)));
        }
    }

    fn stands(&self, name: &str) -> Option<Lifecycle> {
        let found = self.get(name).ok().flatten()?;
        let seen = pollster::block_on(self.registry().ok()?.see(vec![found.run])).ok()?.pop()?;
        Some(seen.state.into())
    }

    fn marks(&self, _: &str) -> Marks {
        Marks::default()
    }

    fn marked(&self) -> Vec<String> {
        Vec::new()
    }
}

fn record(run: &Run, repo: &str, registry: Option<&Path>) -> IndexRecord {
    let spec = &run.spec;
    let words = spec.command.iter().flat_map(|command| &command.argv).map(ToString::to_string);
    let command = words.collect::<Vec<_>>().join(" ");
    let derived = Lifecycle::from(run.state.name());
    let (started_at, ended_at) = match &run.state {
        State::Running(running) => (Some(running.started_at), None),
        State::Suspended(suspended) => (Some(suspended.started_at), None),
        State::Ended(ending) => (ending.started_at, Some(ending.at)),
        State::Pending(_) => (None, None),
    };
    let title =
        spec.name.clone().unwrap_or_else(|| if command.is_empty() { spec.kind.clone() } else { cut(&command, 80) });
    let run_dir: Option<PathBuf> = registry.map(|registry| registry.join("runs").join(run.id.to_string()));
    IndexRecord {
        run_id: run.id.to_string(),
        source: Kind::Outlive,
        repo: repo.into(),
        title,
        kind: Some(spec.kind.clone()),
        app_id: None,
        app_version: None,
        workflow_id: None,
        labels: spec.labels.clone(),
        lifecycle: if run.archived.is_some() { Lifecycle::Archived } else { derived },
        derived_lifecycle: derived,
        loop_stage: None,
        archived: run.archived.is_some(),
        archived_at: run.archived.as_ref().map(|archived| archived.at.to_string()),
        archive_reason: run.archived.as_ref().and_then(|archived| archived.reason.clone()),
        created_at: run.created_at.to_string(),
        updated_at: run.updated_at.to_string(),
        started_at,
        ended_at,
        cpu_ms: run.usage.as_ref().map(|usage| usage.cpu_ms),
        peak_memory_bytes: run.usage.as_ref().and_then(|usage| usage.peak_memory_bytes),
        attempt: Some(run.attempt),
        tasks: Tasks::default(),
        commit_count: 0,
        verifier_gated_commit_count: 0,
        open_feedback_count: 0,
        backends: Vec::new(),
        inputs_digest: cut(&command, DIGEST),
        provenance: spec.lineage.as_ref().map(|lineage| Provenance {
            rerun_of: Some(lineage.rerun_of.to_string()),
            rerun_of_repo: Some(repo.into()),
            origin_run_id: Some(lineage.origin.to_string()),
            generation: Some(lineage.generation.into()),
            reason: lineage.reason.clone(),
        }),
        source_fingerprint: None,
        fingerprint: content_fingerprint(&serde_json::to_vec(run).unwrap_or_default()),
        state_path: run_dir.as_ref().map(|dir| dir.join("spec.json").display().to_string()),
        run_dir: run_dir.map(|dir| dir.display().to_string()),
    }
}

fn cut(text: &str, longest: usize) -> String {
    if text.chars().count() <= longest { text.into() } else { text.chars().take(longest - 1).chain(['…']).collect() }
}
