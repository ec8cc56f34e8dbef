//! The directory of a local registry: made once, checked at every opening.
//!
//! It holds the paths by an open directory, so that a repository may be moved while its runs are in flight. It refuses
//! what would break its promises: a file system that several machines may write, a directory that others may change, a
//! link that leads elsewhere.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::schema::MIGRATIONS;
use crate::model::id::{Entropy, Stamp};
use crate::store::Error;
use crate::util::files::{self, Prepared};

const IDENTITY: &str = "registry.id";
/// What a copy is to be, until it replaces what it was.
const NEXT_IDENTITY: &str = "registry.id.next";
const IDENTITY_LIMIT: u64 = 4 << 10;
/// How many registries that are gone one remembers to stand for.
const HEIRLOOMS: usize = 32;

/// Who may see a registry that is created: its user alone, or others on the host. For
/// [`Registry::open_local`](crate::Registry::open_local).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// Its owner alone.
    Private,
    /// The group of its directory: every member sees all runs, none executes another's.
    Group,
}

impl Sharing {
    pub(super) fn dir_mode(self) -> Mode {
        Mode::from_raw_mode(if self == Self::Group { 0o2770 } else { 0o700 })
    }

    pub(super) fn file_mode(self) -> Mode {
        Mode::from_raw_mode(if self == Self::Group { 0o660 } else { 0o600 })
    }
}

/// What a registry knows of itself. The file that holds it also holds its own inode and birth, and those of its directory.
/// A copy shares neither: so a copied registry differs from a moved one, and from one whose file an editor saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    format: u32,
    uuid: String,
    sharing: Sharing,
    inode: u64,
    born: i64,
    /// The inode and the birth of the directory.
    #[serde(default)]
    dir: Option<(u64, i64)>,
    /// Registries whose directory is gone and in whose place this one stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaces: Vec<String>,
}

/// An open registry directory.
pub(super) struct RegistryDirectory {
    pub(super) dir: OwnedFd,
    pub(super) sharing: Sharing,
    /// Names the registry; new for a copy.
    pub(super) uuid: String,
    /// The names of registries that are gone and in whose place this one stands.
    replaces: Vec<String>,
    /// The directory was copied, and the copy was never written to.
    pub(super) copied: bool,
    /// What brings its database from the first format to the newest; tests have more.
    pub(super) migrations: &'static [&'static str],
}

impl RegistryDirectory {
    /// Opens the directory at `path`.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let dir = open_dir(path)?;
        check_file_system(&dir, path)?;
        Self::at(dir, path)
    }

    /// The registry in a directory that is open.
    fn at(dir: OwnedFd, path: &Path) -> Result<Self, Error> {
        let (identity, copied) = read_identity(&dir, path)?;
        check_access(&dir, path, identity.sharing)?;
        let Identity { sharing, uuid, replaces, .. } = identity;
        Ok(Self { dir, sharing, uuid, replaces, copied, migrations: MIGRATIONS })
    }

    /// The newest format of its database that is known.
    pub(super) fn format(&self) -> i64 {
        1 + self.migrations.len() as i64
    }

    /// Makes the directory at `path`, unless it is there, and opens it. Many may do so at once.
    pub(super) fn create(path: &Path, sharing: Sharing, entropy: &dyn Entropy) -> Result<Self, Error> {
        let failed = |error: io::Error| from_io(&format!("`{}` cannot be made", path.display()), &error);
        let dir = match files::open_dir(rustix::fs::CWD, path) {
            Ok(dir) => dir,
            Err(_) => make(path, sharing)?,
        };
        check_file_system(&dir, path)?;
        if !files::exists(&dir, Path::new(IDENTITY)) && !has_runs(&dir) {
            let names = files::names(&dir).map_err(failed)?;
            let stranger = names.iter().find(|name| !OURS.contains(&name.as_str()));
            // Looked for once more: the process that makes it puts other things there as soon as it is one.
            if let Some(stranger) = stranger.filter(|_| !files::exists(&dir, Path::new(IDENTITY))) {
                return Err(Error::Denied(format!(
                    "`{0}` is no registry and holds other things, such as `{stranger}`; name a directory of its own, such as `{0}/.outlive`",
                    path.display()
                )));
            }
            check_owner(&dir, path)?;
            fill(&dir, sharing, entropy).map_err(failed)?;
        }
        Self::at(dir, path)
    }

    /// Takes a private registry away from all other users. `git clone` and `cp` make what others may read, and a process that may
    /// open its lock files can block every writer.
    pub(super) fn close_to_others(&self) {
        let is_open =
            |stat: rustix::fs::Stat| stat.st_mode & 0o077 != 0 && stat.st_uid == rustix::process::geteuid().as_raw();
        if self.sharing == Sharing::Private && rustix::fs::fstat(&self.dir).is_ok_and(is_open) {
            // A file system without modes leaves it as it is.
            let _ = rustix::fs::fchmod(&self.dir, self.sharing.dir_mode());
        }
    }

    /// Where the directory is now, links resolved.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        use std::os::fd::AsRawFd;
        std::fs::read_link(format!("/proc/self/fd/{}", self.dir.as_raw_fd()))
    }

    /// Whether the directory still has a name.
    pub(super) fn is_linked(&self) -> bool {
        rustix::fs::fstat(&self.dir).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Whether what was written in the registry of this name was written here, as far as that is known.
    pub(super) fn stands_for(&self, uuid: &str) -> bool {
        self.uuid == uuid || self.replaces.iter().any(|gone| gone == uuid)
    }

    /// The names that it stands for, its own first.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.uuid).chain(&self.replaces)
    }

    /// Makes a copy a registry of its own.
    pub(super) fn become_original(&mut self, entropy: &dyn Entropy) -> io::Result<()> {
        self.rename(Stamp::draw(entropy).to_string(), Vec::new())
    }

    /// Makes this registry stand for those of these names, which are gone. A mere copy of the first of them takes its
    /// name.
    pub(super) fn inherit(&mut self, gone: &[String]) -> io::Result<()> {
        let mut replaces = self.replaces.clone();
        replaces.extend(gone.iter().filter(|uuid| !self.stands_for(uuid)).cloned());
        replaces.drain(..replaces.len().saturating_sub(HEIRLOOMS));
        self.rename(self.uuid.clone(), replaces)
    }

    fn rename(&mut self, uuid: String, replaces: Vec<String>) -> io::Result<()> {
        write_identity(&self.dir, NEXT_IDENTITY, self.sharing, &uuid, &replaces, false)?;
        rustix::fs::renameat(&self.dir, NEXT_IDENTITY, &self.dir, IDENTITY)?;
        (self.uuid, self.replaces, self.copied) = (uuid, replaces, false);
        Ok(())
    }

    /// The registry at `path`, whose name is lost: the file that says it is gone or cannot be understood. None where it
    /// can be. Its name is to be restored by [`RegistryDirectory::name_again`].
    pub(super) fn nameless(path: &Path) -> Result<Option<(Self, String)>, Error> {
        let dir = open_dir(path)?;
        check_file_system(&dir, path)?;
        let Err(error) = read_identity(&dir, path) else { return Ok(None) };
        let Error::Corrupt(why) = error else { return Err(error) };
        let mode = rustix::fs::fstat(&dir).map_or(0, |stat| stat.st_mode);
        let sharing = if mode & 0o070 == 0 { Sharing::Private } else { Sharing::Group };
        check_access(&dir, path, sharing)?;
        Ok(Some((
            Self { dir, sharing, uuid: String::new(), replaces: Vec::new(), copied: false, migrations: MIGRATIONS },
            why,
        )))
    }

    /// Gives a registry its lost name again, as the original or as a copy that was never written to. What said so
    /// before is kept under the name `aside`.
    pub(super) fn name_again(&self, uuid: &str, copied: bool, aside: &str) -> io::Result<()> {
        write_identity(&self.dir, NEXT_IDENTITY, self.sharing, uuid, &[], copied)?;
        match rustix::fs::renameat(&self.dir, IDENTITY, &self.dir, aside) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(rustix::fs::renameat(&self.dir, NEXT_IDENTITY, &self.dir, IDENTITY)?)
    }
}

fn make(path: &Path, sharing: Sharing) -> Result<OwnedFd, Error> {
    let failed = |error: io::Error| from_io(&format!("`{}` cannot be made", path.display()), &error);
    // A registry in a directory that no one made is a registry that was misspelt.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent.filter(|parent| !parent.is_dir()) {
        return Err(Error::Unavailable(format!(
            "`{}` cannot be made: there is no directory `{}`; make it first",
            path.display(),
            parent.display()
        )));
    }
    files::make_dir(rustix::fs::CWD, path, sharing.dir_mode()).map_err(failed)
}

fn open_dir(path: &Path) -> Result<OwnedFd, Error> {
    let shown = path.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        rustix::io::Errno::NOENT => Error::Unavailable(format!("no registry at `{shown}`")),
        rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR => {
            Error::Denied(format!("`{shown}` is not a directory; a link to one is not followed"))
        }
        error => Error::Denied(format!("`{shown}` cannot be opened: {error}")),
    })
}

/// What a directory may hold that is about to become a registry, because another process is making it one.
const OURS: [&str; 6] = ["runs", "workers", ".gitignore", "config.toml", "registry.id", NEXT_IDENTITY];

/// The directories in that of a registry.
const BELOW: [&str; 2] = ["runs", "workers"];

fn fill(dir: &OwnedFd, sharing: Sharing, entropy: &dyn Entropy) -> io::Result<()> {
    // Access first: what is made below it is then never seen by anyone it is not meant for.
    rustix::fs::fchmod(dir, sharing.dir_mode())?;
    for below in BELOW {
        files::make_dir(dir, Path::new(below), sharing.dir_mode())?;
    }
    Prepared::new(dir, b"*\n", sharing.file_mode(), false)?.publish(dir, Path::new(".gitignore"))?;
    write_identity(dir, IDENTITY, sharing, &Stamp::draw(entropy).to_string(), &[], false)
}

fn write_identity(
    dir: &OwnedFd,
    name: &str,
    sharing: Sharing,
    uuid: &str,
    replaces: &[String],
    copied: bool,
) -> io::Result<()> {
    use std::io::Write;
    let mut prepared = Prepared::new(dir, b"", sharing.file_mode(), false)?;
    // No file and no directory has these, so it is a copy of them.
    let (inode, born) = if copied { (0, 0) } else { birth(prepared.file())? };
    let known = if copied { None } else { birth(dir).ok() };
    let replaces = replaces.to_vec();
    let identity = Identity { format: 1, uuid: uuid.into(), sharing, inode, born, dir: known, replaces };
    let mut text = serde_json::to_vec(&identity)?;
    text.push(b'\n');
    prepared.file().write_all(&text)?;
    prepared.file().sync_data()?;
    match rustix::fs::unlinkat(dir, NEXT_IDENTITY, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    prepared.publish(dir, Path::new(name)).map(|_| ())
}

/// What a registry says of itself, and whether the file that says so is a copy. Both are asked of one open file: the
/// name may be given to another meanwhile.
fn read_identity(dir: &OwnedFd, path: &Path) -> Result<(Identity, bool), Error> {
    let shown = path.join(IDENTITY);
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound if has_runs(dir) => Error::Corrupt(format!("`{}` is missing", shown.display())),
        io::ErrorKind::NotFound => Error::Unavailable(format!("no registry at `{}`", path.display())),
        _ => from_io(&format!("`{}` cannot be read", shown.display()), &error),
    };
    let file = files::open_file(dir, Path::new(IDENTITY)).map_err(unreadable)?;
    let found = birth(&file).ok();
    let bytes = files::read_open(file, IDENTITY_LIMIT).map_err(unreadable)?;
    let identity: Identity = serde_json::from_slice(&bytes)
        .map_err(|error| Error::Corrupt(format!("`{}` cannot be understood: {error}", shown.display())))?;
    if identity.format > 1 {
        return Err(Error::Newer { what: shown.display().to_string(), found: identity.format.into(), known: 1 });
    }
    let is_own =
        |found| found == (identity.inode, identity.born) || identity.dir.is_some() && identity.dir == birth(dir).ok();
    let copied = found.is_some_and(|found| !is_own(found));
    Ok((identity, copied))
}

/// Whether runs were recorded here: a directory that has some is a registry, or was one.
fn has_runs(dir: &OwnedFd) -> bool {
    files::open_dir(dir, Path::new("runs")).and_then(|runs| files::names(&runs)).is_ok_and(|names| !names.is_empty())
}

/// What tells a file from its copies: its inode, and its birth where the file system keeps it.
fn birth(file: &impl AsFd) -> io::Result<(u64, i64)> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    let born =
        if known { stat.stx_btime.tv_sec.saturating_mul(1_000_000_000) + i64::from(stat.stx_btime.tv_nsec) } else { 0 };
    Ok((stat.stx_ino, born))
}

/// Nothing is made in a directory of another user, who could replace whatever is in it.
fn check_owner(dir: &OwnedFd, path: &Path) -> Result<(), Error> {
    let stat = rustix::fs::fstat(dir).map_err(|error| from_io("the directory cannot be looked at", &error.into()))?;
    let me = rustix::process::geteuid().as_raw();
    if stat.st_uid == me {
        return Ok(());
    }
    Err(Error::Denied(format!("`{}` belongs to user {}, not to user {me}", path.display(), stat.st_uid)))
}

fn check_access(dir: &OwnedFd, path: &Path, sharing: Sharing) -> Result<(), Error> {
    let stat = rustix::fs::fstat(dir).map_err(|error| from_io("the registry cannot be looked at", &error.into()))?;
    let shown = path.display();
    let me = rustix::process::geteuid().as_raw();
    if sharing == Sharing::Private && stat.st_uid != me {
        return Err(Error::Denied(format!("the registry `{shown}` belongs to user {}, not to user {me}", stat.st_uid)));
    }
    let open_to = stat.st_mode & if sharing == Sharing::Group { 0o002 } else { 0o022 };
    if open_to != 0 {
        return Err(Error::Denied(format!(
            "the registry `{shown}` can be written by others (mode {:o})",
            stat.st_mode & 0o7777
        )));
    }
    check_below(dir, path)
}

/// What is recorded is recorded in the directory itself: its maker may have been another user, who would have files
/// made where they like.
fn check_below(dir: &OwnedFd, path: &Path) -> Result<(), Error> {
    use rustix::fs::{AtFlags, FileType, statat};
    for name in BELOW {
        let found = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        if found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
            return Err(Error::Denied(format!("`{}` is a link, which is not followed", path.join(name).display())));
        }
    }
    Ok(())
}

/// File systems on which the locks of one machine mean nothing to another.
const SHARED_FILE_SYSTEMS: [(u64, &str); 9] = [
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "SMB"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE or virtiofs"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x0bd0_0bd0, "Lustre"),
    (0x0116_1970, "GFS2"),
];

/// Whether a registry may live on a file system with this magic number.
fn shared_file_system(magic: u64) -> Option<&'static str> {
    SHARED_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

fn check_file_system(dir: &OwnedFd, path: &Path) -> Result<(), Error> {
    let kind =
        rustix::fs::fstatfs(dir).map_err(|error| from_io("the file system cannot be identified", &error.into()))?;
    match shared_file_system(kind.f_type as u64 & 0xffff_ffff) {
        Some(name) => Err(Error::Unsupported(format!(
            "`{}` is on {name}, where the locks of one machine mean nothing to another",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// What an error of the file system means for a registry.
pub(super) fn from_io(what: &str, error: &io::Error) -> Error {
    let text = format!("{what}: {error}");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::Full(text),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::Denied(text),
        // A link where a directory of ours should be, which is not followed.
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Error::Corrupt(text),
        _ => Error::Unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;

    #[test]
    fn f_36_f_37_shared_file_systems_are_refused_by_their_magic() {
        for magic in [0x6969, 0x6573_5546, 0xff53_4d42, 0x0102_1997] {
            assert!(shared_file_system(magic).is_some());
        }
        let (ext4, tmpfs, overlay) = (0xef53, 0x0102_1994, 0x794c_7630);
        assert_eq!([ext4, tmpfs, overlay].map(shared_file_system), [None; 3]);
    }

    #[test]
    fn s_05_a_link_in_place_of_the_directory_is_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (real, link) = (place.path().join("real"), place.path().join(".outlive"));
        RegistryDirectory::create(&real, Sharing::Private, &SystemEntropy).map(|_| ()).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let Err(refused) = RegistryDirectory::open(&link) else { panic!("a link was followed") };
        assert!(matches!(refused, Error::Denied(_)), "{refused}");
        assert!(
            RegistryDirectory::create(&link, Sharing::Private, &SystemEntropy).is_err(),
            "a link was followed to make one"
        );
    }

    #[test]
    fn s_05_a_registry_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can give a directory away");
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(".outlive");
        RegistryDirectory::create(&path, Sharing::Private, &SystemEntropy).map(|_| ()).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let Err(refused) = RegistryDirectory::open(&path) else { panic!("another user's registry was taken") };
        assert!(refused.to_string().contains("belongs to user 65534"), "{refused}");
    }

    #[test]
    fn s_32_modes_ignore_the_umask_and_open_ones_are_refused() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(".outlive");
        RegistryDirectory::create(&path, Sharing::Private, &SystemEntropy).map(|_| ()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&path.join(IDENTITY)), 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let Err(refused) = RegistryDirectory::open(&path) else { panic!("an open registry was taken") };
        assert!(refused.to_string().contains("can be written by others"), "{refused}");
    }

    #[test]
    fn t8_08_nothing_is_made_in_a_directory_of_another_user() {
        use std::os::unix::fs::PermissionsExt;
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can give a directory away");
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(".outlive");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let Err(refused) = RegistryDirectory::create(&path, Sharing::Private, &SystemEntropy) else {
            panic!("it was filled")
        };
        assert!(refused.to_string().contains("belongs to user 65534"), "{refused}");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "it was filled before its owner was checked");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o777);
    }

    #[test]
    fn t8_08_cloned_registry_is_closed_to_others_when_written() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(".outlive");
        RegistryDirectory::create(&path, Sharing::Private, &SystemEntropy).map(|_| ()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        let (clock, entropy) =
            (std::sync::Arc::new(crate::model::time::SystemClock), std::sync::Arc::new(SystemEntropy));
        drop(crate::store::sqlite::SqliteStore::read(&path, clock.clone(), entropy.clone()).unwrap());
        assert_eq!(mode(), 0o755, "reading changed something");
        drop(crate::store::sqlite::SqliteStore::open(&path, clock, entropy).unwrap());
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn f_49_a_copy_is_distinguished_from_a_move() {
        let place = tempfile::tempdir().unwrap();
        let (first, moved, copy) = (place.path().join("a"), place.path().join("b"), place.path().join("c"));
        let uuid = RegistryDirectory::create(&first, Sharing::Private, &SystemEntropy).map(|place| place.uuid).unwrap();
        std::fs::rename(&first, &moved).unwrap();
        let after = RegistryDirectory::open(&moved).map(|place| (place.uuid, place.copied)).unwrap();
        assert_eq!(after, (uuid.clone(), false));
        let done = std::process::Command::new("cp").arg("-rp").arg(&moved).arg(&copy).status().unwrap();
        assert!(done.success());
        let mut copied =
            RegistryDirectory::open(&copy).map_err(|error| error.to_string()).unwrap_or_else(|error| panic!("{error}"));
        assert!(copied.copied);
        copied.become_original(&SystemEntropy).unwrap();
        let own = RegistryDirectory::open(&copy).map(|place| (place.uuid, place.copied)).unwrap();
        assert!(own.0 != uuid && !own.1);
    }
}
