//! `outlive top`: the runs of a registry on a terminal, as they change, with what can be done about them.
//!
//! It asks the table of operations for everything, as any surface does. What runs say is made harmless before it is
//! drawn.

mod draw;

use std::time::Duration;

use clap::{ArgMatches, Command};
use outlive::error::Error;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::{Value, json};

use crate::call::{Context, Failure, fail};
use crate::operations::TABLE;

/// The verb.
pub const NAME: &str = "top";

/// How often it looks, and the most runs that it shows.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const MOST: usize = 1_000;
/// The most lines of output that it shows.
const LINES: usize = 500;

/// The command's flags and help.
pub fn command() -> Command {
    Command::new(NAME).about("Watch, cancel and resume runs in a full-screen view").after_help(
        "Examples:\n  outlive top\n\nKeys: Up and Down move, Enter output, c cancel, r resume, / filter, a all, ? keys, q quit",
    )
}

/// What is shown.
#[derive(Debug, Default, PartialEq, Eq)]
enum View {
    /// The runs.
    #[default]
    List,
    /// What one of them has written.
    Output(Meant, Vec<String>),
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
    /// To confirm an operation on a run.
    Confirm(&'static str, Meant),
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
    view: View,
    mode: Mode,
    filter: String,
    all: bool,
    /// The run that is selected, and where it is listed.
    selected: Option<Meant>,
    place: usize,
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
    let watched = Top::default().watch(&mut terminal, context);
    ratatui::restore();
    watched.map_or_else(|error| fail(&Error::Invalid(format!("the terminal failed: {error}")), json), |()| 0)
}

impl Top {
    fn watch(mut self, terminal: &mut ratatui::DefaultTerminal, context: &Context) -> std::io::Result<()> {
        loop {
            self.look(context);
            terminal.draw(|frame| draw::draw(&self, frame))?;
            // Several keys at once are one look.
            let mut patience = LOOK_EVERY;
            while event::poll(patience)? {
                patience = Duration::ZERO;
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && self.quits(key, context)
                {
                    return Ok(());
                }
            }
        }
    }

    fn look(&mut self, context: &Context) {
        match ask(context, "ps", json!({ "all": self.all, "limit": MOST })) {
            Ok(mut page) => self.take(page["runs"].as_array_mut().map(std::mem::take).unwrap_or_default()),
            Err(failure) => self.said = failure.message().into(),
        }
        if let View::Output(meant, lines) = &mut self.view {
            *lines = written(context, &meant.id);
        }
    }

    /// Lists these runs, as far as they are wanted. The selection stays with its run wherever that is listed, and where
    /// it is listed no longer, goes to whatever is in its place.
    fn take(&mut self, runs: Vec<Value>) {
        let wanted = self.filter.to_lowercase();
        let says = |run: &Value| run.to_string().to_lowercase().contains(&wanted);
        self.runs = runs.into_iter().filter(says).collect();
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
        if let (View::Output(meant, lines), Some(selected)) = (&mut self.view, &self.selected) {
            (*meant, *lines) = (selected.clone(), Vec::new());
        }
    }

    /// The run that keys are about: the one whose output is shown, or the one that is selected.
    fn meant(&self) -> Option<Meant> {
        if let View::Output(meant, _) = &self.view { Some(meant.clone()) } else { self.selected.clone() }
    }

    fn confirm(&mut self, operation: &'static str) {
        if let Some(meant) = self.meant() {
            self.mode = Mode::Confirm(operation, meant);
        }
    }

    /// Does what a key is for; true where that is to quit.
    fn quits(&mut self, key: KeyEvent, context: &Context) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return true;
        }
        match (&self.mode, key.code) {
            (Mode::Filter, KeyCode::Char(c)) => {
                self.filter.push(c);
                // The next key may be about what is left, and come before the next look.
                let runs = std::mem::take(&mut self.runs);
                self.take(runs);
            }
            (Mode::Filter, KeyCode::Backspace) => _ = self.filter.pop(),
            (Mode::Filter, KeyCode::Esc) => (self.filter, self.mode) = (String::new(), Mode::Move),
            (Mode::Filter, KeyCode::Enter) => self.mode = Mode::Move,
            (Mode::Filter, _) => {}
            (Mode::Confirm(operation, meant), KeyCode::Char('y')) => {
                self.said = act(context, operation, meant);
                self.mode = Mode::Move;
            }
            (Mode::Confirm(..), _) => (self.said, self.mode) = ("nothing was done".into(), Mode::Move),
            (Mode::Move, code) => return self.moves(code),
        }
        false
    }

    fn moves(&mut self, code: KeyCode) -> bool {
        self.said.clear();
        match code {
            // Leaving a filter does not leave everything.
            KeyCode::Esc if self.view == View::List && !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('q') | KeyCode::Esc if self.view == View::List => return true,
            KeyCode::Char('q') | KeyCode::Esc => self.view = View::List,
            KeyCode::Up | KeyCode::Char('k') => self.go_to(self.place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.go_to(self.place + 1),
            KeyCode::Home => self.go_to(0),
            KeyCode::End => self.go_to(usize::MAX),
            KeyCode::Enter | KeyCode::Char('l') => {
                if let Some(meant) = self.meant() {
                    self.view = View::Output(meant, Vec::new());
                }
            }
            KeyCode::Char('?') => self.view = View::Keys,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('a') => self.all = !self.all,
            KeyCode::Char('c') => self.confirm("cancel"),
            KeyCode::Char('r') => self.confirm("resume"),
            _ => {}
        }
        false
    }
}

/// Has something done to a run. Answers with what is said of it.
fn act(context: &Context, operation: &str, meant: &Meant) -> String {
    match ask(context, operation, json!({ "runs": [meant.id] })) {
        Ok(answer) => format!("{operation}: {}", became(&answer)),
        Err(failure) => failure.message().into(),
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
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(LINES)..].to_vec()
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
        for (key, operation) in [('c', "cancel"), ('r', "resume")] {
            for after in [&["new", "one", "two"][..], &["two"], &[]] {
                let mut top = top(&["one", "two"]);
                top.moves(KeyCode::Char(key));
                top.take(listed(after));
                let Mode::Confirm(asked, meant) = &top.mode else { panic!("{:?}", top.mode) };
                assert_eq!((*asked, meant.id.as_str(), meant.title.as_str()), (operation, "id of one", "one"));
            }
        }
    }

    #[test]
    fn output_is_of_the_run_it_was_asked_of_until_another_is_gone_to() {
        let mut top = top(&["one", "two"]);
        top.moves(KeyCode::Enter);
        for after in [&["new", "one", "two"][..], &["new", "two"]] {
            top.take(listed(after));
            assert_eq!(top.meant().unwrap().title, "one", "{after:?}");
        }
        // The run that is read is the one that is cancelled, listed or not.
        top.moves(KeyCode::Char('c'));
        assert!(matches!(&top.mode, Mode::Confirm("cancel", meant) if meant.title == "one"), "{:?}", top.mode);
        top.moves(KeyCode::Up);
        assert_eq!(top.meant().unwrap().title, "new");
    }
}
