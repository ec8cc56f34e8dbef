//! The end of a terminal, and a terminal after the end of a command.

use rustix::process::Signal;

use super::{DIES, RAW, RUNNING, RUNS, SURVIVES, at_prompt};
use crate::as_if_bare::terminal::Session;
use crate::as_if_bare::terminal::Step::{Await, AwaitEnd, AwaitFile, AwaitGone, Go, HangUp, Kill, Type};

pub(super) const SESSIONS: &[Session] = &[
    Session {
        unseen: true,
        ..at_prompt(
            "a hangup ends what is in the background",
            RUNS,
            &[Await("$ "), Type("RUN sh prog &\r"), Await("ready\r\n"), DIES],
        )
    },
    at_prompt("a hangup ends what is in the foreground", RUNS, &[RUNNING, DIES]),
    at_prompt(
        "a hangup is told",
        "trap 'echo hangup > told; exit 0' HUP; echo $$ > pid; echo ready; while :; do sleep 0.02; done",
        &[RUNNING, HangUp, AwaitFile("told"), AwaitGone("pid")],
    ),
    at_prompt("nohup survives a hangup", RUNS, &[Await("$ "), Type("nohup RUN sh prog > out 2>&1 &\r"), SURVIVES]),
    at_prompt(
        "nohup within survives a hangup",
        RUNS,
        &[Await("$ "), Type("RUN nohup sh prog > out 2> err &\r"), SURVIVES],
    ),
    at_prompt(
        "a disowned job survives a hangup",
        RUNS,
        &[
            Await("$ "),
            Type("RUN sh prog < /dev/null > out 2>&1 & disown\r"),
            // Not before the shell has let go of it.
            Await("$ "),
            SURVIVES,
        ],
    ),
    at_prompt(
        "a job in the background survives the shell's exit",
        RUNS,
        &[
            Await("$ "),
            Type("RUN sh prog < /dev/null > out 2>&1 &\r"),
            AwaitFile("pid"),
            AwaitFile("out"),
            Type("exit\r"),
            AwaitEnd,
            Go,
            AwaitGone("pid"),
        ],
    ),
    // What is typed is shown or not, by who is faster; how the terminal is left is what counts.
    Session {
        unseen: true,
        ..at_prompt(
            "killed in raw mode it leaves a sane terminal",
            RAW,
            &[
                RUNNING,
                Kill(Signal::KILL),
                Await("Killed"),
                Await("$ "),
                Type("stty -a > state; echo left-$?\r"),
                Await("left-0"),
                Await("$ "),
            ],
        )
    },
    // What is typed is shown or not, by who is faster; how the terminal is left is what counts.
    Session {
        unseen: true,
        ..at_prompt(
            "terminated in raw mode it leaves a sane terminal",
            RAW,
            &[
                RUNNING,
                Kill(Signal::TERM),
                Await("Terminated"),
                Await("$ "),
                Type("stty -a > state; echo left-$?\r"),
                Await("left-0"),
                Await("$ "),
            ],
        )
    },
    at_prompt(
        "a command in raw mode that kills itself",
        "stty raw -echo; kill -KILL $$",
        &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("Killed"),
            Await("$ "),
            Type("stty -a\r"),
            Await("-extproc"),
            Await("$ "),
        ],
    ),
];
