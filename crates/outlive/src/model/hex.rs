//! Bytes as text, two digits each.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.extend([byte >> 4, byte & 15].map(|half| char::from(DIGITS[usize::from(half)])));
    }
    text
}

/// The bytes of a text; none if it is not the text of any.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| Some(digit(pair.first()?)? << 4 | digit(pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_back_from_their_text_and_nothing_else_does() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(hex(&[0, 1, 0xab, 0xff]), "0001abff");
        assert_eq!(unhex(&hex(&all)), Some(all));
        assert_eq!(unhex("AB"), Some(vec![0xab]));
        for text in ["a", "abc", "0g", "+1", " 1", "é"] {
            assert_eq!(unhex(text), None, "{text}");
        }
    }
}
