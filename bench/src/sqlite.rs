//! Register and finish on a local registry, against the same rows in plain prepared SQL.
//!
//! Ours is the whole library: rules, conditional writes, keys, the write-once files of the run, and the order of syncs
//! that lets a result survive the loss of its database. The yardstick commits the same rows as durably.

mod plain;
pub mod python;

use std::path::Path;

use outlive::id::{Entropy, SystemEntropy, WorkerId};
use outlive::lifecycle::{self, Action, Fence, apply, enqueued};
use outlive::policy::Lease;
use outlive::registry::Registry;
use outlive::run::{Key, Run, Spec};
use outlive::store::sqlite::Sharing;
use outlive::store::{Expect, Record, Store, Write, WriteOutcome};
use outlive::testing::{owner, pending, person, stamp};
use outlive::time::{Clock, SystemClock};

use self::plain::{Plain, Rows, Settings};
use crate::rounds::{Plan, Variant, interleave};
use crate::scratch::Outcome;
use crate::time::measure;

const ONE_BY_ONE: Plan = Plan { rounds: 15, slices: 10, units: 10 };
const BATCHED: Plan = Plan { rounds: 9, slices: 2, units: 100 };

/// Measures, and answers whether the library is at least half as fast as plain SQL.
pub fn main(dir: &Path) -> Outcome<bool> {
    let registry = Registry::open_local(&dir.join("ours"), Some(Sharing::Private))?;
    let model = dir.join("ours/registry.db");
    let handle = pollster::block_on(registry.start(spec()))?;
    let id = handle.id();
    let registered = || Rows::read(&model, id);
    let as_registered = [registered()?, registered()?];
    pollster::block_on(handle.succeed())?;
    let [first, second] = as_registered;
    let plain = Plain::create(&dir.join("plain.db"), &model, Settings::Library, first, Rows::read(&model, id)?)?;
    let default = Plain::create(&dir.join("default.db"), &model, Settings::Default, second, Rows::read(&model, id)?)?;

    let units = ONE_BY_ONE.units;
    let ours = || {
        measure(|| {
            (0..units).try_for_each(|_| {
                pollster::block_on(async { registry.start(spec()).await?.succeed().await })?;
                Ok(())
            })
        })
    };
    let measured = interleave(
        ONE_BY_ONE,
        vec![
            Variant::new("outlive", ours),
            Variant::new("plain SQL", || measure(|| plain.register_and_finish(units, 1))),
            Variant::new("plain SQL, late checkpoints", || measure(|| default.register_and_finish(units, 1))),
        ],
    )?;
    println!("register + finish, each in a transaction of its own:");
    measured.print_rates("runs");
    let met = measured.print_ratio(0, 1, Some(0.5..=f64::INFINITY));
    measured.print_ratio(0, 2, None);

    let units = BATCHED.units;
    let worker = WorkerId::draw(SystemClock.now(), &SystemEntropy);
    let measured = interleave(
        BATCHED,
        vec![
            Variant::new("outlive", || measure(|| batch(registry.store(), worker, units))),
            Variant::new("plain SQL", || measure(|| plain.register_and_finish(units, units))),
        ],
    )?;
    println!("register + finish, {units} in each transaction:");
    measured.print_rates("runs");
    measured.print_ratio(0, 1, None);
    pollster::block_on(registry.close());
    Ok(met)
}

fn spec() -> Spec {
    let mut spec = Spec::new("bench", person("ada"));
    spec.name = Some("bench".into());
    spec.keys = vec![Key::limit("bench", 1_000)];
    spec
}

/// Registers and finishes `count` runs in two transactions.
fn batch(store: &dyn Store, worker: WorkerId, count: usize) -> Outcome<()> {
    let (me, entropy) = (person("ada"), &SystemEntropy as &dyn Entropy);
    let now = SystemClock.now();
    let register = |_| -> Outcome<Write> {
        let run = pending(spec(), now, entropy);
        let claim =
            Action::Claim { owner: owner(worker, Lease::default()), early: false, leftovers: Default::default() };
        let claimed = apply(&run, &claim, &me, now).map_err(|refusal| refusal.to_string())?;
        let events = vec![enqueued(&run, &me), claimed.event];
        Ok(Write { expect: Expect::Absent, run: claimed.run, events, ended: None, stamp: stamp(entropy) })
    };
    let writes: Vec<Write> = (0..count).map(register).collect::<Outcome<_>>()?;
    let runs: Vec<Run> = writes.iter().map(|write| write.run.clone()).collect();
    let written = pollster::block_on(store.commit(writes))?;
    let finish = |(run, written): (&Run, WriteOutcome)| -> Outcome<Write> {
        let WriteOutcome::Done(revision) = written else { return Err(format!("refused: {written:?}").into()) };
        let record = Record { run: run.clone(), revision, stamp: stamp(entropy) };
        let fence = Fence { worker, epoch: run.epoch };
        let finish = Action::Finish { fence, outcome: lifecycle::Outcome::SUCCEEDED, exit: None };
        let finished = apply(&record.run, &finish, &me, now).map_err(|refusal| refusal.to_string())?;
        Ok(Write::change(&record, finished, stamp(entropy)))
    };
    let writes: Vec<Write> = runs.iter().zip(written).map(finish).collect::<Outcome<_>>()?;
    let written = pollster::block_on(store.commit(writes))?;
    match written.iter().find(|written| !matches!(written, WriteOutcome::Done(_))) {
        Some(refused) => Err(format!("refused: {refused:?}").into()),
        None => Ok(()),
    }
}
