//! The queues themselves: how each thing is said to each of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::scratch::{Outcome, outlive};

/// Every process that belongs to a queue has its name under this.
const MARK: &str = "OUTLIVE_BENCH_QUEUE";
const FAILING: &str = "sh -c 'exit 7'";
/// What is added in one call, below the directory of a queue.
const JOBS: &str = "jobs.jsonl";

/// One of the queues. Words are said by a shell.
pub struct Queue {
    pub name: &'static str,
    /// Adds the command whose words follow.
    add: &'static str,
    /// Adds the command whose words follow, and waits for it, where one call does both.
    add_and_wait: Option<&'static str>,
    /// Adds what a file lists, where one call adds many.
    add_file: Option<&'static str>,
    /// Waits for what was added last.
    pub wait: Option<&'static str>,
    /// Does all that was added, where nobody else does it.
    pub drain: Option<&'static str>,
    /// Whoever does it as it comes, where that is somebody who is not there by itself.
    server: Option<Child>,
    pub list: &'static str,
    /// A job that ends with status 7.
    pub failing: &'static str,
    environment: Vec<(&'static str, PathBuf)>,
    dir: PathBuf,
}

impl Queue {
    /// The words that add a command.
    pub fn add(&self, command: &str) -> String {
        format!("{} {command}", self.add)
    }

    /// The words that add a command, have it done and wait for it, in as few calls as there may be.
    pub fn see_through(&self, command: &str) -> Option<String> {
        match self.add_and_wait {
            Some(both) => Some(format!("exec {both} {command}")),
            None => Some(self.both(&self.add(command), self.wait?)),
        }
    }

    /// The words that add `true` so many times, in as few calls as there may be.
    pub fn add_many(&self, count: usize) -> String {
        match self.add_file {
            Some(add) => format!("{add} {} >/dev/null", self.dir.join(JOBS).display()),
            None => self.add_each(count),
        }
    }

    /// The same, with a call for each.
    pub fn add_each(&self, count: usize) -> String {
        format!("i=0; while [ $i -lt {count} ]; do {} >/dev/null; i=$((i+1)); done", self.add("true"))
    }

    /// Adds, has it done where nobody does it otherwise, and waits.
    pub fn both(&self, add: &str, wait: &str) -> String {
        // Whoever drains may well say that a job failed.
        let drain = self.drain.map(|drain| format!("({drain} || true) && ")).unwrap_or_default();
        format!("{add} && {drain}{wait}")
    }

    fn shell(&self, words: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", words]).current_dir(&self.dir).stdin(Stdio::null());
        shell.envs(self.environment.iter().map(|(name, value)| (name, value))).env(MARK, self.name);
        shell
    }

    /// Says it, and answers with what was answered.
    pub fn say(&self, words: &str) -> Outcome<Output> {
        Ok(self.shell(words).output()?)
    }

    /// Says it to whoever takes longer to answer.
    pub fn begin(&self, words: &str) -> Outcome<Child> {
        Ok(self.shell(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// Has somebody do what is added as it comes, as the servers of tsp and pueue do.
    pub fn serve(&mut self) -> Outcome<()> {
        if self.drain.take().is_some() {
            self.server = Some(self.begin("exec outlive work --slots 1")?);
        }
        Ok(())
    }

    /// How many processes there are because of it.
    pub fn processes(&self) -> Outcome<usize> {
        let mark = format!("{MARK}={}", self.name);
        let is_marked = |environ: Vec<u8>| environ.split(|byte| *byte == 0).any(|word| word == mark.as_bytes());
        let of = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("environ")).ok();
        Ok(std::fs::read_dir("/proc")?.flatten().filter_map(of).filter(|environ| is_marked(environ.clone())).count())
    }

    /// Says it, and is told that it was done.
    pub fn must(&self, words: &str) -> Outcome<()> {
        let output = self.say(words)?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("{}: `{words}` failed: {told}", self.name).into()) }
    }
}

/// Ours, first, and those of the others that are installed.
pub fn all(dir: &Path) -> Outcome<Vec<Queue>> {
    let home = |name: &str| -> Outcome<PathBuf> {
        let home = dir.join(name);
        std::fs::create_dir_all(&home)?;
        Ok(home)
    };
    let mut found = vec![ours(dir, home("outlive")?)?];
    let tsp = Queue {
        name: "tsp",
        add: "tsp",
        add_and_wait: Some("tsp -f"),
        add_file: None,
        wait: Some("tsp -w"),
        drain: None,
        server: None,
        list: "tsp -l",
        failing: FAILING,
        environment: vec![
            ("TS_SOCKET", dir.join("tsp.socket")),
            ("TMPDIR", home("tsp")?),
            ("TS_MAXFINISHED", "2000".into()),
        ],
        dir: home("tsp")?,
    };
    let nq = Queue {
        name: "nq",
        add: "nq",
        add_and_wait: None,
        add_file: None,
        wait: Some("nq -w"),
        drain: None,
        server: None,
        list: "ls",
        failing: FAILING,
        environment: vec![("NQDIR", home("nq")?)],
        dir: home("nq")?,
    };
    let own = |name: &str| home("pueue").map(|home| home.join(name));
    let pueue = Queue {
        name: "pueue",
        add: "pueue add --",
        add_and_wait: None,
        add_file: None,
        wait: Some("pueue wait --quiet"),
        drain: None,
        server: None,
        list: "pueue status",
        // It has a shell of its own.
        failing: "exit 7",
        environment: vec![
            ("HOME", home("pueue")?),
            ("XDG_CONFIG_HOME", own("config")?),
            ("XDG_DATA_HOME", own("data")?),
            ("XDG_RUNTIME_DIR", home("pueue")?),
        ],
        dir: home("pueue")?,
    };
    for (queue, program, start) in [
        (tsp, "tsp", "tsp -S 1 >/dev/null 2>&1"),
        (nq, "nq", "true"),
        (pueue, "pueued", "pueued -d >/dev/null 2>&1 && until pueue status >/dev/null 2>&1; do sleep 0.1; done"),
    ] {
        if !queue.say(&format!("command -v {program}"))?.status.success() {
            println!("{} is not installed and is left out", queue.name);
        } else if let Err(error) = queue.must(start) {
            println!("{} is left out: {error}", queue.name);
        } else {
            found.push(queue);
        }
    }
    Ok(found)
}

/// Ours.
fn ours(dir: &Path, home: PathBuf) -> Outcome<Queue> {
    std::fs::write(home.join(JOBS), "{\"argv\":[\"true\"]}\n".repeat(super::DRAIN.units))?;
    let outlive = outlive()?;
    let mut path = std::ffi::OsString::from(outlive.parent().ok_or("it has no directory")?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    Ok(Queue {
        name: "outlive",
        add: "outlive queue add --",
        add_and_wait: Some("outlive queue add --wait --"),
        add_file: Some("outlive queue add --file"),
        wait: Some("outlive wait @last"),
        drain: Some("outlive work --slots 1 --drain"),
        server: None,
        list: "outlive ps --all -n 1000",
        failing: FAILING,
        environment: vec![("PATH", path.into()), ("OUTLIVE_REGISTRY", format!("sqlite:{}/r", dir.display()).into())],
        dir: home,
    })
}

/// Ends what was started.
pub fn end(queues: &mut [Queue]) {
    for queue in queues {
        // One that is gone already need not be told.
        let _ = match queue.name {
            "pueue" => queue.say("pueue kill --all; pueue shutdown"),
            "tsp" => queue.say("tsp -K"),
            _ => queue.say("true"),
        };
        if let Some(mut server) = queue.server.take() {
            let _ = queue.say(&format!("kill {}", server.id())).and_then(|_| Ok(server.wait()?));
        }
    }
}
