//! What manifests name: every text in one that is a path below the place is needed.
//!
//! A manifest may be JSON, YAML or a SQLite database. Which of its fields name winners is not asked: whatever it mentions
//! is kept, so that an unknown field never costs a user their data.

use std::collections::BTreeSet;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::store::object::read_yaml;

/// The longest manifest that is read, in bytes.
pub(super) const LIMIT: usize = 64 << 20;

/// Paths below a place: each names an object, or everything below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManifestNames {
    paths: BTreeSet<String>,
    /// What is said of runs or attempts in other words than those that lead there.
    unclear: BTreeSet<String>,
    /// Whatever else is said. In a plain tree it may be the name of anything.
    said: BTreeSet<String>,
    /// Mentioned names as relative paths; the last components of absolute or foreign ones.
    said_paths: BTreeSet<String>,
    said_ends: BTreeSet<String>,
}

impl ManifestNames {
    /// The union of these names and those of another.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let both = |one: &BTreeSet<String>, other: &BTreeSet<String>| one.union(other).cloned().collect();
        Self {
            paths: both(&self.paths, &other.paths),
            unclear: both(&self.unclear, &other.unclear),
            said: both(&self.said, &other.said),
            said_paths: both(&self.said_paths, &other.said_paths),
            said_ends: both(&self.said_ends, &other.said_ends),
        }
    }

    /// Adds what leads nowhere by itself.
    pub fn insert_said(&mut self, text: &str) {
        let plain = plainly(text.split('?').next().unwrap_or_default());
        let parts: Vec<&str> = plain.split(['/', '\\']).filter(|part| !part.is_empty() && *part != ".").collect();
        let Some(end) = parts.last() else { return };
        if plain.starts_with('/') || plain.contains(':') || parts.contains(&"..") {
            self.said_ends.insert((*end).to_owned());
        } else {
            self.said_paths.insert(parts.join("/"));
        }
        self.said.insert(text.to_owned());
    }

    /// What leads nowhere by itself.
    pub fn said(&self) -> impl Iterator<Item = &str> {
        self.said.iter().map(String::as_str)
    }

    /// These names without the merely mentioned ones.
    #[must_use]
    pub fn unsaid(self) -> Self {
        Self { paths: self.paths, unclear: self.unclear, ..Self::default() }
    }

    /// Whether anything that is said may mean an object of a plain tree, by its path there: the path itself, a part of it,
    /// or another way to something of that name.
    pub fn may_mean(&self, within: &str) -> bool {
        let within = plainly(within);
        let parts: Vec<&str> = within.split('/').collect();
        let is_mentioned =
            |from: usize| (from..parts.len()).any(|to| self.said_paths.contains(&parts[from..=to].join("/")));
        parts.iter().any(|part| self.said_ends.contains(*part)) || (0..parts.len()).any(is_mentioned)
    }

    /// Adds what may name something, and is not understood.
    pub fn insert_unclear(&mut self, text: &str) {
        self.unclear.insert(text.to_owned());
    }

    /// What may name something, and is not understood.
    pub fn unclear(&self) -> impl Iterator<Item = &str> {
        self.unclear.iter().map(String::as_str)
    }

    fn of(paths: impl Iterator<Item = String>) -> Self {
        Self { paths: paths.collect(), ..Self::default() }
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &str) {
        self.paths.insert(path.trim_matches('/').to_owned());
    }

    /// Whether an object is named, or anything above it.
    pub fn cover(&self, path: &str) -> bool {
        let mut end = path.len();
        loop {
            if self.paths.contains(&path[..end]) {
                return true;
            }
            match path[..end].rfind('/') {
                Some(slash) => end = slash,
                None => return false,
            }
        }
    }

    /// Those that name anything in a tree, or the tree itself, and what else is said.
    #[must_use]
    pub fn within(&self, tree: &str) -> Self {
        let below = format!("{tree}/");
        let inside = self.paths.range(below.clone()..).take_while(|path| path.starts_with(&below)).cloned();
        let ends = tree.match_indices('/').map(|(slash, _)| slash).chain([tree.len()]);
        let around = ends.filter_map(|end| self.paths.get(&tree[..end])).cloned();
        Self { paths: inside.chain(around).collect(), unclear: BTreeSet::new(), ..self.clone() }
    }

    /// Those that name nothing in a tree.
    #[must_use]
    pub fn outside(&self, tree: &str) -> Self {
        let below = format!("{tree}/");
        Self::of(self.paths.iter().filter(|path| !path.starts_with(&below) && *path != tree).cloned())
    }

    /// Those that are in a tree, in full.
    pub fn below<'a>(&'a self, tree: &str) -> impl Iterator<Item = &'a str> {
        let below = format!("{tree}/");
        self.paths.range(below.clone()..).take_while(move |path| path.starts_with(&below)).map(String::as_str)
    }

    /// Whether anything in a tree is named, or the tree itself.
    pub fn names_any_below(&self, tree: &str) -> bool {
        let below = format!("{tree}/");
        self.cover(tree) || self.paths.range(below.clone()..).next().is_some_and(|path| path.starts_with(&below))
    }
}

/// Whether a text means something of a run or of an attempt, whatever the spelling. A template means none in particular.
pub(super) fn means_attempts(text: &str) -> bool {
    let said = plainly(text);
    let is_of_run = |part: &str| part.starts_with("run_id=") || part.starts_with("attempt=");
    !said.contains('{') && said.split(['/', '\\']).any(is_of_run)
}

/// A text in lower case, its escapes resolved.
pub(super) fn plainly(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().to_lowercase()
}

/// What is said in a manifest: all its texts, in the order they come.
pub(super) fn texts(bytes: &[u8], winners: Option<&str>) -> Result<Vec<String>, String> {
    if bytes.starts_with(b"SQLite format 3\0") {
        return in_database(bytes, winners);
    }
    // JSON is YAML, but for what is longer than any record.
    let value = match serde_json::from_slice::<Value>(bytes) {
        Ok(value) => value,
        Err(_) => read_yaml(bytes).map_err(|error| error.to_string())?,
    };
    match value.get("format_version") {
        None => {}
        Some(version) if version.as_i64() == Some(1) => {}
        Some(version) => return Err(format!("its `format_version` is {version}, and 1 is what is known")),
    }
    let mut texts = Vec::new();
    gather(&value, &mut texts);
    Ok(texts)
}

fn gather(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|item| gather(item, texts)),
        Value::Object(map) => {
            texts.extend(map.keys().cloned());
            map.values().for_each(|item| gather(item, texts));
        }
        _ => {}
    }
}

#[cfg(feature = "sqlite")]
fn in_database(bytes: &[u8], winners: Option<&str>) -> Result<Vec<String>, String> {
    use rusqlite::limits::Limit;
    use rusqlite::{Connection, MAIN_DB, OpenFlags};
    // The query comes with the record, which any writer may have made: it reads the manifest, and comes to an end.
    let words = winners.unwrap_or_default().to_ascii_lowercase();
    if ["recursive", "attach", "pragma", "randomblob", "zeroblob"].iter().any(|word| words.contains(word)) {
        return Err(format!("`{words}` does more than to read it"));
    }
    let shown = |error: rusqlite::Error| error.to_string();
    let mut database = Connection::open_in_memory_with_flags(OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(shown)?;
    database.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0).map_err(shown)?;
    database.deserialize_read_exact(MAIN_DB, bytes, bytes.len(), true).map_err(shown)?;
    let all = |sql: &str| -> Result<Vec<String>, rusqlite::Error> {
        let mut statement = database.prepare(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        let mut texts = Vec::new();
        while let Some(row) = rows.next()? {
            for column in 0..columns {
                texts.extend(row.get_ref(column)?.as_str().ok().map(str::to_owned));
            }
        }
        Ok(texts)
    };
    if let Some(query) = winners {
        return all(query).map_err(|error| format!("`{query}`: {error}"));
    }
    let mut texts = Vec::new();
    for table in all("SELECT name FROM sqlite_schema WHERE type = 'table'").map_err(shown)? {
        texts.extend(all(&format!("SELECT * FROM \"{}\"", table.replace('"', "\"\""))).map_err(shown)?);
    }
    Ok(texts)
}

#[cfg(not(feature = "sqlite"))]
fn in_database(_: &[u8], _: Option<&str>) -> Result<Vec<String>, String> {
    Err("it is a SQLite database, which this outlive was built without".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b08_attempt_1_is_not_attempt_10() {
        let mut names = ManifestNames::default();
        names.insert("shards/run_id=a/db=00000/attempt=1");
        assert!(names.cover("shards/run_id=a/db=00000/attempt=1/x"));
        assert!(!names.cover("shards/run_id=a/db=00000/attempt=10/x"));
        assert!(names.names_any_below("shards/run_id=a") && !names.names_any_below("shards/run_id=ab"));
        assert!(!names.names_any_below("shards/run_id=") && !names.cover("shards/run_id=a/db=00000"));
        assert_eq!(
            (names.within("shards/run_id=a"), names.within("shards/run_id=ab")),
            (names.clone(), ManifestNames::default())
        );
        assert_eq!(
            (names.outside("shards/run_id=a"), names.outside("shards/run_id=")),
            (ManifestNames::default(), names.clone())
        );
        names.insert("shards");
        assert!(names.within("shards/run_id=ab").cover("shards/run_id=ab/x"), "what is above it names it too");
    }

    #[test]
    fn whatever_may_mean_an_object_of_a_plain_tree_keeps_it() {
        let may = |text: &str, within: &str| {
            let mut names = ManifestNames::default();
            names.insert_said(text);
            names.may_mean(within)
        };
        for text in [
            "part-1",
            "a/part-1",
            "./a//part-1",
            "a",
            "PART-1",
            "part%2D1",
            "/mnt/out/part-1",
            "..\\part-1",
            "part-1?v=3",
        ] {
            assert!(may(text, "a/part-1"), "{text}");
        }
        for text in ["part-10", "part", "b/part-1", "", "/", "a/part-1/x", "part-1 is good"] {
            assert!(!may(text, "a/part-1"), "{text}");
        }
    }

    #[test]
    fn manifests_of_every_form_name_the_same() {
        let json = br#"{"shards":[{"db_url":"s3://b/p/x"}],"n":1}"#;
        let yaml = b"shards:\n- db_url: s3://b/p/x\nn: 1\n";
        for bytes in [&json[..], &yaml[..]] {
            assert!(texts(bytes, None).unwrap().contains(&"s3://b/p/x".to_owned()));
        }
        assert!(texts(b"format_version: 9\n", None).unwrap_err().contains("format_version"));
        assert!(texts(b"a: [", None).is_err() && texts(b"", None).is_err());
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn manifest_database_names_by_query_or_by_every_text() {
        let mut database = rusqlite::Connection::open_in_memory().unwrap();
        database.execute_batch("CREATE TABLE shards (db_url TEXT, n INT); INSERT INTO shards VALUES ('s3://b/p/x', 1), ('s3://b/p/y', 2)").unwrap();
        let bytes = database.serialize(rusqlite::MAIN_DB).unwrap().to_vec();
        assert_eq!(texts(&bytes, None).unwrap(), ["s3://b/p/x", "s3://b/p/y"]);
        assert_eq!(texts(&bytes, Some("SELECT db_url FROM shards WHERE n = 2")).unwrap(), ["s3://b/p/y"]);
        assert!(texts(&bytes, Some("SELECT nothing")).is_err());
        assert!(texts(&bytes[..600], None).is_err());
    }
}
