//! Masking: what of a run is hidden before it is stored.
//!
//! A registry may be shared, copied and shown, so a spec bears no secrets. A later attempt needs them, so the words of a
//! command in which something was masked are kept in its maker's home: see [`super::argv_vault`]. Checkpoints, progress
//! documents and artifacts are the program's own and left as they are.

use super::trust::Trust;
use super::{argv_vault, environment};
use crate::lifecycle::{Outcome, OwnerEnd, Report};
use crate::model::id::RunId;
use crate::model::run::{Arg, Interruption, Progress, Spec, Variables, Withheld, mask_argv};
use crate::redact::Redactor;

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
    let masked = mask_argv(redactor, &command.argv);
    if masked == command.argv {
        return None;
    }
    spec.withheld = spec.withheld.or(Some(Withheld::Secrets));
    Some(std::mem::replace(&mut command.argv, masked))
}

/// Masks what a spec that is about to be made must not hold, and keeps the words of its command where it can.
/// `registry` names the registry that it is to be made in. With `durable` the environment survives a power failure.
pub(crate) fn draft(
    redactor: &Redactor,
    trust: Option<&Trust>,
    registry: impl FnOnce() -> Option<String>,
    id: RunId,
    draft: &mut Spec,
    durable: bool,
) {
    let sealed = take_sealed(redactor, draft);
    if let (Some(variables), Some(trust)) = (sealed, trust) {
        // Without it a later attempt has the environment of the process that executes it.
        let _ = environment::keep(trust, &draft.created_by.host, id, variables, durable);
    }
    let masked = spec(redactor, draft);
    if let (Some(argv), Some(trust), Some(Withheld::Secrets)) = (masked, trust, draft.withheld) {
        // Without it the run cannot be resumed, but it can be run.
        let _ = argv_vault::keep(trust, registry(), id, draft, argv);
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
pub(crate) fn end(redactor: &Redactor, end: OwnerEnd) -> OwnerEnd {
    match end {
        OwnerEnd::Finished(Outcome::Failed { error_type, error_message, permanent }) => {
            let error_message = redactor.text(&error_message);
            OwnerEnd::Finished(Outcome::Failed { error_type, error_message, permanent })
        }
        OwnerEnd::Interrupted(Interruption { signal, reason }) => {
            OwnerEnd::Interrupted(Interruption { signal, reason: redactor.text(&reason) })
        }
        end @ OwnerEnd::Finished(Outcome::Succeeded { .. } | Outcome::Cancelled) => end,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use crate::model::run::Command;
    use crate::testing::spec as some_spec;

    fn secretive() -> Spec {
        let argv = ["deploy", "--password", "canary-pw", "--url=https://u:canary-url@h/"];
        let argv = argv.iter().map(|word| Arg::Text((*word).into())).collect();
        let mut spec = some_spec("command");
        spec.command = Some(Command::new(argv, Arg::Text("/".into())));
        spec.labels.insert("api_key".into(), "canary-label".into());
        spec
    }

    #[test]
    fn s_28_words_that_are_not_utf8_are_masked_and_survive() {
        let word = std::ffi::OsStr::from_bytes(b"--token=canary\xff");
        let masked = mask_argv(&Redactor::default(), &[word.into(), std::ffi::OsStr::from_bytes(b"caf\xff").into()]);
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
