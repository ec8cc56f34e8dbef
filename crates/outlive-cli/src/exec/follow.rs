//! Following processes that are not our children to their end: what a command has left behind, or what a dead owner
//! has.
//!
//! One living process is enough to know that it is not over. So one is waited for at a time, and only when that one is
//! gone is the next one looked for.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::libc;
use outlive::host::{HeldCommand, Member, Tree};
use outlive::lifecycle::Report;
use outlive::ownership::Stop;
use outlive::ownership::handle::RunHandle;
use outlive::registry::Registry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::child::{Asked, OWN_GRACE, grace};
use super::signals::{self, Signals};
use super::tree;
use super::usage::Meter;
use super::watches::{Watches, Word};

/// How often to look again for those that nothing tells us of: processes that we may not look into.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often a tree is looked for before it is believed to be gone.
const LOOKS: usize = 2;

/// Waits for processes to end, and meanwhile for signals and for the run to be stopped.
pub struct Following<'a> {
    pub registry: &'a Registry,
    pub tree: Tree,
    /// The one to wait for; without it, all of them are.
    pub command: Option<&'a HeldCommand>,
    pub signals: &'a mut Signals,
    /// Why the run is to stop, and what is rung when it is.
    pub stops: &'a Mutex<Vec<Stop>>,
    pub rung: Option<&'a OwnedFd>,
    /// What else their owner waits for.
    pub watches: &'a Watches,
    /// What samples them, and for whom.
    pub meter: Option<(&'a mut Meter, &'a RunHandle)>,
}

impl Following<'_> {
    /// Waits until they have ended. A run that is to stop has ended only with the last of its processes.
    pub fn wait(&mut self, asked: &mut Asked) {
        let mut kill_at: Option<Duration> = None;
        loop {
            let next = self.sample();
            let Some(living) = self.one_living() else { break };
            let left = [kill_at, next].into_iter().flatten().min().map(|at| at.saturating_sub(self.now()));
            self.wait_for_something(living.as_ref(), left);
            while let Some(arrived) = self.signals.next() {
                match arrived.signal {
                    libc::SIGCHLD => drop(tree::collect_orphans(&[])),
                    signal @ (libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM) => {
                        self.pass_on(signal);
                        asked.signals.push(signal);
                    }
                    _ => {}
                }
            }
            if let Some(stop) = self.stops.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                kill_at.get_or_insert(self.now() + grace(&stop));
                asked.stop.get_or_insert(stop);
                self.ask_to_end();
            }
            for word in self.watches.take() {
                match word {
                    Word::Ready => self.note_ready(),
                    Word::Stop(stop) => {
                        kill_at.get_or_insert(self.now() + OWN_GRACE);
                        asked.own.get_or_insert(stop);
                        self.ask_to_end();
                    }
                }
            }
            if kill_at.is_some_and(|at| self.now() >= at) {
                self.tree.end(Duration::ZERO);
                // One that cannot be killed yet is tried again, not at once.
                kill_at = Some(self.now() + LOOK_EVERY);
            }
        }
        let limit = asked.stop.as_ref().map(grace).or(asked.own.as_ref().map(|_| OWN_GRACE));
        if let Some(limit) = limit {
            self.tree.end(kill_at.map_or(limit, |at| at.saturating_sub(self.now())));
        }
    }

    fn ask_to_end(&self) {
        for member in self.tree.members() {
            let _ = member.signal(Signal::TERM);
            // One that is stopped could not even die of it.
            let _ = member.signal(Signal::CONT);
        }
    }

    fn note_ready(&self) {
        if let Some((_, handle)) = &self.meter {
            // A viewer that cannot be notified now learns it from the end of the run.
            drop(pollster::block_on(handle.report(Report { ready: true, ..Report::default() })));
        }
    }

    /// Takes a sample of them where one is due. Answers when the next one is.
    fn sample(&mut self) -> Option<Duration> {
        let (meter, handle) = self.meter.as_mut()?;
        let (tree, command) = (&self.tree, self.command.map(HeldCommand::pid));
        meter.look(self.registry, handle, || tree.usage(command));
        Some(meter.next())
    }

    fn now(&self) -> Duration {
        self.registry.clock().awake()
    }

    /// One that lives; none inside, where there is one that cannot be named. None where it is over.
    fn one_living(&self) -> Option<Option<Living<'_>>> {
        if let Some(command) = self.command {
            return (!command.has_ended()).then_some(Some(Living::Command(command)));
        }
        for _ in 0..LOOKS {
            match self.tree.members().into_iter().next() {
                Some(member) => return Some(Some(Living::Member(member))),
                None if self.tree.is_held() => return Some(None),
                None => {}
            }
        }
        None
    }

    fn wait_for_something(&self, living: Option<&Living<'_>>, left: Option<Duration>) {
        let looks = living.is_none().then_some(LOOK_EVERY);
        let limit = [left, looks].into_iter().flatten().min();
        let limit =
            limit.map(|left| Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() });
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        fds.extend(living.map(|living| match living {
            Living::Command(command) => PollFd::from_borrowed_fd(command.as_fd(), PollFlags::IN),
            Living::Member(member) => PollFd::from_borrowed_fd(member.as_fd(), PollFlags::IN),
        }));
        fds.extend(self.rung.map(|rung| PollFd::new(rung, PollFlags::IN)));
        let _ = poll(&mut fds, limit.as_ref());
        if let Some(rung) = self.rung {
            let _ = rustix::io::read(rung, &mut [0_u8; 8]);
        }
    }

    /// Passes a signal on to the command, or, where it is unknown which that is, to all of them.
    fn pass_on(&self, signal: i32) {
        match self.command {
            Some(command) => {
                signals::send(command, signal);
                // No other process can continue it if it was stopped: its parent is gone.
                signals::send(command, libc::SIGCONT);
            }
            None => self.tree.members().iter().for_each(|member| signals::send(member, signal)),
        }
    }
}

/// A process that is waited for.
enum Living<'a> {
    Command(&'a HeldCommand),
    Member(Member),
}
