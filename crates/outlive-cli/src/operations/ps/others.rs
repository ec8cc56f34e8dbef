//! Runs in flight in other registries, for a list that has nothing to show.

use outlive::filter::Filter;
use outlive::index::Kind;
use outlive::run::StateName;
use outlive::store::Page;

use crate::call::Context;
use crate::lookup::index;

/// How many registries are looked into before a list that is empty is shown.
const MOST: usize = 32;

/// What to add where a registry that was not named has nothing to list: that runs are in flight in others.
pub async fn hint(context: &Context) -> String {
    if context.named().is_some() || context.is_served() {
        return String::new();
    }
    let here = context.place().unwrap_or_default();
    let Ok(sources) = index().and_then(|index| index.sources()) else { return String::new() };
    let is_other = |url: &str| url.strip_prefix("sqlite:").is_some_and(|path| path != here);
    let mut others = 0;
    for known in sources.iter().filter(|known| known.address.kind == Kind::Outlive).take(MOST) {
        if is_other(&known.address.url) && has_any_in_flight(&known.address.url).await {
            others += 1;
        }
    }
    match others {
        0 => String::new(),
        1 => "; runs of another registry are in flight: `outlive ps -g` lists those of all".into(),
        others => format!("; runs of {others} other registries are in flight: `outlive ps -g` lists those of all"),
    }
}

async fn has_any_in_flight(url: &str) -> bool {
    let Ok(Some(registry)) = Context::new(Some(url.into())).existing().await else { return false };
    let states = [StateName::Pending, StateName::Running, StateName::Suspended];
    let filter = Filter { archived: Some(false), is_step: Some(false), ..Filter::in_states(states) };
    registry.list(&filter, &Page { limit: 1, ..Page::default() }).await.is_ok_and(|(found, _)| !found.is_empty())
}
