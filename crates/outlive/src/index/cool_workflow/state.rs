//! A run of cool-workflow, from the bytes of its `state.json`.
//!
//! Only what the index wants is kept of a file. Anything in it may be of the wrong shape: what cool-workflow refuses is
//! refused with the reason, and one odd task hides neither the others nor the run.

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess};
use serde_json::{Map, Value};

use super::lenient::{Field, Shape, Wanted, from_object, present};
use super::next::NextTask;
use super::script::{bounded, by_units, collapsed, document, is_truthy, joined, said, slug, spelt, title};
use super::surrogates;
use crate::index::record::{Lifecycle, Tasks};
use crate::index::source::content_fingerprint;

/// The stages of a loop; the first is where one is that says none of them.
const STAGES: [&str; 5] = ["interpret", "act", "observe", "adjust", "checkpoint"];
/// What is most telling of what a run was asked to do.
const TELLING: [&str; 8] = ["question", "prompt", "task", "summary", "title", "objective", "focus", "topic"];
/// The longest digest of inputs, in UTF-16 units.
const DIGEST: usize = 360;
/// The longest word that is kept of a run: its id, its title, its app.
const LONGEST: usize = 1_024;
const EPOCH: &str = "1970-01-01T00:00:00.000Z";

/// What a file says of its run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct State {
    pub(super) id: String,
    pub(super) created_at: String,
    pub(super) updated_at: String,
    pub(super) loop_stage: String,
    pub(super) app_id: Option<String>,
    pub(super) app_version: Option<String>,
    pub(super) workflow_id: String,
    pub(super) title: String,
    pub(super) tasks: Tasks,
    pub(super) commits: u64,
    pub(super) gated: u64,
    pub(super) open_feedback: u64,
    pub(super) backends: Vec<String>,
    pub(super) inputs_digest: String,
    pub(super) fingerprint: String,
    /// It has lost what every run has: whether it may be believed depends on what lies beside it.
    pub(super) is_suspect: bool,
}

impl State {
    /// Reads the file of the run in the directory called `name`.
    pub(super) fn read(name: &str, bytes: &[u8]) -> Result<Self, String> {
        Ok(File::read(bytes)?.derive(name))
    }

    /// The tasks in a file that can be continued, up to `limit`, in their order.
    pub(super) fn next_tasks(bytes: &[u8], limit: usize) -> Result<Vec<NextTask>, String> {
        let file = File::read(bytes)?;
        let is_next =
            |part: &&Part| matches!(part.status.as_ref().and_then(Value::as_str), Some("pending" | "running"));
        let tasks = parts(&file.tasks).iter().filter(is_next).take(limit).cloned();
        Ok(tasks.map(|Part { id, phase, status, task_path, .. }| NextTask { id, phase, status, task_path }).collect())
    }

    /// How it stands: the first rule that fits.
    pub(super) fn lifecycle(&self) -> Lifecycle {
        let Tasks { total, pending, running, failed, completed } = self.tasks;
        match () {
            () if running > 0 => Lifecycle::Running,
            () if self.open_feedback > 0 => Lifecycle::Blocked,
            () if failed > 0 => Lifecycle::Failed,
            () if total > 0 && completed == total => Lifecycle::Completed,
            () if self.gated > 0 && pending == 0 => Lifecycle::Completed,
            () if completed > 0 => Lifecycle::Running,
            () => Lifecycle::Queued,
        }
    }
}

/// Lists of anything: what is no object in them says nothing.
#[derive(Debug, Default)]
struct List(Vec<Part>);

impl<'de> Wanted<'de> for List {
    fn from_list<A: SeqAccess<'de>>(mut list: A) -> Result<Option<Self>, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = list.next_element::<Field<Part>>()? {
            parts.push(if let Field::Is(part) = part { part } else { Part::default() });
        }
        Ok(Some(Self(parts)))
    }
}

/// A task, commit, phase or piece of feedback.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    status: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    phase: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    verifier_gated: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    backend_id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    task_path: Option<Value>,
}

impl<'de> Wanted<'de> for Part {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        from_object(map)
    }
}

#[derive(Debug, Default, Deserialize)]
struct Workflow {
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    title: Option<Value>,
    #[serde(default)]
    app: Field<App>,
}

impl<'de> Wanted<'de> for Workflow {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        from_object(map)
    }
}

#[derive(Debug, Default, Deserialize)]
struct App {
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    version: Option<Value>,
}

impl<'de> Wanted<'de> for App {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        from_object(map)
    }
}

/// An object whose fields are looked at for their shape alone.
type Shapes = std::collections::HashMap<String, Field<Shape>>;

impl<'de> Wanted<'de> for Shapes {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        from_object(map)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default, deserialize_with = "present")]
    schema_version: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    created_at: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    updated_at: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    loop_stage: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    workflow_id: Option<Value>,
    #[serde(default, deserialize_with = "present")]
    inputs: Option<Value>,
    #[serde(default)]
    workflow: Field<Workflow>,
    #[serde(default)]
    paths: Field<Shape>,
    #[serde(default)]
    phases: Field<List>,
    #[serde(default)]
    tasks: Field<List>,
    #[serde(default)]
    dispatches: Field<List>,
    #[serde(default)]
    commits: Field<List>,
    #[serde(default)]
    feedback: Field<List>,
    #[serde(default)]
    nodes: Field<Shape>,
    #[serde(default)]
    contracts: Field<Shape>,
    #[serde(default)]
    workers: Field<Shape>,
    #[serde(default)]
    sandbox_profiles: Field<Shape>,
    #[serde(default)]
    candidates: Field<Shape>,
    #[serde(default)]
    candidate_selections: Field<Shape>,
    #[serde(default)]
    audit: Field<Shape>,
    #[serde(default)]
    multi_agent: Field<Shapes>,
    #[serde(default)]
    blackboard: Field<Shapes>,
    #[serde(default)]
    topologies: Field<Shapes>,
    #[serde(default)]
    collaboration: Field<Shapes>,
}

impl<'de> Wanted<'de> for File {
    fn from_map<A: MapAccess<'de>>(map: A) -> Result<Option<Self>, A::Error> {
        from_object(map)
    }
}

impl File {
    /// What bytes say, unless cool-workflow would refuse them.
    fn read(bytes: &[u8]) -> Result<Self, String> {
        let parsed = match serde_json::from_slice(bytes) {
            Err(error) => surrogates::replaced(bytes).map_or(Err(error), |bytes| serde_json::from_slice(&bytes)),
            parsed => parsed,
        };
        let file: Field<Self> = parsed.map_err(|error| format!("not understood: {error}"))?;
        let Field::Is(file) = file else { return Err("a run's state is an object".into()) };
        file.check()?;
        Ok(file)
    }

    /// Refuses what cool-workflow refuses.
    fn check(&self) -> Result<(), String> {
        match &self.schema_version {
            None => {}
            Some(Value::Number(version)) if version.as_f64() == Some(1.0) => {}
            Some(other) => return Err(format!("schemaVersion {other} is not supported; known is 1")),
        }
        let lists = [
            ("phases", &self.phases),
            ("tasks", &self.tasks),
            ("dispatches", &self.dispatches),
            ("commits", &self.commits),
            ("feedback", &self.feedback),
        ];
        if let Some((name, _)) = lists.into_iter().find(|(_, list)| list.is_other()) {
            return Err(format!("`{name}` is not a list"));
        }
        let shapes = [
            ("nodes", &self.nodes, Shape::List),
            ("contracts", &self.contracts, Shape::List),
            ("workers", &self.workers, Shape::List),
            ("sandboxProfiles", &self.sandbox_profiles, Shape::List),
            ("candidates", &self.candidates, Shape::List),
            ("candidateSelections", &self.candidate_selections, Shape::List),
            ("audit", &self.audit, Shape::Object),
            ("paths", &self.paths, Shape::Object),
        ];
        if let Some((name, ..)) = shapes.into_iter().find(|(_, found, wanted)| !found.is_absent_or(wanted)) {
            return Err(format!("`{name}` is of the wrong shape"));
        }
        if self.workflow.is_other() {
            return Err("`workflow` is not an object".into());
        }
        let objects: [(&str, &Field<Shapes>, &[&str]); 4] = [
            ("multiAgent", &self.multi_agent, &["runs", "roles", "groups", "memberships", "fanouts", "fanins"]),
            (
                "blackboard",
                &self.blackboard,
                &["boards", "topics", "messages", "contexts", "artifacts", "snapshots", "decisions"],
            ),
            ("topologies", &self.topologies, &["runs"]),
            ("collaboration", &self.collaboration, &["approvals", "comments", "handoffs"]),
        ];
        for (name, object, lists) in objects {
            let is_wrong_in = |list: &&str| {
                object.get().and_then(|fields| fields.get(*list)).is_some_and(|found| !found.is_absent_or(&Shape::List))
            };
            if object.is_other() || lists.iter().any(is_wrong_in) {
                return Err(format!("`{name}` is of the wrong shape"));
            }
        }
        Ok(())
    }

    fn derive(&self, name: &str) -> State {
        let (tasks, commits) = (parts(&self.tasks), parts(&self.commits));
        let is = |part: &Part, status: &str| part.status.as_ref().and_then(Value::as_str) == Some(status);
        let count = |status: &str| tasks.iter().filter(|task| is(task, status)).count() as u64;
        // What is null says nothing.
        let text = |value: Option<&Value>| {
            value.filter(|value| !value.is_null()).map(|value| bounded(spelt(Some(value)), LONGEST))
        };
        // Each stands in for the other.
        let created = text(self.created_at.as_ref()).or_else(|| said(self.updated_at.as_ref()).map(Into::into));
        let created = created.unwrap_or_else(|| EPOCH.into());
        let updated = text(self.updated_at.as_ref()).unwrap_or_else(|| match said(Some(&created.clone().into())) {
            Some(created) => created.to_owned(),
            None => EPOCH.into(),
        });
        let stage = self.loop_stage.as_ref().and_then(Value::as_str);
        let stage = STAGES.into_iter().find(|known| stage == Some(known)).unwrap_or(STAGES[0]);
        let none = Workflow::default();
        let workflow = self.workflow.get().unwrap_or(&none);
        let unknown = || said(self.workflow_id.as_ref()).unwrap_or("unknown-workflow").to_owned();
        let workflow_id = text(workflow.id.as_ref()).unwrap_or_else(unknown);
        let app = workflow.app.get();
        let mut backends: Vec<String> = parts(&self.dispatches)
            .iter()
            .chain(tasks)
            .filter_map(|part| part.backend_id.as_ref().filter(|id| is_truthy(Some(id))))
            .map(|id| bounded(spelt(Some(id)), LONGEST))
            .collect();
        backends.sort_by(|one, other| by_units(one, other));
        backends.dedup();
        let id = text(self.id.as_ref()).filter(|id| !id.is_empty()).unwrap_or_else(|| name.into());
        State {
            // The fingerprint is of the field as it is, null or not.
            fingerprint: match &self.updated_at {
                Some(Value::Null) => self.fingerprint(&id, "null", stage),
                _ => self.fingerprint(&id, &updated, stage),
            },
            id,
            created_at: created,
            updated_at: updated,
            loop_stage: stage.into(),
            app_id: app.and_then(|app| text(app.id.as_ref())),
            app_version: app.and_then(|app| text(app.version.as_ref())),
            title: text(workflow.title.as_ref()).unwrap_or_else(|| title(&workflow_id)),
            workflow_id,
            tasks: Tasks {
                total: tasks.len() as u64,
                pending: count("pending"),
                running: count("running"),
                failed: count("failed"),
                completed: count("completed"),
            },
            commits: commits.len() as u64,
            gated: commits.iter().filter(|commit| is_truthy(commit.verifier_gated.as_ref())).count() as u64,
            open_feedback: parts(&self.feedback).iter().filter(|part| is(part, "open") || is(part, "tasked")).count()
                as u64,
            backends,
            inputs_digest: self.inputs.as_ref().map(digest).unwrap_or_default(),
            is_suspect: self.workflow.is_absent() || self.paths.is_absent(),
        }
    }

    /// What tells whether the parts of the run have changed.
    fn fingerprint(&self, id: &str, updated: &str, stage: &str) -> String {
        let mut lines =
            vec![format!("id:{id}"), format!("updatedAt:{updated}"), format!("loopStage:{stage}"), "schema:1".into()];
        let one =
            |sort: &str, part: &Part| format!("{sort}:{}:{}", spelt(part.id.as_ref()), spelt(part.status.as_ref()));
        lines.extend(parts(&self.tasks).iter().map(|part| one("task", part)));
        lines.extend(parts(&self.feedback).iter().map(|part| one("feedback", part)));
        lines.extend(parts(&self.commits).iter().map(|part| {
            let gated = if is_truthy(part.verifier_gated.as_ref()) { "gated" } else { "checkpoint" };
            format!("commit:{}:{gated}", spelt(part.id.as_ref()))
        }));
        match self.phases.get() {
            Some(phases) => lines.extend(phases.0.iter().map(|part| one("phase", part))),
            None => lines.extend(phases_of(parts(&self.tasks))),
        }
        lines.sort_by(|one, other| by_units(one, other));
        content_fingerprint(Value::from(lines).to_string().as_bytes())
    }
}

fn parts(field: &Field<List>) -> &[Part] {
    field.get().map_or(&[], |list| &list.0)
}

/// The phases that tasks name, where the file has none.
fn phases_of(tasks: &[Part]) -> Vec<String> {
    let mut phases: Vec<(&str, Vec<&str>)> = Vec::new();
    for task in tasks {
        let (phase, Some(id)) = (said(task.phase.as_ref()).unwrap_or("Workflow"), said(task.id.as_ref())) else {
            continue;
        };
        match phases.iter_mut().find(|(known, _)| *known == phase) {
            Some((_, ids)) => ids.push(id),
            None => phases.push((phase, vec![id])),
        }
    }
    let is_completed = |id: &str| {
        let task = tasks.iter().find(|task| task.id.as_ref().and_then(Value::as_str) == Some(id));
        task.is_some_and(|task| task.status.as_ref().and_then(Value::as_str) == Some("completed"))
    };
    let one = |(name, ids): &(&str, Vec<&str>)| {
        let status = if ids.iter().all(|id| is_completed(id)) { "completed" } else { "pending" };
        format!("phase:{}:{status}", slug(name))
    };
    phases.iter().map(one).collect()
}

/// What a run was asked to do, in a few words.
fn digest(inputs: &Value) -> String {
    let from_list = |values: &Vec<Value>| {
        values.iter().enumerate().map(|(place, value)| (place.to_string(), value.clone())).collect::<Map<_, _>>()
    };
    let fields = match inputs {
        Value::Object(fields) => fields.clone(),
        Value::Array(values) => from_list(values),
        _ => return String::new(),
    };
    let mut others: Vec<&str> = fields.keys().map(String::as_str).filter(|name| !TELLING.contains(name)).collect();
    others.sort_by(|one, other| by_units(one, other));
    let mut words = Vec::new();
    for name in TELLING.into_iter().chain(others) {
        let rendered = match fields.get(name) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(values)) => joined(values),
            Some(object @ Value::Object(_)) => document(object),
            Some(other) => spelt(Some(other)),
        };
        words.push(format!("{name}={rendered}"));
    }
    bounded(collapsed(&words.join(" ")), DIGEST)
}
