//! Finding orphans: L03 to L08, L15 and L20.

use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use outlive::lifecycle::health::Health;
use outlive::owner::{Evidence, Identity};
use outlive::ownership::handle::RunHandle;
use outlive::ownership::reaper::Reaper;
use outlive::registry::Registry;
use outlive::run::{Actor, End, StateName};
use outlive::store::Error;
use outlive::testing::{ManualClock, SeededEntropy, person, spec, stranger};
use outlive::time::Clock;

use crate::world::{LEASE, Watched, World, on_each, unseen, with_lease};

const TICK: Duration = Duration::from_micros(1);

#[test]
fn l03_exactly_the_lapsed_are_reaped_and_only_once() {
    on_each(async |world| {
        let (silent, fresh) = (world.process(), world.process());
        let lapsed = [silent.start(spec("a")).await.unwrap(), silent.start(spec("b")).await.unwrap()];
        let kept = fresh.start(spec("c")).await.unwrap();
        let patient = with_lease(spec("d"), LEASE, LEASE * 4);
        let patient = silent.start(patient).await.unwrap();
        world.clock.pass(LEASE);
        fresh.tick().await.unwrap();
        let reaped = world.reap().await;
        assert!(reaped.ended.is_empty(), "exactly at the threshold: not yet");
        assert_eq!(reaped.live, 4);

        world.clock.pass(TICK);
        let mut ended: Vec<_> = world.reap().await.ended.iter().map(|run| run.id).collect();
        ended.sort();
        let mut expected = lapsed.each_ref().map(|handle| handle.id());
        expected.sort();
        assert_eq!(ended, expected);
        assert_eq!(world.reap().await.ended.len(), 0);
        for spared in [&kept, &patient] {
            assert_eq!(world.see(spared.id()).await.state, StateName::Running);
        }
    });
}

/// So many runs whose owner has not been heard of for longer than its lease.
async fn orphans(world: &World, count: usize) -> (Registry, Vec<RunHandle>) {
    let owner = world.process();
    let mut handles = Vec::new();
    for _ in 0..count {
        handles.push(owner.start(spec("orphan")).await.unwrap());
    }
    world.clock.pass(LEASE + TICK);
    (owner, handles)
}

#[test]
fn l04_eight_reapers_a_thousand_orphans() {
    const REAPERS: usize = 8;
    on_each(async |world| {
        let orphans_left = if world.is_slow { 100 } else { 1_000 };
        let (_owner, handles) = orphans(&world, orphans_left).await;
        // Nobody writes before all have looked: every reaper goes for every orphan.
        let all_looked = Arc::new(Barrier::new(REAPERS));
        let passes: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let reap = |_| {
                let (all_looked, first) = (all_looked.clone(), AtomicBool::new(true));
                let connection = pollster::block_on(world.ground.again());
                let store = Watched::new(connection, move |call| {
                    if call == "update" && first.swap(false, Ordering::SeqCst) {
                        all_looked.wait();
                    }
                    Ok(())
                });
                let reaper = world.process_on(store.clone(), unseen(2));
                scope.spawn(move || {
                    let reaped = pollster::block_on(Reaper::new(None).pass(&reaper)).unwrap();
                    (reaped.ended.len(), store.lost.load(Ordering::SeqCst))
                })
            };
            let threads: Vec<_> = (0..REAPERS).map(reap).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let told: usize = passes.iter().map(|(told, _)| told).sum();
        let lost: usize = passes.iter().map(|(_, lost)| lost).sum();
        println!("told {told}, lost {lost}, by reaper {passes:?}");
        assert_eq!(told, orphans_left);
        assert_eq!(lost, orphans_left * (REAPERS - 1), "a race in which nobody lost has proved nothing");
        for handle in &handles {
            let run = world.record(handle.id()).await.run;
            assert_eq!((run.reaps, run.epoch.0), (1, 2), "{run:?}");
        }
    });
}

#[test]
fn l04_reaps_before_a_store_failure_are_reported() {
    const ORPHANS: usize = 100;
    on_each(async |world| {
        let _orphans = orphans(&world, ORPHANS).await;
        let updates = AtomicUsize::new(0);
        let store = Watched::new(world.store.clone(), move |call| {
            let second = call == "update" && updates.fetch_add(1, Ordering::SeqCst) == 1;
            if second { Err(Error::Unavailable("away".into())) } else { Ok(()) }
        });
        let (reading, mut reaper) = (world.process_on(store, unseen(2)), Reaper::new(None));
        let first = reaper.pass(&reading).await.unwrap().ended.len();
        assert!(0 < first && first < ORPHANS, "{first} of {ORPHANS} were reaped before the failure");
        assert_eq!(reaper.pass(&reading).await.unwrap().unjudged.len(), ORPHANS - first, "it was blind");
        world.clock.pass(LEASE + TICK);
        assert_eq!(reaper.pass(&reading).await.unwrap().ended.len(), ORPHANS - first);
    });
}

#[test]
fn l05_a_beat_between_look_and_write_wins() {
    on_each(async |world| {
        let owner = Arc::new(world.process());
        let handle = owner.start(spec("job")).await.unwrap();
        world.clock.pass(LEASE * 2);
        let (beating, beaten) = (owner.clone(), Arc::new(AtomicBool::new(false)));
        let told = beaten.clone();
        let store = Watched::new(world.store.clone(), move |call| {
            if call == "update" {
                pollster::block_on(beating.tick()).unwrap();
                told.store(true, Ordering::SeqCst);
            }
            Ok(())
        });
        let reaper = world.process_on(store, unseen(2));
        let reaped = Reaper::new(None).pass(&reaper).await.unwrap();
        assert!(beaten.load(Ordering::SeqCst), "the reaper wrote nothing, so nothing was raced");
        assert!(reaped.ended.is_empty(), "{reaped:?}");
        assert_eq!(world.see(handle.id()).await.state, StateName::Running);
        assert_eq!(handle.stop_requested(), None);
    });
}

/// A process of this host that does nothing, ended with the test.
struct Bystander(Child);

impl Bystander {
    fn new() -> (Self, Identity) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        (Self(child), identity)
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        // It may be gone already, which is what is wanted.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn l06_owner_killed_on_this_host_is_dead_at_the_next_read() {
    let world = World::sqlite();
    pollster::block_on(async {
        let (bystander, identity) = Bystander::new();
        let owner = world.process_as(identity.clone());
        let handle = owner.start(spec("job")).await.unwrap();
        assert_eq!(world.see(handle.id()).await.state, StateName::Running);
        drop(bystander);
        let seen = world.see(handle.id()).await;
        assert_eq!((seen.state, seen.evidence), (StateName::Dead, Some(Evidence::NoSuchProcess { pid: identity.pid })));
        let reaped = world.reap().await;
        assert_eq!(reaped.ended.iter().map(|run| run.id).collect::<Vec<_>>(), [handle.id()]);
    });
}

#[test]
fn l06_a_process_never_reaps_its_own_runs() {
    on_each(async |world| {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        world.clock.pass(LEASE * 9);
        let reaped = Reaper::new(owner.worker()).pass(&owner).await.unwrap();
        assert!(reaped.ended.is_empty(), "{reaped:?}");
        assert_eq!(world.record(handle.id()).await.run.state.name(), StateName::Running);
    });
}

#[test]
fn l07_pid_missing_here_proves_nothing_about_other_hosts() {
    on_each(async |world| {
        let unused = 4_190_000;
        let mut owners = vec![unseen(unused)];
        // In a registry of one machine another boot can only be an earlier one.
        if world.path.is_none() {
            owners.push(stranger(unused));
        }
        for identity in owners {
            let owner = world.process_as(identity);
            let handle = owner.start(spec("job")).await.unwrap();
            world.clock.pass(LEASE / 2);
            owner.tick().await.unwrap();
            assert!(world.reap().await.ended.is_empty());
            assert_eq!(world.see(handle.id()).await.state, StateName::Running);
            handle.succeed().await.unwrap();
        }
    });
}

#[test]
fn l08_silent_live_owner_is_unresponsive_here_reaped_if_shared() {
    on_each(async |world| {
        let owner = world.process_as(Identity::own());
        let handle = owner.start(spec("hung")).await.unwrap();
        world.clock.pass(LEASE * 9);
        let (seen, reaped) = (world.see(handle.id()).await, world.reap().await);
        if world.path.is_some() {
            assert_eq!((seen.state, seen.health), (StateName::Running, Some(Health::Unresponsive)));
            assert!(reaped.ended.is_empty() && reaped.unresponsive.len() == 1, "{reaped:?}");
            owner.tick().await.unwrap();
            assert_eq!(world.see(handle.id()).await.health, Some(Health::Healthy));
        } else {
            assert_eq!(seen.state, StateName::Dead);
            assert_eq!(reaped.ended.len(), 1);
        }
    });
}

/// The record names a living process as a hung owner, and that process never held the worker's lock. How a real hung
/// owner is ended is shown with the command.
#[test]
fn s_03_record_with_a_bystander_as_owner_harms_no_process() {
    let world = World::sqlite();
    pollster::block_on(async {
        let (mut bystander, identity) = Bystander::new();
        let owner = world.process_as(identity);
        let mut hung = spec("hung");
        hung.policy.limits.hung_after = Some(LEASE * 2);
        let handle = owner.start(hung).await.unwrap();
        world.clock.pass(LEASE * 3);
        let reaped = world.reap().await;
        assert_eq!((reaped.unresponsive.len(), reaped.ended.len()), (1, 0), "{reaped:?}");
        assert_eq!(bystander.0.try_wait().unwrap(), None, "a bystander was killed");
        assert!(world.record(handle.id()).await.run.owner().is_some());
    });
}

#[test]
fn l08_a_pid_that_another_program_has_is_a_dead_owner() {
    let world = World::sqlite();
    pollster::block_on(async {
        let own = Identity::own();
        let earlier =
            Identity { start_ticks: own.start_ticks - 1, pidfs_inode: own.pidfs_inode.map(|inode| inode - 1), ..own };
        let handle = world.process_as(earlier.clone()).start(spec("job")).await.unwrap();
        let seen = world.see(handle.id()).await;
        assert_eq!((seen.state, seen.evidence), (StateName::Dead, Some(Evidence::PidReused { pid: earlier.pid })));
    });
}

#[test]
fn l15_wrong_clocks_of_workers_reap_no_run_and_claim_none_twice() {
    on_each(async |world| {
        let off = |seconds, seed| {
            let clock = ManualClock::new();
            clock.step_wall(seconds);
            Registry::over(world.store.clone(), clock, Arc::new(SeededEntropy::new(seed)), person("ada"), unseen(1))
        };
        let workers = [off(3_600, 101), off(-3_600, 102)];
        for worker in &workers {
            worker.start(spec("job")).await.map(std::mem::forget).unwrap();
        }
        for reaper in &workers {
            let reaped = Reaper::new(None).pass(reaper).await.unwrap();
            assert!(reaped.ended.is_empty(), "{reaped:?}");
        }
        let waiting = workers[0].enqueue(spec("queued")).await.unwrap();
        let mut claims = Vec::new();
        for worker in &workers {
            claims.extend(worker.claim(Default::default(), 5).await.unwrap());
        }
        assert_eq!(claims.iter().map(|claim| claim.id()).collect::<Vec<_>>(), [waiting.id]);
    });
}

#[test]
fn l20_a_reaped_record_tells_who_when_and_on_what_evidence() {
    on_each(async |world| {
        let owner = world.process_as(unseen(31));
        let handle = owner.start(spec("job")).await.unwrap();
        world.clock.pass(LEASE);
        owner.tick().await.unwrap();
        let last_beat = world.clock.now();
        world.clock.pass(LEASE * 2);
        let eve = Actor { user: "eve".into(), host: "tower".into(), pid: 9 };
        let entropy = Arc::new(SeededEntropy::new(500));
        let reaper = Registry::over(world.store.clone(), world.clock.clone(), entropy, eve.clone(), unseen(9));
        Reaper::new(None).pass(&reaper).await.unwrap();

        let run = world.see(handle.id()).await.run;
        let ending = run.ending().unwrap();
        let End::Dead(reap) = &ending.how else { panic!("{run:?}") };
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
        let silent_ms = 2 * lease_ms;
        assert_eq!(reap.evidence, Evidence::LeaseLapsed { silent_ms, lease_ms });
        assert_eq!((&reap.by, reap.last_heard, ending.at), (&eve, last_beat, world.clock.now()));
        let previous = ending.owner.as_ref().unwrap();
        assert_eq!((Some(previous.worker), previous.identity.pid), (owner.worker(), 31));

        let events = reaper.events(handle.id()).await.unwrap();
        let told: Vec<_> = events.iter().map(|event| &*event.action).collect();
        assert_eq!(told, ["enqueue", "claim", "reap"]);
        assert!(events.is_sorted_by_key(|event| event.at));
        assert_eq!((&*events[2].by.user, &events[2].evidence), ("eve", &Some(reap.evidence.clone())));
    });
}
