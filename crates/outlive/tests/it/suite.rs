//! The conformance suite on every store, and the suite itself on stores with a defect.

use std::collections::BTreeSet;

use outlive::conformance::{CHECKS, Check, Ground};
use outlive::testing::ManualClock;

use crate::ground::{BucketGround, HttpGround, MemoryGround, PostgresGround, SqliteGround};
use crate::mutant::{DEFECTS, MutantGround};

/// How many promises the contract of `Store` makes.
const PROMISES: u8 = 10;

fn run(check: &str, ground: &dyn Ground) {
    let check = CHECKS.iter().find(|known| known.name == check).unwrap();
    if let Err(wrong) = pollster::block_on((check.run)(ground)) {
        panic!("promise {}: {wrong}", check.promise);
    }
}

fn on_memory(check: &str) {
    run(check, &MemoryGround::new(ManualClock::new()));
}

fn on_sqlite(check: &str) {
    run(check, &SqliteGround::new(ManualClock::new()));
}

fn on_postgres(check: &str) {
    run(check, &PostgresGround::new(ManualClock::new()));
}

fn on_plain_postgres(check: &str) {
    run(check, &PostgresGround::plain(ManualClock::new()));
}

fn on_bucket(check: &str) {
    run(check, &BucketGround::new(ManualClock::new()));
}

fn on_http(check: &str) {
    run(check, &HttpGround::new(ManualClock::new()));
}

mod http {
    outlive::conformance_tests!(super::on_http);
}

mod bucket {
    outlive::conformance_tests!(super::on_bucket);
}

mod memory {
    outlive::conformance_tests!(super::on_memory);
}

mod sqlite {
    outlive::conformance_tests!(super::on_sqlite);
}

mod postgres {
    outlive::conformance_tests!(super::on_postgres);
}

/// PostgreSQL as an engine that lacks all that any does (docs/engines.md).
mod postgres_plain {
    outlive::conformance_tests!(super::on_plain_postgres);
}

#[test]
fn every_promise_is_checked() {
    let promises: BTreeSet<u8> = CHECKS.iter().map(|check| check.promise).collect();
    assert_eq!(promises, (1..=PROMISES).collect());
}

/// A store that passes with a defect would be a promise that nobody checks.
#[test]
fn every_defect_is_found_at_the_promise_it_breaks() {
    let mut wrong = Vec::new();
    for (defect, promise) in DEFECTS {
        let fails = |check: &&Check| pollster::block_on((check.run)(&MutantGround::new(*defect))).is_err();
        let failed: Vec<&Check> = CHECKS.iter().filter(fails).collect();
        let (at_home, elsewhere): (Vec<_>, Vec<_>) = failed.into_iter().partition(|check| check.promise == *promise);
        if at_home.is_empty() || !elsewhere.is_empty() {
            let names = |checks: &[&Check]| checks.iter().map(|check| check.name).collect::<Vec<_>>();
            let (at_home, elsewhere) = (names(&at_home), names(&elsewhere));
            wrong.push(format!("{defect:?} breaks {promise}: found there by {at_home:?}, elsewhere by {elsewhere:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} defects were missed or misplaced:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_promise_has_a_defect_that_breaks_it() {
    let broken: BTreeSet<u8> = DEFECTS.iter().map(|(_, promise)| *promise).collect();
    assert_eq!(broken, (1..=PROMISES).collect());
}
