//! `outlive registry check`: whether what a registry is kept on does what is relied on.

use std::fmt;

use clap::Args;
use outlive::discovery::Location;
use outlive::error::Error;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::ui::plain;

/// Test the storage of the registry
///
/// A bucket must refuse a write whose condition does not hold, also when writers race. This is tested when a registry
/// is created in a bucket; the command repeats the test and prints the result. Use `outlive doctor` for other
/// registries.
#[derive(Debug, Default, Args)]
pub struct Check {}

/// What was found.
#[derive(Debug, Serialize, JsonSchema)]
pub struct BucketCheck {
    registry: String,
    server: String,
    /// By how much this host's clock is ahead of the server's.
    skew_ms: i64,
    checks: Vec<CheckLine>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CheckLine {
    what: String,
    wrong: Option<String>,
    /// Why it is not known whether anything is wrong.
    unproven: Option<String>,
}

impl Operate for Check {
    const NAME: &'static str = "registry check";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive --registry s3://bucket/prefix registry check";
    type Output = BucketCheck;

    async fn operate(self, context: &Context) -> Result<BucketCheck, Error> {
        let url = match context.location()? {
            Location::Url(url) if outlive::store::object::BucketAddress::is_meant(&url) => url,
            _ => {
                let place = context.place()?;
                return Err(Error::Invalid(format!("`{place}` is no bucket; `outlive doctor` looks it over")));
            }
        };
        let registry = outlive::registry::Registry::open(&url).await?;
        let place = context.place()?;
        let Some(bucket) = registry.bucket() else { return Err(Error::Invalid(format!("`{place}` is no bucket"))) };
        let probed = bucket.check().await?;
        let line = |finding: &outlive::store::object::BucketFinding| CheckLine {
            what: finding.what.into(),
            wrong: finding.wrong.clone(),
            unproven: finding.unproven.clone(),
        };
        let checks = probed.findings.iter().map(line).collect();
        Ok(BucketCheck { registry: place, server: probed.server, skew_ms: probed.skew_ms, checks })
    }

    fn exit_status(output: &BucketCheck) -> u8 {
        u8::from(output.checks.iter().any(|line| line.wrong.is_some() || line.unproven.is_some()))
    }
}

impl fmt::Display for BucketCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}", plain(&self.registry), plain(&self.server))?;
        for CheckLine { what, wrong, unproven } in &self.checks {
            match (wrong, unproven) {
                (Some(wrong), _) => writeln!(f, "problem  {what}: {}", plain(wrong))?,
                (None, Some(why)) => writeln!(f, "unknown  {what}: {}", plain(why))?,
                (None, None) => writeln!(f, "ok       {what}")?,
            }
        }
        writeln!(f, "clock    this host is {} ms ahead of the server", self.skew_ms)
    }
}
