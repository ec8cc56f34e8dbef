//! Text for agents: without the characters that a person who looks on does not see.

use serde_json::Value;

/// Makes every text in a value harmless: drops controls but line ends and tabs, marks of direction, characters without
/// width and the tags of U+E0000.
pub fn harmless(value: Value) -> Value {
    match value {
        Value::String(text) if text.chars().any(is_hidden) => {
            text.chars().filter(|c| !is_hidden(*c)).collect::<String>().into()
        }
        Value::Array(values) => values.into_iter().map(harmless).collect(),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (visible(name), harmless(value))).collect())
        }
        other => other,
    }
}

/// Labels are fields that a stranger has named.
fn visible(name: String) -> String {
    if name.chars().any(is_hidden) { name.chars().filter(|c| !is_hidden(*c)).collect() } else { name }
}

fn is_hidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t')
        || matches!(
            u32::from(c),
            0xad | 0x61c
                | 0x180e
                | 0x200b..=0x200f
                | 0x202a..=0x202e
                | 0x2060..=0x206f
                | 0xfe00..=0xfe0f
                | 0xfeff
                | 0xfff9..=0xfffb
                | 0xe0000..=0xe0fff
        )
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
    }
}
