//! The server's time, as far as its answers tell it.
//!
//! An answer bears the second in which it was given. It was given between the moment its request was sent and the moment
//! it came. Each answer so leaves a span of possible differences between the server's clock and how long this machine has
//! been up; what all of them leave is far less than a second. The host's own clock is never asked: it may be wrong.

use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use crate::model::time::{Clock, Timestamp};
use crate::util::sync::lock;

/// How long a span is believed before it is taken anew: clocks drift apart.
const BELIEVED: Duration = Duration::from_secs(300);
/// What an answer's second leaves open.
const SECOND: i64 = 1_000_000;

/// A server's clock, read from afar.
pub trait ServerTime: Send + Sync {
    /// How long this machine has been up; sleep counts, as it does for the server.
    fn since_boot(&self) -> Duration;

    /// Notes an answer of that date to a request that was sent at `sent`.
    fn heard(&self, date: &str, sent: Duration);

    /// What the server's clock says; none as long as nothing was heard of it.
    fn now(&self) -> Option<Timestamp>;

    /// When an object was put that the server dates `modified` and its writer `claimed`.
    fn put_at(&self, modified: Timestamp, claimed: Timestamp) -> Timestamp;
}

/// The clock that answers tell.
pub(super) struct Dates {
    clock: Arc<dyn Clock>,
    span: Mutex<Option<Span>>,
}

/// What the server's clock may say more than this machine has been up, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Span {
    least: i64,
    most: i64,
    taken: Duration,
}

impl Dates {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, span: Mutex::default() }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

impl ServerTime for Dates {
    fn since_boot(&self) -> Duration {
        self.clock.since_boot()
    }

    fn heard(&self, date: &str, sent: Duration) {
        let Some(date) = parse(date) else { return };
        let came = self.since_boot();
        let measured = Span {
            least: date.as_micros() - micros(came),
            most: date.as_micros() + SECOND - micros(sent),
            taken: came,
        };
        let mut span = lock(&self.span);
        *span = Some(match *span {
            Some(known) if came.saturating_sub(known.taken) < BELIEVED => {
                let (least, most) = (known.least.max(measured.least), known.most.min(measured.most));
                // Answers that contradict each other are of a clock that was set: the last is believed.
                if least <= most { Span { least, most, taken: known.taken } } else { measured }
            }
            _ => measured,
        });
    }

    fn now(&self) -> Option<Timestamp> {
        let span = (*lock(&self.span))?;
        let middle = span.least + (span.most - span.least) / 2;
        Some(Timestamp::from_micros(micros(self.since_boot()) + middle))
    }

    /// The server's word counts; what the writer says may only tell when within that second it was.
    fn put_at(&self, modified: Timestamp, claimed: Timestamp) -> Timestamp {
        let end = Timestamp::from_micros(modified.as_micros() + SECOND);
        claimed.clamp(modified, end)
    }
}

/// A date as HTTP spells it: `Mon, 16 Nov 2026 11:54:39 GMT`.
fn parse(date: &str) -> Option<Timestamp> {
    let since_epoch = httpdate::parse_http_date(date).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Timestamp::from_micros(micros(since_epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ManualClock;

    fn date(at: Timestamp) -> String {
        let text = at.to_string();
        let (day, time) = text.split_once('T').unwrap();
        let [year, _, day]: [&str; 3] = day.split('-').collect::<Vec<_>>().try_into().unwrap();
        format!("Mon, {day} Nov {year} {} GMT", &time[..8])
    }

    #[test]
    fn f_75_host_with_a_wrong_clock_knows_the_servers_time() {
        for off in [0, 7_200, -7_200] {
            let clock = ManualClock::new();
            let server = |clock: &ManualClock| -> Timestamp {
                let since = clock.since_boot() - Duration::from_secs(1_000_000);
                "2026-11-16T11:00:00.700000Z".parse::<Timestamp>().unwrap().after(since)
            };
            clock.step_wall(off);
            let dates = Dates::new(clock.clone());
            assert_eq!(dates.now(), None);
            for _ in 0..40 {
                let sent = clock.since_boot();
                clock.pass(Duration::from_millis(7));
                let answer = date(server(&clock));
                clock.pass(Duration::from_millis(4));
                dates.heard(&answer, sent);
                clock.pass(Duration::from_millis(93));
            }
            let (measured, is) = (dates.now().unwrap(), server(&clock));
            let error = measured.since(is).max(is.since(measured));
            assert!(error < Duration::from_millis(110), "off by {off}: {measured} is measured at {is}");
        }
    }

    #[test]
    fn f_75_a_writer_moves_its_date_within_the_servers_second_alone() {
        let (clock, at) = (ManualClock::new(), |text: &str| text.parse::<Timestamp>().unwrap());
        let (dates, modified) = (Dates::new(clock), at("2026-11-16T11:00:05Z"));
        for (claimed, put_at) in [
            ("2026-11-16T11:00:05.250000Z", "2026-11-16T11:00:05.250000Z"),
            ("2026-11-16T13:00:00Z", "2026-11-16T11:00:06Z"),
            ("2026-11-16T09:00:00Z", "2026-11-16T11:00:05Z"),
        ] {
            assert_eq!(dates.put_at(modified, at(claimed)), at(put_at));
        }
    }
}
