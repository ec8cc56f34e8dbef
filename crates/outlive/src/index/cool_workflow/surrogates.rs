//! Lone surrogates in JSON text: the language of cool-workflow writes and reads them, and no Rust text can hold them.

/// Replaces lone surrogates: the text with U+FFFD in the place of each escape of a lone surrogate; none where there is none.
pub(super) fn replaced(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut mended = bytes.to_vec();
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
            continue;
        }
        match unit(bytes, at) {
            // A pair is one character.
            Some(0xd800..=0xdbff) if matches!(unit(bytes, at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                mended[at + 2..at + 6].copy_from_slice(b"fffd");
                count += 1;
                at += 6;
            }
            Some(_) => at += 6,
            None => at += 2,
        }
    }
    (count > 0).then_some(mended)
}

/// The UTF-16 unit of an escape such as `\u00e9` at this place.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn lone_surrogates_are_replaced_and_nothing_else() {
        let mended = |text: &str| replaced(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(mended(r#"{"a":"\ud800"}"#).unwrap(), r#"{"a":"\ufffd"}"#);
        assert_eq!(
            mended(r#"["\udC00x","\ud83e\udd80","\ud800\ud800"]"#).unwrap(),
            r#"["\ufffdx","\ud83e\udd80","\ufffd\ufffd"]"#
        );
        for untouched in [r#""\ud83e\udd80""#, r#""\\ud800""#, r#""\u00e9""#, r#""\n\\""#, "\"\\", r#""\ud8"#] {
            assert_eq!(mended(untouched), None, "{untouched}");
        }
    }
}
