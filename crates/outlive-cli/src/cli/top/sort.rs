//! The order in which `outlive top` lists runs.

use std::cmp::Reverse;

use serde_json::Value;

use super::draw::title_of;

/// By what runs are sorted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sort {
    /// The newest first, as they are listed.
    #[default]
    Newest,
    Name,
    State,
    /// The longest first.
    Time,
    /// The most processor time first.
    Cpu,
    /// The most memory first.
    Memory,
}

impl Sort {
    const ALL: [Self; 6] = [Self::Newest, Self::Name, Self::State, Self::Time, Self::Cpu, Self::Memory];

    /// The next one.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Name => "name",
            Self::State => "state",
            Self::Time => "time",
            Self::Cpu => "CPU",
            Self::Memory => "memory",
        }
    }

    /// Sorts runs. Those that are equal stay in their order.
    pub fn apply(self, runs: &mut [Value]) {
        let number = |field: &'static str| move |run: &Value| Reverse(run[field].as_u64().unwrap_or(0));
        match self {
            Self::Newest => {}
            Self::Name => runs.sort_by_key(title_of),
            Self::State => runs.sort_by_key(|run| run["state"].as_str().unwrap_or_default().to_owned()),
            Self::Time => runs.sort_by_key(number("duration_ms")),
            Self::Cpu => runs.sort_by_key(number("cpu_ms")),
            Self::Memory => {
                runs.sort_by_key(|run| Reverse(run["memory_bytes"].as_u64().or(run["peak_memory_bytes"].as_u64())));
            }
        }
    }
}
