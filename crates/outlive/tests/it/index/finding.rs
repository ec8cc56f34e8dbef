//! What free text finds: any part of what a run says, in any script, and nothing else.

use outlive::index::{Lifecycle, Query, SourceAddress};
use serde_json::json;

use super::yard::{Yard, put, state};

const DAY: &str = "2026-01-01T00:00:00.000Z";

fn titled(yard: &Yard, titles: &[(&str, &str)]) {
    let repo = yard.repo("repo");
    for (name, title) in titles {
        let mut state = state(name, DAY, &["completed"]);
        (state["workflow"]["title"], state["inputs"]) = (json!(title), json!({}));
        put(&repo, name, &state);
    }
}

fn found(yard: &Yard, text: &str) -> Vec<String> {
    yard.search(&Query { text: Some(text.into()), ..Query::default() })
        .into_iter()
        .map(|run| run.record.run_id)
        .collect()
}

#[test]
fn t2_07_text_is_found_by_any_part_of_it_in_any_script() {
    let yard = Yard::new();
    titled(
        &yard,
        &[
            ("a1", "Redeploy the crab 🦀"),
            ("a2", "漢字を書く"),
            ("a3", "cafe\u{301} na\u{ef}ve"),
            ("a4", "100% \"done\" *"),
            ("a5", "foo-bar_baz"),
        ],
    );
    for refreshed in [false, true] {
        for (text, wanted) in [
            ("🦀", vec!["a1"]),
            ("deploy", vec!["a1"]),
            ("DEPLOY crab", vec!["a1"]),
            ("redep*", vec!["a1"]),
            ("漢", vec!["a2"]),
            ("字を", vec!["a2"]),
            ("café", vec!["a3"]),
            ("cafe\u{301}", vec!["a3"]),
            ("nai\u{308}ve", vec!["a3"]),
            ("%", vec!["a4"]),
            ("\"", vec!["a4"]),
            ("*", vec!["a4"]),
            ("0%", vec!["a4"]),
            ("o-ba", vec!["a5"]),
            ("bar_b", vec!["a5"]),
            ("-bar", vec!["a5"]),
            ("-ba_", vec![]),
            ("foo_bar", vec![]),
            ("🐙", vec![]),
            ("deploy 漢", vec![]),
        ] {
            assert_eq!(found(&yard, text), wanted, "`{text}`, refreshed: {refreshed}");
        }
        yard.index().refresh(None).unwrap();
    }
}

#[test]
fn t2_07_no_word_of_a_long_query_is_dropped() {
    let yard = Yard::new();
    let words: Vec<String> = (0..64).map(|number| format!("w{number:02}")).collect();
    let most = words.join(" ");
    titled(&yard, &[("all", &most), ("fewer", &words[..63].join(" "))]);
    yard.index().refresh(None).unwrap();
    assert_eq!(found(&yard, &most), ["all"]);
    let refused = yard.index().search(&Query { text: Some(format!("{most} x")), ..Query::default() }).unwrap_err();
    assert!(refused.to_string().contains("at most 64 words, not 65"), "{refused}");
}

#[test]
fn t2_07_a_part_of_very_many_words_is_found_all_the_same() {
    let yard = Yard::new();
    let names: Vec<String> = (0..300).map(|number| format!("n{number:03}x")).collect();
    titled(&yard, &names.iter().map(|name| (name.as_str(), "t")).collect::<Vec<_>>());
    yard.index().refresh(None).unwrap();
    let query = |text: &str| Query { text: Some(text.into()), limit: 1_000, ..Query::default() };
    assert_eq!(yard.search(&query("n")).len(), 300);
    assert_eq!(yard.search(&query("7x")).len(), 30);
}

#[test]
fn t2_04_archive_marks_on_foreign_runs_are_kept_in_the_home() {
    let yard = Yard::new();
    titled(&yard, &[("run", "Run"), ("other", "Other")]);
    yard.index().refresh(None).unwrap();
    let repo = yard.path().canonicalize().unwrap().join("repo");
    let before = std::fs::read_dir(repo.join(".cw")).unwrap().count();
    let address = SourceAddress::of_tree(&repo);
    let mark = |archived| yard.index().mark_archived(&address, &["run".into()], archived, Some("old")).unwrap();
    let archived = || {
        let query = Query { archived: Some(true), ..Query::default() };
        yard.search(&query).into_iter().map(|run| (run.record.lifecycle, run.record.archive_reason)).collect::<Vec<_>>()
    };
    mark(true);
    for _ in 0..2 {
        assert_eq!(archived(), [(Lifecycle::Archived, Some("old".into()))]);
        let completed = Query { statuses: [Lifecycle::Completed].into(), ..Query::default() };
        assert_eq!(yard.search(&completed).len(), 2, "what is under the mark is found");
        yard.index().refresh(None).unwrap();
    }
    std::fs::remove_dir_all(yard.path().join("home/index")).unwrap();
    assert_eq!(archived().len(), 1, "the marks are not part of the index");
    mark(false);
    assert_eq!(archived(), []);
    // A mark of the tool itself no longer counts once it was taken away here later.
    std::fs::create_dir_all(repo.join(".cw/registry")).unwrap();
    let theirs = json!({"archived": {"other": {"archivedAt": "2026-02-01T00:00:00.000Z", "reason": "theirs"}}});
    std::fs::write(repo.join(".cw/registry/archive.json"), theirs.to_string()).unwrap();
    assert_eq!(archived(), [(Lifecycle::Archived, Some("theirs".into()))]);
    yard.index().mark_archived(&address, &["other".into()], false, None).unwrap();
    assert_eq!(archived(), []);
    assert_eq!(std::fs::read_dir(repo.join(".cw")).unwrap().count(), before + 1, "the repository was touched");
}

#[test]
fn t2_09_a_run_that_was_only_touched_is_not_counted_as_changed() {
    let yard = Yard::new();
    titled(&yard, &[("same", "Same"), ("changed", "Changed")]);
    yard.index().refresh(None).unwrap();
    titled(&yard, &[("same", "Same"), ("changed", "Other")]);
    let refreshed = yard.index().refresh(None).unwrap();
    assert_eq!((refreshed.read, refreshed.changed, refreshed.added), (2, 1, 0));
    assert_eq!(yard.index().refresh(None).unwrap().read, 0, "how it looks was not noted");
}
