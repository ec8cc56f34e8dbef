//! The same questions as cool-workflow answers, beside what it took for them.
//!
//! Its package cannot be had here, so its figures are not measured with ours: they are those of version 0.2.6, taken on a like
//! machine (2 shared cores, warm, the fastest of several, files of 3.4 KB). It reads and parses every file for every answer;
//! what ours looked at for each is said beside it.

use super::{Plane, ROUNDS, state};
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

/// How many runs there were, and what refresh, search, history and show took, in ms.
const TOOK: [(usize, [f64; 4]); 3] = [
    (1_000, [521.0, 489.0, 585.0, 313.0]),
    (10_000, [2_328.0, 2_385.0, 2_196.0, 260.0]),
    (100_000, [27_020.0, 30_080.0, 27_800.0, 520.0]),
];
/// By how much ours is to be faster, and over how many runs.
const FASTER: f64 = 20.0;
const AT: usize = 10_000;

/// Compares at each size that is not larger than what is measured otherwise, and answers whether the bar is met.
pub(super) fn compare(plane: &Plane, runs: usize) -> Outcome<bool> {
    let mut met = true;
    for (size, took) in TOOK.iter().filter(|(size, _)| *size <= runs.max(TOOK[0].0)) {
        met &= at(plane, *size, took)?;
    }
    Ok(met)
}

fn at(plane: &Plane, size: usize, theirs: &[f64; 4]) -> Outcome<bool> {
    let (home, repo) = (format!("peer-{size}"), plane.dir.join(format!("peer-repo-{size}")));
    for run in (0..size).filter(|_| !repo.join("made").exists()) {
        let dir = repo.join(format!(".cw/runs/run-00-{run:06}"));
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("state.json"), state(0, run))?;
    }
    std::fs::write(repo.join("made"), "")?;
    plane.call(&home, &["registry", "add", &repo.display().to_string()])?;
    plane.call(&home, &["registry", "refresh"])?;
    let one = format!("run-00-{:06}", size / 2);
    let calls: [(&str, &[&str], Option<f64>, &str); 6] = [
        ("refresh", &["registry", "refresh"], Some(theirs[0]), "stat of every run"),
        ("search", &["search", "question"], Some(theirs[1]), "stat of the runs that are listed"),
        ("history", &["history"], Some(theirs[2]), "stat of the runs that are listed"),
        ("show one", &["show", &one], Some(theirs[3]), "stat of that run"),
        ("registry show", &["registry", "show"], None, "stat of every run"),
        ("rebuild", &["registry", "refresh", "--rebuild"], Some(theirs[0]), "content of every run"),
    ];
    println!("{size} runs beside cool-workflow 0.2.6 (its figures are from a like machine, not from this call), ms:");
    let mut met = true;
    for (name, words, theirs, verified) in calls {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            took.push(measure(|| plane.call(&home, words).map(drop))?.as_secs_f64() * 1_000.0);
        }
        let took = Spread::of(&took);
        let faster = theirs.map(|theirs| theirs / took.median);
        // What reads every file again is not what is asked for day by day.
        let missed = size == AT && name != "rebuild" && faster.is_some_and(|faster| faster < FASTER);
        let beside =
            theirs.zip(faster).map(|(theirs, faster)| format!(", theirs {theirs:.0}: {faster:.1} times faster"));
        let (beside, missed_told) = (beside.unwrap_or_default(), if missed { "  MISSED" } else { "" });
        println!("  {name:<14} {took}{beside}; verified: {verified}{missed_told}");
        met &= !missed;
    }
    Ok(met)
}
