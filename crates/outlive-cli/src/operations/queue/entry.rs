//! Entries of the queue of all repositories: work for an executor outside outlive.
//!
//! An entry is a run of the home registry that has no command. It waits, is claimed, comes again and is parked by the
//! rules of any run; its holder is known by an epoch and a lease.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use outlive::error::{Code, Error};
use outlive::id::{Epoch, RunId};
use outlive::index::SourceAddress;
use outlive::lifecycle::Outcome;
use outlive::lifecycle::health::{RunStatus, see};
use outlive::policy::{Lease, OrphanPolicy};
use outlive::registry::{EXTERNAL_KIND, ExternalLease, Registry};
use outlive::run::{Run, Spec, StateName};
use outlive::settings::QueueOrder;
use outlive::time::{Clock, SystemClock, Timestamp, parse_duration, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};
use crate::lookup::{home, repository};
use crate::ui::plain;
use crate::ui::quote;
use crate::ui::run_view::with_names;

/// How long an entry is its holder's without a beat.
const LEASE: Duration = Duration::from_secs(300);
/// The shortest such time: beats come no faster than one in a millisecond.
const SHORTEST: Duration = Duration::from_millis(BEATS as u64);
/// Two beats may be lost before a lease ends.
const BEATS: u32 = 3;
/// The most entries that are handed out at once.
const MOST: usize = 1_000;

/// What an entry is about.
#[derive(Debug, Default, Clone, Args)]
pub struct EntryFlags {
    /// Instead of a command, work for an executor outside outlive: the app to run
    #[arg(
        long,
        value_name = "APP",
        conflicts_with = "argv",
        help_heading = "Executors outside outlive",
        hide_short_help = true
    )]
    pub app: Option<String>,
    /// Instead of a command, for an executor outside outlive: the workflow to run
    #[arg(
        long,
        value_name = "WORKFLOW",
        conflicts_with = "argv",
        help_heading = "Executors outside outlive",
        hide_short_help = true
    )]
    pub workflow: Option<String>,
    /// Instead of a command, for an executor outside outlive: the run to continue
    #[arg(
        long = "run",
        value_name = "ID",
        conflicts_with = "argv",
        help_heading = "Executors outside outlive",
        hide_short_help = true
    )]
    pub run: Option<String>,
    /// The repository it is about [default: this one]
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with = "argv",
        help_heading = "Executors outside outlive",
        hide_short_help = true
    )]
    pub repo: Option<String>,
    /// A note for the executor
    #[arg(long, conflicts_with = "argv", help_heading = "Executors outside outlive", hide_short_help = true)]
    pub note: Option<String>,
}

impl EntryFlags {
    /// Whether an entry is meant, and not a command.
    pub fn is_any(&self) -> bool {
        self.app.is_some() || self.workflow.is_some() || self.run.is_some()
    }

    /// Refuses an entry that is about nothing.
    pub fn check(&self) -> Result<(), Error> {
        let named = [("--app", &self.app), ("--workflow", &self.workflow), ("--run", &self.run)];
        let is_blank = |value: &Option<String>| value.as_ref().is_some_and(|value| value.trim().is_empty());
        match named.into_iter().find(|(_, value)| is_blank(value)) {
            Some((flag, _)) => Err(Error::Invalid(format!("`{flag}` needs a name"))),
            None => Ok(()),
        }
    }

    /// Makes an entry of a spec.
    pub fn entry(&self, spec: Spec) -> Result<Spec, Error> {
        self.check()?;
        let repo = match &self.repo {
            Some(repo) => canonical(repo)?,
            None => repository()?.display().to_string(),
        };
        // Its runs are found from anywhere from now on.
        for address in SourceAddress::in_directory(Path::new(&repo)).unwrap_or_default() {
            let _ = address.register(&home()?, SystemClock.now());
        }
        let mut spec = Spec { kind: EXTERNAL_KIND.into(), command: None, queued: true, ..spec };
        spec.policy.orphans = OrphanPolicy::Requeue;
        spec.policy.retry.on_interrupt = true;
        let about = [
            ("app", &self.app),
            ("workflow", &self.workflow),
            ("run", &self.run),
            ("repo", &Some(repo)),
            ("note", &self.note),
        ];
        let labels = about.into_iter().filter_map(|(label, value)| Some((label.to_owned(), value.clone()?)));
        spec.labels.extend(labels);
        Ok(spec)
    }
}

fn canonical(path: &str) -> Result<String, Error> {
    let found = Path::new(path).canonicalize();
    found
        .map(|path| path.display().to_string())
        .map_err(|error| Error::Invalid(format!("there is no repository `{path}`: {error}")))
}

/// The registry of the home, which has the queue of all repositories.
pub fn home_registry(context: &Context) -> Result<Context, Error> {
    Ok(context.at(format!("sqlite:{}", home()?.join("registry").display())))
}

/// An entry as every surface shows it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct EntryView {
    pub id: RunId,
    pub state: StateName,
    /// Why it waits; none where it only waits to be handed out.
    pub reason: Option<String>,
    pub app: Option<String>,
    pub workflow: Option<String>,
    pub run: Option<String>,
    pub repo: Option<String>,
    pub note: Option<String>,
    pub priority: i32,
    pub attempt: u32,
    /// What its holder presents.
    pub epoch: u64,
    pub enqueued_at: Timestamp,
    /// How long it is its holder's without a beat.
    pub lease_ms: Option<u64>,
}

impl EntryView {
    /// The entry that a run is, as it was seen; none where it is something else.
    pub fn seen(seen: &RunStatus) -> Option<Self> {
        let reason = seen.reason.as_ref().map(|reason| with_names(reason, &seen.leftovers));
        Self::of(&seen.run, seen.state).map(|entry| Self { reason, ..entry })
    }

    /// The entry that a run is, as its record tells of it; none where it is something else.
    fn recorded(run: &Run) -> Option<Self> {
        Self::seen(&see(run.clone(), None, SystemClock.now()))
    }

    fn of(run: &Run, state: StateName) -> Option<Self> {
        let label = |name: &str| run.spec.labels.get(name).cloned();
        let lease = run.owner().map(|owner| owner.lease.lasts());
        (run.spec.kind == EXTERNAL_KIND && run.spec.command.is_none()).then(|| Self {
            id: run.id,
            state,
            reason: None,
            app: label("app"),
            workflow: label("workflow"),
            run: label("run"),
            repo: label("repo"),
            note: label("note"),
            priority: run.priority(),
            attempt: run.attempt,
            epoch: run.epoch.0,
            enqueued_at: run.created_at,
            lease_ms: lease.map(|lease| u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)),
        })
    }

    /// What it is about, in a few words.
    pub fn title(&self) -> String {
        let parts = [("app", &self.app), ("workflow", &self.workflow), ("run", &self.run), ("in", &self.repo)];
        let said = parts.into_iter().filter_map(|(word, value)| Some(format!("{word} {}", plain(value.as_ref()?))));
        let note = self.note.iter().map(|note| format!("({})", plain(note)));
        said.chain(note).collect::<Vec<_>>().join(" ")
    }
}

/// Lease queue entries to an executor outside outlive
///
/// Each entry is leased with an epoch: `queue beat` renews the lease, `queue done` finishes the entry, `queue
/// release` returns it. An entry whose lease expires is leased again. Entries that wait for a time, a dependency or a
/// key are not leased. Commands are not executed: `outlive work` does that. The order is by priority, time and id,
/// unless the home's configuration says otherwise.
#[derive(Debug, Args)]
pub struct Drain {
    /// At most this many
    #[arg(short = 'n', long, default_value_t = 1)]
    pub limit: usize,
    /// Only of this repository
    #[arg(long, value_name = "PATH")]
    pub repo: Option<String>,
    /// The lease: how long an entry is held without a heartbeat [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub lease: Option<Duration>,
}

impl Default for Drain {
    fn default() -> Self {
        Self { limit: 1, repo: None, lease: None }
    }
}

/// Renew the lease of a queue entry
#[derive(Debug, Default, Args)]
pub struct Beat {
    /// The entry
    pub entry: String,
    /// The epoch of its lease
    #[arg(long)]
    pub epoch: u64,
}

/// Finish a leased queue entry
#[derive(Debug, Default, Args)]
pub struct Done {
    /// The entry
    pub entry: String,
    /// The epoch of its lease
    #[arg(long)]
    pub epoch: u64,
    /// It failed, for this reason; it is retried if it was added with --retry
    #[arg(long, value_name = "REASON")]
    pub failed: Option<String>,
}

/// Return a leased entry to the queue
#[derive(Debug, Default, Args)]
pub struct Release {
    /// The entry
    pub entry: String,
    /// The epoch of its lease
    #[arg(long)]
    pub epoch: u64,
    /// Why
    #[arg(long)]
    pub reason: Option<String>,
}

/// Entries that were handed out.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Drained {
    entries: Vec<EntryView>,
    /// How many still wait, for their time or for a consumer.
    remaining: usize,
}

/// What became of an entry.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Changed {
    entry: EntryView,
    /// Its cancellation was requested.
    cancel_requested: bool,
    #[serde(skip)]
    done: &'static str,
}

impl Operate for Drain {
    const NAME: &'static str = "queue drain";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive queue add --app audit --note nightly && outlive queue drain --limit 4 --json";
    type Output = Drained;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, context: &Context) -> Result<Drained, Error> {
        if self.limit == 0 || self.limit > MOST {
            return Err(Error::Invalid(format!("1 to {MOST} entries are handed out at once, not {}", self.limit)));
        }
        let lasts = self.lease.unwrap_or(LEASE);
        if lasts < SHORTEST {
            let (least, lasts) = (show_duration(SHORTEST), show_duration(lasts));
            return Err(Error::Invalid(format!("an entry is held for {least} at least, not for {lasts}")));
        }
        let lease = Lease::new(lasts / BEATS, lasts).map_err(|error| Error::Invalid(error.to_string()))?;
        let (order, repo) = (QueueOrder::read()?, self.repo.as_deref().map(canonical).transpose()?);
        let Some(registry) = existing_home(context).await? else {
            return Ok(Drained { entries: Vec::new(), remaining: 0 });
        };
        let is_wanted = |run: &Run| repo.is_none() || run.spec.labels.get("repo") == repo.as_ref();
        let waiting = registry.waiting().await?;
        registry.release(&waiting).await?;
        let handed = registry.lease_external((self.limit, order.into()), lease, &is_wanted).await?;
        let view = |ExternalLease { run, .. }: &ExternalLease| EntryView::of(run, StateName::Running);
        let entries: Vec<EntryView> = handed.iter().filter_map(view).collect();
        let left = registry.waiting().await?;
        let remaining = left.iter().filter(|run| run.spec.kind == EXTERNAL_KIND && is_wanted(run)).count();
        Ok(Drained { entries, remaining })
    }
}

/// The registry of the home, to be changed; none where there is none yet.
pub async fn existing_home(context: &Context) -> Result<Option<Registry>, Error> {
    let context = home_registry(context)?;
    match context.to_change().await {
        Err(Error::NoRegistry { .. }) => Ok(None),
        opened => opened,
    }
}

/// The entry that is meant, and where it is.
async fn find(context: &Context, entry: &str) -> Result<(Registry, RunId), Error> {
    let Some(registry) = existing_home(context).await? else {
        let unknown = || Error::NotFound(entry.chars().take(80).collect());
        return Err(no_entry(context, entry).await.unwrap_or_else(unknown));
    };
    match registry.find(entry).await {
        Ok(seen) => {
            context.remember(&seen.run, entry);
            Ok((registry, seen.run.id))
        }
        Err(error @ Error::NotFound(_)) => Err(no_entry(context, entry).await.unwrap_or(error)),
        Err(error) => Err(error),
    }
}

/// What a word names that names no entry: a run of the registry here, which is for workers.
async fn no_entry(context: &Context, word: &str) -> Option<Error> {
    let here = context.existing().await.ok().flatten()?;
    here.find(word).await.ok()?;
    // As the caller called it, on every surface.
    let called = quote(word.as_bytes());
    let message =
        format!("run `{called}` is not in the queue of all repositories: a worker of its registry executes it");
    Some(Error::Reported {
        code: Code::Refused,
        message,
        hint: Some(format!("`outlive queue show {called}` shows its place")),
    })
}

fn changed(run: &Run, done: &'static str, cancel_requested: bool) -> Result<Changed, Error> {
    let entry = EntryView::recorded(run).ok_or_else(|| Error::NotFound(run.id.to_string()))?;
    Ok(Changed { entry, cancel_requested, done })
}

impl Operate for Beat {
    const NAME: &'static str = "queue beat";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive queue add --app audit && outlive queue drain && outlive queue beat @last --epoch 1";
    type Output = Changed;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, context: &Context) -> Result<Changed, Error> {
        let (registry, id) = find(context, &self.entry).await?;
        let cancelled = registry.renew_external(id, Epoch(self.epoch)).await?;
        changed(&registry.glance(id).await?.run, "is kept, and", cancelled)
    }
}

impl Operate for Done {
    const NAME: &'static str = "queue done";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive queue add --app audit && outlive queue drain && outlive queue done @last --epoch 1";
    type Output = Changed;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, context: &Context) -> Result<Changed, Error> {
        let (registry, id) = find(context, &self.entry).await?;
        let outcome = match self.failed {
            Some(error_message) => Outcome::failed("entry", error_message),
            None => Outcome::SUCCEEDED,
        };
        let run = registry.finish_external(id, Epoch(self.epoch), outcome, None).await?;
        changed(&run, "is", run.cancel.is_some())
    }
}

impl Operate for Release {
    const NAME: &'static str = "queue release";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str =
        "outlive queue add --app audit && outlive queue drain && outlive queue release @last --epoch 1";
    type Output = Changed;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, context: &Context) -> Result<Changed, Error> {
        let (registry, id) = find(context, &self.entry).await?;
        let run = registry.release_external(id, Epoch(self.epoch), self.reason).await?;
        changed(&run, "is given back, and", run.cancel.is_some())
    }
}

impl fmt::Display for Drained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            let lease = show_duration(Duration::from_millis(entry.lease_ms.unwrap_or_default()));
            writeln!(f, "{} epoch {} for {lease}: {}", entry.id, entry.epoch, entry.title())?;
        }
        let (taken, left) = (self.entries.len(), self.remaining);
        writeln!(f, "{taken} handed out, {left} still wait")?;
        match self.entries.first() {
            Some(entry) => writeln!(f, "next: `outlive queue done {} --epoch {}`", entry.id, entry.epoch),
            None => writeln!(f, "next: `outlive queue list` tells what waits, and for what"),
        }
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.entry.id, self.done, self.entry.state)?;
        if self.cancel_requested { writeln!(f, "  cancel requested") } else { Ok(()) }
    }
}
