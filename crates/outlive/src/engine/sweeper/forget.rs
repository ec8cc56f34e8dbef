//! Records of runs of which nothing is left: how long they are kept, and which go.
//!
//! Only registries in a bucket delete records; others put them out of sight (`outlive archive`).

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::{SweepPolicy, over_since};
use crate::error::Error;
use crate::model::id::RunId;
use crate::model::run::Run;
use crate::model::time::Timestamp;
use crate::registry::Registry;
use crate::store::Revision;

/// The least time that a record is kept after its run was over: a request to make it may come that late.
const AT_LEAST: Duration = Duration::from_secs(3_600);
/// How long the mark of a deleted record may stay where its writer died.
const MARKS: Duration = Duration::from_secs(86_400);

/// What is known of all runs, and where something of them is.
pub(super) struct Sight<'a> {
    pub(super) runs: &'a [Run],
    /// Runs with artifacts of which none was found, in places that were walked to their end.
    pub(super) bare: &'a BTreeSet<RunId>,
    pub(super) now: Timestamp,
}

/// The runs whose records no run needs and that are over for `after`.
pub(super) fn forgettable(sight: &Sight<'_>, spare: &SweepPolicy, after: Duration) -> Vec<RunId> {
    let Sight { runs, bare, now } = *sight;
    let limit = [after, AT_LEAST, spare.grace, spare.older_than.unwrap_or_default()].into_iter().max().unwrap_or(after);
    let over: BTreeMap<RunId, Timestamp> =
        runs.iter().filter_map(|run| Some((run.id, over_since(run, now).ok()?.0))).collect();
    let spared = last_of_each(runs, &over, spare.keep_last);
    let named = named_by_living(runs, &over);
    let is_due = |run: &&Run| {
        over.get(&run.id).is_some_and(|since| now.since(*since) >= limit)
            && !run.copied
            && (spare.only.is_empty() || spare.only.contains(&run.id))
            && (run.spec.output.is_none() || bare.contains(&run.id))
            && run.swept.as_ref().is_none_or(|swept| swept.done)
            && !spared.contains(&run.id)
            && !named.contains(&run.id.to_string())
    };
    let mut due: BTreeSet<RunId> = runs.iter().filter(is_due).map(|run| run.id).collect();
    // A step goes with the run that it is a step of, and never before.
    let all: HashSet<RunId> = runs.iter().map(|run| run.id).collect();
    let stays = |run: &&Run, due: &BTreeSet<RunId>| {
        run.spec.step.as_ref().is_some_and(|step| all.contains(&step.of) && !due.contains(&step.of))
    };
    loop {
        let kept: Vec<RunId> =
            runs.iter().filter(|run| due.contains(&run.id) && stays(run, &due)).map(|run| run.id).collect();
        if kept.is_empty() {
            return due.into_iter().collect();
        }
        due.retain(|id| !kept.contains(id));
    }
}

/// The last so many that are over, of each place and of all.
fn last_of_each(runs: &[Run], over: &BTreeMap<RunId, Timestamp>, keep: usize) -> HashSet<RunId> {
    let mut places: BTreeMap<Option<&str>, Vec<(Timestamp, RunId)>> = BTreeMap::new();
    for run in runs {
        let Some(since) = over.get(&run.id) else { continue };
        let place = run.spec.output.as_ref().map(|output| output.prefix.trim_end_matches('/'));
        for place in BTreeSet::from([None, place]) {
            places.entry(place).or_default().push((*since, run.id));
        }
    }
    let last = |mut runs: Vec<(Timestamp, RunId)>| {
        runs.sort_unstable_by(|one, other| other.cmp(one));
        runs.into_iter().take(keep).map(|(_, id)| id)
    };
    places.into_values().flat_map(last).collect()
}

/// What runs name that are not over: whom they wait for, repeat, or are steps of.
fn named_by_living(runs: &[Run], over: &BTreeMap<RunId, Timestamp>) -> HashSet<String> {
    let names = |run: &Run| {
        let spec = &run.spec;
        let lineage = spec.lineage.iter().flat_map(|lineage| [lineage.rerun_of, lineage.origin]);
        let step = spec.step.iter().flat_map(|step| [Some(step.of), step.replays, step.parent]).flatten();
        let after = spec.after.iter().map(|after| after.run);
        lineage.chain(step).chain(after).map(|id| id.to_string()).collect::<Vec<_>>()
    };
    runs.iter().filter(|run| !over.contains_key(&run.id)).flat_map(names).collect()
}

/// Deletes the records of these runs, as they were read. Answers with those that are gone.
pub(super) async fn forget(
    registry: &Registry,
    due: &[(RunId, Revision)],
    now: Timestamp,
) -> Result<Vec<RunId>, Error> {
    let Some(bucket) = registry.bucket() else { return Ok(Vec::new()) };
    let before = Timestamp::from_micros(now.as_micros() - i64::try_from(MARKS.as_micros()).unwrap_or(i64::MAX));
    for key in bucket.closed_before(before).await? {
        bucket.clear_closed(&key).await?;
    }
    let mut gone = Vec::new();
    for (id, revision) in due {
        if bucket.forget(*id, *revision).await? {
            gone.push(*id);
        }
    }
    Ok(gone)
}
