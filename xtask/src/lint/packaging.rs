//! Checks of `packaging/` that need no build: manifests against the schemas of Kubernetes, units against what they expose.

use crate::steps::{Failed, root, step};

/// The most that a unit may expose, in tenths: `systemd-analyze` calls 4.0 and less well protected.
const EXPOSURE: &str = "--threshold=40";

/// Checks everything.
pub fn check() -> Vec<Result<(), Failed>> {
    let manifests = files("packaging/kubernetes", ".yaml");
    let validate = [&["--strict"], manifests.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat();
    let mut checks = vec![step("target/python/bin/kubernetes-validate", &validate)];
    let units = files("packaging/systemd", ".service");
    checks.extend(
        units.iter().map(|unit| {
            step("systemd-analyze", &["security", "--offline=true", EXPOSURE, "--no-pager", "--quiet", unit])
        }),
    );
    checks
}

/// The files of a directory whose names end so, sorted.
fn files(dir: &str, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(root().join(dir)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> =
        names.filter(|name| name.ends_with(ending)).map(|name| format!("{dir}/{name}")).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::files;

    #[test]
    fn manifests_and_units_are_found() {
        assert_eq!(files("packaging/kubernetes", ".yaml").len(), 3);
        assert_eq!(files("packaging/systemd", ".service").len(), 2);
    }
}
