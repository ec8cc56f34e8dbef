//! Differences that are there, each with its reason. One that is gone fails the test until its line is, too.

/// By the name of the command; `*` at the end stands for all that begin so.
const KNOWN: &[(&str, &str)] = &[
    (
        "dumps core by signal *",
        "the wrapper lets no core of its own be dumped, and has no other way to say that there is one",
    ),
    ("a variable without a name", "the environment is copied by its names"),
];

/// Differences that depend on who is scheduled first.
const SOMETIMES: &[(&str, &str)] =
    &[("a signal to the whole group is heard once", "the wrapper is in that group and passes it on")];

/// The reason why this command may differ, or not.
pub(super) fn may_differ(name: &str) -> Option<&'static str> {
    SOMETIMES.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
}

/// The reason why this command is known to differ.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    let is_meant = |known: &str| known.strip_suffix('*').map_or(known == name, |beginning| name.starts_with(beginning));
    KNOWN.iter().find(|(known, _)| is_meant(known)).map(|(_, reason)| *reason)
}
