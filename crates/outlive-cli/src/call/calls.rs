//! Calls that a server answers for others: so many at a time, on threads that may block, each with a context of its
//! own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use clap::Command;
use outlive::discovery::Location;
use outlive::error::{Code, Error};
use outlive::registry::Registry;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::call::context::Caller;
use crate::call::progress::CallProgress;
use crate::call::{Answer, Context, Effect, Failure, Operation};

/// The most calls that are worked on at a time.
const AT_A_TIME: usize = 16;
/// The most of them that one token may have worked on: the others stay free for everybody else.
const SHARE: usize = 4;
/// The most calls of the store protocol at a time.
const STORE_CALLS_AT_A_TIME: usize = 32;
/// The most that may wait for runs meanwhile.
const WAITING: usize = 64;
/// How long a call waits for its turn.
const TURN: Duration = Duration::from_secs(10);
/// How long a call that waits for a run is kept before its caller has to ask again.
pub const TIMEOUT: Duration = Duration::from_secs(25);

/// Who asks.
#[derive(Debug, Clone)]
pub struct Who {
    /// What event logs call them; none for this process's own user.
    pub user: Option<String>,
    /// The most that they may have done.
    pub may: Effect,
    /// They may look beyond the registry that is served.
    pub everywhere: bool,
}

impl Who {
    /// This process's own user.
    pub fn own(may: Effect) -> Self {
        Self { user: None, may, everywhere: true }
    }
}

/// What answers calls.
pub struct Calls {
    /// The registry that all of them are about.
    pub registry: String,
    /// What tells it from any other.
    pub id: Option<String>,
    /// This process's own user.
    pub user: String,
    shared: Option<Arc<Registry>>,
    tree: fn() -> Command,
    /// How long a call that waits for a run is kept.
    timeout: Duration,
    /// The process of the session that all calls belong to, where they belong to one.
    session: Option<u32>,
    turns: Arc<Semaphore>,
    /// What each user with a token may have worked on at a time, while it has anything.
    shares: Shares,
    waits: Arc<Semaphore>,
    store_calls: Arc<Semaphore>,
    /// Registries of a directory that are open for the store protocol, and not in use.
    idle: Arc<Mutex<Vec<Registry>>>,
}

/// The calls that each user may have at a time. Users without any are forgotten.
#[derive(Default)]
struct Shares(Mutex<HashMap<String, Weak<Semaphore>>>);

impl Shares {
    fn of(&self, user: &str) -> Arc<Semaphore> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        let known = shares.get(user).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let made = Arc::new(Semaphore::new(SHARE));
            shares.insert(user.into(), Arc::downgrade(&made));
            made
        })
    }
}

impl Calls {
    /// Calls on the registry that a context names, which is made if it is missing.
    pub fn on(context: &Context, prepare: fn(&Registry)) -> Result<Self, Error> {
        let opened = pollster::block_on(context.registry())?;
        prepare(&opened);
        let (id, user) = (opened.id(), opened.me().user.to_string());
        let (registry, shared) = match context.location()? {
            // A directory is opened by each call, as a shell's would; whatever has connections is opened once.
            Location::Directory(_) => (opened.url().to_owned(), None),
            Location::Url(url) => (url, Some(Arc::new(opened))),
        };
        let [turns, waits, store_calls] =
            [AT_A_TIME, WAITING, STORE_CALLS_AT_A_TIME].map(|most| Arc::new(Semaphore::new(most)));
        Ok(Self {
            registry,
            id,
            user,
            shared,
            tree: context.tree(),
            timeout: TIMEOUT,
            session: None,
            turns,
            shares: Shares::default(),
            waits,
            store_calls,
            idle: Arc::default(),
        })
    }

    /// Keeps calls that wait for a run for so long.
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Attributes every call to the session of this process.
    #[cfg(feature = "mcp")]
    pub fn of_session(self) -> Self {
        Self { session: Some(std::process::id()), ..self }
    }

    /// Does what `input` says, if `who` may have it done. It is given up, where that can be, when the caller stops
    /// waiting.
    pub async fn call(&self, operation: &'static Operation, input: Value, who: &Who) -> Result<Answer, Failure> {
        self.call_going(operation, input, who, CallProgress::default()).await
    }

    /// Does what `input` says, and reports its progress in `going`.
    pub async fn call_going(
        &self,
        operation: &'static Operation,
        input: Value,
        who: &Who,
        going: CallProgress,
    ) -> Result<Answer, Failure> {
        let _wanted = going.wanted();
        let context = self.context(who, going);
        let waits = operation.name == "wait" || input["wait"] == true || input["watch"].is_string();
        let share = self.share(who).await?;
        let work = move || {
            // It is the work's, as its turn is: a caller that leaves early gets no more of them.
            let _share = share;
            (operation.call_json)(input, &context())
        };
        self.work(waits, work).await?
    }

    /// Works with a context of `who` on a thread that may block.
    pub async fn with<T: Send + 'static>(
        &self,
        who: &Who,
        work: impl FnOnce(&Context) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let context = self.context(who, CallProgress::default());
        let share = self.share(who).await?;
        let work = move || {
            let _share = share;
            work(&context())
        };
        self.work(false, work).await
    }

    /// Works with the registry itself, opened once and kept: calls of a store come often, and each is short.
    pub async fn with_registry<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Registry) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let context = self.context(&Who::own(Effect::Destroy), CallProgress::default());
        let idle = self.idle.clone();
        let is_shared = self.shared.is_some();
        let serve = move || {
            let keep = || idle.lock().unwrap_or_else(PoisonError::into_inner);
            let kept = keep().pop();
            let registry = match kept {
                Some(registry) => registry,
                None => pollster::block_on(context().registry())?,
            };
            let done = work(&registry);
            if !is_shared {
                keep().push(registry);
            }
            Ok::<T, Error>(done)
        };
        self.work_in_turn(&self.store_calls, serve).await?.map_err(Failure::from)
    }

    fn context(&self, who: &Who, going: CallProgress) -> impl FnOnce() -> Context + Send + use<> {
        let (user, may, everywhere) = (who.user.clone(), who.may, who.everywhere);
        let (timeout, session, registry) = (self.timeout, self.session, self.shared.clone());
        let caller = Caller { user, may, everywhere, timeout, session, going, registry };
        let (registry, tree) = (self.registry.clone(), self.tree);
        move || Context::served(registry, caller).with_tree(tree)
    }

    /// A place among the calls of the same user, until it is dropped. This process's own user needs none.
    async fn share(&self, who: &Who) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let Some(user) = &who.user else { return Ok(None) };
        let message = "your token has more calls at a time than it may; ask again in a moment";
        let busy = || Failure::new(Code::Throttled, message);
        let turn = tokio::time::timeout(TURN, self.shares.of(user).acquire_owned()).await;
        turn.map_err(|_| busy())?.map(Some).map_err(|_| busy())
    }

    async fn work<T: Send + 'static>(
        &self,
        waits: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.work_in_turn(if waits { &self.waits } else { &self.turns }, work).await
    }

    async fn work_in_turn<T: Send + 'static>(
        &self,
        turns: &Arc<Semaphore>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let busy = || Failure::new(Code::Unavailable, "the server has more to do than it can; ask again in a moment");
        let turn = tokio::time::timeout(TURN, turns.clone().acquire_owned()).await;
        let turn = turn.map_err(|_| busy())?.map_err(|_| busy())?;
        let broken = |_| Failure::new(Code::Unavailable, "the server failed at this call; its log says how");
        // The turn is the work's: it is not over because the caller has left.
        let in_turn = move || {
            let _turn = turn;
            work()
        };
        tokio::task::spawn_blocking(in_turn).await.map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t8_08_one_token_cannot_take_every_call_slot() {
        let shares = Shares::default();
        let taken: Vec<_> = (0..24).map_while(|_| shares.of("reader").try_acquire_owned().ok()).collect();
        assert_eq!(taken.len(), SHARE);
        assert!(taken.len() < AT_A_TIME, "one token would have all");
        assert!(shares.of("operator").try_acquire_owned().is_ok(), "another token waits for the first");
        drop(taken);
        assert!(shares.of("reader").try_acquire_owned().is_ok());
        drop(shares.of("writer"));
        shares.of("reader");
        assert!(shares.0.lock().unwrap().len() <= 1, "users who ask for nothing are remembered");
    }
}
