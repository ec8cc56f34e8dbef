//! Random histories of writers and sweepers, and an oracle that knows what was published.
//!
//! Writers stop at any point between their start and their end; some go on after they were reaped, some are slow, some
//! have the name of another, the beginning of one, or one in other letters, some write inside another's tree, some trees are
//! plain, and some records name what no run may. The registry is copied, records are forged, a program may keep a record of its
//! own, and data of others lies beside and inside the trees ([`super::hostile`]); copies are swept like the original. Two
//! sweepers work at a time. After every step nothing that was published, nothing of a writer that holds its run, and
//! nothing of others may be gone; after a last sweep nothing is left but what a manifest names, of those who published as of
//! those who did not, the trees that are in each other's way, and what is of others.
//!
//! `OUTLIVE_SWEEP_HISTORIES=10000` for more, `OUTLIVE_SWEEP_SEED=n` to replay one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outlive::engine::sweeper::{SweepPolicy, sweep};
use outlive::lifecycle::Report;
use outlive::ownership::handle::RunHandle;
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::testing::SeededEntropy;

use super::field::Field;
use super::hostile::{Hostile, record_of};
use super::yard::{HOUR, attempt_of};

/// How many there are where all is in a bucket, and where it is in memory and a directory.
const IN_BUCKETS: u64 = 8;
const IN_DIRECTORIES: u64 = 120;
const STEPS: usize = 60;
const LEASE: Duration = Duration::from_secs(60);

/// How far a writer has come.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    Writing,
    /// Its manifest is there; nothing names it yet.
    WriteOutcome,
    /// Its record names the manifest: it is published, whatever comes.
    Named,
    /// The pointer does, too.
    Pointed,
    Over,
}

struct Writer {
    registry: Registry,
    handle: Option<RunHandle>,
    name: String,
    stage: Stage,
    /// It will say no more, and does not know it.
    crashed: bool,
    beats: bool,
    manifest: Option<String>,
    /// What its tree is in: the place, or the tree of another.
    base: String,
    /// Its tree has no attempts.
    plain: bool,
    /// What it has written.
    mine: BTreeSet<String>,
    /// Where the record is that its program keeps of its own, with a lease that lasts.
    own_record: Option<String>,
}

impl Writer {
    /// By what a manifest names an object of its: a plain one by itself, others by their attempt.
    fn named(&self, path: &str) -> String {
        if self.plain { path.to_owned() } else { path.rsplit_once('/').unwrap().0.to_owned() }
    }
}

#[derive(Default)]
struct Oracle {
    /// Everything that was ever written, by what runs are called.
    written: BTreeMap<String, BTreeSet<String>>,
    /// Whose trees are in each other's way.
    clashing: BTreeSet<String>,
    /// What readers may be reading.
    published: BTreeSet<String>,
    /// What any manifest names, whether it was published or its writer stopped before.
    in_manifests: BTreeSet<String>,
    /// What is of others, in the place.
    of_others: BTreeSet<String>,
}

impl Oracle {
    async fn check(&self, yard: &Field, writers: &[Writer], seed: u64, step: usize) {
        let there: BTreeSet<String> = yard.shards().await.into_iter().collect();
        let gone: Vec<_> = self.published.difference(&there).collect();
        assert!(gone.is_empty(), "seed {seed}, step {step}: published and gone: {gone:?}");
        let gone: Vec<_> = self.of_others.difference(&there).collect();
        assert!(gone.is_empty(), "seed {seed}, step {step}: of others and gone: {gone:?}");
        for writer in writers.iter().filter(|writer| writer.own_record.is_some()) {
            let gone: Vec<_> = writer.mine.difference(&there).collect();
            assert!(gone.is_empty(), "seed {seed}, step {step}: its program goes on, and gone: {gone:?}");
        }
        for writer in writers {
            let Some(handle) = &writer.handle else { continue };
            let run = yard.look().get(handle.id()).await.unwrap();
            if run.run.is_current(handle.fence().epoch) && run.state == outlive::run::StateName::Running {
                let gone: Vec<_> = writer.mine.difference(&there).collect();
                assert!(gone.is_empty(), "seed {seed}, step {step}: in flight and gone: {gone:?}");
            }
        }
    }
}

async fn go_on(yard: &Field, writer: &mut Writer, oracle: &mut Oracle, draw: &SeededEntropy) {
    let Some(handle) = &writer.handle else { return };
    match writer.stage {
        Stage::Writing => {
            let (part, attempt) = (draw.below(3) as u32, draw.below(12) as u32);
            let path = match writer.plain {
                true => format!("shards/run_id={}/part-{part}-{attempt}.sst", writer.name),
                false => format!("{}{}/data.sst", writer.base, attempt_of(&writer.name, part, attempt)),
            };
            yard.put(&path, b"12345").await;
            oracle.written.entry(writer.name.clone()).or_default().insert(path.clone());
            writer.mine.insert(path);
            // Whoever writes inside another's tree never comes as far.
            if writer.base.is_empty() && draw.one_in(3) {
                let winner = writer.mine.iter().nth(draw.below(writer.mine.len() as u64) as usize).unwrap().clone();
                writer.manifest = Some(yard.publish(&writer.name, &[writer.named(&winner)]).await);
                writer.stage = Stage::WriteOutcome;
                oracle.in_manifests.insert(winner);
            }
        }
        Stage::WriteOutcome => {
            let manifest = writer.manifest.clone();
            // The fence before anything is published: whoever has lost the run stops here.
            match handle.report(Report { manifest_ref: manifest, ..Report::default() }).await {
                Ok(()) => {
                    writer.stage = Stage::Named;
                    publish(yard, writer, oracle).await;
                }
                Err(_) => (writer.stage, writer.crashed) = (Stage::Over, true),
            }
        }
        Stage::Named => {
            let place = format!("{}/{}", yard.place(), writer.manifest.clone().unwrap());
            yard.put("_CURRENT", serde_json::json!({"manifest_ref": place}).to_string().as_bytes()).await;
            writer.stage = Stage::Pointed;
        }
        Stage::Pointed => {
            let handle = writer.handle.take().unwrap();
            let _ = handle.succeed().await;
            writer.stage = Stage::Over;
        }
        Stage::Over => {}
    }
}

async fn publish(yard: &Field, writer: &Writer, oracle: &mut Oracle) {
    let bytes = yard.get(writer.manifest.as_ref().unwrap()).await.unwrap();
    let said = String::from_utf8(bytes).unwrap();
    for path in &writer.mine {
        if said.contains(&format!("{}\"", writer.named(path))) {
            oracle.published.insert(path.clone());
        }
    }
}

/// Names that no run may have, and templates that lead elsewhere.
const HOSTILE: [(&str, &str, &str); 9] = [
    ("..", "shards", "db={db_id:05d}"),
    ("", "shards", "db={db_id:05d}"),
    ("a/b", "shards", "db={db_id:05d}"),
    ("a", "../shards", "db={db_id:05d}"),
    ("a", "/", "db={db_id:05d}"),
    ("a", "shards/run_id=b", "db={db_id:05d}"),
    ("a", "shards", "../{db_id}"),
    ("a", "shards", "/{db_id}"),
    ("a", "shards", ""),
];

/// Somebody begins to write, under a name that may be in the way of others.
async fn begin(yard: &Field, writers: &[Writer], oracle: &mut Oracle, draw: &SeededEntropy) -> Option<Writer> {
    let registry = yard.process().await;
    let mut spec = yard.spec();
    let output = spec.output.as_mut().unwrap();
    let other = (!writers.is_empty()).then(|| &writers[draw.below(writers.len() as u64) as usize]);
    let mut base = String::new();
    match (draw.below(12), other) {
        (0, Some(other)) => {
            oracle.clashing.insert(other.name.clone());
            output.run_id = Some(other.name.clone());
        }
        (1, Some(other)) => {
            let name = other.name.chars().take(other.name.chars().count() - 1).collect::<String>();
            output.run_id = Some(name).filter(|name| writers.iter().all(|writer| writer.name != *name));
        }
        (2, Some(other)) => {
            let name = format!("{}{}", other.name, ["0", "_", ".json", "_run_id=x", "é🙂"][draw.below(5) as usize]);
            output.run_id = Some(name).filter(|name| writers.iter().all(|writer| writer.name != *name));
        }
        (3, Some(other)) if other.base.is_empty() => {
            base = format!("shards/run_id={}/", other.name);
            output.prefix = format!("{}/{}", output.prefix, base.trim_end_matches('/'));
            yard.make(&base).await;
            oracle.clashing.insert(other.name.clone());
        }
        (4, _) => {
            let (run_id, shards, template) = HOSTILE[draw.below(HOSTILE.len() as u64) as usize];
            output.run_id = Some(run_id.into());
            (output.shard_prefix, output.db_path_template) = (shards.into(), template.into());
            // It is refused, or it is nobody's: nothing is ever written there.
            if let Ok(handle) = registry.start(spec).await {
                let _ = handle.fail("hostile", "nothing is here").await;
            }
            return None;
        }
        _ => {}
    }
    // Whoever is in another's way is as others are.
    let plain = base.is_empty() && output.run_id.is_none() && draw.one_in(3);
    if plain {
        *output = output.clone().laid_out("shards");
    }
    let named = output.run_id.clone();
    let handle = registry.start(spec).await.unwrap();
    let name = named.unwrap_or_else(|| handle.id().to_string());
    if !base.is_empty() {
        oracle.clashing.insert(name.clone());
    }
    Some(Writer {
        registry,
        handle: Some(handle),
        name,
        stage: Stage::Writing,
        crashed: false,
        beats: true,
        manifest: None,
        base,
        plain,
        mine: BTreeSet::new(),
        own_record: None,
    })
}

/// The program of a writer keeps a record of its own, under the run's id, and goes on whatever becomes of the run.
async fn keep_own_record(yard: &Field, writer: &mut Writer) {
    let Field::Bucket(bucket) = yard else { return };
    let is_own = writer.handle.as_ref().is_some_and(|handle| handle.id().to_string() == writer.name);
    if !is_own || writer.plain || !writer.base.is_empty() || writer.own_record.is_some() {
        return;
    }
    let name = &writer.name;
    let key = format!("{}/runs/2020-01-01T00:00:00.000000Z_run_id={name}_{}/run.yaml", bucket.prefix, "1".repeat(32));
    let record = record_of(name, &yard.place(), "running", "2220-01-01T00:00:00Z");
    bucket.store.raw_put(&key, record.as_bytes()).await.unwrap();
    // What was swept of it before is gone.
    let there: BTreeSet<String> = yard.shards().await.into_iter().collect();
    writer.mine.retain(|path| there.contains(path));
    writer.own_record = Some(key);
}

/// Something that is another's happens: in the place, in the registry, or beside it.
async fn interfere(
    yard: &Field,
    hostile: &mut Hostile,
    writers: &mut [Writer],
    oracle: &mut Oracle,
    draw: &SeededEntropy,
) {
    let index = (!writers.is_empty()).then(|| draw.below(writers.len() as u64) as usize);
    match (draw.below(4), index) {
        (0, Some(index)) if writers[index].base.is_empty() => {
            // Somebody writes inside the tree of a run, and has no record here.
            let path = match writers[index].plain {
                true => format!("shards/run_id={}/shards/run_id=inner/x", writers[index].name),
                false => format!("{}/shards/run_id=inner/x", attempt_of(&writers[index].name, 0, 0)),
            };
            yard.put(&path, b"12345").await;
            oracle.of_others.insert(path);
        }
        (1, Some(index)) => keep_own_record(yard, &mut writers[index]).await,
        _ => {
            let name = index.map(|index| writers[index].name.clone());
            if hostile.act(yard, name.as_deref(), draw).await {
                oracle.clashing.extend(name);
            }
        }
    }
}

/// How many objects were swept while writers were at work.
async fn history(yard: Field, seed: u64) -> u64 {
    let draw = SeededEntropy::new(seed);
    let (mut writers, mut oracle): (Vec<Writer>, Oracle) = Default::default();
    let spare = SweepPolicy { grace: Duration::from_secs(30), unsure: Duration::ZERO, ..SweepPolicy::default() };
    let (mut swept, mut crashed) = (0, 0);
    let mut hostile = Hostile::new(&yard).await;
    oracle.of_others.extend(hostile.precious.iter().cloned());
    for step in 0..STEPS {
        match draw.below(14) {
            0..=1 => {
                let writer = begin(&yard, &writers, &mut oracle, &draw).await;
                writers.extend(writer);
            }
            2..=6 if !writers.is_empty() => {
                let index = draw.below(writers.len() as u64) as usize;
                go_on(&yard, &mut writers[index], &mut oracle, &draw).await;
            }
            7 if !writers.is_empty() => {
                let index = draw.below(writers.len() as u64) as usize;
                let writer = &mut writers[index];
                // It dies, or is only silent and goes on as a zombie.
                writer.beats = false;
                crashed += 1;
            }
            8 if !writers.is_empty() => {
                let index = draw.below(writers.len() as u64) as usize;
                if writers[index].stage == Stage::Writing
                    && let Some(handle) = writers[index].handle.take()
                {
                    let _ = handle.fail("exit", "1").await;
                    writers[index].stage = Stage::Over;
                }
            }
            9 => {
                for _ in 0..1 + draw.below(8) {
                    yard.clock().pass(LEASE / 3);
                    for writer in writers.iter().filter(|writer| writer.beats) {
                        let _ = writer.registry.tick().await;
                    }
                }
            }
            10 => drop(Reaper::new(None).pass(&yard.process().await).await.unwrap()),
            11 => interfere(&yard, &mut hostile, &mut writers, &mut oracle, &draw).await,
            12 => {
                let deleted = hostile.sweep_copies(&yard, &spare).await;
                assert_eq!(deleted, 0, "seed {seed}, step {step}: the sweep of a copy deleted something");
            }
            _ => {
                let (one, other) = (yard.process().await, yard.process().await);
                let told: u64 = std::thread::scope(|scope| {
                    let threads = [&one, &other]
                        .map(|registry| scope.spawn(|| pollster::block_on(sweep(registry, &spare)).unwrap().objects));
                    threads.map(|thread| thread.join().unwrap()).iter().sum()
                });
                swept += told;
            }
        }
        oracle.check(&yard, &writers, seed, step).await;
        assert_eq!(hostile.lost_elsewhere(&yard).await, None, "seed {seed}, step {step}: deleted elsewhere");
    }
    hostile.leave(&yard).await;
    finish(&yard, &mut writers, &oracle, seed).await;
    let (all, clashing) = (writers.len(), oracle.clashing.len());
    println!(
        "seed {seed}: {all} writers, {clashing} names clash, {crashed} fell silent, {swept} objects swept on the way"
    );
    swept
}

/// Everybody stops, and what is left is what was published, or may be needed by somebody.
async fn finish(yard: &Field, writers: &mut [Writer], oracle: &Oracle, seed: u64) {
    for writer in writers.iter_mut() {
        if let (Some(key), Field::Bucket(bucket)) = (writer.own_record.take(), yard) {
            let record = record_of(&writer.name, &yard.place(), "failed", "2020-01-01T00:10:00Z");
            bucket.store.raw_put(&key, record.as_bytes()).await.unwrap();
        }
    }
    // They say so when all has been looked at.
    let _silent: Vec<RunHandle> = writers.iter_mut().filter_map(|writer| writer.handle.take()).collect();
    yard.clock().pass(HOUR);
    yard.reap().await;
    yard.clock().pass(HOUR);
    let spare = SweepPolicy { grace: Duration::ZERO, unsure: Duration::ZERO, ..SweepPolicy::default() };
    let report = yard.sweep(&spare, false).await;
    oracle.check(yard, &[], seed, usize::MAX).await;
    // A zombie may have named what had been swept: whether its manifest is understood nobody knows, and that is told.
    let is_told = |name: &str| {
        let of = format!("/run_id={name}");
        report
            .problems
            .iter()
            .any(|told| told.what.ends_with(&of) && told.why.contains("nothing of what it names is there"))
    };
    for path in yard.shards().await {
        let name = path.split('/').nth(1).unwrap().strip_prefix("run_id=").unwrap();
        // A manifest that was there when its writer stopped keeps what it names, and nothing else; what is in the way of
        // others is for people to look into.
        let is_of_other = oracle.of_others.contains(&path);
        let stays =
            is_of_other || oracle.in_manifests.contains(&path) || oracle.clashing.contains(name) || is_told(name);
        assert!(stays, "seed {seed}: {path} was left behind");
    }
    assert_eq!(yard.sweep(&spare, false).await.objects, 0);
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("OUTLIVE_SWEEP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OUTLIVE_SWEEP_HISTORIES").unwrap_or(default),
    }
}

#[test]
fn random_histories_lose_nothing_published_in_a_bucket() {
    let swept: u64 =
        seeds(IN_BUCKETS).map(|seed| pollster::block_on(async { history(Field::bucket().await, seed).await })).sum();
    assert!(swept > 0, "histories in which nothing is swept prove nothing");
    println!("{} histories in buckets, {swept} objects swept, no violation", seeds(IN_BUCKETS).count());
}

#[test]
fn random_histories_lose_nothing_published_in_a_directory() {
    let swept: u64 = seeds(IN_DIRECTORIES).map(|seed| pollster::block_on(history(Field::directory(), seed))).sum();
    assert!(swept > 0, "histories in which nothing is swept prove nothing");
    println!("{} histories in directories, {swept} objects swept, no violation", seeds(IN_DIRECTORIES).count());
}
