//! Grounds: what the trees of some runs are in, and which of their records may have anything read or deleted there.
//!
//! `trust` decides for every record. A ground that no record is trusted with is not opened: no connection is made, and no
//! file is looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::location::{ArtifactStore, Reach};
use super::naming::name_of;
use super::objects::Machine;
use super::records::{Recorded, by_run};
use super::{Line, SweepProblem, SweepReport, over_since};
use crate::model::id::RunId;
use crate::model::run::Run;
use crate::model::time::Timestamp;
use crate::registry::Registry;
use crate::secrets::trust::{self, Effect, Origin, may};

/// What the trees of some runs are in.
pub(super) struct Ground {
    /// As records name it.
    pub(super) named: String,
    pub(super) shards: String,
    /// None where no record is trusted with it, or it cannot be used.
    pub(super) place: Option<ArtifactStore>,
    pub(super) runs: Vec<Recorded>,
    /// Runs whose records are not trusted with it, and why.
    pub(super) denied: BTreeMap<RunId, String>,
}

impl Ground {
    /// The trees of all its runs, in full. Those of a record that makes no sense are, too: a writer may mean them.
    pub(super) fn trees(&self) -> impl Iterator<Item = (String, RunId)> {
        let tree = |one: &Recorded| (format!("{}/run_id={}", self.shards, name_of(&one.run)), one.run.id);
        self.runs.iter().map(tree).map(|(tree, id)| match &self.place {
            Some(place) => (place.tree(&tree), id),
            None => (format!("{}/{tree}", self.named), id),
        })
    }

    /// Reports the runs of a ground that was not opened: those that would have been swept.
    pub(super) fn tell_denied(&self, now: Timestamp, report: &mut SweepReport) {
        for Recorded { run, .. } in &self.runs {
            let Some(why) = self.denied.get(&run.id).filter(|_| over_since(run, now).is_ok()) else { continue };
            let prefix = format!("{}/{}/run_id={}", self.named, self.shards, name_of(run));
            let line = Line { reason: why.clone(), ..Line::new(run.id, prefix) };
            report.kept.push(line);
        }
    }
}

/// All grounds of a registry's runs, opened where a record is trusted with them.
pub(super) fn grounds(registry: &Registry, runs: &[Run], machine: &Machine, report: &mut SweepReport) -> Vec<Ground> {
    let mut grounds: BTreeMap<(String, String), Vec<Run>> = BTreeMap::new();
    for run in runs {
        let Some(output) = &run.spec.output else { continue };
        let place = (output.prefix.trim_end_matches('/').to_owned(), output.shard_prefix.clone());
        grounds.entry(place).or_default().push(run.clone());
    }
    let all: BTreeSet<String> = grounds.keys().map(|(_, shards)| shards.trim_matches('/').to_owned()).collect();
    let all = Arc::new(all);
    let origin = registry.origin();
    let ground = |((named, shards), runs): ((String, String), Vec<Run>)| {
        let runs = by_run(runs);
        let (reach, denied) = decide(registry, &origin, &runs);
        let place = reach.and_then(|reach| match ArtifactStore::new(&named, &reach, all.clone(), machine) {
            Ok(place) => Some(place),
            Err(why) => {
                report.problems.push(SweepProblem { what: named.clone(), why });
                None
            }
        });
        Ground { named, shards, place, runs, denied }
    };
    grounds.into_iter().map(ground).collect()
}

/// How a place is reached, where any of its runs is trusted with it, and which are not.
fn decide<'a>(
    registry: &'a Registry,
    origin: &'a Origin<'_>,
    runs: &[Recorded],
) -> (Option<Reach<'a>>, BTreeMap<RunId, String>) {
    let (mut reach, mut denied) = (None, BTreeMap::new());
    let address = registry.bucket().map(|bucket| bucket.address());
    for Recorded { run, .. } in runs {
        match may(Effect::Delete, run, origin) {
            Ok(trust::TrustBasis::Registry) => reach = address.map(Reach::Registry),
            Ok(trust::TrustBasis::Named(named)) => reach = Some(Reach::Named(named)),
            Ok(_) => reach = reach.or(Some(Reach::Signed(address))),
            Err(why) => drop(denied.insert(run.id, why.to_string())),
        }
    }
    (reach, denied)
}
