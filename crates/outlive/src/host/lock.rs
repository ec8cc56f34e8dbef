//! Locks that live as long as the processes that hold them, and who holds a file.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat};
use rustix::io::Errno;

use super::process::pids;
use crate::model::id::WorkerId;
use crate::util::files::{self, Prepared, Published};

/// The mode of a lock's file while no process has it.
const LEFT_MODE: Mode = Mode::from_raw_mode(0o600);

/// A file whose lock lives as long as the processes that hold it.
#[derive(Debug)]
pub struct LifeLock {
    file: OwnedFd,
    inode: u64,
}

impl LifeLock {
    /// Makes the file, locked before any process can see it. A process that `mode` lets read it may ask for the lock, whatever the
    /// umask.
    pub fn create(dir: &OwnedFd, name: &Path, mode: Mode) -> io::Result<Self> {
        // File systems look for room beside the directory that a file is made in: not all of them in that of the registry.
        let parent = name.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let beside = files::open_dir(dir, parent)?;
        Self::name(Prepared::new(&beside, b"", mode, false)?, dir, name)
    }

    fn name(mut prepared: Prepared, dir: &OwnedFd, name: &Path) -> io::Result<Self> {
        flock(prepared.file(), FlockOperation::NonBlockingLockExclusive)?;
        let inode = fstat(prepared.file())?.st_ino;
        match prepared.publish_open(dir, name)? {
            (Published::Done, file) => Ok(Self { file, inode }),
            (Published::Exists, _) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }

    /// Leaves the file of a worker that ends as `to`, for the next to take. No other process reads what lies there.
    pub(crate) fn leave(dir: &OwnedFd, name: &Path, to: &Path) -> io::Result<()> {
        rustix::fs::chmodat(dir, name, LEFT_MODE, rustix::fs::AtFlags::empty())?;
        Ok(rustix::fs::renameat(dir, name, dir, to)?)
    }

    /// Takes the file that a worker before has left as `from`, which costs the file system less than another. None where
    /// there is none, a process still has it, or it may be anything else than that.
    pub(crate) fn reuse(dir: &OwnedFd, from: &Path, name: &Path, mode: Mode) -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, from, flags, Mode::empty()).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let found = fstat(&file).ok()?;
        let ours = found.st_uid == rustix::process::geteuid().as_raw() && found.st_nlink == 1;
        let is_lock = rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::RegularFile;
        if !ours || !is_lock || Mode::from_raw_mode(found.st_mode) != LEFT_MODE {
            return None;
        }
        rustix::fs::fchmod(&file, mode).ok()?;
        rustix::fs::renameat_with(dir, from, dir, name, rustix::fs::RenameFlags::NOREPLACE).ok()?;
        let inode = found.st_ino;
        if file_id(dir, name).is_none_or(|named| named.inode() != inode) {
            // Another was put there meanwhile, and is unused now.
            let _ = rustix::fs::unlinkat(dir, name, rustix::fs::AtFlags::empty());
            return None;
        }
        Some(Self { file, inode })
    }

    /// The file's inode, to be recorded: a copy of the file is another.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// The locked file, for a child to inherit.
    pub fn into_file(self) -> OwnedFd {
        self.file
    }
}

/// Whether a lock is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// A process that may hold it lives.
    Held,
    /// No process holds it.
    Free,
    /// There is no such file, it is another, or it could not be asked.
    Unknown,
}

/// Asks for the lock's state. Shares the lock for an instant; only its maker ever wants it alone, and had it first.
pub fn lock_state(dir: &OwnedFd, name: &Path, inode: Option<u64>) -> LockState {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::openat(dir, name, flags, Mode::empty()) else { return LockState::Unknown };
    let same = inode.is_none_or(|inode| fstat(&file).is_ok_and(|stat| stat.st_ino == inode));
    if !same {
        return LockState::Unknown;
    }
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => LockState::Free,
        Err(Errno::WOULDBLOCK) => LockState::Held,
        Err(_) => LockState::Unknown,
    }
}

/// Which file it is, unique on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl FileId {
    /// Its inode.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// The file that is open.
pub fn id_of(file: &OwnedFd) -> Option<FileId> {
    fstat(file).ok().map(|stat| FileId { device: stat.st_dev, inode: stat.st_ino })
}

/// The file of this name.
pub fn file_id(dir: &OwnedFd, name: &Path) -> Option<FileId> {
    let stat = rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileId { device: stat.st_dev, inode: stat.st_ino })
}

/// The processes that hold a file's lock, of those that this user may look into.
pub fn holders(file: FileId) -> Vec<u32> {
    pids().filter(|pid| holds(*pid, file)).collect()
}

/// Whether a process holds a file's lock alone, or together with those that inherited it. A process that opens the file by its
/// name, to ask for the lock or to read what it says, does not.
pub fn holds(pid: u32, file: FileId) -> bool {
    let is_lock = |line: &str| line.starts_with("lock:") && line.contains("FLOCK") && line.contains("WRITE");
    opened(pid, file).any(|fd| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}"));
        info.is_ok_and(|info| info.lines().any(is_lock))
    })
}

/// Whether a process has a file open.
pub fn has_open(pid: u32, file: FileId) -> bool {
    opened(pid, file).next().is_some()
}

/// The descriptors by which a process has a file open.
fn opened(pid: u32, file: FileId) -> impl Iterator<Item = String> {
    let same = move |found: fs::Metadata| found.ino() == file.inode && found.dev() == file.device;
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let fds = fds.filter(move |fd| fs::metadata(fd.path()).is_ok_and(same));
    fds.map(|fd| fd.file_name().to_string_lossy().into_owned())
}

/// Where the lock of a worker is, below a local registry.
pub fn worker_lock(worker: WorkerId) -> PathBuf {
    PathBuf::from(format!("workers/{worker}.lock"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK_MODE: Mode = Mode::from_raw_mode(0o600);

    #[test]
    fn a_life_lock_needs_no_unnamed_files() {
        let place = tempfile::tempdir().unwrap();
        let dir = rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let name = Path::new("life");
        let lock = LifeLock::name(Prepared::open_named(&dir, LOCK_MODE).unwrap(), &dir, name).unwrap();
        assert_eq!(lock_state(&dir, name, Some(lock.inode())), LockState::Held);
        let names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["life"], "its first name is still there");
        assert!(LifeLock::create(&dir, name, LOCK_MODE).is_err(), "a lock was made where there is one");
    }

    #[test]
    fn stale_lock_is_taken_once_and_only_if_it_is_valid() {
        let place = tempfile::tempdir().unwrap();
        let dir = rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (free, one, other) = (Path::new("free"), Path::new("one"), Path::new("other"));
        assert!(LifeLock::reuse(&dir, free, one, LOCK_MODE).is_none(), "there was none to take");
        let left = LifeLock::create(&dir, one, LOCK_MODE).unwrap();
        LifeLock::leave(&dir, one, free).unwrap();
        assert!(LifeLock::reuse(&dir, free, one, LOCK_MODE).is_none(), "one that is held was taken");
        let inode = left.inode();
        drop(left);
        let taken = LifeLock::reuse(&dir, free, one, LOCK_MODE).expect("one that is free is taken");
        assert_eq!((taken.inode(), lock_state(&dir, one, Some(inode))), (inode, LockState::Held));
        assert!(LifeLock::reuse(&dir, free, other, LOCK_MODE).is_none() && !place.path().join("free").exists());
        drop(taken);

        LifeLock::leave(&dir, one, free).unwrap();
        fs::hard_link(place.path().join("free"), place.path().join("one")).unwrap();
        assert!(LifeLock::reuse(&dir, free, other, LOCK_MODE).is_none(), "one with another name was taken");
        fs::remove_file(place.path().join("free")).unwrap();
        std::os::unix::fs::symlink("one", place.path().join("free")).unwrap();
        assert!(LifeLock::reuse(&dir, free, other, LOCK_MODE).is_none(), "a link was followed");
        fs::remove_file(place.path().join("free")).unwrap();
        fs::write(place.path().join("free"), "").unwrap();
        fs::set_permissions(place.path().join("free"), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        assert!(LifeLock::reuse(&dir, free, other, LOCK_MODE).is_none(), "one that others can write to was taken");
    }

    #[test]
    fn a_life_lock_is_free_once_its_holders_are_gone() {
        let place = tempfile::tempdir().unwrap();
        let dir = rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let name = Path::new("life");
        let lock = LifeLock::create(&dir, name, LOCK_MODE).unwrap();
        let inode = Some(lock.inode());
        assert_eq!(lock_state(&dir, name, inode), LockState::Held);
        assert_eq!(holders(file_id(&dir, name).unwrap()), [std::process::id()]);
        let reads = fs::File::open(place.path().join(name)).unwrap();
        let writes = fs::OpenOptions::new().read(true).write(true).open(place.path().join(name)).unwrap();
        let sleeps = |fd: OwnedFd| std::process::Command::new("sleep").arg("60").stdin(fd).spawn().unwrap();
        let mut others = [reads.into(), writes.into()].map(sleeps);
        let mut heir = sleeps(lock.into_file());
        assert_eq!(
            holders(file_id(&dir, name).unwrap()),
            [heir.id()],
            "of {:?}",
            others.each_ref().map(|one| one.id())
        );
        for child in others.iter_mut().chain([&mut heir]) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(lock_state(&dir, name, inode), LockState::Free);
        assert_eq!(lock_state(&dir, name, inode.map(|inode| inode + 1)), LockState::Unknown);
        assert_eq!(lock_state(&dir, Path::new("none"), inode), LockState::Unknown);
    }
}
