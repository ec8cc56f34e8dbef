//! `outlive top`: the runs of a registry on a terminal, as they change, with what can be done about them.
//!
//! It asks the table of operations for everything, as any surface does. What runs say is made harmless before it is drawn.

mod draw;

use std::time::Duration;

use clap::{ArgMatches, Command};
use outlive::error::Error;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::{Value, json};

use crate::cli::fail;
use crate::operation::Failure;
use crate::operations::TABLE;
use crate::settings::Context;

/// The verb.
pub const NAME: &str = "top";

/// How often it looks, and the most runs that it shows.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const MOST: usize = 1_000;
/// The most lines of output that it shows.
const LINES: usize = 500;

/// The command's flags and help.
pub fn command() -> Command {
    Command::new(NAME).about("Watch runs on this terminal, and cancel, resume or read them").after_help(
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
    Output(Vec<String>),
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
    Confirm(&'static str),
}

/// All that is on the screen.
#[derive(Debug, Default)]
struct Top {
    runs: Vec<Value>,
    view: View,
    mode: Mode,
    filter: String,
    all: bool,
    selected: usize,
    /// What was said last.
    said: String,
}

/// Watches until somebody quits.
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
            Ok(mut page) => {
                let wanted = self.filter.to_lowercase();
                let says = |run: &Value| run.to_string().to_lowercase().contains(&wanted);
                let runs = page["runs"].as_array_mut().map(std::mem::take).unwrap_or_default();
                self.runs = runs.into_iter().filter(says).collect();
            }
            Err(failure) => self.said = failure.message().into(),
        }
        self.selected = self.selected.min(self.runs.len().saturating_sub(1));
        if let (View::Output(_), Some(id)) = (&self.view, self.id()) {
            self.view = View::Output(written(context, &id));
        }
    }

    /// The run that is selected.
    fn run(&self) -> Option<&Value> {
        self.runs.get(self.selected)
    }

    fn id(&self) -> Option<String> {
        self.run().and_then(|run| run["id"].as_str()).map(str::to_owned)
    }

    /// Does what a key is for; true where that is to quit.
    fn quits(&mut self, key: KeyEvent, context: &Context) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return true;
        }
        match (&self.mode, key.code) {
            (Mode::Filter, KeyCode::Char(c)) => self.filter.push(c),
            (Mode::Filter, KeyCode::Backspace) => _ = self.filter.pop(),
            (Mode::Filter, KeyCode::Esc) => (self.filter, self.mode) = (String::new(), Mode::Move),
            (Mode::Filter, KeyCode::Enter) => self.mode = Mode::Move,
            (Mode::Filter, _) => {}
            (Mode::Confirm(operation), KeyCode::Char('y')) => {
                self.act(operation, context);
                self.mode = Mode::Move;
            }
            (Mode::Confirm(_), _) => (self.said, self.mode) = ("nothing was done".into(), Mode::Move),
            (Mode::Move, code) => return self.moves(code),
        }
        false
    }

    fn moves(&mut self, code: KeyCode) -> bool {
        self.said.clear();
        let last = self.runs.len().saturating_sub(1);
        match code {
            // Whoever wants out of a filter does not want out of everything.
            KeyCode::Esc if self.view == View::List && !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Char('q') | KeyCode::Esc if self.view == View::List => return true,
            KeyCode::Char('q') | KeyCode::Esc => self.view = View::List,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.selected = (self.selected + 1).min(last),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.selected = last,
            KeyCode::Enter | KeyCode::Char('l') if self.run().is_some() => self.view = View::Output(Vec::new()),
            KeyCode::Char('?') => self.view = View::Keys,
            KeyCode::Char('/') => self.mode = Mode::Filter,
            KeyCode::Char('a') => self.all = !self.all,
            KeyCode::Char('c') if self.run().is_some() => self.mode = Mode::Confirm("cancel"),
            KeyCode::Char('r') if self.run().is_some() => self.mode = Mode::Confirm("resume"),
            _ => {}
        }
        false
    }

    fn act(&mut self, operation: &'static str, context: &Context) {
        let Some(id) = self.id() else { return };
        self.said = match ask(context, operation, json!({ "runs": [id] })) {
            Ok(_) => format!("{operation}: done"),
            Err(failure) => failure.message().into(),
        };
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
    let told = |piece: &Value| match (piece["text"].as_str(), piece["left_out"].as_u64()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(bytes)) => format!("[{bytes} bytes are left out]\n"),
        (None, None) => "[bytes that are no text]\n".into(),
    };
    let text: String = page["pieces"].as_array().into_iter().flatten().map(told).collect();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(LINES)..].to_vec()
}
