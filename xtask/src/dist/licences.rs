//! The licences of the packages in the binary: the text that each of them carries.

use std::path::PathBuf;

use super::packages::{Package, Packages};
use crate::steps::Failed;

/// One text with the licences of all packages that are not ours.
pub fn collect(packages: &Packages) -> Result<String, Failed> {
    let mut text = String::from("Licences of the packages that this program is compiled from.\n");
    for package in packages.all.iter().filter(|package| package.is_foreign) {
        text += &format!("\n{}\n{} {}: {}\n", "=".repeat(80), package.name, package.version, package.licence);
        for file in files(package)? {
            let licence = std::fs::read(&file).map_err(|error| Failed(format!("`{}`: {error}", file.display())))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            text += &format!("\n--- {name}\n\n{}\n", String::from_utf8_lossy(&licence).trim_end());
        }
    }
    Ok(text)
}

/// The files of a package that tell its licence, sorted.
fn files(package: &Package) -> Result<Vec<PathBuf>, Failed> {
    let unreadable = |error| Failed(format!("`{}`: {error}", package.dir.display()));
    let names = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        path.is_file() && names.iter().any(|known| name.starts_with(known))
    };
    let entries = std::fs::read_dir(&package.dir).map_err(unreadable)?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_licence).collect();
    found.sort();
    Ok(found)
}
