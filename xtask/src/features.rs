//! The feature sets in which the library and the command must compile, and the library pass its tests.

/// Sets of the library: no feature, each alone, and the default. All of them together is what the workspace builds.
pub const LIBRARY: [&[&str]; 8] = [
    &["--no-default-features"],
    &["--no-default-features", "--features", "http"],
    &["--no-default-features", "--features", "object"],
    &["--no-default-features", "--features", "postgres"],
    &["--no-default-features", "--features", "schema"],
    &["--no-default-features", "--features", "sqlite"],
    &["--no-default-features", "--features", "testing"],
    &[],
];

/// Sets of the command: no feature and each alone. All of them together is its default.
pub const COMMAND: [&[&str]; 7] = [
    &["--no-default-features"],
    &["--no-default-features", "--features", "http"],
    &["--no-default-features", "--features", "mcp"],
    &["--no-default-features", "--features", "object"],
    &["--no-default-features", "--features", "postgres"],
    &["--no-default-features", "--features", "server"],
    &["--no-default-features", "--features", "tui"],
];

#[cfg(test)]
mod tests {
    use super::{COMMAND, LIBRARY};

    /// The features that a manifest declares, and those that are built alone.
    fn declared_and_built<'a>(manifest: &'a str, sets: &[&[&'a str]]) -> [Vec<&'a str>; 2] {
        let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
        let declared = features.lines().filter_map(|line| line.split_once(" = "));
        let mut declared: Vec<&str> = declared.map(|(name, _)| name).filter(|name| *name != "default").collect();
        let mut built: Vec<&str> = sets.iter().filter_map(|set| set.get(2).copied()).collect();
        declared.sort_unstable();
        built.sort_unstable();
        [declared, built]
    }

    /// A feature that is added to a crate is added here too.
    #[test]
    fn t1_01_every_feature_is_built_alone() {
        for (krate, sets) in [("outlive", LIBRARY.as_slice()), ("outlive-cli", COMMAND.as_slice())] {
            let manifest = crate::steps::root().join("crates").join(krate).join("Cargo.toml");
            let manifest = std::fs::read_to_string(manifest).unwrap();
            let [declared, built] = declared_and_built(&manifest, sets);
            assert_eq!(declared, built, "{krate}");
        }
    }
}
