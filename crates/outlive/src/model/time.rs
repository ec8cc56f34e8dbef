//! Time: the only module that reads a clock.
//!
//! Three clocks, because three questions are asked. *When was it?* is answered by wall time, which people read and
//! which may jump. *For how long has an owner on this host been silent?* is answered by the time the machine has been
//! awake: a laptop that slept for a night has heard nothing, and no heartbeat was due. *Is my own lease at a
//! far-away store over?* is answered by the time since boot, which goes on through sleep as the store's clock does.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment of wall time in UTC, to the microsecond. In [`Spec::not_before`](crate::Spec::not_before) it schedules a
/// run; it reads and prints as RFC 3339.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The moment that many microseconds after 1970.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// How long `earlier` lies behind; zero where it lies ahead.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This moment moved on by `duration`; the end of time where that overflows.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The moment in the time zone of this machine, to the second, for people: `2026-11-15 10:30:00`. After [`use_utc`] it is
    /// in UTC, and says so: `2026-11-15 09:30:00Z`.
    pub fn local(self) -> String {
        let format = if IN_UTC.load(Ordering::Relaxed) { "%Y-%m-%d %H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%S" };
        self.to_jiff().to_zoned(zone()).strftime(format).to_string()
    }

    pub(crate) fn to_jiff(self) -> jiff::Timestamp {
        // A record may hold a time that no calendar has.
        let nearest = if self.0 < 0 { jiff::Timestamp::MIN } else { jiff::Timestamp::MAX };
        jiff::Timestamp::from_microsecond(self.0).unwrap_or(nearest)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}", self.to_jiff())
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Timestamp {
    type Err = InvalidTime;

    fn from_str(text: &str) -> Result<Self, InvalidTime> {
        if let Some(usual) = parse_usual(text.as_bytes()) {
            return Ok(usual);
        }
        let parsed: jiff::Timestamp = text.parse().map_err(|_| InvalidTime(text.chars().take(64).collect()))?;
        Ok(Self(parsed.as_microsecond()))
    }
}

/// A moment spelt as records have it, `2026-11-15T09:30:00.000000Z`: a list reads thousands of them.
fn parse_usual(text: &[u8]) -> Option<Timestamp> {
    const SPELT: &[u8] = b"####-##-##T##:##:##.######Z";
    let fits = |(found, spelt): (&u8, &u8)| if *spelt == b'#' { found.is_ascii_digit() } else { found == spelt };
    if text.len() != SPELT.len() || !text.iter().zip(SPELT).all(fits) {
        return None;
    }
    let number =
        |range: std::ops::Range<usize>| text[range].iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let (hour, minute, second, micros) = (number(11..13), number(14..16), number(17..19), number(20..26));
    // What is no plain day and time is left to the calendar library.
    if !(1..=12).contains(&month) || !(1..=28).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Years that begin in March end with the day that only some of them have.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(Timestamp((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micros))
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "date-time" })
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Text that is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a time such as 2026-11-15T09:30:00Z")]
pub struct InvalidTime(String);

/// Whether people read and write times in UTC.
static IN_UTC: AtomicBool = AtomicBool::new(false);

/// Has this process show times to people in UTC, and read theirs as UTC, instead of in the time zone of the machine.
pub fn use_utc() {
    IN_UTC.store(true, Ordering::Relaxed);
}

/// The time zone in which people read and write times.
fn zone() -> TimeZone {
    if IN_UTC.load(Ordering::Relaxed) { TimeZone::UTC } else { TimeZone::system() }
}

/// The name of this machine's time zone; UTC where it has none.
pub(crate) fn zone_name() -> String {
    jiff::tz::TimeZone::system().iana_name().unwrap_or("UTC").to_owned()
}

/// The clocks of a process. Injected, so that tests and the simulation can move time.
pub trait Clock: Send + Sync {
    /// Wall time: for people, for records, never for judging an owner of this host.
    fn now(&self) -> Timestamp;

    /// How long this machine has been awake since it booted.
    fn awake(&self) -> Duration;

    /// How long ago this machine booted, sleep included.
    fn since_boot(&self) -> Duration;
}

/// The clocks of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[allow(clippy::disallowed_methods, reason = "the one place that reads a clock")]
fn read(clock: rustix::time::ClockId) -> rustix::time::Timespec {
    rustix::time::clock_gettime(clock)
}

fn elapsed(clock: rustix::time::ClockId) -> Duration {
    let time = read(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Clock for SystemClock {
    /// Read through the C library, so that a test can preload another time.
    #[allow(clippy::disallowed_methods, reason = "the one place that reads a clock")]
    fn now(&self) -> Timestamp {
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => Timestamp(micros(since)),
            Err(before) => Timestamp(-micros(before.duration())),
        }
    }

    fn awake(&self) -> Duration {
        elapsed(rustix::time::ClockId::Monotonic)
    }

    fn since_boot(&self) -> Duration {
        elapsed(rustix::time::ClockId::Boottime)
    }
}

/// Durations in records: whole milliseconds, in fields whose names end in `_ms`.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }

    pub(crate) mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer};

        pub(crate) fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            match value {
                Some(duration) => super::serialize(duration, serializer),
                None => serializer.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            Ok(Option::<u64>::deserialize(deserializer)?.map(Duration::from_millis))
        }
    }
}

/// A duration as a person writes it, and as [`show_duration`] prints it: `250ms`, `90s`, `1.2s`, `1h30m`, `1h 59m`, `30d`.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration(text.chars().take(64).collect());
    let (mut total, mut last, mut rest) = (0_u64, u64::MAX, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let (number, behind) = rest.split_at(digits);
        let letters = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(letters);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return Err(invalid()),
        };
        // From the largest unit to the smallest, each once: `30m1h` is a slip.
        if millis >= last {
            return Err(invalid());
        }
        let part = match unit {
            "s" => seconds_in_millis(number),
            _ => number.parse().ok().and_then(|number: u64| number.checked_mul(millis)),
        };
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(invalid)?;
        // One space may stand between two units, and none behind the last.
        let next = behind.strip_prefix(' ').unwrap_or(behind);
        if next.is_empty() && !behind.is_empty() {
            return Err(invalid());
        }
        (last, rest) = (millis, next);
    }
    if last == u64::MAX { Err(invalid()) } else { Ok(Duration::from_millis(total)) }
}

/// Seconds, which may have up to three decimals, in milliseconds.
fn seconds_in_millis(number: &str) -> Option<u64> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let thousandths = match decimals.len() {
        1..=3 => decimals.parse::<u64>().ok()? * 10_u64.pow(3 - u32::try_from(decimals.len()).ok()?),
        _ => return None,
    };
    whole.parse::<u64>().ok()?.checked_mul(1_000)?.checked_add(thousandths)
}

/// In which direction a time of day is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Towards {
    /// `18:00` is the next one, and `10m` is ten minutes from now.
    Future,
    /// `18:00` is the last one, and `10m` is ten minutes ago.
    Past,
}

/// Parses a moment as people write one: `2026-11-15T09:30:00Z`, `2026-11-15 09:30` and `2026-11-15` in the time zone of this
/// machine, `18:00`, `today 18:00`, `tomorrow`, `tomorrow 9:00`, `yesterday`, `now`, or a duration such as `1h30m`, which may
/// be `in 1h30m` or `1h30m ago` where the time lies on that side.
pub fn parse_moment(text: &str, now: Timestamp, towards: Towards) -> Result<Timestamp, InvalidMoment> {
    parse_moment_in(text, now, towards, zone())
}

fn parse_moment_in(text: &str, now: Timestamp, towards: Towards, zone: TimeZone) -> Result<Timestamp, InvalidMoment> {
    let invalid = || InvalidMoment(text.chars().take(64).collect());
    let text = text.trim();
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    let amount = match towards {
        Towards::Future => text.strip_prefix("in "),
        Towards::Past => text.strip_suffix(" ago"),
    };
    if let Ok(duration) = parse_duration(amount.unwrap_or(text)) {
        return Ok(match towards {
            Towards::Future => now.after(duration),
            Towards::Past => {
                let ago = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
                Timestamp::from_micros(now.as_micros().saturating_sub(ago))
            }
        });
    }
    let at = |moment: DateTime| {
        let zoned = moment.to_zoned(zone.clone()).map_err(|_| invalid())?;
        Ok(Timestamp(zoned.timestamp().as_microsecond()))
    };
    let today = now.to_jiff().to_zoned(zone.clone()).date();
    if let Some(time) = time_of_day(text) {
        let found = at(today.to_datetime(time))?;
        let other = match towards {
            Towards::Future if found <= now => today.tomorrow(),
            Towards::Past if found > now => today.yesterday(),
            _ => return Ok(found),
        };
        return at(other.map_err(|_| invalid())?.to_datetime(time));
    }
    let (word, time) = text.split_once(' ').unwrap_or((text, "0:00"));
    let day = match word {
        "now" if word == text => return Ok(now),
        "today" => Ok(today),
        "tomorrow" => today.tomorrow(),
        "yesterday" if matches!(towards, Towards::Past) => today.yesterday(),
        _ => return text.replacen(' ', "T", 1).parse().map_err(|_| invalid()).and_then(at),
    };
    at(day.map_err(|_| invalid())?.to_datetime(time_of_day(time.trim()).ok_or_else(invalid)?))
}

/// `9:00`, `18:00` or `18:00:30`.
fn time_of_day(text: &str) -> Option<Time> {
    let mut parts = text.split(':').map(|part| part.parse::<i8>().ok().filter(|_| matches!(part.len(), 1 | 2)));
    let (hour, minute) = (parts.next()??, parts.next()??);
    let second = parts.next().map_or(Some(0), |second| second)?;
    if parts.next().is_some() { None } else { Time::new(hour, minute, second, 0).ok() }
}

/// Text that is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a time such as 18:00, tomorrow or 2026-11-15T09:30:00Z nor a duration such as 90m")]
pub struct InvalidMoment(String);

/// Text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration such as 250ms, 90s, 1h30m, 36h, 30d or 2w")]
pub struct InvalidDuration(String);

/// A duration in the two largest units that matter: `3d 4h`, `2m 5s`, `1.2s`, `35ms`.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_21_durations_of_several_units_and_weeks_are_read() {
        let seconds = |text: &str| parse_duration(text).map(|duration| duration.as_secs()).ok();
        assert_eq!(seconds("1h30m"), Some(5_400));
        assert_eq!(seconds("1w2d"), Some(9 * 86_400));
        assert_eq!(seconds("1h 30m"), Some(5_400));
        for wrong in
            ["", "h", "1", "30m1h", "1h1h", "1h30", "1x", "-1h", "99999999999999999999d", "1h  30m", "1h ", " 1h"]
        {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn durations_are_read_as_they_are_printed() {
        for millis in [0, 35, 1_200, 9_900, 59_000, 60_000, 300_000, 7_140_000, 86_400_000, 273_600_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration), "{}", show_duration(duration));
        }
        for wrong in ["1.s", ".5s", "1.2345s", "1.5m", "1.2.3s", "1.5ms"] {
            assert!(parse_duration(wrong).is_err(), "{wrong} was taken for a duration");
        }
    }

    #[test]
    fn t1_21_moments_are_read_as_people_write_them() {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let now: Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
        let read = |text: &str, towards| {
            parse_moment_in(text, now, towards, zone.clone()).map(|at| at.to_string()).unwrap_or_default()
        };
        for (text, expected) in [
            ("18:00", "2026-11-17T17:00:00"),
            ("9:30", "2026-11-18T08:30:00"),
            ("tomorrow", "2026-11-17T23:00:00"),
            ("tomorrow 9:00", "2026-11-18T08:00:00"),
            ("today 18:00:05", "2026-11-17T17:00:05"),
            ("1h30m", "2026-11-17T13:30:00"),
            ("1w", "2026-11-24T12:00:00"),
            ("2026-12-01 09:30", "2026-12-01T08:30:00"),
            ("2026-12-01T09:30:00", "2026-12-01T08:30:00"),
            ("2026-12-01", "2026-11-30T23:00:00"),
            ("2026-12-01T09:30:00Z", "2026-12-01T09:30:00"),
        ] {
            assert!(read(text, Towards::Future).starts_with(expected), "{text}: {}", read(text, Towards::Future));
        }
        assert!(read("18:00", Towards::Past).starts_with("2026-11-16T17:00:00"));
        // As they are printed: `in 1h 30m`, `2h 0m ago`.
        assert!(read("in 1h 30m", Towards::Future).starts_with("2026-11-17T13:30:00"));
        assert!(read("2h 0m ago", Towards::Past).starts_with("2026-11-17T10:00:00"));
        assert_eq!((read("2h ago", Towards::Future), read("in 2h", Towards::Past)), (String::new(), String::new()));
        assert!(read("10m", Towards::Past).starts_with("2026-11-17T11:50:00"));
        for wrong in ["", "25:00", "18", "noon", "tomorrow noon", "2026-13-01", "1:2:3:4", "today 9"] {
            assert_eq!(read(wrong, Towards::Future), "", "{wrong}");
        }
    }

    #[test]
    fn moments_are_read_alike_by_hand_and_by_the_calendar() {
        // Every 11 days, 7 hours and a bit, from the year 0 to 9999.
        let mut micros = -62_167_219_200_000_000_i64;
        let mut by_hand = 0;
        while micros < 253_402_300_799_000_000 {
            let text = Timestamp(micros).to_string();
            let calendar: jiff::Timestamp = text.parse().unwrap();
            assert_eq!(calendar.as_microsecond(), micros);
            assert!(parse_usual(text.as_bytes()).is_none_or(|read| read == Timestamp(micros)), "{text}");
            by_hand += usize::from(parse_usual(text.as_bytes()).is_some());
            micros += 975_600_123_457 * 50;
        }
        assert!(by_hand > 5_000, "only {by_hand} were read by hand");
        for text in ["2026-02-30T00:00:00.000000Z", "2026-13-01T00:00:00.000000Z", "2026-01-01T24:00:00.000000Z"] {
            assert!(text.parse::<Timestamp>().is_err(), "{text}");
        }
        for text in ["2026-01-31T00:00:00.000000Z", "2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00.5Z"] {
            assert!(text.parse::<Timestamp>().is_ok(), "{text}");
        }
    }

    #[test]
    fn timestamps_read_back_and_never_overflow() {
        let time = Timestamp::from_micros(1_763_248_800_123_456);
        assert_eq!(time.to_string(), "2025-11-15T23:20:00.123456Z");
        assert_eq!(time.to_string().parse(), Ok(time));
        assert_eq!(Timestamp::from_micros(i64::MAX).after(Duration::MAX), Timestamp::from_micros(i64::MAX));
        assert_eq!(Timestamp::default().since(time), Duration::ZERO);
        assert!(!Timestamp::from_micros(i64::MIN).to_string().is_empty());
    }

    #[test]
    fn moments_are_taken_as_people_say_them() {
        let now: Timestamp = "2026-11-16T12:00:00Z".parse().unwrap();
        let read = |text: &str| parse_moment(text, now, Towards::Past).map(|at| now.since(at));
        assert_eq!(read("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(read("2026-11-16T12:00:00+01:00"), Ok(Duration::from_secs(3_600)));
        assert_eq!(read("2026-11-16T10:00:00-02:00"), Ok(Duration::ZERO));
        assert_eq!(read("now"), Ok(Duration::ZERO));
        let (today, yesterday) = (read("today").unwrap(), read("yesterday").unwrap());
        assert!(today <= Duration::from_secs(86_400 + 3_600) && yesterday > today, "{today:?} {yesterday:?}");
        assert!(read("2026-11-15").is_ok() && read("2026-11-15T09:30:00").is_ok());
        for text in ["", "tomorrowish", "2026-13-01", "12", "-2h", "2026-11-16T25:00:00Z"] {
            assert!(read(text).is_err(), "{text:?} was taken for a moment");
        }
    }

    #[test]
    fn durations_are_read_strictly_and_shown_shortly() {
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for text in ["", "s", "90", "-1s", "1.5h", "99999999999999999999d", "18446744073709551615d"] {
            assert!(parse_duration(text).is_err(), "{text:?} was taken for a duration");
        }
        let shown =
            [35, 1_200, 59_000, 125_000, 7_500_000, 273_600_000].map(|ms| show_duration(Duration::from_millis(ms)));
        assert_eq!(shown, ["35ms", "1.2s", "59s", "2m 5s", "2h 5m", "3d 4h"]);
    }
}
