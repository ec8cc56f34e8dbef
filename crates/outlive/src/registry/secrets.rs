//! What the user's home keeps of runs: the words of commands with their secrets, and environments.

use std::io;

use super::Registry;
use crate::model::id::RunId;
use crate::model::run::{Arg, Run, Variables, Withheld};
use crate::secrets::{argv_vault, environment};

impl Registry {
    /// The words to execute: those on record, or, where secrets are masked in them, those in the maker's home. None
    /// where this user has not got them, or the command is not the one they were kept for.
    #[doc(hidden)]
    pub fn original_argv(&self, run: &Run) -> Option<Vec<Arg>> {
        let command = run.spec.command.as_ref()?;
        match run.spec.withheld {
            None => Some(command.argv.clone()),
            Some(Withheld::Secrets) => argv_vault::kept(self.trust()?, run),
            Some(Withheld::Arguments) => None,
        }
    }

    /// Deletes what is kept in the home for a run: the words of its command with their secrets, and its environment.
    /// Without the words it cannot be resumed.
    #[doc(hidden)]
    pub fn forget_sealed(&self, id: RunId) -> io::Result<()> {
        let Some(trust) = self.trust() else { return Ok(()) };
        environment::forget(trust.home(), id).and(argv_vault::forget(trust.home(), id))
    }

    /// The runs whose words were kept in the home and that this registry does not know, a while later: the process that
    /// was to record them died before that.
    #[doc(hidden)]
    pub async fn left_argv(&self) -> Vec<RunId> {
        let Some(trust) = self.trust() else { return Vec::new() };
        let mut left = Vec::new();
        for id in argv_vault::kept_long_ago(trust.home(), &self.names(), self.clock().now()) {
            // One that cannot be understood is known all the same.
            if self.store().get(&[id]).await.is_ok_and(|found| found.is_empty()) {
                left.push(id);
            }
        }
        left
    }

    /// The environment that was kept when the run was made. None where this home has none for it, or one of another
    /// host.
    #[doc(hidden)]
    pub fn kept_environment(&self, run: &Run) -> Option<Variables> {
        environment::read(self.trust()?, &self.me().host, run.id)
    }

    /// Deletes the environment that is kept for a run.
    #[doc(hidden)]
    pub fn forget_environment(&self, id: RunId) -> io::Result<()> {
        self.trust().map_or(Ok(()), |trust| environment::forget(trust.home(), id))
    }
}
