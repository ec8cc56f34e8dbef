//! Reads that decide by what runs are: after changes in place, with files that are cut off, and without an index.

use outlive::index::{Freshness, Index, Lifecycle, Named, Names, Query, SourceAddress, Standing};

use super::yard::{Yard, put, put_bytes, state};

const DAY: &str = "2026-01-01T00:00:00.000Z";
const CUT: &[u8] = b"{\"schemaVersion\": 1, \"tas";

fn with_status(status: Lifecycle) -> Query {
    Query { statuses: [status].into(), ..Query::default() }
}

fn ids(yard: &Yard, query: &Query) -> Vec<(String, Freshness)> {
    yard.search(query).into_iter().map(|run| (run.record.run_id, run.freshness)).collect()
}

fn unreadable(yard: &Yard, query: &Query) -> Vec<String> {
    yard.index().search(query).unwrap().unreadable.runs.into_iter().map(|named: Named| named.name).collect()
}

#[test]
fn t2_01_filters_follow_a_change_in_place() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for name in ["a", "b", "c"] {
        put(&repo, name, &state(name, DAY, &["completed"]));
    }
    yard.index().refresh(None).unwrap();
    put(&repo, "b", &state("b", DAY, &["failed"]));
    let stale = vec![("b".to_owned(), Freshness::Stale)];
    assert_eq!(ids(&yard, &with_status(Lifecycle::Failed)), stale, "the new status");
    let valid = |name: &str| (name.to_owned(), Freshness::Valid);
    assert_eq!(ids(&yard, &with_status(Lifecycle::Completed)), [valid("a"), valid("c")], "the old status");
    let text = |text: &str| Query { text: Some(text.into()), ..Query::default() };
    assert_eq!(ids(&yard, &text("failed")), stale, "a word of the new status");
    let all = ids(&yard, &Query::default());
    assert_eq!(all, [valid("a"), ("b".to_owned(), Freshness::Stale), valid("c")], "no filter");
    let found = yard.index().search(&with_status(Lifecycle::Failed)).unwrap();
    assert_eq!((found.unverified.sources, found.unverified.runs, found.changed_sources), (0, 0, 1));
}

#[test]
fn t2_01_pages_of_changing_runs_have_no_gap_or_overlap() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    let made = |number: usize| format!("2026-01-01T00:00:{:02}.000Z", number % 60);
    for number in 0..60 {
        put(&repo, &format!("run-{number:02}"), &state(&format!("run-{number:02}"), &made(number), &["completed"]));
    }
    yard.index().refresh(None).unwrap();
    for number in (0..60).step_by(3) {
        put(&repo, &format!("run-{number:02}"), &state(&format!("run-{number:02}"), &made(number), &["failed"]));
    }
    put(&repo, "run-99", &state("run-99", &made(30), &["failed"]));
    for (status, wanted) in [(Lifecycle::Failed, 21), (Lifecycle::Completed, 40)] {
        let mut query = Query { limit: 7, count_all: true, ..with_status(status) };
        let mut seen = Vec::new();
        loop {
            let found = yard.index().search(&query).unwrap();
            assert_eq!(found.total, Some(wanted));
            seen.extend(found.runs.into_iter().map(|run| (run.record.created_at, run.record.run_id)));
            let Some(next) = found.next else { break };
            query.after = Some(next.to_string().parse().unwrap());
        }
        assert!(seen.len() == wanted && seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
        let skipped = Query { offset: 5, limit: 3, ..with_status(status) };
        let offset: Vec<String> = ids(&yard, &skipped).into_iter().map(|(id, _)| id).collect();
        assert_eq!(offset, seen[5..8].iter().map(|(_, id)| id.clone()).collect::<Vec<_>>());
    }
}

#[test]
fn t2_02_unreadable_runs_are_named_and_never_count_as_success() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for name in ["cut", "fine", "mended"] {
        put(&repo, name, &state(name, DAY, &["completed"]));
    }
    put_bytes(&repo, "mended", CUT);
    yard.index().refresh(None).unwrap();
    put_bytes(&repo, "cut", CUT);
    put(&repo, "mended", &state("mended", DAY, &["completed"]));
    put_bytes(&repo, "new", CUT);
    for query in [Query::default(), with_status(Lifecycle::Completed), with_status(Lifecycle::Failed)] {
        assert_eq!(unreadable(&yard, &query), ["cut", "new"], "before a refresh");
    }
    let completed: Vec<String> =
        yard.search(&with_status(Lifecycle::Completed)).into_iter().map(|run| run.record.run_id).collect();
    assert_eq!(completed, ["fine", "mended"], "before a refresh");
    let report = yard.index().report(None).unwrap();
    let named: Vec<&str> = report.unreadable_runs.runs.iter().map(|named| named.name.as_str()).collect();
    assert_eq!((report.freshness, named), (Standing::Stale, vec!["cut"]));
    yard.index().refresh(None).unwrap();
    assert_eq!(unreadable(&yard, &with_status(Lifecycle::Failed)), ["cut", "new"], "after it");
    let report = yard.index().report(None).unwrap();
    assert_eq!((report.freshness, report.unreadable_runs.count), (Standing::Degraded, 2));
}

#[test]
fn t2_02_names_of_unreadable_runs_come_in_pages() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    (0..250).for_each(|number| put_bytes(&repo, &format!("run-{number:03}"), CUT));
    yard.index().refresh(None).unwrap();
    let mut names = Vec::new();
    for offset in [0, 100, 200] {
        let report = yard.index().report_naming(None, Names { offset, limit: 100 }).unwrap();
        assert_eq!(report.unreadable_runs.count, 250);
        names.extend(report.unreadable_runs.runs.into_iter().map(|named| named.name));
    }
    assert_eq!(names, (0..250).map(|number| format!("run-{number:03}")).collect::<Vec<_>>());
    let page = yard.index().search(&Query { limit: 30, ..Query::default() }).unwrap();
    assert_eq!((page.unreadable.count, page.unreadable.runs.len()), (250, 30));
}

#[test]
fn t2_05_reads_cover_a_tree_that_is_not_registered() {
    let yard = Yard::new();
    put(&yard.repo("other"), "r1", &state("r1", DAY, &["failed"]));
    yard.index().refresh(None).unwrap();
    let here = yard.path().canonicalize().unwrap().join("here");
    put(&here, "r1", &state("r1", DAY, &["completed"]));
    put(&here, "r2", &state("r2", DAY, &["completed"]));
    let index = Index::of(yard.index().home()).with_here(vec![SourceAddress::of_tree(&here)]);
    let found = index.search(&Query::default()).unwrap();
    assert_eq!(found.runs.iter().map(|run| run.record.run_id.as_str()).collect::<Vec<_>>(), ["r1", "r1", "r2"]);
    let repo = here.to_str().unwrap();
    let named = index.find("r1", Some(repo), 5).unwrap().runs;
    assert_eq!((named.len(), named[0].record.lifecycle), (1, Lifecycle::Completed));
    let report = index.report(Some(repo)).unwrap();
    assert_eq!((report.freshness, report.new_runs.count), (Standing::Stale, 2));
}

#[test]
fn t2_06_a_run_is_found_by_name_before_and_after_it_is_indexed() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    put(&repo, "dir", &state("run-1", DAY, &["completed"]));
    put_bytes(&repo, "cut", CUT);
    for refreshed in [false, true] {
        for name in ["dir", "run-1", "run", "Title of run-1"] {
            let found = yard.index().find(name, None, 5).unwrap().runs;
            assert_eq!(found.len(), 1, "{name}, refreshed: {refreshed}");
        }
        let cut = yard.index().find("cut", None, 5).unwrap();
        assert_eq!((cut.runs.len(), cut.unreadable.len()), (0, 1), "refreshed: {refreshed}");
        for stranger in ["../runs/dir", ".", "dir/", "nothing"] {
            assert_eq!(yard.index().find(stranger, None, 5).unwrap().runs.len(), 0, "{stranger}");
        }
        yard.index().refresh(None).unwrap();
    }
    put(&repo, "cut", &state("cut", DAY, &["completed"]));
    assert_eq!(yard.index().find("cut", None, 5).unwrap().runs.len(), 1, "it was mended");
}

#[test]
fn t2_08_a_vanished_repository_has_its_runs_named_as_missing() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    put(&repo, "run", &state("run", DAY, &["completed"]));
    yard.index().refresh(None).unwrap();
    std::fs::remove_dir_all(&repo).unwrap();
    for standing in [Standing::Stale, Standing::Degraded] {
        let report = yard.index().report(None).unwrap();
        assert_eq!((report.freshness, report.missing_runs.count), (standing, 1));
        assert_eq!(report.missing_runs.runs[0].name, "run");
        yard.index().refresh(None).unwrap();
    }
}

#[test]
fn t2_08_rows_say_that_archive_marks_cannot_be_read() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    put(&repo, "run", &state("run", DAY, &["completed"]));
    std::fs::create_dir_all(repo.join(".cw/registry")).unwrap();
    std::fs::write(repo.join(".cw/registry/archive.json"), "{").unwrap();
    for _ in 0..2 {
        let found = yard.index().search(&Query::default()).unwrap();
        let reason = found.runs[0].freshness_reason.clone().unwrap();
        assert!(reason.contains("whether it is archived is unknown"), "{reason}");
        assert_ne!(found.runs[0].freshness, Freshness::Valid);
        assert_eq!(found.problems[0].what, ".cw/registry/archive.json");
        yard.index().refresh(None).unwrap();
    }
}
