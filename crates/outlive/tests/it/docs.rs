//! Documents that are generated from the code.

use std::path::Path;

use outlive::error::Code;

/// What a caller of a server is answered with, by what went wrong.
fn code_table() -> String {
    let mut codes = Code::ALL;
    codes.sort_by_key(|code| code.exit_status());
    let row = |code: Code| {
        format!("| `{}` | {} | {} | {} |\n", code.as_str(), code.exit_status(), code.http_status(), code.meaning())
    };
    format!("| code | exit status | HTTP | |\n|---|---|---|---|\n{}", codes.map(row).concat())
}

#[test]
fn the_codes_that_a_server_is_said_to_answer_with_are_those_it_answers_with() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
    let (current, mut written) = (code_table(), std::fs::read_to_string(&path).unwrap());
    let is_row = |line: &&str| line.starts_with('|');
    let begins = written.find("| code |").unwrap();
    let told: String = written[begins..].split_inclusive('\n').take_while(is_row).collect();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        written.replace_range(begins..begins + told.len(), &current);
        std::fs::write(&path, &written).unwrap();
        return;
    }
    assert!(told == current, "docs/server.md tells of other codes; UPDATE_DOCS=1 writes its table anew:\n{current}");
}

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
