//! Kept environments: the variables with which a run was made, for its later attempts.
//!
//! An environment holds secrets, so it never goes into a registry. It is kept in its maker's home, readable by its owner
//! alone and sealed with the key that signs specs, and names the host on which it means anything. Most queued runs of a
//! user share one environment: its content is one file, and each run has a link to it, so that the content goes with the
//! last run that needs it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::model::id::RunId;
use crate::model::run::Variables;
use crate::secrets::trust::Trust;
use crate::util::files::{self, Prepared};

/// The directory of the contents, by seal, below the home; each run's link lies in a directory below it.
const DIRECTORY: &str = "environment";
const BY_RUN: &str = "runs";
/// The kernel takes at most 2 MiB by default, and hexadecimal doubles it.
const LIMIT: u64 = 8 << 20;

/// An environment as it is kept, with the seal of the user who kept it.
#[derive(Serialize, Deserialize)]
struct SealedEnvironment {
    host: String,
    variables: Variables,
    seal: String,
}

/// Keeps an environment for a run, before the run is on record. With `durable` it survives a power failure from now on;
/// without, from when the kernel writes it out. What such a failure spoils has no valid seal, and is written again for
/// the next run.
pub(crate) fn keep(trust: &Trust, host: &str, id: RunId, variables: Variables, durable: bool) -> io::Result<()> {
    let (contents, runs) = open(trust.home(), true)?;
    let seal = trust.seal(&message(host, &variables)?);
    let shared = PathBuf::from(format!("{seal}.json"));
    let bytes = serde_json::to_vec(&SealedEnvironment { host: host.into(), variables, seal })?;
    let alone =
        || Prepared::new(&runs, &bytes, Mode::from_raw_mode(0o600), durable)?.publish(&runs, &name(id)).map(drop);
    if !has(&contents, &shared, &bytes, durable)? {
        // A run that its caller waits for may soon be over: one file is made and deleted for it, not two.
        if !durable {
            return alone();
        }
        Prepared::new(&contents, &bytes, Mode::from_raw_mode(0o600), true)?.publish(&contents, &shared)?;
    }
    match rustix::fs::linkat(&contents, &shared, &runs, name(id), AtFlags::empty()) {
        // Its last run was forgotten at this moment, or the file system has no more links for it.
        Err(Errno::NOENT | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => alone(),
        linked => Ok(linked?),
    }
}

/// Whether the directory has this content. One that a power failure spoiled is deleted.
fn has(contents: &OwnedFd, shared: &Path, bytes: &[u8], durable: bool) -> io::Result<bool> {
    let found = match files::read(contents, shared, LIMIT) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found?,
    };
    if found != bytes {
        rustix::fs::unlinkat(contents, shared, AtFlags::empty())?;
        return Ok(false);
    }
    if durable {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::fdatasync(rustix::fs::openat(contents, shared, flags, Mode::empty())?)?;
    }
    Ok(true)
}

pub(crate) fn read(trust: &Trust, host: &str, id: RunId) -> Option<Variables> {
    let (_, runs) = open(trust.home(), false).ok()?;
    let kept: SealedEnvironment = serde_json::from_slice(&files::read(&runs, &name(id), LIMIT).ok()?).ok()?;
    let is_sealed = trust.is_sealed(&message(&kept.host, &kept.variables).ok()?, &kept.seal);
    (is_sealed && kept.host == host).then_some(kept.variables)
}

/// Deletes what is kept for a run, and the content that no other run has.
pub(crate) fn forget(home: &Path, id: RunId) -> io::Result<()> {
    let (contents, runs) = match open(home, false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let is_shared = rustix::fs::statat(&runs, name(id), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_nlink > 1);
    let kept = if is_shared { files::read(&runs, &name(id), LIMIT).ok() } else { None };
    match rustix::fs::unlinkat(&runs, name(id), AtFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let kept = kept.and_then(|bytes| serde_json::from_slice::<SealedEnvironment>(&bytes).ok());
    // A seal that is none could name a file elsewhere.
    let Some(seal) = kept.map(|kept| kept.seal).filter(|seal| crate::model::hex::unhex(seal).is_some()) else {
        return Ok(());
    };
    let shared = format!("{seal}.json");
    let is_last =
        rustix::fs::statat(&contents, &shared, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_nlink == 1);
    if is_last {
        // A run that is made at this moment has its own link by then, or makes the content again.
        match rustix::fs::unlinkat(&contents, &shared, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn open(home: &Path, make: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let mode = Mode::from_raw_mode(0o700);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let home = rustix::fs::open(home, flags, Mode::empty())?;
    let open = |dir: &OwnedFd, name: &str| match make {
        true => files::make_dir(dir, Path::new(name), mode),
        false => files::open_dir(dir, Path::new(name)),
    };
    let contents = open(&home, DIRECTORY)?;
    let runs = open(&contents, BY_RUN)?;
    Ok((contents, runs))
}

fn name(id: RunId) -> PathBuf {
    PathBuf::from(format!("{id}.json"))
}

fn message(host: &str, variables: &Variables) -> io::Result<Vec<u8>> {
    let mut message = b"outlive environment 1\n".to_vec();
    message.extend(serde_json::to_vec(&(host, variables))?);
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::time::Timestamp;

    fn variables(value: &str) -> Variables {
        Variables::without_session([("SECRET".into(), value.into())])
    }

    fn contents(home: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(home.join(DIRECTORY)).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.is_file()).collect()
    }

    #[test]
    fn t1_15_runs_share_one_environment_until_the_last_is_forgotten() {
        let home = tempfile::tempdir().unwrap();
        let trust = Trust::open(home.path(), &SystemEntropy).unwrap();
        let ids = [1, 2, 3].map(|at| RunId::draw(Timestamp::from_micros(at), &SystemEntropy));
        keep(&trust, "here", ids[0], variables("a"), true).unwrap();
        keep(&trust, "here", ids[1], variables("a"), true).unwrap();
        keep(&trust, "here", ids[2], variables("b"), true).unwrap();
        assert_eq!(contents(home.path()).len(), 2, "equal environments are one file");
        for path in contents(home.path()) {
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        }
        assert_eq!(home.path().join(DIRECTORY).metadata().unwrap().mode() & 0o777, 0o700);
        forget(home.path(), ids[0]).unwrap();
        assert_eq!(read(&trust, "here", ids[0]), None);
        assert_eq!(read(&trust, "here", ids[1]), Some(variables("a")));
        forget(home.path(), ids[1]).unwrap();
        forget(home.path(), ids[1]).unwrap();
        assert_eq!(contents(home.path()).len(), 1, "a content that no run has was kept");
    }

    #[test]
    fn an_environment_that_a_power_failure_spoiled_is_written_again() {
        let home = tempfile::tempdir().unwrap();
        let trust = Trust::open(home.path(), &SystemEntropy).unwrap();
        let ids = [1, 2].map(|at| RunId::draw(Timestamp::from_micros(at), &SystemEntropy));
        keep(&trust, "here", ids[0], variables("a"), true).unwrap();
        std::fs::write(&contents(home.path())[0], "").unwrap();
        assert_eq!(read(&trust, "here", ids[0]), None, "a spoiled environment was given");
        keep(&trust, "here", ids[1], variables("a"), false).unwrap();
        assert_eq!(read(&trust, "here", ids[1]), Some(variables("a")));
    }

    #[test]
    fn t1_15_an_environment_of_another_host_or_key_is_not_given() {
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = Trust::open(mine.path(), &SystemEntropy).unwrap();
        let them = Trust::open(theirs.path(), &SystemEntropy).unwrap();
        let id = RunId::draw(Timestamp::from_micros(1), &SystemEntropy);
        keep(&me, "here", id, variables("canary"), false).unwrap();
        assert_eq!(read(&me, "there", id), None, "the environment of another host was given");
        keep(&them, "here", id, variables("other"), true).unwrap();
        let file = |home: &Path| home.join(DIRECTORY).join(BY_RUN).join(name(id));
        std::fs::copy(file(mine.path()), file(theirs.path())).unwrap();
        assert_eq!(read(&them, "here", id), None, "the seal of another user was accepted");
        let edited = std::fs::read_to_string(file(mine.path())).unwrap().replace("canary", "forged");
        std::fs::write(file(mine.path()), edited).unwrap();
        assert_eq!(read(&me, "here", id), None, "an edited environment was given");
    }
}
