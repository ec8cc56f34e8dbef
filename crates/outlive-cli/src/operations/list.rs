//! `outlive list`: the runs of every repository, in the order in which they were made.

use clap::Args;
use outlive::error::Error;
use outlive::index::SearchOrder;

use crate::call::{Context, Effect, Operate};
use crate::operations::listing::{ListFilter, Page};

/// List runs of every repository, oldest first: `search` without words
///
/// `outlive history` lists the newest first, `outlive ps --global` those in flight, `outlive ps` those of one registry.
#[derive(Debug, Default, Args)]
pub struct List {
    #[command(flatten)]
    pub wanted: ListFilter,
}

impl Operate for List {
    const NAME: &'static str = "list";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive list --scope repo";
    type Output = Page;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Page, Error> {
        self.wanted.page(Self::NAME, None, SearchOrder::Oldest)
    }
}
