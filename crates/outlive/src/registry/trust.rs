//! Trust in the runs of a registry: what this user may execute of them.

use super::Registry;
use crate::error::Error;
use crate::model::id::RunId;
use crate::model::run::{Run, Withheld};
use crate::secrets::trust::{Denied, Effect, may};

impl Registry {
    /// Whether it cannot be determined who made a run: a server withholds signatures from tokens that only read.
    #[doc(hidden)]
    pub fn withholds_signatures(&self) -> bool {
        self.signatures_withheld
    }

    /// Whether this user may execute what the run says: repeat it, or end its processes.
    #[doc(hidden)]
    pub fn executable(&self, run: &Run) -> Result<(), Error> {
        self.may(Effect::Execute, run)
    }

    /// Whether this user may start another attempt of the run: it may be executed, and did not end for good under this
    /// home before.
    #[doc(hidden)]
    pub fn startable(&self, run: &Run) -> Result<(), Error> {
        self.may(Effect::Start, run)
    }

    fn may(&self, effect: Effect, run: &Run) -> Result<(), Error> {
        may(effect, run, &self.origin()).map(drop).map_err(|why| Error::Untrusted { run: run.id, why })
    }

    /// Why this user cannot execute a run that waits for nothing else, in one line; none where it can.
    #[doc(hidden)]
    pub fn why_not_started(&self, run: &Run) -> Option<String> {
        run.spec.command.as_ref()?;
        match self.startable(run) {
            Err(Error::Untrusted { why: why @ Denied::Stranger { .. }, run }) => Some(format!(
                "{why}; allow it with `outlive trust {run} --yes`, or a fleet with `outlive trust --fleet`"
            )),
            Err(error) => Some(error.to_string()),
            Ok(()) => self.original_argv(run).is_none().then(|| self.why_withheld(run)),
        }
    }

    /// Why the words of a run's command are not here.
    #[doc(hidden)]
    pub fn why_withheld(&self, run: &Run) -> String {
        let maker = &run.spec.created_by;
        match run.spec.withheld {
            Some(Withheld::Secrets) => format!(
                "its command has secrets, which stay in the home of {}@{} that made it; pass them by a file or the \
                 environment of the worker instead",
                maker.user, maker.host
            ),
            _ => "the words of its command were not kept: start a new run with them".into(),
        }
    }

    /// Notes that a run ended for good under this home. Without a note it may be executed again by a writer that resets its
    /// record.
    #[doc(hidden)]
    pub fn note_final(&self, run: RunId) {
        if let (Some(trust), Some(registry)) = (&self.trust, self.identities().first()) {
            let _ = trust.note_final(registry, run);
        }
    }
}
