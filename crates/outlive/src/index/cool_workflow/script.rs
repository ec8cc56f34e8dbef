//! Values as the language of cool-workflow spells and orders them: its digests and fingerprints are made of such texts.

use serde_json::{Number, Value};

/// Orders texts by their UTF-16 units.
pub(super) fn by_units(one: &str, other: &str) -> std::cmp::Ordering {
    one.encode_utf16().cmp(other.encode_utf16())
}

/// A value inside a template; none was never set.
pub(super) fn spelt(value: Option<&Value>) -> String {
    match value {
        None => "undefined".into(),
        Some(Value::Null) => "null".into(),
        Some(Value::Bool(value)) => value.to_string(),
        Some(Value::Number(number)) => number_text(number),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(values)) => joined(values),
        Some(Value::Object(_)) => "[object Object]".into(),
    }
}

/// The values of an array, with commas between them; what is null leaves nothing but its comma.
pub(super) fn joined(values: &[Value]) -> String {
    let one = |value: &Value| if value.is_null() { String::new() } else { spelt(Some(value)) };
    values.iter().map(one).collect::<Vec<_>>().join(",")
}

/// Whether a value counts as true.
pub(super) fn is_truthy(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(value)) => *value,
        Some(Value::Number(number)) => number.as_f64().is_some_and(|number| number != 0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(_) | Value::Object(_)) => true,
    }
}

/// A text that says something.
pub(super) fn said(value: Option<&Value>) -> Option<&str> {
    value.and_then(Value::as_str).filter(|text| !text.trim().is_empty())
}

/// A number in the fewest digits that tell it from all others.
fn number_text(number: &Number) -> String {
    if number.is_i64() || number.is_u64() {
        let exact = number.as_f64().unwrap_or_default();
        // Past 53 bits there are no odd numbers.
        return if exact.abs() < 9_007_199_254_740_992.0 { number.to_string() } else { float_text(exact) };
    }
    float_text(number.as_f64().unwrap_or_default())
}

fn float_text(number: f64) -> String {
    if number == 0.0 {
        return "0".into();
    }
    if (1e-6..1e21).contains(&number.abs()) {
        return number.to_string();
    }
    let text = format!("{number:e}");
    match text.split_once("e-") {
        Some(_) => text,
        None => text.replace('e', "e+"),
    }
}

/// A document in its shortest spelling, numbers as the language has them.
pub(super) fn document(value: &Value) -> String {
    match value {
        Value::Number(number) => number_text(number),
        Value::Array(values) => format!("[{}]", values.iter().map(document).collect::<Vec<_>>().join(",")),
        Value::Object(fields) => {
            let one = |(name, value): (&String, &Value)| format!("{}:{}", Value::from(name.as_str()), document(value));
            format!("{{{}}}", fields.iter().map(one).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// Every stretch of white space made one space, none at the ends.
pub(super) fn collapsed(text: &str) -> String {
    let is_space = |c: char| (c.is_whitespace() && c != '\u{85}') || c == '\u{feff}';
    text.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The text cut to so many UTF-16 units, with three dots at its end where something is missing.
pub(super) fn bounded(text: String, longest: usize) -> String {
    if text.len() <= longest || text.encode_utf16().count() <= longest {
        return text;
    }
    let units: Vec<u16> = text.encode_utf16().take(longest - 3).collect();
    String::from_utf16_lossy(&units) + "..."
}

/// Words with their first letters made large.
pub(super) fn title(id: &str) -> String {
    let words = id.split(|c: char| c == '-' || c == '_' || c.is_whitespace()).filter(|word| !word.is_empty());
    let large = |word: &str| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_uppercase().chain(letters).collect::<String>()).unwrap_or_default()
    };
    let title = words.map(large).collect::<Vec<_>>().join(" ");
    if title.is_empty() { "Workflow".into() } else { title }
}

/// A name made an identifier.
pub(super) fn slug(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit())).filter(|word| !word.is_empty());
    let slug = words.collect::<Vec<_>>().join("-");
    if slug.is_empty() { "workflow".into() } else { slug }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_spelt_as_a_template_spells_them() {
        let spelt = |value: Value| spelt(Some(&value));
        assert_eq!(spelt(json!(1.0)), "1");
        assert_eq!(spelt(json!(1e21)), "1e+21");
        assert_eq!(spelt(json!(1.5e-7)), "1.5e-7");
        assert_eq!(spelt(json!(0.000_001)), "0.000001");
        assert_eq!(spelt(json!(9_007_199_254_740_993_i64)), "9007199254740992");
        assert_eq!(spelt(json!([1, null, ["a", {}]])), "1,,a,[object Object]");
        assert_eq!(document(&json!({"b": 1.0, "a": ["x", null]})), r#"{"b":1,"a":["x",null]}"#);
    }

    #[test]
    fn texts_are_cut_and_ordered_by_their_units() {
        assert_eq!(bounded("é".repeat(360), 360), "é".repeat(360));
        assert_eq!(bounded("é".repeat(361), 360), format!("{}...", "é".repeat(357)));
        // The second is one character past the first and begins with a smaller unit.
        assert!(by_units("\u{ff00}", "\u{1f600}").is_gt());
        assert_eq!(collapsed("\u{feff} a \t\n b\u{a0}"), "a b");
        assert_eq!((title("my-flow_x  y"), title("--")), ("My Flow X Y".into(), "Workflow".into()));
        assert_eq!((slug("Scope it!"), slug("??")), ("scope-it".into(), "workflow".into()));
    }
}
