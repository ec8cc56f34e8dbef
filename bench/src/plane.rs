//! The control plane over many runs of many repositories: what a search, a look at everything and a rebuild cost.
//!
//! `OUTLIVE_PLANE_RUNS` says how many runs there are, over 50 repositories of cool-workflow.

mod cool_workflow;

use std::path::{Path, PathBuf};
use std::process::Command;

use outlive::registry::Registry;
use outlive::run::Spec;
use outlive::store::sqlite::Sharing;

use crate::rounds::Spread;
use crate::scratch::{Outcome, outlive};
use crate::time::measure;

const RUNS: usize = 100_000;
const REPOSITORIES: usize = 50;
const ROUNDS: usize = 7;
/// The most that the first page of any search may take in a process of its own, in ms.
const SEARCH: f64 = 50.0;
/// The most that a look at 100,000 files may take that have not changed, in ms.
const LOOK: f64 = 300.0;
const LOOKED_AT: usize = 100_000;
/// How many times longer a rebuild may take than reading and parsing the files.
const REBUILD: f64 = 2.0;
/// How many runs are put away in one call, and the most that it may take, in ms.
const ARCHIVED: usize = 1_400;
const ARCHIVE: f64 = 1_000.0;
/// The most memory of any command, in MB.
const MEMORY: f64 = 150.0;

/// Measures, and answers whether the bars are met.
pub fn main(dir: &Path) -> Outcome<bool> {
    let runs = std::env::var("OUTLIVE_PLANE_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let plane = Plane { dir: dir.into(), outlive: outlive()?, each: runs / REPOSITORIES };
    println!("{runs} runs over {REPOSITORIES} repositories");
    plane.make()?;
    let all: Vec<usize> = (0..REPOSITORIES).collect();
    plane.register("home", &all)?;
    let mut met = plane.rebuild()?;
    met &= plane.searches()?;
    let some = (LOOKED_AT / plane.each).clamp(1, REPOSITORIES);
    plane.register("some", &all[..some])?;
    plane.call("some", &["registry", "refresh"])?;
    met &= plane.look(some * plane.each)?;
    met &= plane.one_changed()?;
    met &= plane.every_memory()?;
    met &= plane.archive()?;
    met &= cool_workflow::compare(&plane, runs)?;
    Ok(met)
}

struct Plane {
    dir: PathBuf,
    outlive: PathBuf,
    each: usize,
}

impl Plane {
    fn repo(&self, number: usize) -> PathBuf {
        self.dir.join(format!("repo-{number:02}"))
    }

    fn make(&self) -> Outcome<()> {
        // Those of an earlier call are used again: they take longer to make than everything else.
        for repo in (0..REPOSITORIES).filter(|repo| !self.repo(*repo).exists()) {
            for run in 0..self.each {
                let dir = self.repo(repo).join(format!(".cw/runs/run-{repo:02}-{run:06}"));
                std::fs::create_dir_all(&dir)?;
                std::fs::write(dir.join("state.json"), state(repo, run))?;
            }
        }
        Ok(())
    }

    fn register(&self, home: &str, repos: &[usize]) -> Outcome<()> {
        let paths: Vec<PathBuf> = repos.iter().map(|repo| self.repo(*repo)).collect();
        let paths: Vec<&str> = paths.iter().filter_map(|path| path.to_str()).collect();
        self.call(home, &[&["registry", "add"], &paths[..]].concat()).map(drop)
    }

    fn command(&self, home: &str, words: &[&str]) -> Command {
        let mut command = Command::new(&self.outlive);
        command.args(words).env("OUTLIVE_HOME", self.dir.join(home)).env("CW_HOME", self.dir.join("none"));
        command.current_dir(&self.dir);
        command
    }

    fn call(&self, home: &str, words: &[&str]) -> Outcome<String> {
        let output = self.command(home, words).output()?;
        if !output.status.success() {
            return Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// A program that only reads and parses, one file after the other, and answers with how many.
    fn read_and_parse(&self) -> Outcome<usize> {
        let mut read = 0;
        for repo in 0..REPOSITORIES {
            for entry in std::fs::read_dir(self.repo(repo).join(".cw/runs"))? {
                let bytes = std::fs::read(entry?.path().join("state.json"))?;
                let state: serde_json::Value = serde_json::from_slice(&bytes)?;
                read += usize::from(state.is_object());
            }
        }
        Ok(read)
    }

    fn rebuild(&self) -> Outcome<bool> {
        // Both find the files in memory.
        self.read_and_parse()?;
        let mut ratios = Vec::new();
        for _ in 0..3 {
            let plain = measure(|| self.read_and_parse().map(drop))?.as_secs_f64();
            let ours = measure(|| self.call("home", &["registry", "refresh", "--rebuild"]).map(drop))?.as_secs_f64();
            println!("  read and parsed in {plain:.2} s, rebuilt in {ours:.2} s");
            ratios.push(ours / plain);
        }
        let ratio = Spread::of(&ratios);
        let memory = self.memory("home", &["registry", "refresh", "--rebuild"])?;
        let size: u64 = std::fs::read_dir(self.dir.join("home/index"))?
            .filter_map(|entry| entry.ok()?.metadata().ok())
            .map(|found| found.len())
            .sum();
        println!(
            "rebuild / read and parse: {ratio} (bar: {REBUILD}); {memory:.0} MB of memory (bar: {MEMORY}); {} MB on disk",
            size >> 20
        );
        Ok(ratio.median <= REBUILD && memory <= MEMORY)
    }

    fn searches(&self) -> Outcome<bool> {
        let after = self.call("home", &["search", "--json", "--limit", "50"])?;
        let after = after.split("\"next\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("").to_owned();
        let rare = format!("run-07-{:06}", self.each / 2);
        let searches: Vec<(&str, Vec<&str>)> = vec![
            ("everything", vec!["search"]),
            ("the second page", vec!["search", "--cursor", &after]),
            ("history", vec!["history"]),
            ("one run", vec!["search", &rare]),
            ("a word of all", vec!["search", "question"]),
            ("the beginning of a word of all", vec!["search", "quest*"]),
            ("two words of many", vec!["search", "seven", "three"]),
            ("two words that never meet", vec!["search", "seven", "eight"]),
            ("a word of nobody", vec!["search", "zebra"]),
            ("status", vec!["search", "--status", "failed"]),
            ("status, newest first", vec!["history", "--status", "blocked"]),
            ("status and a rare word", vec!["search", "--status", "failed", &rare]),
            ("app", vec!["search", "--app", "app-3"]),
            ("app and status of nobody", vec!["search", "--app", "app-3", "--status", "cancelled"]),
            ("repository", vec!["search", "--repo", "repo-31"]),
            ("repository and a word", vec!["search", "--repo", "repo-31", "seven"]),
            ("time", vec!["search", "--since", "2026-03-01", "--until", "2026-03-02"]),
            ("time and status", vec!["search", "--since", "2026-06-01T00:00:00+02:00", "--status", "completed"]),
            ("show", vec!["show", &rare]),
        ];
        println!("first pages in a process each, ms (bar: {SEARCH}):");
        let mut met = true;
        for (name, words) in &searches {
            let mut took = Vec::new();
            for _ in 0..ROUNDS {
                let took_one = measure(|| self.command("home", words).output().map(drop).map_err(Into::into))?;
                took.push(took_one.as_secs_f64() * 1_000.0);
            }
            let took = Spread::of(&took);
            let memory = self.memory("home", words)?;
            let missed = took.median > SEARCH || memory > MEMORY;
            println!("  {name:<32} {took}, {memory:.0} MB{}", if missed { "  MISSED" } else { "" });
            met &= !missed;
        }
        Ok(met)
    }

    fn look(&self, files: usize) -> Outcome<bool> {
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            took.push(
                measure(|| self.call("some", &["registry", "show", "--json"]).map(drop))?.as_secs_f64() * 1_000.0,
            );
        }
        let (took, (memory, processor)) = (Spread::of(&took), self.cost("some", &["registry", "show"])?);
        let bar = LOOK * files as f64 / LOOKED_AT as f64;
        println!(
            "look at {files} files that have not changed, ms: {took} (bar: {bar:.0}), {processor:.0} of a processor, \
             {memory:.0} MB"
        );
        Ok(took.median <= bar && memory <= MEMORY)
    }

    /// What every command of the plane costs.
    fn every_memory(&self) -> Outcome<bool> {
        let run = format!("run-07-{:06}", self.each / 2);
        let repo = self.repo(0).display().to_string();
        let calls: [&[&str]; 21] = [
            &["registry", "show"],
            &["registry", "list"],
            &["registry", "refresh"],
            &["registry", "remove", &repo],
            &["registry", "add", &repo],
            &["stats"],
            &["list"],
            &["list", "--limit", "10000"],
            &["search", "question", "--limit", "10000"],
            &["history", "--limit", "10000"],
            &["show", &run],
            &["resume", &run],
            &["resume", "--all", "--scope", "home", "--dry-run"],
            &["rerun", &run],
            &["archive", "--older-than", "30d", "--scope", "home", "--dry-run"],
            &["unarchive", &run],
            &["gc", "--dry-run"],
            &["ps", "--global", "--all"],
            &["queue", "add", "--app", "bench"],
            &["queue", "list"],
            &["queue", "drain"],
        ];
        let mut met = true;
        for words in calls {
            let (memory, processor) = self.cost("home", words)?;
            println!("  {:<60} {memory:.0} MB (bar: {MEMORY}), {processor:.0} ms of a processor", words.join(" "));
            met &= memory <= MEMORY;
        }
        Ok(met)
    }

    /// Runs of a registry that are put away by their age, in one call.
    fn archive(&self) -> Outcome<bool> {
        let path = self.dir.join("archived/.outlive");
        std::fs::create_dir_all(&path)?;
        let registry = Registry::open_local(&path, Some(Sharing::Private))?;
        for _ in 0..ARCHIVED {
            let spec = Spec::new("bench", registry.me().clone());
            pollster::block_on(async { registry.start(spec).await?.succeed().await })?;
        }
        pollster::block_on(registry.close());
        let mut command = self.command("home", &["archive", "--older-than", "0s", "--yes", "--json"]);
        command.current_dir(self.dir.join("archived"));
        let mut said = String::new();
        let took = measure(|| {
            said = String::from_utf8(command.output()?.stdout)?;
            Ok(())
        })?;
        let answer: serde_json::Value = serde_json::from_str(&said)?;
        let (count, took) = (answer["runs"].as_array().map_or(0, Vec::len), took.as_secs_f64() * 1_000.0);
        println!("{count} runs archived by age in one call: {took:.0} ms (bar: {ARCHIVE})");
        Ok(took <= ARCHIVE && count == ARCHIVED)
    }

    fn one_changed(&self) -> Outcome<bool> {
        let path = self.repo(0).join(format!(".cw/runs/run-00-{:06}/state.json", 7));
        std::fs::write(&path, state(1, 1))?;
        let mut said = String::new();
        let took = measure(|| {
            said = self.call("some", &["registry", "refresh", "--json"])?;
            Ok(())
        })?;
        println!("refresh where one run has changed: {:.0} ms, {}", took.as_secs_f64() * 1_000.0, said.trim());
        Ok(said.contains("\"read\":1,"))
    }

    fn memory(&self, home: &str, words: &[&str]) -> Outcome<f64> {
        self.cost(home, words).map(|(memory, _)| memory)
    }

    /// The most memory that a call takes, in MB, and how long it keeps a processor busy, in ms.
    fn cost(&self, home: &str, words: &[&str]) -> Outcome<(f64, f64)> {
        const MEASURE: &str = "import resource, subprocess, sys\n\
            subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n\
            used = resource.getrusage(resource.RUSAGE_CHILDREN)\n\
            print(used.ru_maxrss, (used.ru_utime + used.ru_stime) * 1000)";
        let mut command = Command::new("python3");
        command.args(["-c", MEASURE]).arg(&self.outlive).args(words).current_dir(&self.dir);
        command.env("OUTLIVE_HOME", self.dir.join(home)).env("CW_HOME", self.dir.join("none"));
        let said = String::from_utf8(command.output()?.stdout)?;
        let numbers: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
        match numbers?[..] {
            [kilobytes, processor] => Ok((kilobytes / 1024.0, processor)),
            _ => Err(format!("not measured: {said}").into()),
        }
    }
}

/// A run of about 3.4 KB, as cool-workflow writes them.
fn state(repo: usize, run: usize) -> String {
    const NUMBERS: [&str; 10] = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
    let mixed = repo * 7_919 + run * 104_729;
    let (month, day, hour) = (1 + mixed % 9, 1 + mixed / 9 % 28, mixed / 252 % 24);
    let status = ["completed", "completed", "failed", "running", "pending"][mixed / 3 % 5];
    let tasks: Vec<String> = (0..12)
        .map(|task| {
            let status = if task == 0 { status } else { "completed" };
            format!(
                r#"{{"id":"task-{task}","status":"{status}","phase":"work","title":"Task {task} of the run","prompt":"{}","dependsOn":[],"attempts":1}}"#,
                "do what has to be done here, and say how. ".repeat(2)
            )
        })
        .collect();
    let feedback = if mixed.is_multiple_of(11) { r#"{"id":"f1","status":"open","text":"look again"}"# } else { "" };
    format!(
        r#"{{"schemaVersion":1,"id":"run-{repo:02}-{run:06}","createdAt":"2026-0{month}-{day:02}T{hour:02}:{:02}:{:02}.{:03}Z","updatedAt":"2026-09-30T00:00:00.000Z","cwd":"/repo","workflow":{{"id":"workflow-{}","title":"Workflow {} of {}","summary":"","app":{{"id":"app-{}","version":"1.2.0"}},"limits":{{"maxAgents":8}}}},"inputs":{{"question":"why is {} not {} in part {}"}},"loopStage":"act","phases":[{{"id":"work","name":"Work","status":"pending","taskIds":[]}}],"tasks":[{}],"dispatches":[{{"id":"d1","backendId":"node"}}],"commits":[{{"id":"c1","verifierGated":true}}],"feedback":[{feedback}],"paths":{{"runDir":"/repo/.cw/runs/x"}}}}"#,
        mixed % 60,
        mixed / 60 % 60,
        mixed % 1_000,
        mixed % 20,
        NUMBERS[mixed % 10],
        NUMBERS[repo % 10],
        mixed % 10,
        NUMBERS[mixed / 7 % 10],
        NUMBERS[mixed / 13 % 10],
        mixed % 5_000,
        tasks.join(","),
    )
}
