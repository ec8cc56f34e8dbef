//! Secrets of single services: tokens that are known by how they begin, and URLs that are a secret themselves.
//!
//! They are rarer than the usual shapes, and searched for apart from them: no more than 64 anchors are searched for at once.

use super::Match;
use super::shapes::{Recognizer, Token, alphanumeric, base64url, dotted, run, token};

fn padded(byte: u8) -> bool {
    base64url(byte) || byte == b'='
}

fn lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// How tokens of these services begin, and what follows at the least.
pub(super) const TOKENS: [Token; 34] = [
    token("ATATT3", 20, padded),
    token("ATCTT3", 20, padded),
    token("ATBB", 24, alphanumeric),
    token("ya29.", 20, dotted),
    token("1//0", 30, base64url),
    token("lin_api_", 20, alphanumeric),
    token("ntn_", 30, alphanumeric),
    token("secret_", 40, alphanumeric),
    token("tskey-", 16, base64url),
    token("sntrys_", 20, padded),
    token("sntryu_", 20, alphanumeric),
    token("glsa_", 20, base64url),
    token("glc_", 20, padded),
    token("gldt-", 16, dotted),
    token("dapi", 32, lower_hex),
    token("PMAK-", 24, base64url),
    token("figd_", 20, base64url),
    token("pul-", 40, lower_hex),
    token("rubygems_", 32, alphanumeric),
    token("fio-u-", 40, base64url),
    token("sq0atp-", 20, base64url),
    token("sq0csp-", 20, base64url),
    token("EAA", 40, alphanumeric),
    token("whsec_", 20, padded),
    token("sk_test_", 10, alphanumeric),
    token("rk_test_", 10, alphanumeric),
    token("shpss_", 24, alphanumeric),
    token("dp.st.", 30, dotted),
    token("CCIPAT_", 30, base64url),
    token("r8_", 30, alphanumeric),
    token("pplx-", 32, alphanumeric),
    token("gsk_", 40, alphanumeric),
    token("xai-", 40, alphanumeric),
    token("outlive-fleet-1.", 32, dotted),
];

/// URLs with a part that lets its holder post to them.
pub(super) const LOOKS: [(&str, Recognizer); 4] = [
    ("hooks.slack.com/", slack),
    ("/api/webhooks/", discord),
    ("api.telegram.org/bot", telegram),
    (".office.com/webhook", teams),
];

/// Pieces of names, as in [`super::shapes`].
pub(super) const NAMES: [&str; 8] = ["_PAT", "_pat", "JWT", "jwt", "_PW", "_pw", "-pw", "pw="];

/// The shortest secret part of such a URL, in bytes.
const LEAST: usize = 16;

/// The longest that is looked at, in bytes: a text of nothing else is not read again for each anchor.
const MOST: usize = 1 << 10;

/// The rest of a URL's path.
fn path(byte: u8) -> bool {
    base64url(byte) || matches!(byte, b'/' | b'.' | b'@' | b':' | b'%' | b'=')
}

fn rest(text: &[u8], from: usize, begin: usize) -> Option<Match> {
    let end = run(&text[..text.len().min(begin + MOST)], begin, path);
    let is_long = end - begin == MOST;
    let is_likely = is_long || end - begin >= LEAST && text[begin..end].iter().any(u8::is_ascii_digit);
    is_likely.then_some(Match { from, value: begin..end })
}

/// The part behind the kind of a hook: `services/T…/B…/…`.
fn slack(text: &[u8], start: usize) -> Option<Match> {
    let kind = start + "hooks.slack.com/".len();
    let slash = run(text, kind, |byte| byte.is_ascii_lowercase());
    (text.get(slash) == Some(&b'/')).then(|| rest(text, start, slash + 1)).flatten()
}

fn discord(text: &[u8], start: usize) -> Option<Match> {
    let host = ["discord.com", "discordapp.com"].into_iter().find(|host| text[..start].ends_with(host.as_bytes()))?;
    rest(text, start - host.len(), start + "/api/webhooks/".len())
}

/// `bot123456789:…`, up to the method that is called.
fn telegram(text: &[u8], start: usize) -> Option<Match> {
    let begin = start + "api.telegram.org/bot".len();
    let colon = run(text, begin, |byte| byte.is_ascii_digit());
    let end = run(text, (colon + 1).min(text.len()), base64url);
    let is_likely = colon > begin && text.get(colon) == Some(&b':') && end - colon > LEAST;
    is_likely.then_some(Match { from: start, value: begin..end })
}

fn teams(text: &[u8], start: usize) -> Option<Match> {
    let kind = start + ".office.com/".len();
    let slash = run(text, kind, |byte| byte.is_ascii_alphanumeric());
    (text.get(slash) == Some(&b'/')).then(|| rest(text, start, slash + 1)).flatten()
}

/// Whether what follows the beginning of a token that ordinary words share is one.
pub(super) fn is_real(begins: &str, body: &[u8]) -> bool {
    let any = |of: fn(&u8) -> bool| body.iter().any(of);
    match begins {
        "secret_" | "EAA" | "ATBB" => {
            any(u8::is_ascii_digit) && any(u8::is_ascii_uppercase) && any(u8::is_ascii_lowercase)
        }
        _ => true,
    }
}
