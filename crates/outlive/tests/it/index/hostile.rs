//! Trees that were made to hurt: nothing hangs, nothing falls over, and what is sound in them is found.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use outlive::index::{Query, SourceAddress, Standing};
use outlive::time::Timestamp;

use super::yard::{Yard, put, state};

/// The variable that has more empty directories made.
const EMPTY: &str = "OUTLIVE_INDEX_EMPTY_DIRECTORIES";
const DAY: &str = "2026-01-01T00:00:00.000Z";

#[test]
fn c04_tree_of_pipes_holes_loops_and_crowds_hides_no_run() {
    let yard = Yard::new();
    let repo = yard.repo("repo");
    let runs = repo.join(".cw/runs");
    put(&repo, "sound", &state("sound", DAY, &["completed"]));
    let dir = |name: &str| {
        std::fs::create_dir_all(runs.join(name)).unwrap();
        runs.join(name).join("state.json")
    };
    assert!(Command::new("mkfifo").arg(dir("pipe")).status().unwrap().success());
    std::fs::File::create(dir("hole")).unwrap().set_len(4 << 30).unwrap();
    std::os::unix::fs::symlink("state.json", dir("loop")).unwrap();
    std::fs::create_dir_all(dir("directory")).unwrap();
    std::os::unix::fs::symlink("..", runs.join("up")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir("zero")).unwrap();
    std::fs::write(dir("deep"), "[".repeat(100_000)).unwrap();
    std::fs::write(dir("binary"), [0xff_u8; 64]).unwrap();
    std::fs::write(dir("empty"), "").unwrap();
    let huge = format!("{{\"schemaVersion\":1,\"workflow\":{{\"id\":\"{}\"}},\"paths\":{{}}}}", "x".repeat(1 << 20));
    std::fs::write(dir("long\u{1b}[2J"), huge).unwrap();
    let many = std::env::var(EMPTY).ok().and_then(|many| many.parse().ok()).unwrap_or(5_000);
    for number in 0..many {
        std::fs::create_dir(runs.join(format!("nothing-{number}"))).unwrap();
    }
    let refreshed = yard.index().refresh(None).unwrap();
    let found = yard.all();
    assert_eq!(found.iter().map(|run| run.record.run_id.as_str()).collect::<Vec<_>>(), ["long\u{1b}[2J", "sound"]);
    assert!(found[0].record.title.len() <= 1_024, "a title of {} bytes", found[0].record.title.len());
    assert_eq!(refreshed.unreadable, 8);
    let report = yard.index().report(None).unwrap();
    let reasons: Vec<String> = report
        .unreadable_runs
        .runs
        .iter()
        .map(|named| format!("{}: {}", named.name, named.reason.clone().unwrap_or_default()))
        .collect();
    insta::assert_snapshot!(reasons.join("\n"), @r"
    binary: not understood: expected value at line 1 column 1
    deep: not understood: EOF while parsing a list at line 1 column 100000
    directory: not a regular file
    empty: not understood: EOF while parsing a value at line 1 column 0
    hole: larger than 32 MiB
    loop: a link, which is not followed
    pipe: not a regular file
    zero: a link, which is not followed
    ");
}

fn pipe(path: &std::path::Path) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// How each source stands, by the name of its repository, wherever that is asked.
fn standing(yard: &Yard) -> Vec<String> {
    let report = yard.index().report(None).unwrap();
    let known: Vec<SourceAddress> = yard.index().sources().unwrap().into_iter().map(|known| known.address).collect();
    assert_eq!(yard.index().standing(&known).unwrap(), report.sources, "a list says otherwise than the report");
    let one = |source: &outlive::index::SourceReport| {
        let problems = source.problems.iter().map(|problem| format!(", {}: {}", problem.what, problem.reason));
        format!("{} {}{}", source.repo.rsplit('/').next().unwrap(), source.state, problems.collect::<String>())
    };
    report.sources.iter().map(one).collect()
}

#[test]
fn c03_c04_silent_sources_are_unavailable_and_not_changed() {
    let yard = Yard::new();
    put(&yard.repo("sound"), "run", &state("run", DAY, &["completed"]));
    let root = yard.path().canonicalize().unwrap();
    let registry = |name: &str| {
        let path = root.join(name).join(".outlive");
        std::fs::create_dir_all(&path).unwrap();
        SourceAddress::of_registry(&path).register(&yard.path().join("home"), Timestamp::default()).unwrap();
        path.join("registry.db")
    };
    pipe(&registry("pipe"));
    std::fs::File::create(registry("hole")).unwrap().set_len(4 << 30).unwrap();
    std::fs::write(registry("text"), "no database").unwrap();
    let looped = yard.repo("loop").join(".cw/runs");
    std::fs::remove_dir(&looped).unwrap();
    std::os::unix::fs::symlink("runs", &looped).unwrap();
    let told = ["hole unavailable", "pipe unavailable", "text unavailable", "loop unavailable", "sound available"];
    assert_eq!(standing(&yard), told, "before the first refresh");
    for _ in 0..2 {
        assert_eq!(yard.index().refresh(None).unwrap().unavailable, 4);
        assert_eq!(standing(&yard), told);
        let page = yard.index().search(&Query::default()).unwrap();
        assert_eq!((page.runs.len(), page.changed_sources), (1, 0));
        assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Degraded);
    }
    // One that tells again what it has is a change, and another is none.
    std::fs::remove_file(&looped).unwrap();
    std::fs::create_dir(&looped).unwrap();
    assert_eq!(yard.index().search(&Query::default()).unwrap().changed_sources, 1);
    assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Stale);
}

#[test]
fn c04_bad_overlays_degrade_their_repository_and_no_other() {
    let yard = Yard::new();
    let overlays = ["registry/archive.json", "registry/provenance.json", "runs/run/reclaimed.json"];
    put(&yard.repo("sound"), "run", &state("run", DAY, &["completed"]));
    let mut bad = Vec::new();
    for (place, overlay) in overlays.iter().enumerate() {
        for (sort, content) in [("pipe", None), ("cut", Some("{")), ("odd", Some(r#"{"archived": 1, "links": []}"#))] {
            let repo = yard.repo(&format!("{sort}-{place}"));
            put(&repo, "run", &state("run", DAY, &["completed"]));
            bad.push((repo.join(".cw").join(overlay), content));
        }
    }
    yard.index().refresh(None).unwrap();
    assert!(standing(&yard).iter().all(|source| source.ends_with(" available")));
    for (path, content) in &bad {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content {
            Some(content) => std::fs::write(path, content).unwrap(),
            None => pipe(path),
        }
    }
    assert_eq!(yard.index().report(None).unwrap().freshness, Standing::Stale);
    assert_eq!(yard.index().search(&Query::default()).unwrap().changed_sources, 6, "stones lie further in");
    for rebuilt in [false, true] {
        let refreshed = if rebuilt { yard.index().rebuild() } else { yard.index().refresh(None) }.unwrap();
        assert_eq!((refreshed.problems, refreshed.unreadable, refreshed.unavailable), (9, 0, 0));
        assert_eq!(yard.all().len(), 10, "what lies beside a run hid it");
        let page = yard.index().search(&Query::default()).unwrap();
        assert_eq!((page.changed_sources, yard.index().report(None).unwrap().freshness), (0, Standing::Valid));
    }
    insta::assert_snapshot!(standing(&yard).join("\n"), @r"
    cut-0 degraded, .cw/registry/archive.json: not understood: EOF while parsing an object at line 1 column 1
    cut-1 degraded, .cw/registry/provenance.json: not understood: EOF while parsing an object at line 1 column 1
    cut-2 degraded, .cw/runs/run/reclaimed.json: not understood: EOF while parsing an object at line 1 column 1
    odd-0 degraded, .cw/registry/archive.json: not understood: its `archived` is not an object
    odd-1 degraded, .cw/registry/provenance.json: not understood: its `links` is not an object
    odd-2 degraded, .cw/runs/run/reclaimed.json: not understood: its `schemaVersion` is not 1
    pipe-0 degraded, .cw/registry/archive.json: not a regular file
    pipe-1 degraded, .cw/registry/provenance.json: not a regular file
    pipe-2 degraded, .cw/runs/run/reclaimed.json: not a regular file
    sound available
    ");
    // What is mended is as sound as any.
    bad.iter().for_each(|(path, _)| std::fs::remove_file(path).unwrap());
    assert_eq!(yard.index().refresh(None).unwrap().problems, 0);
    assert!(standing(&yard).iter().all(|source| source.ends_with(" available")));
}

#[test]
fn c04_what_may_not_be_read_is_said_and_the_rest_is_read() {
    // Root may read everything: this test is itself again, as nobody.
    if rustix_is_root() {
        let copy = readable(&std::env::current_exe().unwrap());
        let name = "index::hostile::c04_what_may_not_be_read_is_said_and_the_rest_is_read";
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(copy.as_os_str())
            .args([name, "--exact", "--nocapture"])
            .env("TMPDIR", "/tmp")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let yard = Yard::new();
    let (repo, closed) = (yard.repo("repo"), yard.repo("closed"));
    for name in ["sound", "file", "dir"] {
        put(&repo, name, &state(name, DAY, &[]));
    }
    put(&closed, "inside", &state("inside", DAY, &[]));
    let mode =
        |path: &std::path::Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    mode(&repo.join(".cw/runs/file/state.json"), 0o000);
    mode(&repo.join(".cw/runs/dir"), 0o000);
    mode(&closed.join(".cw/runs"), 0o000);
    let refreshed = yard.index().refresh(None).unwrap();
    assert_eq!((refreshed.added, refreshed.unreadable, refreshed.unavailable), (1, 2, 1));
    assert_eq!(yard.all().len(), 1);
    mode(&repo.join(".cw/runs/dir"), 0o700);
    mode(&closed.join(".cw/runs"), 0o700);
    yard.index().refresh(None).unwrap();
    assert_eq!(yard.all().len(), 3);
}

fn rustix_is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A copy of a program that anybody may execute, gone with what is answered.
fn readable(program: &std::path::Path) -> tempfile::TempPath {
    let copy = tempfile::Builder::new().prefix("outlive-as-nobody-").tempfile_in("/tmp").unwrap().into_temp_path();
    std::fs::copy(program, &copy).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

#[test]
fn c11_one_changed_run_of_many_is_the_only_file_that_is_read() {
    let many: usize = std::env::var("OUTLIVE_INDEX_RUNS").ok().and_then(|many| many.parse().ok()).unwrap_or(5_000);
    let yard = Yard::new();
    let repo = yard.repo("repo");
    for number in 0..many {
        put(&repo, &format!("run-{number:06}"), &state(&format!("run-{number:06}"), DAY, &["completed"]));
    }
    assert_eq!(yard.index().refresh(None).unwrap().read, many);
    assert_eq!(yard.index().refresh(None).unwrap().read, 0);
    put(&repo, "run-000123", &state("run-000123", DAY, &["failed"]));
    let refreshed = yard.index().refresh(None).unwrap();
    assert_eq!((refreshed.looked_at, refreshed.read, refreshed.changed), (many, 1, 1));
    assert_eq!(yard.index().report(None).unwrap().counts["failed"], 1);
}
