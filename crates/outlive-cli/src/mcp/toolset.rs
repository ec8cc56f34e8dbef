//! The tool list: which operations are tools, and what a model that has read nothing else learns of each.
//!
//! A list is paid for in every conversation. The core set therefore has words of its own and only the fields that a
//! model needs; other tools have one sentence, and `more` answers with the whole schema of any tool and calls it.

use std::sync::Arc;

use clap::ValueEnum;
use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

use super::answer::length;
use crate::call::{Effect, Operation};
use crate::operations::TABLE;
use crate::operations::bulk::SELECTING;

/// The tool that tells of all others and calls them.
pub const MORE: &str = "more";
/// The longest text of a field outside the core set, and of one that `more` tells of in little room.
const FIELD_TEXT: usize = 30;
const TOLD_TEXT: usize = 80;
/// Fields that the core set explains: other tools only name them.
const EXPLAINED: [&str; 2] = ["run", "runs"];
/// The longest text of a tool outside the core set.
const TOOL_TEXT: usize = 160;

/// Which tools are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Group {
    /// Start, look, read output, wait, cancel and search; and `more`, which reaches all others
    Core,
    /// What else is done with runs: send, adopt, why, resume, rerun, reap, archive, rm, sweep, workers, doctor
    Runs,
    /// Runs that wait for a worker
    Queue,
    /// Runs of every repository, and the index of them
    Index,
    /// What a run reports of itself: progress, checkpoints, artifacts
    Report,
    /// All of them
    All,
}

/// A tool of the core set.
struct Core {
    name: &'static str,
    /// What it is for.
    text: &'static str,
    /// The fields that are listed, with what they hold.
    fields: &'static [(&'static str, &'static str)],
}

const FIELDS: &str = "run fields to return; [\"*\"] for all";

const CORE: &[Core] = &[
    Core {
        name: "run",
        text: "Start a command in the background: a server, a build, tests, a long job. Its output is kept and it outlives this \
               session. Answers at once with its id; `watch` waits a little and adds the first output.",
        fields: &[
            ("argv", "program and arguments; with shell: one script"),
            ("shell", "run it with /bin/sh -c"),
            ("cwd", "directory"),
            ("env", "NAME=VALUE to add"),
            ("name", "to find it by"),
            ("labels", "KEY=VALUE"),
            ("unique", "one run at a time per key: answers with the one that is there"),
            ("timeout", "end it after, such as 10m"),
            ("watch", "wait until it has ended or is ready, at most so long, such as 10s"),
            ("port", "names of free ports to lease: PORT is the first, OUTLIVE_PORT_<NAME> each"),
            ("ready_http", "ready when this URL answers; $PORT is the leased port"),
            ("ready_output", "ready when a line matches this regex"),
            ("leash", "session: it ends with this session. Default none"),
            ("stdin", "keep its input open for the tool send"),
        ],
    },
    Core {
        name: "ps",
        text: "List runs: those in flight and those that died or were interrupted. Use it first, to see what is already \
               running, also from earlier sessions.",
        fields: &[
            ("all", "also ended runs"),
            ("status", ""),
            ("name", "exact name"),
            ("labels", "KEY=VALUE"),
            ("sort", "created, duration, name… (-name: greatest first)"),
            ("limit", ""),
            ("cursor", "`next` of the last answer"),
            ("fields", FIELDS),
        ],
    },
    Core {
        name: "show",
        text: "Show one run: state, exit code, log files, and what can be done with it.",
        fields: &[("run", "id, name or @last"), ("fields", FIELDS)],
    },
    Core {
        name: "output",
        text: "Read what a run has written: the last lines, or the page after an earlier one. Works while it runs and \
               after it has ended.",
        fields: &[
            ("run", "id, name or @last"),
            ("lines", "last N lines (default 100)"),
            ("cursor", "`next` of the last answer: only what is new"),
            ("grep", "only lines that match this regex"),
            ("stdout", "only stdout"),
            ("stderr", "only stderr"),
            ("max_bytes", "default 4096"),
        ],
    },
    Core {
        name: "wait",
        text: "Wait until runs have ended; answers with exit codes. Answers after a while with `waiting` if they have \
               not: call it again. Do not poll with ps.",
        fields: &[
            ("runs", "ids or names"),
            ("any", "until the first has ended"),
            ("ready", "also when it is ready"),
            ("line", "also when an output line matches this regex"),
            ("timeout", "such as 10s or 5m"),
            ("fields", FIELDS),
        ],
    },
    Core {
        name: "cancel",
        text: "Stop runs with all their processes. `cancelled` means nothing is left of them.",
        fields: &[
            ("runs", "ids or names"),
            ("all", "every run in flight here; they are only listed without `yes`"),
            ("yes", "with `all` or a filter: do it"),
            ("wait", "answer when they have ended"),
            ("grace", "time to stop before SIGKILL, such as 2s"),
            ("reason", ""),
        ],
    },
    Core {
        name: "search",
        text: "Find runs of all repositories, also old ones, by words in name, command, labels or status.",
        fields: &[
            ("query", "words, all must match"),
            ("status", "such as failed"),
            ("since", "such as 2h, today, 2026-11-15"),
            ("limit", ""),
            ("cursor", "`next` of the last answer"),
            ("fields", FIELDS),
        ],
    },
];

const RUNS: &[&str] = &[
    "send",
    "adopt",
    "why",
    "result",
    "resume",
    "unpark",
    "pause",
    "unpause",
    "rerun",
    "reap",
    "archive",
    "unarchive",
    "rm",
    "sweep",
    "workers",
    "doctor",
];

/// What is for a shell or the reader of this machine, and of no use to an agent.
const NO_TOOLS: [&str; 2] = ["completions", "man"];

/// The operations that are tools. Operations for this machine's shell alone are none.
pub fn tools() -> impl Iterator<Item = &'static Operation> {
    TABLE.iter().filter(|operation| !NO_TOOLS.contains(&operation.name))
}

/// The operation that a tool calls.
pub fn find(tool: &str) -> Option<&'static Operation> {
    tools().find(|operation| name(operation) == tool)
}

/// What a tool is called.
pub fn name(operation: &Operation) -> String {
    operation.name.replace(' ', "_")
}

fn group(operation: &Operation) -> Group {
    match operation.name {
        name if CORE.iter().any(|core| core.name == name) => Group::Core,
        name if RUNS.contains(&name) => Group::Runs,
        name if name.starts_with("queue ") => Group::Queue,
        name if ["progress", "checkpoint", "artifact", "fence"].iter().any(|of| name.starts_with(of)) => Group::Report,
        _ => Group::Index,
    }
}

/// The tools of these groups that a caller with the permission `may` can call, the core set first.
pub fn listed(groups: &[Group], may: Effect) -> Vec<Tool> {
    let offered = |operation: &&Operation| operation.effect <= may;
    let core = CORE.iter().filter_map(|core| find(core.name).filter(offered).map(|found| core_tool(core, found)));
    let is_wanted = |of: Group| of != Group::Core && (groups.contains(&Group::All) || groups.contains(&of));
    let others = tools().filter(offered).filter(|operation| is_wanted(group(operation))).map(brief);
    core.chain([more(may)]).chain(others).collect()
}

/// A tool with its schema and help: the whole of them, or the fields with as many of their texts as fit into `limit`
/// bytes, the first ones first.
pub fn told(operation: &Operation, limit: usize) -> Value {
    let whole = json!({ "tool": name(operation), "description": operation.about().1, "input": operation.input() });
    let length = length(&whole);
    if length <= limit {
        return whole;
    }
    let mut shorter = whole;
    shorter["description"] = first_words(&operation.about().0, TOOL_TEXT).into();
    shorter["cut"] = format!("texts of {length} bytes were cut to fit; raise `max_bytes` for all of them").into();
    let mut texts = Vec::new();
    for (field, property) in shorter["input"]["properties"].as_object_mut().into_iter().flatten() {
        let text = first_words(property["description"].as_str().unwrap_or_default(), TOLD_TEXT);
        texts.push((field.clone(), text));
        *property = slim(property.take());
    }
    for (field, text) in texts.into_iter().filter(|(_, text)| !text.is_empty()) {
        let mut fuller = shorter.clone();
        fuller["input"]["properties"][&field]["description"] = text.into();
        if self::length(&fuller) <= limit {
            shorter = fuller;
        }
    }
    shorter
}

/// Every tool that a caller has permission for, in one line each.
pub fn index(may: Effect) -> Value {
    let line = |operation: &Operation| (name(operation), Value::String(operation.about().0));
    Value::Object(tools().filter(|operation| operation.effect <= may).map(line).collect())
}

fn core_tool(core: &Core, operation: &Operation) -> Tool {
    let input = operation.input();
    let mut properties = Map::new();
    for (field, text) in core.fields {
        let mut property = match *field {
            "fields" => json!({ "type": "array", "items": { "type": "string" } }),
            "max_bytes" => json!({ "type": "integer" }),
            field => slim(input["properties"][field].clone()),
        };
        if !text.is_empty() {
            property["description"] = (*text).into();
        }
        properties.insert((*field).into(), property);
    }
    tool(operation, core.text.into(), properties, &input)
}

fn brief(operation: &'static Operation) -> Tool {
    let input = operation.input();
    let mut properties = Map::new();
    // The filters of verbs that select runs are listed by `more` alone.
    let is_selection = input["properties"]["yes"].is_object() && input["properties"]["since"].is_object();
    let is_told = |field: &str| !is_selection || field != "yes" && !SELECTING.contains(&field);
    for (field, property) in input["properties"].as_object().into_iter().flatten().filter(|(field, _)| is_told(field)) {
        let text = property["description"].as_str().filter(|_| !EXPLAINED.contains(&field.as_str()));
        let text = text.map(|text| first_words(text, FIELD_TEXT));
        let mut property = slim(property.clone());
        if let Some(text) = text {
            property["description"] = text.into();
        }
        properties.insert(field.clone(), property);
    }
    let mut text = first_words(&operation.about().0, TOOL_TEXT);
    if is_selection {
        text.push_str("; `more` has its filters");
    }
    tool(operation, text, properties, &input)
}

/// A property without what a model can do without: its text, and a default that says nothing.
fn slim(mut property: Value) -> Value {
    if let Value::Object(property) = &mut property {
        property.remove("description");
        property.remove("minimum");
        if property.get("default").is_some_and(|default| *default == false || *default == 0) {
            property.remove("default");
        }
    }
    property
}

/// The beginning of a text: its first sentence, or as many of its words as fit.
fn first_words(text: &str, limit: usize) -> String {
    let sentence = text.split(". ").next().unwrap_or(text);
    if sentence.len() <= limit {
        return sentence.into();
    }
    let mut words = String::new();
    for word in sentence.split(' ') {
        if words.len() + word.len() >= limit {
            break;
        }
        words.push_str(if words.is_empty() { "" } else { " " });
        words.push_str(word);
    }
    words.trim_end_matches([',', ';', ':']).to_owned()
}

fn tool(operation: &Operation, text: String, properties: Map<String, Value>, input: &Value) -> Tool {
    let mut schema = Map::from_iter([("type".into(), "object".into()), ("properties".into(), properties.into())]);
    if let Some(required) = input.get("required") {
        schema.insert("required".into(), required.clone());
    }
    let mut annotations = ToolAnnotations::new();
    match operation.effect {
        Effect::Read => annotations.read_only_hint = Some(true),
        effect => annotations.destructive_hint = Some(effect >= Effect::Stop),
    }
    Tool::new(name(operation), text, Arc::new(schema)).with_annotations(annotations)
}

fn more(may: Effect) -> Tool {
    let text = "Every other tool (send, queue, resume, rerun, why, history, archive ...). Without fields: their names. With `tool`: \
                its fields. With `tool` and `input`: calls it.";
    let schema = json!({
        "type": "object",
        "properties": { "tool": { "type": "string" }, "input": { "type": "object" } }
    });
    let schema = if let Value::Object(schema) = schema { schema } else { Map::new() };
    let mut annotations = ToolAnnotations::new();
    annotations.read_only_hint = (may == Effect::Read).then_some(true);
    Tool::new(MORE, text, Arc::new(schema)).with_annotations(annotations)
}
