//! The commands without a terminal.

use super::piped::Stdin::{Noise, Socket};
use super::piped::Streams::{Files, OnePipe, Sockets};
use super::piped::{Case, NOISY};

/// The signals that dump core where a core may be dumped.
const DUMPING: [i32; 10] = [3, 4, 5, 6, 7, 8, 11, 24, 25, 31];

/// The signals that stop a process: a shell with job control tells more of them, with a terminal.
const STOPPING: [i32; 4] = [19, 20, 21, 22];

/// Signals that the C library keeps for itself: nobody sends them, and those it starts have them ignored by its whim.
const OF_THE_C_LIBRARY: [i32; 2] = [32, 33];

/// How a command may end.
pub(super) fn ends() -> Vec<Case> {
    let mut cases = Vec::new();
    for (from, to) in [(0, 63), (64, 127), (128, 191), (192, 255)] {
        cases.push(Case::made(
            format!("exit codes {from} to {to}"),
            format!(r#"for n in $(seq {from} {to}); do "$@" sh -c "exit $n"; echo $n $?; done"#),
        ));
    }
    for signal in (1..=64).filter(|signal| !STOPPING.contains(signal) && !OF_THE_C_LIBRARY.contains(signal)) {
        let script = format!(r#"ulimit -c 0; exec "$@" sh -c 'kill -{signal} $$; echo survived'"#);
        let kind = if signal < 32 { "signal" } else { "real-time signal" };
        cases.push(Case::made(format!("killed by {kind} {signal}"), script));
    }
    for signal in DUMPING {
        let script = format!(r#"ulimit -c unlimited; exec "$@" sh -c 'kill -{signal} $$'"#);
        cases.push(Case::made(format!("dumps core by signal {signal}"), script));
    }
    cases
}

/// What a command is given, and what it writes.
pub(super) fn stage_and_streams() -> Vec<Case> {
    [STAGE, STREAMS].concat()
}

/// What others do to a command.
pub(super) fn signals() -> Vec<Case> {
    let mut cases = SIGNALS.to_vec();
    cases.push(hears("what asks it to stop", "1 2 3 10 12 15"));
    let others = [4, 5, 6, 7, 8, 11, 13, 14, 16, 17, 18].into_iter().chain(20..=31).chain(34..=64);
    cases.push(hears("every other signal", &others.map(|signal| format!("{signal} ")).collect::<String>()));
    cases.extend(["HUP", "INT", "TERM"].map(ends_as_it_likes));
    cases.extend(["HUP", "INT", "TERM", "USR1", "ALRM", "40"].map(is_ended_by));
    cases
}

/// What a process is given at its start.
const STAGE: &[Case] = &[
    Case::new("exits well", r#"exec "$@" true"#),
    Case::new("exits badly", r#"exec "$@" sh -c 'exit 255'"#),
    Case::new("status of a pipeline", r#"exec bash -c '"$@" false | "$@" sh -c "cat; exit 3" | "$@" true; echo ${PIPESTATUS[@]}' bash "$@""#)
        .needs("bash"),
    Case::new("and, or, not", r#""$@" true && echo a; "$@" false || echo b; ! "$@" false; echo $?; set -e; "$@" false; echo no"#),
    Case::new("the environment", r#"export A='two
lines' B= C="$(printf '\377\376')"; "$@" env -0 | sort -z | tr '\0' '\n' | grep -av ^OUTLIVE_"#),
    Case::new("hardly an environment", r#"env -i OUTLIVE_HOME="$OUTLIVE_HOME" AS_IF_BARE="$AS_IF_BARE" "$@" /usr/bin/env | grep -v ^OUTLIVE_"#),
    Case::new("a variable without a name", r#"exec env -- '=x' "$@" env -0 | tr '\0' '\n' | grep -a ^="#),
    Case::new("umask", r#"umask 027; exec "$@" sh -c 'umask; : > made; mkdir dir'"#),
    Case::new("directory", r#"mkdir -p a/b; cd a/b; exec "$@" pwd"#),
    Case::new("directory by a link", r#"mkdir a; ln -s a b; cd b; exec "$@" sh -c 'echo "$PWD"; pwd; pwd -P'"#),
    Case::new("a directory that is gone", r#"mkdir gone; cd gone; rmdir ../gone; exec "$@" sh -c 'echo still here; ls'"#),
    Case::new("a directory without permission", r#"mkdir shut; cd shut; chmod 0 .; exec "$@" sh -c 'echo here; cd ..; chmod 700 shut'"#),
    Case::new("signals as they are", r#"exec "$@" grep -E '^(Sig(Blk|Ign|Cgt|Pnd)|ShdPnd)' /proc/self/status"#).settled_by(masks),
    Case::new("ignored signals", r#"exec env --ignore-signal=HUP,INT,USR1,TSTP,WINCH "$@" grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"#).settled_by(masks),
    Case::new("SIGCHLD ignored", r#"exec env --ignore-signal=CHLD "$@" sh -c 'echo ran; exit 3'"#),
    Case::new("SIGPIPE ignored", r#"trap '' PIPE; exec "$@" grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"#).settled_by(masks),
    Case::new("blocked signals", r#"exec env --block-signal=USR1,TERM,CHLD,PIPE "$@" grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"#).settled_by(masks),
    Case::new("nohup", r#"nohup "$@" grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status"#).settled_by(masks),
    Case::new("limits", r#"ulimit -n 200; ulimit -s 4096; ulimit -c 0; ulimit -t 1000; exec "$@" cat /proc/self/limits"#),
    Case::new("soft and hard limits", r#"ulimit -Sn 100; ulimit -Hn 150; ulimit -Sc 0; exec "$@" cat /proc/self/limits"#),
    Case::new("nice", r#"exec nice -n 7 "$@" nice"#),
    Case::new("scheduling", r#"exec chrt -b 0 taskset 1 "$@" sh -c 'chrt -p $$; taskset -p $$' | sed 's/pid [0-9]*//'"#).needs("taskset"),
    Case::new("oom_score_adj", r#"echo 300 > /proc/self/oom_score_adj; exec "$@" cat /proc/self/oom_score_adj"#),
    Case::new("credentials", r#"exec "$@" grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Cpus_allowed|Mems_allowed|Umask)' /proc/self/status"#),
    Case::new("no new privileges", r#"exec setpriv --no-new-privs "$@" grep NoNewPrivs /proc/self/status"#).needs("setpriv"),
    Case::new("timer slack and core filter", r#"echo 0x7 > /proc/self/coredump_filter; exec "$@" sh -c 'cat /proc/$$/timerslack_ns /proc/self/coredump_filter'"#),
    Case::new("personality", r#"exec setarch -R "$@" cat /proc/self/personality"#).needs("setarch"),
    Case::new("cgroup and namespaces", r#"exec "$@" sh -c 'cat /proc/self/cgroup; readlink /proc/self/ns/*'"#),
    Case::new("descriptors", DESCRIPTORS).settled_by(without_the_lock),
    Case::new("descriptors to files", DESCRIPTORS).writes(Files).settled_by(without_the_lock),
    Case::new("descriptors to sockets", DESCRIPTORS).reads(Socket(0)).writes(Sockets).settled_by(without_the_lock),
    Case::new("descriptors to one pipe", r#"exec "$@" sh -c '[ /proc/self/fd/1 -ef /proc/self/fd/2 ] && echo one'"#).writes(OnePipe),
    Case::new("kinds of streams", r#"exec "$@" sh -c 'for fd in 0 1 2; do for kind in b c f p S; do [ -$kind /dev/fd/$fd ] && echo $fd $kind; done; done'"#),
    Case::new("passed descriptors", r#"echo four > four; exec 3>three 4<four 9>>nine; exec "$@" sh -c 'echo x >&3; cat <&4; echo y >&9'"#),
    Case::new("the command opens every small descriptor", r#"exec "$@" sh -c 'exec 3>3 4>4 5>5 6>6 7>7 8>8 9>9; for n in 3 4 5 6 7 8 9; do eval "echo $n >&$n"; done; cat 3 4 5 6 7 8 9'"#),
    Case::new("a command that closes every descriptor", r#"exec "$@" bash -c 'for fd in $(seq 3 254); do eval "exec $fd>&-"; done; echo done; exit 4'"#).needs("bash"),
    Case::new("arguments of every byte", r#"exec "$@" sh -c 'for a; do printf "<%s>\n" "$a"; done' sh "$(for i in $(seq 255); do printf "\\$(printf %o $i)"; done)" '' ' ' '*' -- - --help -x '$HOME' '`id`' 'a\b'"#),
    Case::new("many arguments", r#"exec "$@" sh -c 'echo $#; echo "$*" | cksum' sh $(seq 20000)"#),
    Case::new("a long argument", r#"exec "$@" sh -c 'echo ${#1}' sh "$(head -c 120000 /dev/zero | tr '\0' a)""#),
    Case::new("argv and the name it is called by", r#"exec "$@" sh -c 'tr "\0" "\n" < /proc/$$/cmdline; cat /proc/$$/comm'"#),
    Case::new("a relative program", r#"printf '#!/bin/sh\necho "$0" "$@"\n' > prog; chmod +x prog; exec "$@" ./prog a b"#),
    Case::new("a program found by its name", r#"mkdir bin; printf '#!/bin/sh\necho "$0" "$@"\n' > bin/prog; chmod +x bin/prog; PATH=$PWD/bin:$PATH; exec "$@" prog a"#),
    Case::new("a script without an interpreter's name", r#"echo 'echo "ran as $0"' > prog; chmod +x prog; exec "$@" ./prog"#),
    Case::new("no such program", r#"exec "$@" /nonexistent/program"#).settled_by(nothing),
    Case::new("no such program in the path", r#"exec "$@" no-such-program-at-all"#).settled_by(nothing),
    Case::new("no such interpreter", r#"printf '#!/nonexistent/sh\n' > prog; chmod +x prog; "$@" ./prog; echo $?"#).settled_by(nothing),
    Case::new("not executable", r#"echo > prog; exec "$@" ./prog"#).settled_by(nothing),
    Case::new("a directory as program", r#"mkdir prog; exec "$@" ./prog"#).settled_by(nothing),
    Case::new("arguments that are too long", r#"head -c 200000 /dev/zero | tr '\0' a > long; exec bash -c '"$@" /bin/true "$(cat long)"; echo $?' bash "$@""#)
        .settled_by(nothing),
    Case::new("a program that is being written", r#"cp /bin/true prog; exec 3>>prog; "$@" ./prog; echo $?"#).settled_by(last_line),
    Case::new("setsid in the command", r#"exec "$@" setsid -w sh -c 'echo in; exit 6'"#),
    Case::new("the group and the session of its caller", r#"P=$(ps -o pgid=,sid= -p $$); export P; "$@" sh -c '[ "$(ps -o pgid=,sid= -p $$)" = "$P" ] && echo same'"#)
        .needs("ps"),
    Case::new("a user's own run id stays out of it", r#"unset OUTLIVE_RUN_ID; exec "$@" sh -c 'echo "${AS_IF_BARE##*/}"'"#),
    Case::new("under timeout", r#"timeout 30 "$@" sh -c 'exit 9'; echo $?; timeout -s USR1 0.3 "$@" sleep 20; echo $?"#),
    Case::new("under env, nice and xargs", r#"seq 5 | xargs -n 1 env X=1 nice "$@" echo"#).needs("xargs"),
    Case::new("time is counted to the caller", r#"exec bash -c 'TIMEFORMAT=%U; time "$@" sh -c "i=0; while [ \$i -lt 60000 ]; do i=\$((i+1)); done"' bash "$@" 2>&1 | sed 's/^0\.0*$/none/; s/^[0-9.]*$/some/'"#)
        .needs("bash"),
];

const DESCRIPTORS: &str = r#"exec "$@" sh -c 'ls -l /proc/$$/fd; :'"#;

/// What goes in and out.
const STREAMS: &[Case] = &[
    Case::new("64 MB of noise by pipes", r#"exec "$@" cat"#).reads(Noise(NOISY)),
    Case::new("16 MB of noise to stderr", r#"exec "$@" sh -c 'cat >&2'"#).reads(Noise(16)),
    Case::new("16 MB of noise to a file", r#"exec "$@" cat"#).reads(Noise(16)).writes(Files),
    Case::new("noise by sockets", r#"exec "$@" cat"#).reads(Socket(16)).writes(Sockets),
    Case::new("64 MB and a checksum", r#""$@" head -c 67108864 /dev/zero | "$@" sha256sum"#),
    Case::new("a huge stdin that is not read", r#"exec "$@" echo done"#).reads(Noise(NOISY)),
    Case::new("a huge stdin that is read in part", r#"exec "$@" sh -c 'head -c 100000 | cksum; exit 2'"#).reads(Noise(8)),
    Case::new("the rest of stdin is for the next", r#"printf '1\n2\n3\n' | ( "$@" sh -c 'read x; echo got $x'; cat )"#),
    Case::new("a loop that reads", r#"printf 'a\nb\nc\n' | while read x; do "$@" true; echo $x; done"#),
    Case::new("the rest of a file is for the next", r#"seq 1000 > f; exec < f; "$@" sh -c 'read a; read b; echo $b'; cat | cksum"#),
    Case::new("reads to the end", r#"printf 'a\nb' | "$@" cat; "$@" cat < /dev/null; printf '' | "$@" wc -c"#),
    Case::new("interleaved in one pipe", r#"exec "$@" sh -c 'for i in $(seq 500); do echo out $i; echo err $i >&2; done'"#).writes(OnePipe),
    Case::new("interleaved in one file", r#""$@" sh -c 'for i in $(seq 200); do echo out $i; echo err $i >&2; done' > both 2>&1"#),
    Case::new("both, apart", r#"exec "$@" sh -c 'for i in $(seq 500); do echo out $i; echo err $i >&2; done'"#),
    Case::new("both, to files", r#"exec "$@" sh -c 'for i in $(seq 500); do echo out $i; echo err $i >&2; done'"#).writes(Files),
    Case::new("crossed streams", r#"exec 3>&1; exec "$@" sh -c 'echo out; echo err >&2' 1>&2 2>&3"#),
    Case::new("appended", r#"echo first > f; "$@" sh -c 'echo second; echo third >&2' >> f 2>&1; echo fourth >> f"#),
    Case::new("read and written in place", r#"echo 123456 > f; "$@" sh -c 'printf X; read a; echo "$a" >&2' <> f 1<> f"#),
    Case::new("no newline at the end", r#"exec "$@" printf 'a\nb'"#),
    Case::new("bytes that are no text", r#"exec "$@" printf '\000\377\r\n\033[31m\200'"#),
    Case::new("no stdin", r#"exec "$@" cat <&-"#),
    Case::new("no stdout", r#"exec "$@" sh -c 'echo x; echo $? >&2' >&-"#),
    Case::new("no stderr", r#"exec "$@" sh -c 'echo x >&2; echo $?' 2>&-"#),
    Case::new("no streams at all", r#""$@" sh -c '[ -e /proc/$$/fd/0 ] && : > has0; [ -e /proc/$$/fd/1 ] && : > has1; [ -e /proc/$$/fd/2 ] && : > has2; : > ran' <&- >&- 2>&-"#),
    Case::new("a full device", r#"exec "$@" echo x > /dev/full"#),
    Case::new("stdin that can only be written", r#"exec "$@" cat < /dev/null 0> w"#),
    Case::new("to nowhere", r#"exec "$@" sh -c 'echo x; echo y >&2; exit 8' > /dev/null 2>&1"#),
    Case::new("the reader leaves", r#"exec bash -c '"$@" yes | head -1; echo ${PIPESTATUS[@]}' bash "$@""#).needs("bash"),
    Case::new("the reader leaves a writer that ignores it", r#"trap '' PIPE; "$@" sh -c 'while echo x; do :; done 2> said; echo stopped >&2' | head -1; wait"#),
    Case::new("the reader was never there", r#"mkfifo p; exec 3<>p 4>p; exec 3<&-; exec bash -c '"$@" sh -c "echo x"; echo $? >&2' bash "$@" >&4"#).needs("bash"),
    Case::new("a slow reader", r#""$@" head -c 3000000 /dev/zero | while dd bs=65536 count=10 iflag=fullblock status=none | wc -c | grep -v '^0$'; do sleep 0.02; done"#),
    Case::new("a slow writer", r#""$@" sh -c 'for i in 1 2 3 4 5; do printf $i; sleep 0.05; done' | od -c"#),
    Case::new("a prompt is seen before its answer", r#"mkfifo in out; "$@" sh -c 'printf "name? "; read x; echo "hi $x"' < in > out & exec 3>in 4<out; dd bs=1 count=6 status=none <&4; echo bob >&3; cat <&4; wait $!; echo $?"#),
    Case::new("a writer waits for its reader", r#"mkfifo p; "$@" sh -c 'head -c 9000000 /dev/zero; echo > finished' > p & exec 3<p; dd bs=1 count=1 status=none <&3 | od -c; [ -e finished ] && echo unbounded; wc -c <&3; wait $!; echo $?"#),
    Case::new("what a grandchild says later", r#""$@" sh -c '(until [ -e go ]; do sleep 0.02; done; echo late; echo later >&2) & echo early'; : > go"#),
    Case::new("a grandchild that keeps the streams of a substitution", r#"x=$("$@" sh -c '(sleep 0.2; echo late) & echo early'); echo "$x""#),
    Case::new("a grandchild outlives it", r#""$@" sh -c '(until [ -e go ]; do sleep 0.02; done; : > alive; : > done) & exit 3' > o 2>&1; echo $?; : > go; until [ -e done ]; do sleep 0.02; done; rm done"#),
    Case::new("a command in a command", r#"exec "$@" "$@" sh -c 'cat; exit 5'"#).reads(Noise(1)),
    Case::new("a here-document and a substitution", r#"x=$("$@" cat <<end
one
end
); echo "[$x]""#),
    Case::new("a coprocess", r#"exec bash -c 'coproc "$@" sed -u "s/a/b/"; echo aaa >&${COPROC[1]}; read -r x <&${COPROC[0]}; echo $x' bash "$@""#).needs("bash"),
    Case::new("process substitution", r#"exec bash -c '"$@" cat <(echo one) <("$@" echo two)' bash "$@""#).needs("bash"),
    Case::new("python's own buffers", r#"exec "$@" python3 -c 'import sys; print("out"); print("err", file=sys.stderr); sys.exit("bye")'"#).needs("python3"),
    Case::new("python interrupted", r#"exec "$@" python3 -c 'import os, signal; signal.signal(2, signal.default_int_handler); os.kill(os.getpid(), 2); import time; time.sleep(9)' 2>&1 | tail -1"#).needs("python3"),
];

/// What others send it, and it others. A trap of `sh` is run when its `sleep` has ended.
const SIGNALS: &[Case] = &[
    Case::new(
        "a signal to the whole group is heard once",
        r#"trap : USR1; "$@" python3 -c 'import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}); n = 0
for i in range(10):
    os.kill(0, signal.SIGUSR1)
    while signal.sigtimedwait({signal.SIGUSR1}, 0.05): n += 1
print(n)'; echo $?"#,
    )
    .needs("python3"),
    Case::new(
        "a signal to the group reaches its caller",
        r#"trap 'echo caught' USR1; "$@" sh -c 'trap : USR1; kill -USR1 0'; echo $?"#,
    ),
    Case::new(
        "in the background of a script",
        r#""$@" grep -E '^Sig(Ign|Blk|Cgt)' /proc/self/status & wait $!; echo $?; "$@" cat & wait $!; echo $?"#,
    )
    .settled_by(masks),
    Case::new(
        "stopped and continued from outside",
        r#""$@" sh -c 'echo r > ready; until [ -e go ]; do sleep 0.02; done; echo on' & until [ -s ready ]; do sleep 0.02; done; kill -STOP $!; kill -CONT $!; : > go; wait $!; echo $?"#,
    ),
];

/// The command traps each of these signals, and its user sends it one after the other.
fn hears(name: &str, signals: &str) -> Case {
    let script = r#"export LIST="SIGNALS"
env --default-signal=INT,QUIT "$@" sh -c 'for s in $LIST; do trap "echo $s >> heard" $s; done; : > heard; : > ready; until [ -e go ]; do sleep 0.02; done' &
until [ -e ready ]; do sleep 0.02; done; exec 2> /dev/null
for s in $LIST; do
    kill -$s $! || break
    i=0; until grep -q "^$s\$" heard || [ $i = 100 ]; do sleep 0.02; i=$((i+1)); done
done
: > go; wait $!; sort -un heard > once; mv once heard"#;
    Case::made(format!("hears {name}"), script.replace("SIGNALS", signals))
}

/// The command traps the signal and ends in its own way.
fn ends_as_it_likes(signal: &str) -> Case {
    let script = r#"env --default-signal=INT,QUIT "$@" sh -c 'trap "echo bye; exit 3" SIGNAL; : > ready; while [ -e ready ]; do sleep 0.02; done' &
until [ -e ready ]; do sleep 0.02; done
# What this shell says of its jobs, and when, is its own affair.
exec 2> /dev/null; kill -SIGNAL $!; wait $!; echo $?; rm ready"#;
    Case::made(format!("ends as it likes on {signal}"), script.replace("SIGNAL", signal))
}

/// The signal ends the command.
fn is_ended_by(signal: &str) -> Case {
    let script = r#"env --default-signal=INT,QUIT "$@" sh -c 'echo $$ > pid; : > ready; while [ -e ready ]; do sleep 0.02; done' &
until [ -e ready ]; do sleep 0.02; done
# What this shell says of its jobs, and when, is its own affair.
exec 2> /dev/null; kill -SIGNAL $!; wait $!; echo $?
kill -0 $(cat pid) && echo still there; rm ready pid"#;
    Case::made(format!("is ended by {signal} from outside"), script.replace("SIGNAL", signal))
}

/// One descriptor of ours is inherited: the lock by which the processes of a run are known. Scripts name 3 to 9, so it
/// is 10 or more; a shell that looks for a free one from 10 on takes the next.
fn without_the_lock(listing: &str) -> String {
    let mut locks = 0;
    let mut shown = String::new();
    for line in listing.lines() {
        let Some((before, target)) = line.split_once(" -> ") else { continue };
        let number = before.rsplit(' ').next().unwrap_or_default();
        if target.contains("/home/registry/") && number.parse::<u32>().is_ok_and(|number| number >= 10) {
            locks += 1;
            continue;
        }
        let kind = target.split_once(":[").map_or(target, |(kind, _)| kind);
        shown.push_str(&format!("{number} -> {kind}\n"));
    }
    if locks > 1 {
        shown.push_str(&format!("{locks} locks\n"));
    }
    shown
}

/// The sets of signals in `/proc/self/status`, less those of the C library.
fn masks(status: &str) -> String {
    let mut shown = String::new();
    for line in status.lines() {
        match line.split_once(":\t").and_then(|(name, mask)| Some((name, u64::from_str_radix(mask, 16).ok()?))) {
            Some((name, mask)) => shown.push_str(&format!("{name}: {:x}\n", mask & !(0b11 << 31))),
            None => shown.push_str(&format!("{line}\n")),
        }
    }
    shown
}

/// Whoever could not start it says so in words of their own.
fn nothing(text: &str) -> String {
    text.lines().filter(|line| line.parse::<i32>().is_ok()).collect()
}

fn last_line(text: &str) -> String {
    text.lines().last().filter(|line| line.parse::<i32>().is_ok()).unwrap_or_default().into()
}
