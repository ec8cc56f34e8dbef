//! The times of a worker: how often it beats, for how long its silence is forgiven, how often it looks for others' silence
//! and for work.

use std::time::Duration;

use crate::model::policy::{InvalidPolicy, Lease};
use crate::model::time::show_duration;

/// How often a worker beats, looks for silent workers and looks for work, for
/// [`WorkerBuilder::times`](crate::WorkerBuilder::times). Shorter times find deaths sooner and cost more writes. Work is
/// looked for as soon as a notification tells of it, and without one for runs that have become due.
///
/// From the death of a worker to the claim of its runs by another it takes at most the lease, one look for silent workers,
/// and the claim itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerTiming {
    pub(super) lease: Lease,
    pub(super) reap_every: Duration,
    pub(super) poll_every: Duration,
}

impl WorkerTiming {
    /// Beats every `beat`, is forgiven silence for `lease`, looks for silent workers every `reap_every` and for work every
    /// `poll_every`.
    pub fn new(
        beat: Duration,
        lease: Duration,
        reap_every: Duration,
        poll_every: Duration,
    ) -> Result<Self, InvalidPolicy> {
        let lease = Lease::new(beat, lease)?;
        if reap_every.is_zero() || poll_every.is_zero() {
            return Err(InvalidPolicy("a worker that looks without pause does nothing else".into()));
        }
        if reap_every > beat {
            return Err(InvalidPolicy(format!(
                "looking for silent workers every {} with a beat every {}: it must be as often, at least",
                show_duration(reap_every),
                show_duration(beat)
            )));
        }
        Ok(Self { lease, reap_every, poll_every })
    }

    /// For work that must go on within three seconds of a worker's death. Beats cost as many writes a second as there are
    /// workers, doubled.
    pub fn fast() -> Self {
        Self::known(500, 2_000, 250, 500)
    }

    /// The longest it takes from the death of a worker until its runs may be claimed again, but for what the store takes.
    pub fn reclaimed_within(&self) -> Duration {
        self.lease.lasts() + self.reap_every
    }

    fn known(beat: u64, lease: u64, reap_every: u64, poll_every: u64) -> Self {
        let [beat, lease, reap_every, poll_every] = [beat, lease, reap_every, poll_every].map(Duration::from_millis);
        Self { lease: Lease::new(beat, lease).unwrap_or_default(), reap_every, poll_every }
    }
}

impl Default for WorkerTiming {
    /// Within fifteen seconds.
    fn default() -> Self {
        Self { lease: Lease::default(), reap_every: Duration::from_secs(1), poll_every: Duration::from_secs(2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_do_not_hold_together_are_refused() {
        let ms = Duration::from_millis;
        assert!(WorkerTiming::new(ms(500), ms(2_000), ms(250), ms(500)).is_ok());
        for [beat, lease, reap, poll] in
            [[0, 1, 1, 1], [500, 1_000, 250, 500], [500, 2_000, 0, 500], [500, 2_000, 250, 0], [500, 2_000, 501, 500]]
        {
            assert!(
                WorkerTiming::new(ms(beat), ms(lease), ms(reap), ms(poll)).is_err(),
                "{beat} {lease} {reap} {poll}"
            );
        }
    }

    #[test]
    fn the_profiles_leave_room_for_the_store() {
        for (times, bar) in [(WorkerTiming::fast(), 3), (WorkerTiming::default(), 15)] {
            let WorkerTiming { lease, reap_every, poll_every } = times;
            assert_eq!(WorkerTiming::new(lease.beat(), lease.lasts(), reap_every, poll_every), Ok(times));
            // Looking is spread over up to a quarter more.
            assert!(times.reclaimed_within() + reap_every / 4 < Duration::from_secs(bar), "{times:?}");
        }
    }
}
