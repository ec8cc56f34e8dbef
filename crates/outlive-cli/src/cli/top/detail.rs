//! One run in `outlive top`: what is known of it, and its output, which scrolls and is searched.

use std::time::Duration;

use outlive::logs::show_bytes;
use outlive::time::show_duration;
use serde_json::{Value, json};

use super::{Meant, ask};
use crate::call::Context;
use crate::ui::plain;

/// The most lines of output that are kept.
pub const LINES: usize = 5_000;

/// A run that is looked at closely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail {
    /// The run.
    pub meant: Meant,
    /// What is known of it, a line each.
    pub about: Vec<(&'static str, String)>,
    /// How far it is, in hundredths.
    pub percent: Option<u64>,
    /// What it has written.
    pub log: Lines,
}

/// Lines that scroll, and are searched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    pub lines: Vec<String>,
    /// How many lines are below the screen: none while the end is followed.
    pub below: usize,
    /// What is searched for.
    pub search: String,
}

impl Lines {
    /// Takes these lines instead. What is on the screen stays there, unless the end is followed.
    pub fn replace(&mut self, lines: Vec<String>) {
        if self.below > 0 {
            self.below = (self.below + lines.len().saturating_sub(self.lines.len())).min(lines.len());
        }
        self.lines = lines;
    }

    /// Scrolls up, or down where it is less than none.
    pub fn scroll(&mut self, by: isize) {
        self.below = self.below.saturating_add_signed(by).min(self.lines.len().saturating_sub(1));
    }

    /// The lines that a screen with room for so many shows.
    pub fn shown(&self, room: usize) -> &[String] {
        let end = self.lines.len().saturating_sub(self.below).max(room.min(self.lines.len()));
        &self.lines[end.saturating_sub(room)..end]
    }

    /// Goes to the next line that matches, above the last one on the screen or below it. Answers with what is said of it.
    pub fn find(&mut self, up: bool) -> String {
        let wanted = self.search.to_lowercase();
        let hits: Vec<usize> =
            (0..self.lines.len()).filter(|at| self.lines[*at].to_lowercase().contains(&wanted)).collect();
        let last = self.lines.len().saturating_sub(self.below + 1);
        let next = match up {
            true => hits.iter().rev().find(|at| **at < last).or(hits.last()),
            false => hits.iter().find(|at| **at > last).or(hits.first()),
        };
        let Some(at) = next else { return format!("no line has `{}`", plain(&self.search)) };
        self.below = self.lines.len() - 1 - at;
        let number = hits.iter().position(|hit| hit == at).unwrap_or(0) + 1;
        format!("match {number} of {}, line {}", hits.len(), at + 1)
    }
}

impl Detail {
    /// A look at a run, before anything is known of it.
    pub fn of(meant: Meant) -> Self {
        Self { meant, about: Vec::new(), percent: None, log: Lines::default() }
    }

    /// Looks at the run again.
    pub fn look(&mut self, context: &Context) {
        match ask(context, "show", json!({ "run": self.meant.id })) {
            Ok(run) => (self.about, self.percent) = (about(&run), super::percent(&run)),
            Err(failure) => self.about = vec![("error", failure.message().to_owned())],
        }
        let lines = written(context, &self.meant.id);
        self.log.replace(lines);
    }
}

/// What is known of a run, as far as it is known.
fn about(run: &Value) -> Vec<(&'static str, String)> {
    let text = |name: &str| run[name].as_str().unwrap_or_default().to_owned();
    let bytes = |name: &str| run[name].as_u64().map(show_bytes);
    let cpu = run["cpu_ms"].as_u64().map(|ms| format!("{} of CPU", show_duration(Duration::from_millis(ms))));
    let memory = bytes("memory_bytes").map(|bytes| format!("{bytes} of memory"));
    let peak = bytes("peak_memory_bytes").map(|bytes| format!("{bytes} at its peak"));
    let processes = run["processes"].as_u64().map(|count| format!("processes: {count}"));
    let used: Vec<String> = [cpu, memory, peak, processes].into_iter().flatten().collect();
    let health = text("health");
    let state = if health.is_empty() || health == "healthy" { text("state") } else { health };
    let command: Vec<&str> = run["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let host = text("host");
    let lines = [
        ("state", state),
        ("why", text("reason")),
        ("used", used.join(", ")),
        ("command", command.join(" ")),
        ("host", host),
        ("progress", text("progress_message")),
    ];
    lines.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

/// The last lines of what a run has written.
fn written(context: &Context, id: &str) -> Vec<String> {
    let page = match ask(context, "output", json!({ "run": id, "lines": LINES, "limit": 1 << 20 })) {
        Ok(page) => page,
        Err(failure) => return vec![failure.message().to_owned()],
    };
    let shown = |piece: &Value| match (piece["text"].as_str(), piece["left_out"].as_u64()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(bytes)) => format!("[{bytes} bytes are left out]\n"),
        (None, None) => "[bytes that are no text]\n".into(),
    };
    let text: String = page["pieces"].as_array().into_iter().flatten().map(shown).collect();
    let lines: Vec<String> = text.split_terminator('\n').map(str::to_owned).collect();
    lines[lines.len().saturating_sub(LINES)..].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Lines {
        Lines { lines: (1..=count).map(|number| format!("line {number}")).collect(), ..Lines::default() }
    }

    #[test]
    fn the_end_is_followed_until_it_is_scrolled_away_from() {
        let mut log = lines(10);
        assert_eq!(log.shown(3), ["line 8", "line 9", "line 10"]);
        log.replace(lines(12).lines);
        assert_eq!(log.shown(2), ["line 11", "line 12"]);
        log.scroll(5);
        assert_eq!(log.shown(2), ["line 6", "line 7"]);
        log.replace(lines(20).lines);
        assert_eq!(log.shown(2), ["line 6", "line 7"]);
        log.scroll(-100);
        assert_eq!(log.shown(2), ["line 19", "line 20"]);
        log.scroll(1_000);
        assert_eq!(log.shown(3), ["line 1", "line 2", "line 3"]);
        assert_eq!(lines(2).shown(5), ["line 1", "line 2"]);
        assert!(Lines::default().shown(5).is_empty());
    }

    #[test]
    fn a_search_goes_from_match_to_match_and_around() {
        let mut log = lines(30);
        log.search = "NE 2".into();
        let said: Vec<String> = [true, true, false].map(|up| log.find(up)).into();
        assert_eq!(said, ["match 11 of 11, line 29", "match 10 of 11, line 28", "match 11 of 11, line 29"]);
        assert_eq!(log.shown(1), ["line 29"]);
        log.search = "line 7".into();
        assert_eq!((log.find(true), log.find(false)), ("match 1 of 1, line 7".into(), "match 1 of 1, line 7".into()));
        log.search = "nothing".into();
        assert_eq!(log.find(true), "no line has `nothing`");
    }
}
