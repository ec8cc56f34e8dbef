//! `outlive registry`: which repositories are known, and how far the index of their runs can be believed.

#[cfg(feature = "object")]
pub mod check;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use outlive::error::{Code, Error};
use outlive::index::{
    Index, IndexReport, Kind, Named, Names, PAGE_LIMIT, Problem, Refreshed, Registered, Sort, SourceAddress,
    SourceReport, Standing,
};
use outlive::time::{Clock, SystemClock, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::codes::status;
use crate::call::{Context, Effect, Operate};
use crate::lookup::{Scope, forget, home, index, narrowed, repository};
use crate::operations::listing::{from_place, to_place};
use crate::ui::table::{Cell, Colour, Table};
use crate::ui::{Look, counted, plain};

/// How many runs of each sort a panel names.
const NAMED: usize = 10;

/// Add a repository or registry to the index
///
/// A repository registers itself with its first run; this adds one that has none yet, one with runs of cool-workflow,
/// or a registry by its URL. A source is only read.
#[derive(Debug, Default, Args)]
pub struct Add {
    /// Directories, or URLs of registries [default: this repository]
    pub sources: Vec<String>,
}

/// Remove a repository or registry from the index
///
/// The repository is not touched. Its runs leave the index with the next refresh.
#[derive(Debug, Default, Args)]
pub struct Remove {
    /// Directories, or URLs of registries
    #[arg(required = true)]
    pub sources: Vec<String>,
}

/// List indexed repositories and registries
#[derive(Debug, Args)]
pub struct List {
    /// At most this many, 10000 at the most
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
    /// Where the page begins: the `next` of the previous answer
    #[arg(long, value_name = "NEXT")]
    pub cursor: Option<String>,
}

impl Default for List {
    fn default() -> Self {
        Self { limit: 100, cursor: None }
    }
}

/// Update the index
///
/// Every run's files are checked by size and time, and only changed runs are read. The repository of the working
/// directory is registered first, if it has runs. An interrupted refresh leaves the index unchanged.
#[derive(Debug, Default, Args)]
pub struct Refresh {
    /// Read everything again
    #[arg(long)]
    pub rebuild: bool,
    /// This repository, or every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
}

/// Report whether the index is up to date and what has changed
///
/// Checks every known run. The exit status is 112 if something has changed, 113 if runs or sources cannot be read,
/// 101 if there is no index.
#[derive(Debug, Args)]
pub struct Show {
    /// This repository, or every one that is known
    #[arg(long, value_enum, default_value_t)]
    pub scope: Scope,
    /// How many runs of each sort are named, 10000 at the most
    #[arg(short = 'n', long, default_value_t = 100)]
    pub limit: usize,
    /// Leave out so many runs of each sort first
    #[arg(long, default_value_t = 0)]
    pub offset: usize,
}

impl Default for Show {
    fn default() -> Self {
        Self { scope: Scope::default(), limit: 100, offset: 0 }
    }
}

/// Sources that were added or removed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Changed {
    added: bool,
    sources: Vec<SourceView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SourceView {
    kind: Kind,
    repo: String,
    url: String,
    /// It was not known before, or was.
    changed: bool,
    /// `available`, `degraded` where something in it cannot be understood, or `unavailable`.
    state: &'static str,
    /// What is wrong, where something is.
    reason: Option<String>,
    added_at: Option<Timestamp>,
}

/// A source that is shown: where it is, whether it was changed, and when it was added.
type ListedSource = (SourceAddress, bool, Option<Timestamp>);

/// Sources, each with how it stands.
fn views(listed: Vec<ListedSource>) -> Result<Vec<SourceView>, Error> {
    let addresses: Vec<SourceAddress> = listed.iter().map(|(address, ..)| address.clone()).collect();
    let standing = index()?.standing(&addresses)?;
    let view = |((address, changed, added_at), standing): (ListedSource, SourceReport)| SourceView {
        kind: address.kind,
        repo: standing.repo.clone(),
        url: standing.url.clone(),
        changed,
        state: standing.state,
        reason: reason(&standing),
        added_at,
    };
    Ok(listed.into_iter().zip(standing).map(view).collect())
}

/// What is wrong with a source, in one sentence.
fn reason(source: &SourceReport) -> Option<String> {
    let problem = |problem: &Problem| format!("{}: {}", problem.what, problem.reason);
    let others = || (source.state == "degraded").then(|| "runs of it cannot be understood".to_owned());
    source.reason.clone().or_else(|| source.problems.first().map(problem)).or_else(others)
}

/// The sources that a word means.
fn addresses(word: &str) -> Result<Vec<SourceAddress>, Error> {
    if word.contains("://") {
        return Ok(vec![SourceAddress { kind: Kind::Outlive, url: word.into() }]);
    }
    let path = word.strip_prefix("sqlite:").or_else(|| word.strip_prefix("cw:")).unwrap_or(word);
    let found = SourceAddress::in_directory(Path::new(path))
        .map_err(|error| Error::Invalid(format!("`{word}` cannot be looked into: {error}")))?;
    if found.is_empty() {
        return Err(Error::Invalid(format!(
            "`{word}` has neither a registry (.outlive) nor runs of cool-workflow (.cw/runs)"
        )));
    }
    Ok(found)
}

fn unwritten(error: std::io::Error) -> Error {
    Error::Invalid(format!("the home cannot be written: {error}"))
}

impl Operate for Add {
    const NAME: &'static str = "registry add";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive registry add .";
    type Output = Changed;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Changed, Error> {
        let home = home()?;
        let words = if self.sources.is_empty() { vec![repository()?.display().to_string()] } else { self.sources };
        // All of them are understood before any is added.
        let found: Result<Vec<Vec<SourceAddress>>, Error> = words.iter().map(|word| addresses(word)).collect();
        let mut listed = Vec::new();
        for address in found?.into_iter().flatten() {
            let now = SystemClock.now();
            let added = address.register(&home, now).map_err(unwritten)?;
            listed.push((address, added, Some(now).filter(|_| added)));
        }
        Ok(Changed { added: true, sources: views(listed)? })
    }
}

impl Operate for Remove {
    const NAME: &'static str = "registry remove";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive registry add . && outlive registry remove .";
    type Output = Changed;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Changed, Error> {
        let home = home()?;
        let known = Index::of(&home).sources()?;
        let mut meant = Vec::new();
        for word in &self.sources {
            let path = Path::new(word).canonicalize().map_or_else(|_| word.clone(), |path| path.display().to_string());
            let is_it = |known: &&Registered| {
                let address = &known.address;
                address.url == *word || address.repo() == path || address.url.ends_with(&format!(":{path}"))
            };
            let found: Vec<&Registered> = known.iter().filter(is_it).collect();
            if found.is_empty() {
                return Err(Error::NoSuch { what: "repository", name: word.clone(), list: "outlive registry list" });
            }
            meant.extend(found);
        }
        let mut listed = Vec::new();
        for known in meant {
            let removed = known.address.forget(&home).map_err(unwritten)?;
            listed.push((known.address.clone(), removed, known.added_at));
        }
        Ok(Changed { added: false, sources: views(listed)? })
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for source in &self.sources {
            let what = match (self.added, source.changed) {
                (true, true) => "added",
                (true, false) => "known already",
                (false, true) => "removed",
                (false, false) => "not registered; it is known otherwise",
            };
            writeln!(f, "{} {} {what}", source.kind, plain(&source.repo))?;
        }
        writeln!(f, "next: `outlive registry refresh` brings the index up to date")
    }
}

/// The sources that are known.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Sources {
    home: PathBuf,
    sources: Vec<SourceView>,
    /// What in the home cannot be understood: sources may be left out because of it.
    problems: Vec<Problem>,
    /// Where the next page begins.
    next: Option<String>,
    #[serde(skip)]
    limit: usize,
}

impl Operate for List {
    const NAME: &'static str = "registry list";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive registry list";
    type Output = Sources;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<Sources, Error> {
        if self.limit == 0 || self.limit > PAGE_LIMIT {
            return Err(Error::Invalid(format!("a page has 1 to {PAGE_LIMIT} repositories, not {}", self.limit)));
        }
        // By what is shown of them: a place among them tells no password.
        let place = |known: &Registered| {
            format!("{} {}", u8::from(known.address.kind == Kind::CoolWorkflow), known.address.shown())
        };
        let mut known: Vec<(String, Registered)> =
            Index::of(&home()?).sources()?.into_iter().map(|known| (place(&known), known)).collect();
        known.sort_by(|one, other| one.0.cmp(&other.0));
        if let Some(after) = &self.cursor {
            let after = from_place(after)?;
            known.retain(|(place, _)| *place > after);
        }
        // Those that look alike are on one page.
        let is_last = |place: &usize| known.get(*place).is_none_or(|next| next.0 != known[*place - 1].0);
        let end = (self.limit.min(known.len())..=known.len()).find(|place| *place == 0 || is_last(place));
        let end = end.unwrap_or(known.len());
        let next = known.get(end).and_then(|_| known.get(end.checked_sub(1)?)).map(|(place, _)| to_place(place));
        let listed = known[..end].iter().map(|(_, known)| (known.address.clone(), false, known.added_at)).collect();
        Ok(Sources { home: home()?, sources: views(listed)?, problems: index()?.problems()?, next, limit: self.limit })
    }
}

impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "problem: {}: {}", plain(&problem.what), plain(&problem.reason))?;
        }
        if self.sources.is_empty() {
            return writeln!(f, "no repository is known; the first `outlive run` of one registers it");
        }
        let has_reasons = self.sources.iter().any(|source| source.reason.is_some());
        let columns = &["SOURCE", "STATE", "REPOSITORY", "REASON"][..if has_reasons { 4 } else { 3 }];
        let row = |source: &SourceView| {
            let colour = (source.state != "available").then_some(Colour::Bad);
            let cells = [
                Cell::new(source.kind.as_str()),
                Cell::new(source.state).coloured(colour),
                Cell::new(plain(&source.repo)),
                Cell::new(source.reason.as_deref().map(plain).unwrap_or_default()),
            ];
            cells.into_iter().take(columns.len()).collect::<Vec<_>>()
        };
        let table = Table::new(columns, self.sources.iter().map(row));
        writeln!(f, "{}", table.show(Look::of_stdout(), &[], &[]))?;
        let more = |next: &String| writeln!(f, "more: outlive registry list --limit={} --cursor={next}", self.limit);
        self.next.as_ref().map_or(Ok(()), more)
    }
}

/// What a refresh has done.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Done {
    scope: Scope,
    #[serde(flatten)]
    refreshed: Refreshed,
}

impl Operate for Refresh {
    const NAME: &'static str = "registry refresh";
    const EFFECT: Effect = Effect::Write;
    const EXAMPLES: &'static str = "outlive registry refresh\noutlive registry refresh --scope repo";
    type Output = Done;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, context: &Context) -> Result<Done, Error> {
        let (index, here) = (index()?, repository()?);
        let own = SourceAddress::in_directory(&here).unwrap_or_default();
        for address in own.iter().filter(|address| !address.is_registered(index.home())) {
            address.register(index.home(), SystemClock.now()).map_err(unwritten)?;
        }
        let urls: BTreeSet<String> = own.iter().map(|address| address.url.clone()).collect();
        let only = (!self.rebuild && self.scope == Scope::Repo).then_some(&urls);
        let refreshed = index.refresh_while(only, self.rebuild, &|done, total| context.pass(done, total).is_ok())?;
        Ok(Done { scope: self.scope, refreshed })
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refreshed { sources, looked_at, read, added, changed, gone, unreadable, problems, unavailable } =
            self.refreshed;
        let (runs, of) = (counted(looked_at, "run"), counted(sources, "source"));
        writeln!(f, "index valid: {runs} of {of} looked at, {read} read")?;
        let (away, beside) = (counted(unavailable, "source"), counted(problems, "problem"));
        let beside = if problems == 0 { String::new() } else { format!("{beside} beside runs, ") };
        writeln!(f, "  {added} added, {changed} changed, {gone} gone, {unreadable} unreadable, {beside}{away} away")?;
        match unreadable + problems + unavailable {
            0 => writeln!(f, "next: `outlive search WORDS` finds runs"),
            _ => writeln!(f, "next: `outlive registry show` names what cannot be read"),
        }
    }
}

/// How far the index can be believed.
#[derive(Debug, Serialize, JsonSchema)]
pub struct IndexStanding {
    scope: Scope,
    #[serde(flatten)]
    report: IndexReport,
    next_action: &'static str,
}

impl Operate for Show {
    const NAME: &'static str = "registry show";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive registry refresh && outlive registry show --scope repo";
    type Output = IndexStanding;

    fn is_beyond(&self) -> bool {
        true
    }

    async fn operate(self, _: &Context) -> Result<IndexStanding, Error> {
        if self.limit == 0 || self.limit > PAGE_LIMIT {
            return Err(Error::Invalid(format!("a page has 1 to {PAGE_LIMIT} runs, not {}", self.limit)));
        }
        let names = Names { offset: self.offset, limit: self.limit };
        let report = index()?.report_naming(narrowed(self.scope)?.as_deref(), names)?;
        let next_action = match report.freshness {
            Standing::Valid => "outlive search",
            Standing::Degraded if report.unreadable_runs.count == 0 => "outlive registry remove REPOSITORY",
            Standing::Degraded => "outlive registry show --json",
            Standing::Stale | Standing::Absent => "outlive registry refresh",
        };
        Ok(IndexStanding { scope: self.scope, report, next_action })
    }

    fn exit_status(shown: &IndexStanding) -> u8 {
        match shown.report.freshness {
            Standing::Valid => 0,
            Standing::Degraded => status(Code::Unreadable).exit,
            Standing::Stale => status(Code::Stale).exit,
            Standing::Absent => status(Code::NotFound).exit,
        }
    }
}

impl fmt::Display for IndexStanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = &self.report;
        let counts = report.counts.iter().map(|(lifecycle, count)| format!("{count} {lifecycle}"));
        let counts = counts.collect::<Vec<_>>().join(", ");
        writeln!(f, "{:<11}{}", "index", report.freshness)?;
        let counts = if counts.is_empty() { "none".into() } else { format!("{counts}; as indexed") };
        writeln!(f, "{:<11}{counts}", "runs")?;
        writeln!(f, "{:<11}{}: {}", "verified", counted(report.looked_at, "run"), report.verified)?;
        let sorts = [
            ("stale", &report.stale_runs),
            ("new", &report.new_runs),
            ("missing", &report.missing_runs),
            ("unreadable", &report.unreadable_runs),
        ];
        for (word, sort) in sorts.into_iter().filter(|(_, sort)| sort.count > 0) {
            name(f, word, sort)?;
        }
        for problem in &report.problems {
            writeln!(f, "{:<11}{}: {}", "problem", plain(&problem.what), plain(&problem.reason))?;
        }
        for source in &report.sources {
            let reason = source.reason.as_deref().map(|reason| format!(": {}", plain(reason))).unwrap_or_default();
            let forget = (source.state == "unavailable").then(|| format!("; {}", forget(&source.repo)));
            let runs = counted(source.runs, "run");
            let (state, repo, kind) = (source.state, plain(&source.repo), source.kind);
            writeln!(f, "{:<11}{state} {repo} ({kind}, {runs}){reason}{}", "source", forget.unwrap_or_default())?;
            for problem in &source.problems {
                writeln!(f, "{:<11}{}: {}", "", plain(&problem.what), plain(&problem.reason))?;
            }
        }
        writeln!(f, "{:<11}`{}`", "next", self.next_action)
    }
}

fn name(f: &mut fmt::Formatter<'_>, word: &str, sort: &Sort) -> fmt::Result {
    writeln!(f, "{word:<11}{}", sort.count)?;
    for Named { repo, name, reason } in sort.runs.iter().take(NAMED) {
        let reason = reason.as_deref().map(|reason| format!(" ({})", plain(reason))).unwrap_or_default();
        writeln!(f, "{:<11}{}:{}{reason}", "", plain(repo), plain(name))?;
    }
    let (named, shown) = (sort.runs.len(), sort.runs.len().min(NAMED));
    match sort.count - shown {
        0 => Ok(()),
        more if named > shown => writeln!(f, "{:<11}and {more} more; --json names {named} of them", ""),
        more => writeln!(f, "{:<11}and {more} more; --offset and --limit name others", ""),
    }
}
