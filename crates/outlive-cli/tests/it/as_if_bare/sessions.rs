//! What is done at terminals.

mod ends;
mod jobs;
mod streams;

use super::terminal::On::{self, Bash, Sh};
use super::terminal::Session;
use super::terminal::Step::{self, Await, AwaitEnd, AwaitFile, AwaitGone, Each, Go, HangUp, Type};

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Session> {
    [streams::SESSIONS, jobs::SESSIONS, ends::SESSIONS].into_iter().flatten()
}

/// Runs `prog`.
const PROG: On = Sh(r#""$@" sh prog"#);

/// Says when it runs, and runs until it is told to go on. It starts nothing: what is stopped while it is being started
/// keeps its parent from being stopped.
const RUNS: &str =
    "echo $$ > pid; exec 3<>go; echo ready; until read x <&3; do :; done; echo finished; : > finished; exit 5";

/// Counts the interrupts until it is told to go on. A shell that reads itself may miss a signal right before it does.
const COUNTS: &str = r#"n=0; trap 'n=$((n+1)); echo interrupt $n' INT; exec 3<>go; echo ready
(read x <&3; : > went) & until [ -e went ]; do sleep 0.02; done; echo "$n in all"; exit $n"#;

/// Is in raw mode until it is told to go on.
const RAW: &str = "stty raw -echo; exec 3<>go; printf 'ready\\r\\n'; until read x <&3; do :; done";

/// `prog` is started at a prompt, and runs.
const RUNNING: Step = Each(&[Await("$ "), Type("RUN sh prog\r"), Await("ready\r\n")]);
/// The shell is asked how it ended.
const STATUS: Step = Each(&[Await("$ "), Type("echo $?\r")]);
/// A key stops it.
const STOPPED: Step = Each(&[Type("\x1a"), Await("Stopped"), Await("$ ")]);
/// It is brought to the front, and reads.
const IN_FRONT: Step = Each(&[Type("fg\r"), Await("prog\r\n"), Type("abc\r"), Await("got abc")]);
/// It goes with the terminal.
const DIES: Step = Each(&[AwaitFile("pid"), HangUp, AwaitEnd, AwaitGone("pid")]);
/// It runs, outlives the terminal, and goes on.
const SURVIVES: Step = Each(&[AwaitFile("pid"), AwaitFile("out"), HangUp, AwaitEnd, Go, AwaitGone("pid")]);

/// Something typed at a prompt.
const fn at_prompt(name: &'static str, prog: &'static str, steps: &'static [Step]) -> Session {
    Session { name, prog, on: Bash, steps, needs: None, unseen: false }
}

/// Something done with `prog` alone.
const fn of_prog(name: &'static str, prog: &'static str, steps: &'static [Step]) -> Session {
    Session { on: PROG, ..at_prompt(name, prog, steps) }
}

/// A script that succeeds. The streams of the script and of the command are both in their own way.
const fn script(name: &'static str, script: &'static str) -> Session {
    Session { on: Sh(script), ..at_prompt(name, "", &[Await("status 0")]) }
}
