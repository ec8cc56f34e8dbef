//! Whether `docs/control-plane.md` names every field of every answer of the control plane, and no other.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::operations::TABLE;

/// Every operation of the control plane but those of `queue` and `registry`, which all are.
const OPERATIONS_OF_THE_PLANE: [&str; 11] =
    ["search", "history", "history export", "list", "stats", "gc", "rerun", "resume", "archive", "unarchive", "rm"];

/// An object in an answer: where it is, and its fields.
type Object = (String, BTreeSet<String>);

fn named(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The objects that the documentation has for an operation.
fn documented(operation: &str) -> Vec<Object> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control-plane.md");
    let docs = std::fs::read_to_string(path).unwrap();
    let said = docs.split("## What the answers say").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut objects = Vec::new();
    for line in said.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        if !named(cells[0]).contains(operation) {
            continue;
        }
        match cells[..] {
            [_, fields] => objects.push((String::new(), named(fields))),
            [_, places, fields] => objects.extend(named(places).into_iter().map(|place| (place, named(fields)))),
            _ => panic!("a row of another width: {line}"),
        }
    }
    objects
}

/// The objects that a schema has, wherever they are in it.
fn described(place: &str, schema: &Value, objects: &mut Vec<Object>) {
    let either = ["anyOf", "oneOf", "allOf"].iter().filter_map(|word| schema[word].as_array()).flatten();
    either.for_each(|schema| described(place, schema, objects));
    described_items(place, schema, objects);
    let Some(fields) = schema["properties"].as_object() else { return };
    objects.push((place.into(), fields.keys().filter(|field| *field != "schema").cloned().collect()));
    for (field, schema) in fields {
        let place = if place.is_empty() { field.clone() } else { format!("{place}.{field}") };
        described(&place, schema, objects);
    }
}

fn described_items(place: &str, schema: &Value, objects: &mut Vec<Object>) {
    if schema["items"].is_object() {
        described(place, &schema["items"], objects);
    }
}

#[test]
fn c13_every_field_of_every_answer_is_documented_and_no_other() {
    let is_meant = |name: &str| {
        OPERATIONS_OF_THE_PLANE.contains(&name) || name.starts_with("queue ") || name.starts_with("registry ")
    };
    let meant: Vec<_> = TABLE.iter().filter(|operation| is_meant(operation.name)).collect();
    assert!(meant.len() > OPERATIONS_OF_THE_PLANE.len() + 12, "operations are missing from the table");
    for operation in meant {
        let mut objects = Vec::new();
        described("", &(operation.output)(), &mut objects);
        let docs = documented(operation.name);
        for (place, fields) in &objects {
            let found = docs.iter().find(|(documented, _)| documented == place);
            let name = operation.name;
            assert_eq!(found.map(|(_, fields)| fields), Some(fields), "`{place}` of {name} is documented otherwise");
        }
        // Of an object that several have, each has some.
        let top = docs.iter().filter(|(place, _)| place.is_empty()).count();
        assert_eq!(top, 1, "{} has {top} rows", operation.name);
    }
}

#[test]
fn c13_run_of_another_source_has_the_fields_of_a_listed_one() {
    let show = TABLE.iter().find(|operation| operation.name == "show").unwrap();
    let mut objects = Vec::new();
    described("", &(show.output)(), &mut objects);
    let is_foreign = |(place, fields): &&Object| place.is_empty() && fields.contains("found");
    let mut foreign = objects.iter().find(is_foreign).unwrap().1.clone();
    let of = |operation: &str, place: &str| {
        documented(operation).into_iter().find(|(documented, _)| documented == place).unwrap().1
    };
    // The row says that those of a run in `runs` are there, too.
    for field in of("show", "") {
        assert!(field == "runs" || foreign.remove(&field), "`{field}` of show is documented and not there");
    }
    assert_eq!(foreign, of("search", "runs"));
    for place in ["tasks", "provenance"] {
        assert_eq!(objects.iter().find(|(at, _)| at == place).unwrap().1, of("show", place), "{place}");
    }
}
