//! Waiting for the end of a run.

use std::time::Duration;

use super::Registry;
use crate::error::Error;
use crate::lifecycle::health::RunStatus;
use crate::model::id::RunId;

/// The first pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// The longest pause between two looks: a store that many share is asked less and less often.
const LOOK_SELDOM: Duration = Duration::from_secs(1);

impl Registry {
    /// Waits until a run is over, also where another process executes it. Its result is `run.result` of the answer where it succeeded.
    ///
    /// It waits on while the run will be retried, and for as long as no worker takes it: `tokio::time::timeout` limits it.
    /// Called in a tokio runtime with its timer. It looks again after 40 milliseconds, and seldomer up to once a second.
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
        let mut pause = LOOK_EVERY;
        loop {
            let seen = self.get(id).await?;
            if seen.is_over() {
                return Ok(seen);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 5 / 4).min(LOOK_SELDOM);
        }
    }
}
