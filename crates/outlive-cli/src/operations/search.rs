//! `outlive search`: finds runs of every repository.

use clap::Args;
use outlive::error::Error;
use outlive::index::SearchOrder;

use crate::call::{Context, Effect, Operate};
use crate::operations::listing::{ListFilter, Page};

/// Find runs of every repository by words, oldest first
///
/// Every word of the query must be part of the run's id, title, app, workflow, repository, status, labels or inputs.
/// Runs that changed since they were indexed are found by their current state. Nothing is written.
#[derive(Debug, Default, Args)]
pub struct Search {
    /// What to look for
    pub query: Vec<String>,
    #[command(flatten)]
    pub wanted: ListFilter,
}

impl Operate for Search {
    const NAME: &'static str = "search";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive search train\n\
                                    outlive search --status failed --since yesterday --json";
    type Output = Page;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Page, Error> {
        let query = self.query.join(" ");
        self.wanted.page(Self::NAME, Some(query.as_str()).filter(|query| !query.is_empty()), SearchOrder::Oldest)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::call::read;

    use super::*;

    #[test]
    fn u02_json_has_the_defaults_of_the_flags_and_no_unknown_fields() {
        let found: Search = read(json!({"query": ["deploy"], "status": ["failed"]})).ok().unwrap();
        assert_eq!((found.wanted.limit, found.wanted.unarchived, found.wanted.status.len()), (50, false, 1));
        let found: Search = read(json!({"unarchived": false, "scope": "repo"})).ok().unwrap();
        assert_eq!((found.wanted.unarchived, found.wanted.scope), (false, crate::lookup::Scope::Repo));
        for unknown in [json!({"colour": "red"}), json!({"scope": "galaxy"}), json!({"status": "failed"})] {
            assert!(read::<Search>(unknown.clone()).is_err(), "{unknown} was taken");
        }
    }
}
