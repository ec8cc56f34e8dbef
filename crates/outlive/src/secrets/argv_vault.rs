//! The argv vault: command lines with their secrets, kept in their maker's home.
//!
//! Each is sealed with the key that signs specs, for the run and the spec that it belongs to.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::trust::Trust;
use crate::model::id::RunId;
use crate::model::run::{Arg, Run, Spec};
use crate::model::time::Timestamp;
use crate::util::files::{self, Prepared};

const DIRECTORY: &str = "argv";
/// How old they must be before they count as left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(3_600);
/// A command line has at most 2 MiB by default, and hexadecimal doubles it.
const LIMIT: u64 = 8 << 20;

/// A command line as it was, with the seal of its maker.
#[derive(Serialize, Deserialize)]
struct SealedArgv {
    argv: Vec<Arg>,
    seal: String,
    /// The registry that the run was to be made in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    registry: Option<String>,
}

/// Keeps a command line as it was. It is on the disk when this returns.
pub(crate) fn keep(trust: &Trust, registry: Option<String>, id: RunId, spec: &Spec, argv: Vec<Arg>) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let path = trust.home().join(DIRECTORY);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    let dir = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    let seal = trust.seal(&message(id, spec, &argv)?);
    let bytes = serde_json::to_vec(&SealedArgv { argv, seal, registry })?;
    Prepared::new(&dir, &bytes, Mode::from_raw_mode(0o600), true)?.publish(&dir, &name(id))?;
    Ok(rustix::fs::fsync(&dir)?)
}

/// The command line of a run as it was, if this user kept it for exactly this spec.
pub(crate) fn kept(trust: &Trust, run: &Run) -> Option<Vec<Arg>> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::open(trust.home().join(DIRECTORY), flags, Mode::empty()).ok()?;
    let kept: SealedArgv = serde_json::from_slice(&files::read(&dir, &name(run.id), LIMIT).ok()?).ok()?;
    trust.is_sealed(&message(run.id, &run.spec, &kept.argv).ok()?, &kept.seal).then_some(kept.argv)
}

/// Forgets the command line of a run as it was. What is not there is forgotten already.
pub(crate) fn forget(home: &Path, id: RunId) -> io::Result<()> {
    match std::fs::remove_file(home.join(DIRECTORY).join(name(id))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The runs whose command lines were kept a while ago for a registry of one of these names: one that the registry does
/// not have was never recorded, because its maker died before that.
pub(crate) fn kept_long_ago(home: &Path, registry: &[String], now: Timestamp) -> Vec<RunId> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let Ok(dir) = rustix::fs::open(home.join(DIRECTORY), flags, Mode::empty()) else { return Vec::new() };
    let is_ours = |id: &RunId| {
        let kept = files::read(&dir, &name(*id), LIMIT).ok();
        let kept = kept.and_then(|bytes| serde_json::from_slice::<SealedArgv>(&bytes).ok());
        kept.and_then(|kept| kept.registry).is_some_and(|name| registry.contains(&name))
    };
    let is_old = |id: &RunId| {
        let stat = rustix::fs::statat(&dir, name(*id), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
        let at = |stat: rustix::fs::Stat| Timestamp::from_micros(stat.st_mtime.saturating_mul(1_000_000));
        stat.is_ok_and(|stat| now.since(at(stat)) > LEFT_BEHIND)
    };
    let names = files::names(&dir).unwrap_or_default();
    let ids = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok());
    ids.filter(is_old).filter(is_ours).collect()
}

fn name(id: RunId) -> PathBuf {
    PathBuf::from(format!("{id}.json"))
}

/// What is sealed: the words, and the run and spec that they belong to.
fn message(id: RunId, spec: &Spec, argv: &[Arg]) -> io::Result<Vec<u8>> {
    let mut message = format!("outlive argv 1\n{id}\n").into_bytes();
    message.extend(serde_json::to_vec(&(spec, argv))?);
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::model::id::SystemEntropy;
    use crate::model::run::{Command, Withheld};
    use crate::redact::Redactor;
    use crate::secrets::masking;
    use crate::testing::{pending, spec as some_spec};

    fn secretive() -> Spec {
        let argv = ["deploy", "--password", "canary-pw", "--url=https://u:canary-url@h/"];
        let argv = argv.iter().map(|word| Arg::Text((*word).into())).collect();
        let mut spec = some_spec("command");
        spec.command = Some(Command::new(argv, Arg::Text("/".into())));
        spec.labels.insert("api_key".into(), "canary-label".into());
        spec
    }

    #[test]
    fn s_28_command_is_revealed_only_to_its_keeper_for_its_spec() {
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = Trust::open(mine.path(), &SystemEntropy).unwrap();
        let them = Trust::open(theirs.path(), &SystemEntropy).unwrap();
        let mut masked = secretive();
        let original = masking::spec(&Redactor::default(), &mut masked).unwrap();
        assert_eq!(masked.withheld, Some(Withheld::Secrets));
        assert!(!serde_json::to_string(&masked).unwrap().contains("canary"));
        let run = pending(masked, Timestamp::from_micros(1), &SystemEntropy);
        keep(&me, None, run.id, &run.spec, original.clone()).unwrap();
        let file = mine.path().join(DIRECTORY).join(name(run.id));
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(kept(&me, &run), Some(original.clone()));

        let mut forged = run.clone();
        Arc::make_mut(&mut forged.spec).kind = "other".into();
        assert_eq!(kept(&me, &forged), None, "the words were given to another spec");
        std::fs::create_dir(theirs.path().join(DIRECTORY)).unwrap();
        std::fs::copy(&file, theirs.path().join(DIRECTORY).join(name(run.id))).unwrap();
        assert_eq!(kept(&them, &run), None, "another user's seal was taken");
        let edited = std::fs::read_to_string(&file).unwrap().replace("canary-pw", "other-pw");
        std::fs::write(&file, edited).unwrap();
        assert_eq!(kept(&me, &run), None, "edited words were given back");

        forget(mine.path(), run.id).unwrap();
        forget(mine.path(), run.id).unwrap();
        assert!(!file.exists());
    }
}
