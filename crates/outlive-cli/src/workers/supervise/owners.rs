//! The owners that a supervisor starts: each a process of its own, which says whether it owns its run.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::sys::signal::SigSet;
use outlive::engine::supervisor::{Owners, SupervisorEvent};
use outlive::error::Error;
use outlive::id::RunId;
use outlive::run::Run;
use serde_json::json;

use super::{Voice, ready};
use crate::exec::detach::{Started, Starting};
use crate::exec::hooks::{self, Event};
use crate::exec::own::{Job, changed_program};
use crate::exec::{adopt, take_up};

/// Owners that are processes of this host.
pub(super) struct OwnerProcesses<'a> {
    voice: Voice<'a>,
    /// Those that are to own a run and have not said yet whether they do.
    pub(super) starting: Vec<(RunId, Starting)>,
    /// A run of the queue that was seen to run, as long as the queue has not been empty since.
    last_queued: Option<RunId>,
}

impl<'a> OwnerProcesses<'a> {
    pub(super) fn new(voice: Voice<'a>) -> Self {
        Self { voice, starting: Vec::new(), last_queued: None }
    }
}

impl Owners for OwnerProcesses<'_> {
    fn starting(&self) -> usize {
        self.starting.len()
    }

    fn is_starting(&self, run: RunId) -> bool {
        self.starting.iter().any(|(id, _)| *id == run)
    }

    fn started(&mut self) -> Vec<(RunId, Result<(), String>)> {
        let fds: Vec<_> = self.starting.iter().map(|(_, starting)| starting.as_fd()).collect();
        let spoke = ready(&fds, Duration::ZERO);
        let answer = |place: usize| {
            let (id, starting) = self.starting.remove(place);
            match starting.wait() {
                Ok(Started { id: Some(_), .. }) => (id, Ok(())),
                Ok(Started { talk, .. }) => (id, Err(talk.unwrap_or_default())),
                Err(error) => (id, Err(error.to_string())),
            }
        };
        spoke.into_iter().rev().map(answer).collect()
    }

    fn check(&self, run: &Run) -> Result<(), String> {
        Job::of(self.voice.registry, run, true).map(drop).map_err(|error| error.to_string())
    }

    fn start(&mut self, run: &Run, adopts: bool) -> Result<(), Error> {
        let registry = self.voice.registry;
        let words: Vec<OsString> = if adopts {
            let words = ["outlive", adopt::NAME, "--registry", registry.url()].map(OsString::from);
            words.into_iter().chain([run.id.to_string().into()]).collect()
        } else {
            if let Some(changed) = changed_program(run) {
                self.voice.say("changed", &json!({ "id": run.id }), &changed);
            }
            take_up::words(registry, run.id, false, true)
        };
        let starting = Starting::begin(&words, &SigSet::empty())
            .map_err(|error| Error::Invalid(format!("an owner cannot be started: {error}")))?;
        self.starting.push((run.id, starting));
        // It may be over before it is seen to run.
        if run.spec.queued {
            self.last_queued = Some(run.id);
        }
        Ok(())
    }

    fn notify(&mut self, event: SupervisorEvent<'_>) {
        let registry = self.voice.registry;
        match event {
            SupervisorEvent::Reaped(reaped) => {
                hooks::tell_reaped(registry, reaped);
                for run in &reaped.ended {
                    let state = run.state.name();
                    let fields = json!({ "id": run.id, "name": run.spec.name, "state": state });
                    let text = format!("{} reaped: its owner is gone; it is {state}", title(run));
                    self.voice.say("reaped", &fields, &text);
                }
            }
            SupervisorEvent::Started(run) => {
                let verb = if run.attempt > 1 { "resumed" } else { "started" };
                let fields = json!({ "id": run.id, "name": run.spec.name, "attempt": run.attempt });
                self.voice.say(verb, &fields, &format!("{} {verb}, attempt {}", title(run), run.attempt));
            }
            SupervisorEvent::Refused(run, why) => {
                let fields = json!({ "id": run.id, "name": run.spec.name, "reason": why });
                self.voice.say("refused", &fields, &format!("{} left alone: {why}", title(run)));
            }
            SupervisorEvent::Adopted(run, live) => {
                let fields = json!({ "id": run.id, "name": run.spec.name, "pids": live.pids });
                self.voice.say("adopted", &fields, &format!("{} adopted: {live} lives on", title(run)));
            }
            // When nothing of the queue runs or waits any more, the hooks for that are called.
            SupervisorEvent::Queue { running, waits } => {
                if running.is_some() {
                    self.last_queued = running;
                } else if !waits && let Some(last) = self.last_queued.take() {
                    hooks::tell(registry, last, 1, Event::QueueEmpty);
                }
            }
        }
    }
}

/// What a run is called in what a supervisor says.
fn title(run: &Run) -> String {
    run.spec.name.as_ref().map_or_else(|| run.id.to_string(), |name| format!("{} {name}", run.id))
}
