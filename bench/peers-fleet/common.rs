// What the programs share: how they are called, and what they say.
//
// `PROGRAM URL VERB [NUMBER]…`. `drain N` makes N jobs and does them, `fill N` makes them, `add N MS` makes them one by one
// with a pause in between, `work SLOTS` does what comes, `hold SLOTS` never ends what it has begun and has all times as they
// are by default.

use std::time::{Duration, Instant, SystemTime};

/// How many jobs are made at once.
#[allow(dead_code)]
pub const BATCH: u64 = 500;

pub struct Words(Vec<String>);

impl Words {
    pub fn read() -> Self {
        Self(std::env::args().skip(1).collect())
    }

    pub fn url(&self) -> &str {
        &self.0[0]
    }

    pub fn verb(&self) -> &str {
        &self.0[1]
    }

    pub fn number(&self, place: usize) -> u64 {
        self.0[2 + place].parse().unwrap()
    }
}

pub fn now_micros() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Says how long a job has waited, and which it is.
pub fn tell(mark: u64) {
    println!("picked {} {mark}", now_micros().saturating_sub(mark));
}

/// Says how long something took.
pub fn took(what: &str, began: Instant) {
    println!("{what} {}", began.elapsed().as_secs_f64());
}

/// The batches of so many jobs.
#[allow(dead_code)]
pub fn batches(jobs: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    (0..jobs).step_by(BATCH as usize).map(move |start| start..jobs.min(start + BATCH))
}

pub async fn rest(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

pub async fn for_ever() {
    std::future::pending::<()>().await;
}
