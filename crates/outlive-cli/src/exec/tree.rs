//! The processes that a command starts: kept within reach, collected when they end, ended when they should.
//!
//! Whatever loses its parent becomes our child, however it left its group or session. A process that finds us dead
//! finds the rest by the control group that we put them into (`contain.rs`), and by the lock and the variables that
//! they inherited.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use outlive::host::Tree;
use outlive::ownership::Stop;
use outlive::ownership::handle::RunHandle;
use outlive::policy::TreePolicy;
use outlive::registry::Registry;
use outlive::run::Run;
use rustix::process::{Pid, WaitId, WaitIdOptions, getpid, set_child_subreaper, waitid};

use super::child::{Asked, GRACE};
use super::follow::Following;
use super::shim::SHIM;
use super::signals::Signals;
use super::spawn::handed;
use super::usage::Meter;
use super::watches::Watches;

/// Where the lock that the command's processes inherit is put, out of the way of programs that number their own files.
const LOCK_FROM: i32 = 200;

/// Makes room for the lock among the numbers of this process. To be called before there is a second thread: the kernel
/// then has no process to wait for, which takes it milliseconds.
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
    let lock = registry.hold_tree_lock(run).map_err(std::io::Error::other)?;
    let Some(file) = lock.map(|lock| lock.into_file()) else { return Ok(None) };
    // Where so many files cannot be open, it stays where it is.
    Ok(Some(rustix::io::fcntl_dupfd_cloexec(&file, LOCK_FROM).unwrap_or(file)))
}

/// Lets no process that we start inherit the locks that we have inherited, if we were started inside a run.
pub fn keep_locks_to_ourselves() {
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name();
        let is_locked = || {
            let about = std::fs::read_to_string(PathBuf::from("/proc/self/fdinfo").join(&number));
            about.is_ok_and(|about| about.contains("FLOCK"))
        };
        // What it is called says nothing: it had no name yet when it was opened.
        let in_home = outlive::host::home::home().map(|home| home.join("logs"));
        let is_of_registry = |path: PathBuf| {
            in_home.as_ref().is_some_and(|home| path.starts_with(home))
                || path.ancestors().skip(1).take(4).any(outlive::discovery::is_registry)
        };
        if std::fs::read_link(entry.path()).is_ok_and(is_of_registry)
            && is_locked()
            && let Some(Ok(fd)) = number.to_str().map(handed)
        {
            // It closes with us.
            std::mem::forget(fd);
        }
    }
}

/// Notes which process is the command, for a process that may have to adopt it.
pub fn note_command(registry: &Registry, run: &Run, pid: Pid) {
    registry.note_command(run, pid.as_raw_nonzero().get().unsigned_abs());
}

/// The processes of the run that we own, wherever they went.
fn of(registry: &Registry, run: &Run) -> Option<Tree> {
    let ours = shims().into_iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()).collect();
    Some(registry.tree(run)?.below_us(ours))
}

/// Ends every process of the run that we own: asks first, and kills what is there after `grace`.
pub fn end(registry: &Registry, run: &Run, grace: Duration) {
    if let Some(tree) = of(registry, run) {
        tree.end(grace);
    }
}

/// The command has ended. Sees to what it left behind, as the run's policy says.
pub fn see_off(
    registry: &Registry,
    run: &Run,
    signals: &mut Signals,
    (stops, rung, watches): (&Mutex<Vec<Stop>>, Option<&OwnedFd>, &Watches),
    asked: &mut Asked,
    meter: (&mut Meter, &RunHandle),
) {
    let policy = run.spec.policy.tree;
    if policy == TreePolicy::Keep {
        return;
    }
    // Most leave no process behind, and that is cheap to find out.
    let Some(tree) = of(registry, run).filter(|tree| collect_orphans(&shims()) || tree.is_held()) else { return };
    match policy {
        TreePolicy::Wait => {
            let meter = Some(meter);
            Following { registry, tree, command: None, signals, stops, rung, watches, meter }.wait(asked);
        }
        _ => tree.end(GRACE),
    }
}

/// Those of our children that are there for us, not for the command.
pub fn shims() -> Vec<Pid> {
    let is_shim = |pid: &Pid| {
        let words = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(1) == Some(SHIM.as_bytes())
    };
    children().into_iter().filter(is_shim).collect()
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
