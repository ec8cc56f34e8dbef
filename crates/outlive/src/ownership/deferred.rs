//! Deferred writes: records the end of an attempt that its store did not take at first.

use crate::lifecycle::apply;
use crate::model::run::Actor;
use crate::ownership::spool::Spooled;
use crate::store::{self, Store, Write, WriteOutcome};

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
                let written = store.commit(vec![Write::change(&record, transition, spooled.stamp)]).await?;
                if matches!(written.first(), Some(WriteOutcome::Done(_))) {
                    return Ok(());
                }
            }
        }
    }
    Err(store::Error::Unavailable(format!("run `{}` kept changing while its end was to be recorded", spooled.run)))
}
