//! Characters that cannot be seen, or that change the direction of their neighbours: one table for terminals, agents and
//! the dashboard.
//!
//! Controls are not in it. The scripts of the dashboard cannot read it, and are compared with it by a test.

use std::ops::RangeInclusive;

/// The characters, in order.
const INVISIBLE: [RangeInclusive<char>; 17] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{61c}'..='\u{61c}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    BLANK_BRAILLE..=BLANK_BRAILLE,
    '\u{3164}'..='\u{3164}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// The blank of Braille. Plots in the output of programs keep their columns by it, so that readers of output are shown
/// a space in its place.
pub const BLANK_BRAILLE: char = '\u{2800}';

/// Whether a character cannot be seen, or changes the direction of its neighbours.
pub fn is_invisible(c: char) -> bool {
    INVISIBLE.iter().any(|range| range.contains(&c))
}

/// Whether a character only selects a variant of the one before it.
pub fn selects_variant(c: char) -> bool {
    matches!(c, '\u{fe00}'..='\u{fe0f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The characters of a class of a regular expression in JavaScript.
    fn class(text: &str) -> Vec<RangeInclusive<char>> {
        let mut rest = text;
        let mut one = || -> Option<(char, bool)> {
            let (digits, length) = match rest.as_bytes() {
                [b'\\', b'x', ..] => (&rest[2..4], 4),
                [b'\\', b'u', b'{', ..] => (&rest[3..rest.find('}')?], rest.find('}')? + 1),
                [b'\\', b'u', ..] => (&rest[2..6], 6),
                _ => return None,
            };
            let c = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
            rest = &rest[length..];
            let is_range = rest.starts_with('-');
            rest = rest.strip_prefix('-').unwrap_or(rest);
            Some((c, is_range))
        };
        let mut ranges = Vec::new();
        while let Some((first, is_range)) = one() {
            ranges.push(first..=if is_range { one().unwrap().0 } else { first });
        }
        assert!(rest.is_empty(), "`{rest}` is no character");
        ranges
    }

    #[test]
    fn dashboard_hides_the_characters_of_the_table() {
        let script = include_str!("../server/dashboard/model/text.js");
        let found = script.split_once("const HIDDEN = /[").and_then(|(_, rest)| rest.split_once("]/gu;")).unwrap().0;
        let theirs = class(found);
        let is_theirs = |c: char| theirs.iter().any(|range| range.contains(&c));
        let differ = ('\0'..=char::MAX).find(|c| {
            let is_ours = is_invisible(*c) || c.is_control() && !matches!(c, '\n' | '\t');
            is_ours != is_theirs(*c)
        });
        assert_eq!(differ, None);
        assert!(INVISIBLE.is_sorted_by(|one, next| one.end() < next.start()));
        let other = include_str!("../server/dashboard/model/ansi.js");
        assert!(other.contains("import { HIDDEN } from \"./text.js\"") && !other.contains("u200b"));
    }
}
