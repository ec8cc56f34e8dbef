//! Calls that a server answers for others: so many at a time, on threads that may block, each with a context of its own.

use std::sync::Arc;
use std::time::Duration;

use outlive::error::{Code, Error};
use outlive::registry::Registry;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::operation::{Answer, Effect, Failure, Operation};
use crate::settings::{Caller, Context, Location};

/// The most calls that are worked on at a time.
const AT_A_TIME: usize = 16;
/// The most that may wait for runs meanwhile.
const WAITING: usize = 64;
/// How long a call waits for its turn.
const TURN: Duration = Duration::from_secs(10);
/// How long somebody who waits for a run is kept before they are told to ask again.
pub const PATIENCE: Duration = Duration::from_secs(25);

/// Who asks.
#[derive(Debug, Clone)]
pub struct Who {
    /// What stories call them; none for this process's own user.
    pub user: Option<String>,
    /// The most that they may have done.
    pub may: Effect,
}

/// What answers calls.
pub struct Calls {
    /// The registry that all of them are about.
    pub registry: String,
    shared: Option<Arc<Registry>>,
    turns: Semaphore,
    waits: Semaphore,
}

impl Calls {
    /// Calls on the registry that a context names, which is made if it is missing.
    pub fn on(context: &Context) -> Result<Self, Error> {
        let opened = pollster::block_on(context.registry())?;
        let (registry, shared) = match context.location()? {
            // A directory is opened by each call, as a shell's would; whatever has connections is opened once.
            Location::Directory(_) => (opened.url().to_owned(), None),
            Location::Url(url) => (url, Some(Arc::new(opened))),
        };
        Ok(Self { registry, shared, turns: Semaphore::new(AT_A_TIME), waits: Semaphore::new(WAITING) })
    }

    /// Does what `input` says, if `who` may have it done.
    pub async fn call(&self, operation: &'static Operation, input: Value, who: &Who) -> Result<Answer, Failure> {
        let context = self.context(who);
        let waits = operation.name == "wait" || input["wait"] == true;
        self.work(waits, move || (operation.call_json)(input, &context())).await?
    }

    /// Works with a context of `who` on a thread that may block.
    pub async fn with<T: Send + 'static>(
        &self,
        who: &Who,
        work: impl FnOnce(&Context) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let context = self.context(who);
        self.work(false, move || work(&context())).await
    }

    fn context(&self, who: &Who) -> impl FnOnce() -> Context + Send + use<> {
        let caller = Caller { user: who.user.clone(), may: who.may, patience: PATIENCE, registry: self.shared.clone() };
        let registry = self.registry.clone();
        move || Context::served(registry, caller)
    }

    async fn work<T: Send + 'static>(
        &self,
        waits: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let turns = if waits { &self.waits } else { &self.turns };
        let busy = || Failure::new(Code::Unavailable, "the server has more to do than it can; ask again in a moment");
        let _turn = tokio::time::timeout(TURN, turns.acquire()).await.map_err(|_| busy())?.map_err(|_| busy())?;
        let broken = |_| Failure::new(Code::Unavailable, "the server failed at this call; its log says how");
        tokio::task::spawn_blocking(work).await.map_err(broken)
    }
}
