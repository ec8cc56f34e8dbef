//! Concealment: what of a run is masked before it is stored, and where a command is kept as it was.
//!
//! A registry may be shared, copied and shown, so a spec bears no secrets. Whoever goes on with a run needs them, so the
//! words of a command in which something was masked are kept in its maker's home, sealed with the key that signs specs.
//! Checkpoints, progress documents and artifacts are the program's own and left as they are.

use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::environment;
use crate::id::RunId;
use crate::redact::Redactor;
use crate::registry::Registry;
use crate::run::{Arg, Interruption, Progress, Run, Spec, Variables, Withheld};
use crate::spool::OwnEnd;
use crate::store::files::{self, Prepared};
use crate::time::Timestamp;
use crate::transition::{Report, Verdict};
use crate::trust::Trust;

const DIRECTORY: &str = "argv";
/// How old they must be before they count as left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(3_600);
/// A command line has at most 2 MiB by default, and hexadecimal doubles it.
const LIMIT: u64 = 8 << 20;

/// Words with their secrets masked.
pub(crate) fn argv(redactor: &Redactor, argv: &[Arg]) -> Vec<Arg> {
    let words: Vec<Vec<u8>> = argv.iter().map(|word| word.to_os().into_vec()).collect();
    let masked = redactor.argv(&words);
    masked.into_iter().map(|word| std::ffi::OsString::from_vec(word).as_os_str().into()).collect()
}

/// Masks what a spec must not hold. Answers with the words of its command, if any was masked.
pub(crate) fn spec(redactor: &Redactor, spec: &mut Spec) -> Option<Vec<Arg>> {
    for (label, value) in &mut spec.labels {
        *value = redactor.named(label, value);
    }
    // What would be executed with a secret gone is not executed at all.
    spec.notify = spec.notify.take().filter(|command| redactor.text(command) == *command);
    let command = spec.command.as_mut()?;
    if spec.withheld == Some(Withheld::Arguments) {
        command.argv.truncate(1);
    }
    command.env.retain(|name, value| redactor.named(name, value) == *value);
    let masked = argv(redactor, &command.argv);
    if masked == command.argv {
        return None;
    }
    spec.withheld = spec.withheld.or(Some(Withheld::Secrets));
    Some(std::mem::replace(&mut command.argv, masked))
}

/// Masks what a spec that is about to be made must not hold, and keeps the words of its command where it can.
/// `registry` names the registry that it is to be made in.
pub(crate) fn draft(
    redactor: &Redactor,
    trust: Option<&Trust>,
    registry: impl FnOnce() -> Option<String>,
    id: RunId,
    draft: &mut Spec,
) {
    let sealed = take_sealed(redactor, draft);
    if let (Some(variables), Some(trust)) = (sealed, trust) {
        // Without it a later attempt has the environment of the process that executes it.
        let _ = environment::keep(trust, &draft.created_by.host, id, variables);
    }
    let masked = spec(redactor, draft);
    if let (Some(argv), Some(trust), Some(Withheld::Secrets)) = (masked, trust, draft.withheld) {
        // Without it the run cannot be resumed, but it can be run.
        let _ = keep(trust, registry(), id, draft, argv);
    }
}

/// The variables to keep in the home: those that the spec is made with, and the secrets among those that it lists.
fn take_sealed(redactor: &Redactor, draft: &mut Spec) -> Option<Variables> {
    let command = draft.command.as_mut()?;
    let mut sealed = command.sealed.take().unwrap_or_default();
    for (name, value) in command.env.iter().filter(|(name, value)| redactor.named(name, value) != **value) {
        sealed.set(name, value);
    }
    (!sealed.is_empty()).then_some(sealed)
}

/// Masks what an owner says of its run.
pub(crate) fn report(redactor: &Redactor, report: Report) -> Report {
    let progress = report
        .progress
        .map(|progress| Progress { message: progress.message.map(|message| redactor.text(&message)), ..progress });
    Report { progress, ..report }
}

/// Masks how an owner says its run ended.
pub(crate) fn end(redactor: &Redactor, end: OwnEnd) -> OwnEnd {
    match end {
        OwnEnd::Finished(Verdict::Failed { error_type, error_message }) => {
            OwnEnd::Finished(Verdict::Failed { error_type, error_message: redactor.text(&error_message) })
        }
        OwnEnd::Interrupted(Interruption { signal, reason }) => {
            OwnEnd::Interrupted(Interruption { signal, reason: redactor.text(&reason) })
        }
        end @ OwnEnd::Finished(Verdict::Succeeded | Verdict::Cancelled) => end,
    }
}

impl Registry {
    /// The words to execute: those on record, or, where secrets are masked in them, those in the maker's home. None
    /// where this user has not got them, or the command is not the one they were kept for.
    pub fn original_argv(&self, run: &Run) -> Option<Vec<Arg>> {
        let command = run.spec.command.as_ref()?;
        match run.spec.withheld {
            None => Some(command.argv.clone()),
            Some(Withheld::Secrets) => kept(self.trust()?, run),
            Some(Withheld::Arguments) => None,
        }
    }

    /// Deletes what is kept in the home for a run: the words of its command with their secrets, and its environment.
    /// Without the words it cannot be resumed.
    pub fn forget_sealed(&self, id: RunId) -> io::Result<()> {
        let Some(trust) = self.trust() else { return Ok(()) };
        environment::forget(trust.home(), id).and(forget(trust.home(), id))
    }

    /// The runs whose words were kept in the home and that this registry does not know, a while later: whoever was to
    /// record them died before that.
    pub async fn left_argv(&self) -> Vec<RunId> {
        let Some(trust) = self.trust() else { return Vec::new() };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(dir) = rustix::fs::open(trust.home().join(DIRECTORY), flags, Mode::empty()) else { return Vec::new() };
        let (own, now) = (self.names(), self.clock().now());
        let is_ours = |id: &RunId| {
            let kept = files::read(&dir, &name(*id), LIMIT).ok();
            let kept = kept.and_then(|bytes| serde_json::from_slice::<Kept>(&bytes).ok());
            kept.and_then(|kept| kept.registry).is_some_and(|registry| own.contains(&registry))
        };
        let is_old = |id: &RunId| {
            let stat = rustix::fs::statat(&dir, name(*id), rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
            let at = |stat: rustix::fs::Stat| Timestamp::from_micros(stat.st_mtime.saturating_mul(1_000_000));
            stat.is_ok_and(|stat| now.since(at(stat)) > LEFT_BEHIND)
        };
        let names = files::names(&dir).unwrap_or_default();
        let ids = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok());
        let mut left = Vec::new();
        for id in ids.filter(is_old).filter(is_ours) {
            // One that cannot be understood is known all the same.
            if self.store().get(&[id]).await.is_ok_and(|found| found.is_empty()) {
                left.push(id);
            }
        }
        left
    }
}

/// A command line as it was, with the seal of whoever kept it.
#[derive(Serialize, Deserialize)]
struct Kept {
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
    let bytes = serde_json::to_vec(&Kept { argv, seal, registry })?;
    Prepared::new(&dir, &bytes, Mode::from_raw_mode(0o600), true)?.publish(&dir, &name(id))?;
    Ok(rustix::fs::fsync(&dir)?)
}

/// The command line of a run as it was, if this user kept it for exactly this spec.
pub(crate) fn kept(trust: &Trust, run: &Run) -> Option<Vec<Arg>> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let dir = rustix::fs::open(trust.home().join(DIRECTORY), flags, Mode::empty()).ok()?;
    let kept: Kept = serde_json::from_slice(&files::read(&dir, &name(run.id), LIMIT).ok()?).ok()?;
    trust.is_sealed(&message(run.id, &run.spec, &kept.argv).ok()?, &kept.seal).then_some(kept.argv)
}

/// Forgets the command line of a run as it was. What is not there is forgotten already.
pub(crate) fn forget(home: &Path, id: RunId) -> io::Result<()> {
    match std::fs::remove_file(home.join(DIRECTORY).join(name(id))) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
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
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use super::*;
    use crate::id::SystemEntropy;
    use crate::run::Command;
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
    fn s_28_a_command_is_given_back_only_to_whoever_kept_it_and_only_for_its_spec() {
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let me = Trust::open(mine.path(), &SystemEntropy).unwrap();
        let them = Trust::open(theirs.path(), &SystemEntropy).unwrap();
        let mut masked = secretive();
        let original = spec(&Redactor::default(), &mut masked).unwrap();
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
        assert_eq!(kept(&them, &run), None, "somebody else's seal was taken");
        let edited = std::fs::read_to_string(&file).unwrap().replace("canary-pw", "other-pw");
        std::fs::write(&file, edited).unwrap();
        assert_eq!(kept(&me, &run), None, "edited words were given back");

        forget(mine.path(), run.id).unwrap();
        forget(mine.path(), run.id).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn s_28_words_that_are_not_utf8_are_masked_and_survive() {
        let word = std::ffi::OsStr::from_bytes(b"--token=canary\xff");
        let masked = argv(&Redactor::default(), &[word.into(), std::ffi::OsStr::from_bytes(b"caf\xff").into()]);
        assert_eq!(masked[0], Arg::Text("--token=[redacted]".into()));
        assert_eq!(masked[1].to_os().as_bytes(), b"caf\xff");
    }

    #[test]
    fn s_31_a_spec_that_is_printed_for_debugging_tells_no_secret() {
        let spec = secretive();
        let printed = format!("{spec:?} {spec:#?} {:?}", spec.command.as_ref().unwrap().argv[3]);
        assert!(printed.contains("deploy") && printed.contains("[redacted]"));
        assert!(!printed.contains("canary"), "{printed}");
    }
}
