//! A run as every surface shows it: flat, with a fixed set of fields.

mod leash;

use std::collections::BTreeMap;
use std::time::Duration;

use outlive::id::{RunId, WorkerId};
use outlive::lifecycle::health::{Health, RunStatus};
use outlive::logs::show_bytes;
use outlive::owner::LiveProcesses;
use outlive::registry::Registry;
use std::os::unix::ffi::OsStrExt;

use outlive::lifecycle::{Operation, can, resumes_unnamed};
use outlive::run::{Actor, Arg, End, Exit, Hold, Key, Owner, State, StateName};
use outlive::time::{Clock, SystemClock, Timestamp, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use self::leash::LeashView;
use crate::ui::table::Colour;
use crate::ui::typed::called;
use crate::ui::{plain, quote};

/// Until when times of a schedule are shown, and how many.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const UPCOMING: usize = 100;

/// A run, flat. Fields that do not apply are null, never missing.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct RunView {
    pub id: RunId,
    pub name: Option<String>,
    pub kind: String,
    pub labels: BTreeMap<String, String>,
    pub command: Option<Vec<String>>,
    pub cwd: Option<String>,
    pub state: StateName,
    pub health: Option<Health>,
    /// The operations that would not be refused now.
    pub can: Vec<Operation>,
    pub reason: Option<String>,
    pub priority: i32,
    /// The share that it counts against, as TENANT or TENANT:WEIGHT.
    pub share: Option<String>,
    /// It is claimed from the queue.
    pub queued: bool,
    pub not_before: Option<Timestamp>,
    /// When it comes again, such as `every 1h` or `cron 0 3 * * *`.
    pub schedule: Option<String>,
    /// When it is to be started within 24 hours: at `not_before` and as its schedule says, the first 100 times.
    pub upcoming: Vec<Timestamp>,
    /// The keys that it holds while it runs, or waits for.
    pub keys: Vec<KeyView>,
    /// The runs whose end it still waits for.
    pub waits_for: Vec<RunId>,
    pub attempt: u32,
    pub epoch: u64,
    pub owner: Option<WorkerId>,
    pub owner_host: Option<String>,
    pub owner_pid: Option<u32>,
    /// Where it runs, or ran last.
    pub host: Option<String>,
    pub last_beat_at: Option<Timestamp>,
    pub leftover_pids: Vec<u32>,
    /// What each of them is called, in the same order.
    pub leftover_names: Vec<String>,
    pub created_by: String,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub updated_at: Timestamp,
    pub duration_ms: Option<u64>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub error_type: Option<String>,
    pub error_message: Option<String>,
    pub cancel_requested_at: Option<Timestamp>,
    pub cancel_requested_by: Option<String>,
    pub progress_done: Option<u64>,
    pub progress_total: Option<u64>,
    pub progress_message: Option<String>,
    /// The processor time of the attempt, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// The memory of its processes when they were last sampled, in bytes; none once it has ended.
    pub memory_bytes: Option<u64>,
    /// The most memory that the attempt has had, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// What the attempt has read from storage, in bytes.
    pub read_bytes: Option<u64>,
    /// What the attempt has written to storage, in bytes.
    pub written_bytes: Option<u64>,
    /// How many processes it had when they were last counted; none once it has ended.
    pub processes: Option<u32>,
    /// Its attempt is ready; none where nothing says when it is.
    pub ready: Option<bool>,
    /// Since when.
    pub ready_at: Option<Timestamp>,
    /// The ports that it was leased, by name.
    pub ports: BTreeMap<String, u16>,
    /// Where the first of them is reached.
    pub url: Option<String>,
    /// The process that its attempt ends with.
    pub leash: Option<LeashView>,
    pub reaps: u32,
    pub failures: u32,
    pub archived: bool,
    pub copied: bool,
    /// This user may execute it; none where that was not looked at.
    pub trusted: Option<bool>,
    /// What it is called as a step of another run.
    pub step: Option<String>,
    /// That run.
    pub step_of: Option<RunId>,
    /// The attempt of that run.
    pub step_attempt: Option<u32>,
    /// The step inside which it was made; none where that was the run itself.
    pub step_parent: Option<RunId>,
    /// The step of an earlier attempt whose result it repeats.
    pub replays: Option<RunId>,
    /// Its repository, where runs of several are listed.
    pub repo: Option<String>,
    /// The command as a shell must be given it.
    #[serde(skip)]
    pub command_line: Option<String>,
    /// `outlive resume --all` resumes it, once it may be resumed at all.
    #[serde(skip)]
    pub resumes_unnamed: bool,
    /// It could be resumed but for its live processes.
    #[serde(skip)]
    pub resumes_without_live: bool,
}

/// A key of a run.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct KeyView {
    pub name: String,
    /// How many runs may hold it at a time.
    pub limit: u32,
    /// For how long it is held: `running`, `active` (until the run has ended) or `start` (a rate).
    pub hold: &'static str,
}

impl KeyView {
    fn of(key: &Key) -> Self {
        let hold = match key.hold {
            Hold::Active => "active",
            Hold::Start { .. } => "start",
            _ => "running",
        };
        Self { name: key.name.clone(), limit: key.limit, hold }
    }
}

/// The host of an owner, as far as it is on record.
fn host_of(owner: &Owner) -> Option<String> {
    let identity = &owner.identity;
    (!identity.is_unknown()).then(|| identity.vantage.host.to_string())
}

fn person(actor: &Actor) -> String {
    format!("{}@{}", actor.user, actor.host)
}

/// A command as a shell must be given it.
pub fn quoted(argv: &[Arg]) -> String {
    let mut line = String::new();
    for (index, word) in argv.iter().enumerate() {
        line.push_str(if index == 0 { "" } else { " " });
        match word {
            Arg::Text(text) => line.push_str(&quote(text.as_bytes())),
            bytes @ Arg::Bytes { .. } => line.push_str(&quote(bytes.to_os().as_bytes())),
        }
    }
    line
}

/// What a process is called; a mark where it is gone by now or may not be looked into.
fn process_name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim().is_empty() { "?".into() } else { name.trim().into() }
}

/// A reason with the names of the processes that it names by number.
pub fn with_names(reason: &str, leftovers: &LiveProcesses) -> String {
    if leftovers.pids.is_empty() {
        return reason.into();
    }
    let one = |pid: &u32| format!("{pid} ({})", process_name(*pid));
    let numbers = leftovers.pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    reason.replace(
        &format!("pid {numbers}"),
        &format!("pid {}", leftovers.pids.iter().map(one).collect::<Vec<_>>().join(", ")),
    )
}

/// A moment in local time, and how long ago it was.
pub fn moment(at: Timestamp, now: Timestamp) -> String {
    let local = at.local();
    if at > now {
        format!("{local} (in {})", show_duration(at.since(now)))
    } else {
        format!("{local} ({} ago)", show_duration(now.since(at)))
    }
}

impl RunView {
    /// The run as it was seen through `registry`.
    pub fn new(seen: &RunStatus, registry: &Registry) -> Self {
        let trusted = (!registry.withholds_signatures()).then(|| registry.executable(&seen.run).is_ok());
        Self::build(seen, registry, trusted)
    }

    /// The run without a check of its signature, which takes longer than all the rest, unless that decides what may be
    /// done.
    pub fn unsigned(seen: &RunStatus, registry: &Registry) -> Self {
        Self::build(seen, registry, None)
    }

    fn build(seen: &RunStatus, registry: &Registry, trusted: Option<bool>) -> Self {
        let (run, spec, now) = (&seen.run, &seen.run.spec, registry.clock().now());
        let ready_at = match &run.state {
            State::Running(running) => running.ready_at,
            _ => None,
        };
        let waiting = match &run.state {
            State::Pending(pending) => Some(pending),
            _ => None,
        };
        let ending = run.ending();
        let (exit_code, signal) = match ending.and_then(|ending| ending.exit) {
            Some(Exit::Code(code)) => (Some(code), None),
            Some(Exit::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let failure = ending.and_then(|ending| match &ending.how {
            End::Failed(failure) => Some(failure),
            _ => None,
        });
        let (owner, step) = (run.owner(), spec.step.as_ref());
        let last_owner = owner.or_else(|| ending.and_then(|ending| ending.owner.as_ref()));
        let progress = run.progress.clone().unwrap_or_default();
        let usage = run.usage.as_deref();
        let is_executable = || trusted.unwrap_or_else(|| registry.executable(run).is_ok());
        let resumes_without_live = !seen.leftovers.is_empty() && {
            let ended = RunStatus { leftovers: LiveProcesses::default(), ..seen.clone() };
            can(&ended, is_executable).contains(&Operation::Resume)
        };
        Self {
            id: run.id,
            name: spec.name.clone(),
            kind: spec.kind.clone(),
            labels: spec.labels.clone(),
            command: spec.command.as_ref().map(|command| command.argv.iter().map(ToString::to_string).collect()),
            cwd: spec.command.as_ref().map(|command| command.cwd.to_string()),
            state: seen.state,
            health: seen.health,
            can: can(seen, is_executable),
            reason: seen.reason.as_ref().map(|reason| with_names(reason, &seen.leftovers)),
            priority: run.priority(),
            share: spec.share.as_ref().map(ToString::to_string),
            queued: spec.queued,
            not_before: waiting.filter(|pending| pending.paused.is_none()).and_then(|pending| pending.not_before),
            schedule: spec.schedule.as_ref().map(ToString::to_string),
            upcoming: seen.upcoming(now, now.after(DAY)).take(UPCOMING).collect(),
            keys: spec.keys.iter().map(KeyView::of).collect(),
            waits_for: waiting.map(|pending| pending.waits_for.clone()).unwrap_or_default(),
            attempt: run.attempt,
            epoch: run.epoch.0,
            owner: owner.map(|owner| owner.worker),
            owner_host: owner.and_then(host_of),
            owner_pid: owner.filter(|owner| !owner.identity.is_unknown()).map(|owner| owner.identity.pid),
            host: last_owner.and_then(host_of),
            last_beat_at: owner.map(|owner| owner.heard.at),
            leftover_pids: seen.leftovers.pids.clone(),
            leftover_names: seen.leftovers.pids.iter().map(|pid| process_name(*pid)).collect(),
            created_by: person(&spec.created_by),
            created_at: run.created_at,
            started_at: seen.started_at(),
            ended_at: seen.ended_at(),
            updated_at: run.updated_at,
            duration_ms: seen.duration(now).map(|lasted| u64::try_from(lasted.as_millis()).unwrap_or(u64::MAX)),
            exit_code,
            signal,
            error_type: failure.map(|failure| failure.error_type.clone()),
            error_message: failure.map(|failure| failure.error_message.clone()),
            cancel_requested_at: run.cancel.as_ref().map(|request| request.at),
            cancel_requested_by: run.cancel.as_ref().map(|request| person(&request.by)),
            progress_done: progress.done,
            progress_total: progress.total,
            progress_message: progress.message,
            cpu_ms: usage.map(|usage| usage.cpu_ms),
            memory_bytes: usage.filter(|_| owner.is_some()).and_then(|usage| usage.memory_bytes),
            peak_memory_bytes: usage.and_then(|usage| usage.peak_memory_bytes),
            read_bytes: usage.map(|usage| usage.read_bytes),
            written_bytes: usage.map(|usage| usage.written_bytes),
            processes: usage.filter(|_| owner.is_some()).map(|usage| usage.processes),
            ready: spec.ready.as_ref().filter(|_| seen.state == StateName::Running).map(|_| ready_at.is_some()),
            ready_at,
            ports: run.ports(),
            url: run.url(),
            leash: run.leash().map(LeashView::of),
            reaps: run.reaps,
            failures: run.failures,
            archived: run.archived.is_some(),
            copied: run.copied,
            trusted,
            step: step.map(|step| step.name.clone()),
            step_of: step.map(|step| step.of),
            step_attempt: step.map(|step| step.attempt),
            step_parent: step.and_then(|step| step.parent),
            replays: step.and_then(|step| step.replays),
            repo: None,
            command_line: spec.command.as_ref().map(|command| quoted(&command.argv)),
            resumes_unnamed: resumes_unnamed(run),
            resumes_without_live,
        }
    }

    /// What people call it: its name, else its command, else its kind.
    pub fn title(&self) -> String {
        match (self.name.as_ref().or(self.step.as_ref()), &self.command_line) {
            (Some(name), _) => plain(name),
            (None, Some(command_line)) => command_line.clone(),
            (None, None) => plain(&self.kind),
        }
    }

    /// How it stands, to follow its name: `is running`, `has failed`.
    pub fn stands(&self) -> String {
        match self.word() {
            word @ ("succeeded" | "failed") => format!("has {word}"),
            word @ ("cancelled" | "interrupted") => format!("was {word}"),
            word => format!("is {word}"),
        }
    }

    /// How it stands, in one word: its health where that says more than `running`.
    pub fn word(&self) -> &'static str {
        match self.health {
            Some(Health::Healthy) | None if self.replays.is_some() => "replayed",
            Some(Health::Healthy) | None if self.ready == Some(false) => "starting",
            Some(Health::Healthy) | None => self.state.as_str(),
            Some(health) => health.as_str(),
        }
    }

    /// The line that a process which waited for the run prints.
    pub fn ended_line(&self) -> String {
        let reason = self.shown_reason(SystemClock.now(), |run| Some(called(run)));
        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let (is_ready, url) = (self.ready == Some(true), self.url.as_ref());
        let word = if is_ready { "ready" } else { self.state.as_str() };
        let url = url.filter(|_| is_ready).map(|url| format!(" at {url}")).unwrap_or_default();
        format!("{} {word}{url}{reason}", self.title())
    }

    /// What its word wants to say.
    pub fn colour(&self) -> Option<Colour> {
        colour(self.state, self.health)
    }

    /// For how long it has run.
    pub fn duration(&self) -> String {
        self.duration_ms.map(|ms| show_duration(Duration::from_millis(ms))).unwrap_or_default()
    }

    /// How far it is.
    pub fn progress(&self) -> String {
        progress_of(self.progress_done, self.progress_total)
    }

    /// How far it is, in hundredths, where it says of how much.
    pub fn percent(&self) -> Option<u64> {
        percent_of(self.progress_done, self.progress_total)
    }

    /// What its attempt has used, in a line.
    pub fn used(&self) -> Option<String> {
        let cpu = format!("{} of CPU", show_duration(Duration::from_millis(self.cpu_ms?)));
        let bytes = |bytes: Option<u64>, what: &str| {
            bytes.filter(|bytes| *bytes > 0).map(|bytes| format!("{}{what}", show_bytes(bytes)))
        };
        let processes = self.processes.filter(|count| *count > 1).map(|count| format!("{count} processes"));
        let parts = [
            Some(cpu),
            bytes(self.memory_bytes, " of memory"),
            bytes(self.peak_memory_bytes, " at its peak"),
            processes,
            bytes(self.read_bytes, " read"),
            bytes(self.written_bytes, " written"),
        ];
        Some(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    /// How it ended, where a process did.
    pub fn exit(&self) -> Option<String> {
        let code = self.exit_code.map(|code| format!("code {code}"));
        code.or(self.signal.map(|signal| Exit::Signal(signal).to_string()))
    }

    /// The exit status of a command that waited for its end.
    pub fn exit_status(&self) -> u8 {
        let code = self.exit_code.or(self.signal.map(|signal| 128 + signal)).unwrap_or(1);
        match self.state {
            StateName::Succeeded => 0,
            _ => u8::try_from(code & 0xff).ok().filter(|code| *code != 0).unwrap_or(1),
        }
    }

    /// Whether its last attempt ended early, on record or by its look, and there may be another.
    pub fn awaits_resume(&self) -> bool {
        let ended_early = matches!(self.state, StateName::Dead | StateName::Interrupted);
        ended_early && self.can.contains(&Operation::Resume) && !self.archived
    }

    /// The reason as people read it: times are local, runs that it waits for have the name that `title` knows, or a
    /// short id.
    pub fn shown_reason(&self, now: Timestamp, title: impl Fn(RunId) -> Option<String>) -> Option<String> {
        let mut reason = plain(self.reason.as_deref()?);
        if let Some(at) = self.not_before {
            reason = reason.replace(&at.to_string(), &moment(at, now));
        }
        for parent in &self.waits_for {
            let shown = title(*parent).unwrap_or_else(|| short_ids(&[*parent]).concat());
            reason = reason.replace(&parent.to_string(), &shown);
        }
        Some(reason)
    }

    /// What a person would type next about it.
    pub fn next_step(&self) -> Option<String> {
        self.next_step_with("outlive reap")
    }

    /// What to type next, with `reap` as the call that reaps its registry.
    pub fn next_step_with(&self, reap: &str) -> Option<String> {
        let id = called(self.id);
        let may = |operation| self.can.contains(&operation);
        let is_over = self.state.is_ended() || self.state == StateName::Pending;
        if may(Operation::Adopt) {
            return Some(format!("`outlive adopt {id}` continues it; `outlive cancel {id}` stops its processes"));
        }
        if may(Operation::Cancel) && self.health == Some(Health::Orphaned) {
            return Some(format!("`outlive cancel {id}` stops its processes"));
        }
        if may(Operation::Cancel) && self.health == Some(Health::Unresponsive) {
            return Some(format!("`outlive why {id}`; `outlive cancel {id}`"));
        }
        if may(Operation::Cancel) && is_over && !self.leftover_pids.is_empty() {
            let resume = format!("; `outlive resume --end-leftovers {id}` ends it and starts the next attempt");
            let resume = if self.resumes_without_live { resume } else { String::new() };
            return Some(format!("`outlive cancel {id}` stops its processes{resume}"));
        }
        match (may(Operation::Reap), may(Operation::Resume)) {
            (true, true) => Some(format!("`outlive resume {id}` starts its next attempt; `{reap}` only marks it dead")),
            (true, false) => Some(format!("`{reap}` marks it dead")),
            (false, _) if self.awaits_resume() => Some(format!("`outlive resume {id}` starts its next attempt")),
            (false, _) => None,
        }
    }
}

/// What the word for how a run stands wants to say.
pub fn colour(state: StateName, health: Option<Health>) -> Option<Colour> {
    match (state, health) {
        (_, Some(Health::Orphaned)) | (StateName::Dead | StateName::Failed, _) => Some(Colour::Bad),
        (_, Some(Health::Late | Health::Stalled | Health::Overdue | Health::Unresponsive))
        | (StateName::Interrupted, _) => Some(Colour::Doubtful),
        (StateName::Running | StateName::Succeeded, _) => Some(Colour::Good),
        (StateName::Cancelled, _) => Some(Colour::Quiet),
        _ => None,
    }
}

/// A duration as it is shown, to the millisecond.
pub fn in_milliseconds(duration: Duration) -> String {
    show_duration(Duration::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
}

/// How far a run is.
pub fn progress_of(done: Option<u64>, total: Option<u64>) -> String {
    match (done, total) {
        (Some(done), Some(total)) => format!("{done}/{total}"),
        (Some(done), None) => done.to_string(),
        _ => String::new(),
    }
}

/// How far a run is, in hundredths, where it says of how much.
pub fn percent_of(done: Option<u64>, total: Option<u64>) -> Option<u64> {
    let (done, total) = (done?, total.filter(|total| *total > 0)?);
    u64::try_from((u128::from(done) * 100 / u128::from(total)).min(100)).ok()
}

/// The beginning of each id that tells it from all others of the list.
pub fn short_ids(ids: &[RunId]) -> Vec<String> {
    const SHORTEST: usize = 13;
    let mut sorted = ids.to_vec();
    // As their texts are.
    sorted.sort_unstable();
    let texts: Vec<String> = sorted.iter().map(ToString::to_string).collect();
    let shared = |pair: &[String]| pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
    let shared: Vec<usize> = texts.windows(2).map(shared).collect();
    let shorten = |id: &RunId| {
        let at = sorted.binary_search(id).unwrap_or_default();
        let neighbours = [at.checked_sub(1), Some(at)].into_iter().flatten().filter_map(|index| shared.get(index));
        let length = neighbours.map(|shared| shared + 1).max().unwrap_or(0).max(SHORTEST);
        texts[at][..length.min(texts[at].len())].trim_end_matches('-').to_owned()
    };
    ids.iter().map(shorten).collect()
}
