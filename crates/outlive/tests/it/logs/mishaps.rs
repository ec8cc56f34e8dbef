//! What can happen to a log: a watcher that dies, a file that is cut, torn or replaced, a disk that is full.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use outlive::id::SystemEntropy;
use outlive::logs::{Growth, LogPolicy, Stream};
use outlive::store::sqlite::SqliteStore;
use outlive::testing::{pending, spec};
use outlive::time::{Clock, SystemClock};

use super::{MIB, Scene, is_root, mounted, read, shell, text};

#[test]
fn f_17_command_that_writes_its_files_outlives_its_watcher() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let mut child = shell(&mut writer, "echo first; echo oops >&2; read go; echo last; read end");
    let watched = Growth::new().unwrap();
    writer.watch(&watched).unwrap();
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
fn one_watch_serves_many_logs_and_reports_the_last_alone() {
    let growth = Growth::new().unwrap();
    let has_grown = || {
        let mut fds = [rustix::event::PollFd::new(&growth, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
    };
    let scenes = [Scene::new(), Scene::new()];
    let mut files = Vec::new();
    for scene in &scenes {
        let mut writer = scene.writer(MIB);
        let mut file = std::fs::File::from(writer.file(Stream::Out).unwrap());
        writer.watch(&growth).unwrap();
        assert!(!has_grown(), "what was watched before still is");
        file.write_all(b"said\n").unwrap();
        assert!(has_grown(), "nobody was told");
        writer.finish().unwrap();
        assert_eq!(text(&read(&mut scene.reader())), "said\n");
        files.push(file);
    }
    let mut writer = Scene::new().writer(MIB);
    writer.watch(&growth).unwrap();
    files[0].write_all(b"late\n").unwrap();
    assert!(!has_grown(), "told of a log that is finished");
}

#[test]
fn a_command_that_cuts_its_own_output_is_read_on() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB);
    let mut child = shell(&mut writer, "echo long gone; read go; : > /dev/stdout; echo anew; read end");
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
    inside.args(["--exact", "logs::mishaps::r04_what_a_killed_writer_wrote_is_there_in_its_order"]);
    inside.env(INSIDE, scene.store.path()).env("OUTLIVE_TEST_RUN", scene.run.id.to_string());
    let done = inside.output().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&done.status), Some(9), "{}", text(&done.stdout));
    assert_eq!(text(&read(&mut scene.reader())), (0..1_000).map(|number| format!("{number}\n")).collect::<String>());
}

#[test]
fn r13_a_full_disk_ends_the_log_and_says_so_once() {
    if !is_root() {
        return;
    }
    let (scene, _mount) = mounted(&["-t", "tmpfs", "-o", "size=2m", "none"]);
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
