//! Runs of cool-workflow: a repository with one directory and one `state.json` for each.
//!
//! Its writers rename over a file, so a reader needs no lock and every change has an inode, a size and times of its own.
//! What is marked on them, as archived or as repeating another, lies beside them.

mod lenient;
pub(super) mod next;
mod script;
mod state;
mod surrogates;

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use serde_json::Value;

use self::state::State;
use super::overlay::{self, Overlay};
use super::record::{ArchiveMark, IndexRecord, Kind, Lifecycle, Marks, Provenance};
use super::source::{Found, Look, Problem, Reading, Source, Survey, Token, content_fingerprint};
use super::sources::SourceAddress;
use super::stat_token::{changed_at, parts, until_past, was_past};
use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::util::files;

/// The longest file of a run that is read.
const STATE_LIMIT: u64 = 32 << 20;
/// The longest overlay that is read.
const OVERLAY_LIMIT: u64 = 64 << 20;
/// The file that is put up for a run whose own files were given back.
const STONE: &str = "reclaimed.json";
/// How many look at the runs of a repository at once.
const MOST_LOOKERS: usize = 4;
/// The fewest runs that are worth another who looks.
const LEAST_LOOKS: usize = 2_000;
/// How often a file is read that changes while it is read.
const READINGS: usize = 3;

/// The runs of a repository.
pub(crate) struct Tree {
    root: PathBuf,
    /// The directory of its runs.
    runs: OwnedFd,
    /// The home of outlive that keeps other marks on its runs, and the address that they are kept under.
    marks: Option<(PathBuf, String)>,
    overlays: OnceLock<(Overlays, Vec<Problem>)>,
}

#[derive(Debug, Default)]
struct Overlays {
    archived: HashMap<String, ArchiveMark>,
    provenance: HashMap<String, Provenance>,
    /// The marks that outlive keeps.
    own: Overlay,
}

impl Tree {
    /// The runs of the repository at `root`, with the marks that a home keeps on them.
    pub(crate) fn open(root: &Path, home: Option<&Path>) -> Result<Self, String> {
        let dir = root.join(".cw/runs");
        let runs = files::open_dir(rustix::fs::CWD, &dir)
            .map_err(|error| format!("`{}` cannot be opened: {error}", dir.display()))?;
        let marks = home.map(|home| (home.to_owned(), SourceAddress::of_tree(root).url));
        Ok(Self { root: root.into(), runs, marks, overlays: OnceLock::new() })
    }

    fn overlays(&self) -> &(Overlays, Vec<Problem>) {
        self.overlays.get_or_init(|| {
            let mut problems = Vec::new();
            let mut read = |name: &str, field: &str| {
                let (marks, problem) = marks(&self.root, name, field);
                problems.extend(problem.map(|reason| Problem { what: format!(".cw/registry/{name}"), reason }));
                marks
            };
            let text = |value: &Value, field: &str| value[field].as_str().map(str::to_owned);
            let archived = read("archive.json", "archived");
            let archived = archived
                .into_iter()
                .map(|(id, mark)| (id, ArchiveMark { at: text(&mark, "archivedAt"), reason: text(&mark, "reason") }));
            let links = read("provenance.json", "links");
            let links = links.into_iter().map(|(id, link)| {
                let provenance = Provenance {
                    rerun_of: text(&link, "rerunOf"),
                    rerun_of_repo: text(&link, "rerunOfRepo"),
                    origin_run_id: text(&link, "originRunId"),
                    generation: link["generation"].as_u64(),
                    reason: text(&link, "reason"),
                };
                (id, provenance)
            });
            let (archived, provenance) = (archived.collect(), links.collect());
            let own = self.marks.as_ref().map(|(home, url)| Overlay::read(home, url)).unwrap_or(Ok(Overlay::default()));
            let own = own.unwrap_or_else(|reason| {
                let path = self.marks.as_ref().map(|(home, url)| overlay::path(home, url)).unwrap_or_default();
                problems.push(Problem { what: path.display().to_string(), reason });
                Overlay::default()
            });
            (Overlays { archived, provenance, own }, problems)
        })
    }

    /// A run that was read, and what is wrong beside it.
    fn record(&self, name: &str, state: State, bytes: &[u8], has_stone: bool) -> (IndexRecord, Option<Problem>) {
        let derived = state.lifecycle();
        let run_dir = self.root.join(".cw/runs").join(name);
        let record = IndexRecord {
            source: Kind::CoolWorkflow,
            repo: self.root.display().to_string(),
            title: state.title,
            kind: None,
            app_id: state.app_id,
            app_version: state.app_version,
            workflow_id: Some(state.workflow_id),
            labels: Default::default(),
            lifecycle: derived,
            derived_lifecycle: derived,
            loop_stage: Some(state.loop_stage),
            archived: false,
            archived_at: None,
            archive_reason: None,
            started_at: None,
            ended_at: ended_at(derived, &state.updated_at),
            created_at: state.created_at,
            updated_at: state.updated_at,
            attempt: None,
            tasks: state.tasks,
            commit_count: state.commits,
            verifier_gated_commit_count: state.gated,
            open_feedback_count: state.open_feedback,
            backends: state.backends,
            cpu_ms: None,
            peak_memory_bytes: None,
            inputs_digest: state.inputs_digest,
            provenance: None,
            source_fingerprint: Some(state.fingerprint),
            fingerprint: content_fingerprint(bytes),
            state_path: Some(run_dir.join("state.json").display().to_string()),
            run_dir: Some(run_dir.display().to_string()),
            run_id: state.id,
        };
        let reclaimed = if has_stone { self.is_reclaimed(name) } else { Ok(false) };
        let marks = Marks { reclaimed: reclaimed.as_ref().is_ok_and(|is| *is), ..self.marks(&record.run_id) };
        let what = || format!(".cw/runs/{name}/{STONE}");
        (record.marked(&marks), reclaimed.err().map(|reason| Problem { what: what(), reason }))
    }

    /// Whether the run's own files were given back, and a stone put up for them.
    fn is_reclaimed(&self, name: &str) -> Result<bool, String> {
        let bytes = match files::read(&self.runs, &Path::new(name).join(STONE), OVERLAY_LIMIT) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(unread(&error, OVERLAY_LIMIT)),
        };
        let stones: Value = serde_json::from_slice(&bytes).map_err(|error| format!("not understood: {error}"))?;
        if stones["schemaVersion"].as_f64() != Some(1.0) {
            return Err("not understood: its `schemaVersion` is not 1".into());
        }
        let stones = stones["tombstones"].as_array().ok_or("not understood: its `tombstones` are no list")?;
        Ok(!stones.is_empty())
    }

    /// Whether a run that has lost what every run has was once more than that: its file is not to be believed.
    fn has_lost(&self, name: &str) -> bool {
        let has_entries = |part: &str| {
            let names = files::open_dir(&self.runs, &Path::new(name).join(part)).and_then(|dir| files::names(&dir));
            names.is_ok_and(|names| names.iter().any(|name| !name.starts_with('.')))
        };
        let log = rustix::fs::statat(&self.runs, Path::new(name).join("audit/events.jsonl"), AtFlags::empty());
        has_entries("tasks") || has_entries("commits") || log.is_ok_and(|log| log.st_size > 0)
    }

    /// The file of a run and how it looks; none where there is no such file.
    fn stat(&self, name: &str) -> Option<Stat> {
        rustix::fs::statat(&self.runs, Path::new(name).join("state.json"), AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    fn look_at(&self, name: &str, stat: &Stat) -> Look {
        self.look_beside(&mut Glance::default(), name, stat).0
    }

    /// How a run looks, and whether a stone was put up for it.
    fn look_beside(&self, glance: &mut Glance, name: &str, stat: &Stat) -> (Look, bool) {
        let own = parts(stat);
        let Ok(stone) = glance.stat(&self.runs, name, STONE) else {
            return (Look { token: Token::of(&own), settled: was_past(changed_at(stat), glance.moment) }, false);
        };
        let last = changed_at(&stone).max(changed_at(stat));
        let token = Token::of(&[own, parts(&stone)].concat());
        (Look { token, settled: was_past(last, glance.moment) }, true)
    }

    /// What a run looks like; none where it is gone.
    fn look_by(&self, glance: &mut Glance, name: &str) -> Option<Look> {
        match glance.stat(&self.runs, name, "state.json") {
            Ok(stat) => Some(self.look_beside(glance, name, &stat).0),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(_) => Some(Look { token: Token::of(&[]), settled: false }),
        }
    }

    /// Reads a run as it is at this moment. What changes while it is read looks otherwise from then on, as long as its last
    /// change before lies far enough back.
    fn read_once(&self, name: &str) -> Reading {
        let file = match files::open_file(&self.runs, &Path::new(name).join("state.json")) {
            Ok(file) => file,
            Err(error) => return self.unopened(name, &error),
        };
        let stat = match rustix::fs::fstat(&file) {
            Ok(stat) => stat,
            Err(error) => return self.unopened(name, &error.into()),
        };
        let (look, has_stone) = self.look_beside(&mut Glance::default(), name, &stat);
        let bytes = match files::read_open(file, STATE_LIMIT) {
            Ok(bytes) => bytes,
            Err(error) => return Reading::Unreadable(unread(&error, STATE_LIMIT), look),
        };
        match State::read(name, &bytes) {
            // What lies beside it tells, and has no token.
            Ok(state) if state.is_suspect && self.has_lost(name) => {
                let reason = "it has lost its `workflow` or `paths`, and other files of the run are there";
                Reading::Unreadable(reason.into(), Look { settled: false, ..look })
            }
            Ok(state) => {
                let settled = look.settled && !state.is_suspect;
                let (record, problem) = self.record(name, state, &bytes, has_stone);
                Reading::Read(Box::new(record), Look { settled, ..look }, problem)
            }
            Err(reason) => Reading::Unreadable(reason, look),
        }
    }

    /// The names that runs may have, in no order, and what is wrong beside them.
    fn names(&self) -> Result<(Vec<Box<str>>, Vec<Problem>), String> {
        let failed = |error: Errno| format!("`{}` cannot be listed: {error}", self.root.join(".cw/runs").display());
        let mut names: Vec<Box<str>> = Vec::new();
        let mut problems = self.overlays().1.clone();
        for entry in rustix::fs::Dir::read_from(&self.runs).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let bytes = entry.file_name().to_bytes();
            let Ok(name) = entry.file_name().to_str() else {
                let what = format!(".cw/runs/{}", String::from_utf8_lossy(bytes));
                problems.push(Problem { what, reason: "its name is not text".into() });
                continue;
            };
            // A run is a directory, never a link to one.
            let is_dir = match entry.file_type() {
                FileType::Unknown => rustix::fs::statat(&self.runs, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()),
                other => other.is_dir(),
            };
            if !is_dir || name == "." || name == ".." {
                continue;
            }
            names.push(name.into());
        }
        Ok((names, problems))
    }

    /// Those of the names that are runs, in their order. Looking is waiting for the kernel, so it is done by several.
    fn look_at_all(&self, mut runs: Vec<(Box<str>, Option<Look>)>) -> Vec<Found> {
        let lookers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_LOOKERS);
        let each = runs.len().div_ceil(lookers).max(LEAST_LOOKS);
        let look = |runs: &mut [(Box<str>, Option<Look>)]| {
            let mut glance = Glance::default();
            runs.iter_mut().for_each(|(name, look)| *look = self.look_by(&mut glance, name));
        };
        std::thread::scope(|scope| {
            let mut parts = runs.chunks_mut(each);
            let own = parts.next();
            parts.for_each(|part| _ = scope.spawn(move || look(part)));
            own.into_iter().for_each(look);
        });
        runs.into_iter().filter_map(|(name, look)| Some(Found { name, look: look? })).collect()
    }

    /// What there is in place of a file that could be opened.
    fn unopened(&self, name: &str, error: &io::Error) -> Reading {
        match self.stat(name) {
            Some(stat) => Reading::Unreadable(unread(error, STATE_LIMIT), self.look_at(name, &stat)),
            None if error.kind() == io::ErrorKind::NotFound => Reading::Gone,
            // Without permission to look into the directory, what is in it is unknown.
            None => Reading::Unreadable(unread(error, STATE_LIMIT), Look { token: Token::of(&[]), settled: false }),
        }
    }
}

impl Source for Tree {
    fn reach(&self) -> Result<Vec<Problem>, String> {
        self.names().map(|(_, problems)| problems)
    }

    fn whole(&self) -> Option<Look> {
        None
    }

    fn written_at(&self) -> Option<Timestamp> {
        let marks = ["archive.json", "provenance.json"].map(|name| self.root.join(".cw/registry").join(name));
        let own = self.marks.as_ref().map(|(home, url)| overlay::path(home, url));
        let marks = marks.iter().chain(&own).filter_map(|path| rustix::fs::stat(path).ok());
        // Who may read them no more changes nothing that was written.
        marks.chain(rustix::fs::fstat(&self.runs)).map(|stat| changed_at(&stat)).max()
    }

    fn has_news(&self, _: Timestamp) -> bool {
        true
    }

    fn survey(&self) -> Result<Survey, String> {
        let (mut names, problems) = self.names()?;
        names.sort_unstable();
        let runs = names.into_iter().map(|name| (name, None)).collect();
        Ok(Survey { found: self.look_at_all(runs), problems })
    }

    fn has(&self, name: &str) -> bool {
        let is_name = !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        let stat = |name: &str| rustix::fs::statat(&self.runs, name, AtFlags::SYMLINK_NOFOLLOW);
        let is_dir = || stat(name).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        is_name && is_dir() && self.look(name).is_some()
    }

    fn unknown_marks(&self) -> Option<String> {
        let is_archive = |problem: &&Problem| !problem.what.ends_with("provenance.json");
        let problem = self.overlays().1.iter().find(is_archive);
        problem.map(|problem| format!("whether it is archived is unknown: {}: {}", problem.what, problem.reason))
    }

    fn read(&self, name: &str) -> Reading {
        for _ in 1..READINGS {
            let reading = self.read_once(name);
            let is_settled = match &reading {
                Reading::Read(_, look, _) | Reading::Unreadable(_, look) => look.settled,
                Reading::Gone | Reading::Away(_) => true,
            };
            // A moment later it looks as it will; what is ahead of the clock never does.
            let wait = || self.stat(name).map(|stat| changed_at(&stat)).and_then(until_past);
            match if is_settled { None } else { wait() } {
                Some(wait) => std::thread::sleep(wait),
                None => return reading,
            }
        }
        self.read_once(name)
    }

    fn look(&self, name: &str) -> Option<Look> {
        self.look_by(&mut Glance::default(), name)
    }

    /// Each is a file of its own.
    fn foresee(&self, _: &[&str]) {}

    fn stands(&self, _: &str) -> Option<Lifecycle> {
        None
    }

    fn marks(&self, run_id: &str) -> Marks {
        let overlays = &self.overlays().0;
        Marks {
            archived: overlays.own.archived(run_id, overlays.archived.get(run_id)),
            provenance: overlays.provenance.get(run_id).cloned(),
            reclaimed: false,
        }
    }

    fn marked(&self) -> Vec<String> {
        let overlays = &self.overlays().0;
        overlays.archived.keys().chain(overlays.provenance.keys()).chain(overlays.own.ids()).cloned().collect()
    }
}

/// A look at many runs: their paths are built in place, and the clock is asked once, before the first.
struct Glance {
    path: Vec<u8>,
    moment: Timestamp,
}

impl Default for Glance {
    fn default() -> Self {
        Self { path: Vec::new(), moment: SystemClock.now() }
    }
}

impl Glance {
    /// How a file of a run looks.
    fn stat(&mut self, runs: &OwnedFd, name: &str, file: &str) -> Result<Stat, Errno> {
        self.path.clear();
        [name.as_bytes(), b"/", file.as_bytes(), b"\0"].iter().for_each(|part| self.path.extend_from_slice(part));
        // No file has a name with a zero in it.
        let path = CStr::from_bytes_with_nul(&self.path).map_err(|_| Errno::NOENT)?;
        rustix::fs::statat(runs, path, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// A cool-workflow run that is over ended with its last change.
fn ended_at(lifecycle: Lifecycle, updated_at: &str) -> Option<Timestamp> {
    if lifecycle.is_ended() { updated_at.parse().ok() } else { None }
}

fn unread(error: &io::Error, limit: u64) -> String {
    match error.kind() {
        io::ErrorKind::FileTooLarge => format!("larger than {} MiB", limit >> 20),
        _ if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => "a link, which is not followed".into(),
        _ => error.to_string(),
    }
}

/// The marks that lie beside the runs of a repository, by run, and what is wrong with them.
fn marks(root: &Path, name: &str, field: &str) -> (serde_json::Map<String, Value>, Option<String>) {
    let mut marks = match overlay_fields(root, name).map(|mut found| found.remove(field)) {
        Ok(Some(Value::Object(marks))) => marks,
        Ok(None) => return Default::default(),
        Ok(Some(_)) => return (Default::default(), Some(format!("not understood: its `{field}` is not an object"))),
        Err(reason) => return (Default::default(), Some(reason)),
    };
    let strange = marks.iter().find(|(_, mark)| !mark.is_object() && !mark.is_null()).map(|(id, _)| id.clone());
    marks.retain(|_, mark| mark.is_object());
    (marks, strange.map(|id| format!("not understood: the mark of `{id}` is not an object")))
}

/// The fields of a file that lies beside the runs of a repository; none where it is not there.
fn overlay_fields(root: &Path, name: &str) -> Result<serde_json::Map<String, Value>, String> {
    let dir = match files::open_dir(rustix::fs::CWD, &root.join(".cw/registry")) {
        Ok(dir) => dir,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(serde_json::Map::new()),
        Err(error) => return Err(error.to_string()),
    };
    let bytes = match files::read(&dir, Path::new(name), OVERLAY_LIMIT) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(serde_json::Map::new()),
        Err(error) => return Err(unread(&error, OVERLAY_LIMIT)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("not an object".into()),
        Err(error) => Err(format!("not understood: {error}")),
    }
}
