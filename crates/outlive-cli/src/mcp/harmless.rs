//! Text for agents: without the characters that a person who looks on does not see.

use serde_json::Value;

use crate::ui::invisible::{BLANK_BRAILLE, is_invisible, selects_variant};

/// Makes every text in a value harmless: drops controls but line ends and tabs, and characters that cannot be seen, and
/// shows the blank of Braille as a space.
pub fn harmless(value: Value) -> Value {
    match value {
        Value::String(text) => visible(text).into(),
        Value::Array(values) => values.into_iter().map(harmless).collect(),
        // Labels are fields that a stranger has named.
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (visible(name), harmless(value))).collect())
        }
        other => other,
    }
}

fn visible(text: String) -> String {
    if !text.chars().any(is_hidden) {
        return text;
    }
    let shown = |c: char| if c == BLANK_BRAILLE { Some(' ') } else { Some(c).filter(|c| !is_hidden(*c)) };
    text.chars().filter_map(shown).collect()
}

fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t') || is_invisible(c) || selects_variant(c)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::harmless;

    #[test]
    fn s_23_invisible_characters_are_not_given_to_an_agent() {
        let hidden = "a\u{1b}[2Jb\u{200b}c\u{202e}d\u{e0041}e\u{feff}f\rg\u{9b}h";
        let cleaned = harmless(json!({ "name": hidden, "labels": { "k\u{200b}": [hidden, "ä\n\t界"] }, "n": 1 }));
        let clean = "a[2Jbcdefgh";
        assert_eq!(cleaned, json!({ "name": clean, "labels": { "k": [clean, "ä\n\t界"] }, "n": 1 }));
        let blank = "a\u{2028}\u{2029}\u{34f}\u{115f}\u{1160}\u{3164}\u{ffa0}\u{1d173}\u{1d17a}\u{fe0f}\u{2800}b";
        assert_eq!(harmless(json!(blank)), json!("a b"));
    }
}
