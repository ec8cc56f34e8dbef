//! A log costs no more than its cap, and keeps its head and its tail.

use std::os::unix::fs::MetadataExt;

use outlive::logs::{Part, Piece, Stream};

use super::{MIB, Scene, Secret, is_root, mounted, pieces, read, shell, text};

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

#[test]
fn s_38_where_no_holes_can_be_made_the_file_is_cut_to_its_head() {
    if !is_root() {
        return;
    }
    let (scene, _mount) = mounted(&["-t", "ramfs", "none"]);
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
