//! Facets: how the runs of a registry divide by what they can be filtered by, and when they were made.

use std::collections::BTreeMap;

use super::Registry;
use crate::error::Error;
use crate::model::filter::Filter;
use crate::model::run::{Run, StateName};
use crate::model::time::Timestamp;
use crate::store::{Page, Pages};

/// The most runs that are read for what no store counts.
const READ: usize = 2_000;

/// When runs were made, by their state on record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram {
    /// How many runs in each state were made in each part of the time.
    pub parts: BTreeMap<StateName, Vec<u64>>,
    /// All of them were counted; else only the newest.
    pub complete: bool,
}

/// Which users made runs, and on which hosts runs are or were last. Steps are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UsersAndHosts {
    /// How many runs each user made.
    pub users: BTreeMap<String, u64>,
    /// How many runs each host has.
    pub hosts: BTreeMap<String, u64>,
    /// All runs were counted; else only the newest.
    pub complete: bool,
}

impl Registry {
    /// How many runs each user made and each host has.
    #[doc(hidden)]
    pub async fn users_and_hosts(&self) -> Result<UsersAndHosts, Error> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            let (users, hosts) = local.users_and_hosts()?;
            return Ok(UsersAndHosts { users, hosts, complete: true });
        }
        let (runs, complete) = self.newest(Filter { is_step: Some(false), ..Filter::default() }).await?;
        let mut counted = UsersAndHosts { complete, ..UsersAndHosts::default() };
        for run in &runs {
            *counted.users.entry(run.spec.created_by.user.to_string()).or_default() += 1;
            if let Some(host) = run.last_host() {
                *counted.hosts.entry(host.to_owned()).or_default() += 1;
            }
        }
        Ok(counted)
    }

    /// How many runs were made in each of `parts` equal parts of the time from `since` until `until`.
    #[doc(hidden)]
    pub async fn histogram(&self, since: Timestamp, until: Timestamp, parts: usize) -> Result<Histogram, Error> {
        #[cfg(feature = "sqlite")]
        if let Some(local) = &self.local {
            let parts = local.histogram(since, until, parts)?;
            return Ok(Histogram { parts, complete: true });
        }
        let filter = Filter { since: Some(since), until: Some(until), is_step: Some(false), ..Filter::default() };
        let (runs, complete) = self.newest(filter).await?;
        let mut histogram = Histogram { complete, ..Histogram::default() };
        let length = (until.as_micros() - since.as_micros()).max(1);
        for run in &runs {
            let at = (run.created_at.as_micros() - since.as_micros()).max(0);
            let place = usize::try_from(at.saturating_mul(parts as i64) / length).unwrap_or(0).min(parts - 1);
            histogram.parts.entry(run.state.name()).or_insert_with(|| vec![0; parts])[place] += 1;
        }
        Ok(histogram)
    }

    /// The newest runs that match, at most 2,000 of them, and whether they are all.
    async fn newest(&self, filter: Filter) -> Result<(Vec<Run>, bool), Error> {
        let mut walk = Pages::from(filter, Page { limit: READ.min(500), ..Page::default() });
        let mut runs = Vec::new();
        while let Some(records) = walk.next(self.store()).await? {
            runs.extend(records.into_iter().map(|record| record.run));
            if runs.len() >= READ {
                return Ok((runs, false));
            }
        }
        Ok((runs, true))
    }
}
