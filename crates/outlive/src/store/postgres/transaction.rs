//! Enqueueing inside a transaction of the caller's own.

use tokio_postgres::GenericClient;

use super::batch::{Batch, Origin, Rows, Way};
use super::reads::Table;
use super::{Feature, PostgresStore};
use crate::store::{Error, Write};

impl PostgresStore {
    /// Writes new runs that wait, through the caller's connection. They are there when its transaction commits, and never
    /// otherwise; workers are notified by the commit.
    pub(crate) async fn enqueue_in(&self, client: &impl GenericClient, writes: &[Write]) -> Result<(), Error> {
        let failed = |error: tokio_postgres::Error| match error.as_db_error() {
            Some(said) => Error::Denied(format!("the run cannot be enqueued in this transaction: {}", said.message())),
            None => Error::Unavailable(format!("the run cannot be enqueued in this transaction: {error}")),
        };
        let batch = Batch::of(writes.iter())?;
        let (sql, values) = batch.statement(Way { from: Origin::New, to: Table::Waiting }, NO_WORKERS, Rows::Unlocked);
        client.query_typed(&self.sql(&sql), &values).await.map_err(failed)?;
        if !self.has(Feature::Listen) {
            return Ok(());
        }
        client.batch_execute(&self.notify_work()).await.map_err(failed)
    }
}

/// None of the caller's workers has done it.
const NO_WORKERS: &Vec<uuid::Uuid> = &Vec::new();
