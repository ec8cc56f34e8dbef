//! Trust: what a record that this user did not make may cause.
//!
//! A registry may come with a cloned repository, and a shared one is written by others. Reading it must not execute its
//! past. So every run is signed with a key that lies in its maker's home, and only a run that bears this user's signature,
//! the signature of a fleet that this user joined, or that this user has read and allowed, is executed.
//!
//! A signature covers the registry, the run's id, when it was made, and the whole spec: its author, command, policy and
//! what it is a rerun of. In another registry, or with another past, it is worth nothing. What it cannot cover is the
//! state, which changes: so the home keeps a ledger of the runs that ended for good under it (see `docs/adr/0021-…`).
//!
//! What a record may cause (a command that is executed, a connection, a file that is read, artifacts that are deleted) is
//! decided by [`may`].

mod decision;
mod fleet;
#[cfg(feature = "postgres")]
mod history;
mod key;
mod ledger;
mod location;

use std::fmt;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub use self::decision::{Denied, Effect, Origin, TrustBasis, may};
use self::fleet::FleetKeys;
pub use self::fleet::{FleetKey, InvalidFleetKey};
#[cfg(feature = "postgres")]
pub(crate) use self::history::HistoryLocations;
use self::key::{Key, draw_key, read_key, write_key};
use self::ledger::Ledger;
pub use self::location::{ArtifactLocation, InvalidLocation, NamedLocation};
use crate::model::hex::{hex, unhex};
use crate::model::id::{Entropy, RunId};
use crate::model::run::{Run, Spec};
use crate::model::time::Timestamp;

const KEY: &str = "key";
/// What stands between the signature of a home and that of its fleet.
const BETWEEN: char = '.';

/// Signs this user's runs, and knows which runs of others this user allowed.
#[derive(Clone)]
pub struct Trust {
    home: PathBuf,
    /// Set up once: every run that is made is signed by it.
    key: Hmac<Sha256>,
    fleet: FleetKeys,
    ledger: Ledger,
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Trust {
    /// The key in `home`, made if there is none.
    pub fn open(home: &Path, entropy: &dyn Entropy) -> io::Result<Self> {
        crate::util::files::make_private_dirs(home)?;
        match read_key(&home.join(KEY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::with(home, write_key(home, KEY, &draw_key(entropy))?))
            }
            read => Ok(Self::with(home, read?)),
        }
    }

    /// The key in `home`, if there is one. Nothing is made.
    pub fn read(home: &Path) -> io::Result<Option<Self>> {
        match read_key(&home.join(KEY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(Some(Self::with(home, read?))),
        }
    }

    fn with(home: &Path, key: Key) -> Self {
        Self { home: home.into(), key: keyed(&key), fleet: FleetKeys::of(home), ledger: Ledger::of(home) }
    }

    /// This user's signature of a run that is about to be made in `registry`, with that of its fleet where there is one.
    pub fn sign(&self, registry: &str, id: RunId, spec: &Spec, created_at: Timestamp) -> String {
        let message = message(registry, id, spec, created_at);
        let own = self.seal(&message);
        match self.fleet.get(registry) {
            Some(fleet) => format!("{own}{BETWEEN}{}", hex(&mac(&keyed(&fleet), &message).finalize().into_bytes())),
            None => own,
        }
    }

    /// The home that the key lies in.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// This user's seal on a message. Every kind of message begins with its name.
    pub(crate) fn seal(&self, message: &[u8]) -> String {
        hex(&mac(&self.key, message).finalize().into_bytes())
    }

    /// Whether the seal on a message is this user's.
    pub(crate) fn is_sealed(&self, message: &[u8], seal: &str) -> bool {
        is_sealed_by(&self.key, message, seal)
    }

    /// Whether this user, or a fleet that this user joined, signed the run for one of `registries`: the identities of one
    /// registry, its own and those of registries that it stands for.
    pub fn has_signed(&self, run: &Run, registries: &[String]) -> bool {
        let signature = run.signature.as_deref().unwrap_or_default();
        let (own, fleet) = signature.split_once(BETWEEN).unwrap_or((signature, ""));
        let is_signed_for = |registry: &String| {
            let message = message(registry, run.id, &run.spec, run.created_at);
            let is_of_fleet = || {
                !fleet.is_empty()
                    && self.fleet.get(registry).is_some_and(|key| is_sealed_by(&keyed(&key), &message, fleet))
            };
            (!own.is_empty() && self.is_sealed(&message, own)) || is_of_fleet()
        };
        !signature.is_empty() && registries.iter().any(is_signed_for)
    }

    /// Whether this user has allowed the run with `outlive trust` in one of `registries`.
    pub fn has_allowed(&self, run: &Run, registries: &[String]) -> bool {
        let message = |registry| message(registry, run.id, &run.spec, run.created_at);
        registries.iter().any(|registry| self.allowance(&message(registry)).exists())
    }

    /// Allows a run that another user made, exactly as it stands: another command needs another allowance.
    pub fn allow(&self, registry: &str, run: &Run) -> io::Result<()> {
        let path = self.allowance(&message(registry, run.id, &run.spec, run.created_at));
        crate::util::files::make_private_dirs(&self.home.join("trusted"))?;
        match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn allowance(&self, message: &[u8]) -> PathBuf {
        self.home.join("trusted").join(hex(&Sha256::digest(message)))
    }

    /// Notes that a run ended for good under this home: it is never executed again from here.
    pub fn note_final(&self, registry: &str, run: RunId) -> io::Result<()> {
        self.ledger.note(registry, run)
    }

    /// Whether a run ended for good under this home.
    pub fn has_ended(&self, registries: &[String], run: RunId) -> bool {
        registries.iter().any(|registry| self.ledger.has(registry, run))
    }

    /// The fleet key of this home for a registry, made if there is none. Tells whether this call made it.
    pub fn make_fleet_key(&self, registry: &str, entropy: &dyn Entropy) -> io::Result<(FleetKey, bool)> {
        self.fleet.create(registry, entropy)
    }

    /// The fleet key of this home for a registry.
    pub fn export_fleet_key(&self, registry: &str) -> io::Result<FleetKey> {
        self.fleet.export(registry)
    }

    /// Keeps the fleet key of another home. Refused where this home has another one for the registry.
    pub fn import_fleet_key(&self, key: &FleetKey) -> io::Result<()> {
        self.fleet.import(key)
    }
}

/// Whether there is a key, usable or not.
pub(crate) fn has_key(home: Option<&Path>) -> bool {
    home.is_some_and(|home| home.join(KEY).exists())
}

fn keyed(key: &Key) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length will do")
}

fn mac(key: &Hmac<Sha256>, message: &[u8]) -> Hmac<Sha256> {
    key.clone().chain_update(message)
}

fn is_sealed_by(key: &Hmac<Sha256>, message: &[u8], seal: &str) -> bool {
    unhex(seal).is_some_and(|seal| mac(key, message).verify_slice(&seal).is_ok())
}

/// What is signed: where and when the run was made, and every field of its spec. No field but the last can hold a line
/// break, so that no two runs are signed alike.
fn message(registry: &str, id: RunId, spec: &Spec, created_at: Timestamp) -> Vec<u8> {
    let registry = registry.replace('\n', " ");
    let mut message = format!("outlive run 2\n{registry}\n{id}\n{}\n", created_at.as_micros()).into_bytes();
    message.extend(serde_json::to_vec(spec).expect("a spec has string keys only"));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::run::{Actor, Lineage};
    use std::sync::Arc;

    const HERE: &str = "registry-a";

    fn run(kind: &str) -> Run {
        let spec = Spec::new(kind, Actor { user: "ada".into(), host: "here".into(), pid: 1 });
        Run::new(
            RunId::draw(Timestamp::from_micros(1), &SystemEntropy),
            Arc::new(spec),
            None,
            Timestamp::from_micros(1),
        )
    }

    fn sign(trust: &Trust, registry: &str, run: &Run) -> Option<String> {
        Some(trust.sign(registry, run.id, &run.spec, run.created_at))
    }

    fn covers_in(trust: &Trust, registries: &[String], run: &Run) -> bool {
        trust.has_signed(run, registries) || trust.has_allowed(run, registries)
    }

    fn covers(trust: &Trust, run: &Run) -> bool {
        covers_in(trust, &[HERE.into()], run)
    }

    #[test]
    fn s_01_s_02_only_what_this_user_signed_or_allowed_is_covered() {
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = Trust::open(mine.path(), &SystemEntropy).unwrap();
        let them = Trust::open(theirs.path(), &SystemEntropy).unwrap();
        let mut run = run("command");
        assert!(!covers(&me, &run), "an unsigned run was covered");
        for empty in ["", ".", "..", "00", "00.00"] {
            run.signature = Some(empty.into());
            assert!(!covers(&me, &run), "the signature `{empty}` was taken");
        }
        run.signature = sign(&them, HERE, &run);
        assert!(!covers(&me, &run), "another user's signature was taken");
        run.signature = sign(&me, HERE, &run);
        assert!(covers(&me, &run) && covers(&Trust::open(mine.path(), &SystemEntropy).unwrap(), &run));

        let mut forged = run.clone();
        Arc::make_mut(&mut forged.spec).kind = "rm -rf".into();
        assert!(!covers(&me, &forged), "a signature survived another spec");
        me.allow(HERE, &forged).unwrap();
        assert!(covers(&me, &forged) && !covers(&them, &forged));
        assert!(!covers_in(&me, &["elsewhere".into()], &forged), "an allowance counts in another registry");
        Arc::make_mut(&mut forged.spec).priority = 1;
        assert!(!covers(&me, &forged), "an allowance survived another spec");
    }

    #[test]
    fn t8_05_signature_covers_registry_creation_and_lineage() {
        let home = tempfile::tempdir().unwrap();
        let me = Trust::open(home.path(), &SystemEntropy).unwrap();
        let mut run = run("command");
        run.signature = sign(&me, HERE, &run);
        assert!(covers(&me, &run));
        assert!(!covers_in(&me, &["registry-b".into()], &run), "the signature counts in another registry");
        assert!(!covers_in(&me, &[], &run), "the signature counts in a copy, which has no name");
        assert!(covers_in(&me, &["registry-b".into(), HERE.into()], &run), "an heir does not know what it inherited");

        let changed = |change: fn(&mut Run)| {
            let mut forged = run.clone();
            change(&mut forged);
            covers(&me, &forged)
        };
        assert!(!changed(|run| run.created_at = Timestamp::from_micros(2)), "another time of creation is covered");
        assert!(!changed(|run| Arc::make_mut(&mut run.spec).created_by.user = "root".into()), "another author is");
        assert!(!changed(|run| run.id = RunId::draw(Timestamp::from_micros(1), &SystemEntropy)), "another id is");
        let lineage = |run: &mut Run| {
            let (rerun_of, origin) = (run.id, run.id);
            Arc::make_mut(&mut run.spec).lineage = Some(Lineage { rerun_of, origin, generation: 1, reason: None });
        };
        assert!(!changed(lineage), "another lineage is covered");
    }

    #[test]
    fn t7_05_homes_with_one_fleet_key_trust_each_other() {
        let homes = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let [maker, worker, stranger] = homes.each_ref().map(|home| Trust::open(home.path(), &SystemEntropy).unwrap());
        let mut before = run("command");
        before.signature = sign(&maker, HERE, &before);
        let (key, is_new) = maker.make_fleet_key(HERE, &SystemEntropy).unwrap();
        assert!(is_new && !maker.make_fleet_key(HERE, &SystemEntropy).unwrap().1);
        let mut made = run("command");
        made.signature = sign(&maker, HERE, &made);
        assert!(covers(&maker, &made) && !covers(&worker, &made));

        worker.import_fleet_key(&key.to_string().parse().unwrap()).unwrap();
        assert!(covers(&worker, &made), "a member of the fleet does not trust another");
        assert!(covers(&maker, &before) && !covers(&worker, &before), "what was made before the fleet is trusted");
        assert!(!covers(&stranger, &made));
        let mut elsewhere = run("command");
        elsewhere.signature = sign(&maker, "registry-b", &elsewhere);
        assert!(!covers_in(&worker, &["registry-b".into()], &elsewhere), "a fleet key counts in another registry");

        let (other, _) = stranger.make_fleet_key(HERE, &SystemEntropy).unwrap();
        assert_eq!(worker.import_fleet_key(&other).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(covers(&worker, &made), "a refused import replaced the key");
        assert!("outlive-fleet-1.x.00".parse::<FleetKey>().is_err() && "".parse::<FleetKey>().is_err());
        assert!(!format!("{key:?}").contains(&key.to_string()[30..]), "a fleet key is printed for debugging");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        Trust::open(home.path(), &SystemEntropy).unwrap();
        std::fs::set_permissions(home.path().join(KEY), std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = Trust::open(home.path(), &SystemEntropy).expect_err("a key that others can read was used");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
