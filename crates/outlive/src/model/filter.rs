//! Filters: which runs are meant.
//!
//! [`Filter::matches`] is what a filter means. A store may translate parts of it into its own language to read less,
//! and must return exactly the runs that match.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::model::id::{RunId, WorkerId};
use crate::model::run::{Run, State, StateName};
use crate::model::step;
use crate::model::time::Timestamp;

/// Conditions that a run must all meet, for [`Registry::list`](crate::Registry::list),
/// [`Registry::all`](crate::Registry::all) and [`Registry::claim`](crate::Registry::claim). The default meets every
/// run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// One of these.
    pub ids: Option<Vec<RunId>>,
    /// Its id begins so.
    pub id_prefix: Option<String>,
    /// It stands so.
    pub states: Option<BTreeSet<StateName>>,
    /// It bears this name.
    pub name: Option<String>,
    /// It is of this kind.
    pub kind: Option<String>,
    /// It is of one of these kinds.
    pub kinds: Option<BTreeSet<String>>,
    /// It bears all of these labels.
    pub labels: BTreeMap<String, String>,
    /// This worker owns it.
    pub owner: Option<WorkerId>,
    /// Made at or after.
    pub since: Option<Timestamp>,
    /// Made before.
    pub until: Option<Timestamp>,
    /// This text occurs in its name, its kind, one of its labels (as `label=value`) or a word of its command, in any case.
    pub text: Option<String>,
    /// It runs on this host, or ran there last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// This user made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// It is archived, or is not.
    pub archived: Option<bool>,
    /// It is of the kind of steps, or is not.
    pub is_step: Option<bool>,
    /// It is a step of this run.
    pub step_of: Option<RunId>,
    /// It waits for other runs, or does not.
    pub waits: Option<bool>,
    /// It counts against the share of this tenant; empty, if against none.
    pub share: Option<String>,
    /// It has this priority.
    pub priority: Option<i32>,
}

impl Filter {
    /// The runs that stand in one of these states.
    pub fn in_states(states: impl IntoIterator<Item = StateName>) -> Self {
        Self { states: Some(states.into_iter().collect()), ..Self::default() }
    }

    /// These runs.
    pub fn of(ids: impl IntoIterator<Item = RunId>) -> Self {
        Self { ids: Some(ids.into_iter().collect()), ..Self::default() }
    }

    /// The steps of a run, in all of its attempts. They were made after it, which spares a store the look at what is
    /// older.
    pub fn steps_of(run: &Run) -> Self {
        Self { is_step: Some(true), step_of: Some(run.id), since: Some(run.created_at), ..Self::default() }
    }

    /// Whether the run is meant.
    pub fn matches(&self, run: &Run) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| wanted.is_none() || wanted.as_deref() == found;
        self.ids.as_ref().is_none_or(|ids| ids.contains(&run.id))
            && self.id_prefix.as_ref().is_none_or(|prefix| run.id.to_string().starts_with(prefix.as_str()))
            && self.states.as_ref().is_none_or(|states| states.contains(&run.state.name()))
            && is(&self.name, run.spec.name.as_deref())
            && is(&self.kind, Some(&run.spec.kind))
            && self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&run.spec.kind))
            && self.labels.iter().all(|(label, value)| run.spec.labels.get(label) == Some(value))
            && self.owner.is_none_or(|worker| run.owner().is_some_and(|owner| owner.worker == worker))
            && self.since.is_none_or(|since| run.created_at >= since)
            && self.until.is_none_or(|until| run.created_at < until)
            && self.text.as_ref().is_none_or(|text| mentions(run, text))
            && (self.host.is_none() || is(&self.host, run.last_host()))
            && is(&self.user, Some(&run.spec.created_by.user))
            && self.archived.is_none_or(|archived| run.archived.is_some() == archived)
            && self.is_step.is_none_or(|is_step| (run.spec.kind == step::KIND) == is_step)
            && self.step_of.is_none_or(|of| run.spec.step.as_ref().is_some_and(|step| step.of == of))
            && self.waits.is_none_or(|waits| waits_for_others(run) == waits)
            && self.share.as_ref().is_none_or(|tenant| run.tenant() == tenant)
            && self.priority.is_none_or(|priority| run.priority() == priority)
    }
}

fn waits_for_others(run: &Run) -> bool {
    matches!(&run.state, State::Pending(pending) if !pending.waits_for.is_empty())
}

fn mentions(run: &Run, text: &str) -> bool {
    let text = text.to_lowercase();
    let says = |found: &str| found.to_lowercase().contains(&text);
    let spec = &run.spec;
    spec.name.as_deref().is_some_and(says)
        || says(&spec.kind)
        || spec.labels.iter().any(|(label, value)| says(&format!("{label}={value}")))
        || spec.command.iter().flat_map(|command| &command.argv).any(|word| says(&word.to_string()))
}
