//! Answers for agents: the fields that tell how a run stands, in as many bytes as were asked for.
//!
//! What an agent reads it pays for, and keeps for the rest of its conversation. The whole answer is one call away
//! (`fields: ["*"]`), and whatever is left out is said.

use serde_json::{Map, Value, json};

/// How long an answer is at the most where the call does not say.
pub const MOST: usize = 4096;
/// The field of a call that names what is wanted, and the one that says in how many bytes.
const FIELDS: &str = "fields";
const MAX_BYTES: &str = "max_bytes";
/// The field that no answer is without: a caller that does not learn which run it has started starts it again.
const ID: &str = "id";
/// How long texts may be, and then lists, until an answer fits.
const TEXTS: [usize; 6] = [2048, 1024, 512, 256, 128, 64];
const LISTS: [usize; 6] = [100, 30, 10, 5, 2, 1];

/// The fields of a run that an agent gets by default.
const SUMMARY: &[&str] = &[
    "id",
    "run_id",
    "name",
    "title",
    "state",
    "lifecycle",
    "health",
    "reason",
    "command",
    "cwd",
    "exit_code",
    "signal",
    "error_type",
    "error_message",
    "started_at",
    "ended_at",
    "duration_ms",
    "attempt",
    "progress_done",
    "progress_total",
    "progress_message",
    "leftover_pids",
    "cancel_requested_at",
    "repo",
    "logs",
    "artifacts",
    "schedule",
    "waits_for",
    "not_before",
    "freshness_reason",
    "labels",
    "ready",
    "url",
    "ports",
];

/// What a call says of its own answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AnswerOptions {
    /// The fields of each run; none for those that tell how it stands.
    fields: Option<Vec<String>>,
    max_bytes: Option<usize>,
}

impl AnswerOptions {
    /// Takes out of a call what it says of its answer.
    pub fn take(input: &mut Map<String, Value>) -> Result<Self, String> {
        let fields = match input.remove(FIELDS) {
            None | Some(Value::Null) => None,
            Some(Value::Array(names)) => {
                let names = names.into_iter().map(|name| name.as_str().map(str::to_owned));
                Some(names.collect::<Option<Vec<_>>>().ok_or("field `fields`: it is a list of texts")?)
            }
            Some(_) => return Err("field `fields`: it is a list of texts".into()),
        };
        let max_bytes = match input.remove(MAX_BYTES) {
            None | Some(Value::Null) => None,
            Some(bytes) => {
                let bytes = bytes.as_u64().and_then(|bytes| usize::try_from(bytes).ok());
                Some(bytes.ok_or("field `max_bytes`: it is a number")?)
            }
        };
        Ok(Self { fields, max_bytes })
    }

    /// Whether the answer is wanted as it is.
    fn is_all(&self) -> bool {
        self.fields.as_ref().is_some_and(|fields| fields.iter().any(|field| field == "*"))
    }

    /// The most bytes of the answer.
    pub fn limit(&self) -> usize {
        self.max_bytes.unwrap_or(if self.is_all() { usize::MAX } else { MOST })
    }

    /// The part of an answer that is wanted, whatever its length.
    pub fn pick(&self, answer: Value) -> Value {
        if self.is_all() {
            return answer;
        }
        let mut answer = slim(answer);
        let wanted = self.fields.as_deref();
        let has_runs = pick_runs(&mut answer, wanted, 0);
        if let (Value::Object(fields), Some(wanted), false) = (&mut answer, wanted, has_runs) {
            // That there is no run is an answer, too.
            fields.retain(|name, _| name == "runs" || name == ID || wanted.contains(name));
        }
        if let Value::Object(fields) = &mut answer {
            // What is the same in every answer.
            fields.retain(|name, _| !["schema", "verified"].contains(&name.as_str()));
            if wanted.is_none() {
                say_once(fields);
            }
        }
        answer
    }

    /// An answer in as many bytes as are wanted, and its id in any case.
    pub fn fit(&self, answer: Value) -> Value {
        let limit = self.limit();
        let length = length(&answer);
        if length <= limit {
            return answer;
        }
        let mut cut;
        let shorter = TEXTS.into_iter().map(|texts| (texts, usize::MAX)).chain(LISTS.map(|lists| (TEXTS[2], lists)));
        let shorter = shorter.chain(LISTS.map(|lists| (64, lists)));
        for (texts, lists) in shorter {
            cut = shorten(answer.clone(), texts, lists);
            if let Value::Object(fields) = &mut cut {
                fields.insert(
                    "cut".into(),
                    format!("{length} bytes were cut to fit; name `fields`, raise `max_bytes`, or page with `limit`")
                        .into(),
                );
            }
            if self::length(&cut) <= limit {
                return cut;
            }
        }
        let mut cut = json!({ "cut": format!("the answer is {length} bytes; name `fields` or raise `max_bytes`") });
        if let (Value::Object(cut), Some(id)) = (&mut cut, answer.get(ID).filter(|id| self::length(id) < TEXTS[5])) {
            cut.insert(ID.into(), id.clone());
        }
        cut
    }
}

/// How many bytes a value takes.
pub fn length(value: &Value) -> usize {
    value.to_string().len()
}

/// A value without what says nothing.
fn slim(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| (name, slim(value)));
            Value::Object(fields.filter(|(_, value)| !is_nothing(value)).collect())
        }
        Value::Array(values) => values.into_iter().map(slim).collect(),
        other => other,
    }
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Leaves of each run the fields that are wanted. Answers whether there was any.
fn pick_runs(value: &mut Value, wanted: Option<&[String]>, depth: usize) -> bool {
    const DEEPEST: usize = 4;
    match value {
        Value::Object(fields) if is_run(fields) => {
            fields.retain(|name, value| match wanted {
                Some(wanted) => name == ID || name == "run_id" || wanted.contains(name),
                None => SUMMARY.contains(&name.as_str()) && *value != json!([]) && is_telling(name, value),
            });
            if wanted.is_none() && fields.get("error_type") == Some(&"exit".into()) {
                // The reason says so, and the exit code.
                fields.retain(|name, _| !["error_type", "error_message"].contains(&name.as_str()));
            }
            true
        }
        Value::Object(fields) if depth < DEEPEST => {
            // All of them, not only the first.
            fields.values_mut().filter_map(|value| pick_runs(value, wanted, depth + 1).then_some(())).count() > 0
        }
        Value::Array(values) if depth < DEEPEST => {
            values.iter_mut().filter_map(|value| pick_runs(value, wanted, depth + 1).then_some(())).count() > 0
        }
        _ => false,
    }
}

/// Leaves out of the run that a call started what the answer says beside it, and the caller's own words.
fn say_once(answer: &mut Map<String, Value>) {
    let Some(Value::Object(run)) = answer.get("run") else { return };
    let mut run = run.clone();
    let is_own = answer.get("made") == Some(&true.into());
    run.retain(|name, value| {
        answer.get(name) != Some(value) && !(is_own && ["command", "cwd"].contains(&name.as_str()))
    });
    answer.insert("run".into(), run.into());
}

/// A run of this registry, or of the index.
fn is_run(fields: &Map<String, Value>) -> bool {
    let has = |name: &str| fields.contains_key(name);
    has("id") && has("state") && has("epoch") || has("run_id") && has("lifecycle")
}

/// Whether a field says more than that all is as usual.
fn is_telling(name: &str, value: &Value) -> bool {
    match name {
        "health" => value != "healthy",
        "attempt" => *value != 1,
        _ => true,
    }
}

fn shorten(value: Value, texts: usize, lists: usize) -> Value {
    match value {
        Value::String(text) if text.len() > texts => {
            let cut = (0..=texts).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
            format!("{}… ({} more bytes)", &text[..cut], text.len() - cut).into()
        }
        Value::Array(values) => {
            let left = values.len().saturating_sub(lists);
            let mut kept: Vec<Value> =
                values.into_iter().take(lists).map(|value| shorten(value, texts, lists)).collect();
            if left > 0 {
                kept.push(format!("… ({left} more)").into());
            }
            kept.into()
        }
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, shorten(value, texts, lists))).collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(input: Value) -> AnswerOptions {
        let Value::Object(mut input) = input else { panic!("no object") };
        AnswerOptions::take(&mut input).unwrap()
    }

    fn run(name: &str) -> Value {
        json!({ "id": "1", "name": name, "state": "running", "epoch": 1, "health": "healthy", "attempt": 1, "owner": "w", "signal": null })
    }

    #[test]
    fn an_answer_has_the_fields_of_a_runs_state() {
        let answer = json!({ "schema": 1, "runs": [run("a")], "next": null });
        assert_eq!(
            wanted(json!({})).pick(answer.clone()),
            json!({ "runs": [{ "id": "1", "name": "a", "state": "running" }] })
        );
        let named = wanted(json!({ "fields": ["owner"] })).pick(answer.clone());
        assert_eq!(named, json!({ "runs": [{ "id": "1", "owner": "w" }] }));
        assert_eq!(wanted(json!({ "fields": ["*"] })).pick(answer.clone()), answer);
    }

    #[test]
    fn start_answer_repeats_neither_itself_nor_the_caller() {
        let mut made = run("a");
        made["command"] = json!(["true"]);
        made["url"] = json!("http://x/");
        let answer = json!({ "id": "1", "name": "a", "made": true, "url": "http://x/", "run": made });
        let picked = wanted(json!({})).pick(answer.clone());
        assert_eq!(
            picked,
            json!({ "id": "1", "name": "a", "made": true, "url": "http://x/", "run": { "state": "running" } })
        );
        let mut found = answer.clone();
        found["made"] = json!(false);
        assert_eq!(wanted(json!({})).pick(found)["run"]["command"], json!(["true"]), "another caller started it");
        assert_eq!(wanted(json!({ "fields": ["command"] })).pick(answer)["run"]["command"], json!(["true"]));
    }

    #[test]
    fn answer_to_a_start_has_its_id_whatever_is_wanted() {
        let id = "019aa000-0000-7000-8000-000000000001";
        let mut made = run("a");
        made["id"] = id.into();
        let bare = json!({ "id": id, "name": "a", "made": true, "log": "/x".repeat(50), "url": null });
        let mut watched = bare.clone();
        (watched["run"], watched["output"]) = (made, "x".repeat(10_000).into());
        for asked in
            [json!({ "fields": ["state"] }), json!({ "max_bytes": 40 }), json!({ "fields": [], "max_bytes": 1 })]
        {
            for answer in [&bare, &watched] {
                let wanted = wanted(asked.clone());
                assert_eq!(wanted.fit(wanted.pick(answer.clone()))["id"], id, "{asked}");
            }
        }
    }

    #[test]
    fn an_answer_fits_whatever_is_in_it_and_says_that_it_was_cut() {
        let long = "ä".repeat(10_000);
        let many: Vec<Value> = (0..500).map(|_| run(&long)).collect();
        for (asked, answer) in [
            (json!({}), json!({ "runs": many.clone() })),
            (json!({ "max_bytes": 300 }), json!({ "runs": many })),
            (json!({}), json!({ "text": long })),
            (json!({}), json!({ "deep": [[[[vec![long.clone(); 300]]]]] })),
        ] {
            let wanted = wanted(asked);
            let fitted = wanted.fit(wanted.pick(answer));
            assert!(length(&fitted) <= wanted.limit(), "{fitted}");
            assert!(fitted["cut"].is_string(), "{fitted}");
        }
    }

    #[test]
    fn what_a_call_says_of_its_answer_is_checked() {
        for wrong in [json!({ "fields": "id" }), json!({ "fields": [1] }), json!({ "max_bytes": "4k" })] {
            let Value::Object(mut input) = wrong.clone() else { panic!("no object") };
            assert!(AnswerOptions::take(&mut input).is_err(), "{wrong}");
        }
    }
}
