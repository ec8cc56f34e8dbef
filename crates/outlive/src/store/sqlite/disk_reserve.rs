//! Room set aside, so that a run can still be ended on a full disk.

use std::path::Path;

use rustix::fs::OFlags;

use super::directory::RegistryDirectory;
use crate::util::files;

const SPARE: &str = "spare";
const SPARE_BYTES: u64 = 64 << 10;

pub(super) fn is_set_aside(place: &RegistryDirectory) -> bool {
    files::exists(&place.dir, Path::new(SPARE))
}

/// Frees the room. False where there was none.
pub(super) fn release(place: &RegistryDirectory) -> bool {
    rustix::fs::unlinkat(&place.dir, SPARE, rustix::fs::AtFlags::empty()).is_ok()
}

/// Sets room aside, if there is any.
pub(super) fn set_aside(place: &RegistryDirectory) {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(file) = rustix::fs::openat(&place.dir, SPARE, flags, place.sharing.file_mode()) else { return };
    if rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SPARE_BYTES).is_err() {
        let _ = rustix::fs::unlinkat(&place.dir, SPARE, rustix::fs::AtFlags::empty());
    }
}
