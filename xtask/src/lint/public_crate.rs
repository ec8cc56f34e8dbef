//! The library as others get it: its documentation without a warning, a known and small list of public items, few
//! dependencies in each feature set, a package that can be made, and a crate of another workspace that compiles with it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::public_pages;
use crate::steps::{Failed, cargo, output, root, step};

/// The features whose public items are counted: all but `testing`.
const FEATURES: &str = "http,object,postgres,schema,sqlite";
/// The most public items.
const ITEMS_LIMIT: usize = 120;
/// The list that is reviewed and committed.
const ITEMS: &str = "crates/outlive/public-items.txt";
/// The members of those items with their signatures, reviewed and committed as well.
const SIGNATURES: &str = "crates/outlive/public-signatures.txt";
/// The page with a whole service on PostgreSQL, whose program a crate of another workspace compiles.
const SERVICE: &str = "crates/outlive/src/service.md";
/// The page that has the dependencies of each feature set.
const README: &str = "crates/outlive/README.md";
/// The feature sets of that page, and the packages that a set must not have.
const SETS: [(&str, &[&str]); 6] = [
    ("", &["rusqlite", "object_store", "tokio-postgres", "hyper"]),
    ("sqlite", &["object_store", "tokio-postgres", "hyper"]),
    ("postgres", &["rusqlite", "libsqlite3-sys", "object_store", "hyper"]),
    ("object", &["rusqlite", "libsqlite3-sys", "tokio-postgres"]),
    ("http", &["rusqlite", "libsqlite3-sys", "object_store", "tokio-postgres"]),
    ("http,object,postgres,sqlite", &[]),
];

/// What a fresh crate does.
const FRESH: &str = "fn main() {\n    drop(start());\n}\n\nasync fn start() -> Result<outlive::RunHandle, outlive::Error> {\n    \
                     let registry = outlive::Registry::open(\"memory:\").await?;\n    \
                     registry.start(registry.spec(\"import\")).await\n}\n";

/// Checks all of it.
pub fn check() -> Vec<Result<(), Failed>> {
    let packaged = ["package", "--package", "outlive", "--package", "outlive-cli", "--no-verify", "--allow-dirty"];
    vec![document().and_then(|()| compare_items()), compare_dependencies(), step(&cargo(), &packaged), compile_fresh()]
}

fn document() -> Result<(), Failed> {
    println!("$ cargo doc --package outlive");
    let words = ["doc", "--package", "outlive", "--no-deps", "--features", FEATURES];
    let status = Command::new(cargo()).args(words).env("RUSTDOCFLAGS", "-D warnings").current_dir(root()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        status => Err(Failed(format!("`cargo doc` of the library ended with {status:?}"))),
    }
}

fn compare_items() -> Result<(), Failed> {
    let page = read("target/doc/outlive/all.html")?;
    let items = items(&page);
    if items.is_empty() || items.len() > ITEMS_LIMIT {
        return Err(Failed(format!("{} public items; at least one and at most {ITEMS_LIMIT}", items.len())));
    }
    compare_list(ITEMS, &items)?;
    compare_signatures(&items)
}

/// Checks that every type that a public signature names has a page, and that the signatures are those on the list.
fn compare_signatures(items: &BTreeSet<String>) -> Result<(), Failed> {
    let own = public_pages::own_types(&root().join("crates/outlive/src"))?;
    let (mut members, mut dead_ends) = (BTreeSet::new(), BTreeSet::new());
    for item in items {
        let Some((kind, path)) = item.split_once(' ') else { continue };
        let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
        let page = read(&format!("target/doc/outlive/{}/{kind}.{name}.html", module.replace("::", "/")))?;
        let page = public_pages::read(item, &page, &own);
        members.extend(page.members);
        dead_ends.extend(page.dead_ends.into_iter().map(|named| format!("`{item}` names `{named}`")));
    }
    if !dead_ends.is_empty() {
        let dead_ends: Vec<String> = dead_ends.into_iter().collect();
        return Err(Failed(format!("types of public signatures have no page: {}", dead_ends.join(", "))));
    }
    compare_list(SIGNATURES, &members)
}

/// Compares what was found with a list that is committed, and writes it beside the build where it is another.
fn compare_list(committed: &str, found: &BTreeSet<String>) -> Result<(), Failed> {
    let list = found.iter().fold(String::new(), |list, line| list + line + "\n");
    if read(committed).unwrap_or_default() == list {
        return Ok(());
    }
    let name = committed.rsplit('/').next().unwrap_or_default();
    let written = std::fs::write(root().join("target").join(name), list);
    written.map_err(|error| Failed(format!("target/{name}: {error}")))?;
    Err(Failed(format!("the public API is not that of {committed}; if that is meant, `cp target/{name} {committed}`")))
}

/// The items of rustdoc's page of all items: kind and path.
fn items(page: &str) -> BTreeSet<String> {
    let links = page.split("<li><a href=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let named = links.filter_map(|(href, _)| href.strip_suffix(".html"));
    let item = |href: &str| {
        let (module, file) = href.rsplit_once('/').unwrap_or(("", href));
        let (kind, name) = file.split_once('.')?;
        let module = if module.is_empty() { String::new() } else { module.replace('/', "::") + "::" };
        Some(format!("{kind} {module}{name}"))
    };
    named.filter_map(item).collect()
}

fn compare_dependencies() -> Result<(), Failed> {
    println!("$ dependencies of the library");
    let page = read(README)?;
    for (features, refused) in SETS {
        let words = ["tree", "--package", "outlive", "--no-default-features", "--features", features];
        let tree = output(&cargo(), &[&words[..], &["--edges", "normal", "--prefix", "none"]].concat())?;
        // A line is `name v1.2.3`, and more where the package has been shown before.
        let words = |line: &'_ str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>();
        let packages: BTreeSet<Vec<String>> = tree.lines().map(words).collect();
        let has = |name: &&str| packages.iter().any(|package| package.first().is_some_and(|found| found == name));
        if let Some(found) = refused.iter().copied().find(has) {
            return Err(Failed(format!("the library with the features `{features}` depends on `{found}`")));
        }
        let name = if features.is_empty() { "none".into() } else { format!("`{}`", features.replace(',', "`, `")) };
        // The library itself is none of its dependencies.
        let row = format!("| {name} | {} |", packages.len() - 1);
        if !page.contains(&row) {
            return Err(Failed(format!("{README} has no row `{row}`")));
        }
    }
    Ok(())
}

/// Compiles a crate outside the workspace that uses the library, with its locked dependencies and profiles: with every
/// feature set, with the default one, and with the program of the page about a service.
fn compile_fresh() -> Result<(), Failed> {
    let dir = root().join("target/fresh");
    let manifest = read("Cargo.toml")?;
    let profiles = manifest.find("[profile.dev]").map_or("", |at| &manifest[at..]);
    let profiles = profiles.split("[profile.release]").next().unwrap_or_default();
    let (service, needed) = service(&read(SERVICE)?)?;
    let set = |features: &str| {
        let list = features.split(',').filter(|name| !name.is_empty()).map(|name| format!("\"{name}\""));
        format!(", default-features = false, features = [{}]", list.collect::<Vec<_>>().join(", "))
    };
    let sets = SETS.iter().map(|(features, _)| *features).chain([FEATURES]).map(|features| (set(features), FRESH, ""));
    let fresh = sets.chain([(String::new(), FRESH, ""), (set("postgres"), &*service, &*needed)]);
    for (features, body, needed) in fresh {
        println!("$ cargo check of a fresh crate with `outlive{features}`");
        let manifest = format!(
            "[package]\nname = \"fresh\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\noutlive = {{ path = \
             \"../../crates/outlive\"{features} }}\n{needed}\n{profiles}"
        );
        write(&dir, &manifest, body).map_err(|error| Failed(format!("target/fresh: {error}")))?;
        let words = ["check", "--quiet", "--manifest-path", "target/fresh/Cargo.toml", "--target-dir", "target"];
        step(&cargo(), &words)?;
    }
    Ok(())
}

/// The program of the page about a service, and the dependencies that it names beside the library.
fn service(page: &str) -> Result<(String, String), Failed> {
    let block = |fence: &str| page.split(fence).nth(1).and_then(|rest| rest.split("\n```").next());
    let (Some(program), Some(manifest)) = (block("```no_run\n"), block("```toml\n")) else {
        return Err(Failed(format!("{SERVICE} has no program, or no manifest")));
    };
    let manifest = manifest.split("[dev-dependencies]").next().unwrap_or_default();
    let is_other = |line: &&str| line.contains(" = ") && !line.starts_with("outlive");
    Ok((program.to_owned(), manifest.lines().filter(is_other).fold(String::new(), |all, line| all + line + "\n")))
}

fn write(dir: &Path, manifest: &str, body: &str) -> std::io::Result<()> {
    std::fs::create_dir_all(dir.join("src"))?;
    std::fs::write(dir.join("Cargo.toml"), manifest)?;
    std::fs::copy(root().join("Cargo.lock"), dir.join("Cargo.lock"))?;
    std::fs::write(dir.join("src/main.rs"), body)
}

fn read(path: &str) -> Result<String, Failed> {
    std::fs::read_to_string(root().join(path)).map_err(|error| Failed(format!("`{path}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::{items, service};

    #[test]
    fn items_of_the_page_have_their_kind_and_path() {
        let page = r#"<li><a href="struct.Run.html">Run</a></li><li><a href="store/fn.open.html">store::open</a></li>"#;
        let found: Vec<String> = items(page).into_iter().collect();
        assert_eq!(found, ["fn store::open", "struct Run"]);
    }

    #[test]
    fn service_is_read_with_the_dependencies_of_its_program() {
        let page = "```toml\n[dependencies]\noutlive = \"1\"\nserde = \"1\"\n\n[dev-dependencies]\nx = \"1\"\n```\n\n```no_run\nfn main() {}\n```\n";
        let (program, needed) = service(page).ok().unwrap();
        assert_eq!((program.as_str(), needed.as_str()), ("fn main() {}", "serde = \"1\"\n"));
    }
}
