//! The packages that what is shipped is compiled from, as `cargo metadata` tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::Value;

use crate::steps::{Failed, cargo, output};

/// One package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub licence: String,
    /// The directory of its sources.
    pub dir: PathBuf,
    /// Whether it comes from a registry, and not from this repository.
    pub is_foreign: bool,
}

impl Package {
    /// The package URL that names it in an SBOM.
    pub fn purl(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

/// The packages that some packages of ours are compiled from, with these, by name and version, and what each depends on.
#[derive(Debug)]
pub struct Packages {
    pub all: Vec<Package>,
    /// Package URLs of the direct dependencies, by the package URL that needs them.
    pub needs: BTreeMap<String, BTreeSet<String>>,
    version: String,
}

impl Packages {
    /// Asks cargo for what `roots`, packages of ours, are compiled from.
    pub fn read(target: &str, roots: &[&str]) -> Result<Self, Failed> {
        let words = ["metadata", "--locked", "--format-version", "1", "--filter-platform", target];
        let told = output(&cargo(), &words)?;
        let told = serde_json::from_str(&told).map_err(|error| Failed(format!("`cargo metadata`: {error}")))?;
        Self::of(&told, roots).ok_or_else(|| Failed(format!("`cargo metadata` does not list `{}`", roots.join("`, `"))))
    }

    /// The version of the first root.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Those that the roots reach by normal dependencies.
    fn of(metadata: &Value, roots: &[&str]) -> Option<Self> {
        let packages = metadata["packages"].as_array()?.iter().filter_map(|told| Some((told["id"].as_str()?, told)));
        let packages: BTreeMap<&str, &Value> = packages.collect();
        let nodes =
            metadata["resolve"]["nodes"].as_array()?.iter().filter_map(|node| Some((node["id"].as_str()?, node)));
        let nodes: BTreeMap<&str, &Value> = nodes.collect();
        let root = |name: &&str| packages.iter().find(|(_, told)| told["name"] == **name);
        let roots: Vec<(&&str, &&Value)> = roots.iter().map(root).collect::<Option<_>>()?;
        let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut open: Vec<&str> = roots.iter().map(|(id, _)| **id).collect();
        while let Some(id) = open.pop() {
            if found.contains_key(id) {
                continue;
            }
            let needed: Vec<&str> = nodes.get(id)?["deps"].as_array()?.iter().filter_map(needed).collect();
            open.extend(&needed);
            found.insert(id, needed);
        }
        let purl = |id: &str| packages.get(id).and_then(|told| package(told)).map(|package| package.purl());
        let needs = found.iter().filter_map(|(id, needed)| {
            Some((purl(id)?, needed.iter().filter_map(|id| purl(id)).collect::<BTreeSet<_>>()))
        });
        let mut all: Vec<Package> = found.keys().filter_map(|id| package(packages.get(id)?)).collect();
        all.sort();
        Some(Self { needs: needs.collect(), all, version: roots.first()?.1["version"].as_str()?.to_owned() })
    }
}

/// The id of a dependency that ends up in the binary: not one for tests or for building alone.
fn needed(dependency: &Value) -> Option<&str> {
    let is_normal = dependency["dep_kinds"].as_array()?.iter().any(|kind| kind["kind"].is_null());
    dependency["pkg"].as_str().filter(|_| is_normal)
}

fn package(told: &Value) -> Option<Package> {
    Some(Package {
        name: told["name"].as_str()?.to_owned(),
        version: told["version"].as_str()?.to_owned(),
        licence: told["license"].as_str().unwrap_or("NOASSERTION").replace('/', " OR "),
        dir: PathBuf::from(told["manifest_path"].as_str()?).parent()?.to_owned(),
        is_foreign: !told["source"].is_null(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Packages;

    #[test]
    fn packages_of_the_binary_leave_out_those_of_tests() {
        let package = |name: &str| {
            json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0",
            "manifest_path": format!("/src/{name}/Cargo.toml"), "source": (name != "outlive-cli").then_some("registry") })
        };
        let needs = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let packages = ["outlive-cli", "b", "a", "only-tests"].map(package);
        let metadata = json!({
            "packages": packages,
            "resolve": { "nodes": [
                { "id": "outlive-cli", "deps": [needs("b", None), needs("only-tests", Some("dev"))] },
                { "id": "b", "deps": [needs("a", None)] },
                { "id": "a", "deps": [] },
                { "id": "only-tests", "deps": [] },
            ] }
        });
        let packages = Packages::of(&metadata, &["outlive-cli"]).unwrap();
        let names: Vec<&str> = packages.all.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "outlive-cli"]);
        assert_eq!(packages.version(), "1.0.0");
        assert_eq!((packages.all[0].licence.as_str(), packages.all[0].is_foreign), ("MIT OR Apache-2.0", true));
        assert!(packages.needs["pkg:cargo/b@1.0.0"].contains("pkg:cargo/a@1.0.0"));
    }
}
