//! What is redacted, and what is left alone.

use outlive::redact::{MASK, PATTERN_LIMIT, PATTERNS_LIMIT, Redactor};
use proptest::prelude::*;

const SECRETS: &str = include_str!("../corpus/secrets.txt");
const ORDINARY: &str = include_str!("../corpus/ordinary.txt");

/// The lines of a corpus, as words.
fn commands(corpus: &str) -> Vec<Vec<String>> {
    let line = |line: &str| {
        // Only behind the first tab can a word have spaces in it.
        let (plain, rest) = line.split_once('\t').map_or((line, None), |(plain, rest)| (plain, Some(rest)));
        let rest = rest.into_iter().flat_map(|rest| rest.split('\t'));
        plain.split(' ').chain(rest).map(str::to_owned).collect()
    };
    corpus.lines().filter(|text| !text.starts_with('#')).map(line).collect()
}

/// A marked text without its marks, and as it should read once it is redacted.
fn marked(text: &str) -> (String, String) {
    let text = text.replace('~', "");
    let mut expected = String::new();
    for (index, part) in text.split(['«', '»']).enumerate() {
        expected.push_str(if index % 2 == 0 { part } else { MASK });
    }
    (text.replace(['«', '»'], ""), expected)
}

fn argv(redactor: &Redactor, words: &[String]) -> Vec<String> {
    redactor.argv(words).into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
}

#[test]
fn s_28_every_secret_of_the_corpus_is_masked_and_no_other_text() {
    let redactor = Redactor::default();
    let corpus = commands(SECRETS);
    assert!(corpus.len() >= 60);
    let mut wrong = Vec::new();
    for words in corpus {
        let (words, expected): (Vec<String>, Vec<String>) = words.iter().map(|word| marked(word)).unzip();
        assert_ne!(words, expected, "a line without a secret");
        let found = argv(&redactor, &words);
        if found != expected {
            wrong.push(format!("{}\n  {}", expected.join("|"), found.join("|")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn s_30_secrets_are_masked_in_any_text() {
    let redactor = Redactor::default();
    let in_text = SECRETS.split("# Only as a command line").next().unwrap();
    let mut wrong = Vec::new();
    for words in commands(in_text) {
        let (text, expected) = marked(&words.join(" "));
        let found = redactor.text(&text);
        if found != expected {
            wrong.push(format!("{expected}\n  {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn s_28_ordinary_commands_are_not_touched() {
    let redactor = Redactor::default();
    let corpus = commands(ORDINARY);
    assert!(corpus.len() >= 60);
    let mut wrong = Vec::new();
    for words in corpus {
        let found = argv(&redactor, &words);
        if found != words {
            wrong.push(found.join("|"));
        }
        let text = words.join(" ");
        if redactor.text(&text) != text {
            wrong.push(format!("as text: {}", redactor.text(&text)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn t8_10_corpus_has_no_missed_secret_and_no_mangled_command() {
    let redactor = Redactor::default();
    let secrets = commands(SECRETS);
    let is_missed = |words: &&Vec<String>| {
        let words: Vec<(String, String)> = words.iter().map(|word| marked(word)).collect();
        let found = argv(&redactor, &words.iter().map(|(word, _)| word.clone()).collect::<Vec<_>>());
        found.iter().zip(&words).any(|(found, (_, expected))| found != expected)
    };
    let missed = secrets.iter().filter(is_missed).count();
    let ordinary = commands(ORDINARY);
    let mangled = ordinary.iter().filter(|words| argv(&redactor, words) != **words).count();
    println!("missed {missed} of {} secrets, mangled {mangled} of {} commands", secrets.len(), ordinary.len());
    assert!(secrets.len() >= 220 && ordinary.len() >= 180, "the corpus has shrunk");
    assert_eq!((missed, mangled), (0, 0));
}

#[test]
fn t8_10_fleet_keys_and_webhooks_are_masked_in_logs() {
    let redactor = Redactor::default();
    let key = format!("outlive-fleet-1.{}.{}", "ab".repeat(8), "01".repeat(32));
    assert_eq!(redactor.text(&format!("key: {key}\n")), format!("key: {MASK}\n"));
    let hook = format!("posted to https://hooks.{}.com/services/T012345/B012345/abcDEF1234567890", "slack");
    assert_eq!(redactor.text(&hook), format!("posted to https://hooks.slack.com/services/{MASK}"));
}

#[test]
fn t1_23_what_tokenisers_print_is_not_masked() {
    let redactor = Redactor::default();
    let printed = "{\"token\": \"hello\", \"id\": 15496}\nbest_token=Paris next_token=' the'\n  \"eos_token\": \"<|endoftext|>\",\n";
    assert_eq!(redactor.text(printed), printed);
    let secret = "{\"token\": \"8f14e45fceea167a5a36\", \"access_token\": \"abc\"}";
    assert_eq!(redactor.text(secret), "{\"token\": \"[redacted]\", \"access_token\": \"[redacted]\"}");
}

/// What a reader lets go that is handed a text in chunks and holds back what [`Redactor::settled`] says.
fn in_chunks(redactor: &Redactor, text: &[u8], chunks: &[usize]) -> Vec<u8> {
    let mask = |out: &mut Vec<u8>, text: &[u8], spans: &[std::ops::Range<usize>]| {
        let mut at = 0;
        for span in spans {
            out.extend_from_slice(&text[at..span.start]);
            out.extend_from_slice(MASK.as_bytes());
            at = span.end;
        }
        out.extend_from_slice(&text[at..]);
    };
    let (mut out, mut held, mut rest) = (Vec::new(), Vec::new(), text);
    for size in chunks.iter().cycle() {
        let (chunk, after) = rest.split_at((*size).min(rest.len()));
        (rest, held) = (after, [held.as_slice(), chunk].concat());
        if rest.is_empty() {
            break;
        }
        let (spans, until) = redactor.settled(&held);
        let settled: Vec<_> = spans.into_iter().filter(|span| span.start < until).collect();
        assert!(settled.iter().all(|span| span.end <= until), "a secret was cut in two");
        assert!(held.len() - until <= 2 * redactor.longest(), "{} bytes are held back", held.len() - until);
        mask(&mut out, &held[..until], &settled);
        held.drain(..until);
    }
    mask(&mut out, &held, &redactor.spans(&held));
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn s_30_a_secret_split_over_reads_is_masked_as_if_it_were_not(
        picks in proptest::collection::vec(any::<prop::sample::Index>(), 200..600),
        chunks in proptest::collection::vec(1_usize..9_000, 1..8),
    ) {
        let in_text = SECRETS.split("# Only as a command line").next().unwrap();
        let lines: Vec<String> = commands(in_text).into_iter().chain(commands(ORDINARY)).map(|words| marked(&words.join(" ")).0).collect();
        let text = picks.iter().map(|pick| pick.get(&lines).as_str()).collect::<Vec<_>>().join("\n");
        let redactor = Redactor::default();
        let found = String::from_utf8(in_chunks(&redactor, text.as_bytes(), &chunks)).unwrap();
        prop_assert_eq!(found, redactor.text(&text));
    }

    #[test]
    fn spans_of_any_bytes_are_sorted_apart_and_within(pieces in proptest::collection::vec(
        prop_oneof![
            "[ -~]{0,12}", Just("password=".into()), Just("://a:b@".into()), Just("eyJ".into()), Just("\"".into()), Just("\\".into()),
            Just("--token ".into()), Just("-----BEGIN PRIVATE KEY-----".into()), Just("Authorization: ".into()), Just("é\n".into()),
        ], 0..40)) {
        let text = pieces.concat();
        let redactor = Redactor::new(true, &["[0-9]{3}", "é(.)"]).unwrap();
        let mut last = 0;
        for (index, span) in redactor.spans(text.as_bytes()).into_iter().enumerate() {
            prop_assert!(span.start < span.end && span.end <= text.len() && (index == 0 || span.start > last));
            last = span.end;
        }
        redactor.text(&text);
        redactor.argv(&[text.as_bytes(), b"x", text.as_bytes()]);
    }
}

#[test]
fn patterns_are_added_and_the_first_group_is_the_secret() {
    let redactor = Redactor::new(true, &["ACME-[0-9]+", "badge ([a-z]+) of"]).unwrap();
    let text = "ACME-1234 and badge wolf of ada, --password hunter2";
    assert_eq!(redactor.text(text), "[redacted] and badge [redacted] of ada, --password [redacted]");
    let alone = Redactor::new(false, &["ACME-[0-9]+"]).unwrap();
    assert_eq!(alone.text(text), "[redacted] and badge wolf of ada, --password hunter2");
    assert_eq!(Redactor::everything().text(text), MASK);
    assert_eq!((redactor.named("token", "wolf"), redactor.named("team", "search")), (MASK.into(), "search".into()));
}

#[test]
fn patterns_that_cannot_be_are_refused_and_say_why() {
    let refused = |patterns: &[&str]| Redactor::new(true, patterns).unwrap_err().to_string();
    insta::assert_snapshot!(refused(&["a(b"]), @"the pattern `a(b`: unclosed group");
    insta::assert_snapshot!(refused(&["a*"]), @"the pattern `a*`: it matches where there is nothing");
    insta::assert_snapshot!(refused(&["(a{1000}){1000}"]), @"the pattern `(a{1000}){1000}`: it takes more than 1048576 bytes");
    insta::assert_snapshot!(refused(&[&"a".repeat(PATTERN_LIMIT + 1)]), @"a pattern of 1025 bytes; the longest is 1024");
    insta::assert_snapshot!(refused(&["a"; PATTERNS_LIMIT + 1]), @"65 patterns; the most is 64");
}

#[test]
fn s_31_a_redactor_does_not_tell_its_patterns() {
    let redactor = Redactor::new(true, &["hunter2"]).unwrap();
    assert!(!format!("{redactor:?}").contains("hunter2"));
}
