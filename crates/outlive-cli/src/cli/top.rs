//! `outlive top`: the runs of a registry on a terminal, as they change, with what can be done about them.
//!
//! It asks the table of operations for everything, as any surface does. What runs say is made harmless before it is
//! drawn.

mod detail;
mod draw;
mod list;
mod panel;
mod sgr;
mod sort;
mod words;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use clap::{ArgMatches, Command};
use outlive::error::Error;
use outlive::time::{Clock, SystemClock};
use ratatui::crossterm::event::{
    self, DisableMouseCapture, EnableMouseCapture, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton,
    MouseEvent, MouseEventKind,
};
use ratatui::crossterm::execute;
use ratatui::layout::Rect;
use serde_json::{Value, json};

use self::detail::{Detail, Lines};
use self::panel::Panel;
use self::sort::Sort;
use crate::call::{Context, Failure, fail};
use crate::operations::TABLE;
use crate::ui::quote;
use crate::ui::run_view::percent_of;

/// The verb.
pub const NAME: &str = "top";

/// How often it looks, unless that costs too much.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// It looks no more often than after so many times what the last look took.
const SHARE: u32 = 100;
/// How many lines a turn of the wheel scrolls.
const WHEEL: isize = 3;

/// The command's flags and help.
pub fn command() -> Command {
    Command::new(NAME).about("Watch, cancel and resume runs in a full-screen view").after_help(
        "Examples:\n  outlive top\n\nKeys: Up and Down move, Enter detail, Space mark, c cancel, r resume, R rerun,\n      \
         E rerun with other arguments, A adopt, d compare two marked runs, s sort,\n      \
         / filter or search, : views (queue, keys, workers, stats),\n      \
         p pause, a all, ? keys, q quit",
    )
}

/// What is shown.
#[derive(Debug, Default, PartialEq, Eq)]
enum View {
    /// The runs.
    #[default]
    List,
    /// One of them.
    Detail(Box<Detail>),
    /// What a verb that reads prints.
    Panel(Panel),
    /// What each key is for.
    Keys,
}

/// What keys are for.
#[derive(Debug, Default, PartialEq, Eq)]
enum Mode {
    /// To move and to act.
    #[default]
    Move,
    /// To say which runs are wanted.
    Filter,
    /// To say what is searched for in output.
    Search,
    /// To name a view.
    Command(String),
    /// To say with which arguments a run is made again.
    Arguments(Meant, String),
    /// To confirm an operation on runs.
    Confirm(&'static str, Vec<Meant>),
}

/// A selected run. Runs come and go between two looks, so it is never selected by its place in the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Meant {
    id: String,
    /// What it is called, also when it is listed no longer.
    title: String,
}

impl Meant {
    fn of(run: &Value) -> Option<Self> {
        Some(Self { id: run["id"].as_str()?.to_owned(), title: draw::title_of(run) })
    }

    fn is(&self, run: &Value) -> bool {
        run["id"].as_str() == Some(&self.id)
    }
}

/// All that is on the screen.
#[derive(Debug, Default)]
struct Top {
    runs: Vec<Value>,
    /// There are more than are listed.
    more: bool,
    view: View,
    mode: Mode,
    filter: String,
    sort: Sort,
    all: bool,
    /// Nothing is looked at again.
    paused: bool,
    /// The ids of the runs that are marked.
    marked: BTreeSet<String>,
    /// The run that is selected, and where it is listed.
    selected: Option<Meant>,
    place: usize,
    /// The first run on the screen, and where the rows are.
    offset: Cell<usize>,
    rows: Cell<Rect>,
    /// What was said last.
    said: String,
}

/// Watches until the user quits.
pub fn run(_: &ArgMatches, context: &Context, json: bool) -> u8 {
    use std::io::IsTerminal;
    if json || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let error = "`top` is for a terminal; `outlive ps --json` says the same to programs";
        return fail(&Error::Invalid(error.into()), json);
    }
    let mut terminal = ratatui::init();
    // A terminal without a mouse is used by keys.
    let _ = execute!(std::io::stdout(), EnableMouseCapture);
    let watched = Top::default().watch(&mut terminal, context);
    let _ = execute!(std::io::stdout(), DisableMouseCapture);
    ratatui::restore();
    watched.map_or_else(|error| fail(&Error::Invalid(format!("the terminal failed: {error}")), json), |()| 0)
}

impl Top {
    fn watch(mut self, terminal: &mut ratatui::DefaultTerminal, context: &Context) -> std::io::Result<()> {
        loop {
            let began = SystemClock.awake();
            if !self.paused {
                self.look(context);
            }
            terminal.draw(|frame| draw::draw(&self, frame))?;
            // Several keys at once are one look.
            let mut timeout = LOOK_EVERY.max(SystemClock.awake().saturating_sub(began) * SHARE);
            while event::poll(timeout)? {
                timeout = Duration::ZERO;
                match event::read()? {
                    Event::Key(key) if key.kind == KeyEventKind::Press && self.quits(key, context) => return Ok(()),
                    Event::Mouse(mouse) => self.points(mouse),
                    _ => {}
                }
            }
        }
    }

    fn look(&mut self, context: &Context) {
        match list::list(context, self.all) {
            Ok((runs, more)) => {
                self.more = more;
                self.take(runs);
            }
            Err(failure) => self.said = failure.message().into(),
        }
        match &mut self.view {
            View::Detail(detail) => detail.look(context),
            View::Panel(panel) => panel.look(context),
            View::List | View::Keys => {}
        }
    }

    /// Lists these runs, as far as they are wanted. The selection stays with its run wherever that is listed, and where
    /// it is listed no longer, goes to whatever is in its place.
    fn take(&mut self, runs: Vec<Value>) {
        let wanted = self.filter.to_lowercase();
        self.runs = runs.into_iter().filter(|run| says(run, &wanted)).collect();
        self.sort.apply(&mut self.runs);
        let found = self.selected.as_ref().and_then(|meant| self.runs.iter().position(|run| meant.is(run)));
        self.select(found.unwrap_or(self.place));
    }

    /// Selects the run at a place of the list, or the last.
    fn select(&mut self, place: usize) {
        self.place = place.min(self.runs.len().saturating_sub(1));
        self.selected = self.runs.get(self.place).and_then(Meant::of);
    }

    /// Goes to another run; what is shown of a run is then shown of that one.
    fn go_to(&mut self, place: usize) {
        self.select(place);
        if let (View::Detail(detail), Some(selected)) = (&mut self.view, &self.selected) {
            **detail = Detail::of(selected.clone());
        }
    }

    /// The run that keys are about: the one that is looked at closely, or the one that is selected.
    fn meant(&self) -> Option<Meant> {
        if let View::Detail(detail) = &self.view { Some(detail.meant.clone()) } else { self.selected.clone() }
    }

    /// Asks before something is done to the marked runs, or to the one that is meant.
    fn confirm(&mut self, operation: &'static str) {
        let is_marked = |run: &&Value| run["id"].as_str().is_some_and(|id| self.marked.contains(id));
        let marked: Vec<Meant> = self.runs.iter().filter(is_marked).filter_map(Meant::of).collect();
        let runs =
            if self.view == View::List && !marked.is_empty() { marked } else { self.meant().into_iter().collect() };
        if !runs.is_empty() {
            self.mode = Mode::Confirm(operation, runs);
        }
    }

    /// Shows how two marked runs differ, or the marked one and the selected one; the older is on the left.
    fn compare(&mut self, context: &Context) {
        let is_meant = |run: &&Value| {
            let is_selected = self.marked.len() == 1 && self.selected.as_ref().is_some_and(|meant| meant.is(run));
            is_selected || run["id"].as_str().is_some_and(|id| self.marked.contains(id))
        };
        let mut meant: Vec<&Value> = self.runs.iter().filter(is_meant).collect();
        meant.sort_by_key(|run| run["created_at"].as_str());
        let ids: Vec<String> = meant.into_iter().filter_map(Meant::of).map(|meant| meant.id).collect();
        match <[String; 2]>::try_from(ids) {
            Ok([left, right]) => self.view = View::Panel(Panel::of_difference(left, right, context)),
            Err(_) => self.said = "mark two runs with Space to compare them".into(),
        }
    }

    /// Asks with which arguments the run that is meant is made again; those that it had are there to be changed.
    fn ask_for_arguments(&mut self, context: &Context) {
        let Some(meant) = self.meant() else { return };
        match ask(context, "show", json!({ "run": meant.id })) {
            Ok(run) if run["command"].is_array() => {
                let words = run["command"].as_array().into_iter().flatten().filter_map(Value::as_str).skip(1);
                let line = words.map(|word| quote(word.as_bytes())).collect::<Vec<_>>().join(" ");
                self.mode = Mode::Arguments(meant, line);
            }
            Ok(_) => self.said = "it has no command".into(),
            Err(failure) => self.said = failure.message().into(),
        }
    }

    /// Makes a run again with these arguments.
    fn rerun_with(&mut self, context: &Context, meant: &Meant, line: &str) {
        let Some(args) = words::words(line) else {
            self.said = "a quote is not closed; nothing was done".into();
            return;
        };
        self.said = match ask(context, "rerun", json!({ "run": meant.id, "args": args, "force": true })) {
            Ok(made) => format!("rerun: {}", made["id"].as_str().unwrap_or("done")),
            Err(failure) => failure.message().into(),
        };
        self.mode = Mode::Move;
    }

    /// What scrolls and is searched.
    fn lines(&mut self) -> Option<&mut Lines> {
        match &mut self.view {
            View::Detail(detail) => Some(&mut detail.log),
            View::Panel(panel) => Some(&mut panel.lines),
            View::List | View::Keys => None,
        }
    }

    /// Does what a key is for; true where that is to quit.
    fn quits(&mut self, key: KeyEvent, context: &Context) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return true;
        }
        match (&mut self.mode, key.code) {
            (Mode::Filter, KeyCode::Char(c)) => {
                self.filter.push(c);
                // The next key may be about what is left, and come before the next look.
                let runs = std::mem::take(&mut self.runs);
                self.take(runs);
            }
            (Mode::Filter, KeyCode::Backspace) => _ = self.filter.pop(),
            (Mode::Filter, KeyCode::Esc) => (self.filter, self.mode) = (String::new(), Mode::Move),
            (Mode::Search, code) => self.searches(code),
            (Mode::Command(command), KeyCode::Char(c)) => command.push(c),
            (Mode::Command(command), KeyCode::Backspace) => _ = command.pop(),
            (Mode::Command(command), KeyCode::Enter) => {
                let command = std::mem::take(command);
                self.mode = Mode::Move;
                return self.goes_to_view(command.trim(), context);
            }
            (Mode::Arguments(_, line), KeyCode::Char(c)) => line.push(c),
            (Mode::Arguments(_, line), KeyCode::Backspace) => _ = line.pop(),
            (Mode::Arguments(meant, line), KeyCode::Enter) => {
                let (meant, line) = (meant.clone(), line.clone());
                self.rerun_with(context, &meant, &line);
            }
            (Mode::Arguments(..), KeyCode::Esc) => (self.said, self.mode) = ("nothing was done".into(), Mode::Move),
            (Mode::Arguments(..), _) => {}
            (Mode::Filter, KeyCode::Enter) | (Mode::Command(_), KeyCode::Esc) => self.mode = Mode::Move,
            (Mode::Filter | Mode::Command(_), _) => {}
            (Mode::Confirm(operation, runs), KeyCode::Char('y')) => {
                self.said = act(context, operation, runs);
                self.mode = Mode::Move;
                self.marked.clear();
            }
            (Mode::Confirm(..), _) => (self.said, self.mode) = ("nothing was done".into(), Mode::Move),
            (Mode::Move, KeyCode::Char('d')) => self.compare(context),
            (Mode::Move, KeyCode::Char('E')) => self.ask_for_arguments(context),
            (Mode::Move, code) => return self.moves(code),
        }
        false
    }

    fn searches(&mut self, code: KeyCode) {
        let Some(lines) = self.lines() else { return };
        let said = match code {
            KeyCode::Char(c) => {
                lines.search.push(c);
                return;
            }
            KeyCode::Backspace => {
                lines.search.pop();
                return;
            }
            KeyCode::Enter if !lines.search.is_empty() => lines.find(true),
            _ => {
                lines.search.clear();
                String::new()
            }
        };
        (self.said, self.mode) = (said, Mode::Move);
    }

    /// Goes to the view that was named; true where that is none.
    fn goes_to_view(&mut self, name: &str, context: &Context) -> bool {
        match Panel::named(name, context) {
            Some(panel) => self.view = View::Panel(panel),
            None if name == "q" || name == "quit" => return true,
            None if name.is_empty() || name == "runs" => self.view = View::List,
            None => self.said = format!("there is no view `{name}`: runs, queue, keys, workers, stats"),
        }
        false
    }

    fn moves(&mut self, code: KeyCode) -> bool {
        self.said.clear();
        let page = usize::from(self.rows.get().height).max(1);
        match (code, self.lines()) {
            (KeyCode::PageUp, Some(lines)) => lines.scroll(page.cast_signed()),
            (KeyCode::PageDown, Some(lines)) => lines.scroll(-page.cast_signed()),
            (KeyCode::Home, Some(lines)) => lines.scroll(isize::MAX),
            (KeyCode::End, Some(lines)) => lines.below = 0,
            (KeyCode::Char('/'), Some(lines)) => {
                lines.search.clear();
                self.mode = Mode::Search;
            }
            (KeyCode::Char(key @ ('n' | 'N')), Some(lines)) if !lines.search.is_empty() => {
                self.said = lines.find(key == 'n');
            }
            (KeyCode::PageUp, None) => self.go_to(self.place.saturating_sub(page)),
            (KeyCode::PageDown, None) => self.go_to(self.place + page),
            (KeyCode::Home, None) => self.go_to(0),
            (KeyCode::End, None) => self.go_to(usize::MAX),
            _ => return self.acts(code),
        }
        false
    }

    fn acts(&mut self, code: KeyCode) -> bool {
        match code {
            // Leaving a filter does not leave everything.
            KeyCode::Esc if self.view == View::List && !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc if self.view == View::List && !self.marked.is_empty() => self.marked.clear(),
            KeyCode::Char('q') | KeyCode::Esc if self.view == View::List => return true,
            KeyCode::Char('q') | KeyCode::Esc => self.view = View::List,
            KeyCode::Up | KeyCode::Char('k') => self.go_to(self.place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go_to(self.place + 1),
            KeyCode::Enter | KeyCode::Char('l') => {
                if let Some(meant) = self.meant() {
                    self.view = View::Detail(Box::new(Detail::of(meant)));
                }
            }
            KeyCode::Char(' ') => self.mark(),
            KeyCode::Char('?') => self.view = View::Keys,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char(':') => self.mode = Mode::Command(String::new()),
            KeyCode::Char('a') => self.all = !self.all,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                self.sort = self.sort.next();
                let runs = std::mem::take(&mut self.runs);
                self.take(runs);
            }
            KeyCode::Char('c') => self.confirm("cancel"),
            KeyCode::Char('r') => self.confirm("resume"),
            KeyCode::Char('R') => self.confirm("rerun"),
            KeyCode::Char('A') => self.confirm("adopt"),
            _ => {}
        }
        false
    }

    /// Marks the selected run, or no longer, and goes to the next.
    fn mark(&mut self) {
        if let (View::List, Some(Meant { id, .. })) = (&self.view, self.selected.clone()) {
            if !self.marked.remove(&id) {
                self.marked.insert(id);
            }
            self.go_to(self.place + 1);
        }
    }

    /// Does what the mouse is for: to select, and to scroll.
    fn points(&mut self, mouse: MouseEvent) {
        let (rows, by) = (
            self.rows.get(),
            match mouse.kind {
                MouseEventKind::ScrollUp => WHEEL,
                MouseEventKind::ScrollDown => -WHEEL,
                _ => 0,
            },
        );
        if let (Some(lines), true) = (self.lines(), by != 0) {
            return lines.scroll(by);
        }
        match (&self.view, mouse.kind) {
            (View::List, MouseEventKind::ScrollUp) => self.go_to(self.place.saturating_sub(WHEEL.unsigned_abs())),
            (View::List, MouseEventKind::ScrollDown) => self.go_to(self.place + WHEEL.unsigned_abs()),
            (View::List, MouseEventKind::Down(MouseButton::Left)) if (rows.y..rows.bottom()).contains(&mouse.row) => {
                self.go_to(self.offset.get() + usize::from(mouse.row - rows.y));
            }
            _ => {}
        }
    }
}

/// Whether a run says these words in what people know of it.
fn says(run: &Value, wanted: &str) -> bool {
    const FIELDS: [&str; 8] = ["id", "name", "kind", "state", "health", "reason", "host", "step"];
    let has = |value: &Value| value.as_str().is_some_and(|text| text.to_lowercase().contains(wanted));
    wanted.is_empty()
        || FIELDS.iter().any(|field| has(&run[*field]))
        || run["command"].as_array().into_iter().flatten().any(has)
        || run["labels"].as_object().into_iter().flatten().any(|(key, value)| key.contains(wanted) || has(value))
}

/// How far a run is, in hundredths.
fn percent(run: &Value) -> Option<u64> {
    percent_of(run["progress_done"].as_u64(), run["progress_total"].as_u64())
}

/// Has something done to runs. Answers with what is said of it.
fn act(context: &Context, operation: &str, runs: &[Meant]) -> String {
    let ids: Vec<&str> = runs.iter().map(|run| run.id.as_str()).collect();
    let answers: Vec<Result<Value, Failure>> = match operation {
        // They take one run at a time.
        "rerun" | "adopt" => ids.iter().map(|id| ask(context, operation, json!({ "run": id }))).collect(),
        _ => vec![ask(context, operation, json!({ "runs": ids }))],
    };
    let failed = answers.iter().find_map(|answer| answer.as_ref().err()).map(|failure| failure.message().to_owned());
    match (failed, &answers[..], runs) {
        (Some(message), ..) => message,
        (None, [Ok(answer)], [_]) => format!("{operation}: {}", became(answer)),
        (None, answers, runs) => {
            let outcomes = answers.iter().flatten().flat_map(|answer| answer["runs"].as_array().into_iter().flatten());
            let requested = outcomes.filter(|run| run["outcome"] == "cancel_requested").count();
            let left = if requested > 0 { format!(", {requested} of them requested") } else { String::new() };
            format!("{operation}: {} runs{left}", runs.len())
        }
    }
}

/// What became of a call. A run that is asked to stop has not stopped yet.
fn became(answer: &Value) -> String {
    let run = &answer["runs"][0];
    match run["outcome"].as_str() {
        None | Some("cancelled") => "done".into(),
        Some("cancel_requested") => format!("requested{}", run["note"].as_str().unwrap_or_default()),
        Some(_) => format!("it is {}", run["state"].as_str().unwrap_or_default()),
    }
}

fn ask(context: &Context, name: &str, input: Value) -> Result<Value, Failure> {
    let operation = TABLE.iter().find(|operation| operation.name == name);
    let operation = operation.ok_or_else(|| Failure::from(Error::Invalid(format!("there is no `{name}`"))))?;
    let answer = (operation.call_json)(input, context)?;
    Ok(serde_json::from_str(&answer.text).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({ "id": format!("id of {name}"), "name": name })).collect()
    }

    fn top(names: &[&str]) -> Top {
        let mut top = Top::default();
        top.take(listed(names));
        top
    }

    fn selected(top: &Top) -> Option<&str> {
        top.selected.as_ref().map(|meant| meant.title.as_str())
    }

    #[test]
    fn what_is_selected_stays_so_when_runs_arrive_and_leave() {
        let mut top = top(&["one", "two", "three"]);
        top.moves(KeyCode::Down);
        for (names, place) in [(&["new", "one", "two", "three"][..], 2), (&["three", "two"], 1), (&["two"], 0)] {
            top.take(listed(names));
            assert_eq!((selected(&top), top.place), (Some("two"), place), "{names:?}");
        }
        // Where it is gone, whatever is in its place.
        top.take(listed(&["other"]));
        assert_eq!(selected(&top), Some("other"));
        top.take(Vec::new());
        assert_eq!((selected(&top), top.meant()), (None, None));
    }

    #[test]
    fn what_is_confirmed_is_done_to_the_run_that_was_asked_about() {
        for (key, operation) in [('c', "cancel"), ('r', "resume"), ('R', "rerun"), ('A', "adopt")] {
            for after in [&["new", "one", "two"][..], &["two"], &[]] {
                let mut top = top(&["one", "two"]);
                top.moves(KeyCode::Char(key));
                top.take(listed(after));
                let Mode::Confirm(asked, runs) = &top.mode else { panic!("{:?}", top.mode) };
                let [meant] = &runs[..] else { panic!("{runs:?}") };
                assert_eq!((*asked, meant.id.as_str(), meant.title.as_str()), (operation, "id of one", "one"));
            }
        }
    }

    #[test]
    fn output_is_of_the_selected_run_until_another_is_selected() {
        let mut top = top(&["one", "two"]);
        top.moves(KeyCode::Enter);
        for after in [&["new", "one", "two"][..], &["new", "two"]] {
            top.take(listed(after));
            assert_eq!(top.meant().unwrap().title, "one", "{after:?}");
        }
        // The run that is read is the one that is cancelled, listed or not.
        top.moves(KeyCode::Char('c'));
        assert!(matches!(&top.mode, Mode::Confirm("cancel", runs) if runs[0].title == "one"), "{:?}", top.mode);
        top.moves(KeyCode::Up);
        assert_eq!(top.meant().unwrap().title, "new");
    }

    #[test]
    fn marked_runs_are_acted_on_together_and_only_while_listed() {
        let mut top = top(&["one", "two", "three"]);
        for key in [' ', ' '] {
            top.moves(KeyCode::Char(key));
        }
        assert_eq!(selected(&top), Some("three"));
        top.take(listed(&["new", "two", "three"]));
        top.moves(KeyCode::Char('c'));
        let Mode::Confirm("cancel", runs) = &top.mode else { panic!("{:?}", top.mode) };
        assert_eq!(runs.iter().map(|run| run.title.as_str()).collect::<Vec<_>>(), ["two"]);
        top.mode = Mode::Move;
        top.moves(KeyCode::Esc);
        assert!(top.marked.is_empty(), "Esc drops the marks before it quits");
    }

    #[test]
    fn a_filter_is_about_what_people_know_of_runs() {
        let run =
            json!({ "id": "1", "name": "Train", "labels": { "team": "search" }, "can": ["cancel"], "duration_ms": 5 });
        for word in ["train", "sear", "team"] {
            assert!(says(&run, word), "{word}");
        }
        for word in ["cancel", "duration", "null", "labels"] {
            assert!(!says(&run, word), "{word} is how it is written down");
        }
    }

    #[test]
    fn runs_are_sorted_and_the_selection_stays_with_its_run() {
        let mut top = Top::default();
        let run = |name: &str, memory: Option<u64>| json!({ "id": name, "name": name, "memory_bytes": memory });
        top.take(vec![run("b", Some(5)), run("c", None), run("a", Some(9))]);
        let order = |top: &Top| top.runs.iter().map(draw::title_of).collect::<String>();
        assert_eq!(order(&top), "bca");
        top.moves(KeyCode::Char('s'));
        assert_eq!((order(&top), selected(&top)), ("abc".into(), Some("b")));
        while top.sort != Sort::Memory {
            top.moves(KeyCode::Char('s'));
        }
        assert_eq!((order(&top), selected(&top)), ("abc".into(), Some("b")));
        top.moves(KeyCode::Char('s'));
        assert_eq!(top.sort, Sort::Newest);
    }
}
