//! The history: what happened, one line for each event, and how often the things happened that a simulation is for.

use std::fmt::{self, Write as _};
use std::ops::AddAssign;
use std::time::Duration;

use crate::model::id::Epoch;
use crate::model::run::StateName;
use crate::store::Revision;

/// Something that must happen in some histories, or they have proved nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each says itself in `as_str`")]
pub enum Fact {
    Claim,
    Resume,
    Wake,
    Adopt,
    Reap,
    ReapWon,
    ReapGivenUp,
    Requeue,
    FencedOwner,
    CancelHonoured,
    Conflict,
    KeyBusy,
    Refusal,
    UnknownLanded,
    UnknownNotLanded,
    LateLanded,
    LateVoid,
    EndOwed,
    OwedDelivered,
    OwedVoid,
    Forgotten,
    HandlerCalled,
    OwnerStarted,
    Artifact,
    Published,
    Sweep,
    Deleted,
    Crash,
    Pause,
    ClockJump,
    Outage,
}

impl Fact {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::Claim,
        Self::Resume,
        Self::Wake,
        Self::Adopt,
        Self::Reap,
        Self::ReapWon,
        Self::ReapGivenUp,
        Self::Requeue,
        Self::FencedOwner,
        Self::CancelHonoured,
        Self::Conflict,
        Self::KeyBusy,
        Self::Refusal,
        Self::UnknownLanded,
        Self::UnknownNotLanded,
        Self::LateLanded,
        Self::LateVoid,
        Self::EndOwed,
        Self::OwedDelivered,
        Self::OwedVoid,
        Self::Forgotten,
        Self::HandlerCalled,
        Self::OwnerStarted,
        Self::Artifact,
        Self::Published,
        Self::Sweep,
        Self::Deleted,
        Self::Crash,
        Self::Pause,
        Self::ClockJump,
        Self::Outage,
    ];

    /// What happened.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "runs claimed",
            Self::Resume => "runs resumed",
            Self::Wake => "runs woken",
            Self::Adopt => "runs adopted",
            Self::Reap => "runs reaped",
            Self::ReapWon => "reapers that learned that they won",
            Self::ReapGivenUp => "reaps given up because the run had changed",
            Self::Requeue => "reaped runs requeued",
            Self::FencedOwner => "owners that learned that they lost",
            Self::CancelHonoured => "cancel requests honoured by an owner",
            Self::Conflict => "writes that lost a race",
            Self::KeyBusy => "writes that found a key taken",
            Self::Refusal => "calls refused by the store",
            Self::UnknownLanded => "answers lost, effect there",
            Self::UnknownNotLanded => "answers lost, no effect",
            Self::LateLanded => "late writes that landed",
            Self::LateVoid => "late writes that were void",
            Self::EndOwed => "ends owed",
            Self::OwedDelivered => "owed ends delivered",
            Self::OwedVoid => "owed ends made void by a reap",
            Self::Forgotten => "claims ended that no worker knew of",
            Self::HandlerCalled => "handlers called by the engine's workers",
            Self::OwnerStarted => "owners started by supervisors",
            Self::Artifact => "artifacts put",
            Self::Published => "manifests put by owners",
            Self::Sweep => "sweeps that deleted something",
            Self::Deleted => "artifacts deleted",
            Self::Crash => "crashes",
            Self::Pause => "pauses beyond the lease",
            Self::ClockJump => "clock jumps",
            Self::Outage => "outages",
        }
    }
}

/// How often each fact was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters([u64; Fact::ALL.len()]);

impl Counters {
    /// How often this one was.
    pub fn of(&self, fact: Fact) -> u64 {
        self.0[fact as usize]
    }

    pub(super) fn saw(&mut self, fact: Fact) {
        self.0[fact as usize] += 1;
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fact in Fact::ALL {
            writeln!(f, "{:>10}  {}", self.of(fact), fact.as_str())?;
        }
        Ok(())
    }
}

/// One event of a history.
#[derive(Debug, Clone)]
pub(super) struct HistoryLine {
    pub(super) step: u32,
    pub(super) at: Duration,
    pub(super) who: String,
    pub(super) what: What,
}

/// What an event was. Runs are numbered in the order in which they were made.
#[derive(Debug, Clone)]
pub(super) enum What {
    Wrote {
        run: usize,
        revision: Revision,
        action: String,
        to: StateName,
        epoch: Epoch,
        attempt: u32,
        owner: Option<String>,
        late: bool,
    },
    Beat,
    Fault(&'static str, &'static str),
    Called(&'static str),
    Answered(&'static str, String),
    Learned(usize, Epoch, &'static str),
    World(String),
}

impl fmt::Display for HistoryLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4} {:>9.3}s {:<10} ", self.step, self.at.as_secs_f64(), self.who)?;
        match &self.what {
            What::Wrote { run, revision, action, to, epoch, attempt, owner, late } => {
                let late = if *late { " (late)" } else { "" };
                let owner = owner.as_ref().map(|owner| format!(", owned by {owner}")).unwrap_or_default();
                write!(f, "WRITES run {run} r{}: {action} -> {to}, epoch {epoch}, attempt {attempt}", revision.0)?;
                write!(f, "{owner}{late}")
            }
            What::Beat => f.write_str("beats"),
            What::Fault(operation, fault) => write!(f, "{operation}: {fault}"),
            What::Called(call) => write!(f, "calls {call}"),
            What::Answered(call, answer) => write!(f, "{call} answers: {answer}"),
            What::Learned(run, epoch, what) => write!(f, "learns: run {run}, epoch {epoch}: {what}"),
            What::World(what) => f.write_str(what),
        }
    }
}

/// Everything that happened, in order.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// How often the things happened that matter.
    pub counters: Counters,
    pub(super) lines: Vec<HistoryLine>,
}

impl History {
    /// A number that any other history is most unlikely to have.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        for line in &self.lines {
            // Nothing can fail in a number.
            let _ = write!(digest, "{line}");
        }
        digest.0
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// FNV-1a over what is written into it.
struct Digest(u64);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}
