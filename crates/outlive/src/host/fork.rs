//! Forks: what a process made before it forked is inert in the child.
//!
//! A child of `fork` shares files, sockets and locks with its parent and has none of the parent's threads. A value that
//! relies on either remembers which process made it, and a value that a process needs once is made once per process.
//!
//! SQLite keeps a list of the locks that its process holds. A child that is forked while a thread of its parent writes
//! inherits that list, believes that it holds the lock itself, and waits for it in vain. So a program that can say when it
//! forks, as Python can, waits for the writes of its threads first: see [`before_fork`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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

/// How many threads of this process write at the moment.
static WRITING: AtomicUsize = AtomicUsize::new(0);
/// How many threads of this process are about to fork.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// How long a fork waits for writes: a disk that hangs must not hang the program.
const PAUSES: u32 = 2_000;
const PAUSE: Duration = Duration::from_millis(1);

/// A write during which this process should not fork.
pub(crate) struct Writing(());

impl Writing {
    /// Begins one. Waits while a thread of this process forks.
    pub(crate) fn begin() -> Self {
        for _ in 0..PAUSES {
            WRITING.fetch_add(1, Ordering::SeqCst);
            if FORKING.load(Ordering::SeqCst) == 0 {
                return Self(());
            }
            WRITING.fetch_sub(1, Ordering::SeqCst);
            std::thread::park_timeout(PAUSE);
        }
        WRITING.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        WRITING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// To be called before this process forks, if it can say so: waits until no other thread of it writes to a registry, and
/// has later writes wait. The child can then open a registry of its own. Without it the child may have to wait in vain.
pub fn before_fork() {
    FORKING.fetch_add(1, Ordering::SeqCst);
    for _ in 0..PAUSES {
        if WRITING.load(Ordering::SeqCst) == 0 {
            return;
        }
        std::thread::park_timeout(PAUSE);
    }
}

/// To be called in the parent after [`before_fork`] and the fork.
pub fn after_fork_in_parent() {
    FORKING.fetch_sub(1, Ordering::SeqCst);
}

/// To be called in the child after [`before_fork`] and the fork: none of the parent's threads are here.
pub fn after_fork_in_child() {
    WRITING.store(0, Ordering::SeqCst);
    FORKING.store(0, Ordering::SeqCst);
}
