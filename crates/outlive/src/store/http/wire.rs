//! What is sent: the requests and answers of the store trait as JSON.
//!
//! A record is sent with what the store heard of the run's owner, which is part of no record.

use serde::{Deserialize, Serialize};

use crate::lifecycle::Transition;
use crate::model::filter::Filter;
use crate::model::id::{Epoch, RunId, Stamp};
use crate::model::policy::Lease;
use crate::model::run::{Key, LastHeartbeat, Run};
use crate::model::time::Timestamp;
use crate::store::{Cursor, Error, Listing, Order, Page, Record, Revision, Write, WriteOutcome};

/// What a call comes to.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply<T> {
    Done(T),
    Failed(Error),
}

impl<T> From<Result<T, Error>> for Reply<T> {
    fn from(result: Result<T, Error>) -> Self {
        match result {
            Ok(done) => Self::Done(done),
            Err(error) => Self::Failed(error),
        }
    }
}

/// What a server says of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Handshake {
    pub(super) format: i64,
    pub(super) registry: Option<String>,
    pub(super) user: Option<String>,
    pub(super) lease: Option<Lease>,
    /// It can see the processes that own its runs.
    pub(super) sees: bool,
    /// The token only reads: signatures of runs are withheld.
    #[serde(default)]
    pub(super) reads_only: bool,
}

/// A run with what was heard of its owner.
#[derive(Serialize, Deserialize)]
pub(super) struct WireRun {
    run: Run,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    heard: Option<LastHeartbeat>,
}

impl From<Run> for WireRun {
    fn from(run: Run) -> Self {
        Self { heard: run.owner().map(|owner| owner.heard), run }
    }
}

impl From<WireRun> for Run {
    fn from(wire: WireRun) -> Self {
        let mut run = wire.run;
        if let (Some(owner), Some(heard)) = (run.owner_mut(), wire.heard) {
            owner.heard = heard;
        }
        run
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct WireRecord {
    run: WireRun,
    revision: Revision,
    stamp: Stamp,
}

impl From<Record> for WireRecord {
    fn from(record: Record) -> Self {
        Self { run: record.run.into(), revision: record.revision, stamp: record.stamp }
    }
}

impl From<WireRecord> for Record {
    fn from(wire: WireRecord) -> Self {
        Self { run: wire.run.into(), revision: wire.revision, stamp: wire.stamp }
    }
}

pub(super) fn wire_records(records: Vec<Record>) -> Vec<WireRecord> {
    records.into_iter().map(Into::into).collect()
}

pub(super) fn read(records: Vec<WireRecord>) -> Vec<Record> {
    records.into_iter().map(Into::into).collect()
}

#[derive(Serialize, Deserialize)]
pub(super) struct List {
    pub(super) filter: Filter,
    pub(super) page: Page,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Listed {
    records: Vec<WireRecord>,
    next: Option<Cursor>,
}

impl From<Listing> for Listed {
    fn from(listing: Listing) -> Self {
        Self { records: wire_records(listing.records), next: listing.next }
    }
}

impl From<Listed> for Listing {
    fn from(listed: Listed) -> Self {
        Self { records: read(listed.records), next: listed.next }
    }
}

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Commit {
    pub(super) writes: Vec<Write>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WriteResult {
    Done(Revision),
    Conflict(Option<Box<WireRecord>>),
    KeyBusy { key: Key, holders: Vec<RunId>, free_at: Option<Timestamp> },
}

impl From<WriteOutcome> for WriteResult {
    fn from(written: WriteOutcome) -> Self {
        match written {
            WriteOutcome::Done(revision) => Self::Done(revision),
            WriteOutcome::Conflict(found) => Self::Conflict(found.map(|found| Box::new((*found).into()))),
            WriteOutcome::KeyBusy { key, holders, free_at } => Self::KeyBusy { key, holders, free_at },
        }
    }
}

impl From<WriteResult> for WriteOutcome {
    fn from(became: WriteResult) -> Self {
        match became {
            WriteResult::Done(revision) => Self::Done(revision),
            WriteResult::Conflict(found) => Self::Conflict(found.map(|found| Box::new((*found).into()))),
            WriteResult::KeyBusy { key, holders, free_at } => Self::KeyBusy { key, holders, free_at },
        }
    }
}

/// Which runs a rule is to be asked about.
#[derive(Serialize, Deserialize)]
pub(super) struct Select {
    pub(super) filter: Filter,
    pub(super) order: Order,
    pub(super) due: bool,
    pub(super) after: Option<Cursor>,
    pub(super) limit: usize,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Offer {
    pub(super) runs: Vec<Offered>,
    pub(super) next: Option<Cursor>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Offered {
    pub(super) run: WireRun,
    /// The store's time when it was looked at.
    pub(super) now: Timestamp,
    /// What it is known by as it was.
    pub(super) mark: String,
}

/// What a rule made of runs as they were offered.
#[derive(Serialize, Deserialize)]
pub(super) struct Changes {
    pub(super) order: Order,
    pub(super) due: bool,
    pub(super) changes: Vec<CommittedChange>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct CommittedChange {
    pub(super) mark: String,
    pub(super) transition: Transition,
    pub(super) stamp: Stamp,
}

/// Whose processes are looked for: the run, by the claim that the caller knows.
#[derive(Serialize, Deserialize)]
pub(super) struct ObserveRequest {
    pub(super) runs: Vec<(RunId, Epoch)>,
}
