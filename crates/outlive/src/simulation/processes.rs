//! What the processes of a history do: they use the registry as any caller would, and enter what they learn into the ledger.

use std::ffi::OsStr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::Planted;
use super::artifacts::{PLACE, output};
use super::clock::{SkewedClock, lease};
use super::faulty::Faulty;
use super::history::{Fact, What};
use super::world::{ProcessRole, ProcessState, World};
use crate::error::Error;
use crate::lifecycle::{Fence, Refusal};
use crate::model::filter::Filter;
use crate::model::id::RunId;
use crate::model::policy::{OrphanPolicy, Retry};
use crate::model::run::{Actor, Command, Key, Run, Spec};
use crate::ownership::reaper::Reaper;
use crate::registry::Registry;
use crate::secrets::trust::NamedLocation;
use crate::store::{self, Page};
use crate::testing::{spec, stranger};

/// The kind of every run of a history.
pub(super) const KIND: &str = "simulated";
/// Calls that make several writes, each of which may go another way.
const PASSES: [&str; 3] = ["a reaper's pass", "a sweep", "a supervisor's pass"];

/// One process, from its start to its end.
pub(super) struct Process {
    pub(super) world: Arc<World>,
    pub(super) index: usize,
    pub(super) registry: Arc<Registry>,
}

impl Process {
    /// Starts one.
    pub(super) fn start(world: &Arc<World>, role: ProcessRole) -> Rc<Self> {
        let index = world.state().processes.len();
        let name = format!("{} {index}", role.as_str());
        let pid = u32::try_from(index).unwrap_or_default() + 100;
        let me = Actor { user: name.as_str().into(), host: "simulated".into(), pid };
        let clock = SkewedClock::new(world.clock.clone());
        let store = Arc::new(Faulty::new(world.clone(), index));
        let mut registry = Registry::over(store, clock.clone(), world.entropy.clone(), me, stranger(pid));
        if role == ProcessRole::Reaper && world.plan.planted == Some(Planted::OwnWriteByEquality) {
            registry = registry.recognising_by(|record, _| record.run.ending().is_some());
        }
        let places = NamedLocation::parse(PLACE).expect("the place of artifacts has a name");
        let registry = Arc::new(registry.naming_artifacts([places]));
        let worker = registry.worker().expect("a simulated registry has a worker from the start");
        let stands_still_until = Duration::ZERO;
        world.state().processes.push(ProcessState { name, worker, clock, lives: true, stands_still_until, role });
        Rc::new(Self { world: world.clone(), index, registry })
    }

    /// Its number.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn draw(&self, bound: u64) -> u64 {
        self.world.entropy.below(bound)
    }

    pub(super) fn calm(&self) -> bool {
        self.world.state().calm
    }

    pub(super) async fn nap(&self, least_ms: u64, most_ms: u64) {
        let duration = self.world.between(least_ms, most_ms);
        self.world.nap(duration).await;
    }

    /// The keeper's thread: beats for ever.
    pub(super) async fn keep(self: Rc<Self>) {
        loop {
            self.nap(1_600, 2_000).await;
            // The heartbeat loop does not look at the answer either: what matters reaches the holders.
            let _ = self.registry.tick().await;
        }
    }

    /// A reaper's loop.
    pub(super) async fn reap(self: Rc<Self>) {
        let mut reaper = Reaper::new(self.registry.worker());
        loop {
            self.nap(500, 3_000).await;
            let Ok(reaped) = self.call("a reaper's pass", None, reaper.pass(&*self.registry)).await.0 else { continue };
            reaped.ended.iter().for_each(|run| self.told_reaped(run));
        }
    }

    /// Notes that it learned that it ended an attempt.
    pub(super) fn told_reaped(&self, run: &Run) {
        let state = &mut *self.world.state();
        let outcome = state.ledger.told_won(self.index, run.id, run.epoch);
        state.history.counters.saw(Fact::ReapWon);
        let number = state.ledger.number(run.id);
        self.world.tell(state, Some(self.index), What::Learned(number, run.epoch, "it was reaped by you"));
        self.world.judge(state, outcome);
    }

    /// A person, who enqueues, cancels and tidies up.
    pub(super) async fn meddle(self: Rc<Self>) {
        loop {
            self.nap(500, 4_000).await;
            if self.calm() {
                continue;
            }
            if self.draw(4) == 0 {
                drop(self.call("enqueue", None, self.registry.enqueue(self.some_spec())).await);
                continue;
            }
            let Some(id) = self.some_run(Filter::default()).await else { continue };
            match self.draw(5) {
                0 => drop(self.call("unarchive", None, self.registry.unarchive(id)).await),
                1 | 2 => drop(self.call("archive", None, self.registry.archive(id)).await),
                _ => drop(self.call("cancel", None, self.registry.cancel(id, None)).await),
            }
        }
    }

    pub(super) async fn some_run(&self, filter: Filter) -> Option<RunId> {
        let (seen, _) = self.registry.list(&filter, &Page::default()).await.ok()?;
        let chosen = self.draw(seen.len() as u64);
        seen.get(usize::try_from(chosen).unwrap_or_default()).map(|seen| seen.run.id)
    }

    pub(super) fn some_spec(&self) -> Spec {
        let mut spec = spec(KIND);
        spec.policy.lease = lease();
        spec.policy.retry = Retry { backoff_cap: Duration::from_secs(2), ..Retry::default() };
        spec.policy.orphans = [OrphanPolicy::Dead, OrphanPolicy::Dead, OrphanPolicy::Requeue, OrphanPolicy::Fail]
            [usize::try_from(self.draw(4)).unwrap_or_default()];
        if self.draw(2) == 0 {
            spec.output = Some(output());
        }
        if self.draw(2) == 0 {
            // A supervisor starts an owner for it, where no worker is quicker.
            spec.command = Some(Command::new(vec![OsStr::new(KIND).into()], OsStr::new("/").into()));
            spec.queued = self.draw(2) == 0;
        }
        if self.draw(2) == 0 {
            spec.keys = vec![Key::limit("shared", 2)];
        }
        if self.draw(6) == 0 {
            spec.keys.push(Key::unique("only"));
        }
        if self.draw(6) == 0 {
            spec.keys.push(Key::rate("often", 3, Duration::from_secs(2)));
        }
        spec
    }

    /// Makes a call, and holds its answer against what the call did. Answers also with the call's number.
    pub(super) async fn call<T>(
        &self,
        what: &'static str,
        fence: Option<Fence>,
        call: impl Future<Output = Result<T, Error>>,
    ) -> (Result<T, Error>, u64) {
        let id = self.world.begin(self.index, what, fence);
        let answer = call.await;
        let shown = answer.as_ref().err().map_or_else(|| "done".into(), ToString::to_string);
        self.world.end(self.index, what, shown);
        let says_nothing_written = match &answer {
            Ok(_) | Err(Error::Store(store::Error::Unknown(_))) => false,
            // That the run is lost is true, and what matters, whether or not an earlier report is on record.
            Err(Error::Refused { refusal: Refusal::Lost { .. }, .. }) => false,
            Err(_) => !PASSES.contains(&what),
        };
        if says_nothing_written {
            let state = &mut *self.world.state();
            let outcome = state.ledger.promises.told_nothing_written(id).map_err(|broken| format!("{what}: {broken}"));
            self.world.judge(state, outcome);
        }
        (answer, id)
    }
}
