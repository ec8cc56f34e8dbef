//! Forks: a child that inherits a held run changes nothing of it, and can open a registry of its own.

#![allow(unsafe_code, reason = "a fork and the environment of a process can only be had so")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use outlive::error::Error;
use outlive::filter::Filter;
use outlive::ownership::Stop;
use outlive::ownership::handle::{Persisted, RunHandle};
use outlive::registry::Registry;
use outlive::run::{Progress, StateName};
use outlive::store;
use outlive::store::Page;
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::testing::bucket::Bucket;
use outlive::testing::lender::Lender;
use outlive::testing::server::Server;
use outlive::testing::spec;
use outlive::time::SystemClock;
use pollster::block_on;

/// How often the parent forks. Each way of a child has a quarter of them.
const ROUNDS: usize = 100;
/// How long a child may take before it counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(60);

#[test]
fn t1_06_forked_children_leave_a_run_alone_on_sqlite() {
    let dir = home();
    parent_is_unaffected(&format!("sqlite:{}", dir.path().join("registry").display()), dir.path());
}

#[test]
fn t1_06_forked_children_leave_a_run_alone_on_postgres() {
    let dir = home();
    parent_is_unaffected(&Server::shared().fresh_url(), dir.path());
}

#[test]
fn t1_06_forked_children_leave_a_run_alone_on_s3() {
    let dir = home();
    parent_is_unaffected(&Bucket::shared().fresh_url(), dir.path());
}

#[test]
fn t1_06_forked_children_leave_a_run_alone_over_http() {
    let dir = home();
    let path = dir.path().join("lent");
    let entropy = Arc::new(outlive::id::SystemEntropy);
    let lent = SqliteStore::create(&path, Sharing::Private, Arc::new(SystemClock), entropy).unwrap();
    let lender = Lender::of(Arc::new(lent));
    parent_is_unaffected(&format!("http://127.0.0.1:{}", lender.port()), dir.path());
}

/// A directory that is the home of this process.
fn home() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // SAFETY: each test is a process of its own, and no other thread reads the environment yet.
    unsafe { std::env::set_var("OUTLIVE_HOME", dir.path().join("home")) };
    dir
}

fn parent_is_unaffected(url: &str, dir: &std::path::Path) {
    let mut registry = Some(block_on(Registry::open(url)).unwrap());
    let mut handle = Some(block_on(registry.as_ref().unwrap().start(spec("held"))).unwrap());
    let id = handle.as_ref().unwrap().id();
    for round in 0..ROUNDS {
        let way = [Way::Exit, Way::Drop, Way::Finish, Way::OpenItsOwn][round % 4];
        in_child(&format!("round {round}, {way:?}"), || way.go(&mut registry, &mut handle, url));
        let (registry, handle) = (registry.as_ref().unwrap(), handle.as_ref().unwrap());
        let done = u64::try_from(round).unwrap();
        block_on(handle.progress(Progress { done: Some(done), ..Progress::default() })).unwrap();
        assert_eq!(handle.stop_requested(), None, "round {round}");
        let found = block_on(registry.store().get(&[id])).unwrap().pop().unwrap();
        assert_eq!((found.run.state.name(), found.run.epoch.0), (StateName::Running, 1), "round {round}, {way:?}");
    }
    assert_eq!(block_on(handle.take().unwrap().succeed()).unwrap(), Persisted::Committed);
    let registry = registry.take().unwrap();
    let all = block_on(registry.store().list(&Filter::default(), &Page::default())).unwrap().records;
    let succeeded = all.iter().filter(|record| record.run.state.name() == StateName::Succeeded).count();
    assert_eq!(
        (all.len(), succeeded),
        (1 + ROUNDS / 4, 1 + ROUNDS / 4),
        "a run of the parent or of a child is missing"
    );
    block_on(registry.close());
    let spooled = std::fs::read_dir(dir.join("home/spool")).map_or(0, Iterator::count);
    assert_eq!(spooled, 0, "a child spooled an outcome of its parent's run");
}

/// What a child does with what it inherited.
#[derive(Debug, Clone, Copy)]
enum Way {
    Exit,
    Drop,
    Finish,
    OpenItsOwn,
}

impl Way {
    fn go(self, registry: &mut Option<Registry>, handle: &mut Option<RunHandle>, url: &str) {
        match self {
            Self::Exit => {}
            Self::Drop => {
                drop(handle.take());
                drop(registry.take());
            }
            Self::Finish => {
                let (registry, handle) = (registry.take().unwrap(), handle.take().unwrap());
                assert_eq!(handle.stop_requested(), Some(Stop::Lost));
                is_forked(block_on(handle.progress(Progress::default())));
                let id = handle.id();
                is_forked(block_on(handle.succeed()));
                is_forked(block_on(registry.start(spec("of the child"))));
                is_forked(block_on(registry.get(id)));
                block_on(registry.close());
            }
            Self::OpenItsOwn => {
                let own = block_on(Registry::open(url)).unwrap();
                let run = block_on(own.start(spec("of the child"))).unwrap();
                assert_eq!(block_on(run.succeed()).unwrap(), Persisted::Committed);
                block_on(own.close());
            }
        }
    }
}

fn is_forked<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let own = std::process::id();
    match answer {
        Err(Error::Store(store::Error::Forked { opened_by })) if opened_by != own => {}
        other => panic!("{other:?}"),
    }
}

/// Forks, and waits for the child, which must not hang and must not fail.
fn in_child(what: &str, work: impl FnOnce()) {
    // SAFETY: the child has this thread alone, and nothing that it calls waits for another of the parent's.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let done = catch_unwind(AssertUnwindSafe(work));
            // SAFETY: the child ends here, without what the parent would do at its end.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        ForkResult::Parent { child } => wait_for(what, child),
    }
}

fn wait_for(what: &str, child: Pid) {
    let pause = Duration::from_millis(2);
    for _ in 0..HUNG_AFTER.as_millis() / pause.as_millis() {
        match waitpid(child, Some(WaitPidFlag::WNOHANG)).unwrap() {
            WaitStatus::StillAlive => std::thread::park_timeout(pause),
            WaitStatus::Exited(_, 0) => return,
            other => panic!("{what}: the child failed: {other:?}"),
        }
    }
    kill(child, Signal::SIGKILL).unwrap();
    waitpid(child, None).unwrap();
    panic!("{what}: the child hung");
}
