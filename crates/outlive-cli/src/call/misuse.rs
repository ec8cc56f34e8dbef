//! A call whose words make no sense: what clap found, in the form of every other error, with what to type instead.

use std::error::Error;
use std::num::{IntErrorKind, ParseIntError};
use std::sync::OnceLock;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::ui::plain;

/// The verb that this process was called with.
static VERB: OnceLock<String> = OnceLock::new();
/// Verbs of other tools, and what they are called here.
const VERBS: [(&str, &str); 12] = [
    ("add", "queue add"),
    ("delete", "rm"),
    ("enqueue", "queue add"),
    ("kill", "cancel"),
    ("log", "logs"),
    ("ls", "ps"),
    ("remove", "rm"),
    ("restart", "rerun"),
    ("retry", "resume"),
    ("start", "run"),
    ("tail", "logs -f"),
    ("worker", "work"),
];
/// Flags of other tools or of earlier versions, the verbs that they are typed with, and what they are called there.
const FLAGS: [(&str, &[&str], &str); 4] = [
    ("--after", &["run", "queue add"], "`outlive queue add --needs RUN` waits for another run"),
    ("--after", &[], "`--cursor NEXT` is where a page begins"),
    ("--limit", &["run", "queue add"], "`--max-concurrent KEY=N` limits how many runs hold a key"),
    ("--retries", &["run", "queue add"], "`--retry N` retries after a failure"),
];

/// Notes the verb of this call, for hints.
pub fn note_verb(verb: &str) {
    let _ = VERB.set(verb.to_owned());
}

/// Where the arguments of the called verb are described; none where the call went without them.
pub fn where_described() -> Option<String> {
    VERB.get().map(|verb| described(verb))
}

fn described(verb: &str) -> String {
    format!("`outlive {verb} --help` describes its arguments")
}

/// What clap found wrong with a call.
#[derive(Debug)]
pub struct Misuse {
    /// What is wrong, in a line.
    pub message: String,
    /// How the verb is called, where clap says so.
    pub usage: Option<String>,
    /// What to type instead.
    pub hints: Vec<String>,
}

impl Misuse {
    /// What clap says of the call of this process.
    pub fn of(error: &clap::Error) -> Self {
        Self::of_verb(error, VERB.get().map(String::as_str))
    }

    /// What clap says of a call of a verb, which a server answers for many callers.
    pub fn of_verb(error: &clap::Error, verb: Option<&str>) -> Self {
        let text = error.render().to_string();
        let message = text.split("\n\n").next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        let number = error.source().and_then(|source| source.downcast_ref::<ParseIntError>());
        let message = match number {
            Some(number) => message.replace(&number.to_string(), no_number(number)),
            None => message,
        };
        let mut hints: Vec<String> = own_hint(error, verb).into_iter().collect();
        // The usage is of what clap takes the word for.
        let is_known = !hints.is_empty();
        if hints.is_empty() {
            hints.extend(text.lines().filter_map(|line| line.trim_start().strip_prefix("tip: ")).map(str::to_owned));
        }
        if hints.is_empty() {
            let verb = verb.filter(|_| error.kind() != ErrorKind::InvalidSubcommand);
            hints.push(
                verb.map(described).unwrap_or_else(|| "`outlive --help` lists the commands and their flags".into()),
            );
        }
        let mut parts = text.split("\n\n").filter(|part| part.starts_with("Usage: ") && !is_known);
        let usage = parts.next().map(|part| part.trim_end().to_owned());
        Self { message: message.trim_start_matches("error: ").to_owned(), usage, hints }
    }

    /// For people: the error, the usage, and the hints.
    pub fn text(&self) -> String {
        let usage = self.usage.iter().map(|usage| format!("{usage}\n"));
        let hints = self.hints.iter().map(|hint| format!("hint: {}\n", plain(hint)));
        format!("error: {}\n{}", plain(&self.message), usage.chain(hints).collect::<String>())
    }
}

/// Why a text is not the whole number that it should be.
fn no_number(error: &ParseIntError) -> &'static str {
    match error.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "the number is too large",
        _ => "it is not a whole number, such as 10",
    }
}

/// What an unknown verb or flag is called here.
fn own_hint(error: &clap::Error, verb: Option<&str>) -> Option<String> {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let sought = word(ContextKind::InvalidSubcommand)?;
            let (_, verb) = VERBS.into_iter().find(|(other, _)| *other == sought)?;
            Some(format!("`outlive {verb}` does that"))
        }
        ErrorKind::UnknownArgument => {
            let sought = word(ContextKind::InvalidArg)?.split('=').next()?;
            let is_meant = |verbs: &[&str]| verbs.is_empty() || verb.is_some_and(|verb| verbs.contains(&verb));
            let (.., hint) = FLAGS.into_iter().find(|(flag, verbs, _)| *flag == sought && is_meant(verbs))?;
            Some(hint.into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verb_of_another_tool_is_answered_with_ours() {
        let command = clap::Command::new("outlive").subcommand(clap::Command::new("cancel")).subcommand_required(true);
        let error = command.try_get_matches_from(["outlive", "kill"]).unwrap_err();
        assert_eq!(Misuse::of(&error).hints, ["`outlive cancel` does that"]);
    }
}
