//! What is done at terminals.

use rustix::process::Signal;

use super::terminal::On::{Bash, Sh};
use super::terminal::Session;
use super::terminal::Step::{Await, AwaitAnywhere, AwaitEnd, AwaitFile, AwaitGone, Go, HangUp, Kill, Resize, Type};

const PLAIN: Session = Session { name: "", prog: "", on: Bash, steps: &[], needs: None, unseen: false };

/// Runs `prog`.
const PROG: super::terminal::On = Sh(r#""$@" sh prog"#);

/// Says when it runs, and runs until it is told to go on. It starts nothing: what is stopped while it is being started
/// keeps its parent from being stopped.
const RUNS: &str =
    "echo $$ > pid; exec 3<>go; echo ready; until read x <&3; do :; done; echo finished; : > finished; exit 5";

/// Counts the interrupts until it is told to go on.
const COUNTS: &str = r#"n=0; trap 'n=$((n+1)); echo interrupt $n' INT; exec 3<>go; echo ready
until read x <&3; do :; done; echo "$n in all"; exit $n"#;

/// The streams of the script and of the command, both in their own way.
pub(super) const SESSIONS: &[Session] = &[
    Session {
        name: "which streams are a terminal",
        prog: "r=; for fd in 0 1 2; do if [ -t $fd ]; then r=${r}t; else r=${r}n; fi; done
            if : > /dev/tty; then r=$r-tty; fi; echo $r >> result",
        on: Sh(r#"go() { "$@" sh prog; }
            go "$@"; go "$@" < /dev/null; go "$@" > /dev/null; go "$@" 2> /dev/null; go "$@" < /dev/null > /dev/null
            go "$@" < /dev/null 2> /dev/null; go "$@" > /dev/null 2>&1; go "$@" < /dev/null > /dev/null 2>&1
            echo x | go "$@" | cat; go "$@" > f; go "$@" 2> f; go "$@" <&- ; cat result"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session { name: "the terminal's settings", on: Sh(r#""$@" stty -a"#), steps: &[Await("status 0")], ..PLAIN },
    Session {
        name: "unusual settings",
        on: Sh(r#"stty -echoctl intr ^X eof ^Y ixany -onlcr; "$@" stty -a; stty sane; "$@" stty size"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session { name: "the terminal's name", on: Sh(r#""$@" tty"#), steps: &[Await("status 0")], ..PLAIN },
    Session {
        name: "what is set stays set",
        on: Sh(r#""$@" stty -echo intr ^X; stty -a; stty sane"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "the window is resized",
        prog: "trap 'stty size' WINCH; exec 3<>go; echo ready; until read x <&3; do :; done",
        on: PROG,
        steps: &[
            Await("ready\r\n"),
            Resize(50, 132),
            Await("50 132"),
            Resize(10, 40),
            Await("10 40"),
            Go,
            Await("status 0"),
        ],
        ..PLAIN
    },
    Session {
        name: "the window was resized before",
        on: Sh(r#"stty rows 7 cols 77; "$@" stty size; stty size"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "colours",
        on: Sh(r#"mkdir d; : > x; chmod +x x; TERM=xterm "$@" ls --color=auto; TERM=xterm "$@" ls --color=auto | cat"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "a password",
        on: Sh(r#""$@" bash -c 'read -s -p "password: " x; echo; echo "[$x]"'"#),
        steps: &[Await("password: "), Type("secret\r"), Await("[secret]"), Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "a password of python",
        on: Sh(r#""$@" python3 -c 'import getpass; print(len(getpass.getpass()), "letters")'"#),
        steps: &[Await("Password: "), Type("secret\r"), Await("6 letters"), Await("status 0")],
        needs: Some("python3"),
        ..PLAIN
    },
    Session {
        name: "a question and its answer",
        prog: "printf 'name? '; read x; echo \"hi $x\"; printf 'and? '; read y; echo \"bye $y\"; exit 4",
        on: PROG,
        steps: &[Await("name? "), Type("bob\r"), Await("and? "), Type("x\x7fz\r"), Await("bye z"), Await("status 4")],
        ..PLAIN
    },
    Session {
        name: "the end of input",
        prog: "echo ready; exec cat",
        on: PROG,
        steps: &[Await("ready\r\n"), Type("one\r"), Await("one\r\none"), Type("\x04"), Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "the end of input in the middle of a line",
        prog: "echo ready; exec cat",
        on: PROG,
        steps: &[
            Await("ready\r\n"),
            Type("one\r"),
            Await("one\r\none"),
            Type("two\x04"),
            Await("twotwo"),
            Type("\x04"),
            Await("status 0"),
        ],
        ..PLAIN
    },
    Session {
        name: "what is typed ahead is for the next",
        prog: "exec 3<>go; echo ready; until read x <&3; do :; done",
        on: Sh(r#""$@" sh prog; read x; echo "next: $x""#),
        steps: &[Await("ready\r\n"), Type("hello\r"), Await("hello\r\n"), Go, Await("next: hello"), Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "raw mode",
        prog: "stty raw -echo; printf 'ready\\r\\n'; dd bs=1 count=6 2>/dev/null | od -c; stty sane; echo done",
        on: PROG,
        steps: &[Await("ready\r\n"), Type("\x03\x1aq\x04\r\x1c"), Await("done"), Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "much to read",
        on: Sh(r#""$@" seq 30000; "$@" head -c 20000 /dev/zero | tr '\0' x; "$@" printf '\tt\001\033[1mbold\033[m\n'"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "the terminal behind redirections",
        prog: "echo asked > /dev/tty; read x < /dev/tty; echo \"told $x\"",
        on: Sh(r#""$@" sh prog < /dev/null 2> /dev/null | cat"#),
        steps: &[Await("asked"), Type("this\r"), Await("told this"), Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "from the terminal into a pipe",
        prog: "echo ready; exec sed -u s/a/b/",
        on: Sh(r#""$@" sh prog | cat"#),
        steps: &[Await("ready\r\n"), Type("aaa\r"), Await("baa"), Type("\x04"), Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "from a pipe to the terminal",
        on: Sh(r#"seq 5 | "$@" cat; seq 5 | "$@" cat >&2"#),
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "both streams on the terminal in their order",
        prog: "for i in $(seq 200); do echo out $i; echo err $i >&2; done",
        on: PROG,
        steps: &[Await("status 0")],
        ..PLAIN
    },
    Session {
        name: "it has the foreground",
        prog: "{ [ $(ps -o pgid= -p $$) = $(ps -o tpgid= -p $$) ] && echo in front || echo behind; } >> result",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("$ "),
            Type("RUN sh prog & wait; echo \"was $?\"\r"),
            Await("was 0"),
        ],
        needs: Some("ps"),
        unseen: true,
        ..PLAIN
    },
    Session {
        name: "one interrupt is one interrupt",
        prog: COUNTS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("interrupt 1\r\n"),
            Type("\x03"),
            Await("interrupt 2\r\n"),
            Go,
            Await("in all"),
            Await("$ "),
            Type("echo $?\r"),
            Await("2\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "an interrupt ends it",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("$ "),
            Type("echo $?\r"),
            Await("130\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "an interrupt ends the loop around it",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("for i in 1 2 3; do RUN sh prog; done\r"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("$ "),
            Type("echo $?\r"),
            Await("130\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "an interrupt that is handled does not end the loop",
        prog: "trap 'echo caught; exit 0' INT; exec 3<>go; echo ready; until read x <&3; do :; done",
        steps: &[
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
        ..PLAIN
    },
    Session {
        name: "an interrupt ends a pipeline",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog | RUN cat\r"),
            Await("ready\r\n"),
            Type("\x03"),
            Await("$ "),
            Type("echo ${PIPESTATUS[@]}\r"),
            Await("\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "an interrupt of a script in sh",
        prog: RUNS,
        on: Sh(r#"trap 'echo the script too' INT; "$@" sh prog"#),
        steps: &[Await("ready\r\n"), Type("\x03"), Await("the script too"), Await("status 130")],
        ..PLAIN
    },
    Session {
        name: "quit",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("ulimit -c 0; RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1c"),
            Await("Quit"),
            Await("$ "),
            Type("echo $?\r"),
            Await("131\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "stopped and in front again",
        prog: "echo ready; read x; echo \"got $x\"; exit 6",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1a"),
            Await("Stopped"),
            Await("$ "),
            Type("jobs\r"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("prog\r\n"),
            Type("abc\r"),
            Await("got abc"),
            Await("$ "),
            Type("echo $?\r"),
            Await("6\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "stopped, and on in the background",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1a"),
            Await("Stopped"),
            Await("$ "),
            Type("echo $?\r"),
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
        ..PLAIN
    },
    Session {
        name: "stopped and killed",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1a"),
            Await("Stopped"),
            Await("$ "),
            Type("kill %1\r"),
            AwaitGone("pid"),
            Type("while [ -n \"$(jobs -r)$(jobs -s)\" ]; do sleep 0.02; done\r"),
            Await("Terminated"),
        ],
        unseen: true,
        ..PLAIN
    },
    Session {
        name: "it stops itself",
        prog: "echo one; kill -STOP $$; echo two; exit 7",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("two"),
            Await("$ "),
            Type("echo $?\r"),
            Await("7\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "it stops on its own terms",
        prog: r#"exec python3 -c 'import os, signal, time
def stop(*_): time.sleep(0.3); print("before", flush=True); signal.signal(signal.SIGTSTP, signal.SIG_DFL); os.kill(0, signal.SIGTSTP); print("after", flush=True)
signal.signal(signal.SIGTSTP, stop); print("ready", flush=True); print("got", __import__("sys").stdin.readline())'"#,
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1a"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("after\r\n"),
            Type("x\r"),
            Await("got x"),
            Await("$ "),
        ],
        needs: Some("python3"),
        ..PLAIN
    },
    Session {
        name: "it will not be stopped",
        prog: "trap '' TSTP; echo ready; read x; echo \"got $x\"",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Type("\x1a"),
            Await("^Z"),
            Type("x\r"),
            Await("got x"),
            Await("$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "the background may not read",
        prog: "read x; echo \"got $x\"; exit 3",
        steps: &[
            Await("$ "),
            Type("RUN sh prog & until [ -n \"$(jobs -s)\" ]; do sleep 0.02; done; jobs\r"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("prog\r\n"),
            Type("abc\r"),
            Await("got abc"),
            Await("$ "),
            Type("echo $?\r"),
            Await("3\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "the background may write",
        prog: "echo out; echo err >&2; exit 3",
        steps: &[
            Await("$ "),
            Type("RUN sh prog & wait $!; echo \"was $?\"\r"),
            Await("was 3\r\n"),
            AwaitAnywhere("out\r\n"),
            AwaitAnywhere("err\r\n"),
        ],
        unseen: true,
        ..PLAIN
    },
    Session {
        name: "the background may not write where that is forbidden",
        // A shell that is already waiting says so by itself, one that looks later only where it is asked.
        prog: "sleep 0.3; echo out; exit 3",
        steps: &[
            Await("$ "),
            Type("stty tostop\r"),
            Await("$ "),
            Type("RUN sh prog & until [ -n \"$(jobs -s)\" ]; do sleep 0.02; done; jobs\r"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("out\r\n"),
            Await("$ "),
            Type("echo $?\r"),
            Await("3\r\n$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "the background is not interrupted",
        prog: RUNS,
        steps: &[
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
        unseen: true,
        ..PLAIN
    },
    Session {
        name: "a hangup ends what is in the background",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog &\r"),
            Await("ready\r\n"),
            AwaitFile("pid"),
            HangUp,
            AwaitEnd,
            AwaitGone("pid"),
        ],
        unseen: true,
        ..PLAIN
    },
    Session {
        name: "a hangup ends what is in the foreground",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            AwaitFile("pid"),
            HangUp,
            AwaitEnd,
            AwaitGone("pid"),
        ],
        ..PLAIN
    },
    Session {
        name: "a hangup is told",
        prog: "trap 'echo hangup > told; exit 0' HUP; echo $$ > pid; exec 3<>go; echo ready; until read x <&3; do :; done",
        steps: &[Await("$ "), Type("RUN sh prog\r"), Await("ready\r\n"), HangUp, AwaitFile("told"), AwaitGone("pid")],
        ..PLAIN
    },
    Session {
        name: "nohup survives a hangup",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("nohup RUN sh prog > out 2>&1 &\r"),
            AwaitFile("pid"),
            AwaitFile("out"),
            HangUp,
            AwaitEnd,
            Go,
            AwaitGone("pid"),
        ],
        ..PLAIN
    },
    Session {
        name: "nohup within survives a hangup",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN nohup sh prog > out 2> err &\r"),
            AwaitFile("pid"),
            AwaitFile("out"),
            HangUp,
            AwaitEnd,
            Go,
            AwaitGone("pid"),
        ],
        ..PLAIN
    },
    Session {
        name: "a disowned job survives a hangup",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog < /dev/null > out 2>&1 & disown\r"),
            // Not before the shell has let go of it.
            Await("$ "),
            AwaitFile("pid"),
            AwaitFile("out"),
            HangUp,
            AwaitEnd,
            Go,
            AwaitGone("pid"),
        ],
        ..PLAIN
    },
    Session {
        name: "a job in the background survives the shell's exit",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN sh prog < /dev/null > out 2>&1 &\r"),
            AwaitFile("pid"),
            AwaitFile("out"),
            Type("exit\r"),
            AwaitEnd,
            Go,
            AwaitGone("pid"),
        ],
        ..PLAIN
    },
    Session {
        name: "killed in raw mode it leaves a sane terminal",
        prog: "stty raw -echo; exec 3<>go; printf 'ready\\r\\n'; until read x <&3; do :; done",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Kill(Signal::KILL),
            Await("Killed"),
            Await("$ "),
            Type("stty -a; echo $?\r"),
            Await("-extproc"),
            Await("$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "terminated in raw mode it leaves a sane terminal",
        prog: "stty raw -echo; exec 3<>go; printf 'ready\\r\\n'; until read x <&3; do :; done",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("ready\r\n"),
            Kill(Signal::TERM),
            Await("Terminated"),
            Await("$ "),
            Type("stty -a; echo $?\r"),
            Await("-extproc"),
            Await("$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "a command in raw mode that kills itself",
        prog: "stty raw -echo; kill -KILL $$",
        steps: &[
            Await("$ "),
            Type("RUN sh prog\r"),
            Await("Killed"),
            Await("$ "),
            Type("stty -a\r"),
            Await("-extproc"),
            Await("$ "),
        ],
        ..PLAIN
    },
    Session {
        name: "one after the other takes its line",
        prog: "read x; echo \"<$x>\" >> result",
        on: Sh(r#""$@" sh prog; "$@" sh prog; "$@" sh prog"#),
        steps: &[Type("a\rb\rc\r"), Await("status 0")],
        unseen: true,
        ..PLAIN
    },
    Session {
        name: "a shell below it has its own jobs",
        prog: RUNS,
        steps: &[
            Await("$ "),
            Type("RUN bash --norc --noprofile -i\r"),
            Await("$ "),
            Type("sh prog\r"),
            Await("ready\r\n"),
            Type("\x1a"),
            Await("Stopped"),
            Await("$ "),
            Type("fg\r"),
            Await("prog\r\n"),
            Go,
            Await("finished"),
            Await("$ "),
            Type("exit 4\r"),
            Await("exit\r\n"),
            Await("$ "),
            Type("echo $?\r"),
            Await("4\r\n$ "),
        ],
        ..PLAIN
    },
];
