//! The spec of a run: what is to be done, and under which promises.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Actor, Command, DEPTH_LIMIT, DOCUMENT_LIMIT, HEAVIEST, Key, LIST_LIMIT, NAME_LIMIT, Output, Readiness, Share,
    TraceParent, Withheld, is_deeper,
};
use crate::model::id::RunId;
use crate::model::policy::{LONGEST, Policy};
use crate::model::schedule::Schedule;
use crate::model::step;
use crate::model::time::Timestamp;
use crate::redact::Redactor;

/// What is to be done, and under which promises. Made by [`Registry::spec`](crate::Registry::spec), changed, then
/// started or enqueued; never changed afterwards.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// What people call it. Need not be unique; the newest bearer is meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What sort of work it is: `command`, `migrate`, `train`.
    pub kind: String,
    /// Free marks to find it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The command, for runs that are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub command: Option<Command>,
    /// What the work is about, for the handler of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// What of the command is not here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub withheld: Option<Withheld>,
    /// Lower is claimed first.
    #[serde(default)]
    pub priority: i32,
    /// The share that it counts against, among runs of its priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// Not claimed before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// It waits in a queue for a worker's slot. One that does not was started by its owner, and goes on at once when it is
    /// tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub queued: bool,
    /// Not claimed before these have ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// When it is followed by another run like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// What it shares with others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<Key>,
    /// What it was promised.
    #[serde(default)]
    pub policy: Policy,
    /// Where it comes from, if it repeats another run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// The step of another run that it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub step: Option<Step>,
    /// Where its artifacts are, for the sweeper.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Nothing of what it writes is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[doc(hidden)]
    pub no_log: bool,
    /// In the background it has a terminal of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[doc(hidden)]
    pub tty: bool,
    /// In the background its standard input stays open for `outlive send`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[doc(hidden)]
    pub stdin: bool,
    /// By what it is known that an attempt is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub ready: Option<Readiness>,
    /// What a shell executes when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[doc(hidden)]
    pub notify: Option<String>,
    /// The span of a distributed trace that it was made in. Commands are given it as `TRACEPARENT`, handlers with their job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<TraceParent>,
    /// Who asked for it.
    pub created_by: Actor,
}

impl Spec {
    /// A spec of the given kind with default promises.
    pub fn new(kind: impl Into<String>, created_by: Actor) -> Self {
        Self {
            name: None,
            kind: kind.into(),
            labels: BTreeMap::new(),
            command: None,
            input: None,
            withheld: None,
            priority: 0,
            share: None,
            not_before: None,
            queued: false,
            after: Vec::new(),
            schedule: None,
            keys: Vec::new(),
            policy: Policy::default(),
            lineage: None,
            step: None,
            output: None,
            no_log: false,
            tty: false,
            stdin: false,
            ready: None,
            notify: None,
            traceparent: None,
            created_by,
        }
    }

    /// The spec with what its handler is to be given.
    pub fn with_input(self, input: &impl Serialize) -> Result<Self, InvalidSpec> {
        let written = serde_json::to_value(input);
        let input =
            written.map_err(|error| InvalidSpec(format!("an input that cannot be written as JSON: {error}")))?;
        Ok(Self { input: Some(input), ..self })
    }

    /// Refuses what no store should hold: empty, overlong or unprintable words, impossible limits.
    pub fn check(&self) -> Result<(), InvalidSpec> {
        word("kind", &self.kind)?;
        if let Some(name) = &self.name {
            word("name", name)?;
            not_an_address(name)?;
        }
        if self.labels.len().max(self.keys.len()).max(self.after.len()) > LIST_LIMIT {
            return Err(InvalidSpec(format!("more than {LIST_LIMIT} labels, keys or runs to wait for")));
        }
        let parents: BTreeSet<RunId> = self.after.iter().map(|after| after.run).collect();
        if parents.len() < self.after.len() {
            return Err(InvalidSpec("it is to wait for the same run twice".into()));
        }
        if let Some(step) = &self.step {
            word("step", &step.name)?;
        }
        if let Some(share) = &self.share {
            word("share", &share.tenant)?;
            if !(1..=HEAVIEST).contains(&share.weight) {
                return Err(InvalidSpec(format!("a share of weight {}; it is 1 to {HEAVIEST}", share.weight)));
            }
        }
        if self.input.as_ref().is_some_and(|input| is_deeper(input, DEPTH_LIMIT)) {
            return Err(InvalidSpec(format!("an input that is nested more than {DEPTH_LIMIT} levels deep")));
        }
        let size = self.input.as_ref().map_or(0, |input| input.to_string().len());
        if size > DOCUMENT_LIMIT {
            return Err(InvalidSpec(format!(
                "an input of {size} bytes; the longest is {DOCUMENT_LIMIT}: store it elsewhere and pass where it is"
            )));
        }
        if self.step.is_some() != (self.kind == step::KIND) {
            return Err(InvalidSpec(format!(
                "the kind `{}` is for the steps of a run, made with `outlive step`",
                step::KIND
            )));
        }
        for (label, value) in &self.labels {
            word("label", label)?;
            if !value.is_empty() {
                word("label value", value)?;
            }
        }
        for key in &self.keys {
            word("key", &key.name)?;
            if key.limit == 0 {
                return Err(InvalidSpec(format!("a limit of 0 on key `{}` would never let it run", key.name)));
            }
            if key.per().is_some_and(|per| per.is_zero() || per > LONGEST) {
                return Err(InvalidSpec(format!(
                    "the time of rate `{}` is more than nothing and at most ten years",
                    key.name
                )));
            }
            if key.is_unique() && self.schedule.is_some() {
                return Err(InvalidSpec(format!(
                    "a run that comes again and again waits beside itself, and unique key `{}` forbids that; a lock does not",
                    key.name
                )));
            }
        }
        if let Some(schedule) = &self.schedule {
            schedule.check().map_err(|error| InvalidSpec(error.to_string()))?;
        }
        if let Some(output) = &self.output {
            output.check().map_err(|error| InvalidSpec(error.to_string()))?;
        }
        self.policy.check().map_err(|error| InvalidSpec(error.to_string()))
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let redactor = Redactor::default();
        let label = |(name, value): (&String, &String)| (name.clone(), redactor.named(name, value));
        f.debug_struct("Spec")
            .field("name", &self.name.as_deref().map(|name| redactor.text(name)))
            .field("kind", &self.kind)
            .field("labels", &self.labels.iter().map(label).collect::<BTreeMap<_, _>>())
            .field("command", &self.command)
            .field("input", &self.input.as_ref().map(|input| format!("{} bytes", input.to_string().len())))
            .field("withheld", &self.withheld)
            .field("priority", &self.priority)
            .field("share", &self.share)
            .field("not_before", &self.not_before)
            .field("queued", &self.queued)
            .field("after", &self.after)
            .field("schedule", &self.schedule)
            .field("keys", &self.keys)
            .field("policy", &self.policy)
            .field("lineage", &self.lineage)
            .field("step", &self.step)
            .field("output", &self.output)
            .field("no_log", &self.no_log)
            .field("tty", &self.tty)
            .field("stdin", &self.stdin)
            .field("ready", &self.ready)
            .field("notify", &self.notify.as_deref().map(|command| redactor.text(command)))
            .field("traceparent", &self.traceparent)
            .field("created_by", &self.created_by)
            .finish()
    }
}

fn word(what: &str, text: &str) -> Result<(), InvalidSpec> {
    if text.trim().is_empty() {
        Err(InvalidSpec(format!("an empty {what}")))
    } else if text.len() > NAME_LIMIT {
        Err(InvalidSpec(format!("a {what} of {} bytes; the longest is {NAME_LIMIT}", text.len())))
    } else if text.chars().any(char::is_control) {
        Err(InvalidSpec(format!("a control character in {what} `{}`", text.escape_default())))
    } else {
        Ok(())
    }
}

/// Refuses a name that could be mistaken for another way to say which run is meant.
fn not_an_address(name: &str) -> Result<(), InvalidSpec> {
    if name.starts_with('@') {
        Err(InvalidSpec(format!("the name `{name}` begins with @, as `@last` and `@~2` do; choose another")))
    } else if RunId::may_begin_with(name) {
        Err(InvalidSpec(format!("the name `{name}` could be taken for the beginning of an id; choose another")))
    } else {
        Ok(())
    }
}

/// A spec that is refused, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSpec(String);

/// A run that another waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    /// The run that is waited for.
    pub run: RunId,
    /// Which end of it will do.
    pub release: Release,
}

/// Which end of a run releases those that wait for it, for [`Planned::after`](crate::Planned::after).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Release {
    /// Its success. Where it can no longer succeed, those that wait for it fail.
    Success,
    /// Any end of it.
    End,
}

/// What makes a run a step of another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The run that it is a step of.
    pub of: RunId,
    /// The attempt of that run.
    pub attempt: u32,
    /// What it is called there, once an attempt.
    pub name: String,
    /// A digest of its command, its inputs and everything else that its result depends on.
    pub fingerprint: String,
    /// It had succeeded before, with another fingerprint: whatever comes after it is done anew.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// The step of an earlier attempt whose result it repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replays: Option<RunId>,
    /// The step of the same attempt inside which it was made; none where that was the run itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
}

/// How a run descends from the run it repeats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// The run it repeats.
    pub rerun_of: RunId,
    /// The first of the line.
    pub origin: RunId,
    /// 1 for a rerun, 2 for a rerun of a rerun.
    pub generation: u32,
    /// Why it was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor() -> Actor {
        Actor { user: "ada".into(), host: "here".into(), pid: 1 }
    }

    #[test]
    fn specs_that_no_store_should_hold_are_refused() {
        let refused = |change: &dyn Fn(&mut Spec)| {
            let mut spec = Spec::new("test", actor());
            change(&mut spec);
            spec.check().expect_err("a bad spec was taken").to_string()
        };
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("x".repeat(1 << 20))), @"a name of 1048576 bytes; the longest is 256");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("a\0b\x1b[2J".into())), @r"a control character in name `a\u{0}b\u{1b}[2J`");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some(String::new())), @"an empty name");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("@last".into())), @"the name `@last` begins with @, as `@last` and `@~2` do; choose another");
        insta::assert_snapshot!(refused(&|spec| spec.name = Some("01a1e1d5-a1d".into())), @"the name `01a1e1d5-a1d` could be taken for the beginning of an id; choose another");
        insta::assert_snapshot!(refused(&|spec| spec.kind.clear()), @"an empty kind");
        insta::assert_snapshot!(refused(&|spec| spec.kind = "step".into()), @"the kind `step` is for the steps of a run, made with `outlive step`");
        insta::assert_snapshot!(refused(&|spec| spec.keys.push(Key::limit("gpu", 0))), @"a limit of 0 on key `gpu` would never let it run");
        insta::assert_snapshot!(refused(&|spec| spec.policy.retry.max_attempts = 0), @"`max_attempts` of 0 would never run anything");
    }

    #[test]
    fn step_recorded_without_a_parent_is_read_and_written_alike() {
        let old = r#"{"of":"01a1e1d5-a1d0-7000-8000-000000000001","attempt":1,"name":"a","fingerprint":"f"}"#;
        let step: Step = serde_json::from_str(old).unwrap();
        assert_eq!(step.parent, None);
        assert_eq!(serde_json::to_string(&step).unwrap(), old);
    }

    #[test]
    fn names_that_only_resemble_ids_are_taken() {
        for name in ["01", "0123456", "20261116", "2026-11-16", "01-02-2026", "deadbeef", "01a1e1d5-backup", "a@b"] {
            let spec = Spec { name: Some(name.into()), ..Spec::new("test", actor()) };
            assert_eq!(spec.check(), Ok(()), "{name}");
        }
    }
}
