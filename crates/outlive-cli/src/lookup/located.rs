//! The registries that runs which are named are in: the one here, or others that are known.

use outlive::error::Error;
use outlive::lifecycle::health::RunStatus;
use outlive::registry::Registry;

use super::{Elsewhere, Scope, elsewhere, gone};
use crate::call::{Context, Effect};
use crate::ui::plain;

/// A registry that has a run which was named.
pub struct RegistryRef {
    /// What to call there; none where that is what was called.
    pub context: Option<Box<Context>>,
    /// The registry.
    pub registry: Registry,
}

/// Runs that were named, in the order in which they were, each with the number of its place.
pub struct Located {
    /// Where they are.
    pub places: Vec<RegistryRef>,
    /// The runs.
    pub runs: Vec<(usize, RunStatus)>,
}

impl Located {
    /// Each run, with its registry.
    pub fn each(&self) -> impl Iterator<Item = (&Registry, &RunStatus)> {
        self.runs.iter().map(|(place, seen)| (&self.places[*place].registry, seen))
    }
}

/// Finds runs, to be read or to have this done to them, in the registry here or else in any that is known: by the same
/// rule whatever is done. A name that runs of several registries bear is refused.
pub async fn locate(context: &Context, words: &[String], effect: Effect) -> Result<Located, Error> {
    let mut located = Located { places: Vec::new(), runs: Vec::new() };
    let opened = open(context, words.first().map_or("", String::as_str), effect).await;
    let none_here = opened.map(|registry| located.places.push(RegistryRef { context: None, registry })).err();
    for word in words {
        let found = match (&none_here, located.places.first()) {
            (None, Some(here)) => here.registry.find(word).await,
            (error, _) => Err(error.clone().unwrap_or_else(|| Error::NotFound(word.clone()))),
        };
        let error = match found {
            Ok(seen) => {
                context.remember(&seen.run, word);
                located.runs.push((0, seen));
                continue;
            }
            Err(error) => error,
        };
        match elsewhere(context, Scope::Home, word, error).await? {
            Elsewhere::Registry(there, run) => {
                if effect != Effect::Read && !word.contains(':') {
                    let (word, place) = (plain(word), plain(&there.place()?));
                    crate::ui::talk(&format!("outlive: `{word}` is run {run} of {place}\n"));
                }
                located.add(there, &run, effect).await?;
                located.runs.last().iter().for_each(|(_, seen)| context.remember(&seen.run, word));
            }
            Elsewhere::Foreign(listed) => {
                let (run, repo) = (plain(&listed.record.run_id), plain(&listed.record.repo));
                return Err(Error::Invalid(format!(
                    "run `{run}` belongs to cool-workflow, and is only read here; `outlive show {repo}:{run}` shows it"
                )));
            }
            Elsewhere::Gone(listed) => return Err(gone(&listed)),
        }
    }
    Ok(located)
}

/// The one run that a word names, with its registry.
pub async fn locate_one(context: &Context, word: &str, effect: Effect) -> Result<(RegistryRef, RunStatus), Error> {
    let Located { mut places, mut runs } = locate(context, &[word.to_owned()], effect).await?;
    let (place, seen) = runs.pop().ok_or_else(|| Error::NotFound(word.into()))?;
    Ok((places.swap_remove(place), seen))
}

impl Located {
    /// Adds a run of a registry elsewhere, which `run` names.
    async fn add(&mut self, there: Box<Context>, run: &str, effect: Effect) -> Result<(), Error> {
        let is_it =
            |place: &RegistryRef| place.context.as_ref().is_some_and(|context| context.named() == there.named());
        let place = match self.places.iter().position(is_it) {
            Some(place) => place,
            None => {
                let registry = open(&there, run, effect).await?;
                self.places.push(RegistryRef { context: Some(there), registry });
                self.places.len() - 1
            }
        };
        let seen = self.places[place].registry.find(run).await?;
        self.runs.push((place, seen));
        Ok(())
    }
}

async fn open(context: &Context, run: &str, effect: Effect) -> Result<Registry, Error> {
    if effect == Effect::Read { context.for_lookup(run).await } else { context.for_change(run).await }
}
