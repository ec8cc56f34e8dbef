//! Completion: what a shell offers for the word under the cursor, looked up when the shell asks for it.
//!
//! The script of `outlive completions` calls the program with [`VARIABLE`] set. Verbs, flags and their values come from
//! the command tree; names and ids of runs, keys and programs come from the registry and `PATH`. Nothing is written,
//! and a registry that cannot be read completes nothing: a prompt is no place for an error.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;

use clap::{Arg, Command};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use outlive::filter::Filter;
use outlive::lifecycle::health::RunStatus;
use outlive::store::Page;

use crate::call::Context;
use crate::operations::completions::VARIABLE;

/// How many of the newest runs are offered.
const RUNS: usize = 200;
/// How many programs of `PATH` are offered.
const PROGRAMS: usize = 2_000;
/// The flags whose value is a key of runs.
const KEYS: [&str; 3] = ["lock", "max_concurrent", "unique"];

/// Answers a shell that asks for completions. Does nothing, and answers false, where none asks.
pub fn answer(words: &[OsString]) -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    let directory = std::env::current_dir().ok();
    let asked = Asked { registry: registry_named(words), has_program: has_program(words) };
    let tree = || completable(super::command(None), &asked);
    let completed = CompleteEnv::with_factory(tree).var(VARIABLE).try_complete(words.to_vec(), directory.as_deref());
    // A shell has no use for a message in the middle of a prompt.
    completed.unwrap_or(true)
}

/// What the words to be completed say of the word under the cursor.
#[derive(Debug, Clone)]
struct Asked {
    /// The registry that they name.
    registry: Option<String>,
    /// The program of the command is among them: what follows is its own.
    has_program: bool,
}

/// Whether a word stands between `--` and the word under the cursor. The first `--` is the shell's.
fn has_program(words: &[OsString]) -> bool {
    let typed = words.iter().skip_while(|word| *word != "--").skip(1);
    typed.skip_while(|word| *word != "--").count() > 2
}

/// The registry that the words to be completed name.
fn registry_named(words: &[OsString]) -> Option<String> {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let joined = words.iter().find_map(|word| word.strip_prefix("--registry="));
    let apart = || words.windows(2).find(|pair| pair[0] == "--registry").map(|pair| pair[1]);
    joined.or_else(apart).map(Into::into)
}

/// The command tree with what completes its arguments.
fn completable(command: Command, asked: &Asked) -> Command {
    let with_arguments = command.mut_args(|arg| match completer(&arg, asked) {
        Some(completer) => arg.add(completer),
        None => arg,
    });
    with_arguments.mut_subcommands(|verb| completable(verb, asked))
}

fn completer(arg: &Arg, asked: &Asked) -> Option<ArgValueCompleter> {
    let registry = asked.registry.clone();
    let is_dependency = arg.get_value_names().is_some_and(|names| names.iter().any(|name| name.starts_with("RUN")));
    match arg.get_id().as_str() {
        "run" | "runs" => Some(ArgValueCompleter::new(move |word: &OsStr| runs(registry.clone(), word))),
        _ if is_dependency => Some(ArgValueCompleter::new(move |word: &OsStr| runs(registry.clone(), word))),
        key if KEYS.contains(&key) => Some(ArgValueCompleter::new(move |word: &OsStr| keys(registry.clone(), word))),
        "argv" if asked.has_program => Some(ArgValueCompleter::new(PathCompleter::any())),
        "argv" => Some(ArgValueCompleter::new(program)),
        _ => None,
    }
}

/// The newest runs of the registry; none where it cannot be read.
fn newest(registry: Option<String>) -> Vec<RunStatus> {
    let context = Context::new(registry);
    let listed = pollster::block_on(async {
        let registry = context.existing().await.ok()??;
        let page = Page { limit: RUNS, ..Page::default() };
        Some(registry.list(&Filter::default(), &page).await.ok()?.0)
    });
    listed.unwrap_or_default()
}

/// Names of runs, and ids once a digit was typed, newest first.
fn runs(registry: Option<String>, word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    let by_id = word.starts_with(|first: char| first.is_ascii_digit());
    let (mut offered, mut known) = (Vec::new(), BTreeSet::new());
    for seen in newest(registry) {
        let name = seen.run.spec.name.as_deref().filter(|_| !by_id).map(ToString::to_string);
        let Some(text) = name.or_else(|| by_id.then(|| seen.run.id.to_string())) else { continue };
        if text.starts_with(word) && known.insert(text.clone()) {
            let help = format!("{}, attempt {}", seen.state, seen.run.attempt);
            offered.push(CompletionCandidate::new(text).help(Some(help.into())).display_order(Some(offered.len())));
        }
    }
    offered
}

/// Keys that the newest runs ask for.
fn keys(registry: Option<String>, word: &OsStr) -> Vec<CompletionCandidate> {
    let Some(word) = word.to_str() else { return Vec::new() };
    let runs = newest(registry);
    let keys: BTreeSet<String> =
        runs.iter().flat_map(|seen| &seen.run.spec.keys).map(|key| key.name.to_string()).collect();
    keys.into_iter().filter(|key| key.starts_with(word)).map(CompletionCandidate::new).collect()
}

/// The program of a command: one of `PATH`, or a file.
fn program(word: &OsStr) -> Vec<CompletionCandidate> {
    let files = PathCompleter::any().complete(word);
    let is_path = word.as_encoded_bytes().contains(&b'/');
    let programs = if is_path { BTreeSet::new() } else { programs(word) };
    programs.into_iter().map(CompletionCandidate::new).chain(files).collect()
}

/// Programs of `PATH` whose name begins so.
fn programs(word: &OsStr) -> BTreeSet<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let entries = std::env::split_paths(&path).filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
    let begins = |name: &OsStr| name.as_encoded_bytes().starts_with(word.as_encoded_bytes());
    let is_program = |entry: &std::fs::DirEntry| {
        std::fs::metadata(entry.path()).is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0)
    };
    let named = entries.filter(|entry| begins(&entry.file_name()));
    named.filter(is_program).map(|entry| entry.file_name()).take(PROGRAMS).collect()
}
