//! A pass of the sweeper: reads what decisions rest on, lists what there is, and deletes what is decided.
//!
//! Each place is listed once, page by page, and deleted from in batches, whatever the number of its runs. Before a batch is
//! sent, each run that is newly in it is marked; where that is refused, nothing of the run is in the batch any more.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::forget::{Sight, forget, forgettable};
use super::manifest::{Names, plainly};
use super::naming::{by_run, name_of, names, understood};
use super::place::{Found, Place};
use super::trees::clashes;
use super::{Decision, Facts, Line, Problem, Reason, Report, Spare, decide, over_since};
use crate::error::Error;
use crate::filter::Filter;
use crate::id::RunId;
use crate::process::{Identity, Liveness, Vantage};
use crate::registry::Registry;
use crate::run::{Run, State};
use crate::runtime::reaper::Reaper;
use crate::store::object::{DELETED_AT_ONCE, ObjectStore};
use crate::store::{self, Page, Record, Walk};
use crate::time::{Clock, SystemClock, Timestamp};
use crate::transition::Action;

/// Looks at the artifacts of every run, and deletes what nobody needs; with `dry_run` only says what it would, after a reap.
pub async fn sweep(registry: &Registry, spare: &Spare, dry_run: bool) -> Result<Report, Error> {
    let mut report = Report { dry_run, ..Report::default() };
    // Whoever comes from here on may have a record that is not read.
    let began = SystemClock.since_boot();
    let mut known = everything(registry, &mut report).await?;
    if dry_run {
        // Whoever sweeps reaps before.
        Reaper::new(registry.worker()).foresee(registry, &mut known.runs, known.now);
    }
    let grounds = grounds(registry, &known.runs, &mut report);
    let trees = grounds.iter().flat_map(Ground::trees).collect();
    let clashes = clashes(trees);
    let mut passes = Vec::new();
    for ground in grounds {
        let Ground { named, shards, place, runs } = ground;
        let Ok(place) = place else { continue };
        let cutoff = (began, spare.unsure);
        match Pass::new(registry, place, spare, known.now, cutoff, runs, &known.records).await {
            Ok(pass) => passes.push((named, shards, pass)),
            Err(error) => report.problems.push(Problem { what: named, why: error.to_string() }),
        }
    }
    share_names(&mut passes);
    let mut bare = BTreeSet::new();
    for (named, shards, mut pass) in passes {
        pass.leave_alone(&clashes, &known.unreadable);
        match pass.walk(&shards, dry_run).await {
            Ok(()) => bare.extend(pass.bare()),
            Err(error) => report.problems.push(Problem { what: named, why: error.to_string() }),
        }
        pass.tell(&mut report);
    }
    if let Some(after) = spare.forget_after {
        forget_old(registry, &known, &bare, spare, after, &mut report).await?;
    }
    report.objects = report.swept.iter().map(|line| line.objects).sum();
    report.bytes = report.swept.iter().map(|line| line.bytes).sum();
    report.left = report.swept.iter().map(|line| line.left).sum();
    Ok(report)
}

/// Has every pass know what the manifests of all others name: the trees of one place may be laid out in several ways, and
/// what leads nowhere in one place may lead somewhere in another.
fn share_names(passes: &mut [(String, String, Pass<'_>)]) {
    let mut borrowed: HashMap<String, Names> = HashMap::new();
    let mut unclear = Vec::new();
    for (_, _, pass) in passes.iter_mut() {
        let names = borrowed.entry(pass.place.tree("")).or_default();
        *names = names.and(&pass.borrowed);
        unclear.append(&mut pass.unclear);
    }
    for (_, _, pass) in passes {
        pass.borrowed = borrowed.get(&pass.place.tree("")).cloned().unwrap_or_default();
        pass.unclear.clone_from(&unclear);
    }
}

/// Deletes records that are kept long enough, or says which it would.
async fn forget_old(
    registry: &Registry,
    known: &Known,
    bare: &BTreeSet<RunId>,
    spare: &Spare,
    after: Duration,
    report: &mut Report,
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

/// What is known of all runs.
struct Known {
    runs: Vec<Run>,
    /// As they were read, where that is what a change can be made from.
    records: HashMap<RunId, Record>,
    /// What those are called in paths whose records cannot be read.
    unreadable: HashSet<String>,
    /// The store's time.
    now: Timestamp,
}

async fn everything(registry: &Registry, report: &mut Report) -> Result<Known, Error> {
    if let Some(bucket) = registry.bucket() {
        let (records, unreadable, now) = bucket.everything().await?;
        let name =
            |(key, _): &(String, store::Error)| Some(key.split_once("_run_id=")?.1.rsplit_once('_')?.0.to_owned());
        let names = unreadable.iter().filter_map(name).collect();
        let problem = |(what, error): (String, store::Error)| Problem { what, why: error.to_string() };
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
        return Ok(Known { runs, records, unreadable: names, now });
    }
    let now = registry.clock().now();
    let mut walk = Walk::from(Filter::default(), Page::default());
    let mut runs = Vec::new();
    while let Some(records) = walk.next(registry.store()).await? {
        runs.extend(records.into_iter().map(|record| record.run));
    }
    Ok(Known { runs, records: HashMap::new(), unreadable: HashSet::new(), now })
}

/// What the trees of some runs are in.
struct Ground {
    /// As records name it.
    named: String,
    shards: String,
    place: Result<Place, String>,
    runs: Vec<Run>,
}

impl Ground {
    /// The trees of all its runs, in full. Those of a record that makes no sense are, too: somebody may mean them.
    fn trees(&self) -> impl Iterator<Item = (String, RunId)> {
        let tree = |run: &Run| (format!("{}/run_id={}", self.shards, name_of(run)), run.id);
        self.runs.iter().map(tree).map(|(tree, id)| match &self.place {
            Ok(place) => (place.tree(&tree), id),
            Err(_) => (format!("{}/{tree}", self.named), id),
        })
    }
}

fn grounds(registry: &Registry, runs: &[Run], report: &mut Report) -> Vec<Ground> {
    let mut grounds: BTreeMap<(String, String), Vec<Run>> = BTreeMap::new();
    for run in runs {
        let Some(output) = &run.spec.output else { continue };
        let place = (output.prefix.trim_end_matches('/').to_owned(), output.shard_prefix.clone());
        grounds.entry(place).or_default().push(run.clone());
    }
    let address = registry.bucket().map(|bucket| bucket.address());
    let all: BTreeSet<String> = grounds.keys().map(|(_, shards)| shards.trim_matches('/').to_owned()).collect();
    let all = Arc::new(all);
    let ground = |((named, shards), runs): ((String, String), Vec<Run>)| {
        let place = Place::new(&named, address, all.clone());
        if let Err(why) = &place {
            report.problems.push(Problem { what: named.clone(), why: why.clone() });
        }
        Ground { named, shards, place, runs }
    };
    grounds.into_iter().map(ground).collect()
}

/// A run of a place, and what is found of it there.
struct Subject {
    run: Run,
    rank: usize,
    /// What its manifests name; none where it has none.
    manifest: Option<Result<Names, String>>,
    /// What was decided, once something of it was found.
    decision: Option<Decision>,
    is_marked: bool,
    /// Its record as it was last read or written.
    record: Option<Record>,
    line: Line,
}

struct Pass<'a> {
    registry: &'a Registry,
    place: Place,
    spare: &'a Spare,
    now: Timestamp,
    /// What was put since then stays, by the place's own clock.
    cutoff: Timestamp,
    pointer: Result<Names, String>,
    /// What manifests name outside the trees of their own runs.
    borrowed: Names,
    /// What manifests say of runs in words that lead nowhere.
    unclear: Vec<String>,
    /// By what they are called in paths.
    subjects: HashMap<String, Subject>,
    /// Trees that no record is known of.
    unknown: BTreeMap<String, u64>,
    /// What is to be deleted next: the run, the path, its size.
    batch: Vec<(String, String, u64)>,
    problems: Vec<Problem>,
}

impl<'a> Pass<'a> {
    async fn new(
        registry: &'a Registry,
        place: Place,
        spare: &'a Spare,
        now: Timestamp,
        (began, unsure): (Duration, Duration),
        mut runs: Vec<Run>,
        records: &HashMap<RunId, Record>,
    ) -> Result<Self, store::Error> {
        let pointer = place.names_by_pointer().await;
        let manifests = by_run(place.manifests().await?, &runs);
        let unheard = || store::Error::Unsupported("its clock is not known".into());
        // What is known of another's clock is known to the second.
        let began = place.time_at(began).ok_or_else(unheard)?.after(Duration::from_secs(1));
        let cutoff = Timestamp::from_micros(began.as_micros() - i64::try_from(unsure.as_micros()).unwrap_or(i64::MAX));
        let ended_at = |run: &Run| match &run.state {
            State::Ended(ending) => ending.at,
            // What has not ended is younger than whatever has.
            _ => now,
        };
        runs.sort_by_key(|run| std::cmp::Reverse((ended_at(run), run.id)));
        let (mut subjects, mut borrowed) = (HashMap::new(), Names::default());
        let mut unclear: Vec<String> =
            pointer.as_ref().map(|(names, _)| names.unclear().map(plainly).collect()).unwrap_or_default();
        let mut rank = 0;
        let mut references = BTreeSet::new();
        for run in runs {
            let is_over = over_since(&run, now).is_ok();
            let name = name_of(&run);
            let refers = run.manifest_ref.iter().chain(manifests.get(&name).into_iter().flatten());
            let own: BTreeSet<String> = refers.filter_map(|reference| place.below(reference)).collect();
            let tree = run.spec.output.as_ref().and_then(|output| output.tree(run.id).ok());
            let named = names(&place, &run, manifests.get(&name)).await;
            if let Some(Ok(named)) = &named {
                // Whatever else is wrong with it, what it names of others is theirs and needed.
                borrowed = borrowed.and(&named.outside(tree.as_deref().unwrap_or_default()));
                unclear.extend(named.unclear().map(plainly));
            }
            let manifest = match named {
                Some(Ok(named)) => Some(understood(&place, &run, &own, named).await),
                named => named,
            };
            references.extend(own);
            let prefix = tree.map_or_else(|| place.shown("?"), |tree| place.shown(&tree));
            let line = Line { id: run.id, prefix, reason: String::new(), objects: 0, bytes: 0, kept: 0, left: 0 };
            let record = records.get(&run.id).cloned();
            subjects.insert(name, Subject { run, rank, manifest, decision: None, is_marked: false, record, line });
            // Only those that have ended are among the last that have.
            rank += usize::from(is_over);
        }
        // A manifest that lies in a tree is as needed as what it names.
        references.iter().for_each(|path| borrowed.insert(path));
        // What the pointer's manifest says without a way there is of the run that it is of; where that is not known, of any.
        let pointer = pointer.map(|(names, pointed)| match pointed.iter().all(|path| references.contains(path)) {
            true => names.unsaid(),
            false => names,
        });
        Ok(Self {
            registry,
            place,
            spare,
            now,
            cutoff,
            pointer,
            borrowed,
            unclear,
            subjects,
            unknown: BTreeMap::new(),
            batch: Vec::new(),
            problems: Vec::new(),
        })
    }

    /// Decides beforehand on those that are in the way of others.
    fn leave_alone(&mut self, clashes: &BTreeMap<RunId, RunId>, unreadable: &HashSet<String>) {
        for (name, subject) in &mut self.subjects {
            let why = if let Some(other) = clashes.get(&subject.run.id) {
                format!("the tree of run {other} is the same, or one is in the other; nothing of it is touched")
            } else if unreadable.contains(name) {
                format!("a record of `{name}` cannot be read; nothing of it is touched")
            } else if let Some(text) = self.unclear.iter().find(|text| text.contains(&plainly(name))) {
                format!("a manifest names `{text}`, which leads nowhere; nothing of it is touched")
            } else {
                continue;
            };
            subject.decision = Some(Decision::Keep(Reason::Problem(why)));
        }
    }

    /// Goes through all that is there, once.
    async fn walk(&mut self, shards: &str, dry_run: bool) -> Result<(), store::Error> {
        let walked = self.walk_pages(shards, dry_run).await;
        // Whatever happened on the way, what was deleted is told.
        self.mark_done().await;
        walked
    }

    async fn walk_pages(&mut self, shards: &str, dry_run: bool) -> Result<(), store::Error> {
        let mut after: Option<String> = None;
        loop {
            let page = self.place.page(shards, after.as_deref()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.path.clone());
            for found in page {
                self.look(shards, found, dry_run).await?;
            }
        }
        self.delete_batch().await
    }

    async fn look(&mut self, shards: &str, found: Found, dry_run: bool) -> Result<(), store::Error> {
        let Found { path, size, modified } = found;
        let below = path.strip_prefix(shards).and_then(|rest| rest.strip_prefix('/'));
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
        let goes = match &subject.decision {
            // It came after the records were read: whose it is, the next sweep knows.
            _ if modified >= self.cutoff => false,
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
        let facts = Facts {
            run: &subject.run,
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
            self.problems.push(Problem { what, why });
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

    /// Whether a run is marked as being swept. What has changed since it was looked at speaks for it: a mark is put in place
    /// of the very record that was read.
    async fn is_marked(&mut self, name: &str) -> Result<bool, store::Error> {
        let Some(subject) = self.subjects.get(name) else { return Ok(false) };
        let Some(Decision::Delete { reason, .. }) = &subject.decision else { return Ok(false) };
        if subject.is_marked && !subject.run.copied {
            return Ok(true);
        }
        let outcome = if subject.run.copied {
            self.look_again(&subject.run).await?.map(|()| None).map_err(Reason::Usual)
        } else {
            self.mark(subject, reason).await.map(Some)
        };
        let Some(subject) = self.subjects.get_mut(name) else { return Ok(false) };
        match outcome {
            Ok(marked) => {
                subject.is_marked = true;
                subject.record = marked.or(subject.record.take());
            }
            Err(why) => {
                subject.is_marked = false;
                subject.decision = Some(Decision::Keep(why));
            }
        }
        Ok(subject.is_marked)
    }

    /// A record that only its writer writes bears no mark: it is read again before every batch.
    async fn look_again(&self, seen: &Run) -> Result<Result<(), String>, store::Error> {
        let Some(record) = self.registry.store().get(&[seen.id]).await?.pop() else {
            return Ok(Err("its record is gone".into()));
        };
        Ok(is_as_seen(&record.run, seen).and_then(|()| over_since(&record.run, self.now).map(drop)))
    }

    /// Marks a run as being swept, if it is as it was when it was looked at. Answers with the record that bears the mark.
    async fn mark(&self, subject: &Subject, reason: &str) -> Result<Record, Reason> {
        let seen = &subject.run;
        let before = seen.swept.as_ref().and_then(|swept| swept.process.as_ref());
        let gone = before.is_some_and(|process| matches!(process.probe(&Vantage::here()), Liveness::Dead(_)));
        let sweep = |_: &Run| Action::Sweep {
            seen: seen.swept.as_deref().cloned(),
            done: false,
            reason: reason.to_owned(),
            process: Some(Identity::own()),
            gone,
        };
        match self.registry.change_from(subject.record.clone(), seen.id, sweep).await {
            Ok((record, _)) => is_as_seen(&record.run, seen).map(|()| record).map_err(Reason::Usual),
            Err(error @ Error::Refused { .. }) => Err(Reason::Usual(error.to_string())),
            Err(error) => Err(Reason::Problem(error.to_string())),
        }
    }

    /// Says of each run that was swept what became of it.
    async fn mark_done(&mut self) {
        for subject in self.subjects.values_mut().filter(|subject| subject.is_marked && !subject.run.copied) {
            let Line { objects, bytes, left, .. } = &subject.line;
            let rest = if *left == 0 { String::new() } else { format!(", {left} are left") };
            let reason = format!("{objects} objects of {bytes} bytes deleted{rest}");
            let marked = subject.record.take();
            let seen = marked.as_ref().and_then(|record| record.run.swept.as_deref().cloned());
            let action = |_: &Run| Action::Sweep {
                seen: seen.clone(),
                done: true,
                reason: reason.clone(),
                process: None,
                gone: false,
            };
            if let Err(error) = self.registry.change_from(marked, subject.run.id, action).await {
                let what = subject.line.prefix.clone();
                self.problems.push(Problem { what, why: format!("{reason}, which could not be recorded: {error}") });
                // Of the others it is not asked for either, if nobody answers.
                if matches!(&error, Error::Store(error) if error.is_passing()) {
                    return;
                }
            }
        }
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

    fn tell(self, report: &mut Report) {
        if self.keeps_versions() {
            report.versioned.push(self.place.shown("").trim_end_matches('/').to_owned());
        }
        report.problems.extend(self.problems);
        for (name, objects) in self.unknown {
            let why = format!("{objects} objects of a run that no record is of; nothing of it is touched");
            report
                .problems
                .push(Problem {
                    what: format!("{}/…/run_id={name}", self.place.shown("").trim_end_matches('/')), why
                });
        }
        let mut subjects: Vec<Subject> = self.subjects.into_values().collect();
        subjects.sort_by_key(|subject| subject.line.id);
        for Subject { decision, mut line, .. } in subjects {
            match decision {
                None => {}
                Some(Decision::Keep(Reason::Usual(why))) => {
                    line.reason = why;
                    if line.objects > 0 { report.swept.push(line) } else { report.kept.push(line) }
                }
                Some(Decision::Keep(Reason::Problem(why))) => {
                    report.problems.push(Problem { what: line.prefix.clone(), why: why.clone() });
                    line.reason = why;
                    report.kept.push(line);
                }
                Some(Decision::Delete { reason, .. }) => {
                    line.reason = reason;
                    if line.objects + line.left > 0 { report.swept.push(line) } else { report.kept.push(line) }
                }
            }
        }
    }
}

/// Whether a run is as it was when it was decided on: a manifest that came meanwhile names what was not looked for, and
/// whoever has gone on with it has made what was not there.
fn is_as_seen(run: &Run, seen: &Run) -> Result<(), String> {
    if run.manifest_ref != seen.manifest_ref {
        Err("its manifest has changed".into())
    } else if run.epoch != seen.epoch {
        Err("somebody has gone on with it".into())
    } else {
        Ok(())
    }
}
