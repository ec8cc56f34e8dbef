//! The feature sets in which the library must compile and pass its tests.

/// No feature, each alone, and the default. All of them together is what the workspace builds.
pub const FEATURE_SETS: [&[&str]; 8] = [
    &["--no-default-features"],
    &["--no-default-features", "--features", "http"],
    &["--no-default-features", "--features", "object"],
    &["--no-default-features", "--features", "postgres"],
    &["--no-default-features", "--features", "schema"],
    &["--no-default-features", "--features", "sqlite"],
    &["--no-default-features", "--features", "testing"],
    &[],
];

#[cfg(test)]
mod tests {
    use super::FEATURE_SETS;

    /// A feature that is added to the library is added here too.
    #[test]
    fn t1_01_every_feature_of_the_library_is_built_alone() {
        let manifest = std::fs::read_to_string(crate::steps::root().join("crates/outlive/Cargo.toml")).unwrap();
        let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
        let declared = features.lines().filter_map(|line| line.split_once(" = "));
        let mut declared: Vec<&str> = declared.map(|(name, _)| name).filter(|name| *name != "default").collect();
        let mut built: Vec<&str> = FEATURE_SETS.iter().filter_map(|set| set.get(2).copied()).collect();
        declared.sort_unstable();
        built.sort_unstable();
        assert_eq!(declared, built);
    }
}
