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
use crate::ui::plain;
use crate::ui::run_view::{percent_of, progress_of};

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
            let mut state = TableState::new().with_selected((!top.runs.is_empty()).then_some(top.place));
            frame.render_stateful_widget(table, body, &mut state);
        }
        View::Output(meant, lines) => {
            let room = usize::from(body.height.saturating_sub(2));
            let last = &lines[lines.len().saturating_sub(room)..];
            let text: Vec<Line<'_>> = last.iter().map(|line| Line::raw(plain(line))).collect();
            frame.render_widget(
                Paragraph::new(text).block(Block::bordered().title(format!(" output of {} ", meant.title))),
                body,
            );
        }
        View::Keys => {
            let text: Vec<Line<'_>> = KEYS.iter().map(|(key, what)| Line::raw(format!("{key:<12}{what}"))).collect();
            frame.render_widget(Paragraph::new(text), body);
        }
    }
    let foot_line = match (&top.mode, top.said.as_str()) {
        (Mode::Filter, _) => format!("/{}▏  Enter keeps it, Esc drops it", plain(&top.filter)),
        (Mode::Confirm(operation, meant), _) => format!("{operation} {}? y: yes, any other key: no", meant.title),
        (Mode::Move, "") => "↑ ↓ move  Enter output  c cancel  r resume  / filter  a all  ? keys  q quit".into(),
        (Mode::Move, said) => plain(said),
    };
    frame.render_widget(Line::raw(foot_line), foot);
}

/// What a run is called, made harmless.
pub fn title_of(run: &Value) -> String {
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

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::cli::top::Meant;

    /// What is on a screen of so many columns, line by line.
    fn screen(top: &Top, columns: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, 8)).unwrap();
        terminal.draw(|frame| draw(top, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(usize::from(columns)).map(|line| line.concat()).collect()
    }

    /// Words of a stranger, and how each is shown.
    const HOSTILE: [(&str, &str); 6] = [
        ("a\u{1b}[31mred\u{1b}]0;title\u{7}", r"a\e[31mred\e]0;title\u{7}"),
        ("b\nsecond line", r"b\nsecond line"),
        ("c\u{0}nul\rback", r"c\u{0}nul\u{d}back"),
        ("d\u{202e}txt.exe\u{2066}", r"d\u{202e}txt.exe\u{2066}"),
        ("e\u{9b}31mc1\u{200b}none", r"e\u{9b}31mc1\u{200b}none"),
        ("f\u{e0041}tag", r"f\u{e0041}tag"),
    ];

    #[test]
    fn s05_s_11_s_12_whatever_runs_are_called_and_say_each_has_its_line_and_no_more() {
        let mut top = Top::default();
        let run = |(place, (word, _)): (usize, &(&str, &str))| json!({ "id": place.to_string(), "name": word, "state": "running" });
        top.take(HOSTILE.iter().enumerate().map(run).collect());
        for (place, (_, shown)) in HOSTILE.iter().enumerate() {
            top.select(place);
            let lines = screen(&top, 120);
            assert_eq!(lines.len(), 8);
            assert!(lines.iter().any(|line| line.starts_with(&format!("> {shown} "))), "{shown}: {lines:#?}");
            assert!(lines.iter().any(|line| line.contains("running")), "{lines:#?}");
        }
        for (word, shown) in HOSTILE {
            let meant = Meant::of(&json!({ "id": "1", "name": word })).unwrap();
            top.mode = Mode::Confirm("cancel", meant.clone());
            let foot = screen(&top, 120).pop().unwrap();
            assert!(foot.starts_with(&format!("cancel {shown}? y: yes")), "{foot}");
            (top.mode, top.said) = (Mode::Move, word.into());
            assert!(screen(&top, 120).pop().unwrap().starts_with(shown), "{shown}");
            top.view = View::Output(meant, vec![word.into()]);
            let lines = screen(&top, 120);
            assert!(
                lines[1].contains(&format!(" output of {shown} ")) && lines[2].starts_with(&format!("│{shown} ")),
                "{lines:#?}"
            );
            (top.view, top.filter) = (View::List, word.into());
            let head = screen(&top, 120).remove(0);
            assert!(head.trim_end().ends_with(&format!("; filter: {shown}")), "{head}");
            top.filter.clear();
        }
    }

    #[test]
    fn s05_s_12_a_name_of_a_megabyte_takes_no_more_than_its_cell() {
        let mut top = Top::default();
        for word in ["x".repeat(1 << 20), "\u{202e}".repeat(1 << 18), "宽".repeat(1 << 18), "e\u{301}".repeat(1 << 18)]
        {
            top.take(vec![json!({ "id": "1", "name": word, "state": "running", "reason": word })]);
            for columns in [10, 80, 200] {
                let lines = screen(&top, columns);
                assert_eq!(lines.len(), 8);
                assert!(columns < 80 || lines[2].contains("running"), "{lines:#?}");
            }
        }
    }
}
