//! Secrets are masked in a log before anybody sees them.

use std::io::Write;

use outlive::logs::{Part, Stream};

use super::{MIB, Scene, Secret, pieces, read, text};

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
fn s_30_s_38_secret_at_the_edge_of_a_cut_log_is_masked() {
    let scene = Scene::new();
    let mut writer = scene.writer(MIB).masking(Box::new(Secret));
    let mut command = writer.file(Stream::Out).map(std::fs::File::from).unwrap();
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
fn s_30_secrets_without_a_note_are_masked_on_read() {
    let said = "password hunter2\n".repeat(10_000);
    let masked = said.replace("hunter2", "*******");
    for noted in (0..40).chain([said.len() / 2, said.len()]) {
        let scene = Scene::new();
        let mut writer = scene.writer(MIB).masking(Box::new(Secret));
        let mut command = writer.file(Stream::Out).map(std::fs::File::from).unwrap();
        let (watched, rest) = said.as_bytes().split_at(noted);
        command.write_all(watched).unwrap();
        writer.note().unwrap();
        drop(writer);
        command.write_all(rest).unwrap();
        // Of a secret in whose middle the watcher went, what it had noted could not be known for one.
        let split = watched.len() - watched.iter().rev().take_while(|byte| **byte != b' ' && **byte != b'\n').count();
        let read = read(&mut scene.reader().masking(Box::new(Secret)));
        assert_eq!(text(&read[..split]), masked[..split], "{noted} noted");
        assert_eq!(text(&read[noted..]), masked[noted..], "{noted} noted");
    }
}
