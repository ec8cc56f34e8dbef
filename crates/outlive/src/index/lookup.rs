//! Finds the runs that a name means: in the index, and where it does not tell, in the sources themselves.

use super::changes::read_now;
use super::database::from_sqlite;
use super::query::{Query, SearchOrder};
use super::reader::{Filed, Indexed, Reader, SearchHit};
use super::record::{Freshness, Kind};
use super::report::Named;
use super::source::Reading;
use super::sources::{SourceAddress, is_repo};
use crate::store::Error;

/// The shortest beginning of an id that means a run.
const SHORTEST: usize = 2;

/// What a name means.
#[derive(Debug, Default)]
pub struct Lookup {
    /// The runs, the best sort of match alone.
    pub runs: Vec<SearchHit>,
    /// Runs of this name that cannot be understood, with the reason.
    pub unreadable: Vec<Named>,
}

impl Reader {
    /// The runs that `text` may mean, by id, by directory, by the beginning of an id or by name; of all repositories, or of
    /// those whose path ends with `repo`. A run that is not indexed yet is found by its directory, or, where nothing else
    /// is meant, by a look at every tree.
    pub(super) fn find(
        &self,
        known: &[SourceAddress],
        (text, repo): (&str, Option<&str>),
        limit: usize,
    ) -> Result<Lookup, Error> {
        let after_last = format!("{text}\u{10ffff}");
        let columns = "SELECT source, name, body FROM runs";
        let (by_id, beginning) = (
            format!("{columns} WHERE run_id = ?1 ORDER BY place DESC"),
            format!("{columns} WHERE run_id >= ?1 AND run_id < ?2 ORDER BY place DESC LIMIT 1000"),
        );
        let mut lookup = Lookup::default();
        self.look_for(&mut lookup, repo, &by_id, &[text])?;
        self.in_sources(&mut lookup, known, (text, repo));
        if lookup.is_empty() && text.chars().count() >= SHORTEST {
            self.look_for(&mut lookup, repo, &beginning, &[text, &after_last])?;
        }
        if lookup.is_empty() {
            self.by_title(&mut lookup, (text, repo), limit)?;
        }
        if lookup.is_empty() {
            self.by_looking(&mut lookup, known, (text, repo))?;
        }
        lookup.runs.truncate(limit);
        Ok(lookup)
    }

    fn is_of(&self, source: i64, repo: Option<&str>) -> bool {
        let indexed = self.sources.get(&source);
        indexed.is_some_and(|indexed| repo.is_none_or(|repo| is_repo(&indexed.repo, repo)))
    }

    fn look_for(&self, lookup: &mut Lookup, repo: Option<&str>, sql: &str, values: &[&str]) -> Result<(), Error> {
        let mut found = Vec::new();
        let mut statement = self.connection.prepare_cached(sql).map_err(from_sqlite)?;
        let mut rows = statement.query(rusqlite::params_from_iter(values)).map_err(from_sqlite)?;
        while let Some(row) = rows.next().map_err(from_sqlite)? {
            found.extend(self.filed(row)?);
        }
        found.retain(|filed: &Filed| self.is_of(filed.source, repo));
        found.iter().for_each(|filed| lookup.add(self.verify(filed), &filed.name));
        Ok(())
    }

    /// Runs in directories of this name: of trees that are indexed, and of trees that are not.
    fn in_sources(&self, lookup: &mut Lookup, known: &[SourceAddress], (text, repo): (&str, Option<&str>)) {
        let is_meant = |address: &&SourceAddress| repo.is_none_or(|repo| address.is_repo(repo));
        let indexed = self.indexed(known);
        for (address, indexed) in known.iter().zip(indexed).filter(|(address, _)| is_meant(address)) {
            if address.kind != Kind::CoolWorkflow {
                continue;
            }
            let is_there = |listed: &SearchHit| {
                listed.record.repo == address.repo()
                    && listed.record.run_dir.as_ref().is_some_and(|dir| ends(dir, text))
            };
            if !lookup.runs.iter().any(is_there) {
                self.in_source(lookup, (address, indexed), text);
            }
        }
    }

    fn in_source(&self, lookup: &mut Lookup, (address, indexed): (&SourceAddress, Option<&Indexed>), name: &str) {
        let filed = indexed.and_then(|indexed| self.by_name(indexed, name));
        if let Some(filed) = filed {
            return lookup.add(self.verify(&filed), &filed.name);
        }
        let Ok(source) = address.open(Some(&self.home)) else { return };
        if !source.has(name) {
            return;
        }
        match source.read(name) {
            Reading::Read(record, ..) => lookup.add(read_now(*record, &*source, true), name),
            Reading::Unreadable(reason, _) => lookup.add_unreadable(&address.repo(), name, reason),
            Reading::Gone | Reading::Away(_) => {}
        }
    }

    /// What is on file of the run in this directory, if it could be understood.
    fn by_name(&self, indexed: &Indexed, name: &str) -> Option<Filed> {
        let sql = "SELECT runs.source, runs.name, runs.body FROM files JOIN runs ON runs.place = files.place
                   WHERE files.source = ?1 AND files.name = ?2";
        let mut statement = self.connection.prepare_cached(sql).ok()?;
        let mut rows = statement.query(rusqlite::params![indexed.id, name]).ok()?;
        rows.next().ok().flatten().and_then(|row| self.filed(row).ok().flatten())
    }

    fn by_title(&self, lookup: &mut Lookup, (text, repo): (&str, Option<&str>), limit: usize) -> Result<(), Error> {
        let named = Query { text: Some(text.into()), order: SearchOrder::Newest, ..Query::default() };
        self.walk(&named, |filed| {
            if filed.record.title == text && self.is_of(filed.source, repo) {
                lookup.add(self.verify(&filed), &filed.name);
            }
            Ok(lookup.runs.len() < limit)
        })
    }

    /// Looks at the trees, for runs that are not indexed as they are. Registries are asked by the caller that opens them.
    fn by_looking(
        &self,
        lookup: &mut Lookup,
        known: &[SourceAddress],
        (text, repo): (&str, Option<&str>),
    ) -> Result<(), Error> {
        let is_meant = |address: &&SourceAddress| {
            address.kind == Kind::CoolWorkflow && repo.is_none_or(|repo| address.is_repo(repo))
        };
        let meant: Vec<SourceAddress> = known.iter().filter(is_meant).cloned().collect();
        let read = self.changes(&meant, &[], &Query::default())?.read;
        let is_long = text.chars().count() >= SHORTEST;
        let sorts: [&dyn Fn(&SearchHit) -> bool; 3] = [
            &|listed| listed.record.run_id == text,
            &|listed| is_long && listed.record.run_id.starts_with(text),
            &|listed| listed.record.title == text,
        ];
        for is_meant in sorts {
            lookup.runs.extend(read.iter().filter(|listed| is_meant(listed)).cloned());
            if !lookup.runs.is_empty() {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a path ends with a directory of this name.
fn ends(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.ends_with('/'))
}

impl Lookup {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.unreadable.is_empty()
    }

    fn add(&mut self, listed: SearchHit, name: &str) {
        if listed.freshness == Freshness::Unreadable {
            let reason = listed.freshness_reason.unwrap_or_default();
            self.add_unreadable(&listed.record.repo, name, reason);
        } else {
            self.runs.push(listed);
        }
    }

    fn add_unreadable(&mut self, repo: &str, name: &str, reason: String) {
        let named = Named { repo: repo.into(), name: name.into(), reason: Some(reason) };
        if !self.unreadable.contains(&named) {
            self.unreadable.push(named);
        }
    }
}
