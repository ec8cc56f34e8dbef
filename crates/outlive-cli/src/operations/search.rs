//! `outlive search`: finds runs of every repository.

use clap::Args;
use outlive::error::Error;
use outlive::index::Order;
use serde::Deserialize;

use crate::operation::{Effect, Operate};
use crate::plane::listing::{Page, Wanted};
use crate::settings::Context;

/// Find runs of every repository, the first made first
///
/// Every word of the query must be a word of the run's id, title, app, workflow, repository, status, labels or inputs, or
/// begin one where it ends in `*`. What is listed is looked at in its repository before it is called
/// valid, and nothing is written.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Search {
    /// What to look for
    pub query: Vec<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub wanted: Wanted,
}

impl Operate for Search {
    const NAME: &'static str = "search";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive registry refresh && outlive search train\n\
                                    outlive registry refresh && outlive search --status failed --since yesterday --json";
    type Output = Page;

    async fn operate(self, _: &Context) -> Result<Page, Error> {
        let query = self.query.join(" ");
        self.wanted.page(Self::NAME, Some(query.as_str()).filter(|query| !query.is_empty()), Order::Oldest)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn s_02_json_has_the_defaults_of_the_flags_and_no_unknown_fields() {
        let read: Search = from_value(json!({"query": ["deploy"], "status": ["failed"]})).unwrap();
        assert_eq!((read.wanted.limit, read.wanted.unarchived, read.wanted.status.len()), (50, false, 1));
        let read: Search = from_value(json!({"unarchived": false, "scope": "repo"})).unwrap();
        assert_eq!((read.wanted.unarchived, read.wanted.scope), (false, crate::plane::Scope::Repo));
        for unknown in [json!({"colour": "red"}), json!({"scope": "galaxy"}), json!({"status": "failed"})] {
            assert!(from_value::<Search>(unknown.clone()).is_err(), "{unknown} was taken");
        }
    }
}
