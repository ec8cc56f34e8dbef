//! Archive marks on runs of sources that outlive only reads, kept in the home of outlive.
//!
//! A source has one file, named by a digest of its address, so that a mark neither touches the repository nor waits for the
//! tool that owns the run. Writers take turns by a lock and replace the file by a rename; readers need no lock. A mark says
//! that a run is archived, or that a mark of its own tool no longer counts. Of that mark and this one the later decides.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode};
use serde::{Deserialize, Serialize};

use super::record::ArchiveMark;
use crate::model::hex::hex;
use crate::model::id::{Entropy, Stamp, SystemEntropy};
use crate::model::time::Timestamp;
use crate::store::Error;
use crate::store::sqlite::Wait;
use crate::util::files;
use sha2::{Digest, Sha256};

/// The longest overlay that is read.
const LIMIT: u64 = 64 << 20;
/// Held by the process that changes an overlay; freed by the kernel when its holder dies.
const LOCK: &str = "lock";
/// How long one writer waits for another.
const PATIENCE: Duration = Duration::from_secs(10);

/// The marks on the runs of one source, by run id.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overlay {
    /// The address of the source, for people who look into the file.
    url: String,
    marks: BTreeMap<String, Mark>,
}

/// A mark on a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    archived: bool,
    at: Timestamp,
    reason: Option<String>,
}

/// The file of the marks on the runs of a source.
pub(crate) fn path(home: &Path, url: &str) -> PathBuf {
    let digest = hex(&Sha256::digest(url.as_bytes())[..12]);
    home.join("marks").join(format!("{digest}.json"))
}

impl Overlay {
    /// The marks in a home on the runs of a source, or why they cannot be read.
    pub(crate) fn read(home: &Path, url: &str) -> Result<Self, String> {
        let path = path(home, url);
        let dir = match files::open_dir(rustix::fs::CWD, &home.join("marks")) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error.to_string()),
        };
        match files::read(&dir, Path::new(path.file_name().unwrap_or_default()), LIMIT) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("not understood: {error}")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The ids of the runs that are marked.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &String> {
        self.marks.keys()
    }

    /// The archive mark of a run of which `theirs` is the mark of its own tool: the later one decides.
    pub(crate) fn archived(&self, run_id: &str, theirs: Option<&ArchiveMark>) -> Option<ArchiveMark> {
        let Some(ours) = self.marks.get(run_id) else { return theirs.cloned() };
        let their_time = theirs.and_then(|mark| mark.at.as_deref()?.parse::<Timestamp>().ok());
        if theirs.is_some() && their_time > Some(ours.at) {
            return theirs.cloned();
        }
        ours.archived.then(|| ArchiveMark { at: Some(ours.at.to_string()), reason: ours.reason.clone() })
    }

    /// Marks runs of a source as archived or as not archived, in one write.
    pub(crate) fn mark(
        home: &Path,
        url: &str,
        (run_ids, archived): (&[String], bool),
        (at, reason): (Timestamp, Option<&str>),
    ) -> Result<(), Error> {
        let dir = home.join("marks");
        let denied = |error: io::Error| Error::Denied(format!("`{}` cannot be used: {error}", dir.display()));
        files::make_private_dirs(&dir).map_err(denied)?;
        let handle = files::open_dir(rustix::fs::CWD, &dir).map_err(denied)?;
        let lock = files::open_lock(&handle, LOCK, Mode::from_raw_mode(0o600)).map_err(denied)?;
        Wait::new(LOCK, PATIENCE).of("the archive marks").lock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        let path = path(home, url);
        // What cannot be understood is not written over.
        let refused = |reason: String| Error::Corrupt(format!("`{}`: {reason}", path.display()));
        let mut overlay = Self { url: url.into(), ..Self::read(home, url).map_err(refused)? };
        for run_id in run_ids {
            overlay.marks.insert(run_id.clone(), Mark { archived, at, reason: reason.map(Into::into) });
        }
        let bytes = serde_json::to_vec_pretty(&overlay).map_err(|error| Error::Corrupt(error.to_string()))?;
        replace(&path, &bytes).map_err(denied)
    }
}

/// Has a file with these bytes take the place of another, on the disk before it does.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let next = path.with_extension(format!("{}.next", Stamp::draw(&SystemEntropy as &dyn Entropy)));
    let written = std::fs::File::create_new(&next).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let replaced = written.and_then(|()| std::fs::rename(&next, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&next);
    }
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_marks_decides() {
        let at = |second: i64| Timestamp::from_micros(second * 1_000_000);
        let theirs = ArchiveMark { at: Some(at(5).to_string()), reason: Some("theirs".into()) };
        let ours = |archived, second| {
            let mark = Mark { archived, at: at(second), reason: None };
            Overlay { url: String::new(), marks: [("run".to_owned(), mark)].into() }
        };
        let is_archived = |overlay: &Overlay, theirs| overlay.archived("run", theirs).is_some();
        assert!(is_archived(&ours(true, 1), None) && !is_archived(&ours(false, 1), None));
        assert!(!is_archived(&ours(false, 9), Some(&theirs)), "ours is later");
        assert!(is_archived(&ours(false, 1), Some(&theirs)), "theirs is later");
        assert!(is_archived(&Overlay::default(), Some(&theirs)), "ours says nothing");
    }

    #[test]
    fn marks_that_cannot_be_understood_are_not_written_over() {
        let home = tempfile::tempdir().unwrap();
        let mark = || Overlay::mark(home.path(), "cw:/repo", (&["run".into()], true), (Timestamp::default(), None));
        mark().unwrap();
        let path = path(home.path(), "cw:/repo");
        std::fs::write(&path, "{").unwrap();
        assert!(mark().is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{");
    }
}
