//! The software bill of materials: CycloneDX 1.5, from the packages of the binary.

use serde_json::{Value, json};

use super::Release;
use super::packages::{Package, Packages};

/// The bill as JSON.
pub fn render(release: &Release, packages: &Packages) -> String {
    let foreign = packages.all.iter().filter(|package| package.name != "outlive-cli");
    let dependencies = packages.needs.iter().map(|(of, needs)| json!({ "ref": of, "dependsOn": needs }));
    let command = format!("pkg:cargo/outlive-cli@{}", release.version);
    let bill = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": command,
                "name": "outlive",
                "version": release.version,
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
                "purl": command,
            },
            "properties": [{ "name": "outlive:target", "value": release.target }],
        },
        "components": foreign.map(component).collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    });
    format!("{bill:#}\n")
}

fn component(package: &Package) -> Value {
    json!({
        "type": "library",
        "bom-ref": package.purl(),
        "name": package.name,
        "version": package.version,
        "licenses": [{ "expression": package.licence }],
        "purl": package.purl(),
    })
}
