//! Runs that this process makes for another one of the same user: under the id that the other has chosen, and in its name.
//!
//! The other process may lose the answer and make the run itself. Both write under one id, so that there is one run.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Registry;
use crate::error::Error;
use crate::lifecycle::enqueued;
use crate::model::id::RunId;
use crate::model::policy::{OrphanPolicy, Policy};
use crate::model::run::{Actor, Run, Spec, Variables};
use crate::model::time::Timestamp;
use crate::ownership::handle::RunHandle;

/// A run that a process describes to another one, which makes it.
#[doc(hidden)]
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestedRun {
    id: RunId,
    spec: Spec,
    /// The variables to keep in the home, which no record has.
    sealed: Option<Variables>,
}

impl RequestedRun {
    /// A queued run of that id.
    pub fn new(id: RunId, spec: Spec) -> Self {
        let mut spec = Spec { queued: true, ..spec };
        let sealed = spec.command.as_mut().and_then(|command| command.sealed.take());
        Self { id, spec, sealed }
    }

    /// Its id.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// How long ago its id was drawn, which is when it was asked for.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.id.time())
    }

    /// What is to be done.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    fn into_spec(self) -> Spec {
        let Self { mut spec, sealed, .. } = self;
        if let Some(command) = &mut spec.command {
            command.sealed = sealed;
        }
        spec
    }
}

/// Whether a later attempt may begin without a process that resumes the run.
fn is_retried(policy: &Policy) -> bool {
    policy.retry.on_failure || policy.retry.on_interrupt || policy.orphans == OrphanPolicy::Requeue
}

impl Registry {
    /// Makes a run for the process `pid` of this user and owns it at once, in one write. One whose command line could not
    /// be kept with its secrets is not made: its owner could not execute it.
    #[doc(hidden)]
    pub async fn start_requested(&self, run: RequestedRun, pid: u32) -> Result<RunHandle, Error> {
        let keeping = self.keeping()?;
        let _taking = keeping.take();
        let maker = Actor { pid, ..self.me.clone() };
        // It is executed at once: as with a run that its caller owns, only a later attempt needs what is kept of it. One
        // that begins by itself after a power failure has no other environment.
        let keeps_durably = is_retried(&run.spec.policy);
        let run = self.draft_by(&maker, run.id, run.into_spec(), self.clock.now(), keeps_durably)?;
        if self.original_argv(&run).is_none() {
            return Err(Error::Invalid(format!("run `{}` cannot be executed: {}", run.id, self.why_withheld(&run))));
        }
        let (run, events) = self.claimed_draft(&run, &maker, &keeping)?;
        let record = self.create_requested(run, events).await?;
        Ok(self.hold(record, keeping.clone(), None))
    }

    /// Makes a run for the process `pid` of this user, and leaves it in the queue. Answers with the run that is there, where
    /// it was made already.
    #[doc(hidden)]
    pub async fn enqueue_requested(&self, run: RequestedRun, pid: u32) -> Result<Run, Error> {
        let (id, maker) = (run.id, Actor { pid, ..self.me.clone() });
        let run = self.draft_by(&maker, id, run.into_spec(), self.clock.now(), true)?;
        let made = enqueued(&run, &maker);
        match self.create_requested(run, vec![made]).await {
            Ok(record) => Ok(record.run),
            Err(error) => self.store.get(&[id]).await?.pop().map(|record| record.run).ok_or(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::policy::Retry;
    use crate::model::run::{Arg, Command, Key};
    use crate::secrets::trust::Trust;
    use crate::store::memory::MemoryStore;
    use crate::testing::{ManualClock, SeededEntropy, person, spec, stranger};

    #[test]
    fn retried_run_keeps_its_environment_durably() {
        let plain = Policy::default();
        assert!(!is_retried(&plain));
        assert!(is_retried(&Policy { orphans: OrphanPolicy::Requeue, ..plain.clone() }));
        for (on_failure, on_interrupt) in [(true, false), (false, true)] {
            let retry = Retry { on_failure, on_interrupt, ..Retry::default() };
            assert!(is_retried(&Policy { retry, ..plain.clone() }));
        }
    }

    #[test]
    fn a_refused_request_keeps_what_the_other_process_may_have_kept() {
        let (home, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let (store, entropy) = (Arc::new(MemoryStore::new(clock.clone())), Arc::new(SeededEntropy::new(1)));
        let mut registry = Registry::over(store, clock, entropy.clone(), person("ada"), stranger(1));
        registry.trust = Some(Trust::open(home.path(), &SystemEntropy).unwrap());
        let argv = ["deploy", "--password", "canary"].map(|word| Arg::Text(word.into())).to_vec();
        let spec = Spec {
            command: Some(Command::new(argv, Arg::Text("/".into()))),
            keys: vec![Key::unique("deploy")],
            ..spec("command")
        };
        pollster::block_on(registry.enqueue(spec.clone())).unwrap();
        let run = RequestedRun::new(RunId::draw(registry.clock.now(), &*entropy), spec);
        let kept = home.path().join("argv").join(format!("{}.json", run.id()));
        pollster::block_on(registry.start_requested(run.clone(), 1)).map(drop).unwrap_err();
        assert!(kept.exists());
        pollster::block_on(registry.enqueue_requested(run, 1)).unwrap_err();
        assert!(kept.exists());
    }
}
