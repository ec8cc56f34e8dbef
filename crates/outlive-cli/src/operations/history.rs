//! `outlive history`: the runs of every repository, the last made first.

#[cfg(feature = "postgres")]
pub mod export;

use clap::{Args, Command};
use outlive::error::Error;
use outlive::index::SearchOrder;

use crate::call::{Context, Effect, Operate};
use crate::operations::listing::{ListFilter, Page};

/// List runs of every repository, newest first
#[derive(Debug, Default, Args)]
pub struct History {
    #[command(flatten)]
    pub wanted: ListFilter,
}

impl Operate for History {
    const NAME: &'static str = "history";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive history --since 2h\noutlive history --status failed --since yesterday";
    type Output = Page;

    fn shape(command: Command) -> Command {
        // A filter of the list is not one of `history export`.
        command.args_conflicts_with_subcommands(true)
    }

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Page, Error> {
        self.wanted.page(Self::NAME, None, SearchOrder::Newest)
    }
}
