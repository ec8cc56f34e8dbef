//! The kinds of actions on a run, as events and refusals name them.

/// Which action on a run: what an event records, and what a refusal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActionKind {
    /// Take ownership of it.
    Claim,
    /// Let it wait no longer for another run.
    Release,
    /// Allow further attempts.
    Unpark,
    /// Hold it back.
    Pause,
    /// Let it wait for its turn again.
    Unpause,
    /// Change its place in the queue.
    Edit,
    /// Record progress or a checkpoint.
    Report,
    /// Wait for an external event.
    Suspend,
    /// Continue after that event.
    Wake,
    /// Record its outcome.
    Finish,
    /// Record that its owner was asked to stop.
    Interrupt,
    /// Ask its owner to stop it.
    RequestCancel,
    /// Mark it dead.
    Reap,
    /// Take over its live processes.
    Adopt,
    /// Start its next attempt.
    Resume,
    /// Hide it from lists.
    Archive,
    /// Show it in lists again.
    Unarchive,
    /// Record that its artifacts were deleted.
    Sweep,
    /// Repeat it as a new run.
    Rerun,
    /// Delete it with its history.
    Delete,
    /// Write to its standard input.
    Send,
    /// Remove it from the queue.
    QueueCancel,
}

impl ActionKind {
    /// Its name in event logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Release => "release",
            Self::Unpark => "unpark",
            Self::Pause => "pause",
            Self::Unpause => "unpause",
            Self::Edit => "edit",
            Self::Report => "report",
            Self::Suspend => "suspend",
            Self::Wake => "wake",
            Self::Finish => "finish",
            Self::Interrupt => "interrupt",
            Self::RequestCancel => "request cancel",
            Self::Reap => "reap",
            Self::Adopt => "adopt",
            Self::Resume => "resume",
            Self::Archive => "archive",
            Self::Unarchive => "unarchive",
            Self::Sweep => "sweep",
            Self::Rerun => "rerun",
            Self::Delete => "delete",
            Self::Send => "send",
            Self::QueueCancel => "queue cancel",
        }
    }
}
