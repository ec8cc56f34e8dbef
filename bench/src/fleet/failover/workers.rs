//! Workers beside a failover: each in a process of its own, which writes down what the store acknowledged to it.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use outlive::engine::worker::{BlockingJob, Worker, WorkerTiming};
use outlive::id::{RunId, WorkerId};
use outlive::registry::Registry;

use crate::scratch::Outcome;

/// The kind of runs that they execute.
pub const KIND: &str = "failover";
/// How many runs each executes at once.
const SLOTS: usize = 4;
/// How long one half of a run takes.
const HALF: Duration = Duration::from_millis(150);

/// What was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// A checkpoint.
    Saved,
    /// The end of the run.
    Ended,
}

/// A write that the store acknowledged to the owner of a run.
#[derive(Debug, Clone)]
pub struct Acknowledged {
    pub write: Write,
    pub run: RunId,
    pub epoch: u64,
    pub worker: WorkerId,
}

impl fmt::Display for Acknowledged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = if self.write == Write::Saved { "saved" } else { "ended" };
        write!(f, "{write} {} {} {}", self.run, self.epoch, self.worker)
    }
}

impl FromStr for Acknowledged {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Self, &'static str> {
        const WRONG: &str = "a line of a worker cannot be read";
        let words: Vec<&str> = line.split_whitespace().collect();
        let [write, run, epoch, worker] = words[..] else { return Err(WRONG) };
        Ok(Self {
            write: if write == "saved" { Write::Saved } else { Write::Ended },
            run: run.parse().map_err(|_| WRONG)?,
            epoch: epoch.parse().map_err(|_| WRONG)?,
            worker: worker.parse().map_err(|_| WRONG)?,
        })
    }
}

/// Works until its standard input ends. `outlive-bench failover-worker URL`.
pub fn work(url: &str) -> Outcome<bool> {
    let registry = pollster::block_on(Registry::open(url))?;
    let execute = |job: &BlockingJob| {
        for half in 0..2 {
            let fence = job.fence();
            // A write that is not acknowledged may have been done: nothing is claimed about it.
            if job.set_checkpoint(half.into()).is_ok() {
                let (run, epoch, worker) = (job.id(), fence.epoch.0, fence.worker);
                println!("{}", Acknowledged { write: Write::Saved, run, epoch, worker });
            }
            job.wait_for_stop(HALF);
        }
        Ok::<_, outlive::Failed>(())
    };
    let own = Arc::new(Mutex::new(None));
    let (started, ended) = (own.clone(), own);
    let worker = Worker::builder(registry)
        .concurrency(SLOTS)
        .times(WorkerTiming::fast())
        .on_start(move |handle| *started.lock().unwrap_or_else(|held| held.into_inner()) = Some(handle.fence().worker))
        .on_end(move |run| {
            let worker = *ended.lock().unwrap_or_else(|held| held.into_inner());
            if let (Some(worker), true) = (worker, run.state.name() == outlive::run::StateName::Succeeded) {
                println!("{}", Acknowledged { write: Write::Ended, run: run.id, epoch: run.epoch.0, worker });
            }
        })
        .handle_blocking(KIND, execute)
        .start()?;
    let _ = std::io::stdin().read_line(&mut String::new());
    worker.stop();
    Ok(true)
}

/// The processes, and what they have said.
pub struct Workers {
    processes: Vec<(Child, Option<ChildStdin>)>,
    heard: Arc<Mutex<Vec<Acknowledged>>>,
    listeners: Vec<JoinHandle<()>>,
}

impl Workers {
    pub fn start(url: &str, count: usize) -> Outcome<Self> {
        let mut workers = Self { processes: Vec::new(), heard: Arc::default(), listeners: Vec::new() };
        for _ in 0..count {
            let mut process = Command::new(std::env::current_exe()?)
                .args(["failover-worker", url])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let lines = BufReader::new(process.stdout.take().ok_or("a worker has no output")?).lines();
            let heard = workers.heard.clone();
            workers.listeners.push(std::thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    if let Ok(acknowledged) = line.parse() {
                        heard.lock().unwrap_or_else(|held| held.into_inner()).push(acknowledged);
                    }
                }
            }));
            let input = process.stdin.take();
            workers.processes.push((process, input));
        }
        Ok(workers)
    }

    /// How many writes have been acknowledged.
    pub fn count(&self) -> usize {
        self.heard.lock().unwrap_or_else(|held| held.into_inner()).len()
    }

    /// Has them end, and answers with what was acknowledged.
    pub fn stop(mut self) -> Outcome<Vec<Acknowledged>> {
        for (_, input) in &mut self.processes {
            drop(input.take());
        }
        for (process, _) in &mut self.processes {
            let status = process.wait()?;
            if !status.success() {
                return Err(format!("a worker ended with {status}").into());
            }
        }
        for listener in self.listeners {
            listener.join().map_err(|_| "a listener has panicked")?;
        }
        Ok(std::mem::take(&mut *self.heard.lock().unwrap_or_else(|held| held.into_inner())))
    }
}
