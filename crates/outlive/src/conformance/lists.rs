//! Promise 7: a list is what [`Filter::matches`], in order, each run on one page.
//!
//! A population is drawn from few words, so that filters drawn from the same words often match, and often match only
//! in part.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use super::scene::{Scene, cancel, failed, fence, finish, suspend};
use super::{Ground, ensure};
use crate::lifecycle::{Action, Observed, Outcome, QueueEdit};
use crate::model::filter::Filter;
use crate::model::id::{RunId, WorkerId};
use crate::model::owner::Evidence;
use crate::model::run::{Arg, Command, Interruption, Run, Share, Spec, StateName, Step};
use crate::model::step;
use crate::model::time::Timestamp;
use crate::store::{Cursor, Order, Page, Record, RunCounts};
use crate::testing::{person, spec};

const POPULATION: usize = 48;
const FILTERS: usize = 150;
const WORDS: [&str; 6] = ["alpha", "Alpha", "beta", "alphabet", "100%_\\'\"", "ΑΛΦΑ"];

fn pick<'a, T>(scene: &Scene, of: &'a [T]) -> &'a T {
    &of[usize::try_from(scene.entropy.below(of.len() as u64)).unwrap_or(0)]
}

fn word(scene: &Scene) -> String {
    (*pick(scene, &WORDS)).into()
}

fn drawn_spec(scene: &Scene) -> Spec {
    let mut spec = Spec::new(word(scene), person("ada"));
    spec.priority = i32::try_from(scene.entropy.below(3)).unwrap_or(0) - 1;
    spec.queued = scene.entropy.one_in(2);
    if scene.entropy.one_in(2) {
        spec.name = Some(word(scene));
    }
    if scene.entropy.one_in(3) {
        spec.share = Some(Share { tenant: word(scene), weight: 1 });
    }
    for _ in 0..scene.entropy.below(3) {
        spec.labels.insert(word(scene), word(scene));
    }
    if scene.entropy.one_in(3) {
        spec.command = Some(Command::new(vec![Arg::Text(word(scene))], Arg::Text("/".into())));
    }
    if scene.entropy.one_in(3) {
        spec.kind = step::KIND.into();
        let (of, name, fingerprint) = (parent(scene), word(scene), word(scene));
        spec.step = Some(Step { of, attempt: 1, name, fingerprint, changed: false, replays: None, parent: None });
    }
    spec
}

/// One of a few runs that others are steps of.
fn parent(scene: &Scene) -> RunId {
    RunId::derived(Timestamp::from_micros(1), word(scene).as_bytes())
}

/// Makes a run and leads it, by the rules, into one state or another.
async fn populate_one(scene: &Scene, workers: &[WorkerId], made_at: Timestamp) -> Result<(), String> {
    let draft = scene.draft(drawn_spec(scene));
    let draft = Run::new(draft.id, draft.spec, None, made_at);
    let id = draft.id;
    let worker = *pick(scene, workers);
    let state = *pick(scene, &StateName::ALL);
    let claimed = state != StateName::Pending;
    scene.commit(scene.making(draft, claimed.then_some(worker))?).await?;
    let record = scene.read(id).await?;
    let fence = fence(worker, &record);
    let interruption = Interruption { signal: Some(15), reason: "SIGTERM".into() };
    let failed = Outcome::failed("exit", "1");
    let beat = record.run.owner().map_or(0, |owner| owner.heard.beat);
    let observed = Observed { epoch: record.run.epoch, beat };
    let action = match state {
        StateName::Pending if record.run.spec.queued => Action::Edit(QueueEdit { priority: Some(1), due: None }),
        StateName::Pending | StateName::Running => return Ok(()),
        StateName::Suspended => suspend(worker, &record),
        StateName::Interrupted => Action::Interrupt { fence, interruption, exit: None },
        StateName::Dead => Action::Reap { observed, evidence: Evidence::LockFree, reaper: None },
        StateName::Succeeded => finish(worker, &record),
        StateName::Failed => Action::Finish { fence, outcome: failed, exit: None },
        StateName::Cancelled => {
            let suspended = scene.act(&record, &suspend(worker, &record)).await?;
            scene.act(&suspended, &cancel()).await?;
            return Ok(());
        }
    };
    let ended = scene.act(&record, &action).await?;
    if ended.run.ending().is_some() && scene.entropy.one_in(3) {
        scene.act(&ended, &Action::Archive { reason: None }).await?;
    }
    Ok(())
}

/// A population, some of it made in the same moment, and those who own it.
async fn populate(scene: &Scene) -> Result<(Vec<Run>, Vec<WorkerId>), String> {
    let workers: Vec<WorkerId> = (0..3).map(|_| scene.worker()).collect();
    let mut made_at = scene.now();
    for _ in 0..POPULATION {
        if scene.entropy.one_in(2) {
            made_at = scene.now();
        }
        populate_one(scene, &workers, made_at).await?;
    }
    let listed = list_all(scene, &Filter::default(), Order::Oldest, 1_000).await?;
    ensure!(listed.len() == POPULATION, "of {POPULATION} runs {} are listed", listed.len());
    Ok((listed.into_iter().map(|record| record.run).collect(), workers))
}

/// A filter with each part as likely present as not, or with one part alone.
fn draw_filter(scene: &Scene, runs: &[Run], workers: &[WorkerId]) -> Filter {
    const PARTS: u64 = 19;
    let alone = scene.entropy.one_in(2).then(|| scene.entropy.below(PARTS));
    let wants = |part: u64| alone.map_or_else(|| scene.entropy.one_in(4), |alone| alone == part);
    let mut filter = Filter::default();
    if wants(0) {
        let ids: Vec<RunId> = (0..scene.entropy.below(8)).map(|_| pick(scene, runs).id).collect();
        filter.ids = Some(ids.into_iter().chain([scene.draft(spec("missing")).id]).collect());
    }
    if wants(1) {
        let id = pick(scene, runs).id.to_string();
        let length = usize::try_from(scene.entropy.below(37)).unwrap_or(0);
        filter.id_prefix = Some(id[..length].into());
    }
    if wants(2) {
        filter.states = Some((0..scene.entropy.below(4)).map(|_| *pick(scene, &StateName::ALL)).collect());
    }
    if wants(3) {
        filter.name = Some(word(scene));
    }
    if wants(4) {
        filter.kind = Some(word(scene));
    }
    if wants(5) {
        let spec = &pick(scene, runs).spec;
        filter.labels = spec.labels.clone();
        filter.labels.extend(scene.entropy.one_in(4).then(|| (word(scene), word(scene))));
    }
    if wants(6) {
        filter.owner = Some(*pick(scene, workers));
    }
    if wants(7) {
        filter.since = Some(pick(scene, runs).created_at);
    }
    if wants(8) {
        filter.until = Some(pick(scene, runs).created_at);
    }
    if wants(9) {
        let text = word(scene);
        filter.text = Some(if scene.entropy.one_in(2) { text.to_lowercase() } else { text });
    }
    if wants(10) {
        filter.archived = Some(scene.entropy.one_in(2));
    }
    if wants(11) {
        filter.is_step = Some(scene.entropy.one_in(2));
    }
    if wants(12) {
        filter.step_of = Some(parent(scene));
    }
    if wants(13) {
        filter.kinds = Some((0..scene.entropy.below(3)).map(|_| word(scene)).collect());
    }
    if wants(14) {
        filter.waits = Some(scene.entropy.one_in(2));
    }
    if wants(15) {
        filter.host = Some(pick(scene, runs).last_host().unwrap_or("elsewhere").into());
    }
    if wants(16) {
        let maker = &pick(scene, runs).spec.created_by.user;
        filter.user = Some(if scene.entropy.one_in(4) { "eve".into() } else { maker.to_string() });
    }
    if wants(17) {
        filter.priority = Some(pick(scene, runs).priority());
    }
    if wants(18) {
        filter.share = Some(pick(scene, runs).tenant().into());
    }
    filter
}

/// All pages of a list. A list that does not end is cut off, and found to be too long.
async fn list_all(scene: &Scene, filter: &Filter, order: Order, limit: usize) -> Result<Vec<Record>, String> {
    let mut all = Vec::new();
    let mut page = Page { after: None, limit, order };
    while all.len() <= POPULATION {
        let listing = scene.store.list(filter, &page).await.map_err(failed)?;
        ensure!(listing.records.len() <= limit, "a page of {limit} holds {}", listing.records.len());
        all.extend(listing.records);
        match listing.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    Ok(all)
}

fn ids(records: &[Record]) -> Vec<RunId> {
    records.iter().map(|record| record.run.id).collect()
}

pub(super) async fn a_list_is_what_the_filter_matches(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let (runs, workers) = populate(&scene).await?;
    let (mut found, mut partly) = (0, 0);
    for _ in 0..FILTERS {
        let filter = draw_filter(&scene, &runs, &workers);
        let expected: BTreeSet<RunId> = runs.iter().filter(|run| filter.matches(run)).map(|run| run.id).collect();
        let listed = ids(&list_all(&scene, &filter, Order::Oldest, 1_000).await?);
        let reported: BTreeSet<RunId> = listed.iter().copied().collect();
        ensure!(
            reported == expected && listed.len() == reported.len(),
            "{filter:?} lists {listed:?}, not {expected:?}"
        );
        found += expected.len();
        partly += usize::from(!expected.is_empty() && expected.len() < runs.len());
    }
    ensure!(found > POPULATION && partly > FILTERS / 8, "filters that match nothing or all prove nothing: {partly}");
    Ok(())
}

pub(super) async fn pages_neither_overlap_nor_leave_out(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let (runs, _) = populate(&scene).await?;
    for order in [Order::Newest, Order::Oldest, Order::Claim] {
        for limit in [1, 5, POPULATION - 1, POPULATION] {
            let listed = ids(&list_all(&scene, &Filter::default(), order, limit).await?);
            let reported: BTreeSet<RunId> = listed.iter().copied().collect();
            let whole = listed.len() == runs.len() && reported.len() == runs.len();
            ensure!(whole, "in pages of {limit} {} runs are listed, {} of them once", listed.len(), reported.len());
        }
    }
    let page = Page { after: None, limit: POPULATION, order: Order::Newest };
    let listing = scene.store.list(&Filter::default(), &page).await.map_err(failed)?;
    ensure!(listing.next.is_none(), "a page that holds all runs has a next one");
    let archived = Filter { archived: Some(true), ..Filter::default() };
    let all = ids(&list_all(&scene, &archived, Order::Claim, 1_000).await?);
    let paged = ids(&list_all(&scene, &archived, Order::Claim, 2).await?);
    ensure!(all == paged && all.len() > 2, "pages of a filtered list hold {paged:?}, not {all:?}");
    Ok(())
}

pub(super) async fn lists_are_in_order(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let (mut runs, _) = populate(&scene).await?;
    for order in [Order::Newest, Order::Oldest, Order::Claim] {
        runs.sort_by(|one, other| compare(order, &Cursor::at(one), &Cursor::at(other)));
        let expected: Vec<RunId> = runs.iter().map(|run| run.id).collect();
        for limit in [7, 1_000] {
            let listed = ids(&list_all(&scene, &Filter::default(), order, limit).await?);
            ensure!(listed == expected, "in order {order:?} {listed:?} are listed, not {expected:?}");
        }
    }
    Ok(())
}

pub(super) async fn counts_are_those_of_the_lists(ground: &dyn Ground) -> Result<(), String> {
    let scene = Scene::on(ground).await;
    let (runs, workers) = populate(&scene).await?;
    let idle: Vec<&Run> = runs.iter().filter(|run| run.owner().is_none()).collect();
    let tally = |runs: &[&Run]| {
        let mut tally = RunCounts::default();
        runs.iter().for_each(|run| tally.add(run));
        tally.counts()
    };
    let counted = scene.store.counts().await.map_err(failed)?;
    ensure!(counted == tally(&idle), "{counted:?} are counted, not {:?}", tally(&idle));
    // Whatever changes a run changes the counts.
    let ended = idle.iter().find(|run| run.ending().is_some_and(|ending| ending.how.name() == StateName::Dead));
    let Some(ended) = ended else { return Err("no run of the population is dead".into()) };
    let record = scene.read(ended.id).await?;
    let owner = crate::testing::owner(workers[0], Default::default());
    let resume = Action::Resume { failed_too: false, leftovers: Default::default(), owner: Some(owner) };
    let again = scene.act(&record, &resume).await?;
    let rest: Vec<&Run> = idle.iter().copied().filter(|run| run.id != ended.id).collect();
    let counted = scene.store.counts().await.map_err(failed)?;
    ensure!(counted == tally(&rest), "after a resume {counted:?} are counted, not {:?}", tally(&rest));
    let done = scene.act(&again, &finish(workers[0], &again)).await?;
    let mut all = rest;
    all.push(&done.run);
    let counted = scene.store.counts().await.map_err(failed)?;
    ensure!(counted == tally(&all), "after a second attempt {counted:?} are counted, not {:?}", tally(&all));
    Ok(())
}

fn compare(order: Order, one: &Cursor, other: &Cursor) -> Ordering {
    let by_time = (one.created_at, one.id).cmp(&(other.created_at, other.id));
    match order {
        Order::Oldest => by_time,
        Order::Newest => by_time.reverse(),
        Order::Claim => one.priority.cmp(&other.priority).then(by_time),
    }
}
