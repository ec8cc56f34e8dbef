//! Trust: whose specs this user executes.
//!
//! A registry may come with a cloned repository, and a shared one may be written by others. Whoever looks at it must
//! not execute its past. So every spec is signed with a key that lies in its maker's home and nowhere else, and only
//! what bears this user's signature, or what this user has looked at and allowed, is ever executed.

use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::hex::{hex, unhex};
use crate::id::{Entropy, RunId};
use crate::run::{Run, Spec};

const KEY: &str = "key";
const KEY_BYTES: usize = 32;

/// Makes specs this user's own, and knows which others this user allowed.
#[derive(Clone)]
pub struct Trust {
    home: PathBuf,
    key: [u8; KEY_BYTES],
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("home", &self.home).finish_non_exhaustive()
    }
}

impl Trust {
    /// The key in `home`, made if there is none.
    pub fn open(home: &Path, entropy: &dyn Entropy) -> io::Result<Self> {
        crate::store::files::make_private_dirs(home)?;
        let path = home.join(KEY);
        let key = match read_key(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_key(home, &path, entropy)?,
            read => read?,
        };
        Ok(Self { home: home.into(), key })
    }

    /// The key in `home`, if there is one. Nothing is made.
    pub fn read(home: &Path) -> io::Result<Option<Self>> {
        match read_key(&home.join(KEY)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => Ok(Some(Self { home: home.into(), key: read? })),
        }
    }

    /// This user's signature of a spec.
    pub fn sign(&self, id: RunId, spec: &Spec) -> String {
        self.seal(&message(id, spec))
    }

    /// The home that the key lies in.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// This user's seal on a message. Every kind of message begins with its name.
    pub(crate) fn seal(&self, message: &[u8]) -> String {
        hex(&self.mac(message).finalize().into_bytes())
    }

    /// Whether the seal on a message is this user's.
    pub(crate) fn is_sealed(&self, message: &[u8], seal: &str) -> bool {
        unhex(seal).is_some_and(|seal| self.mac(message).verify_slice(&seal).is_ok())
    }

    /// Whether this user made the run, or has allowed it.
    pub fn covers(&self, run: &Run) -> bool {
        let signed = |signature: &str| self.is_sealed(&message(run.id, &run.spec), signature);
        run.signature.as_deref().is_some_and(signed) || self.allowance(run).exists()
    }

    /// Allows a run that somebody else made, exactly as it stands: another command needs to be allowed anew.
    pub fn allow(&self, run: &Run) -> io::Result<()> {
        let path = self.allowance(run);
        crate::store::files::make_private_dirs(&self.home.join("trusted"))?;
        match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn allowance(&self, run: &Run) -> PathBuf {
        self.home.join("trusted").join(hex(&Sha256::digest(message(run.id, &run.spec))))
    }

    fn mac(&self, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.key).expect("a key of any length will do");
        mac.update(message);
        mac
    }
}

/// Whether there is a key, usable or not.
pub(crate) fn has_key(home: Option<&Path>) -> bool {
    home.is_some_and(|home| home.join("key").exists())
}

/// What is signed: the run and every field of its spec.
fn message(id: RunId, spec: &Spec) -> Vec<u8> {
    let mut message = format!("outlive spec 1\n{id}\n").into_bytes();
    message.extend(serde_json::to_vec(spec).expect("a spec has string keys only"));
    message
}

fn read_key(path: &Path) -> io::Result<[u8; KEY_BYTES]> {
    use std::io::Read;
    let nofollow = i32::try_from((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits()).unwrap_or(0);
    let mut file = std::fs::OpenOptions::new().read(true).custom_flags(nofollow).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other(format!("the signing key `{}` is not a file", path.display())));
    }
    if found.mode() & 0o077 != 0 || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "the signing key `{}` can be read by others: `chmod 600` it, or delete it to get another",
                path.display()
            ),
        ));
    }
    let mut key = [0; KEY_BYTES];
    if found.len() != KEY_BYTES as u64 || file.read_exact(&mut key).is_err() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the signing key `{}` is damaged: delete it to get another", path.display()),
        ));
    }
    Ok(key)
}

fn make_key(home: &Path, path: &Path, entropy: &dyn Entropy) -> io::Result<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&entropy.draw().to_ne_bytes());
    key[16..].copy_from_slice(&entropy.draw().to_ne_bytes());
    let dir =
        rustix::fs::open(home, rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())?;
    let prepared = crate::store::files::Prepared::new(&dir, &key, rustix::fs::Mode::from_raw_mode(0o600), true)?;
    prepared.publish(&dir, Path::new(KEY))?;
    // Where two processes made one at once, the first one's counts.
    read_key(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SystemEntropy;
    use crate::run::Actor;
    use crate::time::Timestamp;
    use std::sync::Arc;

    fn run(kind: &str) -> Run {
        let spec = Spec::new(kind, Actor { user: "ada".into(), host: "here".into(), pid: 1 });
        Run::new(
            RunId::draw(Timestamp::from_micros(1), &SystemEntropy),
            Arc::new(spec),
            None,
            Timestamp::from_micros(1),
        )
    }

    #[test]
    fn s_01_s_02_only_what_this_user_signed_or_allowed_is_covered() {
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = Trust::open(mine.path(), &SystemEntropy).unwrap();
        let them = Trust::open(theirs.path(), &SystemEntropy).unwrap();
        let mut run = run("command");
        assert!(!me.covers(&run), "an unsigned run was covered");
        run.signature = Some(them.sign(run.id, &run.spec));
        assert!(!me.covers(&run), "somebody else's signature was taken");
        run.signature = Some(me.sign(run.id, &run.spec));
        assert!(me.covers(&run) && Trust::open(mine.path(), &SystemEntropy).unwrap().covers(&run));

        let mut forged = run.clone();
        Arc::make_mut(&mut forged.spec).kind = "rm -rf".into();
        assert!(!me.covers(&forged), "a signature survived another spec");
        me.allow(&forged).unwrap();
        assert!(me.covers(&forged) && !them.covers(&forged));
        Arc::make_mut(&mut forged.spec).priority = 1;
        assert!(!me.covers(&forged), "an allowance survived another spec");
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
