//! The user: who acts here, and the home with the key, the spool, commands with secrets and the home registry.

use std::env;
use std::path::PathBuf;

use crate::model::run::Actor;

/// The variable that names the home.
pub const HOME_VARIABLE: &str = "OUTLIVE_HOME";

/// Where this user's outlive keeps what belongs to no repository: `$OUTLIVE_HOME`, else `$XDG_STATE_HOME/outlive`, else
/// `~/.local/state/outlive`. None where the environment names none of them.
pub fn home() -> Option<PathBuf> {
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    set(HOME_VARIABLE)
        .or_else(|| set("XDG_STATE_HOME").filter(|path| path.is_absolute()).map(|state| state.join("outlive")))
        .or_else(|| set("HOME").map(|home| home.join(".local/state/outlive")))
}

/// The user, host and process that act here.
pub(crate) fn actor() -> Actor {
    Actor {
        user: user_name(rustix::process::geteuid().as_raw()).into(),
        host: rustix::system::uname().nodename().to_string_lossy().into(),
        pid: std::process::id(),
    }
}

/// The name of a user: as the machine knows it, else as the environment claims, else a number.
fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let has_uid = |line: &&str| line.split(':').nth(2).and_then(|field| field.parse().ok()) == Some(uid);
    let known = users.lines().find(has_uid).and_then(|line| line.split(':').next()).map(str::to_owned);
    let claimed = || std::env::var("USER").ok().filter(|user| !user.is_empty());
    known.or_else(claimed).unwrap_or_else(|| format!("uid {uid}"))
}
