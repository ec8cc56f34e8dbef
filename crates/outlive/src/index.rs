//! The index: every run of every repository, found without asking each of them.
//!
//! It is derived and disposable. The sources are the truth: a record is a function of its source, deleting the index and
//! refreshing gives equal records, and what a reader is told is valid was looked at in its source first. Reading writes
//! nothing. Policy, such as what is archived when, is not in it.
//!
//! ```text
//! sources      which there are; one file each knows how to read them: cool_workflow, registries
//! source       what a source must be able to do; survey: looking at several
//! record       what is known of a run; stored: how it is kept
//! database     the file; writer, refresh: how it is changed
//! query, words what is asked, and how the full-text index is asked it
//! reader, report what it answers, and how much of that was borne out
//! ```

mod cool_workflow;
mod database;
mod query;
mod reader;
mod record;
mod refresh;
mod registries;
mod report;
mod settle;
mod source;
mod sources;
mod stored;
mod survey;
mod words;
mod writer;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::reader::Reader;
use self::refresh::Scope;
use crate::error::Error;
use crate::store;
use crate::time::{Clock, SystemClock, Timestamp};

pub use self::query::{Cursor, InvalidCursor, Order, PAGE_LIMIT, Query};
pub use self::reader::{Found, Listed};
pub use self::record::{Freshness, Kind, Lifecycle, Provenance, Record, Tasks, UnknownLifecycle};
pub use self::refresh::Refreshed;
pub use self::report::{Named, Report, Sort, SourceReport, Standing};
pub use self::source::Problem;
pub use self::sources::{Address, Registered};

/// The index of a home.
#[derive(Debug, Clone)]
pub struct Index {
    home: PathBuf,
}

impl Index {
    /// The index of `home`, whether or not there is one yet.
    pub fn of(home: &Path) -> Self {
        Self { home: home.into() }
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
        // Whoever cannot read a list cannot say what is no longer on it: what is indexed stays known.
        if !problems.is_empty() {
            let indexed = self.read(|reader| Ok(reader.addresses())).ok().flatten().unwrap_or_default();
            let others: Vec<_> = indexed.into_iter().filter(|one| known.iter().all(|it| it.address != *one)).collect();
            known.extend(others.into_iter().map(|address| Registered { address, added_at: None }));
            known.sort_by(|one, other| one.address.cmp(&other.address));
        }
        Ok((known, problems))
    }

    fn known(&self) -> Result<Vec<Address>, Error> {
        Ok(self.sources()?.into_iter().map(|known| known.address).collect())
    }

    /// How each of these sources stands, in their order, as a report says it.
    pub fn standing(&self, known: &[Address]) -> Result<Vec<SourceReport>, Error> {
        Ok(self.read(|reader| reader.standing(known))?.map_or_else(|| report::unindexed(known), Ok)?)
    }

    /// What `read` makes of the index; none where there is none. It may be called more than once.
    fn read<T>(&self, read: impl Fn(&Reader) -> Result<T, store::Error>) -> Result<Option<T>, Error> {
        database::read(&self.home, |connection| read(&Reader::new(connection)?)).map_err(|error| match error {
            store::Error::Corrupt(damage) => Error::DamagedIndex(damage),
            error => error.into(),
        })
    }

    /// Brings it up to date: all of it, or what comes from these addresses.
    pub fn refresh(&self, only: Option<&BTreeSet<String>>) -> Result<Refreshed, Error> {
        self.refresh_while(only, false, &|_, _| true)
    }

    /// Makes it anew from its sources.
    pub fn rebuild(&self) -> Result<Refreshed, Error> {
        self.refresh_while(None, true, &|_, _| true)
    }

    /// The same, for as long as `goes_on` agrees, which is told before each source how many are done and of how many.
    /// Where it does not agree, the index stays as it is.
    pub fn refresh_while(
        &self,
        only: Option<&BTreeSet<String>>,
        rebuild: bool,
        goes_on: &dyn Fn(usize, usize) -> bool,
    ) -> Result<Refreshed, Error> {
        let (known, problems) = self.sources_and_problems()?;
        let known: Vec<Address> = known.into_iter().map(|known| known.address).collect();
        let scope = Scope { known: &known, only, rebuild, goes_on };
        let refreshed = refresh::refresh(&self.home, &scope, SystemClock.now())?;
        Ok(Refreshed { problems: refreshed.problems + problems.len(), ..refreshed })
    }

    /// How much of it is still true, of all sources or of those of one repository. Every run is looked at.
    pub fn report(&self, repo: Option<&str>) -> Result<Report, Error> {
        let (known, problems) = self.sources_and_problems()?;
        let known = known.into_iter().map(|known| known.address);
        let known: Vec<Address> = known.filter(|address| repo.is_none_or(|repo| address.repo() == repo)).collect();
        let report = self.read(|reader| reader.report(&known))?.map_or_else(|| Report::absent(&known), Ok)?;
        Ok(Report { problems, ..report })
    }

    /// A page of the runs that match; none where there is no index. What is listed was looked at.
    pub fn search(&self, query: &Query) -> Result<Option<Found>, Error> {
        let known = self.known()?;
        self.read(|reader| {
            let changed_sources = reader.changed_sources(&known, query.repos.as_ref());
            Ok(Found { changed_sources, ..reader.search(query)? })
        })
    }

    /// The runs that `text` may mean, up to `limit`; none where there is no index.
    pub fn find(&self, text: &str, repo: Option<&str>, limit: usize) -> Result<Option<Vec<Listed>>, Error> {
        self.read(|reader| reader.find(text, repo, limit))
    }

    /// Where a run of this name cannot be understood, and why.
    pub fn unreadable(&self, name: &str) -> Result<Vec<Named>, Error> {
        Ok(self.read(|reader| reader.unreadable(name))?.unwrap_or_default())
    }

    /// What `visit` makes of every run that matches, as it is indexed, beginning with nothing; none where there is no index.
    pub fn fold<T: Default>(&self, query: &Query, visit: impl Fn(&mut T, &Record)) -> Result<Option<T>, Error> {
        self.read(|reader| {
            let mut made = T::default();
            reader.each(query, |record| visit(&mut made, record))?;
            Ok(made)
        })
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
