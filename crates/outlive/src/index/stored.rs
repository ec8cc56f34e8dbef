//! A record as the index keeps it: short, because there may be a million, and without what its place tells.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::{Kind, Lifecycle, Provenance, Record, Tasks};
use crate::time::Timestamp;

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Stored {
    #[serde(rename = "i")]
    run_id: String,
    #[serde(rename = "t")]
    title: String,
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(rename = "a", default, skip_serializing_if = "Option::is_none")]
    app_id: Option<String>,
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    app_version: Option<String>,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    workflow_id: Option<String>,
    #[serde(rename = "l", default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(rename = "s")]
    lifecycle: Lifecycle,
    #[serde(rename = "d")]
    derived_lifecycle: Lifecycle,
    #[serde(rename = "g", default, skip_serializing_if = "Option::is_none")]
    loop_stage: Option<String>,
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    archived: bool,
    #[serde(rename = "xa", default, skip_serializing_if = "Option::is_none")]
    archived_at: Option<String>,
    #[serde(rename = "xr", default, skip_serializing_if = "Option::is_none")]
    archive_reason: Option<String>,
    #[serde(rename = "c")]
    created_at: String,
    #[serde(rename = "u")]
    updated_at: String,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    started_at: Option<i64>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<i64>,
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// Tasks by how they stand, commits, gated ones, feedback.
    #[serde(rename = "q", default, skip_serializing_if = "is_nothing")]
    counts: [u64; 8],
    #[serde(rename = "h", default, skip_serializing_if = "Vec::is_empty")]
    backends: Vec<String>,
    #[serde(rename = "o", default, skip_serializing_if = "String::is_empty")]
    inputs_digest: String,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    provenance: Option<Provenance>,
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    source_fingerprint: Option<String>,
    #[serde(rename = "y")]
    fingerprint: String,
}

fn is_nothing(counts: &[u64; 8]) -> bool {
    *counts == [0; 8]
}

/// The record as it is kept.
pub(super) fn write(record: &Record) -> String {
    let Tasks { total, pending, running, failed, completed } = record.tasks;
    let stored = Stored {
        run_id: record.run_id.clone(),
        title: record.title.clone(),
        kind: record.kind.clone(),
        app_id: record.app_id.clone(),
        app_version: record.app_version.clone(),
        workflow_id: record.workflow_id.clone(),
        labels: record.labels.clone(),
        lifecycle: record.lifecycle,
        derived_lifecycle: record.derived_lifecycle,
        loop_stage: record.loop_stage.clone(),
        archived: record.archived,
        archived_at: record.archived_at.clone(),
        archive_reason: record.archive_reason.clone(),
        created_at: record.created_at.clone(),
        updated_at: record.updated_at.clone(),
        started_at: record.started_at.map(Timestamp::as_micros),
        ended_at: record.ended_at.map(Timestamp::as_micros),
        attempt: record.attempt,
        counts: [
            total,
            pending,
            running,
            failed,
            completed,
            record.commit_count,
            record.verifier_gated_commit_count,
            record.open_feedback_count,
        ],
        backends: record.backends.clone(),
        inputs_digest: record.inputs_digest.clone(),
        provenance: record.provenance.clone(),
        source_fingerprint: record.source_fingerprint.clone(),
        fingerprint: record.fingerprint.clone(),
    };
    // Nothing in it can fail to be written.
    serde_json::to_string(&stored).unwrap_or_default()
}

/// Where a record belongs: the source that it is kept under, and its name there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Home<'a> {
    pub(super) kind: Kind,
    pub(super) url: &'a str,
    pub(super) repo: &'a str,
    pub(super) name: &'a str,
}

/// The record that was kept; none where it cannot be understood.
pub(super) fn read(body: &str, home: Home<'_>) -> Option<Record> {
    let stored: Stored = serde_json::from_str(body).ok()?;
    let [total, pending, running, failed, completed, commit_count, gated, feedback] = stored.counts;
    let (run_dir, file) = match (home.kind, home.url.strip_prefix("sqlite:")) {
        (Kind::CoolWorkflow, _) => (Some(Path::new(home.repo).join(".cw/runs").join(home.name)), "state.json"),
        (Kind::Outlive, registry) => {
            (registry.map(|registry| Path::new(registry).join("runs").join(home.name)), "spec.json")
        }
    };
    Some(Record {
        run_id: stored.run_id,
        source: home.kind,
        repo: home.repo.into(),
        title: stored.title,
        kind: stored.kind,
        app_id: stored.app_id,
        app_version: stored.app_version,
        workflow_id: stored.workflow_id,
        labels: stored.labels,
        lifecycle: stored.lifecycle,
        derived_lifecycle: stored.derived_lifecycle,
        loop_stage: stored.loop_stage,
        archived: stored.archived,
        archived_at: stored.archived_at,
        archive_reason: stored.archive_reason,
        created_at: stored.created_at,
        updated_at: stored.updated_at,
        started_at: stored.started_at.map(Timestamp::from_micros),
        ended_at: stored.ended_at.map(Timestamp::from_micros),
        attempt: stored.attempt,
        tasks: Tasks { total, pending, running, failed, completed },
        commit_count,
        verifier_gated_commit_count: gated,
        open_feedback_count: feedback,
        backends: stored.backends,
        inputs_digest: stored.inputs_digest,
        provenance: stored.provenance,
        source_fingerprint: stored.source_fingerprint,
        fingerprint: stored.fingerprint,
        state_path: run_dir.as_ref().map(|dir| dir.join(file).display().to_string()),
        run_dir: run_dir.map(|dir| dir.display().to_string()),
    })
}
