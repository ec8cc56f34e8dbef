//! A home and a few repositories of cool-workflow, for a test to break.

use std::path::{Path, PathBuf};

use outlive::index::{Index, Query, SearchHit, SourceAddress};
use outlive::time::Timestamp;
use serde_json::{Value, json};

pub(crate) struct Yard {
    dir: tempfile::TempDir,
}

impl Yard {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn index(&self) -> Index {
        Index::of(&self.path().join("home"))
    }

    /// A repository, registered.
    pub(crate) fn repo(&self, name: &str) -> PathBuf {
        let root = self.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(root.join(".cw/runs")).unwrap();
        SourceAddress::of_tree(&root).register(&self.path().join("home"), Timestamp::default()).unwrap();
        root
    }

    pub(crate) fn all(&self) -> Vec<SearchHit> {
        self.search(&Query { limit: 10_000, ..Query::default() })
    }

    pub(crate) fn search(&self, query: &Query) -> Vec<SearchHit> {
        self.index().search(query).unwrap().runs
    }
}

/// Writes a run as cool-workflow does: another file takes the place of the old one.
pub(crate) fn put(repo: &Path, name: &str, state: &Value) {
    put_bytes(repo, name, state.to_string().as_bytes());
}

pub(crate) fn put_bytes(repo: &Path, name: &str, bytes: &[u8]) {
    let dir = repo.join(".cw/runs").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("state.json.next"), bytes).unwrap();
    std::fs::rename(dir.join("state.json.next"), dir.join("state.json")).unwrap();
}

/// A run with tasks that stand so.
pub(crate) fn state(id: &str, created_at: &str, tasks: &[&str]) -> Value {
    let tasks: Vec<Value> =
        tasks.iter().enumerate().map(|(place, status)| json!({"id": format!("t{place}"), "status": status})).collect();
    json!({
        "schemaVersion": 1, "id": id, "createdAt": created_at, "updatedAt": created_at, "loopStage": "act",
        "workflow": {"id": "wf", "title": format!("Title of {id}")}, "paths": {}, "inputs": {"question": "why"},
        "phases": [], "tasks": tasks, "dispatches": [], "commits": [], "feedback": [],
    })
}
