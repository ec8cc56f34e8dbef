//! Ports that runs are given: free ones, each leased to one owner at a time.
//!
//! A lease is a locked file in the home, which the kernel frees with its owner. A port that any process listens at is
//! never leased, so a server that outlives its owner keeps its port too.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::Path;

use outlive::error::{Code, Error};
use outlive::run::{Command, FIRST_PORT, PORT_PREFIX};
use sha2::{Digest, Sha256};

/// The ports that are leased: above those of services, below those of connections.
const RANGE: std::ops::Range<u16> = 20_000..32_000;
/// The longest name of a port.
const NAME: usize = 32;

/// Ports that are leased for as long as this lives.
#[derive(Debug, Default)]
pub struct Leases {
    /// By name, in the order of the call.
    ports: Vec<(String, u16)>,
    locks: Vec<File>,
}

impl Leases {
    /// A free port for each name. The same name in the same directory gets the same port where that is free.
    pub fn take(names: &[String]) -> Result<Self, Error> {
        let mut known = BTreeSet::new();
        for name in names {
            check(name)?;
            if !known.insert(name.to_ascii_lowercase()) {
                return Err(Error::Invalid(format!("`--port {name}` is given twice")));
            }
        }
        Self::lease(names.iter().map(|name| (name.clone(), None)).collect())
    }

    /// The ports that a run was leased before, as far as they are free, and free ones in place of the others.
    pub fn again(command: &Command) -> Result<Self, Error> {
        let first = command.first_port();
        let mut wanted: Vec<_> = command.ports().into_iter().map(|(name, port)| (name, Some(port))).collect();
        wanted.sort_by_key(|(name, _)| first.as_ref() != Some(name));
        Self::lease(wanted)
    }

    /// A free port for each name, the one that goes with it if that is free.
    fn lease(wanted: Vec<(String, Option<u16>)>) -> Result<Self, Error> {
        let mut leases = Self::default();
        if wanted.is_empty() {
            return Ok(leases);
        }
        let home = outlive::host::home::home()
            .ok_or_else(|| Error::Invalid("ports are leased in a home; there is none".into()))?;
        let dir = home.join("ports");
        outlive::registry::make_home(&home)?;
        let failed = |error: std::io::Error| Error::Invalid(format!("no port can be leased: {error}"));
        std::fs::create_dir_all(&dir).map_err(failed)?;
        for (name, port) in wanted {
            let none = || Error::Invalid("no port is free".into());
            let found = port.into_iter().chain(candidates(&name)).find_map(|port| lease(&dir, port));
            let (port, lock) = found.ok_or_else(none)?;
            leases.ports.push((name, port));
            leases.locks.push(lock);
        }
        Ok(leases)
    }

    /// The ports by name.
    pub fn by_name(&self) -> BTreeMap<String, u16> {
        self.ports.iter().cloned().collect()
    }

    /// The variables that tell of them.
    pub fn variables(&self) -> BTreeMap<String, String> {
        variables(self.ports.first().map(|(name, _)| name.as_str()), &self.by_name())
    }
}

/// The variables that tell of ports, the one of this name being the first.
pub fn variables(first: Option<&str>, ports: &BTreeMap<String, u16>) -> BTreeMap<String, String> {
    let named = ports.iter().map(|(name, port)| (variable(name), port.to_string()));
    let first = first.and_then(|first| Some((FIRST_PORT.to_owned(), ports.get(first)?.to_string())));
    named.chain(first).collect()
}

fn variable(name: &str) -> String {
    format!("{PORT_PREFIX}{}", name.to_ascii_uppercase().replace('-', "_"))
}

fn check(name: &str) -> Result<(), Error> {
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::Reported {
            code: Code::Invalid,
            message: format!("`--port {name}`: that is a number, and a port is leased by a name"),
            hint: Some("name the port, such as `--port web`; the command gets its number as $PORT".into()),
        });
    }
    let is_sound = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if is_sound && !name.is_empty() && name.len() <= NAME {
        return Ok(());
    }
    Err(Error::Invalid(format!("`--port {name}`: a name has up to {NAME} letters, digits, `_` and `-`")))
}

/// All ports of the range, beginning with the one that a name has in this directory.
fn candidates(name: &str) -> impl Iterator<Item = u16> {
    let here = std::env::current_dir().unwrap_or_default();
    let digest = Sha256::new().chain_update(here.as_os_str().as_encoded_bytes()).chain_update(name).finalize();
    let first = u16::from_be_bytes([digest[0], digest[1]]) % (RANGE.end - RANGE.start);
    (0..RANGE.end - RANGE.start).map(move |step| RANGE.start + (first + step) % (RANGE.end - RANGE.start))
}

fn lease(dir: &Path, port: u16) -> Option<(u16, File)> {
    let open = || File::options().create(true).truncate(false).write(true).open(dir.join(port.to_string()));
    let lock = open().ok()?;
    lock.try_lock().ok()?;
    is_free(port).then_some((port, lock))
}

/// Whether no process listens there.
fn is_free(port: u16) -> bool {
    let everywhere = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_ok();
    // Where there is no IPv6, and where a listener has it alone.
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() && (everywhere || !has_ipv6())
}

fn has_ipv6() -> bool {
    TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_leased_or_listened_at_is_not_leased_again() {
        let dir = tempfile::tempdir().unwrap();
        let (port, held) = candidates("web").find_map(|port| lease(dir.path(), port)).unwrap();
        assert!(lease(dir.path(), port).is_none());
        drop(held);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(lease(dir.path(), port).is_none());
        drop(listener);
        assert!(lease(dir.path(), port).is_some());
    }

    #[test]
    fn names_of_ports_are_names_of_variables() {
        assert_eq!(variable("web-1"), "OUTLIVE_PORT_WEB_1");
        for wrong in ["", "a b", "a=b", "é", "8080", &"x".repeat(33)] {
            assert!(check(wrong).is_err(), "{wrong}");
        }
    }
}
