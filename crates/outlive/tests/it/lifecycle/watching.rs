//! Who watches a local registry instead of asking it again and again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outlive::filter::Filter;
use outlive::lifecycle::Report;
use outlive::registry::Registry;
use outlive::run::{After, Key, Progress, Release, Run, Spec};
use outlive::store::sqlite::{Topic, Watch};
use outlive::testing::spec;
use outlive::time::{Clock, SystemClock};

const WRITES: usize = 200;
/// Nobody who was woken waits for this long.
const NEVER: Duration = Duration::from_secs(20);

#[test]
fn who_watches_is_woken_when_what_was_written_can_be_read() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let open = || pollster::block_on(Registry::open(&url)).unwrap();
    let (writer, reader) = (open(), open());
    pollster::block_on(writer.enqueue(spec("first"))).unwrap();
    let watch = reader.local().unwrap().watch(&[Topic::Work]).unwrap();
    let (ask, asked) = std::sync::mpsc::channel();
    let writing = std::thread::spawn(move || {
        for kind in asked {
            pollster::block_on(writer.enqueue(spec(kind))).unwrap();
        }
    });
    for write in 2..=WRITES {
        ask.send("next").unwrap();
        while pollster::block_on(reader.waiting()).unwrap().len() < write {
            let before = SystemClock.awake();
            watch.wait(NEVER);
            assert!(SystemClock.awake() - before < NEVER, "nobody said that write {write} can be read");
        }
        watch.forget();
    }
    drop(ask);
    writing.join().unwrap();
}

#[test]
fn an_empty_claim_wakes_no_process() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let registry = pollster::block_on(Registry::open(&url)).unwrap();
    let first = pollster::block_on(registry.enqueue(spec("first"))).unwrap();
    let watch = registry.local().unwrap().watch(&[Topic::Changes]).unwrap();
    pollster::block_on(registry.cancel(first.id, None)).unwrap();
    assert!(watch.forget(), "a change woke nobody");
    for _ in 0..3 {
        assert!(pollster::block_on(registry.claim(Filter::default(), 1)).unwrap().is_empty());
        assert!(!watch.forget(), "asking woke somebody, who asks, who wakes");
    }
}

#[test]
fn opening_and_reading_a_registry_wakes_no_process() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let registry = pollster::block_on(Registry::open(&url)).unwrap();
    pollster::block_on(registry.enqueue(spec("first"))).unwrap();
    let watch = registry.local().unwrap().watch(&[Topic::Changes]).unwrap();
    let another = pollster::block_on(Registry::open(&url)).unwrap();
    assert_eq!(pollster::block_on(another.waiting()).unwrap().len(), 1);
    // SQLite gives its files to the owner of the database when root opens them, which touches them.
    assert!(!watch.forget(), "reading woke somebody, who looks for work");
    pollster::block_on(another.enqueue(spec("second"))).unwrap();
    assert!(watch.forget(), "a change woke nobody");
}

#[test]
fn an_empty_claim_waits_for_no_writer() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("registry");
    let registry = pollster::block_on(Registry::open(&format!("sqlite:{}", path.display()))).unwrap();
    let writing = std::fs::File::open(path.join("write.lock")).unwrap();
    writing.lock().unwrap();
    assert!(pollster::block_on(registry.claim(Filter::default(), 1)).unwrap().is_empty());
    writing.unlock().unwrap();
    pollster::block_on(registry.enqueue(spec("first"))).unwrap();
    assert_eq!(pollster::block_on(registry.claim(Filter::default(), 1)).unwrap().len(), 1);
}

#[test]
fn who_watches_hears_of_a_queue_of_writers_that_was_made_again() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("registry");
    let open = || pollster::block_on(Registry::open(&format!("sqlite:{}", path.display()))).unwrap();
    let registry = open();
    pollster::block_on(registry.enqueue(spec("first"))).unwrap();
    let watch = registry.local().unwrap().watch(&[Topic::Changes]).unwrap();
    std::fs::remove_file(path.join("write.lock")).unwrap();
    let another = open();
    for kind in ["second", "third", "fourth"] {
        pollster::block_on(another.enqueue(spec(kind))).unwrap();
        assert!(watch.forget(), "nobody was woken by the {kind}");
    }
}

fn open(home: &tempfile::TempDir) -> Registry {
    let url = format!("sqlite:{}", home.path().join("registry").display());
    pollster::block_on(Registry::open(&url)).unwrap()
}

fn watch(registry: &Registry, topic: Topic) -> Watch {
    registry.local().unwrap().watch(&[topic]).unwrap()
}

fn progress(done: u64) -> Report {
    Report { progress: Some(Progress { done: Some(done), ..Progress::default() }), ..Report::default() }
}

#[test]
fn t1_07_reports_wake_watchers_of_the_run_and_beats_wake_none() {
    const REPORTS: u64 = 50;
    let home = tempfile::tempdir().unwrap();
    let (owner, reader) = (open(&home), open(&home));
    let [one, other] = ["one", "other"].map(|kind| pollster::block_on(owner.start(spec(kind))).unwrap());
    let idle = [Topic::Work, Topic::States, Topic::Run(other.id())].map(|topic| watch(&reader, topic));
    let (of_run, of_all) = (watch(&reader, Topic::Run(one.id())), watch(&reader, Topic::Changes));
    let mut woken = 0;
    for done in 0..REPORTS {
        pollster::block_on(one.report(progress(done))).unwrap();
        woken += idle.iter().filter(|watch| watch.forget()).count();
        assert!(of_run.forget() && of_all.forget(), "report {done} woke nobody who watches the run");
    }
    assert_eq!(woken, 0, "wake-ups of processes that {REPORTS} reports do not concern");
    pollster::block_on(owner.tick()).unwrap();
    let all = idle.iter().chain([&of_run, &of_all]);
    assert_eq!(all.filter(|watch| watch.forget()).count(), 0, "a beat woke somebody");
    let [work, states, of_other] = idle;
    pollster::block_on(other.succeed()).unwrap();
    assert!(states.forget() && of_other.forget(), "the end of a run woke nobody who watches it");
    assert!(!work.forget(), "an end that nobody waits for is work");
    assert!(!of_run.forget(), "the end of another run");
}

#[test]
fn t1_07_whatever_makes_a_run_claimable_notifies_of_work() {
    let home = tempfile::tempdir().unwrap();
    let (owner, reader) = (open(&home), open(&home));
    let work = watch(&reader, Topic::Work);
    let locked = |kind: &str| Spec { keys: vec![Key::limit("gpu", 1)], ..spec(kind) };
    let holder = pollster::block_on(owner.start(locked("holder"))).unwrap();
    assert!(!work.forget(), "a run that is claimed as it is made is no work");
    pollster::block_on(owner.enqueue(spec("made"))).unwrap();
    assert!(work.forget(), "a run that was made");
    pollster::block_on(holder.succeed()).unwrap();
    assert!(work.forget(), "a key that was freed");
    let parent = pollster::block_on(owner.start(spec("parent"))).unwrap();
    let after = vec![After { run: parent.id(), release: Release::End }];
    pollster::block_on(owner.enqueue(Spec { after, ..spec("child") })).unwrap();
    work.forget();
    pollster::block_on(parent.succeed()).unwrap();
    assert!(work.forget(), "an end that a run waits for");
    let again = pollster::block_on(owner.claim(Filter { kind: Some("made".into()), ..Filter::default() }, 1)).unwrap();
    assert!(!work.forget(), "a claim makes nothing claimable");
    drop(again);
}

#[test]
fn t1_07_watch_survives_the_deletion_of_what_it_watches() {
    let home = tempfile::tempdir().unwrap();
    let (owner, reader) = (open(&home), open(&home));
    let work = watch(&reader, Topic::Work);
    std::fs::remove_dir_all(home.path().join("registry/notify")).unwrap();
    assert!(!work.forget(), "a deletion is no work");
    assert!(!home.path().join("registry/notify").exists(), "whoever deletes a registry is hindered");
    // The next look subscribes again.
    work.forget();
    pollster::block_on(owner.enqueue(spec("made"))).unwrap();
    assert!(work.forget(), "nobody was woken after the deletion");
}

#[test]
fn t7_03_claim_is_offered_one_waiting_run_of_a_busy_key() {
    const WAITING: usize = 400;
    let home = tempfile::tempdir().unwrap();
    let owner = open(&home);
    let locked = |kind: &str| Spec { keys: vec![Key::limit("gpu", 1)], ..spec(kind) };
    let holder = pollster::block_on(owner.start(locked("holder"))).unwrap();
    let plan = |spec: Spec| outlive::registry::Planned { spec, after: Vec::new() };
    let waiting = (0..WAITING).map(|_| plan(locked("locked"))).chain([plan(spec("free"))]).collect();
    pollster::block_on(owner.enqueue_all(waiting)).unwrap();
    let offered = AtomicUsize::new(0);
    let wanted = |_: &Run| offered.fetch_add(1, Ordering::SeqCst) < usize::MAX;
    let claim = || pollster::block_on(owner.claim_those(Filter::default(), 1, &wanted)).unwrap().pop();
    let free = claim().expect("the run behind those that wait is claimed");
    assert_eq!(free.run().spec.kind, "free");
    assert!(claim().is_none(), "two hold the key");
    // A batch is read before any of it is tried, and each claim looks before it writes.
    let before = offered.swap(0, Ordering::SeqCst);
    assert!(before <= 8, "of {WAITING} runs that wait for one key {before} were tried");
    pollster::block_on(holder.succeed()).unwrap();
    let next = claim().expect("the key is free");
    assert_eq!(next.run().spec.kind, "locked");
    pollster::block_on(next.succeed()).unwrap();
    pollster::block_on(free.succeed()).unwrap();
}
