//! The verbs by what they are for: the list that `outlive --help` begins with.

use clap::Command;

/// The groups of verbs, in the order in which a newcomer meets them. Every verb is in one of them.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Run", &["run", "attach", "adopt", "resume", "rerun"]),
    ("Look", &["ps", "show", "why", "logs", "wait", "result", "diff", "top", "output", "grep", "keys", "facets"]),
    ("Control", &["send", "cancel", "reap", "unpark", "archive", "unarchive", "rm", "sweep"]),
    ("Queue", &["queue", "pause", "unpause", "work", "supervise", "service"]),
    ("Fleet", &["serve", "mcp", "workers", "token", "trust"]),
    ("Repositories", &["registry", "search", "history", "list", "stats", "gc"]),
    ("Inside a run", &["step", "progress", "checkpoint", "artifact", "fence"]),
    ("Administration", &["init", "import", "doctor", "completions", "man"]),
];
/// How many groups are listed verb by verb in the short help, which fits on one screen.
const IN_SHORT: usize = 2;
/// The help of the root: what it is, how it is called, the groups, the options.
const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}{after-help}";

/// Has the help of the root list its verbs by group.
pub fn with_groups(root: Command) -> Command {
    let long: Vec<String> = GROUPS.iter().map(|(group, verbs)| listed(&root, group, verbs)).collect();
    let (first, rest) = GROUPS.split_at(IN_SHORT);
    let first = first.iter().map(|(group, verbs)| listed(&root, group, verbs));
    let rest: String = rest.iter().map(|(group, verbs)| format!("{group}: {}\n", verbs.join(", "))).collect();
    let short: Vec<String> = first.chain([rest]).collect();
    root.help_template(TEMPLATE).before_help(short.join("\n")).before_long_help(long.join("\n"))
}

/// A group with the summary of each of its verbs.
fn listed(root: &Command, group: &str, verbs: &[&str]) -> String {
    let summary = |verb: &str| root.find_subcommand(verb).and_then(Command::get_about).map(ToString::to_string);
    let line = |verb: &&str| Some(format!("  {verb:<12} {}\n", summary(verb)?));
    format!("{group}:\n{}", verbs.iter().filter_map(line).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::GROUPS;

    #[test]
    fn every_verb_is_in_one_group() {
        let tree = crate::cli::command(None);
        let mut verbs: Vec<&str> = tree.get_subcommands().map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, verbs)| verbs.iter().copied()).collect();
        verbs.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(verbs, grouped);
    }

    #[test]
    fn summaries_fit_on_a_line() {
        let tree = crate::cli::command(None);
        for verb in tree.get_subcommands() {
            let summary = verb.get_about().unwrap().to_string();
            assert!(summary.len() <= 75, "`{}`: {} characters", verb.get_name(), summary.len());
        }
    }
}
