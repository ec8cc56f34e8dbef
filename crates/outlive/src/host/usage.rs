//! What processes of this host have used, as the kernel counts it: read from `/proc` and from their control group.
//!
//! A control group of an attempt has no memory controller, because its owner is in the group above it; so memory is
//! added up over its processes. Its processor time counts processes that are long gone. A process counts the time and
//! the I/O of the children that it has collected, so the living tell of most of the dead.

use std::time::Duration;

use super::group::{Group, descendants};
use super::read_proc;

/// What processes have used so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageReading {
    /// Processor time, of user code and of the kernel for it.
    pub cpu: Duration,
    /// Processor time of everything that was ever in their control group; zero where they have none.
    pub cpu_of_group: Duration,
    /// Resident memory in bytes. File pages are taken to be shared, and count once.
    pub memory: u64,
    /// Bytes read from storage.
    pub read: u64,
    /// Bytes written to storage.
    pub written: u64,
    /// How many processes there are.
    pub processes: u32,
}

impl Group {
    /// What the processes in it have used.
    pub fn usage(&self) -> UsageReading {
        UsageReading { cpu_of_group: self.cpu_time().unwrap_or_default(), ..usage_of(self.counted()) }
    }
}

/// What everything below the process `pid` has used, without the processes in `but` and without detached runs.
pub fn usage_below(pid: u32, but: &[u32]) -> UsageReading {
    usage_of(descendants(pid, but))
}

/// The processor time of the children that these processes have collected.
pub fn collected_by(pids: &[u32]) -> Duration {
    let ticks = |pid: &u32| parse_ticks(&read_proc(format!("/proc/{pid}/stat")).ok()?).map(|ticks| ticks.collected);
    time(pids.iter().filter_map(ticks).sum())
}

fn time(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1_000) / rustix::param::clock_ticks_per_second().max(1))
}

/// What these processes have used. One that has gone, or may not be looked into, counts as nothing.
pub fn usage_of(pids: impl IntoIterator<Item = u32>) -> UsageReading {
    let (mut sum, mut shared) = (UsageReading::default(), 0);
    for pid in pids {
        let stat = read_proc(format!("/proc/{pid}/stat"));
        let Some(Ticks { own, collected, is_alive }) = stat.ok().and_then(|stat| parse_ticks(&stat)) else { continue };
        sum.cpu += time(own + collected);
        let (read, written) = io_bytes(pid).unwrap_or_default();
        (sum.read, sum.written) = (sum.read + read, sum.written + written);
        if is_alive {
            let (own, of_files) = memory_pages(pid).unwrap_or_default();
            sum.memory += own;
            shared = shared.max(of_files);
            sum.processes += 1;
        }
    }
    let page = rustix::param::page_size() as u64;
    UsageReading { memory: (sum.memory + shared).saturating_mul(page), ..sum }
}

/// The processor time of a process, in ticks.
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    own: u64,
    /// That of the children that it has collected.
    collected: u64,
    is_alive: bool,
}

fn parse_ticks(stat: &str) -> Option<Ticks> {
    // A process may call itself anything: the fields begin after the last parenthesis.
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace();
    let is_alive = !matches!(fields.next()?, "Z" | "X");
    // The 14th to 17th of the line: utime, stime, cutime, cstime.
    let ticks: Vec<u64> = fields.skip(10).take(4).map_while(|field| field.parse().ok()).collect();
    let [user, system, of_children, system_of_children] = ticks[..] else { return None };
    Some(Ticks { own: user + system, collected: of_children + system_of_children, is_alive })
}

/// The resident pages of a process: its own, and those of files, which others may have too.
fn memory_pages(pid: u32) -> Option<(u64, u64)> {
    let statm = read_proc(format!("/proc/{pid}/statm")).ok()?;
    let mut fields = statm.split_ascii_whitespace().skip(1).map(|field| field.parse::<u64>().ok());
    let (resident, of_files) = (fields.next()??, fields.next()??);
    Some((resident.saturating_sub(of_files), of_files))
}

/// The bytes that a process, with the children that it has collected, has had read from and written to storage.
fn io_bytes(pid: u32) -> Option<(u64, u64)> {
    let io = read_proc(format!("/proc/{pid}/io")).ok()?;
    let field = |name: &str| io.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some((field("read_bytes:")?, field("write_bytes:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_forge_its_time() {
        let fields = "S 1 1 1 0 -1 0 0 0 0 0 7 5 300 20 20 0 1 0 259611 0 0";
        for name in ["x", ") Z 1 1 (", ""] {
            assert_eq!(
                parse_ticks(&format!("42 ({name}) {fields}")),
                Some(Ticks { own: 12, collected: 320, is_alive: true }),
                "{name}"
            );
        }
        assert!(parse_ticks("42 (x) Z 1 1 1 0 -1 0 0 0 0 0 7 5 3 2").is_some_and(|ticks| !ticks.is_alive));
        assert_eq!(parse_ticks(""), None);
    }

    #[test]
    fn what_a_child_has_allocated_and_spent_is_counted() {
        // dash keeps its variables in its own memory.
        let script = "x=$(head -c 20000000 /dev/zero | tr '\\0' x); i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; \
                      echo done; read wait";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = [0; 5];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        let reading = usage_of([child.id()]);
        let below = usage_below(std::process::id(), &[]);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(reading.memory > 20_000_000 && reading.cpu >= Duration::from_millis(10), "{reading:?}");
        assert_eq!(reading.processes, 1);
        assert!(below.memory >= reading.memory && below.processes >= 1, "{below:?}");
        assert_eq!(usage_of([child.id()]), UsageReading::default());
    }
}
