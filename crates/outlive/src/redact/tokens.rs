//! Secrets in a command line: the word after its flag, the rest of a word behind a name, what a program takes under a
//! letter of its own, and all of that in a script that is one word of another command.

use std::ops::Range;

use super::names::{self, Name, is_plain};

/// How deep a script in a script is looked into.
const DEPTH: usize = 3;

/// A word, or a piece of one.
#[derive(Clone, Copy)]
struct Piece<'a> {
    text: &'a [u8],
    /// Which word of the command line it is, or is in.
    index: usize,
    /// Where in that word it begins.
    at: usize,
}

/// Which part of a value is secret.
#[derive(Clone, Copy)]
enum SecretPart {
    All,
    /// What follows the first of these: `user:password`.
    After(u8),
}

/// Where a flag's value stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the same word.
    Same,
    /// In the next.
    Next,
    /// In either.
    Either,
}

/// A flag that means a secret to these programs, and mostly something else to others.
struct Flag {
    programs: &'static str,
    /// A word that must come before: `docker login -p`.
    verb: Option<&'static str>,
    flags: &'static str,
    place: Place,
    part: SecretPart,
}

const fn flag(programs: &'static str, flags: &'static str, place: Place, part: SecretPart) -> Flag {
    Flag { programs, verb: None, flags, place, part }
}

const fn login(programs: &'static str, flags: &'static str) -> Flag {
    Flag { verb: Some("login"), ..flag(programs, flags, Place::Next, SecretPart::All) }
}

/// Programs that take a setting as two words, and the word before those.
const CONFIGURED: &str = "aws npm pnpm yarn pip pip3 git gh poetry rclone";
const CONFIGURE: [&[u8]; 2] = [b"config", b"configure"];

/// Programs that write their words to the next of a pipe.
const WRITERS: [&[u8]; 2] = [b"echo", b"printf"];

const FLAGS: [Flag; 21] = [
    flag("mysql mysqldump mysqladmin mysqlimport mysqlcheck mysqlshow mysqlbinlog", "-p", Place::Same, SecretPart::All),
    flag("mysqlpump mysqlslap mysqlsh mycli xtrabackup innobackupex", "-p", Place::Same, SecretPart::All),
    flag(
        "mariadb mariadb-dump mariadb-admin mariadb-backup mariadb-import mariadb-check",
        "-p",
        Place::Same,
        SecretPart::All,
    ),
    flag("7z 7za 7zr", "-p", Place::Same, SecretPart::All),
    flag("mongo mongosh mongodump mongorestore mongoexport mongoimport", "-p", Place::Either, SecretPart::All),
    flag("sshpass twine cqlsh rabbitmqadmin", "-p", Place::Either, SecretPart::All),
    login("docker podman nerdctl buildah skopeo helm oras crane az oc", "-p"),
    flag("redis-cli valkey-cli keydb-cli", "-a", Place::Next, SecretPart::All),
    flag("curl", "-u --user= -U --proxy-user=", Place::Same, SecretPart::After(b':')),
    flag("curl", "-u --user -U --proxy-user", Place::Next, SecretPart::After(b':')),
    flag("curl", "-b", Place::Next, SecretPart::After(b'=')),
    flag("lftp", "-u", Place::Either, SecretPart::After(b',')),
    flag("pkcs11-tool pkcs15-tool pkcs15-init", "--pin --so-pin --new-pin", Place::Next, SecretPart::All),
    flag("http https xh xhs", "-a --auth", Place::Next, SecretPart::After(b':')),
    flag("smbclient smbget rpcclient net", "-U", Place::Either, SecretPart::After(b'%')),
    flag("ldapsearch ldapmodify ldapadd ldapdelete ldappasswd ldapwhoami", "-w", Place::Either, SecretPart::All),
    flag("sqlcmd bcp osql zip unzip mosquitto_pub mosquitto_sub ipmitool", "-P", Place::Either, SecretPart::All),
    flag("ssh-keygen", "-N -P", Place::Next, SecretPart::All),
    flag("openssl", "pass:", Place::Same, SecretPart::All),
    flag("openssl", "-k -K", Place::Next, SecretPart::All),
    flag("xfreerdp xfreerdp3 wlfreerdp", "/p:", Place::Same, SecretPart::All),
];

impl Flag {
    fn is_of(&self, program: &[u8]) -> bool {
        self.programs.split(' ').any(|name| name.as_bytes() == program)
    }
}

/// Finds what only the words around it give away.
pub(super) fn find(words: &[&[u8]], found: &mut [Vec<Range<usize>>]) {
    let words: Vec<Piece> = words.iter().enumerate().map(|(index, text)| Piece { text, index, at: 0 }).collect();
    look(&words, DEPTH, found);
}

fn look(words: &[Piece], depth: usize, found: &mut [Vec<Range<usize>>]) {
    look_at_commands(words, found);
    let mut program: Option<usize> = None;
    let mut awaited: Option<(SecretPart, Name)> = None;
    for (place, word) in words.iter().enumerate() {
        if matches!(word.text, b";" | b"&&" | b"||" | b"|" | b"&") {
            (program, awaited) = (None, None);
            continue;
        }
        if let Some((part, name)) = awaited.take().filter(|_| !is_flag(word.text)) {
            if !is_plain(unquoted(word.text), name) {
                mark(word, 0, part, found);
            }
            continue;
        }
        if is_program(word.text) {
            program = Some(place);
        }
        awaited = match word.text {
            b"Bearer" | b"bearer" => Some((SecretPart::All, Name::Auth)),
            b"--cookie" => Some((SecretPart::After(b'='), Name::Secret)),
            text => flag_name(text).map(|name| (SecretPart::All, name)),
        };
        let before = program.map(|program| &words[program..place]).unwrap_or_default();
        awaited = by_program(before, word, found).or(awaited);
        if let Some(begin) = assigned(word.text) {
            mark(word, begin, SecretPart::All, found);
        }
        if depth > 0 && word.text.iter().any(u8::is_ascii_whitespace) {
            look(&split(word), depth - 1, found);
        }
    }
}

/// Looks at each command of a script, and at what is piped into it.
fn look_at_commands(words: &[Piece], found: &mut [Vec<Range<usize>>]) {
    let is_border = |word: &Piece| matches!(word.text, b";" | b"&&" | b"||" | b"|" | b"&");
    let mut piped: &[Piece] = &[];
    let mut rest = words;
    loop {
        let end = rest.iter().position(is_border).unwrap_or(rest.len());
        let command = &rest[..end];
        if let Some(part) = reads_password(command) {
            mark_written(piped, part, found);
        }
        mark_settings(command, found);
        mark_last_word(command, found);
        let Some(border) = rest.get(end) else { return };
        piped = if border.text == b"|" { command } else { &[] };
        rest = &rest[end + 1..];
    }
}

/// Which part of what is piped into a command is a password: `echo secret | sudo -S id`.
fn reads_password(command: &[Piece]) -> Option<SecretPart> {
    let sudo = command.iter().position(|word| base(word.text) == b"sudo");
    let of_sudo = |word: &Piece| {
        let is_cluster = matches!(word.text, [b'-', letter, ..] if *letter != b'-') && word.text.contains(&b'S');
        is_cluster || word.text == b"--stdin"
    };
    if command.iter().any(|word| base(word.text) == b"chpasswd") {
        return Some(SecretPart::After(b':'));
    }
    let by_sudo =
        sudo.is_some_and(|sudo| command[sudo + 1..].iter().take_while(|word| word.text.starts_with(b"-")).any(of_sudo));
    let by_flag = command.iter().any(|word| word.text == b"--password-stdin");
    (by_sudo || by_flag).then_some(SecretPart::All)
}

/// Marks what `echo` or `printf` writes: a format is no secret.
fn mark_written(command: &[Piece], part: SecretPart, found: &mut [Vec<Range<usize>>]) {
    let Some(program) = command.iter().position(|word| WRITERS.contains(&base(word.text))) else { return };
    let words = &command[program + 1..];
    let is_value = |word: &&Piece| !is_flag(word.text) && !word.text.contains(&b'%');
    for word in words.iter().filter(is_value).filter(|word| !is_plain(unquoted(word.text), Name::Secret)) {
        mark(word, 0, part, found);
    }
}

/// Marks the value of a setting whose name says that it is secret: `npm config set //host/:_authToken secret`.
fn mark_settings(command: &[Piece], found: &mut [Vec<Range<usize>>]) {
    let is_known = |word: &Piece| CONFIGURED.split(' ').any(|name| name.as_bytes() == base(word.text));
    let Some(program) = command.iter().take(8).position(is_known) else { return };
    let is_verb = |word: &Piece| CONFIGURE.contains(&word.text);
    let Some(verb) = command[program..].iter().take(8).position(is_verb) else { return };
    let mut words = command[program + verb + 1..].iter().peekable();
    while let Some(setting) = words.next() {
        let Some(value) = words.peek().filter(|value| !is_flag(value.text)) else { continue };
        let name = setting_name(setting.text).filter(|_| !setting.text.starts_with(b"-"));
        if name.is_some_and(|name| !is_plain(unquoted(value.text), name)) {
            mark(value, 0, SecretPart::All, found);
            words.next();
        }
    }
}

/// What the name of a setting promises: its end, or a part of it, as in `pypi-token.pypi`.
fn setting_name(text: &[u8]) -> Option<Name> {
    let begin = text.iter().rposition(|byte| matches!(byte, b'/' | b':')).map_or(0, |border| border + 1);
    let text = &text[begin..];
    if !text.iter().all(|byte| names::is_part(*byte)) {
        return None;
    }
    let parts = text.split(|byte| *byte == b'.').filter_map(names::judge);
    names::judge(text).or_else(|| parts.into_iter().find(|name| matches!(name, Name::Secret | Name::Token)))
}

/// Marks the password of `htpasswd -b FILE USER PASSWORD`.
fn mark_last_word(command: &[Piece], found: &mut [Vec<Range<usize>>]) {
    // Another program may be asked to start it.
    let Some(program) = command.iter().position(|word| base(word.text) == b"htpasswd") else { return };
    let words = &command[program + 1..];
    let has =
        |letter: u8| words.iter().any(|word| matches!(word.text, [b'-', letters @ ..] if letters.contains(&letter)));
    let plain: Vec<&Piece> = words.iter().filter(|word| !word.text.starts_with(b"-")).collect();
    let password = plain.get(if has(b'n') { 1 } else { 2 });
    if let Some(password) = password.filter(|word| has(b'b') && !is_plain(unquoted(word.text), Name::Secret)) {
        mark(password, 0, SecretPart::All, found);
    }
}

/// What a program makes of its own flags: marks what follows in the same word, answers with what is awaited in the next.
fn by_program(before: &[Piece], word: &Piece, found: &mut [Vec<Range<usize>>]) -> Option<(SecretPart, Name)> {
    let program = base(before.first()?.text);
    let mut awaited = None;
    let last = last_of_cluster(program, word.text);
    for known in FLAGS.iter().filter(|known| known.is_of(program)) {
        if known.verb.is_some_and(|verb| !before.iter().take(8).any(|word| word.text == verb.as_bytes())) {
            continue;
        }
        for flag in known.flags.split(' ') {
            if !last.is_empty() && flag.as_bytes().strip_prefix(b"-") == Some(last) && known.place != Place::Same {
                awaited = Some((known.part, Name::Secret));
            }
            match word.text.strip_prefix(flag.as_bytes()) {
                Some(b"") if known.place != Place::Same => awaited = Some((known.part, Name::Secret)),
                Some(rest)
                    if known.place != Place::Next && !rest.is_empty() && !is_plain(unquoted(rest), Name::Secret) =>
                {
                    mark(word, flag.len(), known.part, found);
                }
                _ => {}
            }
        }
    }
    awaited
}

/// The last of several letters behind one dash, as a flag of its own: `-sSu` of curl is `-s -S -u`. The letters before it
/// take no value.
fn last_of_cluster<'a>(program: &[u8], text: &'a [u8]) -> &'a [u8] {
    let alone = |byte: &u8| b"fgikjlqsvILNSOG0123469#".contains(byte);
    match text {
        [b'-', before @ .., _] if program == b"curl" && !before.is_empty() && before.iter().all(alone) => {
            &text[text.len() - 1..]
        }
        _ => b"",
    }
}

fn is_program(text: &[u8]) -> bool {
    FLAGS.iter().any(|known| known.is_of(base(text)))
}

fn base(text: &[u8]) -> &[u8] {
    text.rsplit(|byte| *byte == b'/').next().unwrap_or(text)
}

fn is_flag(text: &[u8]) -> bool {
    matches!(text, [b'-', b'-', ..] | [b'-', b'a'..=b'z' | b'A'..=b'Z'] | [b'-'])
}

/// What a flag that is a word of its own promises of the next word.
fn flag_name(text: &[u8]) -> Option<Name> {
    // `--name= value`: a shell has taken the two apart.
    let text = text.strip_suffix(b"=").filter(|text| text.starts_with(b"--")).unwrap_or(text);
    let is_flag = text.first() == Some(&b'-') && text.iter().all(|byte| names::is_part(*byte));
    is_flag.then(|| names::judge(text)).flatten()
}

/// Where the value begins in a word that is `NAME=value` or `--name=value` as a whole: it may hold anything.
fn assigned(text: &[u8]) -> Option<usize> {
    let mut from = 0;
    for (at, byte) in text.iter().enumerate().take(4 * names::LONGEST) {
        match byte {
            b'=' => {
                let value = &text[at + 1..];
                let secret = names::judge(&text[from..at]).is_some_and(|name| !is_plain(unquoted(value), name));
                if secret {
                    // `==` compares, or asks for a version; `NAME= command` sets nothing.
                    let other = |byte: &u8| *byte == b'=' || byte.is_ascii_whitespace();
                    return (!value.first().is_some_and(other)).then_some(at + 1);
                }
                from = at + 1;
            }
            b',' | b':' => from = at + 1,
            byte if names::is_part(*byte) => {}
            _ => return None,
        }
    }
    None
}

fn unquoted(text: &[u8]) -> &[u8] {
    match text {
        [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner,
        _ => text,
    }
}

fn mark(word: &Piece, begin: usize, part: SecretPart, found: &mut [Vec<Range<usize>>]) {
    let begin = match part {
        SecretPart::All => Some(begin),
        SecretPart::After(border) => {
            word.text[begin..].iter().position(|byte| *byte == border).map(|at| begin + at + 1)
        }
    };
    let Some(begin) = begin.filter(|begin| *begin < word.text.len()) else { return };
    let value = unquoted(&word.text[begin..]);
    if matches!(part, SecretPart::After(_)) && is_plain(value, Name::Secret) {
        return;
    }
    let begin = word.at + begin + usize::from(value.len() < word.text.len() - begin);
    found[word.index].push(begin..begin + value.len());
}

/// The words of a script, as a shell would see them, near enough: without the quotes around a whole word.
fn split<'a>(script: &Piece<'a>) -> Vec<Piece<'a>> {
    let text = script.text;
    let mut words = Vec::new();
    let mut at = 0;
    while at < text.len() {
        if text[at].is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let begin = at;
        if matches!(text[at], b';' | b'|' | b'&') {
            at += text[at..].iter().take(2).take_while(|byte| matches!(byte, b';' | b'|' | b'&')).count();
        } else {
            let mut quote = None;
            while at < text.len() {
                match (text[at], quote) {
                    (b'\\', None | Some(b'"')) => at += 1,
                    (byte, Some(open)) if byte == open => quote = None,
                    (byte @ (b'"' | b'\''), None) => quote = Some(byte),
                    (b';' | b'|' | b'&', None) => break,
                    (byte, None) if byte.is_ascii_whitespace() => break,
                    _ => {}
                }
                at += 1;
            }
        }
        let end = at.min(text.len());
        let inner = unquoted(&text[begin..end]);
        let quoted = usize::from(inner.len() < end - begin);
        words.push(Piece { text: inner, index: script.index, at: script.at + begin + quoted });
    }
    words
}
