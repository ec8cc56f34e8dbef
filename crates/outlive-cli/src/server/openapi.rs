//! OpenAPI 3.1, rendered from the table of operations.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::IntoResponse;
use outlive::error::Code;
use serde_json::{Map, Value, json};

use super::api::path;
use crate::call::codes::status;
use crate::call::{Effect, Operation};
use crate::operations::TABLE;

/// The document that describes the API.
pub async fn document() -> impl IntoResponse {
    static DOCUMENT: OnceLock<String> = OnceLock::new();
    let text = DOCUMENT.get_or_init(|| render().to_string());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str())
}

fn render() -> Value {
    let mut paths = Map::new();
    // What is for a shell of the server's machine is not for readers of this.
    for operation in TABLE.iter().filter(|operation| operation.effect < Effect::Local) {
        paths.insert(path(operation), methods(operation));
    }
    for (path, method) in [("/v1/changes", changes()), ("/v1/follow", follow()), ("/v1/raw", raw())] {
        paths.insert(path.into(), json!({ "get": method }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "outlive",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Every run outlives its process. The same operations as the commands of `outlive`.",
        },
        "servers": [{ "url": "/", "description": "This server" }],
        "tags": TAGS.map(|(name, description, _)| json!({ "name": name, "description": description })),
        "paths": paths,
        "security": [{ "token": [] }],
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Error": error() },
            "responses": {
                "Error": {
                    "description": "It was not done, and this is why",
                    "headers": headers(),
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
                },
            },
        },
    })
}

/// What operations are about: the name of a tag, its description, and the first words of its operations.
const TAGS: [(&str, &str, &[&str]); 6] = [
    (
        "look",
        "Runs and what became of them",
        &["ps", "show", "why", "wait", "output", "result", "workers", "diff", "keys", "facets", "grep"],
    ),
    (
        "act",
        "Start, stop and repeat runs",
        &["run", "cancel", "resume", "unpark", "rerun", "reap", "archive", "unarchive", "adopt", "send"],
    ),
    ("queue", "Runs that wait for a worker", &["queue", "pause", "unpause"]),
    ("index", "Runs of every repository", &["search", "history", "list", "stats", "registry", "gc"]),
    ("report", "For programs inside a run", &["progress", "checkpoint", "artifact", "fence"]),
    ("maintain", "Registry, artifacts and health", &[]),
];

fn tag(operation: &Operation) -> &'static str {
    let first = operation.name.split(' ').next().unwrap_or_default();
    TAGS.iter().find(|(.., verbs)| verbs.contains(&first)).map_or("maintain", |(name, ..)| name)
}

/// A stream of server-sent events.
fn stream(summary: &str, description: &str, parameters: &Value) -> Value {
    json!({
        "summary": summary,
        "description": description,
        "tags": ["look"],
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "Server-sent events, until the client leaves or the server ends",
                "content": { "text/event-stream": { "schema": { "type": "string" } } },
            },
            "400": { "$ref": "#/components/responses/Error" },
            "401": { "$ref": "#/components/responses/Error" },
            "403": { "$ref": "#/components/responses/Error" },
            "429": { "$ref": "#/components/responses/Error" },
        },
    })
}

fn changes() -> Value {
    let events = "`hello`: every later change is sent. `runs`: those that changed. `workers`: all of them, when one came, left or \
                  changed its health, and now and then with their heartbeats. `output`: how much runs have written, where that grew. `again`: some were missed.";
    stream("Changes as they happen", events, &json!([]))
}

fn follow() -> Value {
    let events = "`page`: as `output` answers it. `end`: the attempt has ended. `failed`: it cannot be read.";
    let run = json!({ "name": "run", "in": "query", "required": true, "schema": { "type": "string" } });
    stream("The output of a run as it is written", events, &json!([run]))
}

/// The output of a run as one file: a query with the fields of `output`, and no JSON as its answer.
fn raw() -> Value {
    let output = TABLE.iter().find(|operation| operation.name == "output");
    // The length and the form of a page apply to paged reads only.
    let is_meant = |parameter: &Value| !["limit", "text", "grep"].iter().any(|name| parameter["name"] == *name);
    let asked = output.map(|output| parameters(&output.input())).unwrap_or_default().into_iter();
    let mut responses = errors();
    let file = json!({ "text/plain": { "schema": { "type": "string", "format": "binary" } } });
    responses.insert("200".into(), json!({ "description": "What was written, byte for byte", "content": file }));
    json!({
        "operationId": "raw",
        "tags": ["look"],
        "summary": "The output of a run as a file",
        "description": "Both streams in the order in which they were written, up to the end that is reached first.",
        "parameters": asked.filter(is_meant).collect::<Vec<_>>(),
        "responses": responses,
    })
}

/// The answers of a call that was not done.
fn errors() -> Map<String, Value> {
    let refused = |code| (status(code).http.to_string(), json!({ "$ref": "#/components/responses/Error" }));
    Code::ALL.map(refused).into_iter().collect()
}

/// An input with the fields that a call cannot do without, and with those that say what it is about.
fn example(input: &Value) -> Value {
    let is_required = |name: &str| input["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    let is_subject = |name: &str| ["run", "runs", "argv"].contains(&name);
    let fields = input["properties"].as_object().into_iter().flatten();
    let fields = fields.filter(|(name, _)| is_required(name) || is_subject(name));
    fields.map(|(name, schema)| (name.clone(), sample(name, schema))).collect::<Map<_, _>>().into()
}

/// A value that a field may have.
fn sample(name: &str, schema: &Value) -> Value {
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect(),
    };
    match (name, kinds.first().copied()) {
        ("argv", _) => json!(["echo", "hello"]),
        ("pattern", _) => "error".into(),
        ("done", _) => "3/4".into(),
        ("right", _) => "@~2".into(),
        _ if schema["enum"].is_array() => schema["enum"][0].clone(),
        (_, Some("array")) => json!([sample("run", &schema["items"])]),
        (_, Some("integer" | "number")) => {
            schema.get("minimum").filter(|least| **least != 0).cloned().unwrap_or(1.into())
        }
        (_, Some("boolean")) => true.into(),
        (_, Some("object")) => json!({}),
        ("run" | "left" | "id", _) => "@last".into(),
        (name, _) => name.to_uppercase().into(),
    }
}

fn error() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({
        "type": "object",
        "required": ["schema", "error"],
        "properties": {
            "schema": { "type": "integer" },
            "error": {
                "type": "object",
                "required": ["code", "message", "hint"],
                "properties": {
                    "code": { "enum": codes },
                    "message": { "type": "string" },
                    "hint": { "type": ["string", "null"] },
                },
            },
        },
    })
}

fn headers() -> Value {
    json!({
        "Outlive-Exit-Status": { "description": "What the command ends with", "schema": { "type": "integer" } },
    })
}

fn methods(operation: &Operation) -> Value {
    let (summary, description) = operation.about();
    let input = operation.input();
    let mut responses = errors();
    responses.insert(
        "200".into(),
        json!({
            "description": "It is done",
            "headers": headers(),
            "content": { "application/json": { "schema": (operation.output)() } },
        }),
    );
    let id = operation.name.replace(' ', "_");
    let mut methods = json!({
        "post": {
            "operationId": id,
            "tags": [tag(operation)],
            "summary": summary,
            "description": description,
            "requestBody": {
                "required": false,
                "content": { "application/json": { "schema": input, "example": example(&input) } },
            },
            "responses": responses,
        },
    });
    if operation.effect == Effect::Read {
        methods["get"] = json!({
            "operationId": format!("get_{id}"),
            "tags": [tag(operation)],
            "summary": summary,
            "description": description,
            "parameters": parameters(&input),
            "responses": responses,
        });
    }
    methods
}

fn parameters(input: &Value) -> Vec<Value> {
    let required: Vec<&Value> = input["required"].as_array().into_iter().flatten().collect();
    let parameter = |(name, schema): (&String, &Value)| {
        json!({
            "name": name,
            "in": "query",
            "required": required.iter().any(|required| *required == name),
            "schema": schema,
        })
    };
    input["properties"].as_object().into_iter().flatten().map(parameter).collect()
}
