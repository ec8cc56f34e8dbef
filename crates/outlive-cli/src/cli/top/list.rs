//! Which runs `outlive top` lists: the newest, and however many of those wait, all that are executed or need attention.

use std::collections::BTreeSet;
use std::time::Duration;

use outlive::time::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};

use super::ask;
use crate::call::{Context, Failure};

/// The most runs of one answer.
const MOST: usize = 1_000;
/// What a queue must not hide: runs that are executed, and runs that need attention.
const BESIDE: [&[&str]; 2] = [&["running", "suspended"], &["dead", "interrupted"]];
/// For how long a run that has ended needs attention, as for `ps`.
const ATTENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The runs that are listed, newest first, and whether there are more.
pub fn list(context: &Context, all: bool) -> Result<(Vec<Value>, bool), Failure> {
    let mut page = ask(context, "ps", json!({ "all": all, "limit": MOST }))?;
    let mut runs = taken(&mut page);
    if page["next"].is_null() {
        return Ok((runs, false));
    }
    let mut known: BTreeSet<String> = runs.iter().map(id).collect();
    let now = SystemClock.now();
    for status in BESIDE {
        let mut page = ask(context, "ps", json!({ "status": status, "limit": MOST }))?;
        runs.extend(taken(&mut page).into_iter().filter(|run| is_recent(run, now) && known.insert(id(run))));
    }
    let made = |run: &Value| (run["created_at"].as_str().unwrap_or_default().to_owned(), id(run));
    runs.sort_by_cached_key(|run| std::cmp::Reverse(made(run)));
    Ok((runs, true))
}

fn taken(page: &mut Value) -> Vec<Value> {
    page["runs"].as_array_mut().map(std::mem::take).unwrap_or_default()
}

fn id(run: &Value) -> String {
    run["id"].as_str().unwrap_or_default().to_owned()
}

/// Whether a run has not ended, or not long ago.
fn is_recent(run: &Value, now: Timestamp) -> bool {
    let ended = run["ended_at"].as_str().and_then(|at| at.parse::<Timestamp>().ok());
    ended.is_none_or(|ended| now.since(ended) < ATTENTION)
}
