//! What a step reads: files by their content, directories by that of all below them, patterns by the files they match.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use outlive::error::Error;
use outlive::step::{Digesting, Fingerprint};

use super::super::glob;
use crate::ui::plain;

/// What is not part of a directory: what is written by the very work that it is an input of.
const LEFT_OUT: [&str; 2] = [".git", ".outlive"];

/// An input, as it is said.
pub enum Input<'a> {
    /// A file, a directory or a pattern.
    Path(&'a Path),
    /// The result of a step.
    Step(String),
}

impl<'a> Input<'a> {
    /// What is meant: a file whose name begins with `@` is written `./@name`.
    pub fn from(text: &'a OsStr) -> Self {
        match text.as_bytes().strip_prefix(b"@") {
            Some(name) => Self::Step(String::from_utf8_lossy(name).into_owned()),
            None => Self::Path(Path::new(text)),
        }
    }

    /// The step whose result it is.
    pub fn step(self) -> Option<String> {
        match self {
            Self::Step(name) => Some(name),
            Self::Path(_) => None,
        }
    }
}

/// Takes an input into account. One that is not there is refused.
pub fn digest(path: &Path, into: &mut Fingerprint) -> Result<(), Error> {
    let failed = |path: &Path, error: &io::Error| {
        Error::Invalid(format!("the input `{}` cannot be read: {error}", plain(&path.to_string_lossy())))
    };
    if path.symlink_metadata().is_ok() || !glob::is_pattern(path) {
        return file_or_directory(path, into).map_err(|error| failed(path, &error));
    }
    let found = glob::files(path).map_err(|error| failed(path, &error))?;
    if found.is_empty() {
        return Err(Error::Invalid(format!("no file matches the input `{}`", plain(&path.to_string_lossy()))));
    }
    // The next part says how many they are.
    into.part("pattern", path.as_os_str().as_bytes());
    found.iter().try_for_each(|path| file_or_directory(path, into).map_err(|error| failed(path, &error)))
}

fn file_or_directory(path: &Path, into: &mut Fingerprint) -> io::Result<()> {
    let found = path.metadata()?;
    if found.is_dir() {
        into.part("directory", path.as_os_str().as_bytes());
        below(path, into)
    } else {
        file(path, &found, into)
    }
}

fn file(path: &Path, found: &Metadata, into: &mut Fingerprint) -> io::Result<()> {
    if !found.is_file() {
        return Err(io::Error::other("it is neither a file nor a directory"));
    }
    let (mut file, mut digest, mut buffer) = (File::open(path)?, Digesting::default(), vec![0; 64 << 10]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => digest.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    into.part("file", path.as_os_str().as_bytes());
    into.part("content", digest.finish().sha256.as_bytes());
    Ok(())
}

/// All that is below a directory. Links are taken as they are: they may lead in a circle.
fn below(dir: &Path, into: &mut Fingerprint) -> io::Result<()> {
    let mut names: Vec<_> = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    names.retain(|name| LEFT_OUT.iter().all(|left_out| name != left_out));
    names.sort();
    for name in names {
        let path = dir.join(name);
        let found = path.symlink_metadata()?;
        if found.is_dir() {
            into.part("directory", path.as_os_str().as_bytes());
            below(&path, into)?;
        } else if found.is_symlink() {
            into.part("link", path.as_os_str().as_bytes());
            into.part("to", fs::read_link(&path)?.as_os_str().as_bytes());
        } else {
            file(&path, &found, into)?;
        }
    }
    Ok(())
}
