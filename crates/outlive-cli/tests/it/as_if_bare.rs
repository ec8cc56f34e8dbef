//! `outlive run -- command` is as the bare command: the same is run both ways, and all that a user could see is
//! compared.

mod commands;
mod full_screen;
mod known;
mod piped;
mod place;
mod sessions;
mod terminal;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use self::piped::Case;
use self::place::Place;
use self::terminal::Session;

/// What was compared, and what came of it.
#[derive(Default)]
struct Comparison {
    compared: usize,
    differences: Vec<(String, Vec<String>)>,
    skipped: Vec<(String, String)>,
}

impl Comparison {
    fn add(&mut self, name: &str, outcome: Result<Vec<String>, String>) {
        match outcome {
            Ok(differences) => {
                self.compared += 1;
                if !differences.is_empty() {
                    self.differences.push((name.into(), differences));
                }
            }
            Err(reason) => self.skipped.push((name.into(), reason)),
        }
    }

    /// Prints all that differs, and fails where that is not known, or known and no longer so.
    fn holds(mut self, names: &[String], place: &Place, at_least: usize) {
        self.differences.sort();
        let mut wrong = Vec::new();
        for (name, differences) in &self.differences {
            let reason = known::reason(name).or(known::may_differ(name));
            println!("{name}{}", reason.map(|reason| format!(" (known: {reason})")).unwrap_or_default());
            differences.iter().for_each(|difference| println!("  - {difference}"));
            if reason.is_none() {
                wrong.push(format!("`{name}` differs"));
            }
        }
        for (name, reason) in &self.skipped {
            println!("skipped `{name}`: {reason}");
        }
        for name in names.iter().filter(|name| known::reason(name).is_some()) {
            let differs = self.differences.iter().any(|(differing, _)| differing == name);
            let skipped = self.skipped.iter().any(|(skipped, _)| skipped == name);
            if !differs && !skipped {
                wrong.push(format!("`{name}` does not differ any more: take it from KNOWN"));
            }
        }
        println!("{} commands compared, {} differ", self.compared, self.differences.len());
        // Else the same was compared with itself.
        let runs = place.runs();
        if runs < self.compared {
            wrong.push(format!("only {runs} runs are on record"));
        }
        assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
        assert!(
            self.compared + self.skipped.len() == names.len() && self.compared >= at_least,
            "too few: {}",
            self.compared
        );
    }
}

/// Compares each, a few at a time.
fn compare(names: &[String], one: impl Fn(usize) -> Result<Vec<String>, String> + Sync) -> Comparison {
    let (next, comparison) = (AtomicUsize::new(0), Mutex::new(Comparison::default()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from).min(4) + 1 {
            scope.spawn(|| {
                while let Some((at, name)) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, names.get(at)?)))
                {
                    let outcome = one(at);
                    comparison.lock().unwrap_or_else(PoisonError::into_inner).add(name, outcome);
                }
            });
        }
    });
    comparison.into_inner().unwrap()
}

fn is_installed(program: &str) -> bool {
    std::env::var("PATH").unwrap_or_default().split(':').any(|dir| Path::new(dir).join(program).is_file())
}

/// Compares commands without a terminal. `OUTLIVE_COMPARE` chooses those whose names have these words.
fn compare_commands(cases: Vec<Case>, at_least: usize) {
    let only = std::env::var("OUTLIVE_COMPARE").unwrap_or_default();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.name.contains(&only)).collect();
    let names: Vec<String> = cases.iter().map(|case| case.name.to_string()).collect();
    let place = Place::new();
    let comparison = compare(&names, |at| cases[at].compare(&place));
    comparison.holds(&names, &place, if only.is_empty() { at_least } else { 0 });
}

#[test]
fn f_30_as_if_bare_by_the_end_of_a_command() {
    compare_commands(commands::ends(), 70);
}

#[test]
fn as_if_bare_by_what_a_command_is_given_and_writes() {
    compare_commands(commands::stage_and_streams(), 80);
}

#[test]
fn as_if_bare_by_the_signals_of_a_command() {
    compare_commands(commands::signals(), 12);
}

/// Compares sessions at a terminal.
fn compare_sessions(is_chosen: impl Fn(&Session) -> bool, at_least: usize) {
    let sessions: Vec<&Session> = sessions::all().filter(|session| is_chosen(session)).collect();
    let names: Vec<String> = sessions.iter().map(|session| session.name.into()).collect();
    let place = Place::new();
    let comparison = compare(&names, |at| sessions[at].compare(&place));
    comparison.holds(&names, &place, at_least);
}

/// These sessions at a terminal are as if bare.
pub(crate) fn same_at_a_terminal(names: &[&str]) {
    compare_sessions(|session| names.contains(&session.name), names.len());
}

#[test]
fn as_if_bare_at_a_terminal() {
    let only = std::env::var("OUTLIVE_COMPARE").unwrap_or_default();
    compare_sessions(|session| session.name.contains(&only), if only.is_empty() { 40 } else { 0 });
}

#[test]
fn as_if_bare_by_full_screens() {
    let screens = full_screen::SCREENS;
    let names: Vec<String> = screens.iter().map(|screen| screen.name.into()).collect();
    let place = Place::new();
    let comparison = compare(&names, |at| screens[at].compare(&place));
    comparison.holds(&names, &place, 0);
}
