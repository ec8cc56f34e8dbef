//! How much of a log is kept.

/// What a log may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogPolicy {
    /// How many bytes of each stream are kept: the first quarter and the last three. None are where it is zero.
    pub cap: u64,
}

impl LogPolicy {
    /// The smallest cap but none: below it there is no middle to leave out.
    pub const SMALLEST: u64 = 256 << 10;

    pub(super) fn keeps_nothing(self) -> bool {
        self.cap == 0
    }
}

impl Default for LogPolicy {
    fn default() -> Self {
        Self { cap: 64 << 20 }
    }
}

const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// An amount of bytes as a person writes it: `64MiB`, `500MB`, `0`.
pub fn parse_bytes(text: &str) -> Result<u64, InvalidBytes> {
    let invalid = || InvalidBytes(text.chars().take(64).collect());
    if text == "0" {
        return Ok(0);
    }
    let (unit, factor) = UNITS.iter().find(|(unit, _)| text.ends_with(unit)).ok_or_else(invalid)?;
    let number = &text[..text.len() - unit.len()];
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid());
    }
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)).ok_or_else(invalid)
}

/// Text that is not an amount of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an amount such as 64MiB, 500MB or 0")]
pub struct InvalidBytes(String);

/// An amount of bytes in the largest unit that fits: `9.9 GB`, `512 B`.
pub fn show_bytes(bytes: u64) -> String {
    let decimal = UNITS.iter().filter(|(unit, _)| !unit.ends_with("iB"));
    match decimal.clone().find(|(_, factor)| bytes >= *factor) {
        Some((unit, factor)) if *factor > 1 => format!("{:.1} {unit}", bytes as f64 / *factor as f64),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_strictly_and_shown_shortly() {
        assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
        assert_eq!(parse_bytes("500MB"), Ok(500_000_000));
        assert_eq!(parse_bytes("12B"), Ok(12));
        assert_eq!(parse_bytes("0"), Ok(0));
        for text in ["", "B", "64", "-1B", "+1B", "1.5GiB", "64mib", "18446744073709551615KiB"] {
            assert!(parse_bytes(text).is_err(), "{text:?} was taken for an amount");
        }
        let shown = [0, 999, 1_000, 9_936_000_000, u64::MAX].map(show_bytes);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "9.9 GB", "18446744.1 TB"]);
    }
}
