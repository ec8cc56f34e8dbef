//! The usual shapes of secrets in any text.
//!
//! Each has an anchor, a few bytes that every secret of that shape has in it or beside it. The text is searched for all
//! anchors at once; what stands around one is then looked at by hand, in time that does not grow with the text.

use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, Input, MatchKind, Span, packed};

use super::names::{self, Name, is_plain};
use super::{Match, services};

/// A token that is known by how it begins.
pub(super) struct Token {
    begins: &'static str,
    /// How many bytes follow, at the least.
    least: usize,
    /// Which bytes may follow.
    of: fn(u8) -> bool,
}

pub(super) const fn token(begins: &'static str, least: usize, of: fn(u8) -> bool) -> Token {
    Token { begins, least, of }
}

pub(super) fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn capital(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

pub(super) fn base64url(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')
}

pub(super) fn dotted(byte: u8) -> bool {
    base64url(byte) || byte == b'.'
}

const TOKENS: [Token; 25] = [
    token("ghp_", 20, alphanumeric),
    token("gho_", 20, alphanumeric),
    token("ghu_", 20, alphanumeric),
    token("ghs_", 20, alphanumeric),
    token("ghr_", 20, alphanumeric),
    token("github_pat_", 20, base64url),
    token("glpat-", 16, dotted),
    token("glrt-", 16, dotted),
    token("xox", 12, base64url),
    token("xapp-", 16, base64url),
    token("AIza", 30, base64url),
    token("sk_live_", 10, alphanumeric),
    token("rk_live_", 10, alphanumeric),
    token("npm_", 30, alphanumeric),
    token("pypi-", 30, base64url),
    token("hf_", 30, alphanumeric),
    token("dckr_pat_", 16, base64url),
    token("dop_v1_", 32, alphanumeric),
    token("shpat_", 24, alphanumeric),
    token("hvs.", 20, base64url),
    token("SG.", 32, dotted),
    token("AGE-SECRET-KEY-", 32, capital),
    token("AKIA", 16, capital),
    token("ASIA", 16, capital),
    token("sk-", 20, base64url),
];

/// The longest user and password of a URL.
const USERINFO_LIMIT: usize = 1 << 10;

/// The longest line of cookies that is looked at.
const COOKIES_LIMIT: usize = 4 << 10;

/// Looks at the text around an anchor.
pub(super) type Recognizer = fn(&[u8], usize) -> Option<Match>;

const OTHERS: [(&str, Recognizer); 6] = [
    ("eyJ", jwt),
    ("-----BEGIN", pem),
    ("earer ", bearer),
    ("sig=", signature),
    ("ignature=", signature),
    ("ookie", cookie),
];

/// Pieces of names. A first letter is left out where it may be of either case, and as much stands around it as keeps
/// `passed`, `credit` and `monkey` away.
const NAMES: [&str; 33] = [
    "assw", "ASSW", "assp", "ASSP", "_pass", "-pass", "_PASS", "pwd=", "Pwd=", "PWD=", "-pwd", "ecret", "ECRET",
    "oken", "OKEN", "redent", "REDENT", "auth", "Auth", "AUTH", "apikey", "piKey", "APIKEY", "_key", "-key", "_KEY",
    "-Key", "sKey", "eKey", "tKey", "hkey", "-pin", "_PIN",
];

/// Anchors that are searched for together: at most 64.
struct Group {
    tokens: &'static [Token],
    looks: &'static [(&'static str, Recognizer)],
    names: &'static [&'static str],
    made: OnceLock<Anchors>,
}

/// The usual shapes, and those of single services.
static GROUPS: [Group; 2] = [
    Group { tokens: &TOKENS, looks: &OTHERS, names: &NAMES, made: OnceLock::new() },
    Group { tokens: &services::TOKENS, looks: &services::LOOKS, names: &services::NAMES, made: OnceLock::new() },
];

/// Finds where any of the anchors stands.
enum Anchors {
    Packed(packed::Searcher),
    Automaton(AhoCorasick),
}

/// In a text of so few bytes every anchor is looked for by itself, as long as nothing is made to look for all at once:
/// to make it takes longer, and the words of a command are short.
const SHORT: usize = 128;

impl Group {
    fn anchors(&self) -> impl Iterator<Item = &'static str> {
        let tokens = self.tokens.iter().map(|token| token.begins);
        tokens.chain(self.looks.iter().map(|(anchor, _)| *anchor)).chain(self.names.iter().copied())
    }

    /// The first anchor at or behind `from`, and where it is.
    fn find_anchor(&self, text: &[u8], from: usize) -> Option<(usize, usize)> {
        match self.made.get() {
            None if text.len() <= SHORT => self.find_slowly(text, from),
            made => made.unwrap_or_else(|| self.made.get_or_init(|| Anchors::make(self))).find(text, from),
        }
    }

    fn find_slowly(&self, text: &[u8], from: usize) -> Option<(usize, usize)> {
        (from..text.len()).find_map(|start| {
            let rest = &text[start..];
            self.anchors().position(|anchor| rest.starts_with(anchor.as_bytes())).map(|anchor| (anchor, start))
        })
    }

    /// Finds every secret that has one of the anchors.
    fn find(&self, text: &[u8], found: &mut Vec<Match>) {
        let mut at = 0;
        while let Some((anchor, start)) = self.find_anchor(text, at) {
            let secret = match self.tokens.get(anchor) {
                Some(token) => prefixed(text, start, token),
                None => self.looks.get(anchor - self.tokens.len()).map_or(named as Recognizer, |(_, look)| *look)(
                    text, start,
                ),
            };
            at = start + 1;
            if let Some(secret) = secret {
                at = at.max(secret.value.end);
                found.push(secret);
            }
        }
    }
}

impl Anchors {
    fn make(group: &Group) -> Self {
        let config = packed::Config::new().match_kind(packed::MatchKind::LeftmostFirst).clone();
        match config.builder().extend(group.anchors()).build() {
            Some(searcher) => Self::Packed(searcher),
            // A processor without vectors.
            None => Self::Automaton(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostFirst)
                    .build(group.anchors())
                    .expect("a few short words"),
            ),
        }
    }

    fn find(&self, text: &[u8], from: usize) -> Option<(usize, usize)> {
        let span = Span { start: from, end: text.len() };
        let found = match self {
            Self::Packed(searcher) => searcher.find_in(text, span),
            Self::Automaton(automaton) => automaton.find(Input::new(text).span(span)),
        }?;
        Some((found.pattern().as_usize(), found.start()))
    }
}

/// Finds every secret of a usual shape.
pub(super) fn find(text: &[u8], found: &mut Vec<Match>) {
    GROUPS.iter().for_each(|group| group.find(text, found));
    // URLs are many, and those with a user in them few.
    if text.len() <= SHORT {
        // To ask the processor what it can do takes longer.
        found.extend((0..text.len()).filter(|at| text[*at] == b'@').filter_map(|at| userinfo(text, at)));
    } else {
        found.extend(memchr::memchr_iter(b'@', text).filter_map(|at| userinfo(text, at)));
    }
}

/// How far a run of such bytes goes.
pub(super) fn run(text: &[u8], at: usize, of: impl Fn(u8) -> bool) -> usize {
    at + text[at..].iter().take_while(|byte| of(**byte)).count()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn begins_word(text: &[u8], at: usize) -> bool {
    at == 0 || !is_word(text[at - 1]) && text[at - 1] != b'-'
}

fn prefixed(text: &[u8], start: usize, token: &Token) -> Option<Match> {
    if !begins_word(text, start) {
        return None;
    }
    let body = start + token.begins.len();
    let end = run(text, body, token.of);
    let body = &text[body..end];
    let any = |of: fn(&u8) -> bool| body.iter().any(of);
    let real = match token.begins {
        // Names of packages and machines begin so too, but are of one case.
        "sk-" => any(u8::is_ascii_digit) && any(u8::is_ascii_uppercase) && any(u8::is_ascii_lowercase),
        "xox" => body.get(1) == Some(&b'-') && any(u8::is_ascii_digit),
        begins => services::is_real(begins, body),
    };
    (real && body.len() >= token.least).then_some(Match { from: start, value: start..end })
}

fn jwt(text: &[u8], start: usize) -> Option<Match> {
    if !begins_word(text, start) {
        return None;
    }
    let header = run(text, start, base64url);
    if header - start < 10 || text.get(header) != Some(&b'.') {
        return None;
    }
    let body = run(text, header + 1, base64url);
    let end = run(text, body, dotted);
    (body - header > 8 && text.get(body) == Some(&b'.')).then_some(Match { from: start, value: start..end })
}

/// The body of a private key, up to its end or to what cannot belong to one.
fn pem(text: &[u8], start: usize) -> Option<Match> {
    let label = start + "-----BEGIN".len();
    let label_end = run(text, label, |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' ');
    let label_text = &text[label..label_end];
    let private = label_text.windows(b"PRIVATE KEY".len()).any(|part| part == b"PRIVATE KEY");
    if !private || !text[label_end..].starts_with(b"-----") {
        return None;
    }
    let body = label_end + 5;
    // Headers, folded lines, escaped line ends and the prefixes that logs put before a line.
    let inside =
        |byte: &u8| byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace() || b"+/=\\:,.-_()|>\"'".contains(byte);
    let mut end = body;
    while text.get(end).is_some_and(inside) && !text[end..].starts_with(b"-----") {
        end += 1;
    }
    (end - body >= 16).then_some(Match { from: start, value: body..end })
}

/// The password of `scheme://user:password@host`, or a user that is a token itself. Where there are more of `@`,
/// the last one counts, and each is looked at.
fn userinfo(text: &[u8], at: usize) -> Option<Match> {
    let outside =
        |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'?' | b'#' | b'"' | b'\'' | b'`' | b'<' | b'>');
    let least = at.saturating_sub(USERINFO_LIMIT);
    let mut ats = 0;
    let inside = |byte: &&u8| {
        // A few in a password are looked past; a text of nothing else is not read again for each.
        ats += usize::from(**byte == b'@');
        !outside(**byte) && ats <= 4
    };
    let begin = at - text[least..at].iter().rev().take_while(inside).count();
    let colon = begin.checked_sub(3).filter(|colon| &text[*colon..begin] == b"://")?;
    let scheme = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let from = colon - text[..colon].iter().rev().take(names::LONGEST).take_while(scheme).count();
    let user = &text[begin..at];
    let of_web = text[from..colon].ends_with(b"http") || text[from..colon].ends_with(b"https");
    let value = match user.iter().position(|byte| *byte == b':') {
        // The user is the token, and this stands where a password must.
        Some(colon) if &user[colon + 1..] == b"x-oauth-basic" => begin..begin + colon,
        Some(colon) if colon + 1 == user.len() && is_token(user, of_web) => begin..begin + colon,
        Some(colon) => begin + colon + 1..at,
        None if is_token(user, of_web) => begin..at,
        None => return None,
    };
    (!is_plain(&text[value.clone()], Name::Secret)).then_some(Match { from, value })
}

/// Whether a user without a password is a token: long, or with digits all over it where people are not called so.
fn is_token(user: &[u8], of_web: bool) -> bool {
    let user = user.strip_suffix(b":").unwrap_or(user);
    let digits = user.iter().filter(|byte| byte.is_ascii_digit()).count();
    let borders = user.windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    let long = user.len() >= 20 && digits > 0;
    user.iter().all(|byte| base64url(*byte)) && (long || of_web && user.len() >= 8 && borders >= 3)
}

fn bearer(text: &[u8], start: usize) -> Option<Match> {
    let from = start.checked_sub(1).filter(|before| matches!(text[*before], b'b' | b'B'))?;
    let begin = start + "earer ".len();
    let end = run(text, begin, |byte| dotted(byte) || matches!(byte, b'+' | b'/' | b'=' | b'~'));
    let token = &text[begin..end];
    let any = |of: fn(&u8) -> bool| token.iter().any(of);
    // A bearer of news has no digits, and `oauth2` is a way to log in.
    let likely = token.len() >= 6 && any(u8::is_ascii_digit) || token.len() >= 16 && any(u8::is_ascii_uppercase);
    (likely && !is_plain(token, Name::Auth)).then_some(Match { from, value: begin..end })
}

/// What `Cookie: name=value` hands over: all of it, as one cookie does not say which of them is the key.
fn cookie(text: &[u8], start: usize) -> Option<Match> {
    let from = start.checked_sub(1).filter(|before| matches!(text[*before], b'c' | b'C'))?;
    let blank = |byte: u8| matches!(byte, b' ' | b'\t');
    let end = start + "ookie".len();
    let is_flag = from >= 2 && &text[from - 2..from] == b"--";
    let name = match text.get(end)? {
        b':' => run(text, end + 1, blank),
        b'=' | b' ' if is_flag => end + 1,
        _ => return None,
    };
    let name = quote(text, name).end;
    let equals = run(text, name, |byte| names::is_part(byte) && byte != b'.');
    if equals == name || text.get(equals) != Some(&b'=') {
        return None;
    }
    let is_set = from >= 4 && text[from - 4..from].eq_ignore_ascii_case(b"set-");
    let inside = |byte: u8| {
        // What a browser receives beside the cookie is no secret.
        let outside = byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'\\');
        !outside && (byte != b';' || !is_set)
    };
    let from = from - if is_set { 4 } else { 2 * usize::from(is_flag) };
    let mut end = run(text, equals + 1, inside);
    // The next one follows.
    while end < text.len() && text[end] == b' ' && text[end - 1] == b';' && end - from < COOKIES_LIMIT {
        end = run(text, end + 1, inside);
    }
    let value = equals + 1..end;
    (!is_plain(&text[value.clone()], Name::Secret)).then_some(Match { from, value })
}

/// The signature of a signed URL or request.
fn signature(text: &[u8], start: usize) -> Option<Match> {
    let before = start.checked_sub(1).map(|before| text[before]);
    let (begins, anchor) = match text[start] {
        b's' => (matches!(before, Some(b'?' | b'&')), "sig="),
        _ => (matches!(before, Some(b'S' | b's')), "ignature="),
    };
    let begin = start + anchor.len();
    let end = run(text, begin, |byte| base64url(byte) || matches!(byte, b'%' | b'+' | b'/' | b'='));
    // A cloud's own parameter needs no digit to be known.
    let cloud = ["X-Amz-S", "X-Goog-S"].into_iter().find(|cloud| text[..start].ends_with(cloud.as_bytes()));
    let is_long = end - begin >= 16 && (cloud.is_some() || text[begin..end].iter().any(u8::is_ascii_digit));
    let likely = is_long || end - begin > names::PLAIN;
    let from = start.saturating_sub(cloud.map_or(1, str::len));
    (begins && likely).then_some(Match { from, value: begin..end })
}

/// How a name and its value are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joint {
    /// `name=value`
    Equals,
    /// `name%3Dvalue`
    Encoded,
    /// `name: value`
    Colon { quoted: bool },
    /// `--name value`
    Space,
    /// `<name>value</name>`
    Element,
}

/// A value beside a name that says what it is.
fn named(text: &[u8], anchor: usize) -> Option<Match> {
    let end = run(&text[..text.len().min(anchor + names::LONGEST)], anchor, names::is_part);
    // Mostly the name goes on, or nothing is joined to it.
    if !text.get(end).is_some_and(|byte| b"=: \t\\\"'`>".contains(byte) || *byte == b'%') {
        return None;
    }
    let back = text[..anchor].iter().rev().take(names::LONGEST).take_while(|byte| names::is_part(**byte)).count();
    let from = anchor - back;
    let (begin, joint) = joint(text, from, end)?;
    let word = &text[from..end];
    if word.len() >= 13 && word[word.len() - 13..].eq_ignore_ascii_case(b"authorization") {
        return authorization(text, from, begin);
    }
    let of_source = word.eq_ignore_ascii_case(b"pwd") && from > 0 && text[from - 1] == b';';
    let name = if of_source { Name::Secret } else { names::judge(word)? };
    let value = value(text, begin, joint);
    let plain = is_plain(&text[value.clone()], name) || is_prose(text, &value, name, joint);
    (!plain).then_some(Match { from, value })
}

/// What joins the name that ends here with its value, and where the value begins.
fn joint(text: &[u8], from: usize, end: usize) -> Option<(usize, Joint)> {
    let byte = |at: usize| text.get(at).copied();
    let quote = quote(text, end);
    let blank = |byte: u8| matches!(byte, b' ' | b'\t');
    let at = run(text, quote.end, blank);
    let spaced = at > quote.end;
    match byte(at)? {
        b'=' if byte(at + 1) == Some(b'=') => None,
        // `--name= value`: a shell has taken the two apart.
        b'=' if text[from] == b'-' && byte(at + 1).is_some_and(blank) => Some((run(text, at + 1, blank), Joint::Space)),
        b'%' if at == end && text[at..].len() > 3 && text[at + 1..at + 3].eq_ignore_ascii_case(b"3d") => {
            Some((at + 3, Joint::Encoded))
        }
        b'=' => {
            let after = at + 1 + usize::from(byte(at + 1) == Some(b'>'));
            // `NAME= command` sets nothing.
            let value = if spaced || !quote.is_empty() { run(text, after, blank) } else { after };
            Some((value, Joint::Equals))
        }
        b':' if byte(at + 1) == Some(b'=') => Some((run(text, at + 2, blank), Joint::Equals)),
        b':' => {
            let value = run(text, at + 1, blank);
            let quoted = !quote.is_empty();
            (quoted || value > at + 1).then_some((value, Joint::Colon { quoted }))
        }
        b'>' if from > 0 && text[from - 1] == b'<' && at == end => Some((at + 1, Joint::Element)),
        _ => {
            let edge = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b'"' | b'\'' | b'`' | b'(' | b'[');
            let flag = text[from] == b'-' && (from == 0 || edge(text[from - 1]));
            (flag && spaced && quote.is_empty()).then_some((at, Joint::Space))
        }
    }
}

/// A quote, with the backslashes that a string within a string puts before it.
fn quote(text: &[u8], at: usize) -> Range<usize> {
    let begin = run(text, at, |byte| byte == b'\\');
    match text.get(begin) {
        Some(b'"' | b'\'' | b'`') => at..begin + 1,
        _ => at..at,
    }
}

/// The value that begins here: up to its closing quote, or else to the end of its word.
fn value(text: &[u8], begin: usize, joint: Joint) -> Range<usize> {
    let line = |byte: u8| !matches!(byte, b'\n' | b'\r');
    if joint == Joint::Element {
        return begin..run(text, begin, |byte| byte != b'<' && line(byte));
    }
    let open = quote(text, begin);
    if !open.is_empty() {
        let (begin, quoting) = (open.end, &text[open]);
        let mut end = begin;
        while end < text.len() && line(text[end]) && !text[end..].starts_with(quoting) {
            // An escaped quote does not close.
            end += if text[end] == b'\\' && quoting.len() == 1 { 2 } else { 1 };
        }
        return begin..end.min(text.len());
    }
    let inside = |byte: u8| !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'\'' | b'`' | b'&' | b';');
    let mut end = run(text, begin, inside);
    if joint == Joint::Encoded {
        // `&` and `;`, encoded, begin what comes after it.
        let next = |part: &[u8]| part.eq_ignore_ascii_case(b"%26") || part.eq_ignore_ascii_case(b"%3b");
        end = text[begin..end].windows(3).position(next).map_or(end, |at| begin + at);
    }
    let closing = |byte: &&u8| matches!(byte, b',' | b')' | b']' | b'}' | b'\\');
    // What is closed here was opened before the value.
    let opened = text[begin..end].iter().any(|byte| matches!(byte, b'(' | b'[' | b'{' | b'<'));
    let trailing = if opened { 0 } else { text[begin..end].iter().rev().take_while(closing).count() };
    begin..end - trailing
}

/// Whether name and value are words of a sentence, a help text or a program.
fn is_prose(text: &[u8], value: &Range<usize>, name: Name, joint: Joint) -> bool {
    let word = &text[value.clone()];
    let goes_on = {
        let next = run(text, value.end, |byte| byte == b' ');
        next > value.end && text.get(next).is_some_and(u8::is_ascii_alphabetic)
    };
    let quoted = value.start > 0 && matches!(text[value.start - 1], b'"' | b'\'' | b'`');
    let simple = word.iter().all(u8::is_ascii_lowercase);
    match joint {
        Joint::Equals | Joint::Encoded | Joint::Element | Joint::Colon { quoted: true } => false,
        Joint::Colon { quoted: false } => {
            let likely = word.len() >= 8 && word.iter().any(u8::is_ascii_digit);
            match name {
                Name::Secret | Name::Short | Name::File | Name::Pin => !quoted && simple && goes_on,
                Name::Token | Name::Piece { .. } | Name::Likely | Name::Auth => !likely,
            }
        }
        Joint::Space => {
            let flag = word.first() == Some(&b'-');
            let placeholder = word.iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_');
            !quoted && (flag || placeholder || simple && goes_on)
        }
    }
}

/// What follows `Authorization:`, behind the word that says of what kind it is.
fn authorization(text: &[u8], from: usize, begin: usize) -> Option<Match> {
    let begin = quote(text, begin).end;
    let kind = run(text, begin, |byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let known = ["basic", "bearer", "token", "apikey", "negotiate", "ntlm", "key", "bot", "splunk", "sso-key"];
    let is_known = known.iter().any(|known| text[begin..kind].eq_ignore_ascii_case(known.as_bytes()));
    let begin = if is_known && text.get(kind) == Some(&b' ') { kind + 1 } else { begin };
    let inside = |byte: u8| !byte.is_ascii_whitespace() && !matches!(byte, b'"' | b'\'' | b'`' | b',' | b';' | b'\\');
    let value = begin..run(text, begin, inside);
    let likely = is_known || value.len() >= 16;
    (likely && !is_plain(&text[value.clone()], Name::Secret)).then_some(Match { from, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_found_alike_one_by_one_and_all_at_once() {
        let texts = [
            "",
            "true",
            "sk-sk_live_",
            "my_passw0rd=x -pwd PWD=eyJ",
            "xoxb-ghp_github_pat_",
            "Authorization: Bearer x",
            "ya29.glsa_ JWT=hooks.slack.com/",
        ];
        for group in &GROUPS {
            assert!(group.anchors().count() <= 64, "more are not searched for at once");
            let all = Anchors::make(group);
            for text in texts.map(str::as_bytes) {
                let found: Vec<_> = (0..=text.len()).map(|from| group.find_slowly(text, from)).collect();
                assert_eq!(found, (0..=text.len()).map(|from| all.find(text, from)).collect::<Vec<_>>());
            }
        }
        assert!(GROUPS[0].find_slowly(b"a sk-live", 0).is_some_and(|(_, start)| start == 2));
    }
}
