//! A control group for the processes of an attempt, where the kernel lets this user make one.
//!
//! A process leaves its parent, its session, its variables and its files as it likes; its group it keeps, and so do all
//! that it starts. A group is made below the one that the owner is in, and takes in what the owner has started. To take
//! one in has the kernel wait for all its processors, for milliseconds, so nothing that must be quick waits for it
//! (`docs/adr/0011-control-groups.md`).
//!
//! Where a group is, a record says, and a record may be forged. So a group counts only if it bears the name of its
//! attempt and of the very file that is the attempt's lock, and belongs to the owner of that file. No other group has
//! such a name, no service and no root.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::FileId;
use super::process::{has_exited, open_pidfd, read_stat};
use super::tree::owns_a_detached_run;
use crate::model::id::RunId;
use crate::util::files::open_dir;

/// What the name of a group begins with.
const PREFIX: &str = "outlive-";
/// How deep below a group others are looked for.
const DEPTH: usize = 16;
/// How much of the kernel's files is read.
const LIMIT: u64 = 1 << 20;
/// How often those are taken in that were born while the others were.
const ROUNDS: usize = 16;
/// How many seconds a group must exist before a process outside its registry may remove it.
const OLD: i64 = 600;
/// How many of them a process that makes another looks at.
const REMOVED_AT_ONCE: usize = 64;
/// How often a group is asked to go whose last process is on its way out.
const TRIES: usize = 20;

/// The name of the group of an attempt whose lock is this file.
pub(crate) fn name_of(run: RunId, attempt: u32, lock: FileId) -> String {
    format!("{PREFIX}{run}.{attempt}.{:x}-{:x}", lock.device, lock.inode)
}

/// The attempt that a group of this name is for.
fn attempt_of(name: &str) -> Option<(RunId, u32)> {
    let (run, rest) = name.strip_prefix(PREFIX)?.split_once('.')?;
    Some((run.parse().ok()?, rest.split_once('.')?.0.parse().ok()?))
}

/// The control group of an attempt.
#[derive(Debug)]
pub struct Group {
    above: OwnedFd,
    dir: OwnedFd,
    name: String,
    /// Where it is below the mount.
    path: PathBuf,
    /// Where the kernel says that its processes are.
    shown: PathBuf,
}

impl Group {
    /// Makes a group below the one that this process is in. None where that may not be.
    pub(crate) fn make(name: &str) -> Option<Self> {
        let (mount, own) = (Mount::find()?, own_group("self")?);
        let above = open_below(&mount.dir, own.strip_prefix(&mount.root).ok()?).ok()?;
        // A process without write permission here cannot move processes out of here.
        open_file(&above, "cgroup.procs", OFlags::WRONLY).ok()?;
        match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => return None,
        }
        let dir = open_dir(&above, Path::new(name)).ok()?;
        remove_old(&above, &dir);
        let shown = own.join(name);
        let path = shown.strip_prefix(&mount.root).ok()?.to_path_buf();
        Some(Self { above, dir, name: name.into(), path, shown })
    }

    /// The group at `path` below the mount, if it has this name and belongs to `user`.
    pub(crate) fn find(path: &Path, name: &str, user: u32) -> Option<Self> {
        if path.file_name()? != name {
            return None;
        }
        let mount = Mount::find()?;
        let above = open_below(&mount.dir, path.parent()?).ok()?;
        let dir = open_dir(&above, Path::new(name)).ok()?;
        let is_theirs = rustix::fs::fstat(&dir).is_ok_and(|stat| stat.st_uid == user);
        let shown = mount.root.join(path);
        is_theirs.then(|| Self { above, dir, name: name.into(), path: path.into(), shown })
    }

    /// Where it is below the mount.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Takes in everything below this process that is in the group of this process, except `but`; of those only what they
    /// have started. A process that was put elsewhere was put there on purpose.
    pub fn take_in(&self, but: &[u32]) -> io::Result<()> {
        let own = own_group("self").ok_or(io::ErrorKind::NotFound)?;
        let mut before = open_file(&self.above, "cgroup.procs", OFlags::WRONLY)?;
        let mut procs = open_file(&self.dir, "cgroup.procs", OFlags::WRONLY)?;
        // Changes nothing, but has the kernel wait here: what is looked at from now on is taken in at once.
        before.write_all(std::process::id().to_string().as_bytes())?;
        for _ in 0..ROUNDS {
            let mut any = false;
            for pid in descendants(std::process::id(), but) {
                let Ok(process) = open_pidfd(pid) else { continue };
                if own_group(&pid.to_string()).as_ref() != Some(&own) || has_exited(&process) {
                    continue;
                }
                any = true;
                procs.write_all(pid.to_string().as_bytes())?;
                if has_exited(&process) && self.has(pid) {
                    // Another may have been given its number meanwhile.
                    let _ = before.write_all(pid.to_string().as_bytes());
                }
            }
            if !any {
                break;
            }
        }
        Ok(())
    }

    /// The processes in it, and whether there are others that have no number here.
    pub fn pids(&self) -> (Vec<u32>, bool) {
        let (mut pids, mut unseen) = (Vec::new(), false);
        visit(&self.dir, DEPTH, &mut |dir| {
            let text = open_file(dir, "cgroup.procs", OFlags::RDONLY).and_then(read).unwrap_or_default();
            for pid in text.lines().filter_map(|line| line.parse::<u32>().ok()) {
                match pid {
                    0 => unseen = true,
                    pid => pids.push(pid),
                }
            }
        });
        pids.sort_unstable();
        pids.dedup();
        (pids, unseen)
    }

    /// The processes in the group, without this process and those of a detached run that was started in here.
    pub(crate) fn members(&self) -> (Vec<u32>, bool) {
        let (mut pids, unseen) = self.pids();
        pids.retain(|pid| *pid != std::process::id() && !is_apart(*pid, None));
        (pids, unseen)
    }

    /// The processes in the group as its owner counts them: it may own a detached run itself.
    pub(super) fn counted(&self) -> Vec<u32> {
        let us = std::process::id();
        self.pids().0.into_iter().filter(|pid| *pid != us && !is_apart(*pid, Some(us))).collect()
    }

    /// The processor time of everything that was ever in it, since it was made. None where the kernel does not say.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        let text = open_file(&self.dir, "cpu.stat", OFlags::RDONLY).and_then(read).ok()?;
        let spent = text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())?;
        Some(Duration::from_micros(spent))
    }

    /// Whether the process that has this number is in it.
    pub(crate) fn has(&self, pid: u32) -> bool {
        own_group(&pid.to_string()).is_some_and(|group| group.starts_with(&self.shown))
    }

    /// Kills everything in it at once, also what is being born, unless something in it is none of the attempt.
    pub(crate) fn kill(&self) {
        let (pids, _) = self.pids();
        if pids == self.members().0 {
            let _ = open_file(&self.dir, "cgroup.kill", OFlags::WRONLY).and_then(|mut kill| kill.write_all(b"1"));
        }
    }

    /// Removes it, with the empty ones below it, if nothing is in it. Answers whether it is gone.
    pub fn remove(&self) -> bool {
        for _ in 0..TRIES {
            let (pids, unseen) = self.pids();
            if unseen || !pids.is_empty() {
                return false;
            }
            if remove_below(&self.above, &self.name, DEPTH) {
                return true;
            }
            // Who has ended leaves its group a little later.
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
        }
        false
    }
}

/// Removes old and empty groups of attempts beside a new one: their owners were killed, and
/// their registry may be gone.
fn remove_old(above: &OwnedFd, new: &OwnedFd) {
    let made = |dir: &OwnedFd| rustix::fs::fstat(dir).map_or(0, |stat| stat.st_mtime);
    let now = made(new);
    let old = below(above).into_iter().filter(|name| attempt_of(name).is_some()).take(REMOVED_AT_ONCE);
    for name in old {
        let (Ok(above), Ok(dir)) = (above.try_clone(), open_dir(above, Path::new(&name))) else { continue };
        if now.saturating_sub(made(&dir)) > OLD {
            Group { above, dir, name, path: PathBuf::new(), shown: PathBuf::new() }.remove();
        }
    }
}

/// The attempts that have a group beside or below that of this process, whose groups may have been left behind.
pub(crate) fn attempts_nearby() -> Vec<(RunId, u32, PathBuf)> {
    let nearby = || {
        let (mount, own) = (Mount::find()?, own_group("self")?);
        let path = outside(&own).strip_prefix(&mount.root).ok()?.to_path_buf();
        let names = crate::util::files::names(&open_below(&mount.dir, &path).ok()?).ok()?;
        let attempt = |name: String| attempt_of(&name).map(|(run, attempt)| (run, attempt, path.join(name)));
        Some(names.into_iter().filter_map(attempt).collect())
    };
    nearby().unwrap_or_default()
}

/// Leaves the group of the run that this process was started in, to be none of its processes.
pub fn leave_group() {
    let leave = || -> Option<()> {
        let own = own_group("self")?;
        let outside = outside(&own);
        if outside != own {
            let mount = Mount::find()?;
            let dir = open_below(&mount.dir, outside.strip_prefix(&mount.root).ok()?).ok()?;
            let mut procs = open_file(&dir, "cgroup.procs", OFlags::WRONLY).ok()?;
            procs.write_all(std::process::id().to_string().as_bytes()).ok()?;
        }
        Some(())
    };
    // A missing permission is recognised by its text.
    let _ = leave();
}

/// Whether a control group can be made for a run of this process.
pub fn may_have_group() -> bool {
    let may = || {
        let (mount, own) = (Mount::find()?, own_group("self")?);
        let dir = open_below(&mount.dir, own.strip_prefix(&mount.root).ok()?).ok()?;
        open_file(&dir, "cgroup.procs", OFlags::WRONLY).ok()?;
        rustix::fs::accessat(&dir, ".", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS).ok()
    };
    may().is_some()
}

/// The part of a path that is above the groups of runs.
fn outside(group: &Path) -> PathBuf {
    let is_of_run = |part: &Component<'_>| part.as_os_str().to_str().and_then(attempt_of).is_some();
    group.components().take_while(|part| !is_of_run(part)).collect()
}

/// Where the second version of control groups is mounted, and what of them is.
struct Mount {
    dir: OwnedFd,
    root: PathBuf,
}

impl Mount {
    fn find() -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, place) = (fields.next()?, fields.next()?);
            // What is written otherwise than it is named is no usual place.
            if !kind.starts_with("cgroup2 ") || [root, place].iter().any(|path| path.contains('\\')) {
                return None;
            }
            let dir = open_dir(rustix::fs::CWD, Path::new(place)).ok()?;
            const CGROUP2_MAGIC: u64 = 0x6367_7270;
            let kind = rustix::fs::fstatfs(&dir).ok()?;
            (kind.f_type as u64 == CGROUP2_MAGIC).then(|| Self { dir, root: root.into() })
        })
    }
}

/// The group of a process, as the kernel shows it to us.
fn own_group(process: &str) -> Option<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    Some(groups.lines().find_map(|line| line.strip_prefix("0::"))?.into())
}

/// Opens a group below another, never above it.
fn open_below(dir: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut at = dir.try_clone()?;
    for part in path.components() {
        match part {
            Component::Normal(name) => at = open_dir(&at, Path::new(name))?,
            Component::CurDir => {}
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(at)
}

fn open_file(dir: &OwnedFd, name: &str, flags: OFlags) -> io::Result<File> {
    Ok(rustix::fs::openat(dir, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?.into())
}

fn read(file: File) -> io::Result<String> {
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

/// The groups right below one.
fn below(dir: &OwnedFd) -> Vec<String> {
    let entries = rustix::fs::Dir::read_from(dir).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type() == rustix::fs::FileType::Directory);
    let named =
        groups.filter_map(|entry| std::ffi::OsStr::from_bytes(entry.file_name().to_bytes()).to_str().map(Into::into));
    named.filter(|name: &String| name != "." && name != "..").collect()
}

fn visit(dir: &OwnedFd, depth: usize, see: &mut dyn FnMut(&OwnedFd)) {
    see(dir);
    for name in below(dir).into_iter().take_while(|_| depth > 0) {
        if let Ok(one) = open_dir(dir, Path::new(&name)) {
            visit(&one, depth - 1, see);
        }
    }
}

/// Removes an empty group and those below it. The kernel removes none that has a process.
fn remove_below(above: &OwnedFd, name: &str, depth: usize) -> bool {
    let remove = || rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR);
    match remove() {
        Ok(()) | Err(Errno::NOENT) => return true,
        Err(_) if depth == 0 => return false,
        Err(_) => {}
    }
    let Ok(dir) = open_dir(above, Path::new(name)) else { return false };
    for one in below(&dir) {
        remove_below(&dir, &one, depth - 1);
    }
    remove().is_ok()
}

/// What this process has started, and what those have; of `but` only the latter, and nothing of a detached run.
pub(super) fn descendants(of: u32, but: &[u32]) -> Vec<u32> {
    let (mut found, mut known, mut next) = (Vec::new(), HashSet::new(), vec![of]);
    while let Some(parent) = next.pop() {
        for child in children(parent).into_iter().filter(|child| known.insert(*child)) {
            if owns_a_detached_run(child) {
                continue;
            }
            next.push(child);
            if !but.contains(&child) {
                found.push(child);
            }
        }
    }
    found
}

fn children(of: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    listed.flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Whether a process belongs to a detached run that was started inside another. The ancestors of `owner` say nothing of it.
fn is_apart(pid: u32, owner: Option<u32>) -> bool {
    let mut at = pid;
    for _ in 0..ANCESTORS {
        if Some(at) == owner {
            return false;
        }
        if owns_a_detached_run(at) {
            return true;
        }
        match read_stat(at) {
            Ok(stat) if stat.parent > 1 => at = stat.parent,
            _ => return false,
        }
    }
    false
}

/// How many ancestors of a process are looked at.
const ANCESTORS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s_03_name_of_a_control_group_has_attempt_and_lock() {
        let run: RunId = "01a1e389-eb48-73cf-aabd-dd8404db17b0".parse().unwrap();
        let name = name_of(run, 3, FileId { device: 0xfe00, inode: 0x5e20 });
        assert_eq!(name, "outlive-01a1e389-eb48-73cf-aabd-dd8404db17b0.3.fe00-5e20");
        assert_eq!(attempt_of(&name), Some((run, 3)));
        for other in ["outlive-", "outlive-test-1", "outlive.service", "user@1000.service", "outlive-x.1.1-1", ""] {
            assert_eq!(attempt_of(other), None, "{other}");
        }
        let inner = Path::new("/user.slice/a.scope").join(&name).join("below").join(&name);
        assert_eq!(outside(&inner), Path::new("/user.slice/a.scope"));
        assert_eq!(outside(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn s_03_no_path_leads_out_of_where_groups_are() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("in/deep")).unwrap();
        std::os::unix::fs::symlink("/", place.path().join("in/link")).unwrap();
        let dir = open_dir(rustix::fs::CWD, &place.path().join("in")).unwrap();
        assert!(open_below(&dir, Path::new("deep")).is_ok() && open_below(&dir, Path::new("")).is_ok());
        for path in ["..", "deep/../..", "/", "/etc", "link", "link/etc"] {
            assert!(open_below(&dir, Path::new(path)).is_err(), "{path}");
        }
    }
}
