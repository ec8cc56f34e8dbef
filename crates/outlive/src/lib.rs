//! Every run outlives its process.
//!
//! outlive is a run registry: it knows every run that is in flight, notices when one dies, resumes it where it left
//! off, and shows its event log. This crate is the library; `outlive-cli` has the command.
//!
//! ```
//! use outlive::registry::Registry;
//! use outlive::run::{Progress, Spec};
//!
//! # fn main() -> Result<(), outlive::error::Error> {
//! # let home = std::env::temp_dir().join(format!("outlive-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&home).unwrap_or_default();
//! # pollster::block_on(async {
//! let registry = Registry::open(&format!("sqlite:{}", home.join(".outlive").display())).await?;
//! let run = registry.start(Spec::new("import", registry.me().clone())).await?;
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
//! The layers, the lowest first: values ([`id`], [`time`], [`run`], [`owner`], [`policy`], [`filter`]), rules
//! ([`lifecycle`]), [`secrets`], this [`host`], storage ([`store`]), [`ownership`], the [`registry`], and what works over it ([`engine`],
//! `index`).

// Each store uses its own part of what the stores share. Dead code is looked for where every store is compiled.
#![cfg_attr(
    not(all(feature = "http", feature = "object", feature = "postgres", feature = "sqlite", feature = "testing")),
    allow(dead_code, unused_imports, reason = "used by the stores that are not compiled")
)]

#[cfg(not(target_os = "linux"))]
compile_error!("outlive runs on Linux only; docs/porting.md lists what a port has to replace");

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
pub mod discovery;
pub mod engine;
pub mod error;
pub mod host;
#[cfg(feature = "sqlite")]
pub mod index;
pub mod lifecycle;
pub mod logs;
mod model;
pub mod ownership;
pub mod redact;
pub mod registry;
pub mod secrets;
#[cfg(any(test, feature = "testing"))]
pub mod simulation;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod util;

pub use self::model::{filter, id, owner, page, policy, run, schedule, signal, step, time};
