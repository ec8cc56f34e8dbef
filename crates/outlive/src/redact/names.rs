//! Names that say of the value beside them that it is a secret, and values that are none whatever they are called.

/// The longest name that is looked at, in bytes.
pub(super) const LONGEST: usize = 64;

/// The longest value that may be plain, in bytes. What is longer is taken for secret, so that no one can have a text
/// read again and again by naming its rest many times.
pub(super) const PLAIN: usize = 256;

/// The shortest value without a digit, or beside the name of a piece of text, that is taken for a secret, in bytes.
const LIKELY_LENGTH: usize = 20;

/// What a name promises of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// A secret.
    Secret,
    /// A secret, or a small number.
    Token,
    /// A secret, or a piece of text as compilers and language models know it.
    Piece {
        /// The name says more of the piece than that it is one: only what looks like no word is a secret.
        of_text: bool,
    },
    /// A password, or how often something passes.
    Short,
    /// A secret where it looks like one, or what things are sorted, cached or found by.
    Likely,
    /// A secret, or the way to log in.
    Auth,
    /// A secret, or the file that has it.
    File,
    /// A few digits that are secret, or the number or the state of something that has pins.
    Pin,
}

/// Names without their dashes and underscores. A name may have more before it, nothing behind: `--token-count` counts.
const NAMES: [(&str, Name); 20] = [
    ("password", Name::Secret),
    ("passwd", Name::Secret),
    ("passphrase", Name::Secret),
    ("secret", Name::Secret),
    ("apikey", Name::Secret),
    ("accesskey", Name::Secret),
    ("secretkey", Name::Secret),
    ("secretkeybase", Name::Secret),
    ("accountkey", Name::Secret),
    ("authkey", Name::Secret),
    ("encryptionkey", Name::Secret),
    ("masterkey", Name::Secret),
    ("sharedkey", Name::Secret),
    ("token", Name::Token),
    ("auth", Name::Auth),
    ("privatekey", Name::File),
    ("signingkey", Name::File),
    ("sshkey", Name::File),
    ("credential", Name::File),
    ("credentials", Name::File),
];

/// Short for a password only behind a dash or an underscore: `pass` counts what passed, `PWD` is a directory.
const SHORT: [&str; 6] = ["_pass", "--pass", "_pwd", "-pwd", "_pw", "-pw"];

/// What a name that ends with these holds is a secret where it looks like one.
const LIKELY: [&str; 5] = ["_pat", "-pat", "jwt", "_key", "-key"];

/// What comes before `key` where it is none that opens anything.
const PLAIN_KEYS: &str = "cache sort primary foreign partition public pub host routing idempotency group lookup index row hash \
                          range map json object bucket s3 dedup order unique natural surrogate shard join message restore";

/// What comes before `token` where a piece of text is meant.
const PIECES: &str = "best next prev previous first last stop start begin end bos eos pad unk mask sep cls special bad good \
                      target source image word sub top current predicted generated added extra bom new forced decoder prefix \
                      suffix middle lookahead unexpected expected";

/// A pin too: `spin` and `mapping` are none.
const PINS: [&str; 2] = ["_pin", "-pin"];

/// Flags that begin so are followed by no value.
const SWITCHES: [&str; 6] = ["--no-", "--ask-", "--prompt-", "--without-", "--disable-", "--show-"];

/// Ways to log in.
const METHODS: &str = "basic bearer digest ntlm negotiate kerberos ldap oauth oauth2 oidc iam sspi md5 peer trust ident \
                       scram scram-sha-1 scram-sha-256 scram-sha-512 mtls jwt";

/// What stands for no secret at all.
const NOTHING: &str = "true false none null nil yes no on off enabled disabled required optional undefined stdin prompt \
                       - (none)";

/// Whether a byte can be part of a name.
pub(super) fn is_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// What a name promises of its value, if anything.
pub(super) fn judge(name: &[u8]) -> Option<Name> {
    // Where there are several they are numbered.
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let bare = if digits <= 2 { &name[..name.len() - digits] } else { name };
    let bare = bare.strip_suffix(b"_").or(bare.strip_suffix(b"-")).unwrap_or(bare);
    let ends = |known: &str| {
        bare.len() >= known.len() && bare[bare.len() - known.len()..].eq_ignore_ascii_case(known.as_bytes())
    };
    if name.len() > LONGEST || SWITCHES.iter().any(|switch| name.starts_with(switch.as_bytes())) {
        return None;
    }
    if SHORT.iter().any(|short| ends(short)) {
        return Some(Name::Short);
    }
    if PINS.iter().any(|pin| ends(pin)) {
        return Some(Name::Pin);
    }
    let is_flag = name.starts_with(b"--");
    if bare.eq_ignore_ascii_case(b"pw") || is_flag && ends("-pass") {
        return Some(Name::Short);
    }
    let mut joined = [0; LONGEST];
    let mut length = 0;
    for byte in bare.iter().filter(|byte| byte.is_ascii_alphanumeric()) {
        joined[length] = byte.to_ascii_lowercase();
        length += 1;
    }
    // A name that ends with a dot is the last word of a sentence.
    let known = |(known, _): &&(&str, Name)| joined[..length].ends_with(known.as_bytes()) && !bare.ends_with(b".");
    let known = NAMES.iter().find(known).map(|(_, name)| *name);
    let before = |last: &str| before(bare, last);
    match known {
        Some(Name::Token) if is_among(PIECES, &before("token")) => Some(Name::Piece { of_text: true }),
        Some(Name::Token) if bare == b"token" => Some(Name::Piece { of_text: false }),
        None if LIKELY.iter().any(|likely| ends(likely)) && !is_among(PLAIN_KEYS, &before("key")) => Some(Name::Likely),
        known => known,
    }
}

/// The word before the last one of a name, in lower case: `best` of `--best-token`.
fn before(name: &[u8], last: &str) -> String {
    let rest = &name[..name.len().saturating_sub(last.len())];
    let rest = rest.strip_suffix(b"_").or(rest.strip_suffix(b"-")).or(rest.strip_suffix(b".")).unwrap_or(rest);
    let begin = rest.iter().rposition(|byte| matches!(byte, b'_' | b'-' | b'.')).map_or(0, |border| border + 1);
    String::from_utf8_lossy(&rest[begin..]).to_ascii_lowercase()
}

/// Whether a value beside such a name is plainly no secret: nothing, a reference, a placeholder, a number, a way.
pub(super) fn is_plain(value: &[u8], name: Name) -> bool {
    if value.len() > PLAIN {
        return false;
    }
    // In bytes that are no text a name of two letters comes up by chance.
    let Ok(value) = std::str::from_utf8(value) else { return matches!(name, Name::Short) };
    let lower = value.to_ascii_lowercase();
    if value.is_empty() || is_among(NOTHING, &lower) || is_reference(value) {
        return true;
    }
    let has_digit = value.bytes().any(|byte| byte.is_ascii_digit());
    match name {
        Name::Secret => value.starts_with("id=") || value.starts_with("type="),
        Name::Token => is_small(value),
        Name::Piece { of_text: false } => is_small(value) || value.len() < LIKELY_LENGTH && !has_digit,
        Name::Piece { of_text: true } => value.len() < LIKELY_LENGTH || !has_digit,
        Name::Short => {
            let is_count = value.len() <= 2 && value.bytes().all(|byte| byte.is_ascii_digit());
            is_count || value.chars().any(char::is_control)
        }
        Name::Likely => {
            let inside =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'=' | b'/');
            value.len() < 16 || !has_digit || !value.bytes().all(inside) || is_path(value)
        }
        Name::Auth => {
            is_among(METHODS, &lower) || is_path(value) || !value.bytes().any(|b| b == b':' || b.is_ascii_digit())
        }
        Name::File => is_path(value),
        Name::Pin => value.len() < 4 || !value.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// A count, a position or a version.
fn is_small(value: &str) -> bool {
    value.len() < 7 && value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn is_among(words: &str, word: &str) -> bool {
    words.split(' ').any(|known| known == word)
}

/// Whether a value names another place where the secret is, or only where one would be.
fn is_reference(value: &str) -> bool {
    let variable = value.strip_prefix('$').is_some_and(|name| {
        let upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        (!name.is_empty() && name.bytes().all(upper)) || name.starts_with('{') || name.starts_with('(')
    });
    let enclosed = |open, close| value.starts_with(open) && value.ends_with(close);
    let starred = value.bytes().all(|byte| matches!(byte, b'*' | b'x' | b'X' | b'.'));
    let format = value.len() == 2 && value.starts_with('%');
    variable || enclosed('<', '>') || enclosed('[', ']') || enclosed('{', '}') || starred || format
}

fn is_path(value: &str) -> bool {
    let begins = ["/", "./", "../", "~", "id_", "file:"].iter().any(|begin| value.starts_with(begin));
    let ends = [".pem", ".key", ".p8", ".ppk", ".json", ".pub", ".crt", ".yaml", ".yml", ".toml", ".txt", ".csv"];
    begins || ends.iter().any(|end| value.ends_with(end))
}
