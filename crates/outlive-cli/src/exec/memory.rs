//! What happens when memory runs out: who is killed first, and how often the kernel has killed.

use std::path::PathBuf;

use outlive::host::read_proc;

/// Where a process says how gladly it would be killed.
const SCORE: &str = "/proc/self/oom_score_adj";
/// After everything that is not meant to be spared, and still before the machine stands still.
const LATE: i32 = -900;

/// Has the kernel kill this process after others, where it may ask for that, until it is dropped.
///
/// To be raised when the command runs: the command, and whatever is started afterwards, are killed as ever.
pub struct Shield {
    before: Option<i32>,
}

impl Shield {
    /// Asks for it.
    pub fn raise() -> Self {
        let before = read_proc(SCORE).ok().and_then(|score| score.trim().parse().ok());
        let asked = |before: &i32| *before > LATE && std::fs::write(SCORE, LATE.to_string()).is_ok();
        Self { before: before.filter(asked) }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // To be killed sooner is never refused.
            let _ = std::fs::write(SCORE, before.to_string());
        }
    }
}

/// How often the kernel has killed a process of our control group because memory ran out; none where it is not counted.
pub fn kills() -> Option<u64> {
    let groups = read_proc("/proc/self/cgroup").ok()?;
    let mut read = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(kinds), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match kinds {
            "" => ("/sys/fs/cgroup", "memory.events"),
            kinds if kinds.split(',').any(|kind| kind == "memory") => ("/sys/fs/cgroup/memory", "memory.oom_control"),
            _ => continue,
        };
        // In a container the path may be the host's, and the root is our own group.
        let own = PathBuf::from(root).join(path.trim_start_matches('/')).join(file);
        let counted = read_proc(own).or_else(|_| read_proc(PathBuf::from(root).join(file)));
        let counted = counted.ok().and_then(|counted| {
            counted.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok())
        });
        read = read.max(counted);
    }
    read
}
