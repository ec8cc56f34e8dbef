//! How long lists take where many runs have ended, and where many wait.

use std::path::{Path, PathBuf};
use std::process::Command;

use outlive::registry::Registry;
use outlive::run::{self, Arg, Spec};
use outlive::store::sqlite::Sharing;

use crate::rounds::{Plan, Spread, Variant, interleave};
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const PLAN: Plan = Plan { rounds: 15, slices: 1, units: 1 };
const MANY: usize = 10_000;
const QUEUED: usize = 100_000;
/// The most that the fastest of each list may take, in ms.
const BAR: f64 = 50.0;

/// Measures, and answers whether the bar is met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let path = dir.join("ended");
    fill(&path)?;
    let ended = Lists { outlive: outlive()?, url: format!("sqlite:{}", path.display()) };
    let pages = "all of them, in pages of 1,000";
    let mut variants = ended.variants(&[
        "ps",
        "ps --json",
        "ps --all",
        "ps --all --json",
        "ps --all -n 1000",
        "ps --all -n 1000 --json",
        "ps --all -n 10000",
        "ps --all -n 10000 --json",
    ]);
    variants.push((pages, Variant::new(pages, || measure(|| ended.whole()))));
    println!("lists where {MANY} runs have ended, ms (bar: {BAR} at best):");
    let met = compare(variants)?;
    let waiting = Lists { outlive: outlive()?, url: format!("sqlite:{}", dir.join("waiting").display()) };
    waiting.enqueue(dir)?;
    println!("lists where {QUEUED} runs wait, ms (bar: {BAR} at best):");
    Ok(compare(waiting.variants(&["ps", "ps -n 1000", "ps -n 10000", "queue list", "queue list --limit 10000"]))?
        && met)
}

/// Measures one list after the other, round by round.
fn compare(variants: Vec<(&str, Variant<'_>)>) -> Outcome<bool> {
    let (names, variants): (Vec<&str>, Vec<Variant<'_>>) = variants.into_iter().unzip();
    let measured = interleave(PLAN, variants)?;
    let mut met = true;
    for (index, name) in names.iter().enumerate() {
        let took: Vec<f64> = measured.pairs(index, index).map(|pair| pair.0 * 1_000.0).collect();
        let took = Spread::of(&took);
        println!("  {name:<32} {took}{}", if took.min <= BAR { "" } else { "  MISSED" });
        met &= took.min <= BAR;
    }
    Ok(met)
}

/// The lists of one registry.
struct Lists {
    outlive: PathBuf,
    url: String,
}

impl Lists {
    fn say(&self, words: &[&str]) -> Outcome<String> {
        let output = Command::new(&self.outlive).args(["--registry", &self.url]).args(words).output()?;
        if output.status.success() {
            Ok(String::from_utf8(output.stdout)?)
        } else {
            Err(format!("{words:?} failed").into())
        }
    }

    fn variants<'a>(&'a self, lists: &[&'static str]) -> Vec<(&'static str, Variant<'a>)> {
        let one = |list: &&'static str| {
            let words: Vec<&str> = list.split(' ').collect();
            (*list, Variant::new(list, move || measure(|| self.say(&words).map(drop))))
        };
        lists.iter().map(one).collect()
    }

    /// All runs, page by page.
    fn whole(&self) -> Outcome<()> {
        let mut text = self.say(&["ps", "--all", "-n", "1000"])?;
        // `more: outlive … --cursor=NEXT`
        while let Some((_, next)) = text.rsplit_once("--cursor=") {
            text = self.say(&["ps", "--all", "-n", "1000", &format!("--cursor={}", next.trim())])?;
        }
        Ok(())
    }

    /// Adds runs that nobody executes.
    fn enqueue(&self, dir: &Path) -> Outcome<()> {
        let jobs = dir.join("jobs.jsonl");
        std::fs::write(&jobs, "{\"argv\": [\"make\", \"-j\", \"test\"]}\n".repeat(QUEUED))?;
        self.say(&["queue", "add", "--file", &jobs.display().to_string()]).map(drop)
    }
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
