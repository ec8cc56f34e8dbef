//! Progress of a call, and whether its caller still waits for it.
//!
//! The operation reports its progress where it may stop; the caller reads it, and gives the call up by leaving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use outlive::error::Error;
use outlive::store;

/// The progress of a call. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CallProgress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    given_up: AtomicBool,
    done: AtomicUsize,
    total: AtomicUsize,
}

/// A caller that waits for the answer of a call. It is given up when the caller leaves.
#[derive(Debug)]
pub struct CancelOnDrop(CallProgress);

impl CallProgress {
    /// A guard of the caller: the call is given up when it is dropped.
    pub fn wanted(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }

    /// Whether no caller waits for it any more.
    pub fn is_given_up(&self) -> bool {
        self.0.given_up.load(Ordering::Relaxed)
    }

    /// Here it may be stopped, with so many done of so many. An error where no caller waits for the rest.
    pub fn pass(&self, done: usize, total: usize) -> Result<(), Error> {
        self.report(done, total);
        if self.is_given_up() { Err(given_up()) } else { Ok(()) }
    }

    /// So many are done of so many, of a call that is not to be stopped here.
    pub fn report(&self, done: usize, total: usize) {
        self.0.done.store(done, Ordering::Relaxed);
        self.0.total.store(total, Ordering::Relaxed);
    }

    /// How many are done, and of how many, where that is known.
    pub fn far(&self) -> Option<(usize, usize)> {
        let total = self.0.total.load(Ordering::Relaxed);
        (total > 0).then(|| (self.0.done.load(Ordering::Relaxed), total))
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.given_up.store(true, Ordering::Relaxed);
    }
}

/// The answer of a call that no caller waits for.
pub fn given_up() -> Error {
    Error::Store(store::Error::Unavailable("the caller has gone away".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_is_given_up_with_its_caller_and_reports_progress() {
        let going = CallProgress::default();
        assert_eq!(going.far(), None);
        let wanted = going.wanted();
        going.pass(1, 3).unwrap();
        assert_eq!(going.far(), Some((1, 3)));
        drop(wanted);
        going.pass(2, 3).unwrap_err();
    }
}
