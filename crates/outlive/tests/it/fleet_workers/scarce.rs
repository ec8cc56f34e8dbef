//! What there is not enough of for all: runs of which there may be one, and rates.

use std::time::Duration;

use outlive::Failed;
use outlive::error::Error;
use outlive::registry::{Parent, Planned, Registry};
use outlive::run::{Key, Release, Spec, StateName};
use outlive::testing::spec;

use super::eager;
use crate::world::on_each;

fn only(kind: &str) -> Spec {
    Spec { keys: vec![Key::unique("report")], ..spec(kind) }
}

#[test]
fn of_many_that_add_a_unique_run_one_makes_it_and_all_name_it() {
    const ADDERS: usize = 12;
    on_each(async |world| {
        let adders: Vec<_> = (0..ADDERS).map(|_| world.process()).collect();
        let answers: Vec<_> = std::thread::scope(|scope| {
            let add = |adder| scope.spawn(move || pollster::block_on(Registry::enqueue_once(adder, only("job"))));
            let adding: Vec<_> = adders.iter().map(add).collect();
            adding.into_iter().map(|adding| adding.join().unwrap().unwrap()).collect()
        });
        let made: Vec<_> = answers.iter().filter(|added| added.made).map(|added| added.run.id).collect();
        let told = answers.iter().filter(|added| !added.made && made.contains(&added.run.id)).count();
        println!("{} made it, {told} were told which", made.len());
        assert_eq!((made.len(), told), (1, ADDERS - 1));
        assert!(!adders[0].enqueue_once(only("job")).await.unwrap().made);
        adders[0].cancel(made[0], None).await.unwrap();
        let next = adders[0].enqueue_once(only("job")).await.unwrap();
        assert!(next.made && next.run.id != made[0], "its end did not make room for another");
    });
}

#[test]
fn unique_run_in_a_plan_stands_for_the_one_to_be_added() {
    on_each(async |world| {
        let maker = world.process();
        let there = maker.enqueue(only("job")).await.unwrap();
        let planned = |spec| Planned { spec, after: Vec::new() };
        let plan = vec![planned(spec("other")), planned(only("job")), planned(only("job"))];
        let added = maker.enqueue_each(plan).await.unwrap();
        let made: Vec<bool> = added.iter().map(|added| added.made).collect();
        assert_eq!(made, [true, false, false]);
        assert!(added[1..].iter().all(|added| added.run.id == there.id));
        let waits = Planned { spec: spec("child"), after: vec![(Parent::Planned(0), Release::Success)] };
        let refused = maker.enqueue_each(vec![planned(only("job")), waits]).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid(_)), "{refused}");
    });
}

#[test]
fn rate_holds_for_all_workers_and_waiting_runs_name_it() {
    const RUNS: usize = 5;
    on_each(async |world| {
        // There every look costs requests by the run; that the rate holds is a check of the suite.
        if world.is_slow {
            return;
        }
        let maker = world.process();
        let minute = Duration::from_secs(60);
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            let rated = Spec { keys: vec![Key::rate("api", 2, minute)], ..spec("job") };
            runs.push(maker.enqueue(rated).await.unwrap().id);
        }
        let free = maker.enqueue(spec("job")).await.unwrap();
        let workers = [(); 2].map(|()| {
            eager(world.process()).concurrency(4).handle_blocking("job", |_| Ok::<_, Failed>(())).start().unwrap()
        });
        let mut done = 0;
        for expected in [2, 4, RUNS] {
            let ended = || workers.iter().map(|worker| worker.tally().succeeded).sum::<u64>() as usize;
            while ended() < expected + 1 {
                std::thread::yield_now();
            }
            // A look later no other has started.
            let claims: u64 = workers.iter().map(|worker| worker.tally().claimed).sum();
            assert_eq!(claims as usize, expected + 1, "more have started than the rate says");
            let mut waiting = Vec::new();
            for id in &runs {
                let seen = world.see(*id).await;
                waiting.extend((seen.state == StateName::Pending).then_some(seen.reason));
            }
            assert_eq!(waiting.len(), RUNS - expected);
            for reason in waiting {
                assert!(
                    reason.as_ref().is_some_and(|reason| reason.starts_with("waits for rate `api` of 2 in 1m 0s")),
                    "{reason:?}"
                );
            }
            assert_eq!(world.see(free.id).await.state, StateName::Succeeded);
            done = expected;
            world.clock.pass(minute);
            workers.iter().for_each(|worker| worker.waker().wake());
        }
        assert_eq!(done, RUNS);
        for worker in workers {
            worker.stop();
        }
    });
}
