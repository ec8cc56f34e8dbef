//! `outlive` alone: the status page, as `git status` is for a repository.
//!
//! How many unfinished runs there are, the list of `outlive ps` with its next commands, and where the help is.

use std::collections::BTreeMap;

use outlive::error::Error;
use outlive::run::StateName;

use super::{command, operate};
use crate::call::{Context, Operate, fail};
use crate::operations::ps::Ps;
use crate::ui::say_line;

/// The states of runs that have not ended for good, in the order in which they are counted.
const UNFINISHED: [StateName; 5] =
    [StateName::Running, StateName::Pending, StateName::Suspended, StateName::Interrupted, StateName::Dead];

/// Prints the status page.
pub fn print(context: &Context) -> u8 {
    match pollster::block_on(counted(context)) {
        Ok(Some(line)) => say_line(&line),
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

/// How many unfinished runs the registry has, by state; none where it has none.
async fn counted(context: &Context) -> Result<Option<String>, Error> {
    let Some(registry) = context.existing().await? else { return Ok(None) };
    let mut runs: BTreeMap<StateName, u64> = BTreeMap::new();
    for count in registry.counts().await? {
        *runs.entry(count.state).or_default() += count.runs;
    }
    let of = |state: StateName| Some(format!("{} {state}", runs.get(&state).filter(|runs| **runs > 0)?));
    let unfinished: Vec<String> = UNFINISHED.into_iter().filter_map(of).collect();
    Ok((!unfinished.is_empty()).then(|| format!("{} in {}", unfinished.join(", "), registry.shown())))
}
