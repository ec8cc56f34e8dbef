//! What manifests of runs name: which are of which run, and whether what they say is understood.
//!
//! In a tree with attempts, names that lead there are all that counts. In a plain tree a name may be as short as `part-1`, so
//! whatever a manifest says may be one; only what is found under a name shows that names are what it says.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::location::ArtifactStore;
use super::manifest::{ManifestNames, plainly};
use crate::model::run::Run;
use crate::store;

/// How many of the things that a manifest names are looked for at the most, until one is found.
const LOOKED_FOR: usize = 32;

/// What a run is called in paths.
pub(super) fn name_of(run: &Run) -> String {
    run.spec.output.as_ref().and_then(|output| output.run_id.clone()).unwrap_or_else(|| run.id.to_string())
}

/// Whether a text that leads nowhere may name something of a run. `plain` is the text in lower case, its escapes resolved.
pub(super) fn may_name(plain: &str, run: &str) -> bool {
    let run = plainly(run);
    let is_run = |part: &str| {
        let rest = part.strip_prefix("run_id=").and_then(|name| name.strip_prefix(&*run));
        rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    };
    plain.split(['/', '\\']).any(is_run)
}

/// Manifests by the run that they are of: `ID`, `ID_…` and `ID.…` are of ID, and of the longest such name.
pub(super) fn manifests_by_run<'a>(
    manifests: Vec<(String, String)>,
    runs: impl Iterator<Item = &'a Run>,
) -> HashMap<String, Vec<String>> {
    let known: HashSet<String> = runs.map(name_of).collect();
    let mut named: HashMap<String, Vec<String>> = HashMap::new();
    for (of, path) in manifests {
        let ends = [of.len()].into_iter().chain(of.rmatch_indices(['_', '.']).map(|(end, _)| end));
        if let Some(name) = ends.map(|end| &of[..end]).find(|name| known.contains(*name)) {
            named.entry(name.to_owned()).or_default().push(path);
        }
    }
    named
}

/// What the manifests of a run name: those that its records name, and what is there that says it is of it.
pub(super) async fn names(
    place: &ArtifactStore,
    run: &Run,
    references: &BTreeSet<&String>,
) -> Option<Result<ManifestNames, String>> {
    let winners = run.spec.output.as_ref().and_then(|output| output.winners.as_deref());
    let mut all: Option<Result<ManifestNames, String>> = None;
    for reference in references {
        let named = place.names_in(reference, winners).await;
        all = Some(match (all, named) {
            (Some(Ok(known)), Ok(named)) => Ok(known.and(&named)),
            (Some(Err(why)), _) | (_, Err(why)) => Err(why),
            (None, named) => named,
        });
    }
    all
}

/// What the manifests of a run name, if all of it is understood. `own` is where they are.
pub(super) async fn understood(
    place: &ArtifactStore,
    run: &Run,
    own: &BTreeSet<String>,
    names: ManifestNames,
) -> Result<ManifestNames, String> {
    if let Some(first) = names.unclear().next() {
        let place = place.shown("");
        return Err(format!("its manifest names `{first}`, which leads nowhere in `{}`", place.trim_end_matches('/')));
    }
    let plain = run.spec.output.as_ref().filter(|output| output.plain);
    match plain.and_then(|output| output.tree(run.id).ok()) {
        Some(tree) => names_in_plain_tree(place, &tree, own, names).await,
        None => Ok(names.unsaid()),
    }
}

/// What a manifest names in a plain tree. What is found of it there shows that its words are understood: a manifest that
/// names nothing that is there may name what is there in other words, and then nothing may be deleted.
async fn names_in_plain_tree(
    place: &ArtifactStore,
    tree: &str,
    own: &BTreeSet<String>,
    mut names: ManifestNames,
) -> Result<ManifestNames, String> {
    if let Some(pattern) = names.said().find(|text| text.contains(['*', '{', '['])) {
        return Err(format!("it names `{pattern}`, which may mean anything"));
    }
    // What covers the tree as a whole keeps all of it.
    if names.cover(tree) {
        return Ok(names);
    }
    let full: Vec<String> = names.below(tree).filter(|path| !own.contains(*path)).map(str::to_owned).collect();
    let (likely, rest): (Vec<&str>, Vec<&str>) = names.said().partition(|text| text.contains(['.', '/']));
    let said = likely.into_iter().chain(rest).filter_map(|text| place.below(&format!("{tree}/{text}")));
    let said: Vec<String> = said.filter(|path| !own.contains(path)).take(LOOKED_FOR).collect();
    let unheard = |error: store::Error| error.to_string();
    for path in full.iter().take(LOOKED_FOR) {
        if place.has(path).await.map_err(unheard)? || place.has_any_below(path).await.map_err(unheard)? {
            return Ok(names);
        }
    }
    for path in said {
        if place.has(&path).await.map_err(unheard)? {
            names.insert(&path);
            return Ok(names);
        }
    }
    Err("nothing of what it names is there".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t6_10_text_that_leads_nowhere_names_its_own_run_alone() {
        let may = |text: &str, run: &str| may_name(&plainly(text), run);
        for text in ["shards/run_id%3Drun-1/db=0", "SHARDS\\RUN_ID=RUN-1", "run_id=run-1?versionId=3", "run_id=run-1\n"]
        {
            assert!(may(text, "run-1"), "{text}");
        }
        for (text, run) in
            [("shards/run_id%3Drun-10/db=0", "run-1"), ("shards/run_id=abc/db=0", "db"), ("shards/run_id=abc", "a")]
        {
            assert!(!may(text, run), "{text} {run}");
        }
    }
}
