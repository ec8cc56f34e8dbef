//! A bucket writer with a sweeper: runs and their artifacts share a bucket, and what no run needs is deleted.
//!
//! `cargo run --example bucket --features object,testing -- s3://BUCKET/PREFIX` writes below that prefix. Credentials come from
//! the environment or the URL, as for `outlive`.

#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::time::Duration;

use outlive::store::object::ObjectStore;
use outlive::{Output, Registry, Report, RunHandle, Spec, SweepPolicy, sweep};
use serde_json::json;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("usage: bucket s3://BUCKET/PREFIX")?;
    pollster::block_on(async {
        let registry = Registry::open(&url).await?;
        let writer = Writer::new(&registry, &url)?;

        // The first writer fails: nothing of what it wrote is needed.
        let run = registry.start(writer.spec()).await?;
        writer.write(&run, 0).await?;
        run.fail("disk", "it is full").await?;

        // The second one tries twice, and its manifest names the attempt that counts.
        let run = registry.start(writer.spec()).await?;
        writer.write(&run, 0).await?;
        let winner = writer.write(&run, 1).await?;
        let manifest = writer.publish(&run, &winner).await?;
        // Durable when it returns, and refused if the run was lost meanwhile: a reader never follows a swept manifest.
        run.report(Report { manifest_ref: Some(manifest), ..Report::default() }).await?;
        run.succeed().await?;

        // A sweeper of a schedule keeps the default grace of an hour. A dry sweep only counts.
        let policy = SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() };
        println!(
            "{} objects could be deleted",
            sweep(&registry, &SweepPolicy { dry_run: true, ..policy.clone() }).await?.objects
        );
        println!("{} objects deleted", sweep(&registry, &policy).await?.objects);
        println!("the winner is {}", if writer.is_there(&winner).await? { "kept" } else { "gone" });
        registry.close().await;
        Ok(())
    })
}

/// Writes artifacts. A program has a client of its own for that; this one borrows the registry's.
struct Writer<'a> {
    registry: &'a Registry,
    bucket: &'a ObjectStore,
    /// Where artifacts are, as runs say it.
    place: String,
    /// The same place, as keys of the bucket begin.
    prefix: String,
}

impl<'a> Writer<'a> {
    fn new(registry: &'a Registry, url: &str) -> Result<Self, Failure> {
        let location = url.trim_start_matches("s3://").split('?').next().unwrap_or_default();
        let location = location.rsplit('@').next().unwrap_or_default();
        let (name, prefix) = location.split_once('/').ok_or("the URL has no prefix")?;
        let prefix = format!("{}/data", prefix.trim_end_matches('/'));
        let bucket = registry.bucket().ok_or("the registry is not in a bucket")?;
        Ok(Self { registry, bucket, place: format!("s3://{name}/{prefix}"), prefix })
    }

    fn spec(&self) -> Spec {
        let output = Output { prefix: self.place.clone(), ..Output::default() };
        Spec { output: Some(output), ..self.registry.spec("writer") }
    }

    /// Writes one attempt at part 0, below a directory that no other run or attempt writes to.
    async fn write(&self, run: &RunHandle, attempt: u32) -> Result<String, Failure> {
        let path = format!("shards/run_id={}/db=00000/attempt={attempt:02}", run.id());
        self.bucket.raw_put(&format!("{}/{path}/data.sst", self.prefix), b"rows").await?;
        Ok(path)
    }

    /// Writes the manifest, which names what readers need.
    async fn publish(&self, run: &RunHandle, winner: &str) -> Result<String, Failure> {
        let path = format!("manifests/2026-11-18T00:00:00Z_run_id={}/manifest.json", run.id());
        let shards = json!([{ "db_url": format!("{}/{winner}", self.place) }]);
        let manifest = json!({ "format_version": 1, "shards": shards }).to_string();
        self.bucket.raw_put(&format!("{}/{path}", self.prefix), manifest.as_bytes()).await?;
        Ok(path)
    }

    async fn is_there(&self, path: &str) -> Result<bool, Failure> {
        Ok(self.bucket.raw_get(&format!("{}/{path}/data.sst", self.prefix)).await?.is_some())
    }
}
