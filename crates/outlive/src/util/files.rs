//! Write-once files: a file appears whole, under a name that nothing had, or not at all.
//!
//! The content is written to a file that has no name and synced; only then is the name linked to it. So a crash leaves
//! either nothing or everything, two writers of one name learn who was first, and a synced directory makes it last.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::model::id::{Entropy, Stamp, SystemEntropy};

/// Unnamed files of file systems that cannot have any bear this prefix until they are linked.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// What most files fit into, read in one go.
const AT_ONCE: usize = 4 << 10;

/// Whether a name was free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Published {
    /// It was, and now names our file.
    Done,
    /// It names another.
    Exists,
}

/// A file with its content, synced, that has no name yet.
pub(crate) struct Prepared {
    file: File,
    temporary: Option<(OwnedFd, PathBuf)>,
}

impl Prepared {
    /// Writes `bytes` to an unnamed file in `dir`. With `sync` they are on the disk when this returns.
    pub(crate) fn new(dir: &OwnedFd, bytes: &[u8], mode: Mode, sync: bool) -> io::Result<Self> {
        let mut prepared = Self::open(dir, mode)?;
        set_mode(&prepared.file, mode)?;
        prepared.file.write_all(bytes)?;
        if sync {
            prepared.file.sync_data()?;
        }
        Ok(prepared)
    }

    fn open(dir: &OwnedFd, mode: Mode) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::openat(dir, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => Ok(Self { file: file.into(), temporary: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Self::open_named(dir, mode),
            Err(error) => Err(error.into()),
        }
    }

    /// A file of a file system that has none without a name.
    pub(crate) fn open_named(dir: &OwnedFd, mode: Mode) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let name = PathBuf::from(format!("{TEMPORARY}{}", Stamp::draw(&SystemEntropy as &dyn Entropy)));
        let file = rustix::fs::openat(dir, &name, flags, mode)?;
        Ok(Self { file: file.into(), temporary: Some((dir.try_clone()?, name)) })
    }

    /// Gives the file its name, and keeps it open.
    pub(crate) fn publish_open(self, dir: &OwnedFd, name: &Path) -> io::Result<(Published, OwnedFd)> {
        let file = self.file.try_clone()?;
        Ok((self.publish(dir, name)?, file.into()))
    }

    /// The file, to write what only the open file knows.
    pub(crate) fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Gives the file its name in `dir`, if nothing has it.
    pub(crate) fn publish(self, dir: &OwnedFd, name: &Path) -> io::Result<Published> {
        let linked = match &self.temporary {
            None => link_file(&self.file, dir, name),
            Some((from, temporary)) => {
                rustix::fs::linkat(from, temporary, dir, name, AtFlags::empty()).map_err(Into::into)
            }
        };
        match linked {
            Ok(()) => Ok(Published::Done),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Published::Exists),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let Some((dir, temporary)) = &self.temporary {
            // A name left behind is swept by `doctor`.
            let _ = rustix::fs::unlinkat(dir, temporary, AtFlags::empty());
        }
    }
}

fn link_file(file: &impl AsRawFd, dir: &OwnedFd, name: &Path) -> io::Result<()> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(rustix::fs::CWD, unnamed, dir, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Reads a whole file of at most `limit` bytes, never through a link and never something that is not a file.
pub(crate) fn read(dir: &OwnedFd, name: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read_open(open_file(dir, name)?, limit)
}

/// Opens a file to read it, never through a link and never waiting for the writer of a pipe.
pub(crate) fn open_file(dir: &OwnedFd, name: &Path) -> io::Result<File> {
    Ok(open_below(dir, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK)?.into())
}

/// Opens what is below `dir`. No part of a relative path may be a symbolic link, not even a directory on the way.
fn open_below(dir: impl AsFd, name: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    if name.is_relative() {
        match rustix::fs::openat2(&dir, name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Kernels before 5.6 and some sandboxes have no such call; the last part is checked all the same.
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return Ok(opened?),
        }
    }
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) fn read_open(file: File, limit: u64) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::with_capacity(AT_ONCE);
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes) }
}

/// Opens a file that is only ever locked, made if it is missing. The umask has no say in who may lock it.
pub(crate) fn open_lock(dir: &OwnedFd, name: &str, mode: Mode) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = || rustix::fs::openat(dir, name, flags, mode);
    match open() {
        // Mostly it is there.
        Err(Errno::NOENT) => {}
        opened => return Ok(opened?),
    }
    match rustix::fs::openat(dir, name, flags | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(file) => {
            rustix::fs::fchmod(&file, mode)?;
            Ok(file)
        }
        Err(Errno::EXIST) => Ok(open()?),
        Err(error) => Err(error.into()),
    }
}

/// Whether something has this name.
pub(crate) fn exists(dir: &OwnedFd, name: &Path) -> bool {
    rustix::fs::accessat(dir, name, rustix::fs::Access::EXISTS, AtFlags::empty()).is_ok()
}

/// Opens a directory below `dir`, never through a link.
pub(crate) fn open_dir(dir: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    open_below(dir, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW)
}

/// Opens a directory below `dir`, made if it is missing.
pub(crate) fn make_dir(dir: impl AsFd, name: &Path, mode: Mode) -> io::Result<OwnedFd> {
    // Most are there, and to look is cheaper than to fail to make one.
    match open_dir(&dir, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        opened => return opened,
    }
    match rustix::fs::mkdirat(&dir, name, mode) {
        Ok(()) => {
            let made = match open_dir(&dir, name) {
                // The umask keeps even its maker out.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    rustix::fs::chmodat(&dir, name, mode, AtFlags::empty())?;
                    open_dir(&dir, name)?
                }
                made => made?,
            };
            set_mode(&made, mode)?;
            Ok(made)
        }
        Err(Errno::EXIST) => open_dir(&dir, name),
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory that only its owner may use, and those above it that are missing, whatever the umask.
pub(crate) fn make_private_dirs(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).collect();
    for dir in missing.into_iter().rev() {
        make_dir(rustix::fs::CWD, dir, Mode::from_raw_mode(0o700))?;
    }
    Ok(())
}

/// Gives what was just made its mode: the umask has no say in who may read a run. Mostly it has said nothing, and to
/// look is cheaper than to change.
fn set_mode(made: &impl AsFd, mode: Mode) -> io::Result<()> {
    if Mode::from_raw_mode(rustix::fs::fstat(made)?.st_mode) != mode {
        rustix::fs::fchmod(made, mode)?;
    }
    Ok(())
}

/// The names in a directory.
pub(crate) fn names(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if let Some(name) =
            OsStr::from_bytes(entry.file_name().to_bytes()).to_str().filter(|name| *name != "." && *name != "..")
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
