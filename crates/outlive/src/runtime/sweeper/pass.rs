//! A pass of the sweeper: reads what decisions rest on, lists what there is, and deletes what is decided.
//!
//! Each place is listed once, page by page, and deleted from in batches, whatever the number of its runs. Before a batch is
//! sent, each run that is newly in it is marked; where that is refused, nothing of the run is in the batch any more.

use std::collections::{BTreeMap, HashMap};

use super::manifest::Names;
use super::place::Place;
use super::{Decision, Facts, Line, Problem, Reason, Report, Spare, decide, over_since};
use crate::error::Error;
use crate::filter::Filter;
use crate::id::RunId;
use crate::registry::Registry;
use crate::run::{Run, State, Swept};
use crate::store::object::DELETED_AT_ONCE;
use crate::store::{self, Page, Walk};
use crate::time::Timestamp;
use crate::transition::Action;

/// Looks at the artifacts of every run, and deletes what nobody needs; with `dry_run` only says what it would.
pub async fn sweep(registry: &Registry, spare: &Spare, dry_run: bool) -> Result<Report, Error> {
    let mut report = Report { dry_run, ..Report::default() };
    let (runs, now) = everything(registry, &mut report).await?;
    let mut places: BTreeMap<(String, String), Vec<Run>> = BTreeMap::new();
    for run in runs {
        let Some(output) = &run.spec.output else { continue };
        let place = (output.prefix.trim_end_matches('/').to_owned(), output.shard_prefix.clone());
        places.entry(place).or_default().push(run);
    }
    for ((prefix, shards), runs) in places {
        let mut problem = |why: String| report.problems.push(Problem { what: prefix.clone(), why });
        let place = match Place::new(&prefix, registry.bucket().map(|bucket| bucket.address())) {
            Ok(place) => place,
            Err(why) => {
                problem(why);
                continue;
            }
        };
        let pass = Pass::new(registry, place, spare, now, runs).await;
        let mut pass = match pass {
            Ok(pass) => pass,
            Err(error) => {
                problem(error.to_string());
                continue;
            }
        };
        if let Err(error) = pass.walk(&shards, dry_run).await {
            problem(error.to_string());
        }
        pass.tell(&mut report);
    }
    report.objects = report.swept.iter().map(|line| line.objects).sum();
    report.bytes = report.swept.iter().map(|line| line.bytes).sum();
    report.left = report.swept.iter().map(|line| line.left).sum();
    Ok(report)
}

/// All runs, and the store's time.
async fn everything(registry: &Registry, report: &mut Report) -> Result<(Vec<Run>, Timestamp), Error> {
    if let Some(bucket) = registry.bucket() {
        let (records, unreadable, now) = bucket.everything().await?;
        let problem = |(what, error): (String, store::Error)| Problem { what, why: error.to_string() };
        report.problems.extend(unreadable.into_iter().map(problem));
        return Ok((records.into_iter().map(|record| record.run).collect(), now));
    }
    let mut walk = Walk::from(Filter::default(), Page::default());
    let mut runs = Vec::new();
    while let Some(records) = walk.next(registry.store()).await? {
        runs.extend(records.into_iter().map(|record| record.run));
    }
    Ok((runs, registry.clock().now()))
}

/// A run of a place, and what is found of it there.
struct Subject {
    run: Run,
    rank: usize,
    /// What was decided, once something of it was found.
    decision: Option<Decision>,
    is_marked: bool,
    line: Line,
}

struct Pass<'a> {
    registry: &'a Registry,
    place: Place,
    spare: &'a Spare,
    now: Timestamp,
    pointer: Result<Names, String>,
    manifests: Vec<(String, String)>,
    /// By what they are called in paths.
    subjects: HashMap<String, Subject>,
    /// Trees that no record is known of.
    unknown: BTreeMap<String, u64>,
    /// What is to be deleted next: the run, the path, its size.
    batch: Vec<(String, String, u64)>,
    problems: Vec<Problem>,
}

fn name_of(run: &Run) -> String {
    run.spec.output.as_ref().and_then(|output| output.run_id.clone()).unwrap_or_else(|| run.id.to_string())
}

impl<'a> Pass<'a> {
    async fn new(
        registry: &'a Registry,
        place: Place,
        spare: &'a Spare,
        now: Timestamp,
        mut runs: Vec<Run>,
    ) -> Result<Self, store::Error> {
        let pointer = place.names_by_pointer().await;
        let manifests = place.manifests().await?;
        let ended_at = |run: &Run| match &run.state {
            State::Ended(ending) => ending.at,
            // What has not ended is younger than whatever has.
            _ => now,
        };
        runs.sort_by_key(|run| std::cmp::Reverse((ended_at(run), run.id)));
        let (mut subjects, mut problems) = (HashMap::new(), Vec::new());
        let mut rank = 0;
        for run in runs {
            let is_over = over_since(&run, now).is_ok();
            let name = name_of(&run);
            let tree = run.spec.output.as_ref().and_then(|output| output.tree(run.id).ok());
            let prefix = tree.map_or_else(|| place.shown("?"), |tree| place.shown(&tree));
            let line = Line { id: run.id, prefix, reason: String::new(), objects: 0, bytes: 0, kept: 0, left: 0 };
            let subject = Subject { run, rank, decision: None, is_marked: false, line };
            // Only those that have ended are among the last that have.
            rank += usize::from(is_over);
            if let Some(twin) = subjects.insert(name.clone(), subject) {
                let twin: Subject = twin;
                let why = format!("runs {} and {} have the same tree; nothing of it is touched", twin.line.id, name);
                problems.push(Problem { what: twin.line.prefix.clone(), why: why.clone() });
                if let Some(subject) = subjects.get_mut(&name) {
                    subject.decision = Some(Decision::Keep(Reason::Problem(why)));
                }
            }
        }
        let (unknown, batch) = (BTreeMap::new(), Vec::new());
        Ok(Self { registry, place, spare, now, pointer, manifests, subjects, unknown, batch, problems })
    }

    /// Goes through all that is there, once.
    async fn walk(&mut self, shards: &str, dry_run: bool) -> Result<(), store::Error> {
        let mut after: Option<String> = None;
        loop {
            let page = self.place.page(shards, after.as_deref()).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (path, size) in page {
                self.look(shards, path, size, dry_run).await?;
            }
        }
        self.delete_batch().await?;
        if !dry_run {
            self.mark_done().await?;
        }
        Ok(())
    }

    async fn look(&mut self, shards: &str, path: String, size: u64, dry_run: bool) -> Result<(), store::Error> {
        let below = path.strip_prefix(shards).and_then(|rest| rest.strip_prefix('/'));
        let found = below.and_then(|below| below.strip_prefix("run_id=")).and_then(|rest| rest.split_once('/'));
        let Some((name, within)) = found else { return Ok(()) };
        let (name, within) = (name.to_owned(), within.to_owned());
        let Some(subject) = self.subjects.get(&name) else {
            *self.unknown.entry(name).or_default() += 1;
            return Ok(());
        };
        if subject.decision.is_none() {
            let decision = self.decide(&name).await;
            if let Some(subject) = self.subjects.get_mut(&name) {
                subject.decision = Some(decision);
            }
        }
        let Some(subject) = self.subjects.get_mut(&name) else { return Ok(()) };
        let goes = match &subject.decision {
            Some(Decision::Delete { except, attempts_only, .. }) => {
                let is_attempt = subject.run.spec.output.as_ref().is_some_and(|output| output.is_of_attempt(&within));
                !except.cover(&path) && (is_attempt || !attempts_only)
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

    /// What becomes of a run, by all that is known of it now.
    async fn decide(&self, name: &str) -> Decision {
        let Some(subject) = self.subjects.get(name) else {
            return Decision::Keep(Reason::Problem("nothing is known of it".into()));
        };
        self.judge(&subject.run, subject.rank, name).await
    }

    async fn judge(&self, run: &Run, rank: usize, name: &str) -> Decision {
        let winners = run.spec.output.as_ref().and_then(|output| output.winners.as_deref());
        // What its record names, and what is there that says it is of it.
        let is_its = |of: &str| of == name || of.strip_prefix(name).is_some_and(|rest| rest.starts_with(['_', '.']));
        let found = self.manifests.iter().filter(|(of, _)| is_its(of)).map(|(_, path)| path.clone());
        let named = run.manifest_ref.clone().into_iter().chain(found);
        let mut manifest: Option<Result<Names, String>> = None;
        for reference in named {
            let names = self.place.names_in(&reference, winners).await;
            manifest = Some(match (manifest, names) {
                (Some(Ok(known)), Ok(names)) => Ok(known.and(&names)),
                (Some(Err(why)), _) | (_, Err(why)) => Err(why),
                (None, names) => names,
            });
        }
        let facts = Facts {
            run,
            manifest: manifest.as_ref().map(|manifest| manifest.as_ref().map_err(String::as_str)),
            pointer: self.pointer.as_ref().map_err(String::as_str),
            rank,
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

    /// Whether a run is marked as being swept. It is looked at again right before: what has changed since speaks for it.
    async fn is_marked(&mut self, name: &str) -> Result<bool, store::Error> {
        let Some(subject) = self.subjects.get(name) else { return Ok(false) };
        let Some(Decision::Delete { reason, .. }) = &subject.decision else { return Ok(false) };
        if subject.is_marked && !subject.run.copied {
            return Ok(true);
        }
        let (run, rank, reason) = (subject.run.clone(), subject.rank, reason.clone());
        let outcome = if run.copied {
            self.look_again(run.id, rank, name).await?.map(|()| None)
        } else {
            self.mark(&run, &reason).await
        };
        let Some(subject) = self.subjects.get_mut(name) else { return Ok(false) };
        match outcome {
            Ok(mark) => {
                subject.is_marked = true;
                subject.run.swept = mark;
            }
            Err(why) => subject.decision = Some(Decision::Keep(Reason::Usual(why))),
        }
        Ok(subject.is_marked)
    }

    /// A record that only its writer writes bears no mark: it is read again before every batch.
    async fn look_again(&self, id: RunId, rank: usize, name: &str) -> Result<Result<(), String>, store::Error> {
        let Some(record) = self.registry.store().get(&[id]).await?.pop() else {
            return Ok(Err("its record is gone".into()));
        };
        Ok(match self.judge(&record.run, rank, name).await {
            Decision::Delete { .. } => Ok(()),
            Decision::Keep(Reason::Usual(why) | Reason::Problem(why)) => Err(why),
        })
    }

    /// Marks a run as being swept, if it is as it was when it was looked at. Answers with the mark.
    async fn mark(&self, seen: &Run, reason: &str) -> Result<Option<Swept>, String> {
        let sweep = |_: &Run| Action::Sweep { seen: seen.swept.clone(), done: false, reason: reason.to_owned() };
        let (record, _) = self.registry.change(seen.id, sweep).await.map_err(|error| error.to_string())?;
        // A manifest that came meanwhile names what was not looked for.
        if record.run.manifest_ref == seen.manifest_ref {
            Ok(record.run.swept)
        } else {
            Err("its manifest has changed".into())
        }
    }

    /// Says of each run that was swept what became of it.
    async fn mark_done(&mut self) -> Result<(), store::Error> {
        for subject in self.subjects.values_mut().filter(|subject| subject.is_marked && !subject.run.copied) {
            let Line { objects, bytes, left, .. } = &subject.line;
            let rest = if *left == 0 { String::new() } else { format!(", {left} are left") };
            let reason = format!("{objects} objects of {bytes} bytes deleted{rest}");
            let seen = subject.run.swept.clone();
            let action = |_: &Run| Action::Sweep { seen: seen.clone(), done: true, reason: reason.clone() };
            if let Err(error) = self.registry.change(subject.run.id, action).await {
                let what = subject.line.prefix.clone();
                self.problems.push(Problem { what, why: format!("{reason}, which could not be recorded: {error}") });
            }
        }
        Ok(())
    }

    fn tell(self, report: &mut Report) {
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
