//! The reference pages that the book includes: every call over HTTP and every tool of MCP, as the program describes them.

use serde_json::Value;

use super::sandbox::Sandbox;
use super::served::{Agent, Served};

/// The type of a field, as a reader of JSON writes it.
fn type_of(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        return values.iter().map(|value| format!("`{}`", text(value))).collect::<Vec<_>>().join(", ");
    }
    match field["type"].as_str() {
        Some("array") => format!("list: {}", type_of(&field["items"])),
        Some(name) => name.to_owned(),
        None => "any".into(),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A table of an object's fields; a sentence where it has none.
fn fields(schema: &Value) -> String {
    let Some(properties) = schema["properties"].as_object().filter(|fields| !fields.is_empty()) else {
        return "No fields.\n".into();
    };
    let is_required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    let row = |(name, field): (&String, &Value)| {
        let mark = if is_required(name) { " (required)" } else { "" };
        let said = text(&field["description"]).replace('|', "\\|").replace('<', "&lt;");
        format!("| `{name}`{mark} | {} | {said} |\n", type_of(field))
    };
    let rows: String = properties.iter().map(row).collect();
    format!("| field | type | |\n|---|---|---|\n{rows}")
}

#[test]
fn http_reference_has_every_call_with_its_fields() {
    let sandbox = Sandbox::new();
    let served = Served::start(&sandbox, &["--allow", "execute"]);
    let described = served.get("/v1/openapi.json").json();
    let section = |(path, call): (&String, &Value)| {
        let schema = &call["post"]["requestBody"]["content"]["application/json"]["schema"];
        format!("## `POST {path}`\n\n{}.\n\n{}", text(&call["post"]["summary"]), fields(schema))
    };
    let page: Vec<String> = described["paths"].as_object().unwrap().iter().map(section).collect();
    insta::assert_snapshot!(page.join("\n"));
}

#[test]
fn mcp_reference_has_every_tool_with_its_fields() {
    let sandbox = Sandbox::new();
    let mut agent = Agent::start(&sandbox, &["--allow", "destroy", "--tools", "all"]);
    let section = |tool: &Value| {
        format!("## `{}`\n\n{}\n\n{}", text(&tool["name"]), text(&tool["description"]), fields(&tool["inputSchema"]))
    };
    let page: Vec<String> = agent.tools().iter().map(section).collect();
    insta::assert_snapshot!(page.join("\n"));
}
