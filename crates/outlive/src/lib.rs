//! outlive is a run registry: it tracks every run in flight, detects when one dies and on what evidence, and resumes it
//! from its last checkpoint. This crate is the library; `outlive-cli` has the command. Both see the same runs.
//!
//! # A run of this process
//!
//! ```
//! use outlive::{Progress, Registry};
//!
//! # fn main() -> Result<(), outlive::Error> {
//! # let home = std::env::temp_dir().join(format!("outlive-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&home).unwrap_or_default();
//! # pollster::block_on(async {
//! let registry = Registry::open(&format!("sqlite:{}", home.join(".outlive").display())).await?;
//! let run = registry.start(registry.spec("import")).await?;
//!
//! let first = run.checkpoint().and_then(|checkpoint| checkpoint.as_u64()).unwrap_or(0);
//! for file in first..10 {
//!     if run.stop_requested().is_some() {
//!         run.stopped().await?;
//!         return Ok(());
//!     }
//!     // … import one file …
//!     run.set_checkpoint((file + 1).into()).await?;
//!     run.progress(Progress { done: Some(file + 1), total: Some(10), ..Progress::default() }).await?;
//! }
//! run.succeed().await?;
//! registry.close().await;
//! # Ok(())
//! # }).inspect(|()| std::fs::remove_dir_all(&home).unwrap_or_default())
//! # }
//! ```
//!
//! # Runs for workers
//!
//! A run that waits is enqueued with an input, and executed by a [`Worker`] that has a handler for its kind, in this process
//! or any other:
//!
//! ```
//! use outlive::{Failed, Job, Policy, Registry, Worker};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), outlive::Error> {
//! let registry = Registry::open("memory:").await?.with_policy("greet", Policy::default().with_retries(3));
//! let run = registry.enqueue(registry.spec("greet").with_input(&"Ada")?).await?;
//!
//! let worker = Worker::builder(&registry)
//!     .concurrency(100)
//!     .handle("greet", |job: Job<String>| async move { Ok::<_, Failed>(format!("hello {}", job.input)) });
//! worker.drain().await?; // a service calls `run_until` with its shutdown signal
//!
//! let seen = registry.wait(run.id).await?;
//! assert_eq!(seen.run.result.as_deref(), Some(&"hello Ada".into()));
//! # Ok(())
//! # }
//! ```
//!
//! Handlers are tested without a database: see `testing::Harness` (feature `testing`).
//!
#![cfg_attr(feature = "postgres", doc = include_str!("service.md"))]
//!
//! # A store of your own
//!
//! A type that implements [`store::Store`] with the `async_trait` crate holds runs in any database, and
//! [`Registry::with_store`] opens a registry over it. `conformance_tests!` (feature `testing`) tests it.
//!
//! # Ten words
//!
//! - **Run** ([`Run`]): one piece of work, from its creation until its last attempt has ended.
//! - **Spec** ([`Spec`]): what is to be done, and under which promises ([`Policy`]). Never changes.
//! - **Registry** ([`Registry`]): where runs are stored: `sqlite:PATH`, `postgres://…`, `s3://…`, `http://…`, `memory:`.
//!   [`Registry::discover`] opens the one that the command finds from here, with its `config.toml`.
//! - **Worker** ([`Worker`]): a process that claims waiting runs and executes them.
//! - **Owner**: the worker that a running run belongs to, until its lease has expired.
//! - **Claim, epoch**: each claim of a run has a higher epoch; writes of an earlier one are refused ([`Fence`]).
//! - **Heartbeat, lease** ([`Lease`]): how an owner shows that it lives, and for how long that counts.
//! - **Evidence** ([`Evidence`]): what proves that an owner is gone. Silence alone is the weakest.
//! - **Checkpoint**: what an attempt leaves for the next one.
//! - **Key** ([`Key`]): a name that only so many runs may hold at a time: locks, limits, rates, unique runs.
//!
//! # Features
//!
//! `sqlite` (default), `postgres`, `object` (buckets), `http` (a client of `outlive serve`), `testing` (a harness for
//! tests of handlers, the conformance suite for a store of your own, and the simulation).

// On docs.rs an item says which feature it needs.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Each store uses its own part of what the stores share. Dead code is looked for where every store is compiled.
#![cfg_attr(
    not(all(feature = "http", feature = "object", feature = "postgres", feature = "sqlite", feature = "testing")),
    allow(dead_code, unused_imports, reason = "used by the stores that are not compiled")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("outlive runs on Linux only; docs/porting.md lists what a port has to replace");

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[doc(hidden)]
pub mod discovery;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod host;
#[cfg(feature = "sqlite")]
#[doc(hidden)]
pub mod index;
#[doc(hidden)]
pub mod lifecycle;
#[doc(hidden)]
pub mod logs;
mod model;
#[doc(hidden)]
pub mod ownership;
pub mod record;
#[doc(hidden)]
pub mod redact;
#[doc(hidden)]
pub mod registry;
#[doc(hidden)]
pub mod secrets;
#[doc(hidden)]
pub mod settings;
// It sweeps, too, and the sweeper is a part of `object`.
#[cfg(all(any(test, feature = "testing"), feature = "object"))]
pub mod simulation;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod util;

#[cfg(feature = "object")]
pub use self::engine::sweeper::{Line, SweepPolicy, SweepProblem, SweepReport, sweep};
pub use self::engine::worker::{
    BlockingJob, Done, Failed, IntoDone, Job, JobRun, StopReason, Tally, Waker, Worker, WorkerBuilder, WorkerTiming,
};
pub use self::error::{Candidate, Code, Error};
pub use self::lifecycle::health::{Health, OwnerStatus, RunStatus};
pub use self::lifecycle::{Fence, Refusal, Report};
pub use self::model::filter::Filter;
pub use self::model::id::{Epoch, RunId, WorkerId};
pub use self::model::owner::Evidence;
pub use self::model::policy::{FailureClass, InvalidPolicy, Lease, Limits, OnLeaseLoss, OrphanPolicy, Policy, Retry};
pub use self::model::run::{
    Actor, After, CancelRequest, End, Ending, Event, Failure, Hold, Interruption, InvalidSpec, Key, Output, Progress,
    Release, Run, Share, Spec, State, StateName, TraceParent, Usage,
};
pub use self::model::time::Timestamp;
pub use self::ownership::Stop;
pub use self::ownership::handle::{Persisted, RunHandle};
pub use self::ownership::step::StepError;
pub use self::redact::Redactor;
pub use self::registry::{
    CancelOptions, Cancellation, Delivered, Enqueued, Parent, Planned, Registry, RerunOptions, ResumeOptions,
};

#[doc(hidden)]
pub use self::util::within::block_on_within;

#[doc(hidden)]
pub use self::model::{filter, id, owner, page, policy, run, schedule, signal, sort, step, time};
