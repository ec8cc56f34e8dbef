//! Several registries: one slot that claims from each of them in its turn.
//!
//! Nothing is shared between the registries. One that cannot be reached is left out until it answers again; the slot goes
//! on with the others, and records what it has executed for that one when it is back.

use std::cell::OnceCell;
use std::os::fd::AsFd;
use std::time::Duration;

use outlive::error::Error;
use outlive::logs::LogPolicy;
use outlive::registry::{Registry, WorkReady};
use outlive::time::{Clock, SystemClock};

use super::{Flags, LOOK_EVERY, Said, WorkSlot};
use crate::call::Context;
use crate::exec::descriptors::wait_for;
use crate::exec::signals::Signals;

/// The longest wait before a registry that could not be reached is tried again.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A registry of the rotation, once it could be opened.
struct Place {
    context: Context,
    policy: LogPolicy,
    registry: OnceCell<Registry>,
}

/// What the slot does in one registry.
struct Visit<'a> {
    place: &'a Place,
    slot: Option<WorkSlot<'a>>,
    bell: Option<WorkReady>,
    /// When it is tried again, in time awake.
    retry_at: Duration,
    /// How often it could not be reached, in a row.
    failures: u32,
}

/// Executes runs of these registries until there are none left, or the parent of this slot wants no more.
pub(super) fn rotate(urls: &[String], flags: &Flags, signals: Signals, said: &Said) -> Result<(), Error> {
    let mut places = Vec::new();
    for url in urls {
        let context = Context::new(Some(url.clone()));
        places.push(Place { policy: context.log_policy()?, context, registry: OnceCell::new() });
    }
    let visit = |place| Visit { place, slot: None, bell: None, retry_at: Duration::ZERO, failures: 0 };
    let mut rotation = Rotation { visits: places.iter().map(visit).collect(), flags, signals, said, first: 0 };
    let worked = rotation.work();
    drop(rotation);
    for registry in places.into_iter().filter_map(|place| place.registry.into_inner()) {
        pollster::block_on(registry.close());
    }
    worked
}

struct Rotation<'a> {
    visits: Vec<Visit<'a>>,
    flags: &'a Flags,
    signals: Signals,
    said: &'a Said,
    /// Whose turn is first.
    first: usize,
}

impl Rotation<'_> {
    fn work(&mut self) -> Result<(), Error> {
        loop {
            if self.said.is_over() || super::is_asked_to_end(&mut self.signals) {
                return Ok(());
            }
            let now = SystemClock.awake();
            let (count, mut timeout, mut has_executed) = (self.visits.len(), LOOK_EVERY, false);
            for turn in 0..count {
                let at = (self.first + turn) % count;
                if self.visits[at].retry_at > now {
                    timeout = timeout.min(self.visits[at].retry_at.saturating_sub(now));
                    continue;
                }
                match self.visit(at) {
                    Ok(None) => {
                        self.first = at + 1;
                        has_executed = true;
                        break;
                    }
                    Ok(Some(wait)) => timeout = timeout.min(wait),
                    Err(Error::Store(error)) if error.is_transient() => self.visits[at].pause(self.said, &error),
                    Err(error) => return Err(error),
                }
            }
            if has_executed {
                continue;
            }
            if self.flags.drain && self.is_drained()? {
                return Ok(());
            }
            let bells = self.visits.iter().filter_map(|visit| visit.bell.as_ref()).map(|bell| bell as &dyn AsFd);
            let fds: Vec<&dyn AsFd> = [&self.said.0 as &dyn AsFd, &self.signals].into_iter().chain(bells).collect();
            wait_for(&fds, timeout);
        }
    }

    /// Executes the next run of a registry. Where there is none: for how long none is expected.
    fn visit(&mut self, at: usize) -> Result<Option<Duration>, Error> {
        let visit = &mut self.visits[at];
        if visit.slot.is_none() {
            visit.open(self.flags, &self.signals, self.said)?;
        }
        let Some(slot) = &mut visit.slot else { return Ok(Some(LOOK_EVERY)) };
        let is_notified = visit.bell.as_ref().is_some_and(WorkReady::forget);
        let claimed = slot.claim(is_notified)?;
        visit.failures = 0;
        let Some(handle) = claimed else {
            let timeout = slot.timeout(visit.bell.is_some())?;
            slot.woken = true;
            // No notification wakes a slot that waits for a registry in a directory.
            return Ok(Some(if visit.bell.is_some() { timeout } else { timeout.min(LOOK_EVERY) }));
        };
        // The next run is another registry's.
        slot.execute(handle, None, false)?;
        Ok(None)
    }

    /// Whether nothing is left in any registry that waits for a worker alone. Of one that cannot be reached this is unknown.
    fn is_drained(&mut self) -> Result<bool, Error> {
        for visit in &mut self.visits {
            let Some(slot) = visit.slot.as_mut().filter(|_| visit.failures == 0) else { return Ok(false) };
            let waiting = match pollster::block_on(slot.registry.waiting()) {
                Err(Error::Store(error)) if error.is_transient() => return Ok(false),
                waiting => waiting?,
            };
            if slot.is_anything_left(&waiting)? {
                return Ok(false);
            }
            slot.tell_left(&waiting);
        }
        Ok(true)
    }
}

impl<'a> Visit<'a> {
    fn open(&mut self, flags: &Flags, signals: &Signals, said: &Said) -> Result<(), Error> {
        let place = self.place;
        if place.registry.get().is_none() {
            let registry = pollster::block_on(place.context.registry())?;
            let _ = place.registry.set(registry.offering(flags.capacity()));
        }
        let Some(registry) = place.registry.get() else { return Ok(()) };
        let failed = |error| Error::Invalid(format!("signals cannot be waited for: {error}"));
        let stream = said.0.try_clone().map_err(|error| Error::Invalid(error.to_string()))?;
        let signals = signals.another().map_err(failed)?;
        self.slot = Some(WorkSlot::new(registry, &place.policy, signals, flags.clone(), Said(stream)));
        self.bell = registry.bell();
        let _ = pollster::block_on(registry.announce());
        Ok(())
    }

    /// Leaves the registry out for a while, and says so once.
    fn pause(&mut self, said: &Said, error: &outlive::store::Error) {
        if self.failures == 0
            && let Ok(stream) = said.0.try_clone()
        {
            Said(stream).trouble(error);
        }
        let pause = (LOOK_EVERY * 2_u32.pow(self.failures.min(8))).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = SystemClock.awake() + pause;
    }
}
