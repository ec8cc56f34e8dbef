//! The steps of a run, as a tree: each below the one inside which it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use outlive::id::RunId;
use outlive::lifecycle::health::Health;
use outlive::run::StateName;
use outlive::time::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::ui::columns;
use crate::ui::run_view::RunView;

/// A step of the run.
#[derive(Debug, JsonSchema, Serialize)]
pub struct StepView {
    attempt: Option<u32>,
    name: Option<String>,
    id: RunId,
    state: StateName,
    health: Option<Health>,
    reason: Option<String>,
    /// The step inside which it was made; none where that was the run itself.
    parent: Option<RunId>,
    replays: Option<RunId>,
    started_at: Option<Timestamp>,
    ended_at: Option<Timestamp>,
    duration_ms: Option<u64>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    /// The cells of its row in text: its name, its state and for how long it has run.
    #[serde(skip)]
    shown: [String; 3],
}

impl From<RunView> for StepView {
    fn from(step: RunView) -> Self {
        let took = if step.replays.is_some() { String::new() } else { step.duration() };
        Self {
            shown: [step.title(), step.word().into(), took],
            attempt: step.step_attempt,
            name: step.step,
            id: step.id,
            state: step.state,
            health: step.health,
            reason: step.reason,
            parent: step.step_parent,
            replays: step.replays,
            started_at: step.started_at,
            ended_at: step.ended_at,
            duration_ms: step.duration_ms,
            exit_code: step.exit_code,
            signal: step.signal,
        }
    }
}

/// Tells of the steps of the last attempt that came to any.
pub fn tell(steps: &[StepView], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(attempt) = steps.iter().filter_map(|step| step.attempt).max() else { return Ok(()) };
    let steps: Vec<&StepView> = steps.iter().filter(|step| step.attempt == Some(attempt)).collect();
    writeln!(f, "{:<11}{} in attempt {attempt}", "steps", steps.len())?;
    let rows: Vec<(String, &str, &str)> = tree(&steps)
        .into_iter()
        .map(|(branch, StepView { shown: [name, state, took], .. })| (branch + name, state.as_str(), took.as_str()))
        .collect();
    let names = rows.iter().map(|(name, ..)| columns(name)).max().unwrap_or(0);
    let states = rows.iter().map(|(_, state, _)| columns(state)).max().unwrap_or(0);
    for (name, state, took) in rows {
        let (name, state) = (padded(&name, names), padded(state, states));
        writeln!(f, "{}", format!("{name}  {state}  {took}").trim_end())?;
    }
    Ok(())
}

/// The steps, each behind the one that it is inside of, with the lines that lead to it.
fn tree<'a>(steps: &[&'a StepView]) -> Vec<(String, &'a StepView)> {
    let ids: BTreeSet<RunId> = steps.iter().map(|step| step.id).collect();
    let mut inside: BTreeMap<Option<RunId>, Vec<&StepView>> = BTreeMap::new();
    for step in steps {
        inside.entry(step.parent.filter(|parent| ids.contains(parent))).or_default().push(step);
    }
    let mut rows = Vec::new();
    let mut left: Vec<(String, bool, &StepView)> = Vec::new();
    let mut next = Some((String::new(), None));
    while let Some((lines, parent)) = next {
        let children = inside.remove(&parent).unwrap_or_default();
        let last = children.len().saturating_sub(1);
        left.extend(children.into_iter().enumerate().rev().map(|(at, step)| (lines.clone(), at == last, step)));
        next = left.pop().map(|(lines, is_last, step)| {
            let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            rows.push((format!("{lines}{branch}"), step));
            (lines + below, Some(step.id))
        });
    }
    // Records that say to be inside each other are a mistake, and shown all the same.
    rows.extend(inside.into_values().flatten().map(|step| ("?─ ".to_owned(), step)));
    rows
}

fn padded(text: &str, to: usize) -> String {
    format!("{text}{}", " ".repeat(to.saturating_sub(columns(text))))
}
