//! Signals by name, for people.

use rustix::process::Signal;

const NAMES: [(Signal, &str); 31] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::ILL, "SIGILL"),
    (Signal::TRAP, "SIGTRAP"),
    (Signal::ABORT, "SIGABRT"),
    (Signal::BUS, "SIGBUS"),
    (Signal::FPE, "SIGFPE"),
    (Signal::KILL, "SIGKILL"),
    (Signal::USR1, "SIGUSR1"),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::USR2, "SIGUSR2"),
    (Signal::PIPE, "SIGPIPE"),
    (Signal::ALARM, "SIGALRM"),
    (Signal::TERM, "SIGTERM"),
    (Signal::STKFLT, "SIGSTKFLT"),
    (Signal::CHILD, "SIGCHLD"),
    (Signal::CONT, "SIGCONT"),
    (Signal::STOP, "SIGSTOP"),
    (Signal::TSTP, "SIGTSTP"),
    (Signal::TTIN, "SIGTTIN"),
    (Signal::TTOU, "SIGTTOU"),
    (Signal::URG, "SIGURG"),
    (Signal::XCPU, "SIGXCPU"),
    (Signal::XFSZ, "SIGXFSZ"),
    (Signal::VTALARM, "SIGVTALRM"),
    (Signal::PROF, "SIGPROF"),
    (Signal::WINCH, "SIGWINCH"),
    (Signal::IO, "SIGIO"),
    (Signal::POWER, "SIGPWR"),
    (Signal::SYS, "SIGSYS"),
];

/// Real-time signals, as the C library numbers them: it keeps the first two for itself.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// The name of a signal: `SIGTERM`, `SIGRTMIN+1`, or `signal 99` where there is none of that number.
pub fn signal_name(number: i32) -> String {
    match NAMES.iter().find(|(signal, _)| signal.as_raw() == number) {
        Some((_, name)) => (*name).into(),
        None if number == *REAL_TIME.start() => "SIGRTMIN".into(),
        None if REAL_TIME.contains(&number) => format!("SIGRTMIN+{}", number - REAL_TIME.start()),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signal_has_a_name() {
        let named = |number: &i32| signal_name(*number).starts_with("SIG");
        assert_eq!((1..=31).filter(named).count(), 31);
        assert_eq!(
            [9, 15, 34, 40, 64].map(signal_name),
            ["SIGKILL", "SIGTERM", "SIGRTMIN", "SIGRTMIN+6", "SIGRTMIN+30"]
        );
        assert_eq!(
            [-1, 0, 32, 65, 200].map(signal_name),
            ["signal -1", "signal 0", "signal 32", "signal 65", "signal 200"]
        );
    }
}
