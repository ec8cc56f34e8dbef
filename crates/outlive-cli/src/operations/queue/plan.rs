//! Plans: files that describe runs which are added together.

use std::io::Read;
use std::path::Path;

use outlive::error::Error;

use super::Add;
use crate::call;

/// The longest plan.
const LIMIT: u64 = 64 << 20;

/// The runs that a file describes, one JSON object a line. `-` is the standard input.
pub fn read(path: &Path) -> Result<Vec<Add>, Error> {
    let unreadable = |error: std::io::Error| Error::Invalid(format!("`{}` cannot be read: {error}", path.display()));
    let mut text = String::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(LIMIT + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(path).map_err(unreadable)?.take(LIMIT + 1).read_to_string(&mut text)
    };
    if read.map_err(unreadable)? as u64 > LIMIT {
        return Err(Error::Invalid(format!("`{}` is longer than {} MiB", path.display(), LIMIT >> 20)));
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let parse = |(number, line): (usize, &str)| {
        let place = format!("line {} of `{}`", number + 1, path.display());
        let wrong = |why: &str| Error::Invalid(format!("{place}: {why}"));
        let input = serde_json::from_str(line).map_err(|error| wrong(&error.to_string()))?;
        let add: Add = call::read(input).map_err(|failure| wrong(failure.message()))?;
        Ok::<_, Error>(Add { line: Some(place), ..add })
    };
    let plan: Vec<Add> = lines.map(parse).collect::<Result<_, _>>()?;
    if plan.is_empty() { Err(Error::Invalid(format!("`{}` describes no runs", path.display()))) } else { Ok(plan) }
}
