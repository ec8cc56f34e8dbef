//! Sweeps of a supervisor: when one is due, the thread that does it, and what is said of it.

use std::thread::JoinHandle;
use std::time::Duration;

use outlive::engine::sweeper::{SweepReport, sweep};
use outlive::error::Error;
use outlive::settings::Sweeps;
use serde_json::json;

use super::{Supervising, swept};
use crate::ui::counted;

/// What is to be remembered between sweeps.
#[derive(Debug, Default)]
pub(super) struct Sweeping {
    sweeps: Sweeps,
    /// When a sweep was last begun here, whatever came of it.
    begun: Option<Duration>,
    /// A sweep that is under way, on a thread of its own: it may take long, and nothing else waits for it.
    thread: Option<JoinHandle<Result<SweepReport, Error>>>,
}

impl Sweeping {
    pub(super) fn new(sweeps: Sweeps) -> Self {
        Self { sweeps, ..Self::default() }
    }
}

impl Supervising<'_> {
    /// Says what the last sweep came to, and begins the next where it is due.
    pub(super) fn sweep_when_due(&mut self, now: Duration) -> Result<(), Error> {
        self.tell_swept(false);
        let Sweeping { sweeps, begun, thread } = &self.maintenance.sweeping;
        if let Some(every) = sweeps.every
            && thread.is_none()
            && begun.is_none_or(|last| now.saturating_sub(last) >= every)
            && swept::since(self.registry, self.registry.clock().now()).is_none_or(|ago| ago >= every)
        {
            self.maintenance.sweeping.begun = Some(now);
            self.begin_sweep()?;
        }
        Ok(())
    }

    fn begin_sweep(&mut self) -> Result<(), Error> {
        let (registry, spare) = (self.registry.again(), self.maintenance.sweeping.sweeps.spare());
        let registry = registry.naming_artifacts(self.maintenance.sweeping.sweeps.locations(self.registry.url())?);
        let work = move || pollster::block_on(sweep(&registry, &spare));
        let thread = std::thread::Builder::new().name("outlive-sweep".into()).spawn(work);
        let failed = |error: std::io::Error| Error::Invalid(format!("no thread for the sweep: {error}"));
        self.maintenance.sweeping.thread = Some(thread.map_err(failed)?);
        Ok(())
    }

    /// Says what a sweep came to that has ended; with `waits` whenever it ends.
    pub(super) fn tell_swept(&mut self, waits: bool) {
        let Some(sweeping) = self.maintenance.sweeping.thread.take_if(|sweeping| waits || sweeping.is_finished())
        else {
            return;
        };
        let report = match sweeping.join() {
            Ok(Ok(report)) => report,
            Ok(Err(error)) => {
                return self.say("sweep", &json!({ "error": error.to_string() }), &format!("no sweep: {error}"));
            }
            Err(_) => return self.say("sweep", &json!({ "error": "it broke off" }), "no sweep: it broke off"),
        };
        if let Err(error) = swept::note(self.registry, self.registry.clock().now()) {
            self.say("sweep", &json!({ "error": error.to_string() }), &format!("the next may come too soon: {error}"));
        }
        let SweepReport { objects, bytes, left, problems, forgotten, .. } = &report;
        if *objects + *left == 0 && problems.is_empty() && forgotten.is_empty() {
            return;
        }
        let deleted = format!("{} of {}", counted(*objects, "object"), counted(*bytes, "byte"));
        let mut text = format!("swept: {deleted} deleted, {left} left to the next sweep");
        if !forgotten.is_empty() {
            text += &format!(", {} forgotten", counted(forgotten.len(), "record"));
        }
        if !problems.is_empty() {
            text += &format!("; {}, which `outlive sweep` tells", counted(problems.len(), "problem"));
        }
        let fields =
            json!({ "objects": objects, "bytes": bytes, "left": left, "forgotten": forgotten, "problems": problems });
        self.say("swept", &fields, &text);
    }
}
