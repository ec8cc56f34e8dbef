//! An entry put into a JSON document as text: every other byte of it stays as it was.
//!
//! A document that is parsed and written again comes back with other numbers, other escapes and another layout.

use serde_json::{Map, Value};

/// How far the entries of a list are indented where nothing is there to go by.
const INDENT: &str = "  ";

/// A document with the entry `name` added to the object that its field `list` holds, which is made if it is missing. None
/// where the entry is there already. Fails where there is another of that name, and where the document is none that can
/// be added to.
pub fn with_entry(text: &str, list: &str, name: &str, entry: &Value) -> Result<Option<String>, String> {
    if text.trim().is_empty() {
        return shown(list, name, entry).map(Some);
    }
    let whole = parsed(text)?;
    let fields = whole.as_object().ok_or("it is no JSON object")?;
    let added = match fields.get(list) {
        Some(Value::Object(entries)) => match entries.get(name) {
            Some(there) if there == entry => return Ok(None),
            Some(_) => return Err(super::OTHER.into()),
            None => {
                let outer = ObjectText::at(text, text.find('{').unwrap_or_default());
                insert(text, &ObjectText::at(text, outer.value_of(list)?), name, entry)?
            }
        },
        Some(_) => return Err(format!("`{list}` is no object")),
        None => {
            let entries = Value::Object(Map::from_iter([(name.to_owned(), entry.clone())]));
            insert(text, &ObjectText::at(text, text.find('{').unwrap_or_default()), list, &entries)?
        }
    };
    // What was there is there still, and nothing else but the entry is.
    let mut read = parsed(&added)?;
    let removed = read.get_mut(list).and_then(Value::as_object_mut).and_then(|entries| entries.shift_remove(name));
    if fields.get(list).is_none() {
        read.as_object_mut().and_then(|fields| fields.shift_remove(list));
    }
    if removed.as_ref() == Some(entry) && read == whole {
        Ok(Some(added))
    } else {
        Err("the entry cannot be added".into())
    }
}

/// A document that has the entry alone.
pub fn shown(list: &str, name: &str, entry: &Value) -> Result<String, String> {
    let entries = Value::Object(Map::from_iter([(name.to_owned(), entry.clone())]));
    let whole = Value::Object(Map::from_iter([(list.to_owned(), entries)]));
    serde_json::to_string_pretty(&whole).map(|text| text + "\n").map_err(|error| error.to_string())
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("it is no JSON that can be kept as it is: {error}"))
}

/// An object of a document, as places in its text. The document is known to be valid.
struct ObjectText {
    /// Behind its opening brace.
    begin: usize,
    /// Behind its last value, or behind its opening brace.
    end: usize,
    /// Its names as they are written, and where the value of each begins.
    fields: Vec<(String, usize)>,
}

impl ObjectText {
    /// The object whose opening brace is at `open`.
    fn at(text: &str, open: usize) -> Self {
        let bytes = text.as_bytes();
        let (mut at, mut depth, mut end) = (open + 1, 1_usize, open + 1);
        let (mut fields, mut last_text) = (Vec::new(), 0..0);
        while depth > 0 && at < bytes.len() {
            match bytes[at] {
                b'"' => {
                    let begin = at;
                    at += 1;
                    while at < bytes.len() && bytes[at] != b'"' {
                        at += if bytes[at] == b'\\' { 2 } else { 1 };
                    }
                    last_text = begin..at + 1;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                b':' if depth == 1 => {
                    let name = serde_json::from_str(&text[last_text.clone()]).unwrap_or_default();
                    let value = text[at + 1..].find(|c: char| !c.is_ascii_whitespace()).unwrap_or_default();
                    fields.push((name, at + 1 + value));
                }
                _ => {}
            }
            at += 1;
            if depth > 0 && !bytes[at - 1].is_ascii_whitespace() {
                end = at;
            }
        }
        Self { begin: open + 1, end, fields }
    }

    /// Where the value of a field begins. A name that stands there twice means one or the other, by the reader.
    fn value_of(&self, name: &str) -> Result<usize, String> {
        let mut found = self.fields.iter().filter(|(field, _)| field == name).map(|(_, at)| *at);
        match (found.next(), found.next()) {
            (Some(at), None) => Ok(at),
            _ => Err(format!("`{name}` is not there once")),
        }
    }
}

/// The text with a field added behind the others of an object, laid out as they are.
fn insert(text: &str, object: &ObjectText, name: &str, value: &Value) -> Result<String, String> {
    let comma = if object.fields.is_empty() { "" } else { "," };
    let key = Value::from(name).to_string();
    let after_brace = &text[object.begin..];
    let gap = &after_brace[..after_brace.len() - after_brace.trim_start().len()];
    let is_laid_out = gap.contains('\n') || text.trim() == "{}";
    let field = if is_laid_out {
        let line = &text[text[..object.begin].rfind('\n').map_or(0, |at| at + 1)..object.begin];
        let outer = &line[..line.len() - line.trim_start().len()];
        let indent = match gap.rfind('\n') {
            Some(at) if !object.fields.is_empty() => gap[at + 1..].to_owned(),
            _ => format!("{outer}{INDENT}"),
        };
        let pretty = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
        let end = if object.fields.is_empty() { format!("\n{outer}") } else { String::new() };
        format!("{comma}\n{indent}{key}: {}{end}", pretty.replace('\n', &format!("\n{indent}")))
    } else {
        format!("{comma} {key}: {value}")
    };
    let rest = &text[object.end..];
    // Between empty braces there was nothing but space.
    let rest = if object.fields.is_empty() && is_laid_out { rest.trim_start() } else { rest };
    Ok(format!("{}{field}{rest}", &text[..object.end]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entry_is_added_and_every_other_byte_stays() {
        let entry = json!({ "command": "o", "args": ["mcp"] });
        let numbers = "{\n\t\"n\" : 12345678901234567890123, \"e\": 1.0E2,\n\t\"s\": \"\\u00e9 \\/ } \\\" {\"\n}\n";
        for found in [
            "{}",
            "{ }",
            "{\n}\n",
            numbers,
            r#"{"a":[{"servers":{}}],"servers":{}}"#,
            r#"{"servers": {"x": {"command": "y"}}, "z": 0.1}"#,
            "{\n  \"servers\": {\n    \"x\": {\n      \"a\": [1, 2]\n    }\n  },\n  \"big\": 1e999\n}",
            "{\n  \"servers\": {},\n  \"a\": -0.0\n}",
        ] {
            if found.contains("1e999") {
                assert!(with_entry(found, "servers", "outlive", &entry).is_err(), "it is out of the range of numbers");
                continue;
            }
            let added = with_entry(found, "servers", "outlive", &entry).unwrap().unwrap();
            let read: Value = serde_json::from_str(&added).unwrap();
            assert_eq!(read["servers"]["outlive"], entry, "{added}");
            // Without the text that was put into it, and the space in empty braces, it is what it was.
            let bytes = |text: &str| text.split_whitespace().collect::<String>();
            let (is, was) = (bytes(&added), bytes(found));
            let begin = is.bytes().zip(was.bytes()).take_while(|(is, was)| is == was).count();
            assert!(is.ends_with(&was[begin..]), "{found}\n{added}");
            assert_eq!(with_entry(&added, "servers", "outlive", &entry).unwrap(), None);
        }
        let added = with_entry(numbers, "servers", "outlive", &entry).unwrap().unwrap();
        assert!(added.starts_with(numbers.trim_end_matches("\n}\n")) && added.ends_with("\n}\n"), "{added}");
    }

    #[test]
    fn entry_is_laid_out_as_its_neighbours_are() {
        let entry = json!({ "command": "o" });
        let found = "{\n    \"servers\": {\n        \"x\": {}\n    }\n}\n";
        let added = with_entry(found, "servers", "outlive", &entry).unwrap().unwrap();
        let is = "{\n    \"servers\": {\n        \"x\": {},\n        \"outlive\": {\n          \"command\": \"o\"\n        }\n    }\n}\n";
        assert_eq!(added, is);
        assert_eq!(
            with_entry("{\n}\n", "servers", "outlive", &entry).unwrap().unwrap(),
            "{\n  \"servers\": {\n    \"outlive\": {\n      \"command\": \"o\"\n    }\n  }\n}\n"
        );
    }

    #[test]
    fn list_that_is_there_twice_is_refused() {
        let entry = json!({ "command": "o" });
        for found in [r#"{"servers": {}, "servers": {}}"#, r#"{"servers": [], "s\u0065rvers": {}}"#] {
            assert!(with_entry(found, "servers", "outlive", &entry).is_err(), "{found}");
        }
    }
}
