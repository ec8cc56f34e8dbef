//! Runs that the worker which stands by adds for this process, so that it need not open the registry.

use std::ffi::OsString;

use outlive::discovery::Location;
use outlive::error::Error;
use outlive::id::{RunId, SystemEntropy};
use outlive::registry::RequestedRun;
use outlive::run::Spec;
use outlive::time::{Clock, SystemClock};

use super::{Add, Added, Name};
use crate::call::{Context, Form};
use crate::exec::flags::SpecFlags;
use crate::operations::wait::Ended;
use crate::workers::socket::{Address, RequestStatus, Worker};

/// The registry and the run of a call that says nothing else, `outlive queue add [--wait] -- COMMAND`: so most are, and to
/// read one needs no table of flags.
pub fn plain_call(words: &[OsString]) -> Option<(Option<String>, Add)> {
    let (registry, rest) = match words.get(1..)? {
        [flag, registry, rest @ ..] if flag == "--registry" => (Some(registry.to_str()?.to_owned()), rest),
        rest => (None, rest),
    };
    let [noun, verb, rest @ ..] = rest else { return None };
    let (wait, rest) = match rest {
        [flag, rest @ ..] if flag == "--wait" => (true, rest),
        rest => (false, rest),
    };
    match rest {
        [dashes, argv @ ..] if noun == "queue" && verb == "add" && dashes == "--" && !argv.is_empty() => {
            let spec = SpecFlags { argv: argv.to_vec(), ..SpecFlags::default() };
            Some((registry, Add { wait, spec, ..Add::default() }))
        }
        _ => None,
    }
}

/// Has the worker that stands by add a run. None where none does, or the call says more than a worker is asked for: nothing
/// was added then. A run of which the worker has not said what became of it is added here, under the same id.
pub(super) async fn add(add: &Add, context: &Context) -> Result<Option<Added>, Error> {
    if !add.is_simple(context) {
        return Ok(None);
    }
    let Location::Directory(path) = context.location()? else { return Ok(None) };
    let Some(address) = Address::of_worker(&path) else { return Ok(None) };
    let spec = Spec { priority: add.priority, share: add.share.clone(), ..add.spec.unsigned_spec(context)? };
    if !spec.keys.is_empty() {
        return Ok(None);
    }
    let run = RequestedRun::new(RunId::draw(SystemClock.now(), &SystemEntropy), spec);
    let (id, name) = (run.id(), run.spec().name.clone());
    let worker = match Worker::ask(&address, &run) {
        RequestStatus::Refused => return Ok(None),
        RequestStatus::Added(worker) => Some(worker),
        RequestStatus::Unknown => None,
    };
    let registry = if worker.is_some() {
        context.tell_home(&path);
        None
    } else {
        // The socket is closed by now: the worker makes no run any more that this process fails to make.
        let registry = context.registry().await?;
        registry.enqueue_requested(run, std::process::id()).await?;
        Some(registry)
    };
    let mut added = Added { runs: vec![Name { id, name, made: true }], ended: None, answered: None };
    if add.wait {
        added.answered = worker.and_then(|worker| worker.end());
        if added.answered.is_none() {
            let registry = match registry {
                Some(registry) => registry,
                None => context.registry().await?,
            };
            added.ended = Some(Ended::of(context, vec![(&registry, id)], false, None).await?);
        }
    }
    Ok(Some(added))
}

impl Add {
    /// Whether it describes one command that may be executed at once, for people.
    fn is_simple(&self, context: &Context) -> bool {
        let is_of_queue = self.entry.is_any() || self.ensure_worker || self.file.is_some() || self.input.is_some();
        let is_later =
            self.not_before.is_some() || self.every.is_some() || self.cron.is_some() || self.missed.is_some();
        let waits = !self.needs.is_empty() || !self.needs_any.is_empty();
        let is_here = context.form() == Form::Text && !context.is_served();
        is_here && !is_of_queue && !is_later && !waits && !self.spec.argv.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn a_plain_call_of_queue_add_is_read_as_any_other() {
        let read = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        for line in [
            "outlive queue add -- true",
            "outlive queue add --wait -- make -j --name x -- --json",
            "outlive --registry sqlite:/r queue add -- true",
        ] {
            let words = read(line);
            let (registry, add) = plain_call(&words).unwrap();
            let tree = clap::Command::new("outlive").arg(clap::Arg::new("registry").long("registry")).subcommand(
                clap::Command::new("queue").subcommand(<Add as clap::Args>::augment_args(clap::Command::new("add"))),
            );
            let matches = tree.try_get_matches_from(&words).unwrap();
            assert_eq!(matches.get_one::<String>("registry"), registry.as_ref(), "{line}");
            let (_, matches) = matches.subcommand().unwrap().1.subcommand().unwrap();
            assert_eq!(format!("{add:?}"), format!("{:?}", Add::from_arg_matches(matches).unwrap()), "{line}");
        }
        for line in ["outlive queue add true", "outlive queue add --", "outlive queue add --name x -- true", "outlive"]
        {
            assert!(plain_call(&read(line)).is_none(), "{line}");
        }
    }
}
