//! The command line: renders the table of operations as commands, and prints what they answer.

mod completion;
mod left_out;
mod logging;
mod overview;
mod status;
#[cfg(feature = "tui")]
mod top;

use std::ffi::OsString;
use std::io::Write;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use outlive::error::Error;

use crate::call::codes::exit_status_table;
use crate::call::misuse::{Misuse, note_verb};
use crate::call::{Answer, Context, Failure, Form, Operation, fail};
use crate::exec::{adopt, attach, descriptors, hooks, step, take_up};
#[cfg(feature = "mcp")]
use crate::mcp;
use crate::operations::{TABLE, queue};
#[cfg(feature = "server")]
use crate::server;
use crate::ui::{progress, talk};
use crate::workers::{supervise, work};
use crate::{call, exec, logs};

/// Verbs that look at or change many runs: they show a progress bar when that takes long.
const SLOW: [&str; 11] = [
    "archive",
    "cancel",
    "doctor",
    "gc",
    "history export",
    "registry refresh",
    "registry show",
    "resume",
    "rm",
    "sweep",
    "unarchive",
];

/// The nouns that group verbs, with what they are about.
const NOUNS: [(&str, &str); 7] = [
    ("service", "Start a supervisor at boot"),
    ("registry", "Manage the index of all repositories"),
    ("queue", "Add, list and remove queued runs"),
    ("token", "Manage access tokens of `outlive serve`"),
    ("checkpoint", "Inside a run: save and read checkpoints"),
    ("artifact", "Inside a run: record artifacts and manifests"),
    ("fence", "Inside a run: check ownership before an effect"),
];

/// Where the help of a verb has the flags of all verbs: behind its own, before `--help`.
const BEHIND_OTHERS: usize = 900;

/// Does what the command line says.
pub fn main() -> u8 {
    descriptors::keep_standard_ones_taken();
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let report = match exec::role(&words) {
        Some(exec::Role::Done(status)) => return status,
        Some(exec::Role::Detached(own, report)) => {
            words = own;
            Some(report)
        }
        None => None,
    };
    outlive::store::sqlite::install_sigbus_handler();
    if completion::answer(&words) {
        return 0;
    }
    logging::install(0);
    // A reader that has seen enough must not end us before we are done.
    let mask =
        SigSet::from(Signal::SIGPIPE).thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap_or_else(|_| SigSet::empty());
    if let Some((registry, argv)) = exec::plain_call(&words).filter(|_| report.is_none()) {
        return exec::run_plainly(argv, &Context::new(registry), mask);
    }
    if let Some((registry, add)) = queue::plain_call(&words).filter(|_| report.is_none()) {
        return print(call::answer(add, &Context::new(registry), Form::Text), false);
    }
    if words.len() == 1 {
        return status::print(&Context::new(None));
    }
    let verb = verb(&words);
    // What a server refuses is of the calls of its clients.
    verb.iter().filter(|verb| !["mcp", "serve"].contains(&verb.as_str())).for_each(|verb| note_verb(verb));
    if let Some(error) = verb.as_deref().and_then(left_out::refusal) {
        return fail(&error, asks_for_json(&words));
    }
    let matches = match command(verb.as_deref()).try_get_matches_from(&words) {
        Ok(matches) => matches,
        Err(error) => return refuse(&error, &words),
    };
    logging::install(matches.get_count("verbose"));
    let context = Context::new(matches.get_one::<String>("registry").cloned()).with_tree(|| command(None));
    let json = matches.get_flag("json");
    if matches.get_flag("utc") {
        outlive::time::use_utc();
    }
    match matches.subcommand() {
        Some((exec::NAME, matches)) => exec::run(matches, &context, json, mask, report),
        Some((step::NAME, matches)) => step::run(matches, &context, json, mask),
        Some((take_up::NAME, matches)) => take_up::run(matches, &context, mask, report),
        Some((adopt::NAME, matches)) => adopt::run(matches, &context, json, mask, report),
        Some((hooks::NAME, matches)) => hooks::run(matches, &context),
        Some((work::SLOT, matches)) => work::slot(matches, &context, mask, report),
        Some((work::NAME, matches)) => work::run(matches, &context, json, mask),
        Some((supervise::NAME, matches)) => supervise::run(matches, &context, json, mask),
        Some((logs::NAME, matches)) => logs::run(matches, &context, json),
        Some((attach::NAME, matches)) => attach::run(matches, &context, json),
        #[cfg(feature = "tui")]
        Some((top::NAME, matches)) => top::run(matches, &context, json),
        #[cfg(feature = "server")]
        Some((server::NAME, matches)) => server::run(matches, &context, json),
        #[cfg(feature = "mcp")]
        Some((mcp::NAME, matches)) if matches.subcommand().is_none() => mcp::run(matches, &context, json),
        Some((name, matches)) => operate(name, matches, &context, json),
        None => 2,
    }
}

/// Whether a call asks for JSON. What stands behind `--` is a command's own.
fn asks_for_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// Says what is wrong with the words of a call, or what help it asked for.
fn refuse(error: &clap::Error, words: &[OsString]) -> u8 {
    if asks_for_json(words) && error.use_stderr() {
        talk(&format!("{}\n", Failure::of_call(error).body));
    } else {
        let is_help = !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
        match is_help {
            // Help without a reader is no failure.
            true => _ = error.print(),
            false => talk(&Misuse::of(error).text()),
        }
    }
    u8::try_from(error.exit_code()).unwrap_or(2)
}

/// The verb that a call names, behind flags that any verb has, and behind the noun it belongs to where it has one. None
/// where that takes more than a glance.
fn verb(words: &[OsString]) -> Option<String> {
    let mut words = words.iter().skip(1).map(|word| word.to_str());
    loop {
        match words.next()?? {
            "--json" | "--quiet" | "--utc" | "-v" | "-vv" | "--verbose" => {}
            "--registry" => _ = words.next()?,
            flag if flag.starts_with("--registry=") => {}
            noun if NOUNS.iter().any(|(known, _)| *known == noun) => return Some(format!("{noun} {}", words.next()??)),
            "history" if words.clone().next() == Some(Some("export")) => return Some("history export".into()),
            word => return Some(word.into()).filter(|word: &String| !word.starts_with('-')),
        }
    }
}

/// A noun, for its verbs to be added to.
fn noun(noun: &'static str, about: &'static str) -> Command {
    Command::new(noun).about(about).subcommand_required(true).arg_required_else_help(true)
}

/// Whether an operation stands behind a verb that is something by itself.
fn is_of_verb(operation: &Operation) -> bool {
    operation.name.split_once(' ').is_some_and(|(of, _)| ["history", "mcp"].contains(&of))
}

/// A verb with the operations that stand behind it.
fn with_own(verb: Command) -> Command {
    let name = verb.get_name().to_owned();
    let own = TABLE.iter().filter(|operation| operation.name.split_once(' ').is_some_and(|(of, _)| of == name));
    verb.subcommands(own.map(|operation| (operation.command)()))
}

/// A verb with the words that people of other tools type for it.
fn aliased(command: Command) -> Command {
    match command.get_name() {
        "ps" => command.visible_alias("status"),
        "cancel" => command.visible_alias("stop"),
        _ => command,
    }
}

/// A flag of every verb.
fn everywhere(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).global(true).action(ArgAction::SetTrue).help(help).display_order(BEHIND_OTHERS)
}

/// The command tree. A verb that is called is built alone, without the help of the others.
pub fn command(verb: Option<&str>) -> Command {
    // A worker may claim from several.
    let several = if [Some(work::NAME), Some(work::SLOT)].contains(&verb) { ArgAction::Append } else { ArgAction::Set };
    let root = Command::new("outlive")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .arg(Arg::new("registry").long("registry").global(true).action(several).value_name("URL")
            .help("The registry (default: the nearest .outlive, else the user's)")
            .long_help(
                "The registry: sqlite:PATH, postgres://..., s3://BUCKET/PREFIX or http://SERVER (default: the nearest .outlive, else \
                     the user's)",
            )
            .display_order(BEHIND_OTHERS))
        .arg(everywhere("json", "Print JSON"))
        .arg(everywhere("utc", "Read and show times in UTC; JSON always has UTC"))
        .arg(everywhere("quiet", "Show no progress bars").hide_short_help(true))
        .arg(
            everywhere("verbose", "Log to stderr what the library does; -vv logs more. OUTLIVE_LOG says it more finely")
                .short('v')
                // One line of every help for what `OUTLIVE_LOG` says is one too many.
                .hide(true)
                .action(ArgAction::Count),
        );
    match verb {
        Some(exec::NAME) => return root.subcommand(exec::command()),
        Some(adopt::NAME) => return root.subcommand(adopt::command()),
        Some(step::NAME) => return root.subcommand(step::command()),
        Some(take_up::NAME) => return root.subcommand(take_up::command()),
        Some(work::SLOT) => return root.subcommand(work::slot_command()),
        Some(hooks::NAME) => return root.subcommand(hooks::command()),
        Some(work::NAME) => return root.subcommand(work::command()),
        _ => {}
    }
    let noun_of = |operation: &Operation| {
        NOUNS.iter().find(|(noun, _)| operation.name.split_once(' ').is_some_and(|(of, _)| of == *noun))
    };
    let is_alone = |operation: &&Operation| verb == Some(operation.name) && !is_of_verb(operation);
    if let Some(operation) = TABLE.iter().find(is_alone) {
        let of = noun_of(operation);
        let alone = (operation.command)();
        return root.subcommand(match of {
            Some((of, about)) => noun(of, about).subcommand(alone),
            None => with_own(alone),
        });
    }
    // `run` and `adopt` are executed by `exec` on the command line.
    let is_executed = |name: &str| [exec::NAME, adopt::NAME].contains(&name);
    let alone = TABLE.iter().filter(|operation| !operation.name.contains(' ') && !is_executed(operation.name));
    let alone = alone.map(|operation| aliased(with_own((operation.command)())));
    let interactive = [
        exec::command(),
        step::command(),
        adopt::command(),
        logs::command(),
        attach::command(),
        work::command(),
        supervise::command(),
        #[cfg(feature = "tui")]
        top::command(),
        #[cfg(feature = "server")]
        server::command(),
        #[cfg(feature = "mcp")]
        with_own(mcp::command()),
    ];
    let grouped = NOUNS.iter().filter_map(|(name, about)| {
        let verbs = TABLE.iter().filter(|operation| operation.name.split_once(' ').is_some_and(|(of, _)| of == *name));
        let verbs: Vec<Command> = verbs.map(|operation| (operation.command)()).collect();
        (!verbs.is_empty()).then(|| noun(name, about).subcommands(verbs))
    });
    let root = root
        .about("Track long-running commands: detect when one dies, and resume it from its last checkpoint")
        .after_help("`outlive --help` describes every verb and the exit statuses, `outlive VERB --help` one verb.")
        .after_long_help(exit_status_table())
        .subcommands(interactive)
        .subcommands(alone)
        .subcommands(grouped);
    overview::with_groups(root)
}

fn operate(name: &str, matches: &ArgMatches, context: &Context, json: bool) -> u8 {
    let (name, matches) = match matches.subcommand() {
        Some((verb, matches)) => (format!("{name} {verb}"), matches),
        None => (name.to_owned(), matches),
    };
    let operation = TABLE.iter().find(|operation| operation.name == name);
    let form = if json { Form::Json } else { Form::Text };
    let call = |operation: &Operation| (operation.call)(matches, context, form);
    let answer = operation.map(|operation| {
        if matches.get_flag("quiet") || !takes_long(&name, matches) {
            return call(operation);
        }
        let progress = context.progress().clone();
        progress::during(&name, move || progress.far(), || call(operation))
    });
    answer.map_or(2, |answer| print(answer, json))
}

fn print(answer: Result<Answer, Error>, json: bool) -> u8 {
    match answer {
        Ok(answer) => say(&answer),
        Err(error) => fail(&error, json),
    }
}

/// Whether a call may take long enough for a progress bar. One that waits says itself what it waits for.
fn takes_long(name: &str, matches: &ArgMatches) -> bool {
    let waits = matches!(matches.try_get_one::<bool>("wait"), Ok(Some(true)));
    let is_file = || matches!(matches.try_contains_id("file"), Ok(true));
    !waits && (SLOW.contains(&name) || name == "queue add" && is_file())
}

fn say(answer: &Answer) -> u8 {
    let mut output = std::io::stdout();
    match output.write_all(answer.text.as_bytes()).and_then(|()| output.flush()) {
        Ok(()) => answer.exit_status,
        // A reader that has seen enough has closed the pipe; that is no failure of ours.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => answer.exit_status,
        Err(error) => {
            talk(&format!("error: the answer could not be written: {error}\n"));
            answer.exit_status.max(1)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_is_found_behind_the_flags_of_all_verbs() {
        let found = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            verb(&words)
        };
        for line in
            ["outlive run -- true", "outlive --json -v --registry ps run x", "outlive --registry=ps -vv run --json"]
        {
            assert_eq!(found(line).as_deref(), Some("run"), "{line}");
        }
        assert_eq!(found("outlive --json queue add -- true").as_deref(), Some("queue add"));
        for line in
            ["outlive", "outlive queue", "outlive --help", "outlive -h run", "outlive --registry", "outlive -- run"]
        {
            assert_eq!(found(line), None, "{line}");
        }
    }

    #[test]
    fn a_verb_that_is_built_alone_is_the_one_of_the_whole_tree() {
        let mut whole = command(None);
        whole.build();
        let names = TABLE.iter().map(|operation| operation.name);
        for name in names.chain([exec::NAME, work::NAME]) {
            let mut alone = command(Some(name));
            alone.build();
            let help = |tree: &mut Command| {
                let named = name.split(' ').try_fold(tree, |tree, word| tree.find_subcommand_mut(word));
                named.map(|named| named.render_long_help().to_string())
            };
            let (alone, whole) = (help(&mut alone), help(&mut whole));
            assert!(alone.is_some() && alone == whole, "`{name}` differs");
        }
    }
}
