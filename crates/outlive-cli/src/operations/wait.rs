//! `outlive wait`: waits until runs have ended.

use std::fmt;
use std::time::Duration;

use clap::Args;
use outlive::error::Error;
use outlive::id::RunId;
use outlive::registry::Registry;
use outlive::run::StateName;
use outlive::time::parse_duration;
use schemars::JsonSchema;
use serde::Serialize;

use crate::operation::{Effect, Operate};
use crate::operations::plane::located::locate;
use crate::run_view::RunView;
use crate::settings::Context;

/// How long to wait before looking whether an owner has died, which writes nothing that could wake us.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// The longest pause between two looks at a store that cannot say that it has changed.
const LOOK_SELDOM: Duration = Duration::from_secs(1);

/// Wait until runs have ended
///
/// Ends with the exit status of the run, or of the first of several that did not succeed. A run that ended without one
/// gives 1, and so does a run that has not ended in time. A run that is tried again has not ended: whoever waits for it
/// waits for the worker or supervisor that tries it. A server answers after half a minute at the latest: whoever still
/// waits asks again for those that are named as `waiting`.
#[derive(Debug, Default, Args)]
pub struct Wait {
    /// Ids, beginnings of ids, names, @last, @~2, or REPOSITORY:ID
    #[arg(required = true)]
    pub runs: Vec<String>,
    /// Only until one of them has
    #[arg(long)]
    pub any: bool,
    /// At most for this long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
}

/// The runs that have ended.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Ended {
    runs: Vec<RunView>,
    /// Those that have not.
    waiting: Vec<RunId>,
    #[serde(skip)]
    too_late: bool,
}

impl Operate for Wait {
    const NAME: &'static str = "wait";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive wait train && echo done\noutlive wait --any train nightly";
    type Output = Ended;

    async fn operate(self, context: &Context) -> Result<Ended, Error> {
        let located = locate(context, &self.runs, Self::EFFECT).await?;
        let waiting = located.each().map(|(registry, seen)| (registry, seen.run.id)).collect();
        Ended::of(context, waiting, self.any, self.timeout).await
    }

    fn exit_status(ended: &Ended) -> u8 {
        ended.runs.iter().map(status).find(|status| *status != 0).unwrap_or(ended.too_late.into())
    }
}

impl Ended {
    /// Waits for runs, and tells what became of them.
    pub async fn of(
        context: &Context,
        waiting: Vec<(&Registry, RunId)>,
        any: bool,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let (runs, waiting) = until_ended(context, waiting, any, timeout).await?;
        let too_late = if any { runs.is_empty() } else { !waiting.is_empty() };
        Ok(Self { runs, waiting, too_late })
    }
}

/// Waits until the runs have ended, or any of them has, or for as long as there is patience. Answers with those that have,
/// and those that have not.
pub async fn until_ended(
    context: &Context,
    mut waiting: Vec<(&Registry, RunId)>,
    any: bool,
    timeout: Option<Duration>,
) -> Result<(Vec<RunView>, Vec<RunId>), Error> {
    let patience = timeout.into_iter().chain(context.patience()).min();
    let Some((first, _)) = waiting.first().copied() else { return Ok((Vec::new(), Vec::new())) };
    let began = first.clock().awake();
    // Of runs of several registries those of the first are heard of at once, the others looked at as often.
    let watch = first.local().map(|local| local.watch()).transpose()?;
    let mut ended = Vec::new();
    loop {
        ended.extend(take_ended(&mut waiting).await?);
        context.pass(ended.len(), ended.len() + waiting.len())?;
        let waited = first.clock().awake().saturating_sub(began);
        // Whoever shares a store with many asks it less and less often.
        let is_local = waiting.iter().all(|(registry, _)| registry.local().is_some());
        let pause = if is_local { LOOK_EVERY } else { (waited / 8).clamp(LOOK_EVERY, LOOK_SELDOM) };
        let left = patience.map_or(pause, |patience| patience.saturating_sub(waited).min(pause));
        if waiting.is_empty() || any && !ended.is_empty() || left.is_zero() {
            return Ok((ended, waiting.into_iter().map(|(_, id)| id).collect()));
        }
        match &watch {
            Some(watch) => watch.wait(left),
            None => std::thread::sleep(left),
        }
    }
}

async fn take_ended(waiting: &mut Vec<(&Registry, RunId)>) -> Result<Vec<RunView>, Error> {
    let mut ended = Vec::new();
    for (registry, id) in std::mem::take(waiting) {
        let seen = registry.glance(id).await?;
        if seen.is_over() {
            ended.push(RunView::new(&seen, registry));
        } else {
            waiting.push((registry, id));
        }
    }
    Ok(ended)
}

/// The exit status that a run ended with.
pub fn status(run: &RunView) -> u8 {
    let code = run.exit_code.or(run.signal.map(|signal| 128 + signal)).unwrap_or(1);
    match run.state {
        StateName::Succeeded => 0,
        _ => u8::try_from(code & 0xff).ok().filter(|code| *code != 0).unwrap_or(1),
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in &self.runs {
            let reason = run.reason.as_deref().map(|reason| format!(": {}", crate::terminal::plain(reason)));
            writeln!(f, "{} {}{}", run.title(), run.state, reason.unwrap_or_default())?;
        }
        if self.too_late {
            self.waiting.iter().try_for_each(|id| writeln!(f, "{id} has not ended yet"))?;
        }
        Ok(())
    }
}
