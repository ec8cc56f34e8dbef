//! Secrets are masked in a log before anybody sees them.

use std::io::Write;

use outlive::logs::{Part, Stream};

use super::{MIB, Scene, Secret, pieces, text};

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
fn s_30_s_38_a_secret_at_the_border_of_what_is_left_out_is_masked() {
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
