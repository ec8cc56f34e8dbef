//! `run.yaml`: one run as a bucket keeps it.
//!
//! The fields of the outer mapping are those that writers shared before there was outlive, in their spelling and with
//! their meaning: `status` has three words, and a sweeper that knows no others must never take what may still be needed.
//! What is ours is under `outlive`. Unknown fields are kept as they came.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{BucketAddress, yaml};
use crate::model::id::{Epoch, RunId, Stamp, WorkerId};
use crate::model::owner::{HostContext, Identity};
use crate::model::policy::{LONGEST, Lease};
use crate::model::run::{Actor, End, Ending, Event, Failure, LastHeartbeat, Output, Owner, Run, Running, Spec, State};
use crate::model::time::Timestamp;
use crate::store::{Error, Record, Revision};

/// The version of the fields that are shared.
pub(super) const FORMAT: i64 = 1;
/// What stands in its place where nothing may be put any more: a record that was deleted, or a run that came too late.
const CLOSED: &str = "closed";
/// The version of those that are ours.
const OURS: i64 = 1;
/// How long a run that may go on is kept from sweepers that know only leases.
const MAY_GO_ON: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A run and everything that is kept with it. As JSON, it has no events.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Document {
    pub(super) run: Run,
    pub(super) revision: Revision,
    pub(super) stamp: Stamp,
    pub(super) beats: Beats,
    /// When the first attempt started; absent before that.
    pub(super) first_started_at: Option<Timestamp>,
    /// What happened since the last part of the event log was put aside.
    #[serde(skip)]
    pub(super) events: Vec<Event>,
    /// Where the parts before it are, first to last.
    #[serde(skip)]
    pub(super) parts: Vec<String>,
    /// What others wrote beside what is known here.
    pub(super) others: Map<String, Value>,
    /// It was written by a program that knows only what is shared.
    pub(super) foreign: bool,
}

/// What was heard of the owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Beats {
    /// How many beats there have been, claims included.
    pub(super) count: u64,
    /// When the last was, by the server's clock as the owner knew it.
    pub(super) at: Timestamp,
    /// The object was put by that beat, so that its own date tells when it was.
    pub(super) fresh: bool,
}

/// What is ours in a record.
#[derive(Serialize, Deserialize)]
struct Ours {
    format: i64,
    revision: u64,
    stamp: Stamp,
    /// Never the same twice, so that no two versions of a record have the same ETag.
    nonce: Stamp,
    beats: Beats,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_started_at: Option<Timestamp>,
    run: Run,
    events: Vec<Event>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<String>,
}

/// The fields that are shared, apart from the version.
const SHARED: [&str; 15] = [
    "format_version",
    "run_id",
    "writer_type",
    "status",
    "state",
    "started_at",
    "updated_at",
    "lease_expires_at",
    "s3_prefix",
    "shard_prefix",
    "db_path_template",
    "manifest_ref",
    "error_type",
    "error_message",
    "outlive",
];

impl Document {
    pub(super) fn record(&self, heard: LastHeartbeat) -> Record {
        let mut run = self.run.clone();
        if let Some(owner) = run.owner_mut() {
            owner.heard = heard;
        }
        Record { run, revision: self.revision, stamp: self.stamp }
    }

    /// The object, put at `now` by the server's clock into the registry at `registry`.
    pub(super) fn write(&self, nonce: Stamp, now: Timestamp, registry: &BucketAddress) -> Result<String, Error> {
        let unwritable = |error| Error::Corrupt(format!("run `{}` cannot be written down: {error}", self.run.id));
        let ours = Ours {
            format: OURS,
            revision: self.revision.0,
            stamp: self.stamp,
            nonce,
            beats: self.beats,
            first_started_at: self.first_started_at,
            run: self.run.clone(),
            events: self.events.clone(),
            parts: self.parts.clone(),
        };
        let mut fields = self.others.clone();
        fields.extend(self.shared(now, registry));
        fields.insert("outlive".into(), serde_json::to_value(ours).map_err(unwritable)?);
        Ok(yaml::write(&Value::Object(fields)))
    }

    /// What an object says; `key` is where it is.
    pub(super) fn read(key: &str, bytes: &[u8]) -> Result<Self, Error> {
        let corrupt = |why: String| Error::Corrupt(format!("`{key}` cannot be read: {why}"));
        let Value::Object(mut fields) = yaml::read(bytes).map_err(|error| corrupt(error.to_string()))? else {
            return Err(corrupt("it is no mapping".into()));
        };
        let newer = |found| Error::Newer { what: key.into(), found, known: FORMAT };
        match fields.get("format_version") {
            Some(version) if *version == json!(FORMAT) => {}
            Some(version) if *version == json!(CLOSED) => return Err(corrupt("there is no run here any more".into())),
            Some(version) => {
                let found = version.as_i64().ok_or_else(|| corrupt(format!("`format_version` is {version}")))?;
                return Err(newer(found));
            }
            None => return Err(corrupt("it has no `format_version`".into())),
        }
        let Some(ours) = fields.get("outlive") else { return foreign(key, fields).map_err(corrupt) };
        if let Some(found) = ours.get("format").and_then(Value::as_i64).filter(|format| *format > OURS) {
            return Err(newer(found));
        }
        let ours: Ours = serde_json::from_value(ours.clone()).map_err(|error| corrupt(error.to_string()))?;
        for name in SHARED {
            fields.remove(name);
        }
        let Ours { revision, stamp, beats, first_started_at, run, events, parts, .. } = ours;
        let revision = Revision(revision);
        Ok(Self { run, revision, stamp, beats, first_started_at, events, parts, others: fields, foreign: false })
    }
}

/// What stands in place of a record where nothing may be put any more.
pub(super) fn closed(nonce: Stamp, now: Timestamp) -> String {
    yaml::write(&json!({"format_version": CLOSED, "nonce": nonce, "at": now}))
}

/// Since when nothing may be put where these bytes are; none where they say something else.
pub(super) fn closed_at(bytes: &[u8]) -> Option<Timestamp> {
    let fields = yaml::read(bytes).ok()?;
    let at = fields.get("at").and_then(|at| at.as_str()?.parse().ok());
    (*fields.get("format_version")? == json!(CLOSED)).then(|| at.unwrap_or(Timestamp::from_micros(0)))
}

impl Document {
    /// The run in the fields and words that writers share.
    fn shared(&self, now: Timestamp, registry: &BucketAddress) -> Map<String, Value> {
        let run = &self.run;
        let (status, lease_expires_at) = match &run.state {
            State::Running(running) => ("running", self.beats.at.after(running.owner.lease.lasts())),
            // It may continue, and needs what it has written.
            State::Pending(_) | State::Suspended(_) => ("running", now.after(MAY_GO_ON)),
            State::Ended(ending) => match ending.how {
                End::Interrupted(_) => ("running", now.after(MAY_GO_ON)),
                End::Succeeded => ("succeeded", now),
                End::Failed(_) | End::Cancelled(_) | End::Dead(_) => ("failed", now),
            },
        };
        let (error_type, error_message) = failure(run);
        let started_at = self.first_started_at.unwrap_or(run.created_at);
        // A run without artifacts has its own tree below the registry, and nothing in it.
        let output =
            run.spec.output.clone().unwrap_or_else(|| Output { prefix: registry.to_string(), ..Output::default() });
        let fields = json!({
            "format_version": FORMAT,
            "run_id": output.run_id.clone().unwrap_or_else(|| run.id.to_string()),
            "writer_type": run.spec.kind,
            "status": status,
            "state": run.state.name().as_str(),
            "started_at": started_at,
            // A clock that was set back moves no record before its start.
            "updated_at": now.max(started_at),
            "lease_expires_at": lease_expires_at.max(started_at),
            "s3_prefix": output.prefix,
            "shard_prefix": output.shard_prefix,
            "db_path_template": output.db_path_template,
            "manifest_ref": run.manifest_ref.as_deref().map(|reference| url_of(&output.prefix, reference)),
            "error_type": error_type,
            "error_message": error_message,
        });
        match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        }
    }
}

/// The type and the message of a failure; absent unless the run failed.
fn failure(run: &Run) -> (Option<String>, Option<String>) {
    match run.ending().map(|ending| &ending.how) {
        Some(End::Failed(failure)) => (Some(failure.error_type.clone()), Some(failure.error_message.clone())),
        Some(End::Cancelled(request)) => (
            Some("cancelled".into()),
            Some(request.reason.clone().unwrap_or_else(|| format!("cancelled by {}", request.by))),
        ),
        Some(End::Dead(reap)) => (Some("dead".into()), Some(reap.evidence.to_string())),
        _ => (None, None),
    }
}

/// The URL of a manifest that a writer names in full, or from its prefix on.
fn url_of(prefix: &str, reference: &str) -> String {
    if reference.contains("://") {
        return reference.to_owned();
    }
    let place = match reference.strip_prefix('/') {
        // A path of the host, where the artifacts are in a directory.
        Some(_) if !prefix.contains("://") => reference.to_owned(),
        _ => format!("{}/{}", prefix.trim_end_matches('/'), reference.trim_start_matches('/')),
    };
    if place.starts_with('/') { format!("file://{place}") } else { place }
}

/// When the present attempt started; absent where none has.
pub(super) fn started(run: &Run) -> Option<Timestamp> {
    match &run.state {
        State::Running(running) => Some(running.started_at),
        State::Suspended(suspended) => Some(suspended.started_at),
        State::Ended(ending) => ending.started_at,
        State::Pending(_) => None,
    }
}

/// A record of a program that knows only what is shared: read as a run that is neither judged nor changed here.
fn foreign(key: &str, mut fields: Map<String, Value>) -> Result<Document, String> {
    let mut text = |name: &str| match fields.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("`{name}` is {other}")),
    };
    let required = |name: &str, found: Option<String>| found.ok_or_else(|| format!("it has no `{name}`"));
    let (run_id, status) = (required("run_id", text("run_id")?)?, required("status", text("status")?)?);
    let mut time = |name: &str| -> Result<Timestamp, String> {
        let said = required(name, text(name)?)?;
        // Some writers leave the T out.
        let spelt = said.replacen(' ', "T", usize::from(said.as_bytes().get(10) == Some(&b' ')));
        spelt.parse().map_err(|error| format!("`{name}`: {error}"))
    };
    let (started_at, updated_at, ends) = (time("started_at")?, time("updated_at")?, time("lease_expires_at")?);
    let kind = text("writer_type")?.unwrap_or_else(|| "writer".into());
    let output = Output {
        prefix: text("s3_prefix")?.unwrap_or_default(),
        shard_prefix: text("shard_prefix")?.unwrap_or_default(),
        db_path_template: text("db_path_template")?.unwrap_or_default(),
        run_id: Some(run_id.clone()),
        ..Output::default()
    };
    let manifest_ref = text("manifest_ref")?;
    let failure = Failure {
        error_type: text("error_type")?.unwrap_or_else(|| "unknown".into()),
        error_message: text("error_message")?.unwrap_or_default(),
        reap: None,
        gave_up: None,
    };
    let ended =
        |how| State::Ended(Ending { how, at: updated_at, started_at: Some(started_at), owner: None, exit: None });
    let state = match status.as_str() {
        "running" => State::Running(Running::begun(stranger(key, ends.since(updated_at)), started_at, updated_at)),
        "succeeded" => ended(End::Succeeded),
        "failed" => ended(End::Failed(failure)),
        other => return Err(format!("`status` is `{other}`")),
    };
    let unknown = Actor { user: "unknown".into(), host: "unknown".into(), pid: 0 };
    let spec = Spec { name: Some(run_id), output: Some(output), ..Spec::new(kind, unknown) };
    let id = RunId::foreign(started_at, key.as_bytes());
    let run = Run {
        state,
        epoch: Epoch(1),
        manifest_ref,
        updated_at,
        copied: true,
        foreign: true,
        ..Run::new(id, Arc::new(spec), None, started_at)
    };
    let stamp = Stamp::of(key.as_bytes());
    let beats = Beats { count: 1, at: updated_at, fresh: true };
    let revision = Revision(u64::try_from(updated_at.as_micros()).unwrap_or(1).max(1));
    Ok(Document {
        run,
        revision,
        stamp,
        beats,
        first_started_at: Some(started_at),
        events: Vec::new(),
        parts: Vec::new(),
        others: fields,
        foreign: true,
    })
}

/// An owner of whom nothing is known but how long it promised to be heard of.
fn stranger(key: &str, lease: Duration) -> Owner {
    let vantage = HostContext { host: "unknown".into(), boot_id: "unknown".into(), pid_ns: 0, time_ns: 0 };
    let identity = Identity { vantage, pid: 0, start_ticks: 0, pidfs_inode: None, lock_inode: None };
    // One that is longer than any of ours is as long as the longest, and never as short as the usual.
    let lease = lease.min(LONGEST);
    let lease = Lease::new(lease / 3, lease).unwrap_or_default();
    Owner { worker: WorkerId::of(key.as_bytes()), identity, lease, heard: LastHeartbeat::default() }
}
