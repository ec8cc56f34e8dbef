//! The fields of an operation's JSON input: its flags under another name.
//!
//! A JSON object is turned into the words that a shell would have given, and read by the same parser. What is required,
//! what excludes what, how a duration is written and what is assumed where nothing is said is therefore declared once,
//! and refused alike on every surface.

use std::any::TypeId;
use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value, json};

use super::json_word::JsonWord;

/// What a field holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Integer { signed: bool },
    Json,
    Text,
}

fn kind(arg: &Arg) -> Kind {
    if matches!(arg.get_action(), ArgAction::SetTrue) {
        return Kind::Switch;
    }
    let parser: &ValueParser = arg.get_value_parser();
    let is = |known: &[TypeId]| known.iter().any(|known| parser.type_id() == *known);
    if is(&[TypeId::of::<i32>(), TypeId::of::<i64>()]) {
        Kind::Integer { signed: true }
    } else if is(&[TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>()]) {
        Kind::Integer { signed: false }
    } else if is(&[TypeId::of::<JsonWord>()]) {
        Kind::Json
    } else {
        Kind::Text
    }
}

fn is_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_num_args().is_some_and(|count| count.max_values() > 1)
}

/// The JSON Schema of the input that a command's flags make up.
pub fn schema(command: &Command) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    // What stands without a flag is what the call is about: it comes first.
    let (about, others): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().partition(|arg| arg.is_positional());
    for arg in about.into_iter().chain(others) {
        let id = arg.get_id().as_str();
        if arg.is_required_set() {
            required.push(id);
        }
        properties.insert(id.into(), property(arg));
    }
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(arg: &Arg) -> Value {
    let kind = kind(arg);
    let mut one = match kind {
        Kind::Switch => json!({ "type": "boolean", "default": false }),
        Kind::Integer { signed: true } => json!({ "type": "integer" }),
        Kind::Integer { signed: false } => json!({ "type": "integer", "minimum": 0 }),
        Kind::Json => json!({}),
        Kind::Text => json!({ "type": "string" }),
    };
    let names: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if kind == Kind::Text && !names.is_empty() {
        one["enum"] = json!(names);
    }
    if let Some(default) = arg.get_default_values().first().and_then(|value| value.to_str()) {
        let number = default.parse::<i64>().ok().filter(|_| matches!(kind, Kind::Integer { .. }));
        one["default"] = number.map_or_else(|| default.into(), Value::from);
    }
    let mut property = if is_many(arg) { json!({ "type": "array", "items": one }) } else { one };
    if let Some(help) = arg.get_long_help().or_else(|| arg.get_help()) {
        property["description"] = help.to_string().into();
    }
    property
}

/// The words that say on a command line what the fields of `input` say.
pub fn words(command: &Command, input: Value) -> Result<Vec<OsString>, String> {
    let Value::Object(mut fields) = input else {
        return Err(format!("the input must be a JSON object, not {}", kind_of(&input)));
    };
    fields.retain(|_, value| !value.is_null());
    let mut words: Vec<String> = Vec::new();
    let mut behind: Vec<String> = Vec::new();
    let mut last: Vec<String> = Vec::new();
    let mut left_out = None;
    for arg in command.get_arguments() {
        let id = arg.get_id().as_str();
        let Some(value) = fields.remove(id) else {
            left_out = left_out.or(arg.is_positional().then_some(id));
            continue;
        };
        let values = scalars(arg, value).map_err(|why| format!("field `{id}`: {why}"))?;
        let flag = format!("--{}", arg.get_long().unwrap_or(id));
        match kind(arg) {
            Kind::Switch if values == ["true"] => words.push(flag),
            Kind::Switch => {}
            _ if arg.is_last_set() => last.extend(values),
            // The word behind a missing one would be taken for it.
            _ if arg.is_positional() => match left_out {
                Some(missing) if !values.is_empty() => return Err(format!("field `{missing}` is missing")),
                _ => behind.extend(values),
            },
            // In one word, so that a value that looks like a flag is none.
            _ => words.extend(values.iter().map(|value| format!("{flag}={value}"))),
        }
    }
    if let Some(unknown) = fields.keys().next() {
        let known: Vec<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        return Err(format!("there is no field `{unknown}`; the fields are: {}", known.join(", ")));
    }
    if command.get_arguments().any(Arg::is_last_set) {
        if let Some(flag) = behind.iter().find(|word| word.starts_with('-')) {
            return Err(format!("`{flag}` looks like a flag"));
        }
        words.append(&mut behind);
        behind = last;
    }
    if !behind.is_empty() {
        words.push("--".into());
        words.append(&mut behind);
    }
    Ok(words.into_iter().map(OsString::from).collect())
}

fn scalars(arg: &Arg, value: Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(values) if is_many(arg) => values.iter().map(|value| scalar(kind(arg), value)).collect(),
        value if is_many(arg) => Err(format!("it is a list, not {}", kind_of(&value))),
        value => Ok(vec![scalar(kind(arg), &value)?]),
    }
}

fn scalar(kind: Kind, value: &Value) -> Result<String, String> {
    match (kind, value) {
        (Kind::Switch, Value::Bool(on)) => Ok(on.to_string()),
        (Kind::Integer { .. }, Value::Number(number)) => Ok(number.to_string()),
        // As JSON it names no file, whatever it says.
        (Kind::Json, value) => Ok(value.to_string()),
        (Kind::Text, Value::String(text)) => Ok(text.clone()),
        (Kind::Switch, other) => Err(format!("it is true or false, not {}", kind_of(other))),
        (Kind::Integer { .. }, other) => Err(format!("it is a number, not {}", kind_of(other))),
        (Kind::Text, other) => Err(format!("it is a text, not {}", kind_of(other))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The input that the pairs of a query say: all of them are texts there.
pub fn from_query(command: &Command, pairs: impl Iterator<Item = (String, String)>) -> Result<Value, String> {
    let mut fields = Map::new();
    for (name, text) in pairs {
        let arg = command.get_arguments().find(|arg| arg.get_id().as_str() == name);
        let value = match arg.map(kind) {
            Some(Kind::Switch) => match text.as_str() {
                "" | "true" | "1" => true.into(),
                "false" | "0" => false.into(),
                _ => return Err(format!("field `{name}`: it is true or false, not `{text}`")),
            },
            Some(Kind::Integer { .. }) => {
                text.parse::<serde_json::Number>().map_or_else(|_| text.into(), Value::Number)
            }
            Some(Kind::Json) => {
                serde_json::from_str(&text).map_err(|error| format!("field `{name}`: it is not JSON: {error}"))?
            }
            // Who is unknown is refused with everybody else.
            Some(Kind::Text) | None => text.into(),
        };
        match (arg.is_some_and(is_many), fields.get_mut(&name)) {
            (true, Some(Value::Array(values))) => values.push(value),
            (true, _) => _ = fields.insert(name, json!([value])),
            (false, Some(_)) => return Err(format!("field `{name}` is given twice")),
            (false, None) => _ = fields.insert(name, value),
        }
    }
    Ok(fields.into())
}

#[cfg(test)]
mod tests {
    use clap::Args;

    use super::*;
    use crate::operations::{ps, queue, rerun};

    fn line<T: Args>(input: Value) -> Result<String, String> {
        let words = words(&T::augment_args(Command::new("x")), input)?;
        Ok(words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn fields_become_the_words_of_a_call_and_none_becomes_a_flag() {
        assert_eq!(line::<ps::Ps>(json!({})).unwrap(), "");
        assert_eq!(
            line::<ps::Ps>(json!({ "all": true, "wide": false, "name": "--json", "limit": 5, "cursor": null }))
                .unwrap(),
            "--all --name=--json --limit=5"
        );
        let add = json!({ "argv": ["make", "--help"], "name": "x", "resume_on": ["crash", "failure"] });
        assert_eq!(line::<queue::Add>(add).unwrap(), "--name=x --resume-on=crash --resume-on=failure -- make --help");
    }

    #[test]
    fn words_behind_two_dashes_stay_behind_what_the_call_is_about() {
        let again = json!({ "run": "train", "env": ["A=--b"], "args": ["--lr", "0.2"] });
        assert_eq!(line::<rerun::Rerun>(again).unwrap(), "--env=A=--b train -- --lr 0.2");
        assert_eq!(line::<rerun::Rerun>(json!({ "run": "train" })).unwrap(), "train");
        let refused = line::<rerun::Rerun>(json!({ "run": "--force" })).unwrap_err();
        assert_eq!(refused, "`--force` looks like a flag");
    }

    #[test]
    fn t3_03_the_command_is_the_first_field_and_states_are_listed() {
        let add = schema(&queue::Add::augment_args(Command::new("add")));
        assert_eq!(add["properties"].as_object().unwrap().keys().next().unwrap(), "argv");
        let listed = schema(&ps::Ps::augment_args(Command::new("ps")));
        let states = &listed["properties"]["status"]["items"]["enum"];
        assert!(states.as_array().unwrap().iter().any(|state| state == "orphaned"), "{states}");
        assert!(listed["properties"]["labels"].is_object() && add["properties"]["labels"].is_object());
    }

    #[test]
    fn fields_of_the_wrong_kind_are_refused_by_name() {
        for (input, why) in [
            (json!([]), "the input must be a JSON object, not a list"),
            (json!({ "al": true }), "there is no field `al`"),
            (json!({ "all": "yes" }), "field `all`: it is true or false, not a text"),
            (json!({ "limit": "5" }), "field `limit`: it is a number, not a text"),
            (json!({ "status": "dead" }), "field `status`: it is a list, not a text"),
            (json!({ "status": [1] }), "field `status`: it is a text, not a number"),
        ] {
            let refused = line::<ps::Ps>(input).unwrap_err();
            assert!(refused.starts_with(why), "{refused}");
        }
    }

    #[test]
    fn a_place_that_is_left_out_is_not_filled_with_the_next() {
        let refused = line::<crate::operations::progress::Progress>(json!({ "message": "9" })).unwrap_err();
        assert_eq!(refused, "field `done` is missing");
    }

    #[test]
    fn a_query_says_what_a_body_does() {
        let command = ps::Ps::augment_args(Command::new("ps"));
        let query = [("status", "dead"), ("status", "failed"), ("limit", "5"), ("all", "")];
        let pairs = || query.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let input = from_query(&command, pairs()).unwrap();
        assert_eq!(input, json!({ "status": ["dead", "failed"], "limit": 5, "all": true }));
        assert!(from_query(&command, pairs().chain(pairs())).unwrap_err().contains("given twice"));
    }
}
