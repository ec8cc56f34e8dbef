//! Job control: what is interrupted, stopped, in front and in the background.

use super::{COUNTS, IN_FRONT, RUNNING, RUNS, STATUS, STOPPED, at_prompt, script};
use crate::as_if_bare::terminal::Session;
use crate::as_if_bare::terminal::Step::{Await, AwaitAnywhere, AwaitFile, AwaitGone, Go, Type};

pub(super) const SESSIONS: &[Session] = &[
    Session {
        needs: Some("ps"),
        unseen: true,
        ..at_prompt(
            "it has the foreground",
            "{ [ $(ps -o pgid= -p $$) = $(ps -o tpgid= -p $$) ] && echo in front || echo behind; } >> result",
            &[
                Await("$ "),
                Type("RUN sh prog\r"),
                Await("$ "),
                Type("RUN sh prog & wait; echo \"was $?\"\r"),
                Await("was 0"),
            ],
        )
    },
    at_prompt(
        "one interrupt is one interrupt",
        COUNTS,
        &[
            RUNNING,
            Type("\x03"),
            Await("interrupt 1\r\n"),
            Type("\x03"),
            Await("interrupt 2\r\n"),
            Go,
            Await("in all"),
            STATUS,
            Await("2\r\n$ "),
        ],
    ),
    at_prompt("an interrupt ends it", RUNS, &[RUNNING, Type("\x03"), STATUS, Await("130\r\n$ ")]),
    at_prompt(
        "an interrupt ends the loop around it",
        RUNS,
        &[
            Await("$ "),
            Type("for i in 1 2 3; do RUN sh prog; done\r"),
            Await("ready\r\n"),
            Type("\x03"),
            STATUS,
            Await("130\r\n$ "),
        ],
    ),
    at_prompt(
        "an interrupt that is handled does not end the loop",
        "trap 'echo caught; exit 0' INT; echo ready; while :; do sleep 0.02; done",
        &[
            Await("$ "),
            Type("for i in 1 2; do RUN sh prog; done\r"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("caught"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("caught"),
            Await("$ "),
        ],
    ),
    at_prompt(
        "an interrupt ends a pipeline",
        RUNS,
        &[
            Await("$ "),
            // Not `cat` alone: it ends by itself when the first has ended, which may be before its owner passes on the signal.
            Type("RUN sh prog | RUN sh -c 'cat; sleep 300'\r"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("$ "),
            Type("echo ${PIPESTATUS[@]}\r"),
            Await("\n$ "),
        ],
    ),
    Session {
        prog: RUNS,
        steps: &[Await("ready\r\n"), Type("\x03"), Await("the script too"), Await("status 130")],
        ..script("an interrupt of a script in sh", r#"trap 'echo the script too' INT; "$@" sh prog"#)
    },
    at_prompt(
        "quit",
        RUNS,
        &[
            Await("$ "),
            Type("ulimit -c 0; RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1c"),
            Await("Quit"),
            STATUS,
            Await("131\r\n$ "),
        ],
    ),
    at_prompt(
        "stopped and in front again",
        "echo ready; read x; echo \"got $x\"; exit 6",
        &[RUNNING, STOPPED, Type("jobs\r"), Await("Stopped"), Await("$ "), IN_FRONT, STATUS, Await("6\r\n$ ")],
    ),
    at_prompt(
        "stopped, and on in the background",
        RUNS,
        &[
            RUNNING,
            Type("\x1a"),
            Await("Stopped"),
            STATUS,
            Await("148"),
            Await("$ "),
            Type("bg\r"),
            Await("&\r\n$ "),
            Go,
            Await("finished"),
            Type("wait %1; echo $?\r"),
            Await("5\r\n"),
            Await("$ "),
        ],
    ),
    Session {
        unseen: true,
        ..at_prompt(
            "stopped and killed",
            RUNS,
            &[
                RUNNING,
                STOPPED,
                // Where there is a prompt before a job has ended, bash may never tell how it did.
                Type("p=$(jobs -p); kill %1; while kill -0 $p 2>/dev/null; do sleep 0.02; done\r"),
                Await("Terminated"),
                AwaitGone("pid"),
            ],
        )
    },
    at_prompt(
        "it stops itself",
        "echo one; kill -STOP $$; echo two; exit 7",
        &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("two"),
            STATUS,
            Await("7\r\n$ "),
        ],
    ),
    Session {
        needs: Some("python3"),
        ..at_prompt(
            "it stops on its own terms",
            r#"exec python3 -c 'import os, signal, time
def stop(*_): time.sleep(0.3); print("before", flush=True); signal.signal(signal.SIGTSTP, signal.SIG_DFL); os.kill(0, signal.SIGTSTP); print("after", flush=True)
signal.signal(signal.SIGTSTP, stop); print("ready", flush=True); print("got", __import__("sys").stdin.readline())'"#,
            &[RUNNING, STOPPED, Type("fg\r"), Await("after\r\n"), Type("x\r"), Await("got x"), Await("$ ")],
        )
    },
    at_prompt(
        "it will not be stopped",
        "trap '' TSTP; echo ready; read x; echo \"got $x\"",
        &[RUNNING, Type("\x1a"), Await("^Z"), Type("x\r"), Await("got x"), Await("$ ")],
    ),
    at_prompt(
        "the background may not read",
        "read x; echo \"got $x\"; exit 3",
        &[
            Await("$ "),
            Type("RUN sh prog & until [ -n \"$(jobs -s)\" ]; do sleep 0.02; done; jobs\r"),
            Await("Stopped"),
            Await("$ "),
            IN_FRONT,
            STATUS,
            Await("3\r\n$ "),
        ],
    ),
    Session {
        unseen: true,
        ..at_prompt(
            "the background may write",
            "echo out; echo err >&2; exit 3",
            &[
                Await("$ "),
                Type("RUN sh prog & wait $!; echo \"was $?\"\r"),
                Await("was 3\r\n"),
                AwaitAnywhere("out\r\n"),
                AwaitAnywhere("err\r\n"),
            ],
        )
    },
    // A shell that is already waiting says so by itself, one that looks later only where it is asked; some do both.
    Session {
        unseen: true,
        ..at_prompt(
            "the background may not write where that is forbidden",
            "sleep 0.3; echo out; exit 3",
            &[
                Await("$ "),
                Type("stty tostop\r"),
                Await("$ "),
                Type("RUN sh prog & until [ -n \"$(jobs -s)\" ]; do sleep 0.02; done; jobs\r"),
                Await("Stopped"),
                Await("$ "),
                Type("fg; echo $? > status\r"),
                Await("out\r\n"),
                AwaitFile("status"),
            ],
        )
    },
    Session {
        unseen: true,
        ..at_prompt(
            "the background is not interrupted",
            RUNS,
            &[
                Await("$ "),
                Type("RUN sh prog &\r"),
                AwaitAnywhere("ready\r\n"),
                Type("\x03"),
                Await("^C"),
                Await("$ "),
                Go,
                AwaitGone("pid"),
                Type("wait $!; echo \"was $?\"\r"),
                Await("was 5\r\n"),
                AwaitAnywhere("finished\r\n"),
            ],
        )
    },
    at_prompt(
        "a shell below it has its own jobs",
        RUNS,
        &[
            Await("$ "),
            Type("RUN bash --norc --noprofile -i\r"),
            Await("$ "),
            Type("sh prog\r"),
            Await("ready\r\n"),
            STOPPED,
            Type("fg\r"),
            Await("prog\r\n"),
            Go,
            Await("finished"),
            Await("$ "),
            Type("exit 4\r"),
            Await("exit\r\n"),
            STATUS,
            Await("4\r\n$ "),
        ],
    ),
];
