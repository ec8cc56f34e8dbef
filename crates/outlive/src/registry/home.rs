//! The home of a user: made where it is missing.

use std::io;
use std::path::Path;

use crate::store;
use crate::util::files;

/// Makes the home, unless it is there: for its owner alone.
pub fn make_home(home: &Path) -> Result<(), store::Error> {
    files::make_private_dirs(home).map_err(|error| {
        let text = format!("`{}` cannot be made: {error}", home.display());
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => store::Error::Full(text),
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => store::Error::Denied(text),
            _ => store::Error::Unavailable(text),
        }
    })
}
