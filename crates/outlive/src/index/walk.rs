//! Walks the index: which runs may match, in order, as the full-text index finds them.

use std::collections::BTreeSet;

use rusqlite::types::Value;

use super::database::from_sqlite;
use super::fts::{self, Chunk, Piece, TextQuery, is_live};
use super::query::{Query, SearchOrder};
use super::reader::{Filed, Reader};
use super::writer::first_place;
use crate::model::time::Timestamp;
use crate::store::Error;

/// The most words of the vocabulary that one word of a query is replaced by. What is part of more words than these is part of
/// most runs, so that a quick look meets them soon.
const MOST_TERMS: usize = 256;

impl Reader {
    /// Has `visit` called with the runs that match as they are indexed, in order, until it answers that it has enough.
    pub(super) fn walk(&self, query: &Query, mut visit: impl FnMut(Filed) -> Result<bool, Error>) -> Result<(), Error> {
        // Runs of one millisecond are listed by place, and are to be listed by id.
        let mut together: Vec<Filed> = Vec::new();
        let mut flush = |together: &mut Vec<Filed>| -> Result<bool, Error> {
            together.sort_by(|one, other| one.record.sort_key().cmp(&other.record.sort_key()));
            if query.order == SearchOrder::Newest {
                together.reverse();
            }
            for filed in together.drain(..) {
                if query.is_behind(&filed.record) && !visit(filed)? {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        let Some(expression) = self.expression(query)? else { return Ok(()) };
        let (sql, values) = statement(query, &expression);
        let mut statement = self.connection.prepare_cached(&sql).map_err(from_sqlite)?;
        let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(from_sqlite)?;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            let Some(filed) = self.filed(row)? else { continue };
            let is_apart = |other: &Filed| first_place(other.record.made()) != first_place(filed.record.made());
            if together.last().is_some_and(is_apart) && !flush(&mut together)? {
                return Ok(());
            }
            if self.may_match(query, &filed) {
                together.push(filed);
            }
        }
        flush(&mut together).map(|_| ())
    }

    /// Whether a run is meant, as far as that is known before it is looked at.
    fn may_match(&self, query: &Query, filed: &Filed) -> bool {
        let record = &filed.record;
        query.matches(record)
            || is_live(record) && {
                let wide = Query { statuses: BTreeSet::new(), text: None, ..query.clone() };
                wide.matches(record)
            }
    }

    /// What the full-text index is asked; none where nothing can be found. Empty where everything is.
    fn expression(&self, query: &Query) -> Result<Option<String>, Error> {
        let quoted = |word: String| format!("\"{word}\"");
        let any = |words: Vec<String>| match words.len() {
            1 => words.into_iter().next(),
            0 => None,
            _ => Some(format!("({})", words.join(" OR "))),
        };
        let mut all: Vec<String> = Vec::new();
        if let Some(repos) = &query.repos {
            let of_them = self.sources.values().filter(|source| repos.contains(&source.repo));
            let Some(sources) = any(of_them.map(|source| quoted(fts::source(source.id))).collect()) else {
                return Ok(None);
            };
            all.push(sources);
        }
        if !query.statuses.is_empty() {
            let statuses = query.statuses.iter().map(|status| quoted(fts::status(status.as_str())));
            all.extend(any(statuses.chain([quoted(fts::LIVE.into())]).collect()));
        }
        all.extend(query.app.iter().map(|app| quoted(fts::mark('a', &app.to_lowercase()))));
        all.extend(query.kind.iter().map(|kind| quoted(fts::mark('k', kind))));
        all.extend(query.labels.iter().map(|(label, value)| quoted(fts::label(label, value))));
        let mark = |archived| if archived { fts::ARCHIVED } else { fts::SHOWN };
        all.extend(query.archived.map(|archived| quoted(mark(archived).into())));
        for chunk in query.text.as_deref().map(TextQuery::new).unwrap_or_default().chunks() {
            match (self.chunk(chunk)?, chunk.by_id()) {
                (Part::Nothing, None) => return Ok(None),
                (Part::Nothing, Some(id)) => all.push(format!("({id})")),
                (Part::Any, _) => {}
                (Part::Of(words), None) => all.push(words),
                (Part::Of(words), Some(id)) => all.push(format!("({id} OR ({words}))")),
            }
        }
        Ok(Some(all.join(" AND ")))
    }

    /// What of the full-text index may have a part of a query.
    fn chunk(&self, chunk: &Chunk) -> Result<Part, Error> {
        let pieces = chunk.pieces();
        let quoted = |word: &str| format!("\"{word}\"");
        if pieces.is_empty() {
            let symbols = chunk.symbols().iter().map(|word| quoted(word)).collect::<Vec<_>>();
            return Ok(Part::Of(symbols.join(" AND ")));
        }
        let mut all = Vec::new();
        for piece in pieces {
            let terms = self.terms(piece)?;
            match terms.len() {
                0 => return Ok(Part::Nothing),
                1..=MOST_TERMS => {
                    let any = terms.iter().map(|term| quoted(term)).collect::<Vec<_>>().join(" OR ");
                    all.push(format!("({any})"));
                }
                _ => {}
            }
        }
        Ok(if all.is_empty() { Part::Any } else { Part::Of(all.join(" AND ")) })
    }

    /// The words of the vocabulary that have this word in them, one more than are used if there are too many.
    fn terms(&self, piece: Piece<'_>) -> Result<Vec<String>, Error> {
        let condition = match (piece.open_start, piece.open_end) {
            (false, false) => return Ok(vec![piece.word.into()]),
            (true, true) => "instr(term, ?1) > 0",
            (false, true) => "term >= ?1 AND substr(term, 1, length(?1)) = ?1",
            (true, false) => "substr(term, -length(?1)) = ?1",
        };
        let sql = format!("SELECT term FROM terms WHERE {condition} LIMIT {}", MOST_TERMS + 1);
        let mut statement = self.connection.prepare_cached(&sql).map_err(from_sqlite)?;
        statement.query_map([piece.word], |row| row.get(0)).and_then(Iterator::collect).map_err(from_sqlite)
    }
}

/// What of the full-text index may have a part of a query.
enum Part {
    /// No run.
    Nothing,
    /// Any run, as far as the index is worth asking.
    Any,
    /// Runs with these words.
    Of(String),
}

/// What finds the runs.
fn statement(query: &Query, expression: &str) -> (String, Vec<Value>) {
    let mut clauses = Vec::new();
    let mut values = Vec::new();
    let place = if expression.is_empty() {
        clauses.push("runs.gone = 0".to_owned());
        "runs.place"
    } else {
        clauses.push("words MATCH ?".to_owned());
        values.push(Value::Text(expression.into()));
        "words.rowid"
    };
    let (mut from, mut to) = (query.since.map(first_place), query.until.map(first_place));
    // The whole millisecond of the last page's end: what of it was listed is left out later.
    match (&query.after, query.order) {
        (Some(after), SearchOrder::Oldest) => from = from.max(Some(first_place(after.made()))),
        (Some(after), SearchOrder::Newest) => {
            let place = first_place(after.made());
            to = Some(to.map_or(place, |to| to.min(place)));
        }
        (None, _) => {}
    }
    // A millisecond has places up to the next.
    let whole = first_place(Timestamp::from_micros(1_000)) - 1;
    for (bound, value) in [(">=", from), ("<=", to.map(|to| to.saturating_add(whole)))] {
        if let Some(value) = value {
            clauses.push(format!("{place} {bound} ?"));
            values.push(Value::Integer(value));
        }
    }
    let tables = if expression.is_empty() { "runs" } else { "words CROSS JOIN runs ON runs.place = words.rowid" };
    let direction = if query.order == SearchOrder::Newest { "DESC" } else { "ASC" };
    let clauses = clauses.join(" AND ");
    let sql =
        format!("SELECT runs.source, runs.name, runs.body FROM {tables} WHERE {clauses} ORDER BY {place} {direction}");
    (sql, values)
}
