//! What lists are searched by beside states and names: the columns `user`, `host` and `words`.
//!
//! They repeat what a run says, and one index in the order of time has them all. A search reads that narrow index, and of the
//! records only those that it finds. The columns may let too much through and never too little.

use rusqlite::Connection;

use super::rows::cached;
use super::schema::from_sqlite;
use crate::model::filter::Filter;
use crate::model::run::Run;
use crate::store::Error;

/// The longest text that is kept beside a record, in bytes. Of a run with a longer one the record itself is searched.
const LONGEST: usize = 2_000;
/// How many runs of some states may be looked at one by one. Where more stand so, the index of time is searched.
const FEW: i64 = 500;

/// The name, kind, labels and command of a run, in lower case and each on a line; none where they are long.
pub(super) fn words(run: &Run) -> Option<String> {
    let spec = &run.spec;
    let labels = spec.labels.iter().map(|(label, value)| format!("{label}={value}"));
    let argv = spec.command.iter().flat_map(|command| &command.argv).map(ToString::to_string);
    let mut text = String::from("\n");
    for word in spec.name.iter().chain([&spec.kind]).cloned().chain(labels).chain(argv) {
        text.push_str(&word.to_lowercase());
        text.push('\n');
        if text.len() > LONGEST {
            return None;
        }
    }
    Some(text)
}

/// What the words of a run contain that has a label.
pub(super) fn line_of_label(label: &str, value: &str) -> String {
    format!("\n{}\n", format!("{label}={value}").to_lowercase())
}

/// Whether a filter asks for what these columns say.
pub(super) fn is_asked(filter: &Filter) -> bool {
    filter.user.is_some() || filter.host.is_some() || filter.text.is_some() || !filter.labels.is_empty()
}

/// Whether few runs stand in the states of a filter.
pub(super) fn are_few(connection: &Connection, filter: &Filter) -> Result<bool, Error> {
    let Some(states) = &filter.states else { return Ok(false) };
    let sql = "SELECT ifnull(sum(runs), 0) FROM tally WHERE state = ?1";
    let mut found = 0;
    for state in states {
        found +=
            cached(connection, sql)?.query_row([state.as_str()], |row| row.get::<_, i64>(0)).map_err(from_sqlite)?;
    }
    Ok(found <= FEW)
}

#[cfg(test)]
mod tests;
