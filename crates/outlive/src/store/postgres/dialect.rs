//! The dialect: what the engine behind the PostgreSQL protocol can do, in one place.
//!
//! PostgreSQL has every feature. Distributed SQL engines lack some (docs/engines.md): the URL that makes a registry names
//! them, the registry keeps their names, and every process that opens it goes by those. Two processes that went by
//! different dialects would lock keys in different ways and not meet.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::store::Error;

/// How many rows stand for keys where there are no advisory locks; the layout makes them.
const KEY_PLACES: u32 = 4096;

/// A feature of PostgreSQL that another engine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Feature {
    /// `pg_advisory_xact_lock`: a key is locked by its name. Without, by a row that it shares with few others.
    AdvisoryLocks,
    /// `COPY … FROM STDIN (FORMAT binary)`: many new runs at once. Without, they are inserted by statements.
    Copy,
    /// `ctid`: where a row is. Without, beats do not keep to their page, and counts have ids.
    Ctid,
    /// `LISTEN` and `NOTIFY`. Without, workers poll, and learn of cancel requests with their next heartbeat.
    Listen,
    /// Declarative partitions. Without, old history is deleted row by row.
    Partitions,
    /// Triggers of statements with transition tables. Without, runs are counted by reading them.
    TransitionTables,
    /// `VACUUM` and storage parameters. Without, tables are left to the engine.
    Vacuum,
}

impl Feature {
    /// All of them, in the order of their names.
    pub const ALL: [Self; 7] = [
        Self::AdvisoryLocks,
        Self::Copy,
        Self::Ctid,
        Self::Listen,
        Self::Partitions,
        Self::TransitionTables,
        Self::Vacuum,
    ];

    /// What it is called in a URL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdvisoryLocks => "advisory-locks",
            Self::Copy => "copy",
            Self::Ctid => "ctid",
            Self::Listen => "listen",
            Self::Partitions => "partitions",
            Self::TransitionTables => "transition-tables",
            Self::Vacuum => "vacuum",
        }
    }

    fn bit(self) -> u8 {
        1 << (self as u8)
    }
}

/// The features that an engine lacks; none of PostgreSQL's by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dialect {
    lacks: u8,
}

impl Dialect {
    /// The dialect without the features that `names` lists, separated by commas.
    pub(super) fn without(names: &str) -> Result<Self, String> {
        let mut lacks = 0;
        for name in names.split(',').filter(|name| !name.is_empty()) {
            let known = Feature::ALL.into_iter().find(|feature| feature.name() == name);
            let all = || Feature::ALL.map(Feature::name).join(", ");
            let why = || format!("`without={names}`: `{name}` is none of {}", all());
            lacks |= known.ok_or_else(why)?.bit();
        }
        Ok(Self { lacks })
    }

    /// The dialect that a registry says it was made with.
    pub(super) fn recorded(names: &str) -> Result<Self, Error> {
        Self::without(names)
            .map_err(|why| Error::Unsupported(format!("the registry was made by a newer outlive: {why}")))
    }

    pub(super) fn has(self, feature: Feature) -> bool {
        self.lacks & feature.bit() == 0
    }

    /// The lines of a script that this dialect has: all but those between `--: with FEATURE` and `--: end` of a feature that
    /// is lacking, and those between `--: without FEATURE` and `--: end` of one that is not.
    pub(super) fn kept(self, script: &str) -> String {
        let mut kept = String::with_capacity(script.len());
        let mut is_kept = true;
        for line in script.lines() {
            match line.strip_prefix("--: ") {
                Some("end") => is_kept = true,
                Some(mark) => is_kept = self.is_meant(mark),
                None if is_kept => {
                    kept.push_str(line);
                    kept.push('\n');
                }
                None => {}
            }
        }
        kept
    }

    fn is_meant(self, mark: &str) -> bool {
        let named = |name: &str| Feature::ALL.into_iter().find(|feature| feature.name() == name);
        match mark.split_once(' ') {
            Some(("with", name)) => named(name).is_some_and(|feature| self.has(feature)),
            Some(("without", name)) => named(name).is_some_and(|feature| !self.has(feature)),
            _ => false,
        }
    }

    /// A statement as this dialect says it.
    pub(super) fn said(self, sql: &str) -> String {
        if self.has(Feature::Ctid) {
            return sql.to_owned();
        }
        sql.replace("@.room(worker.ctid)", "NULL::text").replace("@.room(NULL)", "NULL::text")
    }

    /// The row that is locked in place of a key. Keys of two names may have the same: then one waits for the other, or is
    /// passed over, for as long as a transaction takes.
    pub(super) fn key_place(name: &str) -> i32 {
        let digest = Sha256::digest(name);
        let drawn = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        i32::try_from(drawn % KEY_PLACES).unwrap_or_default()
    }
}

impl fmt::Display for Dialect {
    /// The names of what it lacks, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking = Feature::ALL.into_iter().filter(|feature| !self.has(*feature));
        f.write_str(&lacking.map(Feature::name).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::schema::LAYOUT;

    #[test]
    fn names_are_read_back_as_written() {
        let all = Feature::ALL.map(Feature::name).join(",");
        let lacks_all = Dialect::without(&all).unwrap();
        assert_eq!(lacks_all.to_string(), all);
        assert!(Feature::ALL.into_iter().all(|feature| !lacks_all.has(feature)));
        assert_eq!(Dialect::without("").unwrap(), Dialect::default());
        let listen = Dialect::without("listen").unwrap();
        assert!(!listen.has(Feature::Listen) && listen.has(Feature::Ctid));
        assert!(Dialect::without("listen,foreign-keys").unwrap_err().contains("`foreign-keys` is none of"));
    }

    #[test]
    fn marks_of_the_layout_are_known_and_closed() {
        let mut is_open = false;
        for mark in LAYOUT.lines().filter_map(|line| line.strip_prefix("--: ")) {
            assert_eq!(mark == "end", is_open, "`{mark}`");
            is_open = mark != "end";
            let name = mark.split_once(' ').map_or(mark, |(_, name)| name);
            assert!(mark == "end" || Feature::ALL.iter().any(|feature| feature.name() == name), "`{mark}`");
        }
        assert!(!is_open);
    }

    #[test]
    fn a_layout_has_nothing_of_what_is_lacking() {
        let has = |without: &str, text: &str| Dialect::without(without).unwrap().kept(LAYOUT).contains(text);
        for (feature, text) in [
            ("advisory-locks", "advisory"),
            ("ctid", "ctid"),
            ("ctid", "tid)"),
            ("listen", "pg_notify"),
            ("partitions", "PARTITION"),
            ("transition-tables", "REFERENCING"),
            ("vacuum", "vacuum"),
        ] {
            assert!(!has(feature, text), "{feature}: `{text}`");
        }
        assert!(["ctid", "pg_notify", "PARTITION", "REFERENCING", "vacuum"].iter().all(|text| has("", text)));
        assert!(!has("", "key_lock") && has("advisory-locks", "key_lock"));
    }
}
