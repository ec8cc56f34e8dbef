//! Cancelling runs without an owner: final only when none of their processes lives.

use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::host::RUN_VARIABLE;
use outlive::id::RunId;
use outlive::lifecycle::Refusal;
use outlive::owner::{HostContext, Identity};
use outlive::registry::CancelOptions;
use outlive::run::{Arg, Command, Spec, StateName};
use outlive::testing::spec;

use crate::world::{Watched, World, on_each};

/// A process that carries a run's id, killed at the end.
struct Live(Child);

impl Live {
    fn of(run: RunId) -> Self {
        let mut command = std::process::Command::new("sleep");
        command.arg("300").env(RUN_VARIABLE, run.to_string()).stdin(Stdio::null());
        let started = Self(command.spawn().unwrap());
        // It has no environment while it becomes another program.
        let environ = format!("/proc/{}/environ", started.0.id());
        while std::fs::read(&environ).unwrap().is_empty() {
            std::thread::yield_now();
        }
        started
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn t1_03_request_is_not_cancelled_while_a_process_lives() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process_as(Identity::own());
        for retried in [false, true] {
            let mut job = spec("job");
            job.policy.retry.on_interrupt = retried;
            let handle = owner.start(job).await.unwrap();
            let id = handle.id();
            let live = Live::of(id);
            handle.interrupt(Some(15), "asked to").await.unwrap();
            let state = if retried { StateName::Pending } else { StateName::Interrupted };
            let requested = owner.cancel(id, Some("enough".into())).await.unwrap();
            assert_eq!((requested.state.name(), requested.cancel.is_some()), (state, true));
            let seen = world.see(id).await;
            assert_eq!(seen.leftovers.pids, [live.0.id()]);
            assert!(seen.reason.unwrap().contains("cancel requested by "));
            drop(live);
            // Nothing starts it again, though nothing of it is left.
            assert!(owner.claim(Filter::of([id]), 1).await.unwrap().is_empty(), "a cancelled run was claimed");
            let taken = owner.take_up(id, outlive::ResumeOptions::default()).await.unwrap_err();
            assert!(matches!(taken, Error::Refused { refusal: Refusal::CancelRequested, .. }), "{taken}");
            let done = owner.cancel(id, Some("again".into())).await.unwrap();
            assert_eq!(done.state.name(), StateName::Cancelled);
            assert_eq!(done.cancel.unwrap().reason.as_deref(), Some("enough"), "the first request stands");
        }
    });
}

#[test]
fn t1_03_cancelled_run_is_refused_unless_processes_live() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process_as(Identity::own());
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        handle.interrupt(None, "asked to").await.unwrap();
        let how = CancelOptions::default();
        let live = Live::of(id);
        let requested = owner.cancel_and_end(id, &how).await.unwrap();
        assert!(!requested.is_done(), "done while a process lives");
        assert_eq!((requested.run.state.name(), requested.live.pids), (StateName::Interrupted, vec![live.0.id()]));
        drop(live);
        assert!(owner.cancel_and_end(id, &how).await.unwrap().is_done());
        let refused = owner.cancel_and_end(id, &how).await.unwrap_err();
        assert!(matches!(refused, Error::Refused { refusal: Refusal::WrongState { .. }, .. }), "{refused}");
        let live = Live::of(id);
        let unfinished = owner.cancel_and_end(id, &how).await.unwrap();
        assert!(!unfinished.is_done(), "done while a process lives");
        assert_eq!((unfinished.run.state.name(), unfinished.live.pids), (StateName::Cancelled, vec![live.0.id()]));
    });
}

#[test]
fn t1_13_cancel_of_an_interrupted_run_is_final_on_each_store() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        handle.interrupt(Some(15), "asked to").await.unwrap();
        let before = world.record(id).await.run.ending().cloned().unwrap();
        owner.cancel(id, Some("enough".into())).await.unwrap();
        let run = world.record(id).await.run;
        assert_eq!(run.state.name(), StateName::Cancelled);
        let after = run.ending().unwrap();
        assert_eq!((after.at, after.started_at, after.exit), (before.at, before.started_at, before.exit));
        let found = owner.all(&Filter::in_states([StateName::Cancelled])).await.unwrap();
        assert!(found.iter().any(|seen| seen.run.id == id), "it is not listed as cancelled");
        assert_eq!(world.actions(id).await, ["enqueue", "claim", "interrupt", "request cancel"]);
        let resumed = owner.resume(id, outlive::ResumeOptions { failed_too: true }).await.unwrap_err();
        assert!(matches!(resumed, Error::Refused { refusal: Refusal::WrongState { .. }, .. }), "{resumed}");
    });
}

#[test]
fn t1_03_cancel_names_a_host_that_cannot_be_observed() {
    let world = World::memory();
    pollster::block_on(async {
        let own = Identity::own();
        let vantage = HostContext { host: "far".into(), boot_id: "another".into(), ..own.vantage.clone() };
        let owner = world.process_as(Identity { vantage, ..own });
        let command = Command::new(vec![Arg::Text("train".into())], Arg::Text("/".into()));
        let handle = owner.start(Spec { command: Some(command), ..spec("job") }).await.unwrap();
        let id = handle.id();
        handle.interrupt(Some(15), "asked to").await.unwrap();
        let answer = world.process().cancel_and_end(id, &CancelOptions::default()).await.unwrap();
        assert_eq!((answer.run.state.name(), answer.elsewhere.as_deref()), (StateName::Cancelled, Some("far")));
        assert!(!answer.is_done(), "processes of another host were called gone");
    });
}

#[test]
fn t1_03_end_behind_the_request_is_not_done_with_live_processes() {
    let world = World::sqlite();
    pollster::block_on(async {
        let handle = world.process_as(Identity::own()).start(spec("job")).await.unwrap();
        let id = handle.id();
        let live = Live::of(id);
        // The first read is for the request, the second finds what became of it.
        let (ending, reads) = (Mutex::new(Some(handle)), AtomicUsize::new(0));
        let store = Watched::new(world.store.clone(), move |call| {
            if call == "get"
                && reads.fetch_add(1, Ordering::SeqCst) == 1
                && let Some(handle) = ending.lock().unwrap().take()
            {
                pollster::block_on(handle.interrupt(Some(15), "asked to")).unwrap();
            }
            Ok(())
        });
        let caller = world.process_on(store, Identity::own());
        let answer = caller.cancel_and_end(id, &CancelOptions::default()).await.unwrap();
        assert_eq!((answer.run.state.name(), &answer.live.pids), (StateName::Cancelled, &vec![live.0.id()]));
        assert!(!answer.is_done(), "done while a process lives");
    });
}
