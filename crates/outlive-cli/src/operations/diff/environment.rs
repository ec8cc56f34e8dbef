//! How the environments of two runs differ: listed variables by value, kept ones by name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use outlive::run::Variables;
use serde_json::{Value, json};

use super::Field;

/// The variables that are listed with either run. Secrets among them are masked on record.
pub fn variables(
    what: &str,
    left: &BTreeMap<String, String>,
    right: &BTreeMap<String, String>,
) -> impl Iterator<Item = Field> {
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let field =
        |name: &String| Field::new(format!("{what} {name}"), json!(left.get(name)), json!(right.get(name)), false);
    names.into_iter().map(field).collect::<Vec<_>>().into_iter()
}

/// The variables that were kept for both runs and differ, without their values, which may be secret. Nothing is known
/// where one of the environments is kept no longer.
pub fn kept(left: Option<&Variables>, right: Option<&Variables>) -> Vec<Field> {
    let (Some(left), Some(right)) = (left, right) else { return Vec::new() };
    let by_name = |variables: &Variables| -> BTreeMap<String, String> {
        let text = |word: OsString| word.to_string_lossy().into_owned();
        variables.pairs().map(|(name, value)| (text(name), text(value))).collect()
    };
    let (left, right) = (by_name(left), by_name(right));
    let names: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    let differs = names.into_iter().filter(|name| left.get(*name) != right.get(*name));
    let masked = |value: Option<&String>, other: &str| value.map_or(Value::Null, |_| json!(other));
    differs
        .map(|name| Field {
            field: format!("environment {name}"),
            left: masked(left.get(name), "a value"),
            right: masked(right.get(name), "another value"),
            equal: false,
            measured: false,
        })
        .collect()
}
