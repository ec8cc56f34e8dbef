//! What is between a store that is lent and whoever borrows it: answers that are lost, and owners that are heard meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outlive::filter::Filter;
use outlive::id::{Stamp, SystemEntropy};
use outlive::lifecycle::health::Health;
use outlive::lifecycle::{Action, Observed, apply};
use outlive::owner::Evidence;
use outlive::run::{Run, StateName};
use outlive::store::http::{HttpStore, Token};
use outlive::store::sqlite::SqliteStore;
use outlive::store::{Change, Error, Order, Page, Selection, Store};
use outlive::testing::lender::Lender;
use outlive::testing::proxy::{Fate, Proxy, Request};
use outlive::testing::{ManualClock, SeededEntropy, person, spec};

use crate::ground::MemoryGround;
use crate::world::{LEASE, World, unseen};

/// A store that is lent through somebody who decides what becomes of each request.
async fn through(decide: impl Fn(&Request) -> Fate + Send + Sync + 'static) -> (Proxy, Arc<HttpStore>) {
    let lender = Lender::of(Arc::new(MemoryGround::new(ManualClock::new()).make()));
    let proxy = Proxy::new(lender.port(), decide);
    let address = format!("http://127.0.0.1:{}", proxy.port()).parse().unwrap();
    let store = HttpStore::open_as(&address, None).await.unwrap();
    (proxy, Arc::new(store))
}

/// Loses the first answers to a call.
fn losing(call: &'static str, answers: usize) -> impl Fn(&Request) -> Fate + Send + Sync + 'static {
    let left = AtomicUsize::new(answers);
    move |request| {
        let is_meant = request.target.ends_with(call);
        let less = |left: usize| left.checked_sub(1).filter(|_| is_meant);
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(_) => Fate::LoseAnswer,
            Err(_) => Fate::Pass,
        }
    }
}

#[test]
fn f_59_a_write_whose_answer_was_lost_is_known_by_its_stamp() {
    pollster::block_on(async {
        let (_proxy, store) = through(losing("/commit", 1)).await;
        let world = World::memory();
        let process = world.process_on(store.clone(), unseen(1));
        let run = process.enqueue(spec("job")).await.unwrap();
        assert_eq!(store.events(run.id).await.unwrap().len(), 1, "it was made twice");
        let (_proxy, store) = through(losing("/commit", 100)).await;
        let error = world.process_on(store, unseen(1)).enqueue(spec("job")).await.unwrap_err();
        assert!(matches!(error, outlive::error::Error::Store(Error::Unknown(_))), "{error:?}");
    });
}

#[test]
fn f_59_a_claim_whose_answer_was_lost_is_ours() {
    pollster::block_on(async {
        let (_proxy, store) = through(losing("/change", 1)).await;
        let world = World::memory();
        let process = world.process_on(store.clone(), unseen(1));
        let run = process.enqueue(spec("job")).await.unwrap();
        let claimed = process.claim(Filter::default(), 1).await.unwrap();
        assert_eq!(claimed.iter().map(|handle| handle.run().id).collect::<Vec<_>>(), [run.id]);
        assert_eq!(store.get(&[run.id]).await.unwrap()[0].run.epoch.0, 1, "it was claimed twice");
    });
}

#[test]
fn request_that_never_arrived_is_sent_again_or_reported() {
    pollster::block_on(async {
        let left = AtomicUsize::new(2);
        let less = |left: usize| left.checked_sub(1);
        let (proxy, store) = through(move |request| {
            let is_list = request.target.ends_with("/list");
            match is_list.then(|| left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)) {
                Some(Ok(_)) => Fate::Cut,
                _ => Fate::Pass,
            }
        })
        .await;
        assert!(store.list(&Filter::default(), &Page::default()).await.unwrap().records.is_empty());
        proxy.cut_off(true);
        let error = store.list(&Filter::default(), &Page::default()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    });
}

#[test]
fn a_beat_between_the_look_and_the_verdict_wins() {
    pollster::block_on(async {
        let world = World::http();
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let reap = async |beats: bool| {
            world.clock.pass(LEASE + Duration::from_secs(1));
            let verdicts = AtomicUsize::new(0);
            // A rule is asked between what a server offers and what is made of it.
            let rule = |run: &Run, now| {
                if beats {
                    pollster::block_on(owner.tick()).unwrap();
                }
                let heard = run.owner()?.heard;
                let evidence = Evidence::LeaseLapsed { silent_ms: 16_000, lease_ms: 15_000 };
                let observed = Observed { epoch: run.epoch, beat: heard.beat };
                let action = Action::Reap { observed, evidence, reaper: None };
                let transition = apply(run, &action, &person("eve"), now).ok()?;
                verdicts.fetch_add(1, Ordering::SeqCst);
                Some(Change { transition, stamp: Stamp::draw(&SeededEntropy::new(7)) })
            };
            let selection = Selection { filter: Filter::default(), order: Order::Oldest, limit: 1, due: false };
            let reaped = world.store.update(&selection, &rule).await.unwrap().len();
            (verdicts.into_inner(), reaped)
        };
        assert_eq!(reap(true).await, (1, 0), "a living owner was reaped");
        assert_eq!(world.record(handle.run().id).await.run.state.name(), StateName::Running);
        assert_eq!(reap(false).await, (1, 1));
    });
}

#[test]
fn f_65_remote_owners_are_not_judged_while_the_server_is_down() {
    pollster::block_on(async {
        let world = World::sqlite();
        let mut far = unseen(1);
        far.vantage.boot_id = "".into();
        let owner = world.process_as(far);
        let handle = owner.start(spec("job")).await.unwrap();
        world.clock.pass(LEASE * 3);
        assert_eq!(world.see(handle.run().id).await.health, Some(Health::Unresponsive));
        assert!(world.reap().await.ended.is_empty(), "nobody could have heard its owner");
        let clock: Arc<dyn outlive::time::Clock> = world.clock.clone();
        let served = SqliteStore::open(world.path.as_ref().unwrap(), clock, Arc::new(SystemEntropy)).unwrap();
        let lock = served.hold_served_lock(None).unwrap();
        served.say_served(&lock);
        assert_eq!(world.see(handle.run().id).await.state, StateName::Dead);
        // Whoever has it and says nothing hears nothing.
        let path = world.path.as_ref().unwrap().join("workers/served.lock");
        let long_ago = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::options().write(true).open(path).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(world.see(handle.run().id).await.health, Some(Health::Unresponsive));
        served.say_served(&lock);
        assert_eq!(world.see(handle.run().id).await.state, StateName::Dead);
        drop(lock);
        assert_eq!(world.see(handle.run().id).await.health, Some(Health::Unresponsive));
    });
}

#[test]
fn a_token_is_in_no_debugging_output() {
    assert!(!format!("{:?}", Token::given("hush-hush")).contains("hush"));
}
