//! What a supervisor finds when it begins.

use std::collections::BTreeMap;

use outlive::error::Error;
use outlive::filter::Filter;
use outlive::lifecycle::health::Health;
use outlive::run::StateName;
use serde_json::json;

use super::Supervising;
use crate::lookup::serving::SUPERVISOR_KIND;

impl Supervising<'_> {
    /// Says how many runs there are that are not over for good, by state.
    pub(super) fn tell_found(&self) -> Result<(), Error> {
        let open =
            [StateName::Running, StateName::Pending, StateName::Suspended, StateName::Interrupted, StateName::Dead];
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let filter = Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(open) };
        for seen in pollster::block_on(self.registry.all(&filter))? {
            if seen.run.spec.kind != SUPERVISOR_KIND {
                let word = seen.health.filter(|health| *health != Health::Healthy);
                *counts.entry(word.map_or(seen.state.as_str(), |health| health.as_str())).or_default() += 1;
            }
        }
        let parts: Vec<String> = counts.iter().map(|(state, count)| format!("{count} {state}")).collect();
        let text = if parts.is_empty() { "no open runs".into() } else { parts.join(", ") };
        self.say("found", &json!({ "states": counts }), &format!("supervises {}: found {text}", self.registry.shown()));
        Ok(())
    }
}
