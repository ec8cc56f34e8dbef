//! The supervisor: looks at everything that is not over, reaps what is dead, and has what is due executed.
//!
//! It executes nothing itself: every run that it starts or adopts gets an owner of its own, so what becomes of the
//! supervisor becomes of no run. How an owner is started, and who learns what happened, is up to [`Owners`]: the command
//! starts processes, the simulation tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::engine::maintenance::Maintenance;
use crate::error::Error;
use crate::lifecycle::health::Health;
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, WorkerId};
use crate::model::owner::LiveProcesses;
use crate::model::run::{Run, State, StateName};
use crate::model::time::Timestamp;
use crate::ownership::reaper::Reaped;
use crate::registry::{Registry, next_due};
use crate::store::{Page, Pages};

/// How long until everything is looked at again, where nothing wakes the supervisor.
pub const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How many owners are started at a time, so that a machine that comes up with a thousand runs to resume can breathe.
const STARTING: usize = 8;
/// How long something of a run must outlive its owner before it is adopted. Whatever kills both does not do so in
/// one moment, and what is dying is not to be followed to its end.
const OUTLIVES: Duration = Duration::from_millis(200);
/// How often those are looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How often the queue is read where nothing says that it has changed.
const QUEUE_EVERY: Duration = Duration::from_secs(30);
/// How long a run is left alone whose owner could not be started.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// What starts owners for a supervisor.
pub trait Owners {
    /// How many owners were started that have not said yet whether they own their run.
    fn starting(&self) -> usize;

    /// Whether one of them is for this run.
    fn is_starting(&self, run: RunId) -> bool;

    /// Those that have said so since this was last asked; where one does not own its run, why.
    fn started(&mut self) -> Vec<(RunId, Result<(), String>)>;

    /// Refuses a run that no owner can be started for, and says why.
    fn check(&self, run: &Run) -> Result<(), String>;

    /// Starts an owner for a run. With `adopts`, one for the processes that have outlived the last.
    fn start(&mut self, run: &Run, adopts: bool) -> Result<(), Error>;

    /// Learns what happened.
    fn notify(&mut self, event: SupervisorEvent<'_>);
}

/// What happened in a pass.
#[derive(Debug, Clone, Copy)]
pub enum SupervisorEvent<'a> {
    /// Attempts were ended whose owners are gone.
    Reaped(&'a Reaped),
    /// A run has an owner again.
    Started(&'a Run),
    /// No owner could be started for a run, and why.
    Refused(&'a Run, &'a str),
    /// An owner is being started for what has outlived the last.
    Adopted(&'a Run, &'a LiveProcesses),
    /// The queue was read.
    Queue {
        /// A run of it that runs.
        running: Option<RunId>,
        /// Another one waits.
        waits: bool,
    },
}

/// The state of a process that supervises a registry.
#[derive(Debug, Default)]
pub struct Supervisor {
    maintenance: Maintenance,
    queue: QueueLook,
    /// Runs that have outlived their owner, and since when that is known.
    orphans: BTreeMap<RunId, Duration>,
    /// Runs that could not be started, when they are tried again, and the claim that was reported.
    refused: BTreeMap<RunId, (Epoch, Duration)>,
    slots: usize,
}

/// When the queue is read next.
#[derive(Debug, Default)]
struct QueueLook {
    /// Something may have changed in it.
    is_due: bool,
    /// In time awake; at once before the first.
    again_at: Duration,
    /// When the first of its runs is due by the clock.
    due_at: Option<Timestamp>,
}

/// The runs of the queue that run.
#[derive(Debug, Default)]
struct Queued {
    in_slots: usize,
    last: Option<RunId>,
}

impl Supervisor {
    /// A supervisor in the process of `worker`, which has up to `slots` runs of the queue executed at a time.
    pub fn new(worker: Option<WorkerId>, slots: usize) -> Self {
        Self { maintenance: Maintenance::new(worker), slots, ..Self::default() }
    }

    /// What watches the owners of runs.
    pub fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }

    /// Has the next pass read the queue.
    pub fn look_at_queue_next(&mut self) {
        self.queue.is_due = true;
    }

    /// Looks at everything once. Answers with how long it is until something is due by the clock.
    pub async fn pass(&mut self, registry: &Registry, owners: &mut dyn Owners) -> Result<Duration, Error> {
        self.note_started(registry, owners).await;
        self.reap(registry, owners).await?;
        if self.is_queue_due(registry) {
            self.look_at_queue(registry, owners).await?;
        }
        let again = if self.has_young_orphans(registry) { LOOK_AGAIN } else { LOOK_EVERY };
        let now = registry.clock().now();
        let due = self.queue.due_at.map(|at| at.since(now) + Duration::from_millis(1));
        Ok(due.map_or(again, |due| due.min(again)))
    }

    /// Whether there are runs that have outlived their owner for too short a time to be adopted.
    pub fn has_young_orphans(&self, registry: &Registry) -> bool {
        let now = registry.clock().awake();
        self.orphans.values().any(|since| now.saturating_sub(*since) < OUTLIVES)
    }

    /// Whether anything may have changed in the queue, or is due in it.
    fn is_queue_due(&self, registry: &Registry) -> bool {
        let is_due = self.queue.due_at.is_some_and(|at| at <= registry.clock().now());
        self.queue.is_due || is_due || registry.clock().awake() >= self.queue.again_at
    }

    /// Reads the queue, and has those executed that are due.
    async fn look_at_queue(&mut self, registry: &Registry, owners: &mut dyn Owners) -> Result<(), Error> {
        let mut waiting = registry.waiting().await?;
        let released = registry.release(&waiting).await?;
        let followed = registry.materialize_schedules(&waiting).await?;
        if released > 0 || !followed.is_empty() {
            waiting = registry.waiting().await?;
        }
        let running = running_of_queue(registry).await?;
        self.refused.retain(|_, (_, until)| *until > registry.clock().awake());
        let waits = waiting.iter().any(|run| run.spec.queued);
        owners.notify(SupervisorEvent::Queue { running: running.last, waits });
        self.start_due(registry, owners, &waiting, &followed, running.in_slots).await?;
        let now = registry.clock().now();
        self.queue.due_at = next_due(&waiting, now).map(|left| now.after(left));
        self.queue.again_at = registry.clock().awake() + QUEUE_EVERY;
        // What could not be started because too many are starting is started when they have.
        self.queue.is_due = owners.starting() >= STARTING;
        Ok(())
    }

    /// Marks the dead as dead, and adopts what lives on.
    async fn reap(&mut self, registry: &Registry, owners: &mut dyn Owners) -> Result<(), Error> {
        registry.deliver_spooled().await?;
        let reaped = self.maintenance.reap(registry).await?;
        owners.notify(SupervisorEvent::Reaped(&reaped));
        self.queue.is_due |= !reaped.ended.is_empty();
        let now = registry.clock().awake();
        self.orphans.retain(|id, _| self.maintenance.is_suspect(*id));
        for (run, live) in &reaped.orphaned {
            if now.saturating_sub(*self.orphans.entry(run.id).or_insert(now)) < OUTLIVES {
                continue;
            }
            // Only what this user made is adopted: whatever adopts it may have to end it.
            if run.spec.step.is_none() && registry.executable(run).is_ok() && self.may_start(owners, run) {
                owners.start(run, true)?;
                owners.notify(SupervisorEvent::Adopted(run, live));
            }
        }
        Ok(())
    }

    /// Has those executed that are due: at once what was started otherwise, and by slots what was queued.
    async fn start_due(
        &mut self,
        registry: &Registry,
        owners: &mut dyn Owners,
        waiting: &[Run],
        followed: &BTreeSet<RunId>,
        in_slots: usize,
    ) -> Result<(), Error> {
        let now = registry.clock().now();
        let starting = waiting.iter().filter(|run| run.spec.queued && owners.is_starting(run.id)).count();
        let mut free = self.slots.saturating_sub(in_slots + starting);
        let blocked_by_keys = registry.blocked_by_keys(&waiting.iter().collect::<Vec<_>>()).await?;
        for run in waiting {
            let due = matches!(&run.state, State::Pending(pending) if pending.is_due(now));
            let is_followed = run.spec.schedule.is_none() || followed.contains(&run.id);
            if !due || !is_followed || run.spec.command.is_none() || !self.may_start(owners, run) {
                continue;
            }
            // What is left of its last attempt may end by itself: another look will tell.
            if !registry.left_behind(run).is_empty() {
                continue;
            }
            if run.spec.queued {
                if free == 0 || blocked_by_keys.contains_key(&run.id) {
                    continue;
                }
                free -= 1;
            }
            match owners.check(run) {
                Ok(()) => owners.start(run, false)?,
                Err(why) => self.refuse(registry, owners, run, &why),
            }
        }
        Ok(())
    }

    /// Whether an owner may be started for a run now.
    fn may_start(&self, owners: &dyn Owners, run: &Run) -> bool {
        let is_refused = self.refused.get(&run.id).is_some_and(|(epoch, _)| *epoch == run.epoch);
        owners.starting() < STARTING && !is_refused && !owners.is_starting(run.id)
    }

    /// Notes which owners have said whether they own their run. One that could not is reported once; where another process
    /// was faster, nothing is.
    async fn note_started(&mut self, registry: &Registry, owners: &mut dyn Owners) {
        for (id, started) in owners.started() {
            let Ok(seen) = registry.get(id).await else { continue };
            match started {
                Ok(()) => owners.notify(SupervisorEvent::Started(&seen.run)),
                Err(why) if matches!(seen.run.state, State::Pending(_)) || seen.health == Some(Health::Orphaned) => {
                    self.refuse(registry, owners, &seen.run, &why);
                }
                Err(_) => {}
            }
        }
    }

    fn refuse(&mut self, registry: &Registry, owners: &mut dyn Owners, run: &Run, why: &str) {
        let until = registry.clock().awake() + REFUSED_FOR;
        self.refused.insert(run.id, (run.epoch, until));
        owners.notify(SupervisorEvent::Refused(run, why));
    }
}

/// The runs of the queue that run.
async fn running_of_queue(registry: &Registry) -> Result<Queued, Error> {
    let mut queued = Queued::default();
    let mut walk = Pages::from(Filter::in_states([StateName::Running]), Page::default());
    while let Some(records) = walk.next(registry.store()).await? {
        for run in records.iter().map(|record| &record.run).filter(|run| run.spec.queued) {
            queued.in_slots += 1;
            queued.last = Some(run.id);
        }
    }
    Ok(queued)
}
