//! What the reaper needs of a registry.

use std::time::Duration;

use super::Registry;
use crate::model::id::{Entropy, Stamp};
use crate::model::run::{Actor, Owner, Run};
use crate::model::time::Clock;
use crate::ownership::reaper::ReapContext;
use crate::store::{Record, Store};

impl ReapContext for Registry {
    fn store(&self) -> &dyn Store {
        self.store()
    }

    fn clock(&self) -> &dyn Clock {
        self.clock()
    }

    fn entropy(&self) -> &dyn Entropy {
        self.entropy()
    }

    fn me(&self) -> &Actor {
        self.me()
    }

    fn is_own(&self, record: &Record, stamp: Stamp) -> bool {
        self.is_own(record, stamp)
    }

    fn may_end(&self, run: &Run, owner: &Owner) -> bool {
        self.executable(run).is_ok() && self.holds_its_lock(owner)
    }

    fn end_processes(&self, run: &Run) {
        self.end_tree(run, Duration::ZERO);
    }

    fn remove_group(&self, run: &Run) {
        self.remove_group(run);
    }
}
