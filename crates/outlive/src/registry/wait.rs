//! Waiting for the end of a run.

use std::time::Duration;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::RunStatus;
use crate::model::id::RunId;
use crate::model::run::State;

/// The first interval between two polls.
const FIRST_INTERVAL: Duration = Duration::from_millis(40);
/// The longest interval between two polls: a store that many share is asked less and less often.
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

impl Registry {
    /// Waits until a run is over, also where another process executes it. Its result is `run.result` of the answer where it succeeded.
    ///
    /// It keeps waiting while the run will be retried, and while no worker claims it; `tokio::time::timeout` sets a limit. A run
    /// that is parked, because its workers kept dying, is answered as it is: no worker continues it before a person unparks
    /// it. A poll that fails ends the wait with its error, after the store's own retries; the caller may wait again.
    ///
    /// Called in a tokio runtime with its timer. It polls after 40 milliseconds, then less and less often, up to once a second.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), outlive::Error> {
    /// use outlive::{Failed, Job, Registry, StateName, Worker};
    /// let registry = Registry::open("memory:").await?;
    /// let run = registry.enqueue(registry.spec("double").with_input(&21)?).await?;
    /// let double = |job: Job<u64>| async move { Ok::<_, Failed>(job.input * 2) };
    /// let (seen, _) = tokio::join!(registry.wait(run.id), Worker::builder(&registry).handle("double", double).drain());
    /// let seen = seen?;
    /// assert_eq!((seen.state, seen.run.result.as_deref()), (StateName::Succeeded, Some(&42.into())));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(&self, id: RunId) -> Result<RunStatus, Error> {
        let mut interval = FIRST_INTERVAL;
        loop {
            let seen = self.get(id).await?;
            if seen.is_over() || is_parked(&seen) {
                return Ok(seen);
            }
            tokio::time::sleep(interval).await;
            interval = (interval * 5 / 4).min(LONGEST_INTERVAL);
        }
    }
}

fn is_parked(seen: &RunStatus) -> bool {
    matches!(&seen.run.state, State::Suspended(suspended) if suspended.parked)
}
