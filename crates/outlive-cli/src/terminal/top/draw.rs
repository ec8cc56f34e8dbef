//! What `outlive top` looks like.

use std::time::Duration;

use outlive::time::show_duration;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table, TableState};
use serde_json::Value;

use super::{Mode, Top, View};
use crate::run_view::{percent_of, progress_of};
use crate::terminal::plain;

/// What each key is for, the most wanted first: a short screen shows no more.
const KEYS: [(&str, &str); 10] = [
    ("Up k", "the run above"),
    ("Down j", "the run below"),
    ("Enter l", "what it has written"),
    ("c", "cancel it"),
    ("r", "resume it"),
    ("/", "filter runs by what is known of them; Esc drops the filter"),
    ("a", "all runs, or those in flight and in need of attention"),
    ("q Esc", "back to the list, or quit"),
    ("Home End", "the first run, the last run"),
    ("Ctrl-C", "quit"),
];

/// Draws all of it.
pub fn draw(top: &Top, frame: &mut Frame<'_>) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)]).areas(frame.area());
    let shown = if top.all { "all runs" } else { "in flight and in need of attention" };
    let filter = if top.filter.is_empty() { String::new() } else { format!("; filter: {}", plain(&top.filter)) };
    let title = format!("outlive top: {} {shown}{filter}", top.runs.len());
    frame.render_widget(Line::styled(title, Style::new().add_modifier(Modifier::BOLD)), head);
    match &top.view {
        View::List => {
            let widths = [
                Constraint::Min(16),
                Constraint::Length(13),
                Constraint::Length(9),
                Constraint::Length(12),
                Constraint::Fill(2),
            ];
            let header = Row::new(["RUN", "STATE", "TIME", "PROGRESS", "REASON"]).style(Modifier::DIM);
            let table = Table::new(top.runs.iter().map(row), widths)
                .header(header)
                .row_highlight_style(Modifier::REVERSED)
                .highlight_symbol("> ");
            let mut state = TableState::new().with_selected((!top.runs.is_empty()).then_some(top.selected));
            frame.render_stateful_widget(table, body, &mut state);
        }
        View::Output(lines) => {
            let name = top.run().map(title_of).unwrap_or_default();
            let room = usize::from(body.height.saturating_sub(2));
            let last = &lines[lines.len().saturating_sub(room)..];
            let text: Vec<Line<'_>> = last.iter().map(|line| Line::raw(plain(line))).collect();
            frame.render_widget(
                Paragraph::new(text).block(Block::bordered().title(format!(" output of {name} "))),
                body,
            );
        }
        View::Keys => {
            let text: Vec<Line<'_>> = KEYS.iter().map(|(key, what)| Line::raw(format!("{key:<12}{what}"))).collect();
            frame.render_widget(Paragraph::new(text), body);
        }
    }
    let name = top.run().map(title_of).unwrap_or_default();
    let foot_line = match (&top.mode, top.said.as_str()) {
        (Mode::Filter, _) => format!("/{}▏  Enter keeps it, Esc drops it", plain(&top.filter)),
        (Mode::Confirm(operation), _) => format!("{operation} {name}? y: yes, any other key: no"),
        (Mode::Move, "") => "↑ ↓ move  Enter output  c cancel  r resume  / filter  a all  ? keys  q quit".into(),
        (Mode::Move, said) => plain(said),
    };
    frame.render_widget(Line::raw(foot_line), foot);
}

fn title_of(run: &Value) -> String {
    let command = || {
        let words = run["command"].as_array()?.iter().filter_map(Value::as_str);
        Some(words.collect::<Vec<_>>().join(" "))
    };
    let name = run["name"].as_str().or_else(|| run["step"].as_str()).map(str::to_owned);
    plain(&name.or_else(command).unwrap_or_else(|| run["kind"].as_str().unwrap_or_default().into()))
}

fn row(run: &Value) -> Row<'static> {
    let text = |name: &str| run[name].as_str().unwrap_or_default();
    let health = text("health");
    let word = if health.is_empty() || health == "healthy" { text("state") } else { health };
    let colour = match word {
        "running" | "succeeded" => Color::Green,
        "failed" | "dead" | "orphaned" => Color::Red,
        "interrupted" | "late" | "stalled" | "overdue" | "unresponsive" => Color::Yellow,
        _ => Color::Reset,
    };
    let time = run["duration_ms"].as_u64().map(|ms| show_duration(Duration::from_millis(ms))).unwrap_or_default();
    let (done, total) = (run["progress_done"].as_u64(), run["progress_total"].as_u64());
    let percent = percent_of(done, total).map(|percent| format!(" {percent}%")).unwrap_or_default();
    Row::new([
        Cell::new(title_of(run)),
        Cell::new(word.to_owned()).style(colour),
        Cell::new(time),
        Cell::new(format!("{}{percent}", progress_of(done, total))),
        Cell::new(plain(text("reason"))),
    ])
}
