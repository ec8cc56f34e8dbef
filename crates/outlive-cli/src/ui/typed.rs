//! What a run is called in messages: the word that the user typed for it, else the beginning of its id.
//!
//! The library names runs by their ids. A person who typed a name should not have to compare 36 characters, so the command
//! remembers which word named which run and shows that.

use std::collections::BTreeMap;
use std::sync::Mutex;

use outlive::id::RunId;

use super::quote;

/// How many characters of an id are shown. Fewer would name several runs that were added in the same millisecond.
const SHORT: usize = 18;

/// The words that named runs in this call.
static TYPED: Mutex<BTreeMap<RunId, String>> = Mutex::new(BTreeMap::new());

/// Notes which word the user typed for a run. A word that may mean another run by the time a hint is typed, such as
/// `@last`, is not noted, and neither is one that a shell would need in quotes.
pub fn remember(id: RunId, word: &str) {
    if !word.starts_with('@') && quote(word.as_bytes()) == word {
        let mut typed = TYPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        typed.entry(id).or_insert_with(|| word.to_owned());
    }
}

/// The word that names a run in a message.
pub fn called(id: RunId) -> String {
    let typed = TYPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    typed.get(&id).cloned().unwrap_or_else(|| id.to_string()[..SHORT].to_owned())
}

/// A text with each of these runs called as [`called`] says.
pub fn in_words(text: &str, runs: &[RunId]) -> String {
    runs.iter().fold(text.to_owned(), |text, run| text.replace(&run.to_string(), &called(*run)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_is_called_as_it_was_typed_or_by_a_short_id() {
        let ids = ["01890000-0000-7000-8000-000000000001", "01890000-0000-7001-8000-000000000002"];
        let [named, unnamed]: [RunId; 2] = ids.map(|id| id.parse().unwrap());
        remember(named, "train");
        for word in ["@last", "two words", "-x y"] {
            remember(unnamed, word);
        }
        let text = format!("run `{named}` waits for run `{unnamed}`");
        assert_eq!(in_words(&text, &[named, unnamed]), "run `train` waits for run `01890000-0000-7001`");
    }
}
