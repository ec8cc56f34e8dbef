//! Documents that are generated from the code.

use std::path::Path;

#[test]
fn lifecycle_doc_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lifecycle.md");
    let current = outlive::testing::lifecycle::document().unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == current,
        "docs/lifecycle.md is not what the rules say; UPDATE_DOCS=1 writes it anew:\n{current}"
    );
}
