//! `outlive diff`: what two runs have in common and what not.

mod environment;

use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::logs::show_bytes;
use outlive::time::{Clock, SystemClock, show_duration};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use self::environment::variables;
use crate::call::{Context, Effect, Operate};
use crate::lookup::located::{RegistryRef, locate_one};
use crate::ui::plain;
use crate::ui::run_view::{RunView, moment};

/// Compare two runs: command, environment, steps, outcome, duration and usage
///
/// Only what differs is printed, the first run before the second; --all prints the rest too. Of kept environments the
/// names of the variables are shown, never their values; they are compared only where they are still kept and not over a
/// server. `same` says that both were asked to do the same and ended alike, whatever they took.
#[derive(Debug, Args)]
pub struct Diff {
    /// A run: id or unique prefix, name, @last, @~2, or REPOSITORY:ID
    pub left: String,
    /// The run to compare it with
    pub right: String,
    /// Also print what is the same
    #[arg(short, long)]
    pub all: bool,
}

/// How two runs differ.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Compared {
    left: Side,
    right: Side,
    /// They were asked to do the same, and ended alike.
    same: bool,
    /// What was compared, in the order in which it is shown.
    fields: Vec<Field>,
    /// Their steps, by name.
    steps: Vec<StepPair>,
    #[serde(skip)]
    all: bool,
}

/// One of the two runs.
#[derive(Debug, Serialize, JsonSchema)]
struct Side {
    id: RunId,
    name: Option<String>,
}

/// Something that both have or could have.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
struct Field {
    /// What: `command`, `environment NAME`, `state`, `duration_ms`, …
    field: String,
    /// Of the first run; null where it has none.
    left: Value,
    /// Of the second run; null where it has none.
    right: Value,
    equal: bool,
    /// It was measured, and differs from run to run.
    measured: bool,
}

/// A step of both runs, or of one of them.
#[derive(Debug, Serialize, JsonSchema)]
struct StepPair {
    name: String,
    left: Option<StepEnd>,
    right: Option<StepEnd>,
    /// It stands alike in both.
    equal: bool,
}

/// How a step stands.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
struct StepEnd {
    state: &'static str,
    exit_code: Option<i32>,
    duration_ms: Option<u64>,
}

impl Operate for Diff {
    const NAME: &'static str = "diff";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str =
        "outlive diff @~1 @last\noutlive diff nightly train --all\noutlive diff @~1 @last --json";
    type Output = Compared;

    async fn operate(self, context: &Context) -> Result<Compared, Error> {
        let (left, right) = (read(context, &self.left).await?, read(context, &self.right).await?);
        let mut fields = fields(&left.view, &right.view);
        let listed =
            |side: &Read| side.run.spec.command.as_ref().map(|command| command.env.clone()).unwrap_or_default();
        fields.extend(variables("env", &listed(&left), &listed(&right)));
        if !context.is_served() {
            let kept = |side: &Read| side.registry.kept_environment(&side.run);
            fields.extend(environment::kept(kept(&left).as_ref(), kept(&right).as_ref()));
        }
        let steps = pair_steps(&left.steps, &right.steps);
        let same = fields.iter().all(|field| field.equal || field.measured) && steps.iter().all(|step| step.equal);
        Ok(Compared { left: left.side(), right: right.side(), same, fields, steps, all: self.all })
    }
}

/// All that is read of one run.
struct Read {
    registry: outlive::registry::Registry,
    run: outlive::run::Run,
    view: RunView,
    steps: Vec<(String, StepEnd)>,
}

impl Read {
    fn side(&self) -> Side {
        Side { id: self.view.id, name: self.view.name.clone() }
    }
}

async fn read(context: &Context, word: &str) -> Result<Read, Error> {
    let (RegistryRef { registry, .. }, seen) = locate_one(context, word, Effect::Read).await?;
    let view = RunView::unsigned(&seen, &registry);
    let steps = registry.steps_of(&seen.run).await?;
    // Of a step that several attempts have come to, the last counts.
    let steps = steps.iter().map(|step| RunView::unsigned(step, &registry)).map(|step| {
        let end = StepEnd { state: step.state.as_str(), exit_code: step.exit_code, duration_ms: step.duration_ms };
        (step.step.unwrap_or_default(), end)
    });
    Ok(Read { steps: steps.collect(), run: seen.run, view, registry })
}

/// What is compared, and how it is found in a run.
type Compare = (&'static str, fn(&RunView) -> Value);

/// What is compared of two runs, but for their environments and steps.
fn fields(left: &RunView, right: &RunView) -> Vec<Field> {
    let asked: [Compare; 6] = [
        ("command", |run| json!(run.command_line)),
        ("cwd", |run| json!(run.cwd)),
        ("kind", |run| json!(run.kind)),
        ("labels", |run| json!(run.labels)),
        ("priority", |run| json!(run.priority)),
        ("created_by", |run| json!(run.created_by)),
    ];
    let ended: [Compare; 6] = [
        ("state", |run| json!(run.state)),
        ("exit_code", |run| json!(run.exit_code)),
        ("signal", |run| json!(run.signal)),
        ("error_type", |run| json!(run.error_type)),
        ("error_message", |run| json!(run.error_message)),
        ("host", |run| json!(run.host)),
    ];
    let measured: [Compare; 7] = [
        ("attempt", |run| json!(run.attempt)),
        ("started_at", |run| json!(run.started_at)),
        ("duration_ms", |run| json!(run.duration_ms)),
        ("cpu_ms", |run| json!(run.cpu_ms)),
        ("peak_memory_bytes", |run| json!(run.peak_memory_bytes)),
        ("read_bytes", |run| json!(run.read_bytes)),
        ("written_bytes", |run| json!(run.written_bytes)),
    ];
    let compare = |measured| move |(name, of): Compare| Field::new(name.into(), of(left), of(right), measured);
    asked.into_iter().chain(ended).map(compare(false)).chain(measured.into_iter().map(compare(true))).collect()
}

impl Field {
    fn new(field: String, left: Value, right: Value, measured: bool) -> Self {
        Self { equal: left == right, field, left, right, measured }
    }

    /// A value as people read it.
    fn shown(&self, value: &Value) -> String {
        match (value, value.as_u64()) {
            (Value::Null, _) => "none".into(),
            (Value::String(at), _) if self.field.ends_with("_at") => {
                at.parse().map_or_else(|_| plain(at), |at| moment(at, SystemClock.now()))
            }
            (_, Some(ms)) if self.field.ends_with("_ms") => show_duration(Duration::from_millis(ms)),
            (_, Some(bytes)) if self.field.ends_with("_bytes") => show_bytes(bytes),
            (Value::String(text), _) => plain(text),
            (other, _) => plain(&other.to_string()),
        }
    }

    /// What it is called for people, with room behind it. The name of a variable is left as it is.
    fn label(&self) -> String {
        let label = match self.field.contains(' ') {
            true => plain(&self.field),
            false => self.field.trim_end_matches("_ms").trim_end_matches("_bytes").replace('_', " "),
        };
        format!("{label:<12} ")
    }

    /// How many times the left the right is, where that says more than both.
    fn ratio(&self) -> Option<String> {
        let (left, right) = (self.left.as_u64()?, self.right.as_u64()?);
        let is_size = self.field.ends_with("_ms") || self.field.ends_with("_bytes");
        let ratio = right as f64 / (left.max(1)) as f64;
        (is_size && left > 0 && !(0.95..1.05).contains(&ratio)).then(|| format!(" (×{ratio:.2})"))
    }
}

fn pair_steps(left: &[(String, StepEnd)], right: &[(String, StepEnd)]) -> Vec<StepPair> {
    let last = |steps: &[(String, StepEnd)], name: &str| {
        steps.iter().rev().find(|(found, _)| found == name).map(|(_, end)| end.clone())
    };
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in left.iter().chain(right) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let pair = |name: &String| {
        let (left, right) = (last(left, name), last(right, name));
        let stands = |end: &Option<StepEnd>| end.as_ref().map(|end| (end.state, end.exit_code));
        StepPair { equal: stands(&left) == stands(&right), name: name.clone(), left, right }
    };
    names.into_iter().map(pair).collect()
}

impl fmt::Display for StepEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.state)?;
        match self.duration_ms {
            Some(ms) => write!(f, " in {}", show_duration(Duration::from_millis(ms))),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |side: &Side| side.name.as_deref().map(|name| format!(" ({})", plain(name))).unwrap_or_default();
        writeln!(f, "{:<13}{}{} → {}{}", "runs", self.left.id, name(&self.left), self.right.id, name(&self.right))?;
        for field in self.fields.iter().filter(|field| self.all || !field.equal) {
            let (left, right) = (field.shown(&field.left), field.shown(&field.right));
            match field.equal {
                true => writeln!(f, "{}{left}", field.label())?,
                // Long ones are compared more easily one below the other.
                false if left.len() + right.len() > 100 => {
                    writeln!(f, "{}{left}\n{:>12} {right}", field.label(), "→")?;
                }
                false => writeln!(f, "{}{left} → {right}{}", field.label(), field.ratio().unwrap_or_default())?,
            }
        }
        let shown = |end: &Option<StepEnd>| end.as_ref().map_or_else(|| "none".into(), ToString::to_string);
        for step in self.steps.iter().filter(|step| self.all || !step.equal) {
            writeln!(f, "{:<13}{}: {} → {}", "step", plain(&step.name), shown(&step.left), shown(&step.right))?;
        }
        if self.same {
            writeln!(f, "both were asked to do the same, and ended alike")?;
        }
        Ok(())
    }
}
