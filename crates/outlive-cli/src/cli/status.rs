//! `outlive` alone: the status page, as `git status` is for a repository.
//!
//! How many runs are running, need attention and are queued, the list of `outlive ps` with its next commands, and where the
//! help is.

use std::collections::BTreeMap;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::lifecycle::health::{Health, RunStatus};
use outlive::run::StateName;
use outlive::store::Page;

use super::{command, operate};
use crate::call::{Context, Operate, fail};
use crate::operations::ps::Ps;
use crate::ui::{plain, say_line};

/// How many runs are read at a time.
const AT_A_TIME: usize = 1_000;

/// Prints the status page.
pub fn print(context: &Context) -> u8 {
    match pollster::block_on(counted(context)) {
        Ok(Some(counts)) => counts.lines().iter().for_each(|line| say_line(line)),
        Ok(None) => {}
        Err(error) => return fail(&error, false),
    }
    let listed = match command(Some(Ps::NAME)).try_get_matches_from(["outlive", Ps::NAME]) {
        Ok(matches) => match matches.subcommand() {
            Some((name, matches)) => operate(name, matches, context, false),
            None => 2,
        },
        Err(_) => 2,
    };
    say_line("`outlive --help` lists the verbs.");
    listed
}

/// How many runs are unfinished, by what a person would do about them.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    registry: String,
    running: usize,
    /// Runs that a person should look at, by what is wrong with them.
    attention: BTreeMap<&'static str, usize>,
    /// Runs that wait for a worker, a time or an event.
    queued: BTreeMap<&'static str, usize>,
}

impl Counts {
    fn add(&mut self, seen: &RunStatus) {
        match (seen.state, seen.health) {
            (_, Some(health)) if health != Health::Healthy => *self.attention.entry(health.as_str()).or_default() += 1,
            (StateName::Dead | StateName::Interrupted, _) => {
                *self.attention.entry(seen.state.as_str()).or_default() += 1;
            }
            (StateName::Running, _) => self.running += 1,
            _ => *self.queued.entry(seen.state.as_str()).or_default() += 1,
        }
    }

    /// A line for each sort of which there are any.
    fn lines(&self) -> Vec<String> {
        let said = |counts: &BTreeMap<&str, usize>| {
            counts.iter().map(|(word, runs)| format!("{runs} {word}")).collect::<Vec<_>>().join(", ")
        };
        let is_any = self.running > 0 || !self.attention.is_empty() || !self.queued.is_empty();
        let mut lines: Vec<String> = is_any.then(|| format!("In {}:", plain(&self.registry))).into_iter().collect();
        if self.running > 0 {
            lines.push(format!("  running          {}", self.running));
        }
        if !self.attention.is_empty() {
            lines.push(format!("  needs attention  {}; `outlive why RUN` explains a run", said(&self.attention)));
        }
        if !self.queued.is_empty() {
            lines.push(format!(
                "  queue            {}; `outlive queue list` shows what they wait for",
                said(&self.queued)
            ));
        }
        lines
    }
}

/// Counts the unfinished runs of the registry, as they are seen; none where there is no registry.
async fn counted(context: &Context) -> Result<Option<Counts>, Error> {
    let Some(registry) = context.existing().await? else { return Ok(None) };
    let mut counts = Counts { registry: registry.shown(), ..Counts::default() };
    let states =
        [StateName::Running, StateName::Pending, StateName::Suspended, StateName::Interrupted, StateName::Dead];
    let filter = Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(states) };
    let mut page = Page { limit: AT_A_TIME, ..Page::default() };
    loop {
        let (seen, next) = registry.batch(&filter, &page).await?;
        seen.iter().for_each(|seen| counts.add(seen));
        let Some(next) = next else { return Ok(Some(counts)) };
        page.after = Some(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphaned_run_needs_attention_and_is_not_running() {
        let mut counts = Counts { registry: "/work/.outlive".into(), running: 2, ..Counts::default() };
        counts.attention.insert(Health::Orphaned.as_str(), 1);
        counts.queued.insert(StateName::Pending.as_str(), 3);
        insta::assert_snapshot!(counts.lines().join("\n"), @r"
        In /work/.outlive:
          running          2
          needs attention  1 orphaned; `outlive why RUN` explains a run
          queue            3 pending; `outlive queue list` shows what they wait for
        ");
        assert_eq!(Counts::default().lines(), [""; 0]);
    }
}
