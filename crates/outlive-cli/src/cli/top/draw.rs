//! What `outlive top` looks like.

use std::collections::BTreeMap;
use std::time::Duration;

use outlive::host::read_proc;
use outlive::logs::show_bytes;
use outlive::time::show_duration;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{
    Block, Cell, LineGauge, Paragraph, Row, Scrollbar, ScrollbarOrientation, ScrollbarState, Table, TableState,
};
use serde_json::Value;

use super::detail::{Detail, Lines};
use super::sgr;
use super::sort::Sort;
use super::{Mode, Top, View, percent};
use crate::ui::plain;
use crate::ui::run_view::progress_of;

/// What each key is for, the most wanted first: a short screen shows no more.
const KEYS: [(&str, &str); 19] = [
    ("Up k", "the run above"),
    ("Down j", "the run below"),
    ("Enter l", "its details and what it has written"),
    ("c", "cancel it, or the marked runs"),
    ("r R A", "resume it, rerun it, adopt it, or the marked runs"),
    ("/", "filter runs, or search in output; Esc drops it"),
    ("a", "all runs, or those in flight and in need of attention"),
    ("q Esc", "back to the list, or quit"),
    ("Space", "mark a run; Esc drops the marks"),
    ("E", "rerun it with other arguments"),
    ("s", "sort by the next column"),
    ("d", "compare two marked runs"),
    (":", "go to a view: runs, queue, keys, workers, stats"),
    ("n N", "the match above, the match below"),
    ("PgUp PgDn", "a page of runs or of output"),
    ("Home End", "the first and the last run or line"),
    ("p", "pause: look at nothing again until p"),
    ("mouse", "a click selects, the wheel moves and scrolls"),
    ("Ctrl-C", "quit"),
];
/// On a screen that is as high as this there is room for gauges and details.
const HIGH: u16 = 14;
/// In so many columns there is room for what runs use.
const WIDE: u16 = 121;

/// Draws all of it.
pub fn draw(top: &Top, frame: &mut Frame<'_>) {
    let is_high = frame.area().height >= HIGH;
    let [head, gauges, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(if is_high { 1 } else { 0 }),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let title = Line::styled(heading(top), Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(title, head);
    if is_high {
        draw_gauges(top, frame, gauges);
    }
    match &top.view {
        View::List => draw_list(top, frame, body),
        View::Detail(detail) => draw_detail(top, detail, frame, body),
        View::Panel(panel) => draw_lines(top, &format!(" {} ", panel.title()), &panel.lines, frame, body),
        View::Keys => {
            let text: Vec<Line<'_>> = KEYS.iter().map(|(key, what)| Line::raw(format!("{key:<12}{what}"))).collect();
            frame.render_widget(Paragraph::new(text), body);
        }
    }
    frame.render_widget(Line::raw(footing(top)), foot);
}

fn heading(top: &Top) -> String {
    let shown = if top.all { "all runs" } else { "in flight and in need of attention" };
    let more = if top.more { "the first " } else { "" };
    let mut title = format!("outlive top: {more}{} {shown}", top.runs.len());
    if !top.filter.is_empty() {
        title.push_str(&format!("; filter: {}", plain(&top.filter)));
    }
    if top.sort != Sort::Newest {
        title.push_str(&format!("; by {}", top.sort.name()));
    }
    if !top.marked.is_empty() {
        title.push_str(&format!("; {} marked", top.marked.len()));
    }
    if top.paused {
        title.push_str("; paused");
    }
    title
}

fn footing(top: &Top) -> String {
    let search = match &top.view {
        View::Detail(detail) => &detail.log.search,
        View::Panel(panel) => &panel.lines.search,
        View::List | View::Keys => "",
    };
    match (&top.mode, top.said.as_str()) {
        (Mode::Filter, _) => format!("/{}▏  Enter keeps it, Esc drops it", plain(&top.filter)),
        (Mode::Search, _) => format!("/{}▏  Enter searches, n and N go on, Esc drops it", plain(search)),
        (Mode::Command(command), _) => format!(":{}▏  runs, queue, keys, workers, stats or q", plain(command)),
        (Mode::Arguments(meant, line), _) => {
            format!("rerun {} with: {}▏  Enter starts it, Esc drops it", meant.title, plain(line))
        }
        (Mode::Confirm(operation, runs), _) => match &runs[..] {
            [run] => format!("{operation} {}? y: yes, any other key: no", run.title),
            runs => format!("{operation} {} runs? y: yes, any other key: no", runs.len()),
        },
        (Mode::Move, "") => "↑ ↓ move  Enter detail  c cancel  r resume  / filter  s sort  ? keys  q quit".into(),
        (Mode::Move, said) => plain(said),
    }
}

/// How many runs there are of each word, and how much of the memory of this host they have.
fn draw_gauges(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let mut words: BTreeMap<&str, usize> = BTreeMap::new();
    top.runs.iter().for_each(|run| *words.entry(word_of(run)).or_default() += 1);
    let counts: Vec<String> = words.iter().map(|(word, count)| format!("{word} {count}")).collect();
    let memory: u64 = top.runs.iter().filter_map(|run| run["memory_bytes"].as_u64()).sum();
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Line::raw(counts.join("  ")), left);
    let Some(total) = memory_of_host() else { return };
    let label = format!("memory {} of {}", show_bytes(memory), show_bytes(total));
    let ratio = (memory as f64 / total.max(1) as f64).clamp(0.0, 1.0);
    frame.render_widget(
        LineGauge::default().label(label).ratio(ratio).filled_style(Style::new().fg(Color::Cyan)),
        right,
    );
}

fn memory_of_host() -> Option<u64> {
    let info = read_proc("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim().trim_end_matches(" kB");
    total.parse::<u64>().ok().map(|total| total.saturating_mul(1_024))
}

fn draw_list(top: &Top, frame: &mut Frame<'_>, area: Rect) {
    let is_wide = area.width >= WIDE;
    let mut widths = vec![
        Constraint::Min(16),
        Constraint::Length(13),
        Constraint::Length(9),
        Constraint::Length(if is_wide { 16 } else { 12 }),
    ];
    let mut headings = vec!["RUN", "STATE", "TIME", "PROGRESS"];
    if is_wide {
        widths.extend([Constraint::Length(9), Constraint::Length(10)]);
        headings.extend(["CPU", "MEMORY"]);
    }
    widths.push(Constraint::Fill(2));
    headings.push("REASON");
    let table = Table::new(top.runs.iter().map(|run| row(top, run, is_wide)), widths)
        .header(Row::new(headings).style(Modifier::DIM))
        .row_highlight_style(Modifier::REVERSED)
        .highlight_symbol("> ");
    let selected = (!top.runs.is_empty()).then_some(top.place);
    let mut state = TableState::new().with_offset(top.offset.get()).with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
    top.offset.set(state.offset());
    top.rows.set(Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area });
    scrollbar(frame, area, top.runs.len(), top.offset.get(), usize::from(area.height.saturating_sub(1)));
}

fn draw_detail(top: &Top, detail: &Detail, frame: &mut Frame<'_>, area: Rect) {
    let room =
        if area.height + 2 >= HIGH { u16::try_from(detail.about.len()).unwrap_or(0).min(area.height / 3) } else { 0 };
    let gauge = u16::from(room > 0 && detail.percent.is_some());
    let [above, progress, below] =
        Layout::vertical([Constraint::Length(room), Constraint::Length(gauge), Constraint::Min(1)]).areas(area);
    let about = detail.about.iter().map(|(label, value)| Line::raw(format!("{label:<10}{}", plain(value))));
    frame.render_widget(Paragraph::new(about.collect::<Vec<_>>()), above);
    if let Some(percent) = detail.percent.filter(|_| gauge > 0) {
        let gauge = LineGauge::default().label(format!("{percent:>3}%")).ratio(percent as f64 / 100.0);
        frame.render_widget(gauge.filled_style(Style::new().fg(Color::Green)), progress);
    }
    draw_lines(top, &format!(" output of {} ", detail.meant.title), &detail.log, frame, below);
}

fn draw_lines(top: &Top, title: &str, lines: &Lines, frame: &mut Frame<'_>, area: Rect) {
    let inside = Rect { y: area.y + 1, height: area.height.saturating_sub(2), ..area };
    top.rows.set(inside);
    let room = usize::from(inside.height);
    let text: Vec<Line<'_>> = lines.shown(room).iter().map(|line| sgr::line(line, &lines.search)).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(title.to_owned())), area);
    let first = lines.lines.len().saturating_sub(lines.below + room);
    scrollbar(frame, area, lines.lines.len(), first, room);
}

/// A bar that tells where in a list the screen is; none where all of it is there.
fn scrollbar(frame: &mut Frame<'_>, area: Rect, length: usize, first: usize, room: usize) {
    if length > room {
        let mut state = ScrollbarState::new(length.saturating_sub(room)).position(first);
        frame.render_stateful_widget(Scrollbar::new(ScrollbarOrientation::VerticalRight), area, &mut state);
    }
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

/// How a run stands, in one word.
fn word_of(run: &Value) -> &str {
    let text = |name: &str| run[name].as_str().unwrap_or_default();
    let health = text("health");
    if health.is_empty() || health == "healthy" { text("state") } else { health }
}

fn row(top: &Top, run: &Value, is_wide: bool) -> Row<'static> {
    let word = word_of(run);
    let colour = match word {
        "running" | "succeeded" => Color::Green,
        "failed" | "dead" | "orphaned" => Color::Red,
        "interrupted" | "late" | "stalled" | "overdue" | "unresponsive" => Color::Yellow,
        _ => Color::Reset,
    };
    let time = |field: &str| run[field].as_u64().map(|ms| show_duration(Duration::from_millis(ms))).unwrap_or_default();
    let done = progress_of(run["progress_done"].as_u64(), run["progress_total"].as_u64());
    let percent = percent(run).map(|percent| format!(" {percent}%")).unwrap_or_default();
    let is_marked = run["id"].as_str().is_some_and(|id| top.marked.contains(id));
    let mut cells = vec![
        Cell::new(format!("{}{}", if is_marked { "* " } else { "" }, title_of(run))),
        Cell::new(word.to_owned()).style(colour),
        Cell::new(time("duration_ms")),
        Cell::new(format!("{done}{percent}")),
    ];
    if is_wide {
        let memory = run["memory_bytes"].as_u64().or(run["peak_memory_bytes"].as_u64());
        cells.extend([Cell::new(time("cpu_ms")), Cell::new(memory.map(show_bytes).unwrap_or_default())]);
    }
    cells.push(Cell::new(plain(run["reason"].as_str().unwrap_or_default())));
    Row::new(cells)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::cli::top::Meant;
    use crate::cli::top::detail::{Detail, Lines};

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
    fn u05_s_11_s_12_each_run_has_one_line_whatever_its_name() {
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
            top.mode = Mode::Confirm("cancel", vec![meant.clone()]);
            let foot = screen(&top, 120).pop().unwrap();
            assert!(foot.starts_with(&format!("cancel {shown}? y: yes")), "{foot}");
            (top.mode, top.said) = (Mode::Move, word.into());
            assert!(screen(&top, 120).pop().unwrap().starts_with(shown), "{shown}");
            let log = Lines { lines: vec![word.into()], ..Lines::default() };
            top.view = View::Detail(Box::new(Detail { log, ..Detail::of(meant) }));
            let lines = screen(&top, 120);
            // Colours are kept there, and what was drawn over is gone.
            let written = match word.as_bytes()[0] {
                b'a' => "ared".into(),
                b'c' => "back".into(),
                _ => shown.to_owned(),
            };
            assert!(
                lines[1].contains(&format!(" output of {shown} ")) && lines[2].starts_with(&format!("│{written} ")),
                "{lines:#?}"
            );
            (top.view, top.filter) = (View::List, word.into());
            let head = screen(&top, 120).remove(0);
            assert!(head.trim_end().ends_with(&format!("; filter: {shown}")), "{head}");
            top.filter.clear();
        }
    }

    #[test]
    fn u05_s_12_a_name_of_a_megabyte_takes_no_more_than_its_cell() {
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
