//! `outlive doctor`: looks the registry and the machine over.

use std::fmt;

use clap::Args;
use outlive::discovery::Location;
use outlive::error::Error;
use outlive::host::may_have_group;
use outlive::id::SystemEntropy;
use outlive::owner::{HostContext, Identity};
#[cfg(feature = "postgres")]
use outlive::store::postgres::{DatabaseAddress, DatabaseFinding, PostgresStore};
use outlive::store::sqlite::SqliteStore;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate, deliver};
use crate::ui::plain;

/// Check the registry and this machine, and repair what can be repaired
///
/// Without --fix nothing is changed. Nothing is ever deleted that holds data: a damaged database is kept under
/// another name and rebuilt from the files of the runs.
#[derive(Debug, Default, Args)]
pub struct Doctor {
    /// Repair what can be repaired without losing anything
    #[arg(long)]
    pub fix: bool,
}

/// What was found.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Report {
    registry: String,
    checks: Vec<Check>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct Check {
    /// `ok`, `mended` or `problem`.
    outcome: &'static str,
    what: String,
    /// What `--fix` would do about it, or what to type.
    remedy: Option<String>,
    #[serde(skip)]
    is_fixed_by_us: bool,
}

impl Check {
    fn new(outcome: &'static str, what: impl Into<String>) -> Self {
        Self { outcome, what: what.into(), remedy: None, is_fixed_by_us: false }
    }
}

impl Operate for Doctor {
    const NAME: &'static str = "doctor";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive doctor\noutlive doctor --fix";
    type Output = Report;

    fn effect(&self) -> Effect {
        if self.fix { Effect::Local } else { Self::EFFECT }
    }

    async fn operate(self, context: &Context) -> Result<Report, Error> {
        let registry = context.place()?;
        let mut checks = machine();
        if let Err(error) = context.check_config() {
            checks.push(Check::new("problem", error.to_string()));
        }
        if let Some(failure) = crate::exec::hooks::last_failure() {
            checks.push(Check::new("problem", failure));
        }
        if let (true, Location::Directory(path)) = (self.fix, context.location()?)
            && let Ok(Some(named)) = SqliteStore::name_again(&path, &SystemEntropy)
        {
            checks.push(Check { remedy: named.remedy, ..Check::new("mended", named.what) });
        }
        let opened = if self.fix { context.to_change().await } else { context.existing().await };
        match opened {
            Ok(None) => {
                let remedy =
                    "`outlive run -- COMMAND` makes it with the first run; `outlive init` makes one in this directory";
                checks.push(Check { remedy: Some(remedy.into()), ..Check::new("ok", "no registry yet") });
            }
            Err(error) => checks.push(Check { remedy: error.hint(), ..Check::new("problem", error.to_string()) }),
            Ok(Some(registry)) => {
                if let Some(unsigned) = registry.unsigned() {
                    checks.push(Check::new("problem", unsigned));
                }
                if let Some(store) = registry.local() {
                    let findings = if self.fix { store.mend()? } else { store.examine()? };
                    if findings.is_empty() {
                        checks.push(Check::new("ok", "the registry is sound"));
                    }
                    checks.extend(findings.into_iter().map(|finding| Check {
                        outcome: if finding.mended { "mended" } else { "problem" },
                        what: finding.what,
                        remedy: finding.remedy,
                        is_fixed_by_us: true,
                    }));
                }
                #[cfg(feature = "postgres")]
                checks.extend(database(context).await?);
                // A registry that is damaged may have forgotten whom it knows.
                let left = if checks.iter().any(|check| check.outcome == "problem") {
                    Vec::new()
                } else {
                    registry.left_argv().await
                };
                for run in left {
                    let what = format!("the words of a command are kept for run {run}, which was never recorded");
                    let mended = self.fix && registry.forget_sealed(run).is_ok();
                    let outcome = if mended { "mended" } else { "problem" };
                    checks.push(Check { remedy: Some("they are removed".into()), ..Check::new(outcome, what) });
                }
                if self.fix {
                    match deliver(&registry).await? {
                        0 => {}
                        delivered => {
                            checks.push(Check::new("mended", format!("{delivered} spooled outcomes were recorded")))
                        }
                    }
                }
            }
        }
        Ok(Report { registry, checks })
    }

    fn exit_status(report: &Report) -> u8 {
        report.checks.iter().any(|check| check.outcome == "problem").into()
    }
}

/// What is found of a registry in a database.
#[cfg(feature = "postgres")]
async fn database(context: &Context) -> Result<Vec<Check>, Error> {
    let Location::Url(url) = context.location()? else { return Ok(Vec::new()) };
    let Some(address) = DatabaseAddress::is_meant(&url).then(|| url.parse::<DatabaseAddress>().ok()).flatten() else {
        return Ok(Vec::new());
    };
    let findings = PostgresStore::read(&address).await?.examine().await?;
    let check = |finding: DatabaseFinding| Check {
        remedy: finding.remedy,
        ..Check::new(if finding.is_problem { "problem" } else { "ok" }, finding.what)
    };
    Ok(findings.into_iter().map(check).collect())
}

fn machine() -> Vec<Check> {
    let here = HostContext::here();
    let boot = match here.boot_id.is_empty() {
        false => Check::new("ok", "the boot id can be read: a reboot is noticed at once"),
        true => Check::new("problem", "the boot id cannot be read: deaths are noticed by lease only"),
    };
    let pidfs = match Identity::own().pidfs_inode {
        Some(_) => Check::new("ok", "the kernel tells processes apart: a reused pid is noticed"),
        None => Check::new("ok", "the kernel is older than 6.9: a reused pid is noticed by its owner's lock"),
    };
    let group = match may_have_group() {
        true => {
            Check::new("ok", "a run has a control group of its own: what it starts is found, whatever it throws away")
        }
        false => Check::new(
            "ok",
            "no control group can be made here: what throws away its parent, variables and files is lost with its owner",
        ),
    };
    vec![boot, pidfs, group]
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "registry {}", plain(&self.registry))?;
        for check in &self.checks {
            writeln!(f, "  {:<8} {}", check.outcome, plain(&check.what))?;
            match check.remedy.as_deref() {
                Some(remedy) if check.is_fixed_by_us && check.outcome == "problem" => {
                    writeln!(f, "           `outlive doctor --fix`: {}", plain(remedy))?;
                }
                // One thing to type a line, and not this very command.
                Some(remedy) if !check.is_fixed_by_us => {
                    let steps = remedy.split("; ").filter(|step| !step.starts_with("`outlive doctor`"));
                    steps.into_iter().try_for_each(|step| writeln!(f, "           {}", plain(step)))?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
