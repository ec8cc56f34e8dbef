//! What is going on, as it happens: server-sent events of changes to runs, and of what a run writes.
//!
//! One watcher looks at the registry for all subscribers, and only while there is one. A subscriber that is too slow is
//! asked to load everything again, and delays no other.

use std::collections::HashMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{Stream, StreamExt, unfold};
use outlive::error::{Code, Error};
use outlive::filter::Filter;
use outlive::id::RunId;
use outlive::lifecycle::health::RunStatus;
use outlive::registry::Registry;
use outlive::run::{State as RunState, StateName};
use outlive::store::Page;
use outlive::store::sqlite::{Topic, Watch};
use outlive::time::{Clock, SystemClock, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, broadcast, watch};

use super::Server;
use super::limits::Limits;
use super::middleware::StreamClient;
use crate::call::calls::Who;
use crate::call::{Context, Effect, Failure, Operate, from_query};
use crate::operations::TABLE;
use crate::operations::workers::Workers;
use crate::ui::run_view::RunView;

/// How many events a subscriber may be behind.
const BEHIND: usize = 256;
/// How long the watcher waits for a change before it looks for what is not written down: owners that have died.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long it rests between two looks, however much changes.
const REST: Duration = Duration::from_millis(200);
/// How often heartbeats are sent to clients. A heartbeat alone is no change.
const BEATS_EVERY: Duration = Duration::from_secs(10);
/// The most runs that are executed, the most that wait, and the most of the newest, that it looks at.
const IN_FLIGHT: usize = 1_000;
const NEWEST: usize = 100;
/// The most attempts whose output it measures.
const WRITERS: usize = 256;
/// How long a follower of a run waits for more.
const FOLLOW_EVERY: Duration = Duration::from_millis(150);
/// How long a stream is silent before an `alive` event is sent. A browser that receives nothing for three times as long
/// treats the network as cut.
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// An event as it is sent: its name and its data.
type LiveEvent = (&'static str, Arc<str>);

/// The subscribers, and what they receive.
pub struct Live {
    sender: broadcast::Sender<LiveEvent>,
    is_watched: AtomicBool,
    /// The watcher has looked: whatever changes from now on is sent.
    has_looked: watch::Sender<bool>,
    listeners: Arc<Semaphore>,
    followers: Arc<Semaphore>,
}

impl Live {
    /// No subscriber yet.
    pub fn within(limits: Limits) -> Self {
        Self {
            sender: broadcast::Sender::new(BEHIND),
            is_watched: AtomicBool::new(false),
            has_looked: watch::Sender::new(false),
            listeners: Arc::new(Semaphore::new(limits.listeners)),
            followers: Arc::new(Semaphore::new(limits.followers)),
        }
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.sender.receiver_count()
    }
}

fn too_many() -> Failure {
    Failure::new(Code::Throttled, "too many listen already; ask again later")
}

/// A stream of events that ends when the credentials of its client are revoked or expire.
fn events(
    server: Arc<Server>,
    caller: Option<StreamClient>,
    stream: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    // An event and no comment, so that a browser sees when a stream has fallen silent.
    let alive = Event::default().event("alive").data("{}");
    let revoked = async move {
        if let Some(caller) = caller {
            caller.revoked(&server.authentication).await;
        }
    };
    Sse::new(stream.take_until(Box::pin(revoked))).keep_alive(KeepAlive::new().interval(ALIVE_EVERY).event(alive))
}

/// Until the server is about to end.
async fn closing(open: &mut watch::Receiver<bool>) {
    // No sender is left: it is closed.
    let _ = open.wait_for(|open| !open).await;
}

/// Changes, as they happen: `hello` when whatever changes from then on is sent, `runs` with those that changed, `workers`
/// with all of them when one came, left or changed its health, and with their heartbeats now and then, `output` with how much runs have written where that grew,
/// `again` to a subscriber that has missed some.
pub async fn changes(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let turn = server.live.listeners.clone().try_acquire_owned().map_err(|_| too_many())?;
    let receiver = server.live.sender.subscribe();
    if !server.live.is_watched.swap(true, Ordering::Relaxed) {
        tokio::spawn(watch_over(server.clone()));
    }
    let state = (receiver, server.open.subscribe(), Some(server.live.has_looked.subscribe()), turn);
    let caller = StreamClient::of(&request);
    Ok(events(
        server,
        caller,
        unfold(state, |(mut receiver, mut open, looked, turn)| async move {
            let event = match looked {
                Some(mut looked) => tokio::select! {
                    () = closing(&mut open) => return None,
                    _ = looked.wait_for(|looked| *looked) => Event::default().event("hello").data("{}"),
                },
                None => tokio::select! {
                    () = closing(&mut open) => return None,
                    received = receiver.recv() => match received {
                        Ok((name, data)) => Event::default().event(name).data(&*data),
                        Err(broadcast::error::RecvError::Lagged(_)) => Event::default().event("again").data("{}"),
                        Err(broadcast::error::RecvError::Closed) => return None,
                    },
                },
            };
            Some((Ok(event), (receiver, open, None, turn)))
        }),
    ))
}

/// Looks for as long as the server goes on.
async fn watch_over(server: Arc<Server>) {
    let own = Who::own(Effect::Read);
    let mut open = server.open.subscribe();
    let mut watcher = Watcher::default();
    while *open.borrow_and_update() {
        if server.live.listeners() == 0 {
            // What happens meanwhile is sent to none.
            server.live.has_looked.send_replace(false);
            watcher = Watcher::default();
        } else {
            // It waits on a thread of its own and holds no turn of the calls meanwhile.
            if let Some(watch) = watcher.watch.take() {
                let waited = tokio::task::spawn_blocking(move || (watch.wait(LOOK_EVERY), watch));
                if let Ok((has_changed, watch)) = waited.await {
                    (watcher.has_changed, watcher.watch) = (has_changed, Some(watch));
                }
            } else if watcher.seen.is_some() {
                let _ = tokio::time::timeout(LOOK_EVERY, closing(&mut open)).await;
            }
            let look = move |context: &Context| {
                let news = pollster::block_on(watcher.look(context));
                (watcher, news)
            };
            match server.calls.with(&own, look).await {
                Ok((back, news)) => {
                    watcher = back;
                    server.live.has_looked.send_replace(watcher.seen.is_some());
                    for (name, data) in news.unwrap_or_default() {
                        // A subscriber of a moment ago may be gone.
                        let _ = server.live.sender.send((name, data.to_string().into()));
                    }
                }
                // It will be looked at again.
                Err(_) => watcher = Watcher::default(),
            }
        }
        let _ = tokio::time::timeout(REST, closing(&mut open)).await;
    }
}

/// What was seen last.
#[derive(Default)]
struct Watcher {
    /// None in a registry that tells of no changes: there each look is at all runs.
    watch: Option<Watch>,
    /// Something was written since the last look.
    has_changed: bool,
    seen: Option<HashMap<RunId, u64>>,
    /// The runs that change without a write: those of owners, who may die, and those with live processes.
    unsteady: Vec<RunId>,
    /// When the next of the others becomes due.
    due: Option<Timestamp>,
    /// The workers as they were, and when they were sent last.
    workers: Option<(u64, Duration)>,
    /// How much each attempt that is executed had written.
    written: HashMap<RunId, (u32, u64)>,
}

impl Watcher {
    /// What is not as it was: events to send. None at the first look.
    async fn look(&mut self, context: &Context) -> Result<Vec<(&'static str, Value)>, Error> {
        let Some(registry) = context.existing().await? else { return Ok(Vec::new()) };
        if let (None, Some(local)) = (&self.watch, registry.local()) {
            // What was written before is not told of.
            (self.watch, self.has_changed) = (Some(local.watch(&[Topic::Changes])?), true);
        }
        let is_first = self.seen.is_none();
        let is_due = self.due.is_some_and(|due| due <= registry.clock().now());
        let is_whole = is_first || self.watch.is_none() || std::mem::take(&mut self.has_changed) || is_due;
        let found = if is_whole { self.find(&registry).await? } else { list(&registry, &self.unsteady).await? };
        let runs = self.changed_runs(&found, &registry, is_whole);
        let output = self.grown(&found, &registry);
        let workers = self.changed_workers(context).await?;
        let news = [("runs", runs), ("output", output), ("workers", workers)];
        Ok(news.into_iter().filter_map(|(name, data)| Some((name, data?))).filter(|_| !is_first).collect())
    }

    /// The runs that are not as they were, of all of them or of those that change without a write.
    fn changed_runs(&mut self, found: &[RunStatus], registry: &Registry, is_whole: bool) -> Option<Value> {
        if is_whole {
            let is_unsteady = |seen: &&RunStatus| seen.run.owner().is_some() || !seen.leftovers.is_empty();
            self.unsteady = found.iter().filter(is_unsteady).map(|seen| seen.run.id).collect();
            let now = registry.clock().now();
            self.due = found.iter().filter_map(not_before).filter(|at| *at > now).min();
        }
        let views = found.iter().map(|seen| json!(RunView::unsigned(seen, registry)));
        let views: Vec<(RunId, Value)> = found.iter().map(|seen| seen.run.id).zip(views).collect();
        let now: HashMap<RunId, u64> = views.iter().map(|(id, view)| (*id, fingerprint(view))).collect();
        let before = self.seen.take();
        let has_changed = |id: &RunId| before.as_ref().is_some_and(|before| before.get(id) != now.get(id));
        let changed: Vec<Value> = views.into_iter().filter(|(id, _)| has_changed(id)).map(|(_, view)| view).collect();
        let rest = before.filter(|_| !is_whole).unwrap_or_default();
        self.seen = Some(rest.into_iter().chain(now).collect());
        (!changed.is_empty()).then(|| json!({ "runs": changed }))
    }

    /// How much attempts have written, of those that wrote since the last look. The sizes of their files are enough.
    fn grown(&mut self, found: &[RunStatus], registry: &Registry) -> Option<Value> {
        let logs = registry.logs()?;
        let mut grown = serde_json::Map::new();
        let mut written = HashMap::new();
        for run in found.iter().map(|seen| &seen.run).filter(|run| run.owner().is_some()).take(WRITERS) {
            let dir = logs.path(run.id);
            let size =
                |stream: &str| dir.join(format!("{:04}.{stream}", run.attempt)).metadata().map_or(0, |of| of.len());
            let now = (run.attempt, size("out") + size("err"));
            if self.written.get(&run.id) != Some(&now) {
                grown.insert(run.id.to_string(), json!({ "attempt": now.0, "bytes": now.1 }));
            }
            written.insert(run.id, now);
        }
        self.written = written;
        (!grown.is_empty()).then(|| json!({ "output": grown }))
    }

    /// All workers, where one came, left or changed its health. That a worker has beaten is no change, and sent now and then.
    async fn changed_workers(&mut self, context: &Context) -> Result<Option<Value>, Error> {
        let known = json!(Workers::default().operate(context).await?);
        let mut hasher = DefaultHasher::new();
        for worker in known["workers"].as_array().into_iter().flatten() {
            for field in ["id", "health", "runs", "slots"] {
                worker[field].to_string().hash(&mut hasher);
            }
        }
        let (now, at) = (hasher.finish(), SystemClock.awake());
        let is_empty = known["workers"].as_array().is_none_or(Vec::is_empty);
        let is_sent =
            |(before, sent): &(u64, Duration)| *before == now && (is_empty || at.saturating_sub(*sent) < BEATS_EVERY);
        if self.workers.as_ref().is_some_and(is_sent) {
            return Ok(None);
        }
        self.workers = Some((now, at));
        Ok(Some(known))
    }

    async fn find(&self, registry: &Registry) -> Result<Vec<RunStatus>, Error> {
        // However many wait, those that are executed are seen.
        let executed = Filter::in_states([StateName::Running, StateName::Suspended]);
        let waiting = Filter::in_states([StateName::Pending]);
        let mut found: HashMap<RunId, RunStatus> = HashMap::new();
        for (filter, limit) in [(executed, IN_FLIGHT), (waiting, IN_FLIGHT), (Filter::default(), NEWEST)] {
            let page = Page { limit, ..Page::default() };
            found.extend(registry.list(&filter, &page).await?.0.into_iter().map(|seen| (seen.run.id, seen)));
        }
        // What was in flight and no longer is has ended.
        let gone: Vec<RunId> =
            self.seen.iter().flat_map(HashMap::keys).filter(|id| !found.contains_key(*id)).copied().collect();
        let ended = list(registry, &gone[..gone.len().min(IN_FLIGHT)]).await?.into_iter();
        found.extend(ended.filter(|seen| seen.state.is_ended()).map(|seen| (seen.run.id, seen)));
        Ok(found.into_values().collect())
    }
}

/// These runs, as far as they are there still.
async fn list(registry: &Registry, ids: &[RunId]) -> Result<Vec<RunStatus>, Error> {
    let mut found = Vec::with_capacity(ids.len());
    for ids in ids.chunks(NEWEST) {
        let page = Page { limit: NEWEST, ..Page::default() };
        found.extend(registry.list(&Filter::of(ids.iter().copied()), &page).await?.0);
    }
    Ok(found)
}

/// The time before which a run is not executed.
fn not_before(seen: &RunStatus) -> Option<Timestamp> {
    match &seen.run.state {
        RunState::Pending(pending) => pending.not_before,
        _ => None,
    }
}

/// A run but for what changes by itself.
fn fingerprint(view: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (name, value) in view.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "duration_ms" | "last_beat_at" | "upcoming") {
            value.to_string().hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// What a run writes, as it does: `page` as `output` answers, `end` when it has ended, `failed` where it cannot be
/// read.
pub async fn follow(
    State(server): State<Arc<Server>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Failure> {
    let turn = server.live.followers.clone().try_acquire_owned().map_err(|_| too_many())?;
    let output = TABLE.iter().find(|operation| operation.name == "output");
    let output = output.ok_or_else(|| Failure::new(Code::NotFound, "there is no such operation"))?;
    let pairs = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned();
    let mut input = from_query(&(output.command)(), pairs).map_err(|why| Failure::new(Code::Invalid, &why))?;
    // A browser that comes back says up to where it has come.
    if let Some(last) = request.headers().get("last-event-id").and_then(|last| last.to_str().ok()) {
        input["cursor"] = last.into();
        input["lines"] = Value::Null;
    }
    let state = (server.open.subscribe(), Some(input), turn);
    let caller = StreamClient::of(&request);
    Ok(events(
        server.clone(),
        caller,
        unfold(state, move |(mut open, input, turn)| {
            let (server, who) = (server.clone(), who.clone());
            async move {
                let mut input = input?;
                loop {
                    let answer = tokio::select! {
                        () = closing(&mut open) => return None,
                        answer = server.calls.call(output, input.clone(), &who) => answer,
                    };
                    let page: Value = match answer {
                        Ok(answer) => serde_json::from_str(&answer.text).unwrap_or_default(),
                        Err(failure) => {
                            let failed = Event::default().event("failed").data(failure.body.to_string());
                            return Some((Ok(failed), (open, None, turn)));
                        }
                    };
                    let next = page["next"].as_str().unwrap_or_default().to_owned();
                    let is_empty = page["pieces"].as_array().is_none_or(Vec::is_empty);
                    (input["cursor"], input["lines"]) = (next.clone().into(), Value::Null);
                    // The stream continues with the attempt that it began with.
                    input["attempt"] = page["attempt"].clone();
                    if !is_empty {
                        let event = Event::default().event("page").id(next).data(page.to_string());
                        return Some((Ok(event), (open, Some(input), turn)));
                    }
                    if page["ended"] == true {
                        return Some((Ok(Event::default().event("end").data("{}")), (open, None, turn)));
                    }
                    tokio::time::sleep(FOLLOW_EVERY).await;
                }
            }
        }),
    ))
}

#[cfg(test)]
mod tests {
    use outlive::lifecycle::Report;
    use outlive::run::{Actor, Progress, Spec};

    use super::*;

    fn ids(news: &[(&'static str, Value)]) -> Vec<String> {
        let runs = news.iter().filter(|(name, _)| *name == "runs").flat_map(|(_, data)| data["runs"].as_array());
        runs.flatten().map(|run| run["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[test]
    fn a_look_without_a_change_is_at_owned_runs_alone() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("registry").display());
        pollster::block_on(async {
            let registry = Registry::open(&url).await.unwrap();
            let spec = |name: &str| {
                let by = Actor { user: "ada".into(), host: "here".into(), pid: 1 };
                Spec { name: Some(name.into()), ..Spec::new("job", by) }
            };
            for name in ["one", "two", "three"] {
                registry.enqueue(spec(name)).await.unwrap();
            }
            let owned = registry.start(spec("owned")).await.unwrap();
            let (context, mut watcher) = (Context::new(Some(url.clone())), Watcher::default());
            assert!(watcher.look(&context).await.unwrap().is_empty(), "the first look is at how things are");
            assert_eq!(watcher.unsteady, [owned.id()]);
            watcher.has_changed = false;
            // Without a notification the watcher reads owned runs only, not waiting ones.
            registry.enqueue(spec("four")).await.unwrap();
            let progress = Some(Progress { done: Some(1), ..Progress::default() });
            owned.report(Report { progress, ..Report::default() }).await.unwrap();
            assert_eq!(ids(&watcher.look(&context).await.unwrap()), ["owned"]);
            watcher.has_changed = true;
            assert_eq!(ids(&watcher.look(&context).await.unwrap()), ["four"]);
            assert_eq!(watcher.seen.as_ref().map(HashMap::len), Some(5));
        });
    }
}
