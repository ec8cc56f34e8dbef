//! The home of a user: the key, the spool, the home registry.

use std::env;
use std::path::PathBuf;

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

/// Makes the home, unless it is there: for its owner alone.
pub fn make(home: &std::path::Path) -> std::io::Result<()> {
    crate::store::files::make_private_dirs(home)
}
