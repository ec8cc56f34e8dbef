//! The keys that detach: separated from what is typed for the command.

use std::str::FromStr;

/// Keys that detach when they are typed one after the other.
#[derive(Debug, Clone)]
pub struct DetachKeys {
    keys: Vec<u8>,
    typed: usize,
}

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let key = |word: &str| match (word.strip_prefix("ctrl-"), word.as_bytes()) {
            (Some("@"), _) => Ok(0),
            (Some(letter), _) => match letter.to_ascii_uppercase().as_bytes() {
                [byte @ b'A'..=b'_'] => Ok(byte - b'A' + 1),
                _ => Err(format!("`{word}` is no key: write ctrl-a to ctrl-z, or one of ctrl-@ [ \\ ] ^ _")),
            },
            (None, [byte]) if byte.is_ascii() => Ok(*byte),
            _ => Err(format!("`{word}` is no key: write one character, or ctrl-p; several with commas between them")),
        };
        let keys: Result<Vec<u8>, String> = text.split(',').filter(|_| !text.is_empty()).map(key).collect();
        Ok(Self { keys: keys?, typed: 0 })
    }
}

impl DetachKeys {
    /// What of the typed bytes is for the command, and whether the keys that detach are complete. Their beginning is
    /// held back until it is clear what it was.
    pub fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + self.keys.len());
        for byte in typed {
            if self.keys.get(self.typed) != Some(byte) {
                passed.extend_from_slice(&self.keys[..std::mem::take(&mut self.typed)]);
            }
            if self.keys.get(self.typed) == Some(byte) {
                self.typed += 1;
                if self.typed == self.keys.len() {
                    self.typed = 0;
                    return (passed, true);
                }
            } else {
                passed.push(*byte);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_of_the_keys_detaches_and_nothing_else_is_lost() {
        let mut keys: DetachKeys = "ctrl-p,ctrl-q".parse().unwrap();
        assert_eq!(keys.pass(b"a\x10"), (b"a".to_vec(), false));
        assert_eq!(keys.pass(b"b\x10\x10"), (b"\x10b\x10".to_vec(), false));
        assert_eq!(keys.pass(b"\x11never"), (Vec::new(), true));
        let mut none: DetachKeys = "".parse().unwrap();
        assert_eq!(none.pass(b"\x10\x11"), (b"\x10\x11".to_vec(), false));
        let mut one: DetachKeys = "ctrl-\\".parse().unwrap();
        assert_eq!(one.pass(b"x\x1c"), (b"x".to_vec(), true));
        for wrong in ["ctrl-", "ctrl-1", "ab", "ctrl-p,", "ü"] {
            assert!(wrong.parse::<DetachKeys>().is_err(), "{wrong}");
        }
    }
}
