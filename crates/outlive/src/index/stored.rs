//! A record as the index keeps it: short, because there may be a million, and without what its place tells.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::{IndexRecord, Kind, Lifecycle, Provenance, Tasks};
use crate::model::time::Timestamp;

#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    #[serde(borrow, rename = "i")]
    run_id: Cow<'a, str>,
    #[serde(borrow, rename = "t")]
    title: Cow<'a, str>,
    #[serde(borrow, rename = "k", default, skip_serializing_if = "Option::is_none")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "a", default, skip_serializing_if = "Option::is_none")]
    app_id: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "v", default, skip_serializing_if = "Option::is_none")]
    app_version: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "w", default, skip_serializing_if = "Option::is_none")]
    workflow_id: Option<Cow<'a, str>>,
    #[serde(rename = "l", default, skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(rename = "s")]
    lifecycle: Lifecycle,
    #[serde(rename = "d")]
    derived_lifecycle: Lifecycle,
    #[serde(borrow, rename = "g", default, skip_serializing_if = "Option::is_none")]
    loop_stage: Option<Cow<'a, str>>,
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    archived: bool,
    #[serde(borrow, rename = "xa", default, skip_serializing_if = "Option::is_none")]
    archived_at: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "xr", default, skip_serializing_if = "Option::is_none")]
    archive_reason: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "c")]
    created_at: Cow<'a, str>,
    #[serde(borrow, rename = "u")]
    updated_at: Cow<'a, str>,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    started_at: Option<i64>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    ended_at: Option<i64>,
    #[serde(rename = "cp", default, skip_serializing_if = "Option::is_none")]
    cpu_ms: Option<u64>,
    #[serde(rename = "pm", default, skip_serializing_if = "Option::is_none")]
    peak_memory_bytes: Option<u64>,
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    /// Tasks by how they stand, commits, gated ones, feedback.
    #[serde(rename = "q", default, skip_serializing_if = "is_nothing")]
    counts: [u64; 8],
    #[serde(rename = "h", default, skip_serializing_if = "Vec::is_empty")]
    backends: Vec<String>,
    #[serde(borrow, rename = "o", default, skip_serializing_if = "str::is_empty")]
    inputs_digest: Cow<'a, str>,
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    provenance: Option<Provenance>,
    #[serde(borrow, rename = "f", default, skip_serializing_if = "Option::is_none")]
    source_fingerprint: Option<Cow<'a, str>>,
    #[serde(borrow, rename = "y")]
    fingerprint: Cow<'a, str>,
}

fn is_nothing(counts: &[u64; 8]) -> bool {
    *counts == [0; 8]
}

/// The record as it is kept.
pub(super) fn write(record: &IndexRecord) -> String {
    let Tasks { total, pending, running, failed, completed } = record.tasks;
    let stored = Stored {
        run_id: Cow::Borrowed(&record.run_id),
        title: Cow::Borrowed(&record.title),
        kind: borrowed(&record.kind),
        app_id: borrowed(&record.app_id),
        app_version: borrowed(&record.app_version),
        workflow_id: borrowed(&record.workflow_id),
        labels: record.labels.clone(),
        lifecycle: record.lifecycle,
        derived_lifecycle: record.derived_lifecycle,
        loop_stage: borrowed(&record.loop_stage),
        archived: record.archived,
        archived_at: borrowed(&record.archived_at),
        archive_reason: borrowed(&record.archive_reason),
        created_at: Cow::Borrowed(&record.created_at),
        updated_at: Cow::Borrowed(&record.updated_at),
        started_at: record.started_at.map(Timestamp::as_micros),
        ended_at: record.ended_at.map(Timestamp::as_micros),
        cpu_ms: record.cpu_ms,
        peak_memory_bytes: record.peak_memory_bytes,
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
        inputs_digest: Cow::Borrowed(&record.inputs_digest),
        provenance: record.provenance.clone(),
        source_fingerprint: borrowed(&record.source_fingerprint),
        fingerprint: Cow::Borrowed(&record.fingerprint),
    };
    // Nothing in it can fail to be written.
    serde_json::to_string(&stored).unwrap_or_default()
}

fn borrowed(text: &Option<String>) -> Option<Cow<'_, str>> {
    text.as_deref().map(Cow::Borrowed)
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
pub(super) fn read(body: &str, home: Home<'_>) -> Option<IndexRecord> {
    let stored: Stored<'_> = serde_json::from_str(body).ok()?;
    let [total, pending, running, failed, completed, commit_count, gated, feedback] = stored.counts;
    let (run_dir, file) = match (home.kind, home.url.strip_prefix("sqlite:")) {
        (Kind::CoolWorkflow, _) => (Some(Path::new(home.repo).join(".cw/runs").join(home.name)), "state.json"),
        (Kind::Outlive, registry) => {
            (registry.map(|registry| Path::new(registry).join("runs").join(home.name)), "spec.json")
        }
    };
    Some(IndexRecord {
        run_id: stored.run_id.into_owned(),
        source: home.kind,
        repo: home.repo.into(),
        title: stored.title.into_owned(),
        kind: stored.kind.map(Cow::into_owned),
        app_id: stored.app_id.map(Cow::into_owned),
        app_version: stored.app_version.map(Cow::into_owned),
        workflow_id: stored.workflow_id.map(Cow::into_owned),
        labels: stored.labels,
        lifecycle: stored.lifecycle,
        derived_lifecycle: stored.derived_lifecycle,
        loop_stage: stored.loop_stage.map(Cow::into_owned),
        archived: stored.archived,
        archived_at: stored.archived_at.map(Cow::into_owned),
        archive_reason: stored.archive_reason.map(Cow::into_owned),
        created_at: stored.created_at.into_owned(),
        updated_at: stored.updated_at.into_owned(),
        started_at: stored.started_at.map(Timestamp::from_micros),
        ended_at: stored.ended_at.map(Timestamp::from_micros),
        cpu_ms: stored.cpu_ms,
        peak_memory_bytes: stored.peak_memory_bytes,
        attempt: stored.attempt,
        tasks: Tasks { total, pending, running, failed, completed },
        commit_count,
        verifier_gated_commit_count: gated,
        open_feedback_count: feedback,
        backends: stored.backends,
        inputs_digest: stored.inputs_digest.into_owned(),
        provenance: stored.provenance,
        source_fingerprint: stored.source_fingerprint.map(Cow::into_owned),
        fingerprint: stored.fingerprint.into_owned(),
        state_path: run_dir.as_ref().map(|dir| dir.join(file).display().to_string()),
        run_dir: run_dir.map(|dir| dir.display().to_string()),
    })
}
