//! Key files: 32 random bytes, readable by their user only.

use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::model::id::Entropy;
use crate::util::files::Prepared;

/// The length of a key, in bytes.
pub(super) const KEY_BYTES: usize = 32;

/// A secret that signatures are made and checked with.
pub(super) type Key = [u8; KEY_BYTES];

/// Reads a key. A file that other users can read is refused, and so is anything that is not a file of this user.
pub(super) fn read_key(path: &Path) -> io::Result<Key> {
    let nofollow = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(nofollow).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other(format!("the signing key `{}` is not a file", path.display())));
    }
    if found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the signing key `{}` can be read by others: `chmod 600` it, or delete it to get another",
                path.display()
            ),
        ));
    }
    let mut key = [0; KEY_BYTES];
    if found.len() != KEY_BYTES as u64 || file.read_exact(&mut key).is_err() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the signing key `{}` is damaged: delete it to get another", path.display()),
        ));
    }
    Ok(key)
}

/// Draws a key.
pub(super) fn draw_key(entropy: &dyn Entropy) -> Key {
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&entropy.draw().to_ne_bytes());
    key[16..].copy_from_slice(&entropy.draw().to_ne_bytes());
    key
}

/// Writes a key as the file `name` of a directory, unless there is one. Answers with the key that is there then.
pub(super) fn write_key(directory: &Path, name: &str, key: &Key) -> io::Result<Key> {
    let dir = rustix::fs::open(directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Prepared::new(&dir, key, Mode::from_raw_mode(0o600), true)?.publish(&dir, Path::new(name))?;
    // Where two processes made one at once, the first one's counts.
    read_key(&directory.join(name))
}
