//! Shares: runs of several tenants are claimed in turn, on every store.

use std::collections::BTreeMap;

use outlive::engine::claims::Claims;
use outlive::registry::{Planned, Registry};
use outlive::run::Spec;
use outlive::testing::spec;

use crate::world::on_each;

fn of(share: &str) -> Planned {
    let share = (!share.is_empty()).then(|| share.parse().unwrap());
    Planned { spec: Spec { share, ..spec("job") }, after: Vec::new() }
}

/// Claims up to `limit` runs, finishes them, and answers with their tenants in the order of their claims.
async fn claim(claims: &mut Claims, worker: &Registry, limit: usize) -> Vec<String> {
    let (handles, _) = claims.claim(worker, limit, &|_| true).await.unwrap();
    let mut tenants = Vec::new();
    for handle in handles {
        tenants.push(handle.run().tenant().to_owned());
        handle.succeed().await.unwrap();
    }
    tenants
}

#[test]
fn a_share_behind_many_runs_of_another_has_every_second_turn() {
    const MANY: usize = 120;
    const FEW: usize = 6;
    on_each(async |world| {
        let worker = &world.process();
        let mut claims = Claims::of([]);
        worker.enqueue_each((0..MANY).map(|_| of("a")).collect()).await.unwrap();
        assert_eq!(claim(&mut claims, worker, 4).await, ["a"; 4]);
        worker.enqueue_each((0..FEW).map(|_| of("b")).collect()).await.unwrap();
        // Runs without a share are one of the shares.
        worker.enqueue_each((0..FEW).map(|_| of("")).collect()).await.unwrap();
        let mut claimed = Vec::new();
        for _ in 0..3 * FEW {
            claimed.extend(claim(&mut claims, worker, 1).await);
        }
        // The share that had four turns at once waits for one turn of each that came up.
        for (tenant, waits) in [("a", 3), ("b", 0), ("", 0)] {
            let places = claimed.iter().enumerate().filter(|(_, of)| *of == tenant).map(|(place, _)| place);
            let late: Vec<usize> = places
                .enumerate()
                .filter(|(turn, place)| *place >= 3 * (turn + 1) + waits)
                .map(|(turn, _)| turn)
                .collect();
            assert!(late.is_empty(), "turns {late:?} of `{tenant}` came late: {claimed:?}");
        }
        // What is left is of one share alone, and nothing of it is held back.
        assert_eq!(claim(&mut claims, worker, 5).await, ["a"; 5]);
    });
}

#[test]
fn weights_divide_claims_and_priorities_come_first() {
    const EACH: usize = 24;
    on_each(async |world| {
        let worker = &world.process();
        let mut claims = Claims::of([]);
        let plan = (0..EACH).flat_map(|_| [of("heavy:3"), of("light")]).collect();
        worker.enqueue_each(plan).await.unwrap();
        let mut urgent = of("late");
        urgent.spec.priority = -1;
        worker.enqueue_each(vec![urgent]).await.unwrap();
        assert_eq!(claim(&mut claims, worker, 1).await, ["late"]);
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        // One by one, and several at once.
        for limit in [1, 1, 1, 1, 4, 8, 4] {
            for tenant in claim(&mut claims, worker, limit).await {
                *counts.entry(tenant).or_default() += 1;
            }
        }
        assert_eq!((counts["heavy"], counts["light"]), (15, 5), "{counts:?}");
        // What a share cannot use goes to the others.
        let rest = claim(&mut claims, worker, 100).await;
        assert_eq!(rest.len(), 2 * EACH - 20, "{rest:?}");
    });
}

#[test]
fn a_share_whose_runs_are_not_wanted_holds_up_no_other() {
    on_each(async |world| {
        let worker = &world.process();
        let mut claims = Claims::of([]);
        worker.enqueue_each(["a", "a", "b", "c"].map(of).into()).await.unwrap();
        let (handles, _) = claims.claim(worker, 2, &|run| run.tenant() != "a").await.unwrap();
        let mut tenants: Vec<String> = handles.iter().map(|handle| handle.run().tenant().to_owned()).collect();
        tenants.sort();
        assert_eq!(tenants, ["b", "c"]);
        for handle in handles {
            handle.succeed().await.unwrap();
        }
    });
}
