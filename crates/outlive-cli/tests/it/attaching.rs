//! `outlive attach` at the terminal of a run in the background: a person's hands and eyes on a pseudo-terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, text, until};

/// The keys that leave.
const LEAVE: &[u8] = b"\x10\x11";

/// Somebody who is attached.
struct Seat {
    master: File,
    slave: OwnedFd,
    attached: Child,
    shown: String,
}

impl Seat {
    fn take(sandbox: &Sandbox, words: &[&str], (rows, columns): (u16, u16)) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        for fd in [&pty.master, &pty.slave] {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).unwrap();
        }
        let stream = || Stdio::from(pty.slave.try_clone().unwrap());
        let words = ["--ctty", "outlive", "attach"].into_iter().chain(words.iter().copied());
        let mut command: Command = sandbox.command("setsid", words);
        let mut seat = Self {
            master: pty.master.into(),
            attached: command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap(),
            slave: pty.slave,
            shown: String::new(),
        };
        seat.resize(rows, columns);
        seat
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
    }

    fn types(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    fn look(&mut self) {
        let mut fds = [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)];
        while matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
            && fds[0].revents().contains(PollFlags::IN)
        {
            let mut buffer = [0; 64 << 10];
            let read = self.master.read(&mut buffer).unwrap();
            self.shown.push_str(&text(&buffer[..read]));
            fds = [PollFd::from_borrowed_fd(self.master.as_fd(), PollFlags::IN)];
        }
    }

    /// Waits until this is shown, after all that was waited for before.
    fn sees(&mut self, what: &str) {
        until(&format!("`{what}` to be shown"), || {
            self.look();
            self.shown.contains(what)
        });
        let at = self.shown.find(what).unwrap();
        self.shown.drain(..at + what.len());
    }

    /// Waits for the end. Answers with the status, and whether the terminal was left as it was found.
    fn ends(&mut self) -> (Option<i32>, bool) {
        until("whoever is attached to end", || {
            self.look();
            self.attached.try_wait().unwrap().is_some()
        });
        self.look();
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        (self.attached.wait().unwrap().code(), modes.contains(LocalModes::ICANON | LocalModes::ECHO))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _ = self.attached.kill();
        let _ = self.attached.wait();
    }
}

/// A run with a terminal, in the background. Whatever is left of it is ended at the end.
struct AtTerminal<'a>(&'a Sandbox);

impl AtTerminal<'_> {
    fn owner(&self) -> u32 {
        u32::try_from(self.0.show("shell")["owner_pid"].as_u64().unwrap()).unwrap()
    }

    fn socket(&self) -> PathBuf {
        let id = self.0.show("shell")["id"].as_str().unwrap().to_owned();
        self.0.registry().join("runs").join(id).join("attempts/0001.terminal")
    }
}

impl Drop for AtTerminal<'_> {
    fn drop(&mut self) {
        let _ = self.0.outlive(["cancel", "shell", "--grace", "0s", "--wait"]).output();
    }
}

fn start<'a>(sandbox: &'a Sandbox, script: &str) -> AtTerminal<'a> {
    sandbox.outlive(["run", "-d", "--tty", "--name", "shell", "--", "sh", "-c", script]).succeeds();
    AtTerminal(sandbox)
}

/// Answers each line that is typed, until one says how to end.
const ANSWERS: &str = "trap 'echo resized $(stty size).' WINCH; echo ready; tty; \
    while :; do read line || continue; case $line in end*) exit ${line#end };; *) echo \"heard $line.\";; esac; done";

#[test]
fn r04_keys_and_sizes_reach_a_run_and_leaving_changes_nothing() {
    let sandbox = Sandbox::new();
    let run = start(&sandbox, ANSWERS);
    let mut first = Seat::take(&sandbox, &["shell"], (31, 101));
    first.sees("ready");
    first.sees("/dev/pts/");
    first.sees("resized 31 101.");
    first.types(b"one\r");
    first.sees("heard one.");
    first.resize(32, 102);
    first.sees("resized 32 102.");
    // Another sees what was shown before, and what is typed elsewhere.
    let mut second = Seat::take(&sandbox, &["shell", "--detach-keys", "ctrl-a,d"], (33, 103));
    second.sees("heard one.");
    second.sees("resized 33 103.");
    first.types(b"two\r");
    second.sees("heard two.");
    second.types(b"x\x01y\r");
    second.sees("heard x\u{1}y.");
    // One is killed, one leaves.
    signal_pid(first.attached.id(), "KILL");
    second.types(b"\x01d");
    assert_eq!(second.ends(), (Some(0), true));
    second.sees("which keeps running");
    assert_eq!(sandbox.show("shell")["state"], "running");
    let mut third = Seat::take(&sandbox, &["shell"], (24, 80));
    third.sees("heard two.");
    third.types(b"end 7\r");
    assert_eq!(third.ends(), (Some(7), true));
    assert_eq!(sandbox.show("shell")["exit_code"], 7);
    assert!(!run.socket().exists(), "its socket was left");
    let log = sandbox.outlive(["logs", "shell"]).succeeds();
    assert!(log.contains("heard one.\r\n") && log.contains("heard two.\r\n"), "{log}");
}

#[test]
fn ctrl_c_is_the_commands_and_ctrl_z_stops_nothing() {
    let sandbox = Sandbox::new();
    let until_go = "until [ -e go ]; do sleep 0.05; done";
    let traps = "trap 'echo interrupted' INT; trap 'echo was stopped' CONT";
    let _run = start(&sandbox, &format!("{traps}; echo ready; {until_go}; echo went on"));
    let mut seat = Seat::take(&sandbox, &["shell"], (24, 80));
    seat.sees("ready");
    seat.types(b"\x03");
    seat.sees("interrupted");
    seat.types(b"\x1a");
    seat.sees("^Z");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    seat.sees("went on");
    assert_eq!(seat.ends(), (Some(0), true));
    // A command that is stopped and has to go on may have been starting another, which nobody else could have go on.
    assert!(!sandbox.outlive(["logs", "shell"]).succeeds().contains("was stopped"));
}

#[test]
fn f_27_viewer_that_does_not_read_costs_no_time_and_no_memory() {
    let sandbox = Sandbox::new();
    let flood = "echo ready; read line; head -c 60000000 /dev/zero | tr '\\0' x; echo over > over; read line; exit 3";
    let run = start(&sandbox, flood);
    let mut stuck = Seat::take(&sandbox, &["shell"], (24, 80));
    stuck.sees("ready");
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.owner())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let before = peak();
    stuck.types(b"\r");
    stuck.sees("xxxx");
    signal_pid(stuck.attached.id(), "STOP");
    until("the command to have written everything", || sandbox.work().join("over").exists());
    let grown = peak() - before;
    assert!(grown < 8 << 10, "its owner has grown by {grown} kB");
    signal_pid(stuck.attached.id(), "CONT");
    assert_eq!(stuck.ends(), (Some(1), true));
    stuck.sees("writes faster than this terminal shows");
    let mut next = Seat::take(&sandbox, &["shell"], (24, 80));
    next.sees("xxxx");
    next.types(b"\r");
    assert_eq!(next.ends(), (Some(3), true));
}

#[test]
fn f_01_attached_terminal_reports_a_killed_owner() {
    let sandbox = Sandbox::impatient();
    let run = start(&sandbox, "trap '' HUP; echo $$ > command; echo ready; while :; do sleep 0.1; done");
    let mut seat = Seat::take(&sandbox, &["shell"], (24, 80));
    seat.sees("ready");
    let command = super::faults_tree::number(&sandbox, "command");
    signal_pid(run.owner(), "KILL");
    assert_eq!(seat.ends(), (Some(1), true));
    seat.sees("has lost its terminal");
    assert!(is_alive(command), "the command was ended");
    // A door that nobody stands behind.
    assert!(run.socket().exists());
    let late = sandbox.outlive(["attach", "--json", "shell"]).stdout(Stdio::null()).spawn();
    let mut late = late.unwrap();
    sandbox.outlive(["cancel", "shell", "--grace", "0s", "--wait"]).succeeds();
    assert_eq!(late.wait().unwrap().code(), Some(1));
}

#[test]
fn s_03_socket_of_a_terminal_is_this_users_at_any_depth() {
    let sandbox = Sandbox::new();
    let deep = sandbox.work().join("d".repeat(120)).join(".git");
    std::fs::create_dir_all(&deep).unwrap();
    let here = deep.parent().unwrap();
    let run = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.current_dir(here);
        command
    };
    let id =
        run(&["run", "-d", "--tty", "--name", "deep", "--", "sh", "-c", "echo ready; read line; exit 4"]).succeeds();
    let door = here.join(".outlive/runs").join(id.trim()).join("attempts/0001.terminal");
    let found = std::fs::metadata(&door).unwrap();
    assert!(found.file_type().is_socket(), "{found:?}");
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    // Through pipes: what is piped in is typed.
    let mut attached = run(&["attach", "deep"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    attached.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ended = attached.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(4), "{}", text(&ended.stderr));
    assert!(text(&ended.stdout).contains("ready"), "{}", text(&ended.stdout));
}

#[test]
fn a_resumed_run_has_its_terminal_again() {
    let sandbox = Sandbox::new();
    let run = start(&sandbox, "test -t 0 && test -t 1 && echo ready; read line; exit 5");
    let mut seat = Seat::take(&sandbox, &["shell"], (24, 80));
    seat.sees("ready");
    seat.types(b"\r");
    assert_eq!(seat.ends(), (Some(5), true));
    sandbox.outlive(["resume", "--failed", "shell"]).succeeds();
    let mut seat = Seat::take(&sandbox, &["shell"], (24, 80));
    seat.sees("ready");
    seat.types(LEAVE);
    assert_eq!(seat.ends(), (Some(0), true));
    drop(run);
}

#[test]
fn what_has_no_terminal_says_so_and_is_shown() {
    let sandbox = Sandbox::new();
    let script = "echo one; until [ -e go ]; do sleep 0.05; done; exit 2";
    sandbox.outlive(["run", "-d", "--name", "plain", "--", "sh", "-c", script]).succeeds();
    let mut seat = Seat::take(&sandbox, &["plain"], (24, 80));
    seat.sees("it has no terminal; what it writes is shown");
    seat.sees("one");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(seat.ends(), (Some(2), true));
    let refused = sandbox.outlive(["run", "--tty", "--", "true"]).fails_with(2);
    assert!(refused.contains("`--tty` goes with `-d`"), "{refused}");
    let wrong = sandbox.outlive(["attach", "--json", "--detach-keys", "ctrl-p,", "plain"]).output().unwrap();
    let wrong: Value = serde_json::from_slice(&wrong.stderr).unwrap();
    assert!(wrong["error"]["message"].as_str().unwrap().contains("is no key"), "{wrong}");
}
