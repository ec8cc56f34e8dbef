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
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "outlive",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Every run outlives its process. The same operations as the commands of `outlive`.",
        },
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
    let mut responses = Map::new();
    responses.insert(
        "200".into(),
        json!({
            "description": "It is done",
            "headers": headers(),
            "content": { "application/json": { "schema": (operation.output)() } },
        }),
    );
    for status in Code::ALL.map(|code| status(code).http) {
        responses.insert(status.to_string(), json!({ "$ref": "#/components/responses/Error" }));
    }
    let id = operation.name.replace(' ', "_");
    let mut methods = json!({
        "post": {
            "operationId": id,
            "summary": summary,
            "description": description,
            "requestBody": { "required": false, "content": { "application/json": { "schema": input } } },
            "responses": responses,
        },
    });
    if operation.effect == Effect::Read {
        methods["get"] = json!({
            "operationId": format!("get_{id}"),
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
