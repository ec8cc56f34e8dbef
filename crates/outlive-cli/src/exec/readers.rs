//! Who waits for a line: processes of a group that stand in a call which reads from a terminal.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::libc;
use rustix::process::Pid;

/// Calls that read, and whose first argument says from where.
const READS: [i64; 2] = [libc::SYS_read, libc::SYS_readv];

/// Calls that wait for several things at once; from outside it is unknown which.
const WAITS: [i64; 4] = [libc::SYS_ppoll, libc::SYS_pselect6, libc::SYS_epoll_pwait, libc::SYS_io_uring_enter];

#[cfg(target_arch = "x86_64")]
const OLD_WAITS: [i64; 3] = [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait];
#[cfg(not(target_arch = "x86_64"))]
const OLD_WAITS: [i64; 0] = [];

/// Whether a process of the group may wait for something from the terminal. One that may not be looked into may.
pub fn any_waits_for(terminal: &OwnedFd, group: Option<Pid>) -> bool {
    let (Some(group), Ok(terminal)) = (group, rustix::fs::fstat(terminal)) else { return true };
    let group = group.as_raw_nonzero().get().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered =
        processes.filter(|process| process.file_name().to_string_lossy().starts_with(|c: char| c.is_ascii_digit()));
    let mut in_group = numbered.filter(|process| {
        let stat = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // After the name: state, parent, group.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.split_whitespace().nth(2) == Some(group.as_str()))
    });
    in_group.any(|process| may_wait(&process.path(), terminal.st_rdev))
}

fn may_wait(process: &Path, terminal: u64) -> bool {
    let Ok(threads) = fs::read_dir(process.join("task")) else { return false };
    threads.flatten().any(|thread| match fs::read_to_string(thread.path().join("syscall")) {
        Ok(call) => reads(&call, process, terminal),
        Err(error) => error.kind() == std::io::ErrorKind::PermissionDenied,
    })
}

/// Whether a thread stands in such a call for the terminal, or for `/dev/tty`, which is the same one: the number of the
/// call and its arguments, as the kernel tells them.
fn reads(call: &str, process: &Path, terminal: u64) -> bool {
    let mut words = call.split_whitespace();
    let Some(number) = words.next().and_then(|number| number.parse::<i64>().ok()) else { return false };
    let is_terminal = |path: &Path| {
        fs::metadata(path).is_ok_and(|file| file.rdev() == terminal || file.rdev() == libc::makedev(5, 0))
    };
    if READS.contains(&number) {
        let from = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
        return from.is_some_and(|fd| is_terminal(&process.join(format!("fd/{fd}"))));
    }
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    // What is only shown has the terminal open, too.
    let mut inputs = open.filter(|fd| !["1", "2"].iter().any(|output| fd.file_name() == *output));
    (WAITS.contains(&number) || OLD_WAITS.contains(&number)) && inputs.any(|fd| is_terminal(&fd.path()))
}
