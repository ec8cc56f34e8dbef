//! All records of a registry, and those of them that are one run.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::naming::name_of;
use super::{SweepProblem, SweepReport};
use crate::error::Error;
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::run::{Run, State};
use crate::model::time::Timestamp;
use crate::registry::Registry;
use crate::store::{self, Page, Pages, Record};

/// What is known of all runs.
pub(super) struct AllRecords {
    pub(super) runs: Vec<Run>,
    /// As they were read, where that is what a change can be made from.
    pub(super) records: HashMap<RunId, Record>,
    /// What those are called in paths whose records cannot be read.
    pub(super) unreadable: HashSet<String>,
    /// The store's time.
    pub(super) now: Timestamp,
}

/// What a run is called whose record is at `key`.
pub(super) fn name_in_key(key: &str) -> Option<String> {
    Some(key.split_once("_run_id=")?.1.rsplit_once('_')?.0.to_owned())
}

/// Reads all records of a registry.
pub(super) async fn everything(registry: &Registry, report: &mut SweepReport) -> Result<AllRecords, Error> {
    if let Some(bucket) = registry.bucket() {
        let (records, unreadable, now) = bucket.everything().await?;
        let names = unreadable.iter().filter_map(|(key, _)| name_in_key(key)).collect();
        let problem = |(what, error): (String, store::Error)| SweepProblem { what, why: error.to_string() };
        report.problems.extend(unreadable.into_iter().map(problem));
        let dated = |record: &Record| {
            let mut run = record.run.clone();
            if let (State::Ended(ending), None) = (&mut run.state, &run.swept) {
                ending.at = bucket.put_at(run.id, ending.at);
            }
            run
        };
        let runs = records.iter().map(dated).collect();
        let records = records.into_iter().map(|record| (record.run.id, record)).collect();
        return Ok(AllRecords { runs, records, unreadable: names, now });
    }
    let now = registry.clock().now();
    let mut walk = Pages::from(Filter::default(), Page::default());
    let mut runs = Vec::new();
    while let Some(records) = walk.next(registry.store()).await? {
        runs.extend(records.into_iter().map(|record| record.run));
    }
    Ok(AllRecords { runs, records: HashMap::new(), unreadable: HashSet::new(), now })
}

/// A run, and the records that its writer keeps of it.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) run: Run,
    /// Records of the writer's own, under our id. The run is over when all of them are.
    pub(super) writers: Vec<Run>,
}

/// Records of one place by the run that they are of. A writer that is started by `outlive run` may keep a record of its own,
/// with our id as its `run_id`: both are one run. Other records of one name are runs that are in each other's way.
pub(super) fn by_run(runs: Vec<Run>) -> Vec<Recorded> {
    let mut named: BTreeMap<String, Vec<Run>> = BTreeMap::new();
    for run in runs {
        named.entry(name_of(&run)).or_default().push(run);
    }
    let alone = |run: Run| Recorded { run, writers: Vec::new() };
    let mut recorded = Vec::new();
    for (name, runs) in named {
        let (writers, mut ours): (Vec<Run>, Vec<Run>) = runs.into_iter().partition(|run| run.foreign);
        let layout = |run: &Run| run.spec.output.as_ref().map(|output| (output.db_path_template.clone(), output.plain));
        match (ours.pop(), ours.is_empty()) {
            (Some(run), true)
                if run.id.to_string() == name && writers.iter().all(|writer| layout(writer) == layout(&run)) =>
            {
                recorded.push(Recorded { run, writers });
            }
            (last, _) => recorded.extend(writers.into_iter().chain(ours).chain(last).map(alone)),
        }
    }
    recorded
}
