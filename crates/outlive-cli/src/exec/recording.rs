//! What the command writes, kept beside its run. Whatever goes wrong with that is reported once, and never to the
//! command.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outlive::logs::{Growth, LogWriter, Stream};
use outlive::step::{Digesting, StepOutcome};

/// The logs of the attempt, shared by the threads that copy its streams.
#[derive(Clone)]
pub struct Recording(Arc<Mutex<State>>);

struct State {
    log: Option<LogWriter>,
    trouble: Option<String>,
    /// What is written, before anything of it is masked or left out.
    digests: Option<[Digesting; 2]>,
}

impl Recording {
    /// Keeps what is written with `log`, or nothing.
    pub fn new(log: Option<LogWriter>) -> Self {
        Self(Arc::new(Mutex::new(State { log, trouble: None, digests: None })))
    }

    /// Also digests all that is written, whether or not it is kept.
    pub fn digesting(self) -> Self {
        self.state().digests = Some(Default::default());
        self
    }

    /// Whether nothing may be written past us.
    pub fn is_digesting(&self) -> bool {
        self.state().digests.is_some()
    }

    /// What was written, if it was digested.
    pub fn outcome(&self) -> Option<StepOutcome> {
        let [stdout, stderr] = self.state().digests.take()?.map(Digesting::finish);
        Some(StepOutcome::Output { stdout, stderr })
    }

    /// Keeps nothing, because of this.
    pub fn lost(why: &dyn std::fmt::Display) -> Self {
        let trouble = Some(format!("what the command writes is not kept: {why}"));
        Self(Arc::new(Mutex::new(State { log: None, trouble, digests: None })))
    }

    /// Keeps what the command wrote.
    pub fn write(&self, stream: Stream, bytes: &[u8]) {
        if let Some([stdout, stderr]) = &mut self.state().digests {
            match stream {
                Stream::Out => stdout.update(bytes),
                Stream::Err => stderr.update(bytes),
            }
        }
        self.attempt(|log| log.write(stream, bytes));
    }

    /// A file for the command to write a stream to; none where nothing is kept.
    pub fn file(&self, stream: Stream) -> Option<OwnedFd> {
        let mut state = self.state();
        match state.log.as_mut()?.file(stream) {
            Ok(file) => Some(file),
            Err(error) => {
                state.give_up(&error);
                None
            }
        }
    }

    /// Has `growth` become readable when the command has written to such a file. Answers whether it will.
    pub fn watch(&self, growth: &Growth) -> bool {
        self.state().log.as_mut().is_some_and(|log| log.watch(growth).is_ok())
    }

    /// Takes note of what the command wrote to the files itself.
    pub fn note(&self) {
        self.attempt(LogWriter::note);
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.state().log.is_some()
    }

    /// Writes down what is left, of processes that may still write where `is_open` says so. Answers with what went
    /// wrong, if anything did.
    pub fn finish(&self, is_open: impl FnOnce() -> bool) -> Option<String> {
        let log = self.state().log.take();
        if let Some(Err(error)) = log.map(|log| log.finish_unless(is_open)) {
            self.state().give_up(&error);
        }
        self.state().trouble.take()
    }

    fn attempt(&self, write: impl FnOnce(&mut LogWriter) -> io::Result<()>) {
        let mut state = self.state();
        if let Some(Err(error)) = state.log.as_mut().map(write) {
            state.give_up(&error);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn give_up(&mut self, error: &io::Error) {
        self.log = None;
        self.trouble.get_or_insert_with(|| format!("what the command writes is no longer kept: {error}"));
    }
}
