//! Fleet keys: a secret that several homes share for one registry.
//!
//! The key of a home never leaves it, so what one home signs no other home can check. Homes that are to execute each
//! other's runs share a second key, made for one registry and good for no other.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use super::key::{Key, draw_key, read_key, write_key};
use crate::model::hex::{hex, unhex};
use crate::model::id::Entropy;
use crate::util::sync::lock;

const DIRECTORY: &str = "fleet";
/// What a fleet key that is carried to another home begins with.
const PREFIX: &str = "outlive-fleet-1.";

/// A fleet key with the registry that it is for, as it is carried from one home to another.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetKey {
    /// The identity of the registry.
    pub registry: String,
    key: Key,
}

impl fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FleetKey").field("registry", &self.registry).finish_non_exhaustive()
    }
}

impl fmt::Display for FleetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}.{}", self.registry, hex(&self.key))
    }
}

/// A text that is not a fleet key.
#[derive(Debug, thiserror::Error)]
#[error("this is not a fleet key; `outlive trust --fleet export` prints one")]
pub struct InvalidFleetKey;

impl FromStr for FleetKey {
    type Err = InvalidFleetKey;

    fn from_str(text: &str) -> Result<Self, InvalidFleetKey> {
        let (registry, key) =
            text.trim().strip_prefix(PREFIX).and_then(|rest| rest.rsplit_once('.')).ok_or(InvalidFleetKey)?;
        let key = unhex(key).and_then(|key| key.try_into().ok()).ok_or(InvalidFleetKey)?;
        Ok(Self { registry: registry.to_owned(), key })
    }
}

/// The fleet keys of a home.
#[derive(Clone)]
pub(super) struct FleetKeys {
    directory: PathBuf,
    /// Those that were read. A key that is missing is looked for again: it may be imported while this process works.
    read: Arc<Mutex<HashMap<String, Key>>>,
}

impl FleetKeys {
    pub(super) fn of(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY), read: Arc::default() }
    }

    /// The key for a registry, if this home has one that can be used.
    pub(super) fn get(&self, registry: &str) -> Option<Key> {
        let mut read = lock(&self.read);
        if let Some(key) = read.get(registry) {
            return Some(*key);
        }
        let key = read_key(&self.directory.join(name(registry))).ok()?;
        read.insert(registry.to_owned(), key);
        Some(key)
    }

    /// The key for a registry, made if there is none. Tells whether this call made it.
    pub(super) fn create(&self, registry: &str, entropy: &dyn Entropy) -> io::Result<(FleetKey, bool)> {
        let (drawn, registry) = (draw_key(entropy), registry.to_owned());
        let key = self.write(&registry, &drawn)?;
        Ok((FleetKey { registry, key }, key == drawn))
    }

    /// Keeps a key of another home. Refused where this home has another one for the registry.
    pub(super) fn import(&self, key: &FleetKey) -> io::Result<()> {
        if self.write(&key.registry, &key.key)? == key.key {
            return Ok(());
        }
        let path = self.directory.join(name(&key.registry));
        Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("this home has another fleet key for the registry; delete `{}` to replace it", path.display()),
        ))
    }

    pub(super) fn export(&self, registry: &str) -> io::Result<FleetKey> {
        let key = read_key(&self.directory.join(name(registry)))?;
        Ok(FleetKey { registry: registry.to_owned(), key })
    }

    fn write(&self, registry: &str, key: &Key) -> io::Result<Key> {
        crate::util::files::make_private_dirs(&self.directory)?;
        match read_key(&self.directory.join(name(registry))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => write_key(&self.directory, &name(registry), key),
            read => read,
        }
    }
}

/// The file of a registry's key. A registry may call itself anything.
fn name(registry: &str) -> String {
    hex(&Sha256::digest(registry)[..16])
}
