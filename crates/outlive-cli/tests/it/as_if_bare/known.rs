//! Differences that are there, each with its reason. One that is gone fails the test until its line is, too.

/// By the name of the command; `*` at the end stands for all that begin so.
const KNOWN: &[(&str, &str)] = &[
    ("killed by real-time signal *", "only named signals are raised again; the status is 128 + n instead"),
    ("killed by signal 7", "Rust's own handler of SIGBUS is in the way when it is raised again"),
    ("killed by signal 11", "Rust's own handler of SIGSEGV is in the way when it is raised again"),
    ("killed by signal 13", "Rust ignores SIGPIPE, so raising it again does nothing"),
    (
        "dumps core by signal *",
        "the wrapper lets no core of its own be dumped, and has no other way to say that there is one",
    ),
    ("SIGPIPE ignored", "SIGPIPE is set to its default, though the caller had ignored it"),
    ("the reader leaves a writer that ignores it", "SIGPIPE is set to its default, though the caller had ignored it"),
    (
        "SIGCHLD ignored",
        "the kernel collects the command, and the wrapper waits for it in vain or finds no such process",
    ),
    ("blocked signals", "the command is started with no signal blocked"),
    ("no stdin", "Rust opens /dev/null in place of a closed stream, and the command inherits it"),
    ("no stdout", "Rust opens /dev/null in place of a closed stream, and the command inherits it"),
    ("no stderr", "Rust opens /dev/null in place of a closed stream, and the command inherits it"),
    ("no streams at all", "Rust opens /dev/null in place of a closed stream, and the command inherits it"),
    ("a script without an interpreter's name", "`posix_spawnp` does not give it to a shell, as `execvp` and shells do"),
    ("a variable without a name", "the environment is copied by its names"),
    ("ends as it likes on *", "the status says that a signal came, not what the command made of it"),
    ("hears every other signal", "only six signals are passed on; the others end the wrapper or are lost"),
    ("is ended by ALRM from outside", "it ends the wrapper alone"),
    ("is ended by 40 from outside", "it ends the wrapper alone"),
    ("it stops itself", "the wrapper does not stop with its command"),
    ("it stops on its own terms", "the wrapper stops at once, and the shell goes on before the command has stopped"),
    ("it will not be stopped", "the wrapper stops though its command does not"),
];

/// Differences that depend on who is scheduled first.
const SOMETIMES: &[(&str, &str)] = &[
    ("a signal to the whole group is heard once", "the wrapper is in that group and passes it on"),
    ("stopped and in front again", SLOW_TO_STOP),
    ("stopped, and on in the background", SLOW_TO_STOP),
    ("stopped and killed", SLOW_TO_STOP),
    ("the background may not read", SLOW_TO_STOP),
    ("the background may not write where that is forbidden", SLOW_TO_STOP),
    ("vim steps aside and comes back", SLOW_TO_STOP),
];

const SLOW_TO_STOP: &str =
    "the wrapper stops by itself, not when its command has stopped, which may still take what is typed next";

/// The reason why this command may differ, or not.
pub(super) fn may_differ(name: &str) -> Option<&'static str> {
    SOMETIMES.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
}

/// The reason why this command is known to differ.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    let is_meant = |known: &str| known.strip_suffix('*').map_or(known == name, |beginning| name.starts_with(beginning));
    KNOWN.iter().find(|(known, _)| is_meant(known)).map(|(_, reason)| *reason)
}
