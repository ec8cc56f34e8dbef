//! What was written is read back: together or apart, in its order, from where it is wanted.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use outlive::id::SystemEntropy;
use outlive::logs::{Part, Stream};
use outlive::store::sqlite::SqliteStore;
use outlive::testing::ManualClock;
use outlive::time::Clock;

use super::{MIB, Scene, pieces, read, text};

#[test]
fn both_streams_are_kept_apart_and_read_together_in_their_order() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let began = scene.clock.now();
    for number in 0..5 {
        writer.write(Stream::Out, format!("out {number}\n").as_bytes()).unwrap();
        scene.pass(1);
        writer.write(Stream::Err, format!("err {number}\n").as_bytes()).unwrap();
        scene.pass(1);
    }
    writer.finish().unwrap();
    let found = pieces(&mut scene.reader());
    let shown: Vec<_> = found
        .iter()
        .map(|piece| (piece.at.since(began).as_millis(), piece.stream, piece.part.clone()))
        .map(|(at, stream, part)| match part {
            Part::Bytes(bytes) => format!("{at} {} {}", stream.as_str(), text(&bytes).trim_end()),
            Part::LeftOut(_) => "left out".into(),
        })
        .collect();
    let expected: Vec<_> =
        (0..5).flat_map(|n| [format!("{} out out {n}", 2 * n), format!("{} err err {n}", 2 * n + 1)]).collect();
    assert_eq!(shown, expected);
    assert_eq!(text(&read(&mut scene.reader().only(Stream::Err))), "err 0\nerr 1\nerr 2\nerr 3\nerr 4\n");
    assert_eq!(std::fs::read(scene.file("out")).unwrap(), b"out 0\nout 1\nout 2\nout 3\nout 4\n");
}

#[test]
fn follower_reads_the_rest_of_a_burst_before_what_came_after() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    writer.write(Stream::Out, b"begins ").unwrap();
    let mut reader = scene.reader();
    assert_eq!(text(&read(&mut reader)), "begins ");
    writer.write(Stream::Out, b"goes on ").unwrap();
    writer.write(Stream::Err, b"and fails ").unwrap();
    writer.write(Stream::Out, b"at last").unwrap();
    assert_eq!(text(&read(&mut reader)), "goes on and fails at last");
}

#[test]
fn a_burst_is_one_note_and_nothing_written_leaves_nothing() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let _unused = writer.file(Stream::Err).unwrap();
    for number in 0..10_000 {
        writer.write(Stream::Out, format!("{number}\n").as_bytes()).unwrap();
    }
    scene.pass(50);
    writer.write(Stream::Out, b"later\n").unwrap();
    writer.finish().unwrap();
    assert!(std::fs::metadata(scene.file("log")).unwrap().len() <= 4 * 32);
    assert!(!scene.file("err").exists());
    let expected: String = (0..10_000).map(|number| format!("{number}\n")).collect::<String>() + "later\n";
    assert_eq!(text(&read(&mut scene.reader())), expected);

    let silent = Scene::new();
    let mut writer = silent.writer(MIB);
    writer.note().unwrap();
    writer.finish().unwrap();
    assert!(!silent.file("out").exists() && !silent.file("err").exists() && !silent.file("log").exists());
    assert!(silent.store.read_logs(silent.run.id, 1).unwrap().is_none());
}

#[test]
fn any_bytes_come_back_as_they_were() {
    let scene = Scene::new();
    let mut writer = scene.writer(4 * MIB);
    let all: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for part in all.chunks(977) {
        writer.write(Stream::Out, part).unwrap();
        scene.pass(3);
    }
    writer.finish().unwrap();
    assert_eq!(read(&mut scene.reader()), all);
    let long = pieces(&mut scene.reader()).iter().all(|piece| match &piece.part {
        Part::Bytes(bytes) => bytes.len() <= 64 << 10,
        Part::LeftOut(_) => false,
    });
    assert!(long, "a piece was longer than a piece may be");
}

#[test]
fn reader_of_the_present_does_not_wait_for_later_output() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    writer.write(Stream::Out, b"present").unwrap();
    let mut reader = scene.reader();
    reader.stop_at_present().unwrap();
    writer.write(Stream::Out, b"future").unwrap();
    writer.write(Stream::Err, b"future").unwrap();
    assert_eq!(text(&read(&mut reader)), "present");
    assert!(!reader.has_unnoted().unwrap());
}

#[test]
fn the_last_lines_are_found_from_the_end_in_both_streams() {
    let scene = Scene::new();
    let mut writer = scene.writer(4 * MIB);
    for number in 0..3_000 {
        let stream = if number % 3 == 0 { Stream::Err } else { Stream::Out };
        writer.write(stream, format!("line {number} {}\n", "x".repeat(200)).as_bytes()).unwrap();
        scene.pass(20);
    }
    writer.write(Stream::Out, b"no end").unwrap();
    writer.finish().unwrap();
    let last = |lines: u64, only: Option<Stream>| {
        let mut reader = only.map_or(scene.reader(), |stream| scene.reader().only(stream));
        reader.skip_to_last(lines).unwrap();
        let found = text(&read(&mut reader));
        found.lines().map(|line| line.trim_end_matches(['x', ' ']).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(last(0, None), [""; 0]);
    assert_eq!(last(1, None), ["no end"]);
    assert_eq!(last(3, None), ["line 2998", "line 2999", "no end"]);
    assert_eq!(last(2, Some(Stream::Err)), ["line 2994", "line 2997"]);
    assert_eq!(last(2_000, None).first().unwrap(), "line 1001");
    assert_eq!(last(1_000_000, None).len(), 3_001);
}

#[test]
fn what_was_written_before_a_moment_is_skipped() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    writer.write(Stream::Out, b"early\n").unwrap();
    writer.write(Stream::Err, b"early too\n").unwrap();
    scene.pass(60_000);
    let since = scene.clock.now();
    writer.write(Stream::Err, b"late\n").unwrap();
    writer.write(Stream::Out, b"late too\n").unwrap();
    writer.finish().unwrap();
    let mut reader = scene.reader();
    reader.skip_before(since).unwrap();
    assert_eq!(text(&read(&mut reader)), "late\nlate too\n");
    let mut reader = scene.reader();
    reader.skip_before(since).unwrap();
    reader.skip_to_last(1).unwrap();
    assert_eq!(text(&read(&mut reader)), "late too\n");
}

#[test]
fn index_stays_small_and_readers_follow_its_replacement() {
    let scene = Scene::new();
    let mut writer = scene.writer(16 * MIB);
    let (mut out, mut err) = (String::new(), String::new());
    let mut reader = None;
    let mut followed = Vec::new();
    for number in 0..150_000 {
        let (stream, all) = if number % 2 == 0 { (Stream::Out, &mut out) } else { (Stream::Err, &mut err) };
        let line = format!("{number}\n");
        writer.write(stream, line.as_bytes()).unwrap();
        all.push_str(&line);
        if number % 1_000 == 999 {
            followed.extend(read(reader.get_or_insert_with(|| scene.reader())));
        }
    }
    writer.finish().unwrap();
    let size = std::fs::metadata(scene.file("log")).unwrap().len();
    assert!(size <= 66_000 * 32, "the index has {size} bytes");
    // Who followed has seen every line in its order.
    assert_eq!(text(&followed), (0..150_000).map(|number| format!("{number}\n")).collect::<String>());
    assert_eq!(text(&read(&mut scene.reader().only(Stream::Out))), out);
    assert_eq!(text(&read(&mut scene.reader().only(Stream::Err))), err);
    // Who comes later sees all of it, and the recent part in its order.
    let both = text(&read(&mut scene.reader()));
    assert_eq!(both.len(), out.len() + err.len());
    let recent: String = (140_000..150_000).map(|number| format!("{number}\n")).collect();
    assert!(both.ends_with(&recent));
}

/// A gigabyte is read in an address space that could not hold a quarter of it.
#[test]
fn a_gigabyte_is_read_in_little_memory() {
    const INSIDE: &str = "OUTLIVE_TEST_GIGABYTE";
    if let Some(path) = std::env::var_os(INSIDE) {
        let limit = rustix::process::Rlimit { current: Some(256 * MIB), maximum: Some(256 * MIB) };
        rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
        let (store, id) = (Path::new(&path), std::env::var("OUTLIVE_TEST_RUN").unwrap().parse().unwrap());
        let store = SqliteStore::open(store, ManualClock::new(), Arc::new(SystemEntropy)).unwrap();
        let mut reader = store.read_logs(id, 1).unwrap().unwrap();
        reader.skip_to_last(2).unwrap();
        reader.read_unnoted(true);
        let mut all = 0;
        while let Some(piece) = reader.next_piece().unwrap() {
            let Part::Bytes(bytes) = piece.part else { panic!("something was left out") };
            all += bytes.len() as u64;
        }
        assert_eq!(all, 1_024 * MIB);
        return;
    }
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let file = writer.file(Stream::Out).unwrap();
    rustix::fs::ftruncate(file.as_fd(), 1_024 * MIB).unwrap();
    drop(writer);
    let mut inside = Command::new(std::env::current_exe().unwrap());
    inside.args(["--exact", "logs::reading::a_gigabyte_is_read_in_little_memory"]);
    inside.env(INSIDE, scene.store.path()).env("OUTLIVE_TEST_RUN", scene.run.id.to_string());
    let done = inside.output().unwrap();
    let said = text(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}{}", text(&done.stderr));
}
