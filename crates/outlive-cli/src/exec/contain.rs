//! The control group of the attempt that we own: what the command starts is kept in it, no matter which dies first.
//!
//! As long as we live, whatever we started is below us, however it left. So there is time: the group is made when the
//! command has run for a while, and takes in all that is below us. One that ends sooner has none, unless it leaves
//! a process behind.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use outlive::host::{Group, UsageReading, collected_by, usage_below};
use outlive::ownership::handle::RunHandle;
use outlive::registry::Registry;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::tree;

/// How long a command runs before it is worth a group.
pub const AFTER: Duration = Duration::from_millis(100);

/// The group, once there is one.
#[derive(Default)]
pub struct Containment {
    group: Option<Arc<Group>>,
    taking: Option<JoinHandle<()>>,
}

impl Containment {
    /// Makes the group, and takes in what is below us on a thread of its own: the kernel takes its time. Where there
    /// can be no group, or no thread, nothing changes.
    pub fn begin(&mut self, registry: &Registry, handle: &RunHandle) {
        if let Some(group) = self.make(registry, handle) {
            let work = move || take_in(&group);
            self.taking = std::thread::Builder::new().name("outlive-group".into()).spawn(work).ok();
        }
    }

    /// What the processes of the attempt have used: those of the group, or, where there is none yet, those below us.
    pub fn usage(&self) -> UsageReading {
        let shims = shims();
        let is_taken_in = self.taking.as_ref().is_none_or(JoinHandle::is_finished);
        let living = match self.group.as_ref().filter(|_| is_taken_in) {
            Some(group) => group.usage(),
            None => usage_below(std::process::id(), &shims),
        };
        UsageReading { cpu: living.cpu + collected_by(&shims), ..living }
    }

    /// The command has ended. Every process that it left behind is in the group when this returns.
    pub fn finish(&mut self, registry: &Registry, handle: &RunHandle) {
        if let Some(taking) = self.taking.take() {
            let _ = taking.join();
        }
        // Mostly we have no child any more, which one call tells.
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::All, any).is_err() || !tree::collect_orphans(&tree::shims()) {
            return;
        }
        if let Some(group) = self.group.clone().or_else(|| self.make(registry, handle)) {
            take_in(&group);
        }
    }

    /// Nothing more comes. Removes the group, if no process is left in it.
    pub fn leave(&self) {
        if let Some(group) = &self.group {
            group.remove();
        }
    }

    fn make(&mut self, registry: &Registry, handle: &RunHandle) -> Option<Arc<Group>> {
        self.group = registry.make_group(&handle.run()).map(Arc::new);
        self.group.clone()
    }
}

fn take_in(group: &Group) {
    // A process outside of it is found as where there is none.
    let _ = group.take_in(&shims());
}

fn shims() -> Vec<u32> {
    tree::shims().into_iter().map(|pid| pid.as_raw_nonzero().get().unsigned_abs()).collect()
}
