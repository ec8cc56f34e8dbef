//! What a sweep makes of each layout of artifacts, in a bucket and in a directory: `--layout`, `--winners`, and what names the
//! winners.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::sandbox::{Ends, Sandbox};
use super::sweeping::{NO_GRACE, Yard};

/// Where runs and their artifacts are.
enum Ground {
    Bucket(Box<Yard>),
    Directory(Sandbox),
}

impl Ground {
    fn directory() -> Self {
        let sandbox = Sandbox::new();
        sandbox.write_home_config(NO_GRACE);
        std::fs::create_dir(sandbox.path().join("data")).unwrap();
        Self::Directory(sandbox)
    }

    fn place(&self) -> String {
        match self {
            Self::Bucket(yard) => yard.place(),
            Self::Directory(sandbox) => sandbox.path().join("data").to_str().unwrap().into(),
        }
    }

    fn outlive(&self, words: &[&str]) -> Command {
        match self {
            Self::Bucket(yard) => yard.outlive(words),
            Self::Directory(sandbox) => sandbox.outlive(words),
        }
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        match self {
            Self::Bucket(yard) => {
                let key = format!("{}/data/{path}", yard.prefix);
                pollster::block_on(yard.store.raw_put(&key, bytes)).unwrap();
            }
            Self::Directory(sandbox) => {
                let path = sandbox.path().join("data").join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
        }
    }

    /// What is there but manifests that lie apart.
    fn left(&self) -> BTreeSet<String> {
        let all: Vec<String> = match self {
            Self::Bucket(yard) => {
                let below = format!("{}/data", yard.prefix);
                let keys = pollster::block_on(yard.store.raw_list(&below)).unwrap();
                keys.iter().map(|key| key.strip_prefix(&format!("{below}/")).unwrap().to_owned()).collect()
            }
            Self::Directory(sandbox) => {
                let root = sandbox.path().join("data");
                let mut found = Vec::new();
                walk(&root, &mut |path| found.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()));
                found
            }
        };
        all.into_iter().filter(|path| !path.starts_with("manifests/") && path != "_CURRENT").collect()
    }

    /// A run with this layout that names a manifest and ends so; its id. `ID` in the manifest's name is its own.
    fn run(&self, name: &str, layout: &[&str], manifest: Option<&str>, code: i32) -> String {
        let manifest = manifest.map(|manifest| manifest.replace("ID", "$OUTLIVE_RUN_ID"));
        let says = manifest.map_or(String::new(), |manifest| format!("outlive artifact manifest {manifest} && "));
        let (place, script) = (self.place(), format!("{says} exit {code}"));
        let words = [&["run", "--name", name, "--artifacts", &place], layout, &["--", "sh", "-c", &script]].concat();
        let output = self.outlive(&words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        self.outlive(&["show", name, "--json"]).json()["id"].as_str().unwrap().to_owned()
    }
}

fn walk(dir: &Path, tell: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
        if entry.path().is_dir() { walk(&entry.path(), tell) } else { tell(&entry.path()) }
    }
}

/// A manifest that is a database.
fn database(rows: &[(&str, bool)]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("manifest.db");
    let database = rusqlite::Connection::open(&file).unwrap();
    database.execute("CREATE TABLE files (path TEXT, won INT)", []).unwrap();
    for (path, won) in rows {
        database.execute("INSERT INTO files VALUES (?, ?)", rusqlite::params![path, won]).unwrap();
    }
    drop(database);
    std::fs::read(file).unwrap()
}

/// Has objects put below a tree, and answers with those that are to stay.
fn tree<'a>(ground: &Ground, tree: &'a str, objects: &'a [(&'a str, bool)]) -> impl Iterator<Item = String> + 'a {
    for (path, _) in objects {
        ground.put(&format!("{tree}/{path}"), b"12345");
    }
    objects.iter().filter(|(_, stays)| *stays).map(move |(path, _)| format!("{tree}/{path}"))
}

fn layouts_are_swept(ground: &Ground) {
    let mut stay = BTreeSet::new();
    let place = ground.place();

    // Names in full, in JSON that lies apart; a directory is named with all that is in it.
    let id = ground.run("full", &["--layout", "out"], Some("manifests/full.json"), 0);
    let objects = [
        ("part-1.parquet", true),
        ("part-10.parquet", false),
        ("part-2.parquet", false),
        ("day=1/x", true),
        ("day=2/x", false),
    ];
    stay.extend(tree(ground, &format!("out/run_id={id}"), &objects));
    let named = ["part-1.parquet", "day=1"].map(|path| format!("{place}/out/run_id={id}/{path}"));
    ground.put("manifests/full.json", serde_json::json!({"format_version": 1, "files": named}).to_string().as_bytes());

    // Short names, in YAML that lies in the tree.
    let id = ground.run("short", &["--layout", "out"], Some("out/run_id=ID/_manifest.yaml"), 0);
    let objects =
        [("part-1.parquet", true), ("part-2.parquet", false), ("sub/part-3.parquet", true), ("sub/part-4", false)];
    stay.extend(tree(ground, &format!("out/run_id={id}"), &objects));
    let manifest = format!("out/run_id={id}/_manifest.yaml");
    ground.put(&manifest, b"rows: 7\nfiles:\n- part-1.parquet\n- part-3.parquet\n");
    stay.insert(manifest);

    // A database, by query.
    let query = "SELECT path FROM files WHERE won";
    let id = ground.run("query", &["--layout", "a/b", "--winners", query], Some("manifests/query.db"), 0);
    let (own, losing) = (format!("a/b/run_id={id}"), format!("a/b/run_id={id}/y"));
    stay.extend(tree(ground, &own, &[("x", true), ("y", false)]));
    ground.put("manifests/query.db", &database(&[(&format!("{own}/x"), true), (&losing, false)]));

    // Parts and attempts under other names, of which only attempts go.
    let id = ground.run("parts", &["--layout", "tables:p={db_id}"], Some("manifests/parts.yaml"), 0);
    let own = format!("tables/run_id={id}");
    let objects =
        [("p=1/attempt=1/x", true), ("p=1/attempt=10/x", false), ("p=1/notes", true), ("other/attempt=1/x", true)];
    stay.extend(tree(ground, &own, &objects));
    ground.put("manifests/parts.yaml", format!("won:\n- {own}/p=1/attempt=1\n").as_bytes());

    // Of one that failed and named nothing, everything, but for what another's manifest names.
    let id = ground.run("failed", &["--layout", "out"], None, 3);
    let own = format!("out/run_id={id}");
    stay.extend(tree(ground, &own, &[("part-1.parquet", false), ("sub/x", false), ("lent", true)]));
    ground.run("borrower", &["--layout", "tables:p={db_id}"], Some("manifests/borrower.json"), 0);
    ground.put("manifests/borrower.json", serde_json::json!([format!("{own}/lent")]).to_string().as_bytes());

    let dry = ground.outlive(&["sweep", "--json"]).printed();
    let done = ground.outlive(&["sweep", "--yes", "--json"]).printed();
    assert_eq!(ground.left(), stay, "{done}");
    assert_eq!((&dry["objects"], &dry["bytes"]), (&done["objects"], &done["bytes"]));
    assert_eq!((&done["objects"], &done["problems"]), (&9.into(), &serde_json::json!([])), "{done}");
    let reason = |name: &str| {
        let id = &ground.outlive(&["show", name, "--json"]).json()["id"];
        let line = done["swept"].as_array().unwrap().iter().find(|line| line["id"] == *id).unwrap();
        line["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(reason("full"), "succeeded: what its manifest does not name");
    assert_eq!(reason("parts"), "succeeded: attempts that its manifest does not name");
    assert_eq!(ground.outlive(&["sweep", "--yes", "--json"]).printed()["objects"], 0);
}

/// What is not understood of a plain tree keeps all of it, and is told.
fn what_is_not_understood_stays(ground: &Ground) {
    for (number, (manifest, says)) in [
        (r#"{"rows": 7, "state": "good"}"#, "nothing of what it names is there"),
        (r#"{"files": ["part-99.parquet"]}"#, "nothing of what it names is there"),
        (r#"{"files": ["MANIFEST"]}"#, "nothing of what it names is there"),
        (r#"{"files": ["part-1.parquet", "part-*.parquet"]}"#, "which may mean anything"),
        (r#"{"files": ["part-1.parquet"], "template": "part-{n}.parquet"}"#, "which may mean anything"),
        (r#"{"files": ["part-1.parquet", "s3://elsewhere/run_id=ID/x"]}"#, "leads nowhere"),
        (r#"{"files": ["part-1.parq"#, "it is no YAML"),
        (r#"{"format_version": 2, "files": ["part-1.parquet"]}"#, "format_version"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = ground.run(&format!("r{number}"), &["--layout", "out"], Some("out/run_id=ID/m"), 0);
        let own = format!("out/run_id={id}");
        let before = ground.left();
        let all: BTreeSet<String> =
            tree(ground, &own, &[("part-1.parquet", true), ("part-2.parquet", true)]).chain(before).collect();
        let full = format!("{}/{own}/m", ground.place());
        ground.put(&format!("{own}/m"), manifest.replace("ID", &id).replace("MANIFEST", &full).as_bytes());
        let report = ground.outlive(&["sweep", "--yes", "--json"]).printed();
        let line = report["kept"].as_array().unwrap().iter().find(|line| line["id"] == id.as_str()).unwrap();
        assert!(line["reason"].as_str().unwrap().contains(says), "{manifest}: {line}");
        assert!(ground.left().is_superset(&all), "{manifest}: {report}");
        assert!(report["problems"].to_string().contains(&id), "{manifest}: {report}");
    }
    // What the pointer's manifest says in short is of any run, where nobody says whose it is.
    let id = ground.run("pointed", &["--layout", "out"], None, 1);
    let own = format!("out/run_id={id}");
    tree(ground, &own, &[("part-1.parquet", true), ("part-2.parquet", false)]).for_each(drop);
    ground.put("manifests/latest.json", br#"["part-1.parquet"]"#);
    ground.put("_CURRENT", b"manifests/latest.json");
    let report = ground.outlive(&["sweep", "--yes", "--run", "pointed", "--json"]).printed();
    assert_eq!(report["objects"], 1, "{report}");
    assert!(ground.left().contains(&format!("{own}/part-1.parquet")), "{report}");
}

#[test]
fn b04_every_layout_is_swept_in_a_bucket() {
    layouts_are_swept(&Ground::Bucket(Box::new(Yard::new())));
}

#[test]
fn b04_every_layout_is_swept_in_a_directory() {
    layouts_are_swept(&Ground::directory());
}

#[test]
fn b06_what_is_not_understood_of_a_plain_tree_stays_in_a_bucket() {
    what_is_not_understood_stays(&Ground::Bucket(Box::new(Yard::new())));
}

#[test]
fn b06_unknown_parts_of_a_plain_tree_stay_in_a_directory() {
    what_is_not_understood_stays(&Ground::directory());
}

#[test]
fn layouts_that_could_lead_elsewhere_are_refused() {
    let ground = Ground::directory();
    let place = ground.place();
    for layout in ["", "..", "../out", "/out", "out/run_id=x", "out:", "out:part", "out:../{db_id}"] {
        let output =
            ground.outlive(&["run", "--artifacts", &place, "--layout", layout, "--", "true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{layout}: {output:?}");
    }
}
