//! The environment of a command: which variables it is given, and those that are kept for its later attempts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Arg;

/// Which environment the attempts of a command are given. Variables that are listed with the run are added to each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvMode {
    /// The environment in which the run was made, where it is executed on the same host by the same user.
    #[default]
    Keep,
    /// The environment of the process that executes the attempt.
    Inherit,
    /// What says who and where a program is, and nothing else.
    Clean,
}

impl EnvMode {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Variables of an environment, by name.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Variables(Vec<(Arg, Arg)>);

/// Variables that belong to a session, a terminal or a service, and not to the work: every attempt has those of the
/// process that executes it.
const OF_SESSION: [&str; 27] = [
    "_",
    "COLUMNS",
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "GPG_AGENT_INFO",
    "GPG_TTY",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LINES",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "NOTIFY_SOCKET",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "STY",
    "TERM",
    "TERM_PROGRAM",
    "TERM_SESSION_ID",
    "TMUX",
    "TMUX_PANE",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "WAYLAND_DISPLAY",
    "WINDOWID",
    "XAUTHORITY",
];
/// What the names of further such variables begin with. `OUTLIVE_` tells a process of its run and its home.
const OF_SESSION_BY_PREFIX: [&str; 4] = ["OUTLIVE_", "SSH_", "XDG_RUNTIME_", "XDG_SESSION_"];

/// Whether a variable belongs to a session and is not kept for later attempts.
pub fn is_of_session(name: &OsStr) -> bool {
    let prefixed = |name: &str| OF_SESSION_BY_PREFIX.iter().any(|prefix| name.starts_with(prefix));
    name.to_str().is_some_and(|name| OF_SESSION.contains(&name) || prefixed(name))
}

impl Variables {
    /// These variables without those of a session. Of a name that occurs twice the last value counts.
    pub fn without_session(all: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let kept: BTreeMap<OsString, OsString> = all.into_iter().filter(|(name, _)| !is_of_session(name)).collect();
        Self(kept.iter().map(|(name, value)| (name.as_os_str().into(), value.as_os_str().into())).collect())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        let name = Arg::Text(name.into());
        self.0.retain(|(found, _)| *found != name);
        self.0.push((name, Arg::Text(value.into())));
    }

    /// Names and values as the kernel takes them.
    pub fn pairs(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.0.iter().map(|(name, value)| (name.to_os(), value.to_os()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Variables {
    /// Their number alone: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} variables", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_15_session_variables_are_dropped_and_values_not_printed() {
        let all = ["PATH=/venv/bin", "CUDA_VISIBLE_DEVICES=1", "SSH_AUTH_SOCK=/tmp/a", "TERM=xterm", "PATH=/last"];
        let split = |pair: &str| pair.split_once('=').map(|(name, value)| (name.into(), value.into())).unwrap();
        let mut kept = Variables::without_session(all.map(split));
        kept.set("PATH", "/set");
        kept.set("API_KEY", "canary");
        let names: Vec<OsString> = kept.pairs().map(|(name, _)| name).collect();
        assert_eq!(names, ["CUDA_VISIBLE_DEVICES", "PATH", "API_KEY"]);
        assert_eq!(kept.pairs().nth(1).unwrap().1, "/set");
        assert!(!format!("{kept:?}").contains("canary"));
    }
}
