//! What an attempt has used: processor time, memory, storage I/O and processes, with its course over time.
//!
//! An owner samples its attempt every few seconds and writes the sum with other writes. The course is kept as at most
//! [`POINTS`] points, whatever the attempt takes: when there are more, every two become one. So a record stays a few
//! kilobytes long.

use serde::{Deserialize, Serialize};

/// The most points that are kept of the course of an attempt.
pub const POINTS: usize = 120;
/// The least time between two points, in milliseconds.
const POINT_EVERY_MS: u64 = 2_000;

/// What the processes of an attempt have used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Processor time of all its processes, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory of its processes when it was last sampled, in bytes; file pages that they share count once. None
    /// where it ended before it was sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The most memory of any sample, or of any one process, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// Bytes read from storage.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes written to storage.
    #[serde(default)]
    pub written_bytes: u64,
    /// The number of its processes when it was last sampled.
    #[serde(default)]
    pub processes: u32,
    /// The most processes of any sample.
    #[serde(default)]
    pub peak_processes: u32,
    /// The time between two points, in milliseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub every_ms: u64,
    /// The course: milliseconds since the attempt began, then processor time in milliseconds, memory in bytes, bytes read,
    /// bytes written and the number of processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[doc(hidden)]
    pub points: Vec<UsagePoint>,
}

/// One point of the course of an attempt. It is written as a list of numbers, in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "[u64; 6]", into = "[u64; 6]")]
pub struct UsagePoint {
    /// When, in milliseconds since the attempt began.
    pub at_ms: u64,
    /// Processor time until then, in milliseconds.
    pub cpu_ms: u64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Bytes read from storage until then.
    pub read_bytes: u64,
    /// Bytes written to storage until then.
    pub written_bytes: u64,
    /// The number of processes.
    pub processes: u32,
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for UsagePoint {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "UsagePoint".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <[u64; 6]>::json_schema(generator)
    }
}

impl From<[u64; 6]> for UsagePoint {
    fn from([at_ms, cpu_ms, memory_bytes, read_bytes, written_bytes, processes]: [u64; 6]) -> Self {
        let processes = u32::try_from(processes).unwrap_or(u32::MAX);
        Self { at_ms, cpu_ms, memory_bytes, read_bytes, written_bytes, processes }
    }
}

impl From<UsagePoint> for [u64; 6] {
    fn from(point: UsagePoint) -> Self {
        let UsagePoint { at_ms, cpu_ms, memory_bytes, read_bytes, written_bytes, processes } = point;
        [at_ms, cpu_ms, memory_bytes, read_bytes, written_bytes, processes.into()]
    }
}

impl UsagePoint {
    /// Two points as one: the later, with the more memory and processes of both.
    fn merged(self, later: Self) -> Self {
        let memory_bytes = self.memory_bytes.max(later.memory_bytes);
        Self { memory_bytes, processes: self.processes.max(later.processes), ..later }
    }
}

impl Usage {
    /// Takes a sample in. What only rises does not fall, though a process that has gone is sampled no longer.
    #[doc(hidden)]
    pub fn sample(&mut self, sample: UsagePoint) {
        self.cpu_ms = self.cpu_ms.max(sample.cpu_ms);
        self.read_bytes = self.read_bytes.max(sample.read_bytes);
        self.written_bytes = self.written_bytes.max(sample.written_bytes);
        self.memory_bytes = Some(sample.memory_bytes);
        self.peak_memory_bytes = self.peak_memory_bytes.max(Some(sample.memory_bytes));
        self.processes = sample.processes;
        self.peak_processes = self.peak_processes.max(sample.processes);
        self.every_ms = self.every_ms.max(POINT_EVERY_MS);
        let Self { cpu_ms, read_bytes, written_bytes, .. } = *self;
        let point = UsagePoint { cpu_ms, read_bytes, written_bytes, ..sample };
        match self.points.as_mut_slice() {
            // A little early is in time: a clock wakes no sampler to the millisecond.
            [.., before, last] if last.at_ms < before.at_ms + self.every_ms * 3 / 4 => *last = last.merged(point),
            _ => self.points.push(point),
        }
        if self.points.len() > POINTS {
            self.points = self.points.chunks(2).map(|pair| pair[0].merged(pair[pair.len() - 1])).collect();
            self.every_ms *= 2;
        }
    }

    /// Takes in what the attempt used until its end, as the kernel counts it for a parent: the most memory of one process,
    /// where that is known.
    pub fn end(&mut self, cpu_ms: u64, read_bytes: u64, written_bytes: u64, peak_memory_bytes: Option<u64>) {
        self.cpu_ms = self.cpu_ms.max(cpu_ms);
        self.read_bytes = self.read_bytes.max(read_bytes);
        self.written_bytes = self.written_bytes.max(written_bytes);
        self.peak_memory_bytes = self.peak_memory_bytes.max(peak_memory_bytes);
        self.peak_processes = self.peak_processes.max(1);
    }

    /// The sums, without the course.
    #[must_use]
    pub fn without_points(&self) -> Self {
        Self { every_ms: 0, points: Vec::new(), ..*self }
    }

    /// Whether there is anything to tell a reader of `before`: what an idle attempt uses is not written again and again.
    pub fn differs_from(&self, before: &Self) -> bool {
        let memory = |usage: &Self| usage.memory_bytes.unwrap_or_default();
        let sums = |usage: &Self| (usage.read_bytes, usage.written_bytes, usage.processes, usage.peak_processes);
        self.cpu_ms.abs_diff(before.cpu_ms) >= 10
            || memory(self).abs_diff(memory(before)) > memory(before) / 64
            || sums(self) != sums(before)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> UsagePoint {
        let memory_bytes = if seconds == 1_001 { 900 << 20 } else { 100 << 20 };
        UsagePoint {
            at_ms: seconds * 1_000,
            cpu_ms: seconds * 500,
            memory_bytes,
            processes: 2,
            ..UsagePoint::default()
        }
    }

    #[test]
    fn a_day_of_samples_is_a_few_kilobytes_and_keeps_its_peak() {
        let mut usage = Usage::default();
        (0..43_200).for_each(|number| usage.sample(at(number * 2 + 1)));
        assert!((POINTS / 2 - 1..=POINTS).contains(&usage.points.len()), "{}", usage.points.len());
        assert_eq!(usage.peak_memory_bytes, Some(900 << 20));
        assert_eq!(usage.points.iter().map(|point| point.memory_bytes).max(), Some(900 << 20));
        assert_eq!((usage.cpu_ms, usage.points.last().unwrap().cpu_ms), (86_399 * 500, 86_399 * 500));
        let gaps: Vec<u64> = usage.points.windows(2).map(|pair| pair[1].at_ms - pair[0].at_ms).collect();
        assert!(gaps.iter().all(|gap| *gap <= usage.every_ms * 2), "{} {gaps:?}", usage.every_ms);
        let json = serde_json::to_string(&usage).unwrap();
        assert!(json.len() < 8 << 10, "{} bytes", json.len());
        assert_eq!(serde_json::from_str::<Usage>(&json).unwrap(), usage);
    }

    #[test]
    fn sums_never_fall_and_an_idle_attempt_does_not_differ() {
        let mut usage = Usage::default();
        usage.sample(UsagePoint { cpu_ms: 700, written_bytes: 9, processes: 4, ..at(2) });
        usage.sample(UsagePoint { cpu_ms: 300, written_bytes: 0, processes: 1, ..at(4) });
        assert_eq!((usage.cpu_ms, usage.written_bytes), (700, 9));
        assert_eq!((usage.processes, usage.peak_processes), (1, 4));
        let before = usage.clone();
        usage.sample(UsagePoint { cpu_ms: 709, memory_bytes: 101 << 20, processes: 1, ..at(6) });
        assert!(!usage.differs_from(&before));
        usage.sample(UsagePoint { cpu_ms: 710, memory_bytes: 101 << 20, processes: 1, ..at(8) });
        assert!(usage.differs_from(&before));
    }

    #[test]
    fn usage_of_another_version_is_read_as_far_as_it_is_known() {
        let usage: Usage = serde_json::from_str(r#"{"cpu_ms":3,"colour":"red"}"#).unwrap();
        assert_eq!(usage, Usage { cpu_ms: 3, ..Usage::default() });
    }
}
