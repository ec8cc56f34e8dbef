//! A run of this process on SQLite: progress, a checkpoint, and what a later attempt finds.
//!
//! `cargo run --example embed -- DIRECTORY` imports ten files and stops half-way the first time.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use outlive::{Error, Progress, Registry, ResumeOptions, RunHandle};

const FILES: u64 = 10;

fn main() -> Result<(), Error> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    pollster::block_on(async {
        let registry = Registry::open(&format!("sqlite:{directory}/.outlive")).await?;
        match registry.find("import").await {
            Ok(earlier) => import(registry.resume(earlier.run.id, ResumeOptions::default()).await?, FILES).await?,
            Err(_) => {
                let mut spec = registry.spec("import");
                spec.name = Some("import".into());
                import(registry.start(spec).await?, FILES / 2).await?;
            }
        }
        registry.close().await;
        Ok(())
    })
}

/// Imports the files from the checkpoint on, up to `until`.
async fn import(run: RunHandle, until: u64) -> Result<(), Error> {
    let first = run.checkpoint().and_then(|checkpoint| checkpoint.as_u64()).unwrap_or(0);
    println!("attempt {} begins at file {first}", run.run().attempt);
    for file in first..until {
        // … import one file …
        run.set_checkpoint((file + 1).into()).await?;
        run.progress(Progress { done: Some(file + 1), total: Some(FILES), ..Progress::default() }).await?;
    }
    if until == FILES {
        run.succeed().await?
    } else {
        run.interrupt(None, "half of it is enough for today").await?
    };
    Ok(())
}
