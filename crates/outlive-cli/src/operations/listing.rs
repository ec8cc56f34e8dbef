//! Pages of runs of every repository: what can be asked of them, and how they are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use clap::Args;
use outlive::error::Error;
use outlive::index::{
    Freshness, Lifecycle, Named, PAGE_LIMIT, Query, RepositoryProblem, SearchHit, SearchOrder, Sort, UnknownLifecycle,
    Unverified,
};
use outlive::lifecycle::health::Health;
use outlive::time::{Clock, SystemClock, Timestamp, Towards, parse_moment, show_duration};
use schemars::JsonSchema;
use serde::Serialize;

use crate::exec::flags::parse_label;
use crate::lookup::{SHOWN, Scope, forget, index, narrowed};
use crate::ui::table::{Cell, Colour, Step, Table};
use crate::ui::{Look, command_line, counted, cut, plain};

/// What is said to be verified where all runs in question were looked at.
const EVERY_RUN: &str = "device, inode, size and times of every run in question, revisions where a database changed; content where they differ";
/// What is said to be verified where some were not.
const LISTED_RUNS: &str = "device, inode, size and times of each run that is listed, its content where they differ; not every \
                           run that was left out: see `unverified`";

/// Which runs are meant.
#[derive(Debug, Clone, Args)]
pub struct ListFilter {
    /// Only runs of this app or workflow
    #[arg(long)]
    pub app: Option<String>,
    /// Only runs of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Only runs in this state, archived or not (repeatable)
    #[arg(long = "status", value_name = "STATUS")]
    pub status: Vec<String>,
    /// Only runs of this repository
    #[arg(long, value_name = "PATH")]
    pub repo: Option<String>,
    /// Made at or after this time: 2026-11-15T09:30:00+01:00, 2026-11-15, 2h (ago), today, yesterday
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Made before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only runs that bear this label (repeatable)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Only runs whose id, title, app, workflow, repository, status, labels or inputs have these words
    #[arg(long, value_name = "WORDS")]
    pub text: Option<String>,
    /// Leave out archived runs
    #[arg(long)]
    pub unarchived: bool,
    /// At most this many, 10000 at the most
    #[arg(short = 'n', long, default_value_t = 50)]
    pub limit: usize,
    /// Where the page begins: the `next` of the previous answer
    #[arg(long, value_name = "NEXT")]
    pub cursor: Option<String>,
    /// Leave out so many runs first
    #[arg(long, default_value_t = 0)]
    pub offset: usize,
    /// Also count all runs that match, which takes longer the more there are
    #[arg(long)]
    pub total: bool,
    /// Look at every run on this machine before any is left out, however many there are
    #[arg(long)]
    pub verify: bool,
    /// Runs of this repository, or of every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
}

impl Default for ListFilter {
    fn default() -> Self {
        Self {
            app: None,
            kind: None,
            status: Vec::new(),
            repo: None,
            since: None,
            until: None,
            labels: Vec::new(),
            text: None,
            unarchived: false,
            limit: 50,
            cursor: None,
            offset: 0,
            total: false,
            verify: false,
            scope: Scope::Home,
        }
    }
}

impl ListFilter {
    /// What the index is asked.
    pub fn query(&self, more: Option<&str>, order: SearchOrder) -> Result<Query, Error> {
        let invalid = |error: &dyn fmt::Display| Error::Invalid(error.to_string());
        let now = SystemClock.now();
        let moment =
            |text: &Option<String>| text.as_deref().map(|text| parse_moment(text, now, Towards::Past)).transpose();
        if self.limit == 0 || self.limit > PAGE_LIMIT {
            return Err(Error::Invalid(format!("a page has 1 to {PAGE_LIMIT} runs, not {}", self.limit)));
        }
        let status = |word: &String| {
            let is_health = Health::ALL.iter().any(|health| health.as_str() == word);
            let ps = format!("; it is a health, and `outlive ps --global --status {word}` lists runs of it");
            let hint = if is_health { ps.as_str() } else { "" };
            word.parse().map_err(|unknown: UnknownLifecycle| Error::Invalid(format!("{unknown}{hint}")))
        };
        let statuses: Result<BTreeSet<Lifecycle>, Error> = self.status.iter().map(status).collect();
        let labels: Result<BTreeMap<String, String>, Error> =
            self.labels.iter().map(|label| parse_label(label)).collect();
        let text = [more, self.text.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let after = self.cursor.as_deref().map(str::parse).transpose();
        Ok(Query {
            text: Some(text).filter(|text| !text.is_empty()),
            app: self.app.clone(),
            kind: self.kind.clone(),
            statuses: statuses?,
            repos: self.repos()?,
            since: moment(&self.since).map_err(|error| invalid(&error))?,
            until: moment(&self.until).map_err(|error| invalid(&error))?,
            labels: labels?,
            archived: self.unarchived.then_some(false),
            order,
            after: after.map_err(|error| invalid(&error))?,
            offset: self.offset,
            limit: self.limit,
            count_all: self.total,
            verify_all: self.verify,
        })
    }

    fn repos(&self) -> Result<Option<BTreeSet<String>>, Error> {
        let of_scope = narrowed(self.scope)?;
        let Some(named) = &self.repo else { return Ok(of_scope.map(|repo| BTreeSet::from([repo]))) };
        let path = Path::new(named).canonicalize().map_or_else(|_| named.clone(), |path| path.display().to_string());
        let known: BTreeSet<String> = index()?.sources()?.iter().map(|known| known.address.repo()).collect();
        let is_it = |repo: &&String| **repo == path || repo.ends_with(&format!("/{}", named.trim_matches('/')));
        let meant: BTreeSet<String> = known.iter().filter(is_it).cloned().collect();
        if meant.is_empty() {
            return Err(Error::Invalid(format!(
                "no repository `{named}` is known; `outlive registry list` lists them, `outlive registry add` adds one"
            )));
        }
        Ok(Some(of_scope.map_or(meant.clone(), |repo| meant.into_iter().filter(|known| *known == repo).collect())))
    }

    /// The page of runs that are meant.
    pub fn page(&self, verb: &'static str, more: Option<&str>, order: SearchOrder) -> Result<Page, Error> {
        let query = self.query(more, order)?;
        let found = index()?.search(&query)?;
        let next = found.next.as_ref().map(ToString::to_string);
        Ok(Page {
            scope: self.scope,
            verified: match found.unverified {
                Unverified { sources: 0, unread: 0, .. } => EVERY_RUN,
                _ => LISTED_RUNS,
            },
            indexed: found.indexed,
            more: next.as_deref().map(|next| self.again(verb, more, next)),
            runs: found.runs,
            missing: found.missing,
            unreadable: found.unreadable,
            unverified: found.unverified,
            problems: found.problems,
            total: found.total,
            changed_sources: found.changed_sources,
            unavailable: found.unavailable.into_iter().map(|(repo, reason)| Unavailable { repo, reason }).collect(),
            next,
            now: SystemClock.now(),
        })
    }

    /// This call again, for the page that begins at `next`.
    pub fn again(&self, verb: &str, more: Option<&str>, next: &str) -> String {
        let mut words: Vec<String> = vec!["outlive".into(), verb.into()];
        words.extend(more.map(Into::into));
        let one = [
            ("--app", &self.app),
            ("--kind", &self.kind),
            ("--repo", &self.repo),
            ("--since", &self.since),
            ("--until", &self.until),
            ("--text", &self.text),
        ];
        words.extend(one.into_iter().filter_map(|(flag, value)| Some(format!("{flag}={}", value.as_ref()?))));
        words.extend(self.status.iter().map(|word| format!("--status={word}")));
        words.extend(self.labels.iter().map(|word| format!("--label={word}")));
        words.extend(self.unarchived.then(|| "--unarchived".into()));
        words.extend((self.scope == Scope::Repo).then(|| "--scope=repo".into()));
        words.extend(self.verify.then(|| "--verify".into()));
        words.extend([format!("--limit={}", self.limit), format!("--cursor={next}")]);
        command_line(words.iter().map(String::as_bytes))
    }
}

/// A page of runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Page {
    /// Which repositories were meant.
    scope: Scope,
    /// What was looked at before a run was listed or left out.
    verified: &'static str,
    /// There is an index. Where there is none, what is listed was read from the sources.
    indexed: bool,
    /// The runs.
    pub runs: Vec<SearchHit>,
    /// Runs that would be here if their sources were.
    missing: Vec<SearchHit>,
    /// Runs of these repositories that cannot be understood, whether or not they would be listed.
    unreadable: Sort,
    /// What was not looked at: runs that have changed may be listed or left out for what they were.
    unverified: Unverified,
    /// What in these repositories cannot be understood beside runs.
    problems: Vec<RepositoryProblem>,
    /// How many runs match, where that was asked for.
    total: Option<usize>,
    /// How many sources have changed since they were indexed, or are not indexed yet.
    changed_sources: usize,
    /// The repositories of missing runs that cannot be looked at.
    unavailable: Vec<Unavailable>,
    /// Where the next page begins.
    next: Option<String>,
    #[serde(skip)]
    more: Option<String>,
    #[serde(skip)]
    now: Timestamp,
}

/// A repository that cannot be looked at.
#[derive(Debug, Serialize, JsonSchema)]
struct Unavailable {
    repo: String,
    reason: String,
}

/// The place behind something in a list, as one word.
pub fn to_place(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// What such a place is behind.
pub fn from_place(place: &str) -> Result<String, Error> {
    let byte = |at: usize| u8::from_str_radix(place.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..place.len()).step_by(2).map(byte).collect();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.ok_or_else(|| Error::Invalid(format!("`{}` is not the `next` of an earlier page", plain(place))))
}

/// What the word for how a run stands wants to say.
pub fn colour(lifecycle: Lifecycle) -> Option<Colour> {
    match lifecycle {
        Lifecycle::Dead | Lifecycle::Failed => Some(Colour::Bad),
        Lifecycle::Blocked | Lifecycle::Interrupted => Some(Colour::Doubtful),
        Lifecycle::Running | Lifecycle::Succeeded | Lifecycle::Completed => Some(Colour::Good),
        Lifecycle::Cancelled | Lifecycle::Archived | Lifecycle::Reclaimed => Some(Colour::Quiet),
        Lifecycle::Pending | Lifecycle::Queued | Lifecycle::Suspended => None,
    }
}

/// How a run stands: what it is under its mark, too.
pub fn status(listed: &SearchHit) -> String {
    let record = &listed.record;
    match record.lifecycle == record.derived_lifecycle {
        true => record.lifecycle.to_string(),
        false => format!("{} ({})", record.lifecycle, record.derived_lifecycle),
    }
}

/// How many of what it is made of.
pub fn counts(listed: &SearchHit) -> String {
    let record = &listed.record;
    let tasks = record.tasks;
    let mut parts = Vec::new();
    if tasks.total > 0 {
        parts.push(format!("{}/{} tasks", tasks.completed, tasks.total));
    }
    let few = [(tasks.failed, "failed"), (record.open_feedback_count, "open"), (record.commit_count, "commits")];
    parts.extend(few.into_iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")));
    parts.join(", ")
}

/// The last part of a path: what people call a repository.
pub fn repo_name(repo: &str) -> &str {
    repo.rsplit('/').find(|part| !part.is_empty()).unwrap_or(repo)
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.runs.is_empty() {
            writeln!(f, "no such runs")?;
        } else {
            let on_terminal = Look::of_stdout().on_terminal;
            // A program needs the whole of it.
            let id = |id: &str| if on_terminal { cut(&plain(id), 40).into_owned() } else { plain(id) };
            let row = |listed: &SearchHit| {
                let record = &listed.record;
                let age = show_duration(self.now.since(record.made()));
                let fresh = (listed.freshness != Freshness::Valid).then_some(Colour::Doubtful);
                vec![
                    Cell::new(id(&record.run_id)),
                    Cell::new(plain(repo_name(&record.repo))),
                    Cell::new(status(listed)).coloured(colour(record.lifecycle)),
                    Cell::new(listed.freshness.as_str()).coloured(fresh),
                    Cell::new(age),
                    Cell::new(counts(listed)),
                    Cell::new(cut(&plain(&record.title), 60).into_owned()),
                ]
            };
            let headings = ["ID", "REPO", "STATUS", "FRESHNESS", "AGE", "COUNTS", "TITLE"];
            let table = Table::new(&headings, self.runs.iter().map(row));
            let first = [Step::LeaveOutEmpty("COUNTS"), Step::Narrow("REPO", 16), Step::LeaveOut("AGE")];
            let then = [Step::LeaveOut("COUNTS"), Step::Narrow("ID", 16)];
            writeln!(f, "{}", table.show(Look::of_stdout(), &first, &then))?;
        }
        writeln!(f, "{}", self.summary())?;
        for Unavailable { repo, reason } in self.unavailable.iter().take(SHOWN) {
            writeln!(f, "unavailable: {}: {}; {}", plain(repo), plain(reason), forget(repo))?;
        }
        self.tell_doubts(f)?;
        if let Some(more) = &self.more {
            writeln!(f, "more: {more}")?;
        }
        writeln!(f, "next: {}", self.next_action())
    }
}

impl Page {
    /// Says what could not be read or was not looked at.
    fn tell_doubts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Named { repo, name, reason } in self.unreadable.runs.iter().take(SHOWN) {
            let reason = plain(reason.as_deref().unwrap_or_default());
            writeln!(f, "unreadable: {}:{}: {reason}", plain(repo), plain(name))?;
        }
        match self.unreadable.count.saturating_sub(SHOWN) {
            0 => {}
            more => writeln!(f, "unreadable: {more} more; `outlive registry show` names them")?,
        }
        for problem in self.problems.iter().take(SHOWN) {
            let (repo, what, reason) = (plain(&problem.repo), plain(&problem.what), plain(&problem.reason));
            writeln!(f, "problem: {repo}: {what}: {reason}")?;
        }
        match self.unverified {
            Unverified { sources: 0, unread: 0, .. } => {}
            Unverified { sources: 0, unread, .. } => {
                let unread = counted(unread, "run");
                writeln!(f, "unverified: {unread} were not read, too many at once; `outlive registry refresh`")?;
            }
            Unverified { sources, runs, .. } => {
                let runs = counted(runs, "run");
                let sources = counted(sources, "source");
                writeln!(
                    f,
                    "unverified: {runs} of {sources} are filtered as they were indexed; --verify looks at all"
                )?;
            }
        }
        let now = "; what is listed is as it is now";
        match (self.indexed, self.changed_sources) {
            (false, _) => writeln!(f, "there is no index: read from the sources; `outlive registry refresh` makes one"),
            (true, 0) => Ok(()),
            (true, 1) => writeln!(f, "1 source has changed since it was indexed{now}"),
            (true, many) => writeln!(f, "{many} sources have changed since they were indexed{now}"),
        }
    }

    fn summary(&self) -> String {
        let mut counts: BTreeMap<Lifecycle, usize> = BTreeMap::new();
        self.runs.iter().for_each(|listed| *counts.entry(listed.record.lifecycle).or_default() += 1);
        let stands = counts.iter().map(|(lifecycle, count)| format!("{count} {lifecycle}"));
        let doubtful = |freshness| self.runs.iter().filter(|listed| listed.freshness == freshness).count();
        let doubts = [Freshness::Stale, Freshness::New].map(|freshness| (doubtful(freshness), freshness.as_str()));
        let others = [(self.missing.len(), "missing"), (self.unreadable.count, "unreadable")];
        let doubts = doubts.into_iter().chain(others).filter(|(count, _)| *count > 0);
        let doubts = doubts.map(|(count, word)| format!("{count} {word}"));
        let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
        let runs = counted(self.runs.len(), "run");
        format!("{runs}{of}: {}", stands.chain(doubts).collect::<Vec<_>>().join(", ")).trim_end_matches(": ").to_owned()
    }

    fn next_action(&self) -> &'static str {
        let is_valid = |listed: &SearchHit| listed.freshness == Freshness::Valid;
        let away = |listed: &SearchHit| self.unavailable.iter().any(|away| away.repo == listed.record.repo);
        let is_told = self.indexed && self.changed_sources == 0 && self.missing.iter().all(away);
        // That there is no index is said above, with what makes one.
        let is_read = !self.indexed && !self.runs.is_empty();
        match is_read || self.runs.iter().all(is_valid) && is_told {
            true if self.runs.is_empty() => "`outlive registry show` tells whether the index is up to date",
            true => "`outlive show ID` tells about one of them",
            false => "`outlive registry refresh` brings the index up to date",
        }
    }
}
