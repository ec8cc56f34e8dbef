//! What a terminal is to a command: its settings, what is shown on it and typed at it.

use super::{of_prog, script};
use crate::as_if_bare::terminal::Session;
use crate::as_if_bare::terminal::Step::{Await, Go, Resize, Type};

pub(super) const SESSIONS: &[Session] = &[
    Session {
        prog: "r=; for fd in 0 1 2; do if [ -t $fd ]; then r=${r}t; else r=${r}n; fi; done
            if : > /dev/tty; then r=$r-tty; fi; echo $r >> result",
        ..script(
            "which streams are a terminal",
            r#"go() { "$@" sh prog; }
            go "$@"; go "$@" < /dev/null; go "$@" > /dev/null; go "$@" 2> /dev/null; go "$@" < /dev/null > /dev/null
            go "$@" < /dev/null 2> /dev/null; go "$@" > /dev/null 2>&1; go "$@" < /dev/null > /dev/null 2>&1
            echo x | go "$@" | cat; go "$@" > f; go "$@" 2> f; go "$@" <&- ; cat result"#,
        )
    },
    script("the terminal's settings", r#""$@" stty -a"#),
    script("unusual settings", r#"stty -echoctl intr ^X eof ^Y ixany -onlcr; "$@" stty -a; stty sane; "$@" stty size"#),
    script("the terminal's name", r#""$@" tty"#),
    script("what is set stays set", r#""$@" stty -echo intr ^X; stty -a; stty sane"#),
    of_prog(
        "the window is resized",
        "trap 'stty size' WINCH; exec 3<>go; echo ready; (read x <&3; : > went) & until [ -e went ]; do sleep 0.02; done",
        &[Await("ready\r\n"), Resize(50, 132), Await("50 132"), Resize(10, 40), Await("10 40"), Go, Await("status 0")],
    ),
    script("the window was resized before", r#"stty rows 7 cols 77; "$@" stty size; stty size"#),
    script(
        "colours",
        r#"mkdir d; : > x; chmod +x x; TERM=xterm "$@" ls --color=auto; TERM=xterm "$@" ls --color=auto | cat"#,
    ),
    Session {
        steps: &[Await("password: "), Type("secret\r"), Await("[secret]"), Await("status 0")],
        ..script("a password", r#""$@" bash -c 'read -s -p "password: " x; echo; echo "[$x]"'"#)
    },
    Session {
        needs: Some("python3"),
        steps: &[Await("Password: "), Type("secret\r"), Await("6 letters"), Await("status 0")],
        ..script(
            "a password of python",
            r#""$@" python3 -c 'import getpass; print(len(getpass.getpass()), "letters")'"#,
        )
    },
    of_prog(
        "a question and its answer",
        "printf 'name? '; read x; echo \"hi $x\"; printf 'and? '; read y; echo \"bye $y\"; exit 4",
        &[Await("name? "), Type("bob\r"), Await("and? "), Type("x\x7fz\r"), Await("bye z"), Await("status 4")],
    ),
    of_prog(
        "the end of input",
        "echo ready; exec cat",
        &[Await("ready\r\n"), Type("one\r"), Await("one\r\none"), Type("\x04"), Await("status 0")],
    ),
    of_prog(
        "the end of input in the middle of a line",
        "echo ready; exec cat",
        &[
            Await("ready\r\n"),
            Type("one\r"),
            Await("one\r\none"),
            Type("two\x04"),
            Await("twotwo"),
            Type("\x04"),
            Await("status 0"),
        ],
    ),
    Session {
        prog: "exec 3<>go; echo ready; until read x <&3; do :; done",
        steps: &[Await("ready\r\n"), Type("hello\r"), Await("hello\r\n"), Go, Await("next: hello"), Await("status 0")],
        ..script("what is typed ahead is for the next", r#""$@" sh prog; read x; echo "next: $x""#)
    },
    of_prog(
        "raw mode",
        "stty raw -echo; printf 'ready\\r\\n'; dd bs=1 count=6 2>/dev/null | od -c; stty sane; echo done",
        &[Await("ready\r\n"), Type("\x03\x1aq\x04\r\x1c"), Await("done"), Await("status 0")],
    ),
    script(
        "much to read",
        r#""$@" seq 30000; "$@" head -c 20000 /dev/zero | tr '\0' x; "$@" printf '\tt\001\033[1mbold\033[m\n'"#,
    ),
    Session {
        prog: "echo asked > /dev/tty; read x < /dev/tty; echo \"told $x\"",
        steps: &[Await("asked"), Type("this\r"), Await("told this"), Await("status 0")],
        ..script("the terminal behind redirections", r#""$@" sh prog < /dev/null 2> /dev/null | cat"#)
    },
    Session {
        prog: "echo ready; exec sed -u s/a/b/",
        steps: &[Await("ready\r\n"), Type("aaa\r"), Await("baa"), Type("\x04"), Await("status 0")],
        ..script("from the terminal into a pipe", r#""$@" sh prog | cat"#)
    },
    script("from a pipe to the terminal", r#"seq 5 | "$@" cat; seq 5 | "$@" cat >&2"#),
    of_prog(
        "both streams on the terminal in their order",
        "for i in $(seq 200); do echo out $i; echo err $i >&2; done",
        &[Await("status 0")],
    ),
    Session {
        unseen: true,
        prog: "read x; echo \"<$x>\" >> result",
        steps: &[Type("a\rb\rc\r"), Await("status 0")],
        ..script("one after the other takes its line", r#""$@" sh prog; "$@" sh prog; "$@" sh prog"#)
    },
];
