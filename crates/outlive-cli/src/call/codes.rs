//! The table of error codes: the exit status and the HTTP status that stand for each, and its meaning for people.

use outlive::error::Code;

/// How the surfaces report a code.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    /// The exit status of a command. 2 is the shell's word for a wrong call; the others lie in a band of their own, so
    /// that they differ from the exit status of a command that was run.
    pub exit: u8,
    /// The status of an HTTP response. 503 stands for the store behind the server: no caller can mend it by another
    /// request.
    pub http: u16,
    /// The text for people.
    pub meaning: &'static str,
}

/// How the surfaces report a code.
pub fn status(code: Code) -> Status {
    let (exit, http, meaning) = match code {
        Code::Invalid => (2, 400, "invalid arguments or input"),
        Code::NotFound => (101, 404, "no such run, registry or index"),
        Code::Ambiguous => (102, 409, "the name or prefix matches several runs"),
        Code::Refused => (103, 409, "the state of the run does not allow it"),
        Code::Lost => (104, 412, "inside a run: this attempt no longer owns it"),
        Code::Busy => (105, 409, "a key is held by other runs, or the run was modified concurrently"),
        Code::Untrusted => (106, 403, "another user made the run, or its record was tampered with: `outlive trust`"),
        Code::Unavailable => (107, 503, "the registry cannot be reached"),
        Code::Full => (108, 503, "no space left for the registry"),
        Code::Denied => (109, 503, "no permission to use the registry, or it lacks a needed capability"),
        Code::Newer => (110, 503, "the registry was created by a newer version of outlive"),
        Code::Corrupt => (111, 503, "the registry cannot be read"),
        Code::Stale => (112, 409, "the index is not up to date: `registry show`"),
        Code::Unreadable => (113, 503, "the run exists, but its source cannot be read"),
        Code::Forbidden => (114, 403, "the role of the caller does not allow this"),
        Code::Unauthorised => (115, 401, "invalid or missing credentials"),
        Code::Throttled => (116, 429, "too many requests"),
        // The library and the command are built together: the table of the help would show a code that is missing here.
        _ => (1, 500, "unknown error"),
    };
    Status { exit, http, meaning }
}

/// The exit statuses and what they mean, for the help.
pub fn exit_status_table() -> String {
    let row =
        |(code, Status { exit, meaning, .. }): (Code, Status)| format!("  {exit:>3}  {}: {meaning}", code.as_str());
    let rows: Vec<String> = by_exit_status().into_iter().map(row).collect();
    format!(
        "Exit status:\n    0  done\n    1  completed, but the result is negative: `wait`, `attach`, `adopt`, `checkpoint get`, `doctor`,\n       \
         `cancel --wait`, `logs --exit-status`, `resume`, `work --drain`, `service status`\n{}\n  \
         126  `run`: the command cannot be executed\n  127  `run`: the command is not found\n    \
         n  `run`, `wait`, `attach`, `adopt`, `logs --exit-status`: the command's own, or 128 plus\n       \
         the number of the signal that ended it",
        rows.join("\n")
    )
}

/// All codes in the order of their exit statuses.
fn by_exit_status() -> Vec<(Code, Status)> {
    let mut codes: Vec<(Code, Status)> = Code::ALL.into_iter().map(|code| (code, status(code))).collect();
    codes.sort_by_key(|(_, status)| status.exit);
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_server_docs_are_those_of_the_table() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
        let row = |(code, Status { exit, http, meaning }): (Code, Status)| {
            format!("| `{}` | {exit} | {http} | {meaning} |\n", code.as_str())
        };
        let rows: String = by_exit_status().into_iter().map(row).collect();
        let current = format!("| code | exit status | HTTP | |\n|---|---|---|---|\n{rows}");
        let mut written = std::fs::read_to_string(&path).unwrap();
        let begins = written.find("| code |").unwrap();
        let documented: String =
            written[begins..].split_inclusive('\n').take_while(|line| line.starts_with('|')).collect();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            written.replace_range(begins..begins + documented.len(), &current);
            std::fs::write(&path, &written).unwrap();
            return;
        }
        assert!(
            documented == current,
            "docs/server.md has other codes; UPDATE_DOCS=1 writes its table anew:\n{current}"
        );
    }
}
