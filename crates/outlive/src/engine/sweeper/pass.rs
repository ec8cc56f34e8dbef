//! A pass of the sweeper: reads what decisions rest on, lists what there is, and deletes what is decided.
//!
//! Each place is listed once, page by page, and deleted from in batches, whatever the number of its runs. Before a batch is
//! sent, each run that is newly in it is marked; where that is refused, nothing of the run is in the batch any more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use super::forget::{Sight, forget, forgettable};
use super::grounds::{Ground, grounds};
use super::location::{ArtifactStore, ObjectInfo};
use super::manifest::{ManifestNames, plainly};
use super::naming::{manifests_by_run, may_name, name_of, names, understood};
use super::neighbours::neighbours;
use super::objects::Machine;
use super::records::{AllRecords, Recorded, everything};
use super::trees::clashes;
use super::{Decision, Line, Reason, SweepInput, SweepPolicy, SweepProblem, SweepReport, all_over_since, decide};
use crate::error::Error;
use crate::model::id::RunId;
use crate::model::run::{Run, State};
use crate::model::time::Timestamp;
use crate::ownership::reaper::Reaper;
use crate::registry::Registry;
use crate::store::object::{DELETED_AT_ONCE, ObjectStore};
use crate::store::{self, Record};

/// Looks at the artifacts of every run, and deletes what no run needs. A dry run only says what it would, after a reap.
pub async fn sweep(registry: &Registry, spare: &SweepPolicy) -> Result<SweepReport, Error> {
    sweep_from(&Machine::here(), registry, spare).await
}

/// Sweeps as [`sweep`] does, from a machine that may be a simulated one.
pub(crate) async fn sweep_from(
    machine: &Machine,
    registry: &Registry,
    spare: &SweepPolicy,
) -> Result<SweepReport, Error> {
    let dry_run = spare.dry_run;
    let mut report = SweepReport { dry_run, ..SweepReport::default() };
    // A run that is made from here on may have a record that is not read.
    let began = machine.clock.since_boot();
    let mut known = everything(registry, &mut report).await?;
    if dry_run {
        // A sweep reaps before.
        Reaper::new(registry.worker()).foresee(registry, &mut known.runs, known.now);
    }
    let grounds = grounds(registry, &known.runs, machine, &mut report);
    let mut trees: Vec<(String, RunId)> = grounds.iter().flat_map(Ground::trees).collect();
    let mut passes = Vec::new();
    for ground in grounds {
        let named = ground.named.clone();
        if ground.place.is_none() {
            ground.tell_denied(known.now, &mut report);
            continue;
        }
        match Pass::new(registry, spare, &known, (machine, began), ground).await {
            Ok((pass, others)) => {
                trees.extend(others);
                passes.push((named, pass));
            }
            Err(error) => report.problems.push(SweepProblem { what: named, why: error.to_string() }),
        }
    }
    let clashes = clashes(trees);
    share_names(&mut passes);
    let mut bare = BTreeSet::new();
    for (named, mut pass) in passes {
        pass.leave_alone(&clashes, &known.unreadable);
        match pass.walk(dry_run).await {
            Ok(()) => bare.extend(pass.bare()),
            Err(error) => report.problems.push(SweepProblem { what: named, why: error.to_string() }),
        }
        pass.tell(&mut report);
    }
    if let Some(after) = spare.forget_after {
        forget_old(registry, &known, &bare, spare, after, &mut report).await?;
    }
    report.objects = report.swept.iter().map(|line| line.objects).sum();
    report.bytes = report.swept.iter().map(|line| line.bytes).sum();
    report.left = report.swept.iter().map(|line| line.left).sum();
    for line in report.swept.iter().filter(|line| !report.dry_run && line.objects > 0) {
        tracing::info!(run = %line.id, objects = line.objects, bytes = line.bytes, prefix = line.prefix, "sweep deleted");
    }
    Ok(report)
}

/// Has every pass know what the manifests of all others name: the trees of one place may be laid out in several ways, and
/// what leads nowhere in one place may lead somewhere in another.
fn share_names(passes: &mut [(String, Pass<'_>)]) {
    let mut borrowed: HashMap<String, ManifestNames> = HashMap::new();
    let mut unclear = Vec::new();
    for (_, pass) in passes.iter_mut() {
        let names = borrowed.entry(pass.place.tree("")).or_default();
        *names = names.and(&pass.borrowed);
        unclear.append(&mut pass.unclear);
    }
    for (_, pass) in passes {
        pass.borrowed = borrowed.get(&pass.place.tree("")).cloned().unwrap_or_default();
        pass.unclear.clone_from(&unclear);
    }
}

/// Deletes records that are kept long enough, or says which it would.
async fn forget_old(
    registry: &Registry,
    known: &AllRecords,
    bare: &BTreeSet<RunId>,
    spare: &SweepPolicy,
    after: Duration,
    report: &mut SweepReport,
) -> Result<(), Error> {
    let due = forgettable(&Sight { runs: &known.runs, bare, now: known.now }, spare, after);
    if report.dry_run {
        report.forgotten = due;
        return Ok(());
    }
    let due: Vec<_> = due.iter().filter_map(|id| Some((*id, known.records.get(id)?.revision))).collect();
    report.forgotten = forget(registry, &due, known.now).await?;
    Ok(())
}

/// A run of a place, and what is found of it there.
pub(super) struct Subject {
    pub(super) run: Run,
    /// The records that its writer keeps of it.
    pub(super) writers: Vec<Run>,
    rank: usize,
    /// What its manifests name; none where it has none.
    manifest: Option<Result<ManifestNames, String>>,
    /// What was decided, once something of it was found.
    pub(super) decision: Option<Decision>,
    pub(super) is_marked: bool,
    /// What was there when the run of another program was marked; what is not in it another sweeper has deleted.
    pub(super) there: Option<HashSet<String>>,
    /// Its record as it was last read or written.
    pub(super) record: Option<Record>,
    /// How many of its objects were put after the records were read.
    late: u64,
    pub(super) line: Line,
}

pub(super) struct Pass<'a> {
    pub(super) machine: &'a Machine,
    pub(super) registry: &'a Registry,
    pub(super) place: ArtifactStore,
    /// What the trees of its runs are in.
    shards: String,
    spare: &'a SweepPolicy,
    pub(super) now: Timestamp,
    /// What was put since then stays, by the place's own clock.
    cutoff: Timestamp,
    pointer: Result<ManifestNames, String>,
    /// What manifests name outside the trees of their own runs.
    borrowed: ManifestNames,
    /// What manifests say of runs in words that lead nowhere.
    unclear: Vec<String>,
    /// By what they are called in paths.
    pub(super) subjects: BTreeMap<String, Subject>,
    /// Runs whose records are not trusted with this place, and why.
    denied: BTreeMap<RunId, String>,
    /// Runs that other registries have records of, by what they are called in paths where those cannot be read.
    elsewhere: (BTreeSet<RunId>, Vec<String>),
    /// Trees that no record is known of.
    unknown: BTreeMap<String, u64>,
    /// What is to be deleted next: the run, the path, its size.
    batch: Vec<(String, String, u64)>,
    pub(super) problems: Vec<SweepProblem>,
}

impl<'a> Pass<'a> {
    /// A pass over a ground that was opened, and the trees that other registries have records of there.
    async fn new(
        registry: &'a Registry,
        spare: &'a SweepPolicy,
        known: &AllRecords,
        (machine, began): (&'a Machine, Duration),
        ground: Ground,
    ) -> Result<(Self, Vec<(String, RunId)>), store::Error> {
        let unusable = || store::Error::Unsupported("it cannot be used".into());
        let Ground { shards, place, mut runs, denied, .. } = ground;
        let (place, now) = (place.ok_or_else(unusable)?, known.now);
        let others = neighbours(&place, registry.bucket().map(|bucket| bucket.address())).await?;
        let pointer = place.names_by_pointer().await;
        let manifests = manifests_by_run(place.manifests().await?, runs.iter().map(|one| &one.run));
        let unheard = || store::Error::Unsupported("its clock is not known".into());
        // What is known of another's clock is known to the second.
        let began = place.time_at(began, machine).ok_or_else(unheard)?.after(Duration::from_secs(1));
        let unsure = i64::try_from(spare.unsure.as_micros()).unwrap_or(i64::MAX);
        let cutoff = Timestamp::from_micros(began.as_micros() - unsure);
        let ended_at = |run: &Run| match &run.state {
            State::Ended(ending) => ending.at,
            // What has not ended is younger than whatever has.
            _ => now,
        };
        runs.sort_by_key(|one| std::cmp::Reverse((ended_at(&one.run), one.run.id)));
        let unclear = pointer.as_ref().map(|(names, _)| names.unclear().map(plainly).collect()).unwrap_or_default();
        let elsewhere = (others.trees.iter().map(|(_, id)| *id).collect(), others.unreadable);
        let mut pass = Self {
            machine,
            registry,
            place,
            shards,
            spare,
            now,
            cutoff,
            pointer: Ok(ManifestNames::default()),
            borrowed: ManifestNames::default(),
            unclear,
            subjects: BTreeMap::new(),
            denied,
            elsewhere,
            unknown: BTreeMap::new(),
            batch: Vec::new(),
            problems: Vec::new(),
        };
        let mut references = BTreeSet::new();
        let mut rank = 0;
        for Recorded { run, writers } in runs {
            let is_over = all_over_since(&run, &writers, now).is_ok();
            let found = manifests.get(&name_of(&run));
            let record = known.records.get(&run.id).cloned();
            references.extend(pass.take(run, writers, record, found, rank).await);
            // Only those that have ended are among the last that have.
            rank += usize::from(is_over);
        }
        // A manifest that lies in a tree is as needed as what it names.
        references.iter().for_each(|path| pass.borrowed.insert(path));
        // What the pointer's manifest says without a way there is of the run that it is of; where that is not known, of any.
        pass.pointer = pointer.map(|(names, pointed)| match pointed.iter().all(|path| references.contains(path)) {
            true => names.unsaid(),
            false => names,
        });
        Ok((pass, others.trees))
    }

    /// Takes a run in, with what its manifests name. Answers with where those are.
    async fn take(
        &mut self,
        run: Run,
        writers: Vec<Run>,
        record: Option<Record>,
        found: Option<&Vec<String>>,
        rank: usize,
    ) -> BTreeSet<String> {
        let named = [&run].into_iter().chain(&writers).filter_map(|run| run.manifest_ref.as_ref());
        let references: BTreeSet<&String> = named.chain(found.into_iter().flatten()).collect();
        let own: BTreeSet<String> = references.iter().filter_map(|reference| self.place.below(reference)).collect();
        let tree = run.spec.output.as_ref().and_then(|output| output.tree(run.id).ok());
        let named = names(&self.place, &run, &references).await;
        if let Some(Ok(named)) = &named {
            // Whatever else is wrong with it, what it names of others is theirs and needed.
            self.borrowed = self.borrowed.and(&named.outside(tree.as_deref().unwrap_or_default()));
            self.unclear.extend(named.unclear().map(plainly));
        }
        let manifest = match named {
            Some(Ok(named)) => Some(understood(&self.place, &run, &own, named).await),
            named => named,
        };
        let prefix = tree.map_or_else(|| self.place.shown("?"), |tree| self.place.shown(&tree));
        let (line, name) = (Line::new(run.id, prefix), name_of(&run));
        let subject = Subject {
            run,
            writers,
            rank,
            manifest,
            decision: None,
            is_marked: false,
            there: None,
            record,
            late: 0,
            line,
        };
        self.subjects.insert(name, subject);
        own
    }

    /// Decides beforehand on those that are not trusted with this place, or are in the way of others.
    fn leave_alone(&mut self, clashes: &BTreeMap<RunId, RunId>, unreadable: &HashSet<String>) {
        for (name, subject) in &mut self.subjects {
            let id = subject.run.id;
            let why = if let Some(why) = self.denied.get(&id) {
                subject.decision = Some(Decision::Keep(Reason::Usual(why.clone())));
                continue;
            } else if let Some(other) = clashes.get(&id) {
                if self.elsewhere.0.contains(other) || self.elsewhere.0.contains(&id) {
                    format!("another registry of this bucket has a record of run {other} there; sweep that registry")
                } else {
                    format!("the tree of run {other} is the same, or one is in the other; nothing of it is touched")
                }
            } else if unreadable.contains(name) || self.elsewhere.1.contains(name) {
                format!("a record of `{name}` cannot be read; nothing of it is touched")
            } else if self.unclear.iter().any(|text| may_name(text, name)) {
                "a manifest names it by a path that leads nowhere; nothing of it is touched".to_owned()
            } else {
                continue;
            };
            subject.decision = Some(Decision::Keep(Reason::Problem(why)));
        }
    }

    /// Goes through all that is there, once.
    async fn walk(&mut self, dry_run: bool) -> Result<(), store::Error> {
        let walked = self.walk_pages(dry_run).await;
        // Whatever happened on the way, what was deleted is reported.
        self.mark_done().await;
        walked
    }

    async fn walk_pages(&mut self, dry_run: bool) -> Result<(), store::Error> {
        let mut after: Option<String> = None;
        loop {
            let page = self.place.page(&self.shards, after.as_deref()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.path.clone());
            for found in page {
                self.look(found, dry_run).await?;
            }
        }
        self.delete_batch().await
    }

    async fn look(&mut self, found: ObjectInfo, dry_run: bool) -> Result<(), store::Error> {
        let ObjectInfo { path, size, modified } = found;
        let below = path.strip_prefix(&self.shards).and_then(|rest| rest.strip_prefix('/'));
        let found = below.and_then(|below| below.strip_prefix("run_id=")).and_then(|rest| rest.split_once('/'));
        let Some((name, within)) = found else { return Ok(()) };
        let (name, within) = (name.to_owned(), within.to_owned());
        let Some(subject) = self.subjects.get(&name) else {
            *self.unknown.entry(name).or_default() += 1;
            return Ok(());
        };
        if subject.decision.is_none() {
            let decision = self.judge(subject);
            if let Some(subject) = self.subjects.get_mut(&name) {
                subject.decision = Some(decision);
            }
        }
        let Some(subject) = self.subjects.get_mut(&name) else { return Ok(()) };
        let is_late = modified >= self.cutoff;
        subject.late += u64::from(is_late);
        let goes = match &subject.decision {
            // It came after the records were read: whose it is, the next sweep knows.
            _ if is_late || is_of_another(&within) => false,
            Some(Decision::Delete { except, attempts_only, .. }) => {
                let is_attempt = subject.run.spec.output.as_ref().is_some_and(|output| output.is_of_attempt(&within));
                let is_plain = subject.run.spec.output.as_ref().is_some_and(|output| output.plain);
                !(except.cover(&path) || is_plain && except.may_mean(&within)) && (is_attempt || !attempts_only)
            }
            _ => false,
        };
        if !goes {
            subject.line.kept += 1;
        } else if dry_run {
            subject.line.objects += 1;
            subject.line.bytes += size;
        } else {
            self.batch.push((name, path, size));
            if self.batch.len() >= DELETED_AT_ONCE {
                self.delete_batch().await?;
            }
        }
        Ok(())
    }

    /// What becomes of a run, by all that is known of it.
    fn judge(&self, subject: &Subject) -> Decision {
        let tree = subject.run.spec.output.as_ref().and_then(|output| output.tree(subject.run.id).ok());
        if let Some(owner) = tree.and_then(|tree| self.place.other_owner(&tree)) {
            return Decision::problem(format!(
                "its directory belongs to {owner}; `[sweep.artifacts]` of `$OUTLIVE_HOME/config.toml` names directories \
                 of others that may be swept"
            ));
        }
        let facts = SweepInput {
            run: &subject.run,
            writers: &subject.writers,
            manifest: subject.manifest.as_ref().map(|manifest| manifest.as_ref().map_err(String::as_str)),
            pointer: self.pointer.as_ref().map_err(String::as_str),
            borrowed: &self.borrowed,
            rank: subject.rank,
            now: self.now,
        };
        decide(&facts, self.spare)
    }

    /// Deletes what has gathered, of runs that are marked.
    async fn delete_batch(&mut self) -> Result<(), store::Error> {
        let batch = std::mem::take(&mut self.batch);
        let mut going: Vec<(String, String, u64)> = Vec::with_capacity(batch.len());
        let mut marked: HashMap<String, bool> = HashMap::new();
        for (name, path, size) in batch {
            let goes = match marked.get(&name) {
                Some(goes) => *goes,
                None => self.is_marked(&name).await?,
            };
            marked.insert(name.clone(), goes);
            let is_gone = |there: &HashSet<String>| !there.contains(&path);
            if self.subjects.get(&name).and_then(|subject| subject.there.as_ref()).is_some_and(is_gone) {
                continue;
            }
            if goes {
                going.push((name, path, size));
            } else if let Some(subject) = self.subjects.get_mut(&name) {
                subject.line.kept += 1;
            }
        }
        if going.is_empty() {
            return Ok(());
        }
        let paths: Vec<String> = going.iter().map(|(_, path, _)| path.clone()).collect();
        let left: HashMap<String, store::Error> = self.place.delete(&paths).await?.into_iter().collect();
        if let Some((path, error)) = left.iter().next() {
            let (what, why) = (self.place.shown(path), format!("{} objects could not be deleted: {error}", left.len()));
            self.problems.push(SweepProblem { what, why });
        }
        for (name, path, size) in going {
            let Some(subject) = self.subjects.get_mut(&name) else { continue };
            if left.contains_key(&path) {
                subject.line.left += 1;
            } else {
                subject.line.objects += 1;
                subject.line.bytes += size;
            }
        }
        Ok(())
    }

    /// The tree of a run, as a path of the place.
    pub(super) fn tree_of(&self, subject: &Subject) -> String {
        format!("{}/run_id={}", self.shards, name_of(&subject.run))
    }

    /// Those of whom nothing was found, and nothing was decided.
    fn bare(&self) -> Vec<RunId> {
        let is_bare = |subject: &&Subject| subject.decision.is_none();
        self.subjects.values().filter(is_bare).map(|subject| subject.run.id).collect()
    }

    /// Whether what is deleted is only hidden, as far as was heard from the place or from the bucket that it is in.
    fn keeps_versions(&self) -> bool {
        let same = |store: &&ObjectStore| self.place.is_in(store.address());
        self.place.keeps_versions() || self.registry.bucket().filter(same).is_some_and(ObjectStore::keeps_versions)
    }

    fn tell(self, report: &mut SweepReport) {
        if self.keeps_versions() {
            report.versioned.push(self.place.shown("").trim_end_matches('/').to_owned());
        }
        report.problems.extend(self.problems);
        for (name, objects) in self.unknown {
            let why = format!("{objects} objects of a run that no record is of; nothing of it is touched");
            report.problems.push(SweepProblem {
                what: format!("{}/…/run_id={name}", self.place.shown("").trim_end_matches('/')),
                why,
            });
        }
        let mut subjects: Vec<Subject> = self.subjects.into_values().collect();
        subjects.sort_by_key(|subject| subject.line.id);
        for Subject { decision, mut line, late, .. } in subjects {
            match decision {
                None => {}
                Some(Decision::Keep(Reason::Usual(why))) => {
                    line.reason = why;
                    if line.objects > 0 { report.swept.push(line) } else { report.kept.push(line) }
                }
                Some(Decision::Keep(Reason::Problem(why))) => {
                    report.problems.push(SweepProblem { what: line.prefix.clone(), why: why.clone() });
                    line.reason = why;
                    report.kept.push(line);
                }
                Some(Decision::Delete { reason, .. }) if line.objects + line.left > 0 => {
                    line.reason = reason;
                    report.swept.push(line);
                }
                Some(Decision::Delete { .. }) if line.kept > 0 => {
                    line.reason = match late {
                        0 => "all that is left of it is named by a manifest, or is of no attempt".into(),
                        _ => "what is there was put after the sweep began, or is named by a manifest".into(),
                    };
                    report.kept.push(line);
                }
                // Another sweeper has deleted all of it meanwhile.
                Some(Decision::Delete { .. }) => {}
            }
        }
    }
}

/// Whether a path inside a tree is in the tree of another run, or is a record of one.
fn is_of_another(within: &str) -> bool {
    let is_record = within.ends_with("/run.yaml") && within.contains("_run_id=");
    is_record || within.split('/').any(|part| part.starts_with("run_id="))
}

#[cfg(test)]
mod tests {
    #[test]
    fn t8_01_objects_of_another_run_inside_a_tree_are_reported() {
        for within in ["shards/run_id=b/db=0/x", "run_id=b/x", "runs/2026_run_id=b_1/run.yaml"] {
            assert!(super::is_of_another(within), "{within}");
        }
        for within in ["db=00000/attempt=00/x", "run.yaml", "manifests/2026_run_id=a/manifest.json"] {
            assert!(!super::is_of_another(within), "{within}");
        }
    }
}
