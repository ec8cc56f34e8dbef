//! One run: a worker that claims one run, has its handler do it, records its end, and stops. For tests of handlers.

use super::builder::{WorkerBuilder, finisher};
use super::claimer;
use crate::engine::maintenance::Maintenance;
use crate::error::Error;
use crate::model::run::Run;
use crate::store;

impl WorkerBuilder {
    /// Claims the next run that is due and has it done. Answers with the run as the attempt left it, or none where no run
    /// of its kinds can be claimed.
    pub(crate) async fn run_one(self) -> Result<Option<Run>, Error> {
        // It waits for the store and for the handler, which would hold up a thread of the runtime.
        let done = tokio::task::spawn_blocking(move || self.do_one());
        let ended = |error| Error::Store(store::Error::Unavailable(format!("the worker has ended: {error}")));
        done.await.map_err(ended)?
    }

    fn do_one(self) -> Result<Option<Run>, Error> {
        let (mut worker, order) = self.concurrency(1).prefetch(0).assemble()?;
        worker.finishers.push(finisher(&order)?);
        // What waited for a run that has ended can be claimed from now on.
        pollster::block_on(Maintenance::new(worker.registry.worker()).release(&worker.registry))?;
        let claimed = claimer::claim_one(&order)?;
        order.floor.wait_until_recorded();
        worker.stop();
        let Some(id) = claimed else { return Ok(None) };
        let found = pollster::block_on(order.registry.store().get(&[id]))?.pop();
        found.map(|record| Some(record.run)).ok_or_else(|| Error::NotFound(id.to_string()))
    }
}
