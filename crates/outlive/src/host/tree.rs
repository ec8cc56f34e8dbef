//! The processes of an attempt: recognised by what they inherited, and by who started them.
//!
//! Where they have a control group of their own, every process in it is one of them. Each also carries its run's variables and holds the lock of its attempt, unless it has thrown both away. So whatever was
//! started by one that does belongs to them too, and for an owner whatever became its child. Variables can be copied by
//! any process, so they say something only of a process that has lost its parent: of any other its ancestors tell
//! whether it is one of them. A look around is never
//! whole: a process can be born behind it, and has no environment while it becomes another program. So nothing rests on
//! one look that found none.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use super::group::{Group, descendants};
use super::process::{REGISTRY_ID_VARIABLE, RUN_VARIABLE, Stat, open_pidfd, pidfs_inode, pids, read_stat, wait_exited};
use super::usage::{UsageReading, usage_below, usage_of};
use super::{LockState, file_id, holds, lock_state};

/// The second word of a process that owns a detached run. With all that it starts it belongs to no other run, though
/// it was started inside one.
pub const DETACHED: &str = "__detached";
/// How long a process that was killed may take to be gone.
pub const GONE_WITHIN: Duration = Duration::from_secs(2);
/// How often whatever is there is killed before it is given up. Each time takes as long as a look around the host.
const ROUNDS: usize = 500;
/// How many looks in a row must find no new process.
const QUIET: usize = 2;

/// The living processes of the runs of the registry that has one of these names, by run, of those that this user may
/// look into.
pub fn carriers(registry: &[String]) -> HashMap<String, Vec<u32>> {
    let carrying = |pid| Some((pid, (carried_run(pid, registry)?, read_stat(pid).ok()?)));
    let carrying: HashMap<u32, (String, Stat)> = pids().filter_map(carrying).collect();
    let mut found: HashMap<String, Vec<u32>> = HashMap::new();
    for (pid, (run, stat)) in &carrying {
        let (mut at, mut of) = (*pid, stat);
        // No process has more ancestors than there are processes.
        for _ in 0..=carrying.len() {
            if is_astray(at, of) {
                found.entry(run.clone()).or_default().push(*pid);
                break;
            }
            match carrying.get(&of.parent) {
                Some((carried, parent)) if carried == run => (at, of) = (of.parent, parent),
                _ => break,
            }
        }
    }
    found.values_mut().for_each(|pids| pids.sort_unstable());
    found
}

/// Whether a process has lost its parent, so that its ancestors say nothing of it. The process that takes over what is
/// lost is the first of all processes, a process above their session, or an owner.
fn is_astray(pid: u32, stat: &Stat) -> bool {
    let program = |pid: &str| fs::read_link(format!("/proc/{pid}/exe")).ok();
    match stat.parent {
        0 => false,
        1 => true,
        parent => {
            let elsewhere = |parent: Stat| parent.session != stat.session && stat.session != pid;
            read_stat(parent).map_or(true, elsewhere)
                || program("self").is_some_and(|ours| program(&parent.to_string()) == Some(ours))
        }
    }
}

/// The run of this registry that a process carries in its environment. One that says nothing of its registry was started
/// by an earlier outlive, and may be of this one.
fn carried_run(pid: u32, registry: &[String]) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |variable: &str| {
        let entry = |entry: &'_ [u8]| -> Option<String> {
            let value = entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(value).ok().map(str::to_owned)
        };
        environment.split(|byte| *byte == 0).find_map(entry)
    };
    let run = value(RUN_VARIABLE)?;
    let named = value(REGISTRY_ID_VARIABLE).filter(|named| !named.is_empty());
    named.is_none_or(|named| registry.contains(&named)).then_some(run)
}

/// A living process, opened before it was looked at: none is taken for another that had its pid before.
#[derive(Debug)]
pub struct Member {
    /// Its pid.
    pub pid: u32,
    process: OwnedFd,
}

impl Member {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.process, signal)?)
    }
}

impl AsFd for Member {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }
}

/// The processes of an attempt.
#[derive(Debug)]
pub struct Tree {
    /// The names of the registry.
    names: Vec<String>,
    run: String,
    dir: OwnedFd,
    lock: PathBuf,
    group: Option<Group>,
    /// Whether everything below this process belongs to the attempt.
    below_us: bool,
    /// These do not.
    but: Vec<u32>,
}

impl Tree {
    pub(crate) fn new(names: Vec<String>, run: String, dir: OwnedFd, lock: PathBuf, group: Option<Group>) -> Self {
        Self { names, run, dir, lock, group, below_us: false, but: Vec::new() }
    }

    /// With everything below this process, which owns the attempt and has started nothing else than `but`.
    #[must_use]
    pub fn below_us(mut self, but: Vec<u32>) -> Self {
        (self.below_us, self.but) = (true, but);
        self
    }

    /// Whether a process holds the lock of the attempt or is in its group, be it one that this user may not look into.
    pub fn is_held(&self) -> bool {
        self.has_lock_held()
            || self.group.as_ref().map(Group::members).is_some_and(|(pids, more)| more || !pids.is_empty())
    }

    /// Whether this host has a record of the attempt's processes: the file whose lock they hold.
    pub(crate) fn is_on_record(&self) -> bool {
        file_id(&self.dir, &self.lock).is_some()
    }

    fn has_lock_held(&self) -> bool {
        lock_state(&self.dir, &self.lock, None) == LockState::Held
    }

    /// What they have used, as far as that is cheap to find out: those of their group, else the `command` and what is below
    /// it.
    pub fn usage(&self, command: Option<u32>) -> UsageReading {
        if self.below_us {
            return usage_below(std::process::id(), &self.but);
        }
        match &self.group {
            Some(group) => group.usage(),
            None => usage_of(command.into_iter().flat_map(|pid| [vec![pid], descendants(pid, &[])].concat())),
        }
    }

    /// Removes their group, if no process is left in it.
    pub fn remove_group(&self) {
        if let Some(group) = &self.group {
            group.remove();
        }
    }

    /// Those of its processes that one look around finds.
    pub fn members(&self) -> Vec<Member> {
        self.look(None)
    }

    /// One look around. Each process that is found is sent `signal` as soon as it is: what lives for an instant only, and starts
    /// another that does, is gone when the look is over.
    fn look(&self, signal: Option<Signal>) -> Vec<Member> {
        let us = std::process::id();
        let inside: HashSet<u32> = self.group.as_ref().map(|group| group.pids().0).into_iter().flatten().collect();
        // After it was opened: the process that has its number now is the one that was.
        let is_inside = |pid| inside.contains(&pid) && self.group.as_ref().is_some_and(|group| group.has(pid));
        let lock = if self.has_lock_held() { file_id(&self.dir, &self.lock) } else { None };
        let mut found: HashMap<u32, (Member, Stat, Membership)> = HashMap::new();
        for pid in pids().filter(|pid| *pid != us) {
            let Ok(process) = open_pidfd(pid) else { continue };
            let Some(stat) = read_stat(pid).ok().filter(|stat| !stat.has_ended) else { continue };
            let carries = || carried_run(pid, &self.names).is_some_and(|carried| carried == self.run);
            let mark = match lock.is_some_and(|lock| holds(pid, lock)) || is_astray(pid, &stat) && carries() {
                true => Membership::Ours,
                false if owns_a_detached_run(pid) => Membership::Apart,
                false if is_inside(pid) => Membership::Inside,
                false => Membership::None,
            };
            let member = Member { pid, process };
            if let Some(signal) = signal.filter(|_| mark == Membership::Ours && !self.but.contains(&pid)) {
                let _ = member.signal(signal);
            }
            found.insert(pid, (member, stat, mark));
        }
        let belongs = |pid: u32| {
            let (mut at, mut inside) = (pid, false);
            // No process has more ancestors than there are processes.
            for _ in 0..=found.len() {
                match found.get(&at) {
                    _ if at == us => return inside || self.below_us,
                    Some((_, _, Membership::Ours)) => return true,
                    Some((_, _, Membership::Apart)) => return false,
                    Some((_, stat, mark)) => (at, inside) = (stat.parent, inside || *mark == Membership::Inside),
                    // It ended meanwhile; the next look sees whose child this has become.
                    None => return inside,
                }
            }
            inside
        };
        let mut pids: Vec<u32> = found.keys().copied().filter(|pid| belongs(*pid) && !self.but.contains(pid)).collect();
        pids.sort_unstable();
        pids.iter().filter_map(|pid| found.remove(pid)).map(|(member, ..)| member).collect()
    }

    /// Ends them all: asks first, kills what is there after `grace`, and kills until no new process appears.
    pub fn end(&self, grace: Duration) {
        let mut asked = self.members();
        asked.retain(|member| member.signal(Signal::TERM).is_ok());
        for member in &asked {
            // One that is stopped could not even die of it.
            let _ = member.signal(Signal::CONT);
        }
        wait_all(&asked, grace);
        if let Some(group) = &self.group {
            group.kill();
        }
        let mut known: HashSet<(u32, Option<u64>)> = HashSet::new();
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            let mut killed = self.look(Some(Signal::KILL));
            let mut any_new = false;
            for member in &killed {
                any_new |= known.insert((member.pid, pidfs_inode(&member.process)));
            }
            killed.retain(|member| member.signal(Signal::KILL).is_ok());
            wait_all(&killed, GONE_WITHIN);
            quiet = if any_new { 0 } else { quiet + 1 };
            if quiet >= QUIET {
                break;
            }
        }
        self.remove_group();
    }
}

/// What a process says of itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Membership {
    /// It is of the attempt.
    Ours,
    /// It is of no other run than its own.
    Apart,
    /// It is in the group of the attempt, and of it, unless it is of a run apart.
    Inside,
    /// Nothing: it is of whatever its parent is of.
    None,
}

pub(super) fn owns_a_detached_run(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(1) == Some(DETACHED.as_bytes())
}

fn wait_all(asked: &[Member], timeout: Duration) {
    let mut left = timeout;
    for member in asked {
        // Each wait takes from what is left for the others; one that is gone takes nothing.
        if !wait_exited(&member.process, left) {
            left = Duration::ZERO;
        }
    }
}
