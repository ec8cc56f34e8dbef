//! Schedules: when a run is followed by another like it.
//!
//! A schedule is a pure function from one slot to the next. No process has to be awake at a slot for it to count: what was
//! missed is made up for by the schedule's own policy when a process looks again.

mod cron;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::cron::Cron;
use crate::model::policy::LONGEST;
use crate::model::time::{Timestamp, millis, show_duration, zone_name};

/// The shortest time between two slots. Anything shorter is a loop.
const SHORTEST: Duration = Duration::from_secs(1);

/// When a run comes again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// How the slots lie.
    #[serde(flatten)]
    pub rhythm: Rhythm,
    /// What becomes of slots that were missed.
    #[serde(default)]
    pub missed: Missed,
}

/// How the slots of a schedule lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Rhythm {
    /// At equal distances.
    Every {
        /// This long.
        #[serde(rename = "every_ms", with = "millis")]
        every: Duration,
    },
    /// By the calendar.
    Cron {
        /// Minute, hour, day of the month, month and day of the week, as for `cron`.
        cron: String,
        /// Where the calendar hangs: a name of the time zone database.
        zone: String,
    },
}

/// What becomes of slots that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// All of them together are made up for once.
    #[default]
    Once,
    /// Each is made up for.
    All,
    /// None is.
    Skip,
}

/// A schedule that has no slots, or too many, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSchedule(String);

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.rhythm {
            Rhythm::Every { every } => write!(f, "every {}", show_duration(*every)),
            Rhythm::Cron { cron, zone } => write!(f, "cron {cron} ({zone})"),
        }
    }
}

impl Schedule {
    /// One that comes again after this long.
    pub fn every(every: Duration, missed: Missed) -> Result<Self, InvalidSchedule> {
        let schedule = Self { rhythm: Rhythm::Every { every }, missed };
        schedule.check().map(|()| schedule)
    }

    /// One that goes by the calendar of this machine's time zone.
    pub fn cron(cron: impl Into<String>, missed: Missed) -> Result<Self, InvalidSchedule> {
        let schedule = Self { rhythm: Rhythm::Cron { cron: cron.into(), zone: zone_name() }, missed };
        schedule.check().map(|()| schedule)
    }

    /// Refuses a schedule that never comes, or never rests.
    pub fn check(&self) -> Result<(), InvalidSchedule> {
        match &self.rhythm {
            Rhythm::Every { every } if *every < SHORTEST => {
                Err(InvalidSchedule("a run may come again every second at most".into()))
            }
            Rhythm::Every { every } if *every > LONGEST => {
                Err(InvalidSchedule("a run comes again within ten years, or not at all".into()))
            }
            Rhythm::Every { .. } => Ok(()),
            Rhythm::Cron { cron, zone } => {
                let parsed = Cron::parse(cron, zone).map_err(InvalidSchedule)?;
                // From a fixed day on: whether a schedule can ever come does not depend on today.
                let comes = parsed.next_after(Timestamp::default()).is_some();
                let never = || InvalidSchedule(format!("`{cron}` names a day that never comes"));
                comes.then_some(()).ok_or_else(never)
            }
        }
    }

    /// The slot after this one.
    pub fn next_after(&self, slot: Timestamp) -> Option<Timestamp> {
        match &self.rhythm {
            Rhythm::Every { every } => Some(slot.after(*every)),
            Rhythm::Cron { cron, zone } => Cron::parse(cron, zone).ok()?.next_after(slot),
        }
    }

    /// The slot that follows this one when it is dealt with at `now`.
    pub fn follower(&self, slot: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match self.missed {
            Missed::All => self.next_after(slot),
            Missed::Once | Missed::Skip => self.upcoming(slot, now),
        }
    }

    /// The first slot that is after both this one and `now`.
    pub fn upcoming(&self, slot: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match &self.rhythm {
            Rhythm::Every { every } => {
                // Slots keep their distance from the first one, however late any of them was.
                let periods = now.since(slot).as_micros() / every.as_micros().max(1) + 1;
                let periods = u32::try_from(periods).unwrap_or(u32::MAX);
                Some(slot.after(every.saturating_mul(periods)))
            }
            Rhythm::Cron { .. } => self.next_after(slot.max(now)),
        }
    }

    /// The slots after both `slot` and `from`, as long as they are before `until`.
    pub fn slots(&self, slot: Timestamp, from: Timestamp, until: Timestamp) -> impl Iterator<Item = Timestamp> {
        let first = self.upcoming(slot, from);
        std::iter::successors(first, |slot| self.next_after(*slot)).take_while(move |slot| *slot < until)
    }

    /// Whether a slot that was missed until `now` is passed over: another has come since.
    pub fn passes_over(&self, slot: Timestamp, now: Timestamp) -> bool {
        self.missed == Missed::Skip && self.next_after(slot).is_some_and(|next| next <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn slots_at_equal_distances_keep_them_however_late_one_was() {
        let hourly = |missed| Schedule::every(Duration::from_secs(3_600), missed).unwrap();
        let (slot, late) = (at("2026-11-16T03:00:00Z"), at("2026-11-16T06:20:00Z"));
        assert_eq!(hourly(Missed::Once).follower(slot, late), Some(at("2026-11-16T07:00:00Z")));
        assert_eq!(hourly(Missed::All).follower(slot, late), Some(at("2026-11-16T04:00:00Z")));
        assert_eq!(hourly(Missed::Once).follower(slot, slot), Some(at("2026-11-16T04:00:00Z")));
        assert!(hourly(Missed::Skip).passes_over(slot, late) && !hourly(Missed::Once).passes_over(slot, late));
        assert!(!hourly(Missed::Skip).passes_over(slot, at("2026-11-16T03:59:59Z")));
    }

    #[test]
    fn slots_of_a_day_follow_the_clock_of_their_zone() {
        let zone = "Europe/Berlin".to_owned();
        let daily = Schedule { rhythm: Rhythm::Cron { cron: "30 1,3 * * *".into(), zone }, missed: Missed::Once };
        // The night in which clocks are turned back by an hour at 03:00 of summer time.
        let (from, until) = (at("2026-10-24T20:00:00Z"), at("2026-10-25T20:00:00Z"));
        let slots: Vec<Timestamp> = daily.slots(from, from, until).collect();
        assert_eq!(slots, [at("2026-10-24T23:30:00Z"), at("2026-10-25T02:30:00Z")]);
        let half_hourly = Schedule::every(Duration::from_secs(1_800), Missed::Once).unwrap();
        assert_eq!(half_hourly.slots(from.after(Duration::from_secs(60)), from, until).count(), 47);
    }

    #[test]
    fn a_schedule_that_never_comes_or_never_rests_is_refused() {
        let refused = |schedule: Result<Schedule, InvalidSchedule>| schedule.unwrap_err().to_string();
        insta::assert_snapshot!(refused(Schedule::every(Duration::ZERO, Missed::Once)), @"a run may come again every second at most");
        insta::assert_snapshot!(refused(Schedule::every(Duration::MAX, Missed::Once)), @"a run comes again within ten years, or not at all");
        insta::assert_snapshot!(refused(Schedule::cron("0 0 30 2 *", Missed::Once)), @"`0 0 30 2 *` names a day that never comes");
        insta::assert_snapshot!(refused(Schedule::cron("0 0 31 4,6 *", Missed::Once)), @"`0 0 31 4,6 *` names a day that never comes");
    }

    #[test]
    fn a_schedule_reads_back_from_json() {
        for schedule in [
            Schedule::every(Duration::from_secs(90), Missed::Skip).unwrap(),
            Schedule::cron("*/5 2-4 * * mon-fri", Missed::All).unwrap(),
        ] {
            let json = serde_json::to_string(&schedule).unwrap();
            assert_eq!(serde_json::from_str::<Schedule>(&json).unwrap(), schedule, "{json}");
        }
    }
}
