//! Cron expressions: five fields, as for `cron`.

use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;

use crate::model::time::Timestamp;

/// How far ahead a day is looked for: more than the longest gap between two 29ths of February on a given weekday.
const DAYS_AHEAD: usize = 41 * 366;

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// A field: its name, its range, and the words for its numbers from the first one on.
struct CronField {
    name: &'static str,
    first: u8,
    last: u8,
    words: &'static [&'static str],
}

const MINUTE: CronField = CronField { name: "minute", first: 0, last: 59, words: &[] };
const HOUR: CronField = CronField { name: "hour", first: 0, last: 23, words: &[] };
const DAY: CronField = CronField { name: "day of the month", first: 1, last: 31, words: &[] };
const MONTH: CronField = CronField { name: "month", first: 1, last: 12, words: &MONTHS };
// Sunday is 0, and 7 as well.
const WEEKDAY: CronField = CronField { name: "day of the week", first: 0, last: 7, words: &WEEKDAYS };

/// An expression that was understood.
pub(super) struct Cron {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Both kinds of day are named: either will do.
    either_day: bool,
    zone: TimeZone,
}

impl Cron {
    pub(super) fn parse(text: &str, zone: &str) -> Result<Self, String> {
        let zone = TimeZone::get(zone).map_err(|_| format!("`{zone}` is not a time zone that this machine knows"))?;
        let spelled = match text.trim() {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            text => text,
        };
        let fields: Vec<&str> = spelled.split_ascii_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!("`{text}` is not a schedule such as `30 3 * * mon-fri`: it needs five fields"));
        };
        let mut weekdays = set(&WEEKDAY, weekday)?;
        weekdays |= (weekdays >> 7) & 1;
        Ok(Self {
            minutes: set(&MINUTE, minute)?,
            hours: set(&HOUR, hour)?,
            days: set(&DAY, day)?,
            months: set(&MONTH, month)?,
            weekdays,
            either_day: !day.starts_with('*') && !weekday.starts_with('*'),
            zone,
        })
    }

    /// The first slot after `moment`; none where none ever comes.
    pub(super) fn next_after(&self, moment: Timestamp) -> Option<Timestamp> {
        let start = moment.to_jiff().to_zoned(self.zone.clone()).date();
        let days = std::iter::successors(Some(start), |day| day.tomorrow().ok()).take(DAYS_AHEAD);
        days.filter(|day| self.has_day(*day)).find_map(|day| self.slots_of(day).find(|slot| *slot > moment))
    }

    fn has_day(&self, date: Date) -> bool {
        let by_month = has(self.days, date.day());
        let by_week = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        has(self.months, date.month()) && if self.either_day { by_month || by_week } else { by_month && by_week }
    }

    /// The slots of a day. One that the clocks skip in spring comes when they have been set; one that they repeat in
    /// autumn comes once.
    fn slots_of(&self, date: Date) -> impl Iterator<Item = Timestamp> + '_ {
        let minutes = (0..24).flat_map(|hour| (0..60).map(move |minute| (hour, minute)));
        let wanted = minutes.filter(|(hour, minute)| has(self.hours, *hour) && has(self.minutes, *minute));
        wanted.filter_map(move |(hour, minute)| {
            let local = date.to_datetime(Time::new(hour, minute, 0, 0).ok()?);
            let slot = self.zone.to_ambiguous_timestamp(local).compatible().ok()?;
            Some(Timestamp::from_micros(slot.as_microsecond()))
        })
    }
}

fn has(set: u64, number: i8) -> bool {
    u32::try_from(number).is_ok_and(|number| set >> number & 1 == 1)
}

/// The numbers that a field names, a bit each.
fn set(field: &CronField, text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no {} of a schedule: {} to {}", field.name, field.first, field.last);
    let number = |word: &str| {
        let spelled = || field.words.iter().position(|name| name.eq_ignore_ascii_case(word));
        let number = word.parse().ok().or_else(|| u8::try_from(spelled()?).ok().map(|index| index + field.first));
        number.filter(|number| (field.first..=field.last).contains(number))
    };
    let part = |part: &str| {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (field.first, field.last),
            Some((first, last)) => (number(first)?, number(last)?),
            // A beginning with a step goes on to the end.
            None => (number(range)?, if step.is_some() { field.last } else { number(range)? }),
        };
        let step = step.map_or(Some(1), |step| step.parse().ok().filter(|step| *step > 0))?;
        (first <= last).then(|| (first..=last).step_by(step).fold(0_u64, |set, number| set | 1 << number))
    };
    text.split(',').map(part).try_fold(0, |all, part| Some(all | part?)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(cron: &str, zone: &str, after: &str) -> String {
        let found = Cron::parse(cron, zone).unwrap().next_after(after.parse().unwrap()).unwrap();
        found.to_string().replace(".000000Z", "Z")
    }

    #[test]
    fn slots_are_found_by_every_field() {
        let from = "2026-11-16T05:30:10Z";
        for (cron, slot) in [
            ("* * * * *", "2026-11-16T05:31:00Z"),
            ("*/15 * * * *", "2026-11-16T05:45:00Z"),
            ("0 3 * * *", "2026-11-17T03:00:00Z"),
            ("30 5 * * *", "2026-11-17T05:30:00Z"),
            ("5/20 6-8 * * *", "2026-11-16T06:05:00Z"),
            ("0 0 1 jan *", "2027-01-01T00:00:00Z"),
            ("0 9 * * sat,Sun", "2026-11-21T09:00:00Z"),
            ("0 9 * * 7", "2026-11-22T09:00:00Z"),
            ("0 0 13 * fri", "2026-11-20T00:00:00Z"),
            ("0 0 */10 * fri", "2026-12-11T00:00:00Z"),
            ("0 0 29 2 *", "2028-02-29T00:00:00Z"),
            ("@hourly", "2026-11-16T06:00:00Z"),
            ("@monthly", "2026-12-01T00:00:00Z"),
        ] {
            assert_eq!(next(cron, "UTC", from), slot, "{cron}");
        }
    }

    #[test]
    fn slots_go_by_the_clocks_of_their_zone() {
        // The clocks go from 2 to 3 on the last Sunday of March, and from 3 back to 2 on that of October.
        assert_eq!(next("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z"), "2026-03-29T01:30:00Z");
        assert_eq!(next("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z"), "2026-10-25T00:30:00Z");
        assert_eq!(next("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z"), "2026-10-26T01:30:00Z");
    }

    #[test]
    fn what_is_no_expression_is_refused_with_the_field() {
        for cron in
            ["", "* * * *", "* * * * * *", "60 * * * *", "x * * * *", "5-1 * * * *", "*/0 * * * *", "1,,2 * * * *"]
        {
            assert!(Cron::parse(cron, "UTC").is_err(), "{cron:?} was taken for a schedule");
        }
        let refused = Cron::parse("0 24 * * *", "UTC").err().unwrap();
        insta::assert_snapshot!(refused, @"`24` is no hour of a schedule: 0 to 23");
        assert!(Cron::parse("* * * * *", "Mars/Olympus").is_err());
    }
}
