//! The processes that a command starts: kept within reach, collected when they end, ended when they should.
//!
//! Whatever loses its parent becomes our child, however it left its group or session. Whoever finds us dead finds the
//! rest by the lock and the variables that they inherited.

use std::os::fd::OwnedFd;

use outlive::registry::Registry;
use outlive::run::Run;
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

/// Where the lock that the command's processes inherit is put, out of the way of programs that number their own files.
const LOCK_FROM: i32 = 200;

/// Makes room for the lock among the numbers of this process. To be called before there is a second thread: the kernel
/// then has nobody to wait for, which takes it milliseconds.
pub fn make_room_for_lock() {
    // Dropped at once; the room stays.
    drop(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), LOCK_FROM));
}

/// Becomes the parent of whatever loses its own.
pub fn adopt_orphans() {
    // Without it the lock and the variables are what finds them.
    let _ = set_child_subreaper(Some(getpid()));
}

/// The lock that the command and all it starts are to inherit: it is free when the last of them is gone.
pub fn lock(registry: &Registry, run: &Run) -> std::io::Result<Option<OwnedFd>> {
    let lock = registry.local().map(|local| local.hold_tree_lock(run)).transpose().map_err(std::io::Error::other)?;
    let Some(file) = lock.map(|lock| lock.into_file()) else { return Ok(None) };
    // Where so many files cannot be open, it stays where it is.
    Ok(Some(rustix::io::fcntl_dupfd_cloexec(&file, LOCK_FROM).unwrap_or(file)))
}

/// Collects what has ended of the processes that became ours, and answers whether any of them live.
pub fn collect_orphans(but: &[Pid]) -> bool {
    let mut alive = false;
    for pid in children().into_iter().filter(|pid| !but.contains(pid)) {
        let collected = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        alive |= matches!(collected, Ok(None));
    }
    alive
}

fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let listed = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let pid = |word: &str| word.parse().ok().and_then(Pid::from_raw);
    listed.flat_map(|list| list.split_whitespace().filter_map(pid).collect::<Vec<_>>()).collect()
}
