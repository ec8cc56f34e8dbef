//! Views of `outlive top` that show what a verb prints, and look again as runs change.

use outlive::error::Error;

use super::detail::Lines;
use crate::call::{Context, Form};
use crate::operations::TABLE;

/// The views that are named behind a colon, with the verb that each shows.
const NAMED: [(&str, &str); 4] =
    [("queue", "queue list"), ("keys", "keys"), ("workers", "workers"), ("stats", "stats")];

/// What a verb prints.
#[derive(Debug, PartialEq, Eq)]
pub struct Panel {
    verb: &'static str,
    words: Vec<String>,
    /// What it printed.
    pub lines: Lines,
}

impl Panel {
    /// The view that is named behind a colon.
    pub fn named(name: &str, context: &Context) -> Option<Self> {
        let (_, verb) = NAMED.iter().find(|(panel, _)| *panel == name)?;
        Some(Self::of(verb, Vec::new(), context))
    }

    /// How two runs differ.
    pub fn of_difference(left: String, right: String, context: &Context) -> Self {
        Self::of("diff", vec![left, right], context)
    }

    fn of(verb: &'static str, words: Vec<String>, context: &Context) -> Self {
        let mut panel = Self { verb, words, lines: Lines::default() };
        panel.look(context);
        panel
    }

    /// The verb that it shows.
    pub fn title(&self) -> &'static str {
        self.verb
    }

    /// Has the verb print again.
    pub fn look(&mut self, context: &Context) {
        self.lines.replace(self.printed(context));
    }

    fn printed(&self, context: &Context) -> Vec<String> {
        let Some(operation) = TABLE.iter().find(|operation| operation.name == self.verb) else { return Vec::new() };
        let words = (operation.command)().no_binary_name(true).try_get_matches_from(&self.words);
        let words = words.map_err(|error| Error::Invalid(error.to_string()));
        match words.and_then(|words| (operation.call)(&words, context, Form::Text)) {
            Ok(answer) => answer.text.lines().map(str::to_owned).collect(),
            Err(error) => vec![error.to_string()],
        }
    }
}
