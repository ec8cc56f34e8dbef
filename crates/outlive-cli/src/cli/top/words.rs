//! The words of a line, as a shell splits it. Nothing is expanded.

/// The words; none where a quote is not closed.
pub fn words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) = (Vec::new(), None, None);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (Some('\''), '\'') | (Some('"'), '"') => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            // Between double quotes it quotes what would end them, and itself.
            (None | Some('"'), '\\') => {
                let is_meant = |next: &char| quote.is_none() || matches!(next, '"' | '\\' | '$' | '`');
                word.get_or_insert_default().push(rest.next_if(is_meant).unwrap_or('\\'));
            }
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::quote;

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        let split = |line: &str| words(line).map(|words| words.join("|"));
        assert_eq!(split("  --lr 0.1 'a b' \"c d\"e '' x\\ y ").as_deref(), Some("--lr|0.1|a b|c de||x y"));
        assert_eq!(split(r#""a \"b\" \n" \$"#).as_deref(), Some(r#"a "b" \n|$"#));
        assert_eq!((split("'open"), split("").as_deref()), (None, Some("")));
        for word in ["plain", "two words", "it's", "\"", "a\\b", "$HOME", ""] {
            assert_eq!(words(&quote(word.as_bytes())), Some(vec![word.to_owned()]), "{word}");
        }
    }
}
