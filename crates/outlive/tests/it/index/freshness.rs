//! What a reader is told is valid was looked at; what is not is named.

use outlive::index::{Freshness, Query, SearchOrder, Standing};
use serde_json::json;

use super::yard::{Yard, put, put_bytes, state};

const DAY: &str = "2026-01-01T00:00:00.000Z";

#[test]
fn c02_index_is_absent_then_valid_and_a_rebuilt_one_is_equal() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for number in 0..20 {
        put(&repo, &format!("run-{number}"), &state(&format!("run-{number}"), DAY, &["completed"]));
    }
    assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Absent);
    let found = yard.index().search(&Query::default()).unwrap();
    assert_eq!((found.indexed, found.runs.len()), (false, 20), "what is not indexed is read");
    assert!(found.runs.iter().all(|run| run.freshness == Freshness::New));
    assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Absent, "a read made an index");
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Valid);
    let before = yard.all();
    assert_eq!(before.len(), 20);
    std::fs::remove_dir_all(yard.path().join("home/index")).unwrap();
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.all(), before);
    yard.index().rebuild().unwrap();
    assert_eq!(yard.all(), before);
}

#[test]
fn f_55_a_damaged_index_is_said_to_be_and_made_anew() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for number in 0..200 {
        put(&repo, &format!("run-{number}"), &state(&format!("run-{number}"), DAY, &["completed"]));
    }
    yard.index().refresh(None).unwrap();
    let before = yard.all();
    let index = yard.path().join("home/index");
    let file = index.join(std::fs::read_link(index.join("current")).unwrap());
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[4_096..].fill(0x5a);
    std::fs::write(&file, &bytes).unwrap();
    let told = yard.index().search(&Query::default()).unwrap_err();
    assert!(matches!(told, outlive::error::Error::DamagedIndex(_)), "{told}");
    assert!(told.hint().is_some_and(|hint| hint.contains("--rebuild")), "{told}");
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.all(), before);
    std::fs::write(index.join(std::fs::read_link(index.join("current")).unwrap()), "no database").unwrap();
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.all(), before);
}

#[test]
fn c03_changed_runs_are_named_and_missing_ones_stay_known() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for name in ["changed", "gone", "same"] {
        put(&repo, name, &state(name, DAY, &["pending"]));
    }
    yard.index().refresh(None).unwrap();
    put(&repo, "changed", &state("changed", DAY, &["completed"]));
    put(&repo, "new", &state("new", DAY, &["pending"]));
    std::fs::remove_dir_all(repo.join(".cw/runs/gone")).unwrap();
    let report = yard.index().report(None).unwrap();
    let names = |sort: &outlive::index::Sort| sort.runs.iter().map(|named| named.name.clone()).collect::<Vec<_>>();
    assert_eq!(report.freshness, Standing::Stale);
    assert_eq!(names(&report.stale_runs), ["changed"]);
    assert_eq!(names(&report.new_runs), ["new"]);
    assert_eq!(names(&report.missing_runs), ["gone"]);
    let found = yard.index().search(&Query::default()).unwrap();
    let told: Vec<_> = found.runs.iter().map(|run| (run.record.run_id.as_str(), run.freshness)).collect();
    assert_eq!(told, [("changed", Freshness::Stale), ("new", Freshness::New), ("same", Freshness::Valid)]);
    assert_eq!(found.runs[0].record.lifecycle.as_str(), "completed", "what is shown is what is");
    assert_eq!(found.missing[0].record.run_id, "gone");
    yard.index().refresh(None).unwrap();
    let report = yard.index().report(None).unwrap();
    assert_eq!((report.freshness, names(&report.missing_runs)), (Standing::Valid, vec!["gone".into()]));
    assert_eq!(yard.all().len(), 3);
    let gone = yard.index().find("gone", None, 5).unwrap().runs;
    assert_eq!((gone.len(), gone[0].freshness), (1, Freshness::Missing));
    // It comes back, and is a run like any other.
    put(&repo, "gone", &state("gone", DAY, &["pending"]));
    yard.index().refresh(None).unwrap();
    assert_eq!((yard.all().len(), yard.index().report(None).unwrap().missing_runs.count), (4, 0));
}

#[test]
fn c03_the_same_size_and_time_with_other_content_is_seen() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    put(&repo, "run", &state("run", DAY, &["pending"]));
    let path = repo.join(".cw/runs/run/state.json");
    let before = std::fs::metadata(&path).unwrap();
    yard.index().refresh(None).unwrap();
    // In place, of the same length, and with the time put back.
    let text = std::fs::read_to_string(&path).unwrap().replace("pending", "running");
    std::fs::write(&path, text).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), before.len());
    assert_eq!(yard.all()[0].freshness, Freshness::Stale);
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.all()[0].record.lifecycle.as_str(), "running");
}

#[test]
fn c04_one_bad_run_or_overlay_hides_no_other() {
    let yard = Yard::new();
    let (good, bad) = (yard.repo("good"), yard.repo("bad"));
    put(&good, "fine", &state("fine", DAY, &[]));
    for number in 0..1_000 {
        put(&bad, &format!("run-{number:04}"), &state(&format!("run-{number:04}"), DAY, &["completed"]));
    }
    put_bytes(&bad, "run-0500", b"{\"schemaVersion\": 1, \"tas");
    std::fs::create_dir_all(bad.join(".cw/registry")).unwrap();
    std::fs::write(bad.join(".cw/registry/archive.json"), "[").unwrap();
    let refreshed = yard.index().refresh(None).unwrap();
    assert_eq!((refreshed.added, refreshed.unreadable), (1_000, 1));
    assert_eq!(yard.all().len(), 1_000);
    let report = yard.index().report(None).unwrap();
    let states: Vec<_> =
        report.sources.iter().map(|source| (source.repo.rsplit('/').next().unwrap(), source.state)).collect();
    assert_eq!(states, [("bad", "degraded"), ("good", "available")]);
    assert_eq!(report.sources[0].problems[0].what, ".cw/registry/archive.json");
    assert_eq!(report.unreadable_runs.runs[0].name, "run-0500");
    assert!(report.unreadable_runs.runs[0].reason.as_ref().unwrap().contains("not understood"));
}

#[test]
fn c05_vanished_source_is_unavailable_and_not_forgotten() {
    let yard = Yard::new();
    let (stays, goes) = (yard.repo("stays"), yard.repo("goes"));
    put(&stays, "a", &state("a", DAY, &[]));
    put(&goes, "b", &state("b", DAY, &[]));
    yard.index().refresh(None).unwrap();
    std::fs::rename(&goes, yard.path().join("away")).unwrap();
    for _ in 0..2 {
        let found = yard.index().search(&Query::default()).unwrap();
        assert_eq!(found.runs.len(), 1);
        assert_eq!((found.missing.len(), found.missing[0].freshness), (1, Freshness::Missing));
        let report = yard.index().report(None).unwrap();
        let state = report.sources.iter().find(|source| source.repo.ends_with("goes")).unwrap();
        assert_eq!(state.state, "unavailable");
        yard.index().refresh(None).unwrap();
    }
    std::fs::rename(yard.path().join("away"), &goes).unwrap();
    assert_eq!(yard.all().len(), 2);
}

#[test]
fn c06_pages_have_no_gap_or_overlap_in_either_order() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for number in 0..97 {
        // Many share a moment, and some have none.
        let mut state =
            state(&format!("run-{:02}", number * 31 % 97), &format!("2026-01-0{}T00:00:00.000Z", 1 + number % 3), &[]);
        if number % 10 == 0 {
            (state["createdAt"], state["updatedAt"]) = (json!("long ago"), json!("long ago"));
        }
        put(&repo, &format!("dir-{number}"), &state);
    }
    yard.index().refresh(None).unwrap();
    let whole: Vec<_> = yard.all().into_iter().map(|run| run.record).collect();
    let sorted =
        |pair: &[outlive::index::IndexRecord]| (pair[0].made(), &pair[0].run_id) < (pair[1].made(), &pair[1].run_id);
    assert!(whole.len() == 97 && whole.windows(2).all(sorted));
    for order in [SearchOrder::Oldest, SearchOrder::Newest] {
        let mut paged = pages(&yard, Query { limit: 7, order, ..Query::default() });
        if order == SearchOrder::Newest {
            paged.reverse();
        }
        assert_eq!(paged, whole, "{order:?}");
    }
}

/// All pages of a query, one behind the other.
fn pages(yard: &Yard, mut query: Query) -> Vec<outlive::index::IndexRecord> {
    let mut paged = Vec::new();
    loop {
        let found = yard.index().search(&query).unwrap();
        paged.extend(found.runs.into_iter().map(|run| run.record));
        let Some(next) = found.next else { return paged };
        query.after = Some(next.to_string().parse().unwrap());
    }
}

#[test]
fn c06_word_prefixes_are_found_among_many_runs() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for number in 0..2_600 {
        let minute = format!("2026-01-{:02}T{:02}:{:02}:00.000Z", 1 + number / 1_440, number / 60 % 24, number % 60);
        let mut state = state(&format!("run-{number:04}"), &minute, &[]);
        // The first and the last few are met last by one who comes from the other end.
        let is_rare = !(70..=2_530).contains(&number);
        state["inputs"] = json!({"question": if is_rare { "needles" } else { "straw" }});
        put(&repo, &format!("run-{number:04}"), &state);
    }
    yard.index().refresh(None).unwrap();
    let whole: Vec<_> = yard.all().into_iter().map(|run| run.record).collect();
    for (text, word) in [("titl*", "Title"), ("need*", "needles"), ("title need*", "needles"), ("stra* titl*", "straw")]
    {
        for order in [SearchOrder::Oldest, SearchOrder::Newest] {
            let mut paged = pages(&yard, Query { limit: 60, order, text: Some(text.into()), ..Query::default() });
            if order == SearchOrder::Newest {
                paged.reverse();
            }
            let has = |record: &&outlive::index::IndexRecord| {
                record.title.contains(word) || record.inputs_digest.contains(word)
            };
            let expected: Vec<_> = whole.iter().filter(has).cloned().collect();
            assert!(expected.len() >= 139, "{text} is in {} runs", expected.len());
            assert!(paged == expected, "{text} {order:?}: {} of {}", paged.len(), expected.len());
        }
    }
}

#[test]
fn a_refresh_that_is_given_up_leaves_the_index_as_it_was() {
    let yard = Yard::new();
    let (one, other) = (yard.repo("one"), yard.repo("other"));
    put(&one, "a", &state("a", "2026-01-01T00:00:00.000Z", &["done"]));
    yard.index().refresh(None).unwrap();
    put(&one, "b", &state("b", "2026-01-02T00:00:00.000Z", &["done"]));
    put(&other, "c", &state("c", "2026-01-03T00:00:00.000Z", &["done"]));
    for rebuild in [false, true] {
        let told = std::cell::RefCell::new(Vec::new());
        let goes_on = |done, total| {
            told.borrow_mut().push((done, total));
            done == 0
        };
        yard.index().refresh_while(None, rebuild, &goes_on).unwrap_err();
        assert_eq!(*told.borrow(), [(0, 2), (1, 2)]);
        let valid = yard.all().iter().filter(|run| run.freshness == Freshness::Valid).count();
        assert_eq!(valid, 1, "half a refresh is seen");
    }
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.all().len(), 3);
}
