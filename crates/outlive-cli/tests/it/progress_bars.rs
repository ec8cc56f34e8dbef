//! Progress bars of calls that take long: at a terminal alone, and gone at the end.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Child, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use crate::sandbox::{Ends, Sandbox, text, until};

/// A call whose standard error is a terminal.
struct AtTerminal {
    master: File,
    call: Child,
    shown: String,
}

impl AtTerminal {
    fn start(sandbox: &Sandbox, words: &[&str]) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        for fd in [&pty.master, &pty.slave] {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC).unwrap();
        }
        let mut command = sandbox.outlive(words);
        let call = command.env("TERM", "xterm").stdout(Stdio::piped()).stderr(pty.slave).spawn().unwrap();
        Self { master: pty.master.into(), call, shown: String::new() }
    }

    /// Reads what the terminal was sent by now. At the end of the call it hangs up.
    fn look(&mut self) -> &str {
        let ready = |master: &File| {
            let mut fds = [PollFd::from_borrowed_fd(master.as_fd(), PollFlags::IN)];
            matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
                && fds[0].revents().contains(PollFlags::IN)
        };
        while ready(&self.master) {
            let mut buffer = [0; 4 << 10];
            match self.master.read(&mut buffer) {
                Ok(read) if read > 0 => self.shown.push_str(&text(&buffer[..read])),
                _ => break,
            }
        }
        &self.shown
    }

    /// What it printed, once it has ended well, and all that the terminal was sent.
    fn ends(mut self) -> (String, String) {
        let mut printed = String::new();
        self.call.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
        assert!(self.call.wait().unwrap().success(), "{}", self.look());
        self.look();
        (printed, self.shown)
    }
}

#[test]
fn bar_is_shown_at_a_terminal_and_gone_at_the_end() {
    let sandbox = Sandbox::new();
    for name in ["quiet", "json", "shown"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    // A writer that takes its time keeps the others waiting.
    let lock = File::options().read(true).write(true).open(sandbox.registry().join("write.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let mut quiet = AtTerminal::start(&sandbox, &["--quiet", "archive", "quiet"]);
    let mut piped = sandbox.outlive(["archive", "json"]);
    let piped = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut shown = AtTerminal::start(&sandbox, &["archive", "shown"]);
    until("a progress bar to be shown", || shown.look().contains("archive"));
    assert_eq!(quiet.look(), "");
    flock(&lock, FlockOperation::Unlock).unwrap();
    let (printed, drawn) = shown.ends();
    assert!(printed.contains("archived"), "{printed}");
    // The line is cleared, and nothing is left behind it.
    assert!(drawn.ends_with("\u{1b}[2K"), "{drawn:?}");
    let (printed, drawn) = quiet.ends();
    assert!(printed.contains("archived") && drawn.is_empty(), "{printed} {drawn:?}");
    let output = piped.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}
