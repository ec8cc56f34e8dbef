//! The processes of its runs, on this host.

use std::time::Duration;

use rustix::fs::{CWD, Mode};

use super::Registry;
use super::log_directory::home_directory;
use crate::error::Error;
use crate::host::attempts::{Attempts, attempts_path, tree_lock_of};
use crate::host::{Group, LifeLock, Tree};
use crate::model::owner::{HostContext, Identity};
use crate::model::run::Run;
use crate::util::files;

impl Registry {
    /// Takes the lock that the processes of a run's attempt are to inherit. A home that has no place for it does
    /// not prevent executing a run: the processes are found by what else they inherit.
    #[doc(hidden)]
    pub fn hold_tree_lock(&self, run: &Run) -> Result<Option<LifeLock>, Error> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            return Ok(Some(local.hold_tree_lock(run)?));
        }
        let Some(root) = home_directory(self.name.as_deref()) else { return Ok(None) };
        let made = files::make_private_dirs(&root.join(attempts_path(run.id)));
        Ok(made.ok().and_then(|()| self.attempts()?.hold_lock(run).ok()))
    }

    /// Notes which process is the command of a run's attempt.
    #[doc(hidden)]
    pub fn note_command(&self, run: &Run, pid: u32) {
        if let Some(attempts) = self.attempts() {
            attempts.note_command(run, pid);
        }
    }

    /// The command of a run's attempt, as far as it was noted on this host.
    #[doc(hidden)]
    pub fn command(&self, run: &Run) -> Option<Identity> {
        self.attempts()?.command(run)
    }

    /// Makes a control group for the processes of a run's attempt. None where there can be none.
    #[doc(hidden)]
    pub fn make_group(&self, run: &Run) -> Option<Group> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            // No run needs a group so much that a registry that was just replaced should be made again.
            return local.attempts_as_they_are()?.make_group(run);
        }
        self.attempts()?.make_group(run)
    }

    /// The processes of the last attempt of a run that has started, as far as they are on this host. None before the
    /// first, in a registry that cannot be reached, and without a home.
    #[doc(hidden)]
    pub fn tree(&self, run: &Run) -> Option<Tree> {
        let attempt = run.started_attempt()?;
        Some(self.attempts()?.tree(run.id, attempt))
    }

    /// Whether processes of an attempt live that may still write to its log.
    #[doc(hidden)]
    pub fn is_written_on(&self, run: &Run) -> bool {
        self.tree(run).is_some_and(|tree| tree.is_held())
    }

    /// Ends the live processes of a run's last attempt on this host: SIGTERM first, SIGKILL after `grace`.
    #[doc(hidden)]
    pub fn end_tree(&self, run: &Run, grace: Duration) {
        // Where nothing is known of it, the next look finds what is left.
        if let Some(tree) = self.tree(run) {
            tree.end(grace);
        }
    }

    /// Removes the control group of an attempt that nothing is left of.
    pub(crate) fn remove_group(&self, run: &Run) {
        if let Some(tree) = self.tree(run) {
            tree.remove_group();
        }
    }

    /// Removes the files about an attempt in the home, when nothing is left of its processes.
    #[doc(hidden)]
    pub fn leave_tree(&self, run: &Run) {
        #[cfg(feature = "sqlite")]
        if self.local.is_some() {
            return;
        }
        let (Some(root), Some(tree)) = (home_directory(self.name.as_deref()), self.tree(run)) else { return };
        let Some(attempt) = run.started_attempt() else { return };
        if tree.is_held() {
            return;
        }
        let _ = std::fs::remove_file(root.join(tree_lock_of(run.id, attempt)));
        // Unless there is a log.
        let attempts = root.join(attempts_path(run.id));
        if std::fs::remove_dir(&attempts).is_ok() {
            let _ = attempts.parent().map(std::fs::remove_dir);
        }
    }

    fn attempts(&self) -> Option<Attempts> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            return local.attempts().ok();
        }
        let dir = files::open_dir(CWD, &home_directory(self.name.as_deref())?).ok()?;
        let names = self.id().into_iter().collect();
        Some(Attempts { dir, names, vantage: HostContext::here(), mode: Mode::from_raw_mode(0o600) })
    }
}
