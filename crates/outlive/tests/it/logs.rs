//! Logs on real files: written through a watcher or by real commands, read back while they grow and afterwards.

use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use outlive::id::SystemEntropy;
use outlive::logs::{LogPolicy, LogReader, LogWriter, Mask, Part, Piece, Stream};
use outlive::run::Run;
use outlive::store::sqlite::{Sharing, SqliteStore};
use outlive::testing::{ManualClock, pending, spec};
use outlive::time::{Clock, SystemClock};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

struct Scene {
    dir: TempDir,
    clock: Arc<ManualClock>,
    store: SqliteStore,
    run: Run,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("registry");
        Self::at(dir, &store)
    }

    fn at(dir: TempDir, path: &Path) -> Self {
        let clock = ManualClock::new();
        let store = SqliteStore::create(path, Sharing::Private, clock.clone(), Arc::new(SystemEntropy)).unwrap();
        let run = pending(spec("talks"), clock.now(), &SystemEntropy);
        Self { dir, clock, store, run }
    }

    fn writer(&self, cap: u64) -> LogWriter {
        self.store.write_logs(&self.run, &LogPolicy { cap }).unwrap()
    }

    fn reader(&self) -> LogReader {
        self.store.read_logs(self.run.id, 1).unwrap().expect("nothing was kept")
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.store.path().join(format!("runs/{}/attempts/0001.{kind}", self.run.id))
    }

    fn pass(&self, millis: u64) {
        self.clock.pass(Duration::from_millis(millis));
    }
}

fn pieces(reader: &mut LogReader) -> Vec<Piece> {
    reader.read_unnoted(true);
    let mut pieces = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        pieces.push(piece);
    }
    pieces
}

/// What is there of one stream or both, with a mark where something was left out.
fn read(reader: &mut LogReader) -> Vec<u8> {
    let bytes = |piece: Piece| match piece.part {
        Part::Bytes(bytes) => bytes,
        Part::LeftOut(count) => format!("[{count} left out]").into_bytes(),
    };
    pieces(reader).into_iter().flat_map(bytes).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A shell that has the files of the log as its own streams.
fn shell(writer: &mut LogWriter, script: &str) -> std::process::Child {
    let (out, err) = (writer.file(Stream::Out).unwrap(), writer.file(Stream::Err).unwrap());
    Command::new("sh").args(["-ec", script]).stdin(Stdio::piped()).stdout(out).stderr(err).spawn().unwrap()
}

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
fn who_follows_reads_the_rest_of_a_burst_before_what_came_after_it() {
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
fn f_17_a_command_that_writes_the_files_itself_outlives_its_watcher() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let mut child = shell(&mut writer, "echo first; echo oops >&2; read go; echo last; read end");
    let watched = writer.watch().unwrap();
    let mut noted = 0;
    while noted < 11 {
        let mut fds = [rustix::event::PollFd::new(&watched, rustix::event::PollFlags::IN)];
        let patience = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        let size = |kind| std::fs::metadata(scene.file(kind)).unwrap().len();
        noted = size("out") + size("err");
        assert!(noted == 11 || rustix::event::poll(&mut fds, Some(&patience)).unwrap() == 1, "never woken");
        writer.note().unwrap();
    }
    // Nothing more is noted: the watcher is killed.
    drop(writer);
    let mut reader = scene.reader();
    assert_eq!(text(&read(&mut reader)), "first\noops\n");
    use std::io::Write;
    reader.wait(Duration::ZERO).unwrap();
    writeln!(child.stdin.as_ref().unwrap(), "go").unwrap();
    let mut more = Vec::new();
    while more.is_empty() {
        reader.wait(Duration::from_secs(60)).unwrap();
        more = read(&mut reader);
    }
    assert_eq!(text(&more), "last\n");
    writeln!(child.stdin.as_ref().unwrap(), "end").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(text(&read(&mut scene.reader())), "first\noops\nlast\n");
}

#[test]
fn s_38_a_flood_costs_its_cap_and_keeps_head_and_tail() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let line = |number: u64| format!("{number:015}\n");
    let (mut written, mut most) = (0, 0);
    while written < 32 * MIB {
        let block: String = (0..4_096).map(|index| line(written / 16 + index)).collect();
        writer.write(Stream::Out, block.as_bytes()).unwrap();
        written += block.len() as u64;
        most = most.max(std::fs::metadata(scene.file("out")).unwrap().blocks() * 512);
    }
    writer.finish().unwrap();
    assert!(most < MIB + MIB / 4, "a log with a cap of 1 MiB took {most} bytes");
    assert_eq!(std::fs::metadata(scene.file("out")).unwrap().len(), written);
    let found = pieces(&mut scene.reader());
    let gaps: Vec<usize> = found
        .iter()
        .enumerate()
        .filter(|(_, piece)| matches!(piece.part, Part::LeftOut(_)))
        .map(|(at, _)| at)
        .collect();
    let [gap] = gaps[..] else { panic!("{} gaps", gaps.len()) };
    let bytes = |pieces: &[Piece]| -> String {
        pieces.iter().map(|piece| if let Part::Bytes(bytes) = &piece.part { text(bytes) } else { panic!() }).collect()
    };
    let (head, tail) = (bytes(&found[..gap]), bytes(&found[gap + 1..]));
    let Part::LeftOut(left_out) = found[gap].part else { panic!() };
    assert_eq!(head.len() as u64 + left_out + tail.len() as u64, written);
    assert_eq!(head, (0..MIB / 4 / 16).map(line).collect::<String>());
    let first = (written - tail.len() as u64) / 16;
    assert_eq!(tail, (first..written / 16).map(line).collect::<String>());
    assert!(tail.len() as u64 >= MIB * 3 / 4);
}

#[test]
fn s_38_a_command_that_floods_its_own_file_is_capped_as_well() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB).masking(Box::new(Secret));
    let mut child = shell(&mut writer, "head -c 40000000 /dev/zero");
    while std::fs::metadata(scene.file("out")).unwrap().len() < 40_000_000 {
        writer.note().unwrap();
    }
    assert!(child.wait().unwrap().success());
    writer.finish().unwrap();
    let found = std::fs::metadata(scene.file("out")).unwrap();
    assert_eq!(found.len(), 40_000_000);
    assert!(found.blocks() * 512 < MIB + MIB / 4, "{} bytes on the disk", found.blocks() * 512);
    let left_out: u64 = pieces(&mut scene.reader())
        .iter()
        .map(|piece| match piece.part {
            Part::LeftOut(count) => count,
            Part::Bytes(_) => 0,
        })
        .sum();
    assert!(left_out > 38_000_000);
}

/// A reader that lags behind a writer that leaves things out sees what was written, never what a hole looks like.
#[test]
fn s_38_a_slow_reader_of_a_flood_never_reads_a_hole() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    writer.write(Stream::Out, &[b'x'; 65_536]).unwrap();
    let mut reader = scene.reader();
    let (mut seen, mut told) = (0, 0);
    for _ in 0..400 {
        for _ in 0..3 {
            writer.write(Stream::Out, &[b'x'; 65_536]).unwrap();
        }
        match reader.next_piece().unwrap().unwrap().part {
            Part::Bytes(bytes) => {
                assert!(bytes.iter().all(|byte| *byte == b'x'));
                seen += bytes.len() as u64;
            }
            Part::LeftOut(count) => told += count,
        }
    }
    assert!(told > 0, "the reader was never overtaken");
    writer.finish().unwrap();
    let rest = pieces(&mut reader);
    for piece in rest {
        match piece.part {
            Part::Bytes(bytes) => seen += bytes.len() as u64,
            Part::LeftOut(count) => told += count,
        }
    }
    assert_eq!(seen + told, 1_201 * 65_536);
}

struct Secret;

impl Mask for Secret {
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let word = b"hunter2";
        let mut spans = Vec::new();
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(word.len()).position(|window| window == word) {
            spans.push(at + found..at + found + word.len());
            at += found + word.len();
        }
        spans
    }

    fn longest(&self) -> usize {
        7
    }
}

#[test]
fn s_30_a_secret_is_masked_wherever_it_is_split() {
    let said = b"user ada password hunter2 and hunter2\nhunter2";
    let masked = "user ada password ******* and *******\n*******";
    for split in 0..said.len() {
        for split_again in [split, (split + 3).min(said.len())] {
            let scene = Scene::new();
            let mut writer = scene.writer(MIB).masking(Box::new(Secret));
            let mut command = writer.file(Stream::Err).map(std::fs::File::from).unwrap();
            for part in [&said[..split], &said[split..split_again], &said[split_again..]] {
                use std::io::Write;
                writer.write(Stream::Out, part).unwrap();
                command.write_all(part).unwrap();
                writer.note().unwrap();
            }
            writer.finish().unwrap();
            for kind in ["out", "err"] {
                assert_eq!(text(&std::fs::read(scene.file(kind)).unwrap()), masked, "{kind} split at {split}");
            }
        }
    }
}

#[test]
fn s_30_what_is_not_noted_yet_is_not_shown_yet() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB).masking(Box::new(Secret));
    let mut command = writer.file(Stream::Out).map(std::fs::File::from).unwrap();
    use std::io::Write;
    command.write_all(b"it is hunter2\n").unwrap();
    let mut reader = scene.reader();
    assert_eq!(reader.next_piece().unwrap(), None);
    assert!(reader.has_unnoted().unwrap());
    writer.note().unwrap();
    let piece = reader.next_piece().unwrap().unwrap();
    assert_eq!(piece.part, Part::Bytes(b"it is *******\n".to_vec()));
    assert!(!reader.has_unnoted().unwrap());
}

#[test]
fn a_reader_that_ends_with_the_present_is_not_kept_by_what_comes() {
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
fn s_30_s_38_a_secret_at_the_border_of_what_is_left_out_is_masked() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB).masking(Box::new(Secret));
    let mut command = writer.file(Stream::Out).map(std::fs::File::from).unwrap();
    use std::io::Write;
    command.write_all(&b"hunter2".repeat(700_000)).unwrap();
    writer.note().unwrap();
    writer.finish().unwrap();
    let found = pieces(&mut scene.reader());
    assert!(found.iter().any(|piece| matches!(piece.part, Part::LeftOut(_))));
    for piece in found {
        if let Part::Bytes(bytes) = piece.part {
            assert!(bytes.iter().all(|byte| *byte == b'*'), "a part of a secret is left");
        }
    }
}

#[test]
fn a_command_that_cuts_its_own_output_is_read_on() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let mut child = shell(&mut writer, "echo long gone; read go; : > /dev/stdout; echo anew; read end");
    use std::io::Write;
    let grown = |size: u64| while std::fs::metadata(scene.file("out")).unwrap().len() != size {};
    grown(10);
    writer.note().unwrap();
    let mut reader = scene.reader();
    assert_eq!(text(&read(&mut reader)), "long gone\n");
    writeln!(child.stdin.as_ref().unwrap(), "go").unwrap();
    grown(5);
    // One that is quick sees it before it is noted, and not again; one that is not is told.
    let mut late = scene.reader();
    assert_eq!(text(&read(&mut reader)), "anew\n");
    writer.note().unwrap();
    assert_eq!(text(&read(&mut reader)), "");
    assert_eq!(text(&read(&mut late)), "[10 left out]anew\n");
    writeln!(child.stdin.as_ref().unwrap(), "end").unwrap();
    assert!(child.wait().unwrap().success());
    writer.finish().unwrap();
    assert_eq!(text(&read(&mut scene.reader())), "[10 left out]anew\n");
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
fn the_index_stays_small_and_a_reader_follows_it_through_its_replacement() {
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

#[test]
fn a_torn_or_foreign_index_hides_nothing() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    writer.write(Stream::Out, b"one\n").unwrap();
    scene.pass(20);
    writer.write(Stream::Out, b"two\n").unwrap();
    writer.finish().unwrap();
    let whole = std::fs::read(scene.file("log")).unwrap();
    for length in 0..whole.len() {
        std::fs::write(scene.file("log"), &whole[..length]).unwrap();
        assert_eq!(text(&read(&mut scene.reader())), "one\ntwo\n");
        let mut zeros = whole[..length].to_vec();
        zeros.resize(whole.len() + 64, 0);
        std::fs::write(scene.file("log"), zeros).unwrap();
        assert_eq!(text(&read(&mut scene.reader())), "one\ntwo\n");
    }
    // It would say that everything is left out, if it fitted its own check.
    let mut false_hole = [0; 32];
    (false_hole[16], false_hole[24]) = (8, 2);
    std::fs::write(scene.file("log"), [whole.as_slice(), &false_hole, &false_hole].concat()).unwrap();
    assert_eq!(text(&read(&mut scene.reader())), "one\ntwo\n");
}

#[test]
fn s_05_a_link_in_place_of_a_log_is_not_followed() {
    let scene = Scene::new();
    let victim = scene.dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::fs::create_dir_all(scene.file("out").parent().unwrap()).unwrap();
    for make in [std::os::unix::fs::symlink::<PathBuf, PathBuf>, std::fs::hard_link::<PathBuf, PathBuf>] {
        make(victim.clone(), scene.file("out")).unwrap();
        let mut writer = scene.writer(MIB);
        let refused = writer.write(Stream::Out, b"overwritten").unwrap_err();
        assert!(refused.to_string().contains("the log of the attempt cannot be written any more"), "{refused}");
        // Told once; the command goes on.
        writer.write(Stream::Out, b"overwritten").unwrap();
        assert!(writer.trouble().is_some());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        std::fs::remove_file(scene.file("out")).unwrap();
    }
}

#[test]
fn a_cap_of_nothing_keeps_nothing() {
    let scene = Scene::new();
    let mut writer = scene.writer(0);
    assert!(shell(&mut writer, "echo unheard").wait().unwrap().success());
    writer.write(Stream::Err, b"unheard\n").unwrap();
    writer.note().unwrap();
    writer.finish().unwrap();
    assert!(!scene.file("out").exists() && !scene.file("err").exists() && !scene.file("log").exists());
}

#[test]
fn an_attempt_that_goes_on_after_a_pause_goes_on_in_its_log() {
    let scene = Scene::new();
    let mut first = scene.writer(MIB);
    first.write(Stream::Out, &[b'a'; 3 << 20]).unwrap();
    drop(first);
    scene.pass(1_000);
    let mut second = scene.writer(MIB);
    second.write(Stream::Out, &[b'b'; 3 << 20]).unwrap();
    second.finish().unwrap();
    let found = std::fs::metadata(scene.file("out")).unwrap();
    assert_eq!(found.len(), 6 << 20);
    assert!(found.blocks() * 512 < MIB + MIB / 4);
    let read = read(&mut scene.reader());
    assert_eq!(read.iter().filter(|byte| **byte == b'a').count() as u64, MIB / 4);
    assert!(read.iter().filter(|byte| **byte == b'b').count() as u64 >= MIB / 4 * 3);
}

/// Killed in the middle of a burst, the writer has noted all that it wrote but what its last call was about.
#[test]
fn r04_what_a_killed_writer_wrote_is_there_in_its_order() {
    const INSIDE: &str = "OUTLIVE_TEST_KILLED";
    if let Some(path) = std::env::var_os(INSIDE) {
        let store = SqliteStore::open(Path::new(&path), Arc::new(SystemClock), Arc::new(SystemEntropy)).unwrap();
        let mut run = pending(spec("talks"), SystemClock.now(), &SystemEntropy);
        run.id = std::env::var("OUTLIVE_TEST_RUN").unwrap().parse().unwrap();
        let mut writer = store.write_logs(&run, &LogPolicy { cap: MIB }).unwrap();
        for number in 0..1_000 {
            let stream = if number % 7 == 0 { Stream::Err } else { Stream::Out };
            writer.write(stream, format!("{number}\n").as_bytes()).unwrap();
        }
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        return;
    }
    let scene = Scene::new();
    let mut inside = Command::new(std::env::current_exe().unwrap());
    inside.args(["--exact", "logs::r04_what_a_killed_writer_wrote_is_there_in_its_order"]);
    inside.env(INSIDE, scene.store.path()).env("OUTLIVE_TEST_RUN", scene.run.id.to_string());
    let done = inside.output().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&done.status), Some(9), "{}", text(&done.stdout));
    assert_eq!(text(&read(&mut scene.reader())), (0..1_000).map(|number| format!("{number}\n")).collect::<String>());
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
    inside.args(["--exact", "logs::a_gigabyte_is_read_in_little_memory"]);
    inside.env(INSIDE, scene.store.path()).env("OUTLIVE_TEST_RUN", scene.run.id.to_string());
    let done = inside.output().unwrap();
    let said = text(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}{}", text(&done.stderr));
}

/// A file system of its own, unmounted at the end.
struct Mount(PathBuf);

impl Mount {
    fn new(path: &Path, words: &[&str]) -> Self {
        std::fs::create_dir_all(path).unwrap();
        assert!(Command::new("mount").args(words).arg(path).status().unwrap().success());
        Self(path.into())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mounted(words: &[&str]) -> Option<(Scene, Mount)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: this test mounts, which needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = Mount::new(&dir.path().join("mount"), words);
    let path = dir.path().join("mount/registry");
    Some((Scene::at(dir, &path), mount))
}

#[test]
fn r13_a_full_disk_ends_the_log_and_says_so_once() {
    let Some((scene, _mount)) = mounted(&["-t", "tmpfs", "-o", "size=2m", "none"]) else { return };
    let mut writer = scene.writer(64 * MIB);
    writer.write(Stream::Out, b"before\n").unwrap();
    let line = [b'y'; 4_096];
    let refused = (0..1_000).find_map(|_| writer.write(Stream::Out, &line).err()).expect("the disk did not fill up");
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    assert!(writer.trouble().unwrap().contains("cannot be written any more"), "{:?}", writer.trouble());
    for _ in 0..10 {
        writer.write(Stream::Out, &line).unwrap();
        writer.note().unwrap();
    }
    writer.finish().unwrap();
    let mut reader = scene.reader();
    let found = read(&mut reader);
    assert!(found.starts_with(b"before\nyyyy"));
    assert!(reader.stopped().is_some(), "the log does not say that it ends early");
}

#[test]
fn s_38_where_no_holes_can_be_made_the_file_is_cut_to_its_head() {
    let Some((scene, _mount)) = mounted(&["-t", "ramfs", "none"]) else { return };
    let mut writer = scene.writer(MIB);
    let mut longest = 0;
    for number in 0..200 {
        writer.write(Stream::Out, &[b'a' + number % 26; 65_536]).unwrap();
        longest = longest.max(std::fs::metadata(scene.file("out")).unwrap().len());
    }
    writer.finish().unwrap();
    assert!(longest <= 4 * MIB + 2 * 65_536, "{longest} bytes on a file system without holes");
    let mut all = 0;
    for piece in pieces(&mut scene.reader()) {
        match piece.part {
            Part::Bytes(bytes) => all += bytes.len() as u64,
            Part::LeftOut(count) => all += count,
        }
    }
    assert_eq!(all, 200 * 65_536);
}
