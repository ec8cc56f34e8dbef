//! Deferred writes: records the end of an attempt that its store did not take at first.

use crate::lifecycle::apply;
use crate::model::id::RunId;
use crate::model::run::Actor;
use crate::ownership::commit::log_retry;
use crate::ownership::spool::{Spool, Spooled};
use crate::store::{self, Store, Write, WriteOutcome};

/// What became of the ends that waited to be recorded.
#[derive(Debug, Default)]
pub struct Delivered {
    /// How many are on record.
    pub recorded: usize,
    /// The runs whose ends still wait, and what is in their way.
    pub left: Vec<(RunId, store::Error)>,
}

/// Records the ends that wait in a spool, and forgets those that are recorded or void. One that still cannot be recorded is
/// left where it is, and the others do not wait for it.
pub(crate) async fn deliver_waiting(
    store: &dyn Store,
    spool: &Spool,
    waiting: &[Spooled],
    me: &Actor,
) -> Result<Delivered, store::Error> {
    let mut delivered = Delivered::default();
    for end in waiting {
        match deliver_one(store, end, me).await {
            Ok(()) => {
                tracing::info!(run = %end.run, epoch = end.epoch.0, "spooled outcome delivered");
                spool.forget(end);
                delivered.recorded += 1;
            }
            Err(error) if error.is_refused() || matches!(error, store::Error::Corrupt(_)) => {
                delivered.left.push((end.run, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(delivered)
}

/// Records one end, unless it is on record or void.
pub(crate) async fn deliver_one(store: &dyn Store, spooled: &Spooled, me: &Actor) -> Result<(), store::Error> {
    const TRIES: usize = 16;
    for _ in 0..TRIES {
        let Some(record) = store.get(&[spooled.run]).await?.pop() else { return Ok(()) };
        if record.stamp == spooled.stamp {
            return Ok(());
        }
        match apply(&spooled.noted(&record.run), &spooled.action(), me, spooled.at) {
            // Another owner or end has made it void.
            Err(_) => return Ok(()),
            Ok(transition) => {
                let after = transition.run.clone();
                let written = store.commit(vec![Write::change(&record, transition, spooled.stamp)]).await?;
                if matches!(written.first(), Some(WriteOutcome::Done(_))) {
                    log_retry(&after);
                    return Ok(());
                }
            }
        }
    }
    Err(store::Error::Unavailable(format!("run `{}` kept changing while its end was to be recorded", spooled.run)))
}
