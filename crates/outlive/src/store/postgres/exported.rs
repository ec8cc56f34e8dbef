//! Exported history, read: runs that the registry has on record as exported, found in files at locations that the user names.
//!
//! The registry says which files there are, never where: a record that others can write causes no connection. A run is found by
//! its id, by the beginning of it, or as a step of its run; everything else is asked of the index.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::pool::with_retry;
use super::reads;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::Event;
use crate::secrets::trust::{HistoryLocations, NamedLocation};
use crate::store::history::{Exported, ExportedFile, HistoryPlace, Opened};
use crate::store::{Error, Record, Revision};
use crate::util::sync::lock;

/// How many row groups are remembered: readers go from run to run.
const REMEMBERED: usize = 4;

/// What this process knows of the exported history of a registry.
#[derive(Default)]
pub(super) struct History {
    /// The home that names locations; none for a store that is opened without one.
    home: OnceLock<PathBuf>,
    opened: Mutex<HashMap<String, Arc<Opened>>>,
    recent: Mutex<Vec<RecentGroup>>,
}

/// A row group that was read lately.
struct RecentGroup {
    file: String,
    group: usize,
    runs: Arc<Vec<Exported>>,
}

/// Ids from the first to the last.
type Range = (Uuid, Uuid);

impl PostgresStore {
    /// Has exported runs read where this home names locations of them.
    #[doc(hidden)]
    pub fn reading_history_of(&self, home: PathBuf) {
        // The first call decides.
        let _ = self.exported_history().home.set(home);
    }

    /// The locations of the exported history that this user's home names; none where there is no home.
    pub(super) fn history_locations(&self) -> Option<HistoryLocations> {
        self.exported_history().home.get().map(|home| HistoryLocations::of(home, self.id()))
    }

    /// The locations of its exported history that this user's home names.
    pub(crate) fn history_known(&self) -> Result<Vec<NamedLocation>, Error> {
        let known = self.history_locations().map(|locations| locations.read()).transpose();
        known.map(Option::unwrap_or_default).map_err(|error| Error::Denied(error.to_string()))
    }

    /// Has this user's home name a location of its exported history.
    pub(crate) fn remember_history(&self, location: &NamedLocation) -> Result<(), Error> {
        let Some(locations) = self.history_locations() else { return Ok(()) };
        locations.add(location).map_err(|error| Error::Denied(format!("the location cannot be remembered: {error}")))
    }

    /// The files that may have ids of a range, in the order of their ids.
    async fn exported_files(&self, (first, last): Range) -> Result<Vec<ExportedFile>, Error> {
        let sql = self.sql(
            "SELECT file, first, last, runs, footer, footer_end, digest FROM @.exported
             WHERE last >= $1 AND first <= $2 ORDER BY last",
        );
        let rows = with_retry!(self.links(), |link| link.read(&sql, &[(&first, Type::UUID), (&last, Type::UUID)]))?;
        Ok(rows.iter().map(entry).filter(|entry| is_file(self.id(), &entry.name)).collect())
    }

    /// A file on record; none where it is at no location that the user names.
    async fn open_exported(&self, entry: &ExportedFile) -> Result<Option<Arc<Opened>>, Error> {
        if let Some(opened) = lock(&self.exported_history().opened).get(&entry.name) {
            return Ok(Some(opened.clone()));
        }
        let (places, away): (Vec<_>, Vec<_>) =
            self.history_known()?.iter().map(HistoryPlace::open).partition(Result::is_ok);
        let places: Vec<Arc<HistoryPlace>> = places.into_iter().flatten().map(Arc::new).collect();
        let Some(opened) = Opened::find(&places, entry).await? else {
            return away.into_iter().find_map(Result::err).map_or(Ok(None), Err);
        };
        let opened = Arc::new(opened);
        lock(&self.exported_history().opened).insert(entry.name.clone(), opened.clone());
        Ok(Some(opened))
    }

    async fn exported_group(&self, opened: &Opened, group: usize) -> Result<Arc<Vec<Exported>>, Error> {
        let is_it = |known: &&RecentGroup| known.group == group && known.file == opened.name();
        if let Some(known) = lock(&self.exported_history().recent).iter().find(is_it) {
            return Ok(known.runs.clone());
        }
        let runs = Arc::new(opened.runs(group).await?);
        let mut recent = lock(&self.exported_history().recent);
        recent.truncate(REMEMBERED - 1);
        recent.insert(0, RecentGroup { file: opened.name().to_owned(), group, runs: runs.clone() });
        Ok(runs)
    }

    /// The exported runs of these ids.
    pub(super) async fn exported_runs(&self, ids: &[RunId]) -> Result<Vec<Exported>, Error> {
        let mut ids: Vec<RunId> = ids.to_vec();
        ids.sort_unstable();
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        if self.history_locations().is_none() {
            return Ok(found);
        }
        for entry in self.exported_files((first.as_uuid(), last.as_uuid())).await? {
            let begin = ids.partition_point(|id| *id < entry.bounds.0);
            let end = ids.partition_point(|id| *id <= entry.bounds.1);
            if begin == end {
                continue;
            }
            let Some(opened) = self.open_exported(&entry).await? else { continue };
            let mut wanted = ids[begin..end].iter().peekable();
            while let Some(id) = wanted.peek() {
                let id = id.to_string();
                let Some(group) = opened.groups(&id, &id).first().copied() else {
                    wanted.next();
                    continue;
                };
                let runs = self.exported_group(&opened, group).await?;
                let last = runs.last().map(|run| run.record.run.id);
                while let Some(id) = wanted.next_if(|id| Some(**id) <= last) {
                    let place = runs.binary_search_by_key(id, |exported| exported.record.run.id);
                    found.extend(place.ok().map(|place| runs[place].clone()));
                }
            }
        }
        Ok(found)
    }

    /// The events of an exported run; none of one that is not.
    pub(super) async fn exported_events(&self, id: RunId) -> Result<Vec<Event>, Error> {
        Ok(self.exported_runs(&[id]).await?.pop().map(|exported| exported.events).unwrap_or_default())
    }

    /// The exported runs that a filter means which says by their ids where to look: by ids, by the beginning of one, or by the
    /// run whose steps they are. None for any other filter.
    pub(super) async fn exported_matching(&self, filter: &Filter) -> Result<Vec<Record>, Error> {
        let mut found = Vec::new();
        if let Some(ids) = &filter.ids {
            found = self.exported_runs(ids).await?;
        } else if let Some(range) = self.exported_range(filter).await? {
            let [first, last] = [range.0, range.1].map(|id| id.to_string());
            for entry in self.exported_files(range).await? {
                let Some(opened) = self.open_exported(&entry).await? else { continue };
                for group in opened.groups(&first, &last) {
                    let of = filter.step_of.map(|of| of.to_string());
                    if of.is_some() && !opened.steps(group).await?.contains(&of) {
                        continue;
                    }
                    let runs = self.exported_group(&opened, group).await?;
                    found.extend(runs.iter().filter(|exported| filter.matches(&exported.record.run)).cloned());
                }
            }
        }
        Ok(found.into_iter().map(|exported| exported.record).filter(|record| filter.matches(&record.run)).collect())
    }

    /// The ids that a filter can mean; none where they could be any.
    async fn exported_range(&self, filter: &Filter) -> Result<Option<Range>, Error> {
        if self.history_locations().is_none() {
            return Ok(None);
        }
        if let Some(prefix) = &filter.id_prefix {
            return Ok(reads::range(prefix));
        }
        // Steps are made while their run is executed.
        let Some(of) = filter.step_of else { return Ok(None) };
        let first = of.as_uuid();
        if self.exported_files((first, Uuid::max())).await?.is_empty() {
            return Ok(None);
        }
        let mut runs = self.find(&[of]).await?;
        runs.extend(self.exported_runs(&[of]).await?.into_iter().map(|exported| exported.record));
        let ended = runs.pop().and_then(|record| record.run.ending().map(|ending| ending.at));
        let millis = ended.map(|at| at.as_micros().unsigned_abs() / 1_000 + 1);
        Ok(millis.map(|millis| (first, Uuid::from_u128(u128::from(millis) << 80))))
    }

    /// The revisions of all exported runs that are no steps, in the order of their ids.
    pub(crate) async fn exported_revisions(&self) -> Result<Vec<(RunId, Revision)>, Error> {
        let mut found = Vec::new();
        if self.history_locations().is_none() {
            return Ok(found);
        }
        for entry in self.exported_files((Uuid::nil(), Uuid::max())).await? {
            if let Some(opened) = self.open_exported(&entry).await? {
                found.extend(opened.revisions().await?);
            }
        }
        Ok(found)
    }

    /// Where a run may have been exported to that this home does not know, as the registry has it on record: for people alone.
    #[doc(hidden)]
    pub async fn exported_to(&self, id: RunId) -> Result<Option<String>, Error> {
        let id = id.as_uuid();
        for entry in self.exported_files((id, id)).await? {
            if self.open_exported(&entry).await?.is_none() {
                let sql = self.sql("SELECT place FROM @.exported WHERE file = $1");
                let rows = with_retry!(self.links(), |link| link.read(&sql, &[(&entry.name, Type::TEXT)]))?;
                return Ok(rows.first().map(|row| row.get(0)));
            }
        }
        Ok(None)
    }
}

fn entry(row: &Row) -> ExportedFile {
    let number = |column: usize| row.get::<_, i64>(column).unsigned_abs();
    ExportedFile {
        name: row.get(0),
        bounds: (RunId::from_uuid(row.get(1)), RunId::from_uuid(row.get(2))),
        runs: number(3),
        footer: number(4)..number(5),
        digest: row.get(6),
    }
}

/// Whether a name on record is that of a file of this registry, below a location: a directory and a name, of letters that lead
/// nowhere else.
pub(super) fn is_file(registry: &str, name: &str) -> bool {
    // A registry may call itself anything, and outlive calls each by a UUID.
    if Uuid::parse_str(registry).is_err() {
        return false;
    }
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    let name = name.strip_prefix(registry).and_then(|rest| rest.strip_prefix('/'));
    name.and_then(|name| name.strip_suffix(".parquet")).is_some_and(|name| !name.is_empty() && is_plain(name))
}

#[cfg(test)]
mod tests {
    use super::is_file;

    #[test]
    fn t8_02_name_on_record_leads_to_no_other_file() {
        const ID: &str = "6a0c5b1e-6a6e-4b4e-9d3b-1d8c3a2f4e5b";
        assert!(is_file(ID, &format!("{ID}/2026-10-18-0000.parquet")));
        for rest in ["/.parquet", "/../1.parquet", "/2026/1.parquet", "/1.parquet?x", "1.parquet", "/1.parquet/"] {
            assert!(!is_file(ID, &format!("{ID}{rest}")), "{rest}");
        }
        for name in ["other/2026-10-18-0000.parquet", "/etc/passwd", "s3://evil/2026-10-18-0000.parquet"] {
            assert!(!is_file(ID, name), "{name}");
        }
        assert!(!is_file("..", "../1.parquet") && !is_file("s3:/", "s3://1.parquet"));
    }
}
