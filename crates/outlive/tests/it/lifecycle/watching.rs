//! Who watches a local registry instead of asking it again and again.

use std::time::Duration;

use outlive::filter::Filter;
use outlive::registry::Registry;
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
    let watch = reader.local().unwrap().watch().unwrap();
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
fn who_asks_for_work_and_finds_none_wakes_nobody() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let registry = pollster::block_on(Registry::open(&url)).unwrap();
    let first = pollster::block_on(registry.enqueue(spec("first"))).unwrap();
    let watch = registry.local().unwrap().watch().unwrap();
    pollster::block_on(registry.cancel(first.id, None)).unwrap();
    assert!(watch.forget(), "a change woke nobody");
    for _ in 0..3 {
        assert!(pollster::block_on(registry.claim(Filter::default(), 1)).unwrap().is_empty());
        assert!(!watch.forget(), "asking woke somebody, who asks, who wakes");
    }
}

#[test]
fn who_opens_a_registry_and_reads_it_wakes_nobody() {
    let home = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", home.path().join("registry").display());
    let registry = pollster::block_on(Registry::open(&url)).unwrap();
    pollster::block_on(registry.enqueue(spec("first"))).unwrap();
    let watch = registry.local().unwrap().watch().unwrap();
    let another = pollster::block_on(Registry::open(&url)).unwrap();
    assert_eq!(pollster::block_on(another.waiting()).unwrap().len(), 1);
    // SQLite gives its files to the owner of the database when root opens them, which touches them.
    assert!(!watch.forget(), "reading woke somebody, who looks for work");
    pollster::block_on(another.enqueue(spec("second"))).unwrap();
    assert!(watch.forget(), "a change woke nobody");
}

#[test]
fn who_asks_for_work_and_finds_none_waits_for_nobody_who_writes() {
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
    let watch = registry.local().unwrap().watch().unwrap();
    std::fs::remove_file(path.join("write.lock")).unwrap();
    let another = open();
    for kind in ["second", "third", "fourth"] {
        pollster::block_on(another.enqueue(spec(kind))).unwrap();
        assert!(watch.forget(), "nobody was woken by the {kind}");
    }
}
