//! Claiming: as many runs as there are free slots, in one call.
//!
//! A claim that brings all that it asked for says that there may be more: the next follows as soon as a slot is free.
//! Otherwise the worker asks again after a while, or when somebody wakes it.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use super::builder::Order;
use super::job::Task;
use crate::error::Error;
use crate::filter::Filter;
use crate::id::RunId;
use crate::run::Run;
use crate::runtime::handle::RunHandle;
use crate::runtime::keeper::lock;

/// The most runs of one claim.
const BATCH: usize = 500;
/// The wait after the first failure; it doubles with every further one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest wait after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The most runs of schedules that are remembered as followed.
const FOLLOWED: usize = 10_000;

/// Claims until the worker is to end.
pub(super) fn claim(order: &Order) {
    let mut claimer = Claimer { order, followed: BTreeSet::new(), failures: 0 };
    let mut patience = Duration::ZERO;
    while let Some(room) = order.floor.wait_for_room(patience, BATCH) {
        if room == 0 {
            // Another was quicker.
            continue;
        }
        patience = match claimer.claim(room) {
            Ok(true) => Duration::ZERO,
            Ok(false) => order.spread(order.times.poll_every),
            Err(error) => {
                order.survived(&error);
                let pause = FIRST_PAUSE * 2_u32.pow(claimer.failures.min(8));
                claimer.failures += 1;
                order.floor.pause(order.spread(pause.min(LONGEST_PAUSE)));
                Duration::ZERO
            }
        };
    }
}

struct Claimer<'a> {
    order: &'a Order,
    /// Runs of schedules whose next run is made.
    followed: BTreeSet<RunId>,
    /// In a row.
    failures: u32,
}

impl Claimer<'_> {
    /// Claims up to `room` runs. Answers whether there may be more.
    fn claim(&mut self, room: usize) -> Result<bool, Error> {
        let claimed = self.claim_once(room);
        let brought = claimed.as_ref().map_or(0, |(handles, _)| handles.len());
        let (tasks, scheduled) = match claimed {
            Ok((handles, scheduled)) => (handles.into_iter().map(Task::new).collect(), Ok(scheduled)),
            Err(error) => (Vec::new(), Err(error)),
        };
        self.order.floor.claimed(room, tasks);
        let (scheduled, full) = (scheduled?, brought == room);
        self.failures = 0;
        if scheduled.is_empty() {
            return Ok(full);
        }
        if self.followed.len() > FOLLOWED {
            self.followed.clear();
        }
        let followed = pollster::block_on(self.order.registry.follow_schedules(&scheduled))?;
        let before = self.followed.len();
        self.followed.extend(followed);
        Ok(full || self.followed.len() > before)
    }

    /// Claims, and tells which runs of schedules were passed over because their next run is not made.
    fn claim_once(&self, room: usize) -> Result<(Vec<RunHandle>, Vec<Run>), Error> {
        let Order { registry, kinds, times, .. } = self.order;
        let scheduled: Mutex<Vec<Run>> = Mutex::default();
        let wanted = |run: &Run| {
            let wanted = run.spec.schedule.is_none() || self.followed.contains(&run.id);
            if !wanted {
                lock(&scheduled).push(run.clone());
            }
            wanted
        };
        // One kind can be looked up in the order of the queue.
        let only = (kinds.len() == 1).then(|| kinds.first().cloned()).flatten();
        let several = only.is_none().then(|| kinds.clone());
        let filter = Filter { kind: only, kinds: several, ..Filter::default() };
        let handles = pollster::block_on(registry.claim_within(filter, room, Some(times.lease), &wanted))?;
        let scheduled = std::mem::take(&mut *lock(&scheduled));
        Ok((handles, scheduled))
    }
}
