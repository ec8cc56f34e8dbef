//! YAML, as far as records need it: what any other reader of YAML reads alike, and the same bytes for the same value.
//!
//! Written are mappings in the order of their keys, texts in double quotes, and nothing that depends on a version of the
//! language. Read is whatever a writer of plain documents may have written. An alias is refused: a document that names
//! its own parts can say more than fits into memory.

use std::fmt::Write as _;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Number, Value};

/// The longest document that is read, in bytes.
pub const LIMIT: usize = 8 << 20;
/// How deep one may be.
const DEPTH: usize = 64;

/// A document that is not read, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(String);

/// The value as a document.
pub fn write(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => write_map(&mut text, map, 0),
        Value::Array(list) if !list.is_empty() => write_list(&mut text, list, 0),
        other => {
            write_scalar(&mut text, other);
            text.push('\n');
        }
    }
    text
}

fn write_map(text: &mut String, map: &Map<String, Value>, depth: usize) {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort();
    for (index, key) in keys.into_iter().enumerate() {
        if index > 0 || depth == 0 || text.ends_with('\n') {
            indent(text, depth);
        }
        if is_plain(key) {
            text.push_str(key);
        } else {
            write_text(text, key);
        }
        text.push(':');
        write_child(text, &map[key], depth);
    }
}

fn write_list(text: &mut String, list: &[Value], depth: usize) {
    for item in list {
        indent(text, depth);
        text.push('-');
        write_child(text, item, depth);
    }
}

/// What follows a key or a dash.
fn write_child(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            write_map(text, map, depth + 1);
        }
        Value::Array(list) if !list.is_empty() => {
            text.push('\n');
            write_list(text, list, depth + 1);
        }
        other => {
            text.push(' ');
            write_scalar(text, other);
            text.push('\n');
        }
    }
}

fn indent(text: &mut String, depth: usize) {
    text.extend(std::iter::repeat_n("  ", depth));
}

/// A key that no reader takes for anything but itself.
fn is_plain(key: &str) -> bool {
    const WORDS: [&str; 10] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan"];
    key.starts_with(|c: char| c.is_ascii_lowercase())
        && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !WORDS.contains(&key)
}

fn write_scalar(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(truth) => text.push_str(if *truth { "true" } else { "false" }),
        Value::Number(number) => write_number(text, number),
        Value::String(said) => write_text(text, said),
        Value::Array(_) => text.push_str("[]"),
        Value::Object(_) => text.push_str("{}"),
    }
}

fn write_number(text: &mut String, number: &Number) {
    let said = number.to_string();
    // Older readers take a power for a number only with a point before it and a sign behind it.
    match said.split_once('e') {
        None => text.push_str(&said),
        Some((digits, power)) => {
            let point = if digits.contains('.') { "" } else { ".0" };
            let sign = if power.starts_with(['-', '+']) { "" } else { "+" };
            // Writing to a text does not fail.
            let _ = write!(text, "{digits}{point}e{sign}{power}");
        }
    }
}

fn write_text(text: &mut String, said: &str) {
    text.push('"');
    for c in said.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\t' => text.push_str("\\t"),
            '\r' => text.push_str("\\r"),
            // What readers refuse to see, fold, or take for the order of bytes.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

/// The value that a document says.
pub fn read(bytes: &[u8]) -> Result<Value, Unreadable> {
    if bytes.len() > LIMIT {
        return Err(Unreadable(format!("it has {} bytes; the longest that is read has {LIMIT}", bytes.len())));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| Unreadable("it is not UTF-8".into()))?;
    let mut reader = Reader { events: Parser::new_from_str(text) };
    let mut value = None;
    loop {
        match reader.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            Event::StreamEnd => return value.ok_or_else(|| Unreadable("it is empty".into())),
            _ if value.is_some() => return Err(Unreadable("it is more than one document".into())),
            event => value = Some(reader.value(event, 0)?),
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Event<'a>, Unreadable> {
        match self.events.next() {
            Some(Ok((event, _))) => Ok(event),
            Some(Err(error)) => Err(Unreadable(format!("it is no YAML: {error}"))),
            None => Ok(Event::StreamEnd),
        }
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Value, Unreadable> {
        if depth > DEPTH {
            return Err(Unreadable(format!("it is more than {DEPTH} levels deep")));
        }
        match event {
            Event::Scalar(said, style, _, tag) => match tag {
                Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => Ok(Value::String(said.into_owned())),
                Some(tag) => Err(Unreadable(format!("it has the tag `{tag}`"))),
                _ if style == ScalarStyle::Plain => Ok(plain(&said)),
                _ => Ok(Value::String(said.into_owned())),
            },
            Event::SequenceStart(..) => {
                let mut list = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => return Ok(Value::Array(list)),
                        event => list.push(self.value(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(..) => self.map(depth),
            Event::Alias(_) => Err(Unreadable("it has an alias".into())),
            _ => Err(Unreadable("it ends too early".into())),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Unreadable> {
        let mut map = Map::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => return Ok(Value::Object(map)),
                Event::Scalar(key, ..) => key.into_owned(),
                Event::Alias(_) => return Err(Unreadable("it has an alias".into())),
                _ => return Err(Unreadable("a key of it is no text".into())),
            };
            let event = self.next()?;
            let value = self.value(event, depth + 1)?;
            if map.insert(key.clone(), value).is_some() {
                return Err(Unreadable(format!("it says `{key}` twice")));
            }
        }
    }
}

/// What a text without quotes is taken for. Dates stay texts.
fn plain(said: &str) -> Value {
    match said {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let is_numeric = said.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        && said.chars().all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'));
    let number = is_numeric.then(|| serde_json::from_str::<Number>(said).ok()).flatten();
    number.map_or_else(|| Value::String(said.into()), Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_reads_back_and_is_written_alike() {
        let value = json!({
            "b": {"z": [1, [], {}, [[2], {"x": null}], {"k": "v", "a": [true]}], "no": "no", "a b": "\"\\\n\t\u{1}\u{85}\u{2028}é🦀"},
            "a": -3, "float": 0.1, "big": u64::MAX, "tiny": 1e-300, "huge": 1e300, "empty": "", "time": "2026-11-16T10:00:00Z",
        });
        let text = write(&value);
        assert_eq!(read(text.as_bytes()).unwrap(), value, "{text}");
        assert_eq!(write(&read(text.as_bytes()).unwrap()), text);
        assert!(text.is_ascii() || text.contains('é'));
    }

    #[test]
    fn documents_of_other_writers_are_read() {
        let text = "--- \nerror_message: null\nlong: 'it''s\n  folded'\nstarted_at: '2026-03-25T10:00:00Z'\nwhen: 2026-03-25 10:00:00+00:00\n\
                    n: 7\nlist:\n- a\n- 'b'\nblock: |\n  x\n  y\nversion: 1.0.2\n";
        let read = read(text.as_bytes()).unwrap();
        assert_eq!(read["long"], "it's folded");
        assert_eq!((&read["n"], &read["list"]), (&json!(7), &json!(["a", "b"])));
        assert_eq!((&read["when"], &read["block"]), (&json!("2026-03-25 10:00:00+00:00"), &json!("x\ny\n")));
        assert_eq!(read["version"], "1.0.2");
    }

    #[test]
    fn bombs_and_nonsense_are_refused() {
        let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
        let deep = "[".repeat(5_000);
        let refused = |text: &str| read(text.as_bytes()).unwrap_err().to_string();
        insta::assert_snapshot!(refused(bomb), @"it has an alias");
        insta::assert_snapshot!(refused("a: 1\na: 2\n"), @"it says `a` twice");
        insta::assert_snapshot!(refused(""), @"it is empty");
        insta::assert_snapshot!(refused("a: 1\n---\nb: 2\n"), @"it is more than one document");
        assert!(refused("a: !!python/object:os.system x\n").starts_with("it has the tag"));
        assert!(refused(&deep).contains("deep") || refused(&deep).contains("no YAML"), "{}", refused(&deep));
        assert!(read(&[b'a'; LIMIT + 1]).is_err() && read(b"a: \xff\n").is_err());
    }
}
