//! How long `outlive ps` takes where many runs have ended.

use std::path::Path;
use std::process::Command;

use outlive::registry::Registry;
use outlive::run::{self, Arg, Spec};
use outlive::store::sqlite::Sharing;

use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const PLAN: Plan = Plan { rounds: 15, slices: 1, units: 1 };
const MANY: usize = 10_000;
/// The most that the fastest of each list may take, in ms.
const BAR: f64 = 50.0;

/// Measures, and answers whether the bar is met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let path = dir.join("registry");
    fill(&path)?;
    let (outlive, url) = (outlive()?, format!("sqlite:{}", path.display()));
    let ps = |words: &[&str]| -> Outcome<String> {
        let output = Command::new(&outlive).args(["--registry", &url, "ps"]).args(words).output()?;
        if output.status.success() { Ok(String::from_utf8(output.stdout)?) } else { Err("`outlive ps` failed".into()) }
    };
    let whole = || -> Outcome<()> {
        let mut text = ps(&["--all", "-n", "1000"])?;
        // `more: outlive … --after=NEXT`
        while let Some((_, next)) = text.rsplit_once("--after=") {
            text = ps(&["--all", "-n", "1000", &format!("--after={}", next.trim())])?;
        }
        Ok(())
    };
    let lists: [(&'static str, &[&str]); 8] = [
        ("ps", &[]),
        ("ps --json", &["--json"]),
        ("ps --all", &["--all"]),
        ("ps --all --json", &["--all", "--json"]),
        ("ps --all -n 1000", &["--all", "-n", "1000"]),
        ("ps --all -n 1000 --json", &["--all", "-n", "1000", "--json"]),
        ("ps --all -n 10000", &["--all", "-n", "10000"]),
        ("ps --all -n 10000 --json", &["--all", "-n", "10000", "--json"]),
    ];
    let one = |(name, words): &(&'static str, &'static [&'static str])| {
        let words = *words;
        Variant::new(name, move || measure(|| ps(words).map(drop)))
    };
    let mut variants: Vec<Variant<'_>> = lists.iter().map(one).collect();
    variants.push(Variant::new("all of them, in pages of 1,000", || measure(whole)));
    let names: Vec<&str> = lists.iter().map(|list| list.0).chain(["all of them, in pages of 1,000"]).collect();
    let measured = interleave(PLAN, variants)?;
    println!("lists where {MANY} runs have ended, ms (bar: {BAR} at best):");
    let mut met = true;
    for (index, name) in names.iter().enumerate() {
        let took: Vec<f64> = measured.pairs(index, index).map(|pair| pair.0 * 1_000.0).collect();
        let took = Spread::of(&took);
        println!("  {name:<32} {took}{}", if took.min <= BAR { "" } else { "  MISSED" });
        met &= took.min <= BAR;
    }
    Ok(met)
}

/// Makes a registry of runs that have ended.
fn fill(path: &Path) -> Outcome<()> {
    let registry = Registry::open_local(path, Some(Sharing::Private))?;
    let mut spec = Spec::new("command", registry.me().clone());
    let argv = ["make", "-j", "test"].map(|word| Arg::Text(word.into())).into();
    spec.command = Some(run::Command::new(argv, Arg::Text("/home/ada/project".into())));
    for _ in 0..MANY {
        pollster::block_on(async { registry.start(spec.clone()).await?.succeed().await })?;
    }
    pollster::block_on(registry.close());
    Ok(())
}
