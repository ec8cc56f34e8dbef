//! Forks: what a process made before it forked is inert in the child.
//!
//! A child of `fork` shares files, sockets and locks with its parent and has none of the parent's threads. A value that
//! relies on either remembers which process made it, and a value that a process needs once is made once per process.

use std::sync::OnceLock;

/// The process that made a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MadeBy(u32);

impl MadeBy {
    /// This process.
    pub(crate) fn this_process() -> Self {
        Self(std::process::id())
    }

    /// Whether this process made the value. False in a child that was forked later.
    pub(crate) fn is_this_process(self) -> bool {
        self.0 == std::process::id()
    }

    /// The process id.
    pub(crate) fn pid(self) -> u32 {
        self.0
    }
}

/// A static that has one value per process. A forked child makes its own and never touches its parent's.
pub(crate) struct PerProcess<T: 'static> {
    first: OnceLock<&'static Slot<T>>,
}

/// The value of one process. Each generation of forks appends one slot.
struct Slot<T: 'static> {
    made_by: MadeBy,
    value: OnceLock<T>,
    next: OnceLock<&'static Slot<T>>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// The value of this process, made by `make` at the first call.
    pub(crate) fn get_or_init(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let mut place = &self.first;
        loop {
            let empty = || Slot { made_by: MadeBy::this_process(), value: OnceLock::new(), next: OnceLock::new() };
            let slot = place.get_or_init(|| Box::leak(Box::new(empty())));
            if slot.made_by.is_this_process() {
                return slot.value.get_or_init(make);
            }
            place = &slot.next;
        }
    }
}
