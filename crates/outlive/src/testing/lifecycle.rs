//! The lifecycle as a table, made by applying every action to a specimen of every state.
//!
//! `docs/lifecycle.md` is what this says, so the document cannot claim a rule that the code does not have.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{SeededEntropy, owner, pending, person, spec};
use crate::lifecycle::{Action, Due, Fence, Observed, Outcome, QueueEdit, Refusal, Report, apply, survives_reap};
use crate::model::id::{Epoch, WorkerId};
use crate::model::owner::Evidence;
use crate::model::owner::LiveProcesses;
use crate::model::policy::{FailureClass, Lease, OrphanPolicy, Policy, Retry};
use crate::model::run::{After, Interruption, Release, Run, Spec, StateName, Step};
use crate::model::step::KIND;
use crate::model::time::Timestamp;

const PREAMBLE: &str = "\
# The lifecycle

Generated from `lifecycle::apply` by applying every action to a run in every state; `UPDATE_DOCS=1 cargo nextest run
--workspace lifecycle_doc_is_current` writes it. A cell names the state that the action leads to, or, in italics,
why it is refused; a dash where it does not apply. An action that is refused changes nothing.

A run is made *pending* by `enqueue`. `interrupted` and `dead` are ended attempts that can be resumed; `succeeded`,
`failed` and `cancelled` are final, except that a failed run may be resumed by name.
";

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// A column: its head, and the action on a run whose owner is the given worker.
type Column = (&'static str, fn(WorkerId, &Run) -> Action);

const COLUMNS: [Column; 22] = [
    ("claim", |worker, _| Action::Claim {
        owner: owner(worker, Lease::default()),
        early: false,
        leftovers: Default::default(),
    }),
    ("release", |_, run| release(run, StateName::Succeeded)),
    ("report", |worker, run| Action::Report { fence: fence(worker, run), report: Report::default() }),
    ("suspend", |worker, run| Action::Suspend { fence: fence(worker, run), reason: "an approval".into() }),
    ("wake", |worker, _| Action::Wake { owner: Some(owner(worker, Lease::default())) }),
    ("finish: succeeded", |worker, run| finish(worker, run, Outcome::SUCCEEDED)),
    ("finish: failed", |worker, run| finish(worker, run, failure())),
    ("finish: cancelled", |worker, run| finish(worker, run, Outcome::Cancelled)),
    ("interrupt", interrupt),
    ("request cancel", |_, _| Action::RequestCancel { reason: None, grace: None, live: LiveProcesses::default() }),
    ("reap", |_, run| reap(run, Evidence::LockFree, None)),
    ("adopt", |_, run| adopt(run, Some(Evidence::LockFree), leftovers())),
    ("resume", |_, _| resume(false, LiveProcesses::default())),
    ("resume, failed too", |_, _| resume(true, LiveProcesses::default())),
    ("unpark", |_, _| Action::Unpark),
    ("pause", |_, _| Action::Pause { reason: None }),
    ("unpause", |_, _| Action::Unpause),
    ("edit", |_, _| Action::Edit(QueueEdit { priority: Some(3), due: Some(Due::Now) })),
    ("archive", |_, _| Action::Archive { reason: None }),
    ("unarchive", |_, _| Action::Unarchive),
    ("sweep", |_, _| Action::Sweep {
        seen: None,
        done: true,
        reason: "nothing needs it".into(),
        process: None,
        gone: false,
    }),
    ("anything of an older claim", |worker, run| Action::Report {
        fence: Fence { worker, epoch: Epoch(run.epoch.0.saturating_sub(1)) },
        report: Report::default(),
    }),
];

fn fence(worker: WorkerId, run: &Run) -> Fence {
    Fence { worker, epoch: run.epoch }
}

fn failure() -> Outcome {
    Outcome::failed("exit", "code 1")
}

fn finish(worker: WorkerId, run: &Run, outcome: Outcome) -> Action {
    Action::Finish { fence: fence(worker, run), outcome, exit: None }
}

fn interrupt(worker: WorkerId, run: &Run) -> Action {
    let interruption = Interruption { signal: Some(15), reason: "SIGTERM".into() };
    Action::Interrupt { fence: fence(worker, run), interruption, exit: None }
}

fn reap(run: &Run, evidence: Evidence, reaper: Option<WorkerId>) -> Action {
    let beat = run.owner().map_or(0, |owner| owner.heard.beat);
    Action::Reap { observed: Observed { epoch: run.epoch, beat }, evidence, reaper }
}

fn adopt(run: &Run, evidence: Option<Evidence>, leftovers: LiveProcesses) -> Action {
    let beat = run.owner().map_or(0, |owner| owner.heard.beat);
    let observed = Observed { epoch: run.epoch, beat };
    let adopter = WorkerId::draw(NOW, &SeededEntropy::new(4));
    Action::Adopt { observed, evidence, leftovers, owner: owner(adopter, Lease::default()) }
}

fn leftovers() -> LiveProcesses {
    LiveProcesses { pids: vec![4_242], unseen: false }
}

/// As if it waited for a run that had ended so.
fn release(run: &Run, ended: StateName) -> Action {
    Action::Release { parent: run.id, ended }
}

fn resume(failed_too: bool, leftovers: LiveProcesses) -> Action {
    Action::Resume { failed_too, leftovers, owner: None }
}

/// A run of `spec` in a state, led there by the rules.
pub(crate) fn specimen(state: StateName, spec: Spec, worker: WorkerId) -> Result<Run, Refusal> {
    let waiting = pending(spec, NOW, &SeededEntropy::new(1));
    let act = |run: &Run, action: &Action| apply(run, action, &person("ada"), NOW).map(|transition| transition.run);
    let claimed = act(
        &waiting,
        &Action::Claim { owner: owner(worker, Lease::default()), early: false, leftovers: Default::default() },
    )?;
    match state {
        StateName::Pending => Ok(waiting),
        StateName::Running => Ok(claimed),
        StateName::Suspended => {
            act(&claimed, &Action::Suspend { fence: fence(worker, &claimed), reason: "an approval".into() })
        }
        StateName::Interrupted => act(&claimed, &interrupt(worker, &claimed)),
        StateName::Dead => act(&claimed, &reap(&claimed, Evidence::LockFree, None)),
        StateName::Succeeded => act(&claimed, &finish(worker, &claimed, Outcome::SUCCEEDED)),
        StateName::Failed => act(&claimed, &finish(worker, &claimed, failure())),
        StateName::Cancelled => {
            act(&waiting, &Action::RequestCancel { reason: None, grace: None, live: LiveProcesses::default() })
        }
    }
}

/// The shortest word for a refusal that tells it from the others.
fn word(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Lost { .. } => "lost",
        Refusal::WrongState { .. } => "–",
        Refusal::NotYet(_) => "not yet",
        Refusal::WaitsFor(_) => "waits",
        Refusal::WaitsNot(_) => "waits not",
        Refusal::Parked => "parked",
        Refusal::NotParked => "not parked",
        Refusal::Paused => "paused",
        Refusal::NotPaused => "not paused",
        Refusal::NotQueued => "not queued",
        Refusal::IsStep(_) => "is a step",
        Refusal::CancelRequested => "cancel requested",
        Refusal::NotAsked => "not asked",
        Refusal::HeardOf => "newer heartbeat",
        Refusal::LeaseHolds => "lease holds",
        Refusal::OwnRun => "own run",
        Refusal::OwnerLives => "owner lives",
        Refusal::NothingLeft => "nothing left",
        Refusal::LeftoversAlive(_) => "live processes",
        Refusal::NoAttemptsLeft(_) => "no attempts left",
        Refusal::TooLarge { .. } => "too large",
        Refusal::TooDeep { .. } => "too deep",
        Refusal::TooMany { .. } => "too many",
        Refusal::Copied => "copied",
        Refusal::Swept => "swept",
        Refusal::BeingSwept(_) => "being swept",
        Refusal::Archived => "archived",
        Refusal::NotArchived => "not archived",
        Refusal::ProcessesAlive(_) => "processes alive",
        Refusal::AwaitedBy(_) => "awaited",
        Refusal::DeletedWith(_) => "step",
    }
}

/// What becomes of a run in words, and what the refusals met on the way say.
struct LifecycleTable {
    text: String,
    refusals: BTreeMap<&'static str, String>,
}

impl LifecycleTable {
    fn cell(&mut self, run: &Run, action: &Action) -> String {
        match apply(run, action, &person("bob"), NOW) {
            Ok(changed) => {
                let flag =
                    if changed.run.cancel.is_some() && !changed.run.state.name().is_final() { " + flag" } else { "" };
                format!("{}{flag}", changed.run.state.name())
            }
            Err(refusal) => {
                let word = word(&refusal);
                self.refusals.entry(word).or_insert_with(|| refusal.to_string());
                if word == "–" { word.into() } else { format!("*{word}*") }
            }
        }
    }

    fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "| {} |", cells.join(" | "));
    }

    fn head(&mut self, cells: &[&str]) {
        self.row(cells.iter().map(|cell| (*cell).into()));
        self.row(cells.iter().map(|_| "---".into()));
    }
}

/// The whole document.
///
/// # Errors
///
/// A rule that does not let a specimen into its state.
pub fn document() -> Result<String, Refusal> {
    let worker = WorkerId::draw(NOW, &SeededEntropy::new(2));
    let mut table = LifecycleTable { text: format!("{PREAMBLE}\n## Actions by state\n\n"), refusals: BTreeMap::new() };
    let heads: Vec<&str> = ["state"].into_iter().chain(COLUMNS.map(|(head, _)| head)).collect();
    table.head(&heads);
    for state in StateName::ALL {
        let run = specimen(state, spec("job"), worker)?;
        let cells: Vec<String> = COLUMNS.iter().map(|(_, action)| table.cell(&run, &action(worker, &run))).collect();
        table.row([format!("**{state}**")].into_iter().chain(cells));
    }
    reaps(&mut table, worker)?;
    retries(&mut table, worker)?;
    dependencies(&mut table, worker)?;
    cancellations(&mut table, worker)?;
    details(&mut table, worker)?;
    table.text.push_str("\n## Refusals\n\n");
    table.head(&["word", "for example"]);
    for (word, text) in std::mem::take(&mut table.refusals) {
        table.row([word.into(), text]);
    }
    Ok(table.text)
}

fn reaps(table: &mut LifecycleTable, worker: WorkerId) -> Result<(), Refusal> {
    table.text.push_str("\n## Reaps by policy\n\n");
    table.head(&["policy for orphans", "the first reap", "the last reap that the policy allows", "cancel requested"]);
    for (name, orphans) in
        [("dead", OrphanPolicy::Dead), ("fail", OrphanPolicy::Fail), ("requeue", OrphanPolicy::Requeue)]
    {
        let with = |max_reaps| {
            let mut spec = spec("job");
            spec.policy.orphans = orphans;
            spec.policy.retry.max_reaps = max_reaps;
            specimen(StateName::Running, spec, worker)
        };
        let (several, last) = (with(3)?, with(1)?);
        let asked = apply(
            &several,
            &Action::RequestCancel { reason: None, grace: None, live: LiveProcesses::default() },
            &person("bob"),
            NOW,
        )?
        .run;
        for run in [&several, &last, &asked] {
            let reaped = apply(run, &reap(run, Evidence::LockFree, None), &person("bob"), NOW)?.run;
            assert_eq!(survives_reap(run), !reaped.state.name().is_ended(), "{name}: {:?}", reaped.state);
        }
        let cells = [&several, &last, &asked].map(|run| table.cell(run, &reap(run, Evidence::LockFree, None)));
        table.row([name.to_string()].into_iter().chain(cells));
    }
    Ok(())
}

fn retries(table: &mut LifecycleTable, worker: WorkerId) -> Result<(), Refusal> {
    table.text.push_str("\n## Retries and suspensions\n\n");
    table.head(&["case", "leads to"]);
    let running = |retry: Retry| {
        let mut spec = spec("job");
        spec.policy.retry = retry;
        specimen(StateName::Running, spec, worker)
    };
    let patient = running(Retry { on_failure: true, ..Retry::default() })?;
    let last = running(Retry { on_failure: true, max_attempts: 1, ..Retry::default() })?;
    let permanent = vec![FailureClass::Type("exit".into())];
    let permanent = running(Retry { on_failure: true, permanent, ..Retry::default() })?;
    let interrupted = running(Retry { on_interrupt: true, ..Retry::default() })?;
    let asked = apply(
        &patient,
        &Action::RequestCancel { reason: None, grace: None, live: LiveProcesses::default() },
        &person("bob"),
        NOW,
    )?
    .run;
    let by_keyboard = Action::Interrupt {
        fence: fence(worker, &interrupted),
        interruption: Interruption { signal: Some(2), reason: "SIGINT".into() },
        exit: None,
    };
    let mut poison = spec("job");
    (poison.policy.orphans, poison.policy.retry.max_reaps) = (OrphanPolicy::Requeue, 1);
    let poison = specimen(StateName::Running, poison, worker)?;
    let parked = apply(&poison, &reap(&poison, Evidence::LockFree, None), &person("bob"), NOW)?.run;
    let wake = Action::Wake { owner: Some(owner(worker, Lease::default())) };
    let again = apply(&patient, &finish(worker, &patient, failure()), &person("bob"), NOW)?.run;
    let beside = Action::Claim { owner: owner(worker, Lease::default()), early: true, leftovers: leftovers() };
    let gate = specimen(StateName::Suspended, spec("job"), worker)?;
    let cases: [(&str, &Run, Action); 10] = [
        ("its next attempt is claimed while the last one has live processes", &again, beside),
        ("it failed", &patient, finish(worker, &patient, failure())),
        ("it failed in its last attempt", &last, finish(worker, &last, failure())),
        ("it failed for good by its policy", &permanent, finish(worker, &permanent, failure())),
        ("it failed after a cancel request", &asked, finish(worker, &asked, failure())),
        ("it was interrupted", &interrupted, interrupt(worker, &interrupted)),
        ("it was interrupted from a keyboard", &interrupted, by_keyboard),
        ("it was suspended, and wakes to wait for a worker", &gate, Action::Wake { owner: None }),
        ("it was parked, and a worker wakes it", &parked, wake),
        ("it was parked, and a person unparks it", &parked, Action::Unpark),
    ];
    for (case, run, action) in cases {
        let cell = table.cell(run, &action);
        table.row([case.into(), cell]);
    }
    Ok(())
}

fn dependencies(table: &mut LifecycleTable, worker: WorkerId) -> Result<(), Refusal> {
    table.text.push_str("\n## Runs that wait for another run\n\n");
    let ends = [StateName::Succeeded, StateName::Failed, StateName::Cancelled, StateName::Dead, StateName::Interrupted];
    let heads: Vec<&str> = ["it waits for"].into_iter().chain(ends.map(StateName::as_str)).collect();
    table.head(&heads);
    let parent = specimen(StateName::Succeeded, spec("job"), worker)?.id;
    for (name, way) in [("its success", Release::Success), ("any end", Release::End)] {
        let waiting = Spec { after: vec![After { run: parent, release: way }], ..spec("job") };
        let waiting = pending(waiting, NOW, &SeededEntropy::new(5));
        let cells = ends.map(|ended| table.cell(&waiting, &Action::Release { parent, ended }));
        table.row([name.to_string()].into_iter().chain(cells));
    }
    Ok(())
}

fn cancellations(table: &mut LifecycleTable, worker: WorkerId) -> Result<(), Refusal> {
    table.text.push_str("\n## Cancel requests for runs without an owner\n\n");
    table.head(&["state", "no live processes", "live processes", "then another attempt", "then, when they are gone"]);
    let failed = Spec { policy: Policy { retry: retrying(), ..Policy::default() }, ..spec("job") };
    let failed = specimen(StateName::Running, failed, worker)?;
    let again = apply(&failed, &finish(worker, &failed, failure()), &person("bob"), NOW)?.run;
    let claim = Action::Claim { owner: owner(worker, Lease::default()), early: true, leftovers: Default::default() };
    let ended = |state| specimen(state, spec("job"), worker);
    let cases = [
        (again, claim),
        (ended(StateName::Suspended)?, Action::Wake { owner: Some(owner(worker, Lease::default())) }),
        (ended(StateName::Interrupted)?, resume(false, LiveProcesses::default())),
        (ended(StateName::Dead)?, resume(false, LiveProcesses::default())),
    ];
    let cancel = |live| Action::RequestCancel { reason: None, grace: None, live };
    for (run, begin) in cases {
        let requested = apply(&run, &cancel(leftovers()), &person("bob"), NOW)?.run;
        let cells = [
            table.cell(&run, &cancel(LiveProcesses::default())),
            table.cell(&run, &cancel(leftovers())),
            table.cell(&requested, &begin),
            table.cell(&requested, &cancel(LiveProcesses::default())),
        ];
        table.row([format!("**{}**", run.state.name())].into_iter().chain(cells));
    }
    Ok(())
}

fn retrying() -> Retry {
    Retry { on_failure: true, ..Retry::default() }
}

fn details(table: &mut LifecycleTable, worker: WorkerId) -> Result<(), Refusal> {
    table.text.push_str("\n## Special cases\n\n");
    table.head(&["case", "leads to"]);
    let running = specimen(StateName::Running, spec("job"), worker)?;
    let dead = specimen(StateName::Dead, spec("job"), worker)?;
    let asked = apply(
        &running,
        &Action::RequestCancel { reason: None, grace: None, live: LiveProcesses::default() },
        &person("bob"),
        NOW,
    )?
    .run;
    let archived = apply(&dead, &Action::Archive { reason: None }, &person("bob"), NOW)?.run;
    let mut once = spec("job");
    once.policy.retry.max_attempts = 1;
    let used_up = specimen(StateName::Failed, once, worker)?;
    let later = Spec { not_before: Some(NOW.after(Lease::default().lasts())), ..spec("job") };
    let later = pending(later, NOW, &SeededEntropy::new(3));
    let heard = Action::Reap {
        observed: Observed { epoch: running.epoch, beat: u64::MAX },
        evidence: Evidence::LockFree,
        reaper: None,
    };
    let lapsed = Evidence::LeaseLapsed { silent_ms: 16_000, lease_ms: 15_000 };
    let copied = Run { copied: true, ..running.clone() };
    let mut unheard = adopt(&running, Some(Evidence::LockFree), leftovers());
    if let Action::Adopt { observed, .. } = &mut unheard {
        observed.beat = u64::MAX;
    }
    let taken = adopt(&running, Some(Evidence::LockFree), leftovers());
    let adopted = apply(&running, &taken, &person("bob"), NOW)?.run;
    let adopter = adopted.owner().map_or(worker, |owner| owner.worker);
    let report_of_the_tree =
        Action::Report { fence: Fence { worker: adopter, epoch: running.epoch }, report: Report::default() };
    let claim = Action::Claim { owner: owner(worker, Lease::default()), early: false, leftovers: Default::default() };
    let (attempt, name, fingerprint) = (1, "build".into(), String::new());
    let step = Step { of: running.id, attempt, name, fingerprint, changed: false, replays: None, parent: None };
    let step = Spec { step: Some(step), ..spec(KIND) };
    let (held_step, dead_step) =
        (specimen(StateName::Running, step.clone(), worker)?, specimen(StateName::Dead, step, worker)?);
    let unknown = Evidence::OwnerUnknown { silent_ms: 16_000 };
    let cases: [(&str, &Run, Action); 19] = [
        ("claim before `not_before`", &later, claim),
        ("finish: cancelled, after a cancel request", &asked, finish(worker, &asked, Outcome::Cancelled)),
        ("interrupt, after a cancel request", &asked, interrupt(worker, &asked)),
        ("reap, a heartbeat since the observation", &running, heard),
        ("reap by lease, the lease not over", &running, reap(&running, lapsed.clone(), None)),
        ("reap of an unknown owner, but the record has an owner", &running, reap(&running, unknown, None)),
        ("reap by its own owner", &running, reap(&running, Evidence::LockFree, Some(worker))),
        ("adopt, a heartbeat since the observation", &running, unheard),
        ("adopt, its owner not proven gone", &running, adopt(&running, None, leftovers())),
        ("adopt on a lapsed lease alone", &running, adopt(&running, Some(lapsed), leftovers())),
        ("adopt, no live processes", &running, adopt(&running, Some(Evidence::LockFree), LiveProcesses::default())),
        ("adopt of a step", &held_step, adopt(&held_step, Some(Evidence::LockFree), leftovers())),
        ("report of a process started before an adoption", &adopted, report_of_the_tree),
        ("resume while its processes live", &dead, resume(false, leftovers())),
        ("resume of a step", &dead_step, resume(false, LiveProcesses::default())),
        ("resume after the last attempt", &used_up, resume(true, LiveProcesses::default())),
        ("resume of an archived run", &archived, resume(false, LiveProcesses::default())),
        ("archive of an archived run", &archived, Action::Archive { reason: None }),
        ("reap of a run that came with a copied registry", &copied, reap(&copied, Evidence::LockFree, None)),
    ];
    for (case, run, action) in cases {
        let cell = table.cell(run, &action);
        table.row([case.into(), cell]);
    }
    Ok(())
}
