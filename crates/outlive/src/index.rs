//! The index: every run of every repository, found without asking each of them.
//!
//! It is derived and disposable. The sources are the truth: a record is a function of its source, deleting the index and
//! refreshing gives equal records, and what a reader sees as valid was looked at in its source first. Reading writes
//! nothing. Policy, such as what is archived when, is not in it.
//!
//! ```text
//! sources      which there are; one file each knows how to read them: cool_workflow, registries
//! source       what a source must be able to do; survey: looking at several
//! record       what is known of a run; stored: how it is kept
//! database     the file; writer, refresh: how it is changed
//! query, words what is asked, and how the full-text index is asked it
//! walk, changes runs that may match, in order; runs that are not indexed as they are
//! reader, lookup, report what it answers, and how much of that was verified
//! ```

mod changes;
mod cool_workflow;
mod database;
mod fts;
mod lookup;
mod overlay;
mod peer_queue;
mod query;
mod reader;
mod record;
mod refresh;
mod registries;
mod report;
mod scan;
mod source;
mod sources;
mod stat_token;
mod stored;
mod walk;
mod writer;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::reader::Reader;
use self::refresh::Scope;
use crate::error::Error;
use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::store;

pub use self::changes::{RepositoryProblem, Unverified};
pub use self::cool_workflow::next::{NextAction, NextSteps, NextTask};
pub use self::lookup::Lookup;
pub use self::peer_queue::{PeerEntry, peer_queue};
pub use self::query::{InvalidSearchCursor, PAGE_LIMIT, Query, SearchCursor, SearchOrder};
pub use self::reader::{SearchHit, SearchPage};
pub use self::record::{Freshness, IndexRecord, Kind, Lifecycle, Provenance, Tasks, UnknownLifecycle};
pub use self::refresh::Refreshed;
pub use self::registries::register_own;
pub use self::report::{IndexReport, Named, Names, Sort, SourceReport, Standing};
pub use self::source::Problem;
pub use self::sources::{Registered, SourceAddress};

/// The index of a home.
#[derive(Debug, Clone)]
pub struct Index {
    home: PathBuf,
    /// Sources that are known without being registered: those of the working directory.
    here: Vec<SourceAddress>,
}

impl Index {
    /// The index of `home`, whether or not there is one yet.
    pub fn of(home: &Path) -> Self {
        Self { home: home.into(), here: Vec::new() }
    }

    /// Adds sources that every read covers, whether or not they are registered.
    #[must_use]
    pub fn with_here(self, here: Vec<SourceAddress>) -> Self {
        Self { here, ..self }
    }

    /// The home.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Every source that is known, by address.
    pub fn sources(&self) -> Result<Vec<Registered>, Error> {
        Ok(self.sources_and_problems()?.0)
    }

    /// What in the home cannot be understood: sources may be left out because of it.
    pub fn problems(&self) -> Result<Vec<Problem>, Error> {
        Ok(self.sources_and_problems()?.1)
    }

    fn sources_and_problems(&self) -> Result<(Vec<Registered>, Vec<Problem>), Error> {
        let failed = |error| {
            store::Error::Unavailable(format!("the sources in `{}` cannot be listed: {error}", self.home.display()))
        };
        let (mut known, problems) = sources::known(&self.home).map_err(failed)?;
        for here in &self.here {
            if known.iter().all(|known| known.address != *here) {
                known.push(Registered { address: here.clone(), added_at: None });
            }
        }
        known.sort_by(|one, other| one.address.cmp(&other.address));
        // A list that cannot be read does not say what is no longer on it: what is indexed stays known.
        if !problems.is_empty() {
            let indexed = self.read(|reader| Ok(reader.addresses())).ok().flatten().unwrap_or_default();
            let others: Vec<_> = indexed.into_iter().filter(|one| known.iter().all(|it| it.address != *one)).collect();
            known.extend(others.into_iter().map(|address| Registered { address, added_at: None }));
            known.sort_by(|one, other| one.address.cmp(&other.address));
        }
        Ok((known, problems))
    }

    fn known(&self) -> Result<Vec<SourceAddress>, Error> {
        Ok(self.sources()?.into_iter().map(|known| known.address).collect())
    }

    /// How each of these sources stands, in their order, as a report says it.
    pub fn standing(&self, known: &[SourceAddress]) -> Result<Vec<SourceReport>, Error> {
        Ok(self.read(|reader| reader.standing(known))?.map_or_else(|| report::unindexed(&self.home, known), Ok)?)
    }

    /// What `read` makes of the index; none where there is none. It may be called more than once.
    fn read<T>(&self, read: impl Fn(&Reader) -> Result<T, store::Error>) -> Result<Option<T>, Error> {
        database::read(&self.home, |connection| read(&Reader::new(connection, &self.home)?)).map_err(
            |error| match error {
                store::Error::Corrupt(damage) => Error::DamagedIndex(damage),
                error => error.into(),
            },
        )
    }

    /// Brings it up to date: all of it, or what comes from these addresses.
    pub fn refresh(&self, only: Option<&BTreeSet<String>>) -> Result<Refreshed, Error> {
        self.refresh_while(only, false, &|_, _| true)
    }

    /// Makes it anew from its sources.
    pub fn rebuild(&self) -> Result<Refreshed, Error> {
        self.refresh_while(None, true, &|_, _| true)
    }

    /// Refreshes while `goes_on` agrees. It is called before each source with how many are done and of how many.
    /// Where it does not agree, the index stays as it is.
    pub fn refresh_while(
        &self,
        only: Option<&BTreeSet<String>>,
        rebuild: bool,
        goes_on: &dyn Fn(usize, usize) -> bool,
    ) -> Result<Refreshed, Error> {
        let (known, problems) = self.sources_and_problems()?;
        let known: Vec<SourceAddress> = known.into_iter().map(|known| known.address).collect();
        let scope = Scope { home: &self.home, known: &known, only, rebuild, goes_on };
        let refreshed = refresh::refresh(&scope, SystemClock.now())?;
        Ok(Refreshed { problems: refreshed.problems + problems.len(), ..refreshed })
    }

    /// How much of it is still true, of all sources or of those of one repository. Every run is looked at.
    pub fn report(&self, repo: Option<&str>) -> Result<IndexReport, Error> {
        self.report_naming(repo, Names::default())
    }

    /// Reports on sources, with another page of names.
    pub fn report_naming(&self, repo: Option<&str>, names: Names) -> Result<IndexReport, Error> {
        let (known, problems) = self.sources_and_problems()?;
        let known = known.into_iter().map(|known| known.address);
        let known: Vec<SourceAddress> =
            known.filter(|address| repo.is_none_or(|repo| address.repo() == repo)).collect();
        let report = self
            .read(|reader| reader.report(&known, names))?
            .map_or_else(|| IndexReport::absent(&self.home, &known), Ok)?;
        Ok(IndexReport { problems, ..report })
    }

    /// What `read` makes of the index, or of an empty one where there is none.
    fn read_any<T>(&self, read: impl Fn(&Reader) -> Result<T, store::Error>) -> Result<(T, bool), Error> {
        match self.read(&read)? {
            Some(made) => Ok((made, true)),
            None => Ok((read(&Reader::new(database::empty()?, &self.home)?)?, false)),
        }
    }

    /// A page of the runs that match. What is listed was looked at; what is not indexed as it is was read from its source.
    pub fn search(&self, query: &Query) -> Result<SearchPage, Error> {
        query.check()?;
        let known = self.known()?;
        let (found, indexed) = self.read_any(|reader| {
            let mut changes = reader.changes(&known, &self.here, query)?;
            let read = changes.read.clone();
            let found = reader.search(query, &mut changes)?;
            let mut total = None;
            if query.count_all {
                let whole = Query { after: None, ..query.clone() };
                changes.read = read;
                let mut count = 0;
                reader.each(&whole, &mut changes, |_| count += 1)?;
                total = Some(count);
            }
            let mut unreadable = changes.unreadable;
            unreadable.absorb(found.unreadable);
            let changed_sources = changes.changed_sources + reader.removed_sources(&known, query.repos.as_ref());
            let (unverified, problems) = (changes.unverified, changes.problems);
            Ok(SearchPage { changed_sources, unreadable, unverified, problems, total, ..found })
        })?;
        Ok(SearchPage { indexed, ..found })
    }

    /// The runs that `text` may mean, up to `limit`, of all repositories or of those whose path ends with `repo`.
    pub fn find(&self, text: &str, repo: Option<&str>, limit: usize) -> Result<Lookup, Error> {
        let known = self.known()?;
        Ok(self.read_any(|reader| reader.find(&known, (text, repo), limit))?.0)
    }

    /// What `visit` makes of every run that matches, beginning with nothing.
    pub fn fold<T: Default>(&self, query: &Query, visit: impl Fn(&mut T, &IndexRecord)) -> Result<T, Error> {
        query.check()?;
        let known = self.known()?;
        let folded = self.read_any(|reader| {
            let mut made = T::default();
            let mut changes = reader.changes(&known, &self.here, query)?;
            reader.each(query, &mut changes, |record| visit(&mut made, record))?;
            Ok(made)
        })?;
        Ok(folded.0)
    }

    /// Marks runs of a source that is only read as archived or as not archived, for readers of this home. The source itself
    /// is not touched.
    pub fn mark_archived(
        &self,
        address: &SourceAddress,
        run_ids: &[String],
        archived: bool,
        reason: Option<&str>,
    ) -> Result<(), Error> {
        let now = SystemClock.now();
        Ok(overlay::Overlay::mark(&self.home, &address.url, (run_ids, archived), (now, reason))?)
    }

    /// The runs that are gone since before a moment, of all repositories or of one: how many, and repository and name of the
    /// first of them.
    pub fn gone(
        &self,
        (before, repo): (Timestamp, Option<&str>),
        limit: usize,
    ) -> Result<(usize, Vec<(String, String)>), Error> {
        let gone = self.read(|reader| {
            let first = refresh::gone_before(&reader.connection, (before, repo), limit)?;
            Ok((refresh::count_gone(&reader.connection, (before, repo))?, first))
        })?;
        let (count, first) = gone.unwrap_or_default();
        Ok((count, first.into_iter().map(|(_, name, repo)| (repo, name)).collect()))
    }

    /// Forgets those, and answers with how many they were.
    pub fn forget_gone(&self, before: Timestamp, repo: Option<&str>) -> Result<usize, Error> {
        Ok(refresh::forget_gone(&self.home, (before, repo), SystemClock.now())?)
    }
}
