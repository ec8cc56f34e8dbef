//! Servers that are killed (F-58), away (F-65), put back to an older state (F-60), or lose a session (W06).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::ground::WITHOUT_ALL;
use crate::world::with_lease;
use outlive::filter::Filter;
use outlive::id::Stamp;
use outlive::lifecycle::{Action, apply};
use outlive::ownership::Stop;
use outlive::ownership::reaper::Reaper;
use outlive::run::StateName;
use outlive::store::{Revision, WriteOutcome};

/// What became of a write, as its writer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Done,
    Nothing,
    Unknown,
}

/// What was answered, by run and the revision that was to be.
type Answers = BTreeMap<(RunId, u64), (Stamp, Told)>;

/// How many times the server is killed. `OUTLIVE_SERVER_KILLS` for more.
fn kills() -> usize {
    std::env::var("OUTLIVE_SERVER_KILLS").ok().and_then(|number| number.parse().ok()).unwrap_or(6)
}

#[test]
fn f_58_what_a_killed_server_said_it_has_written_is_there() {
    kills_the_server(Way::straight);
}

#[test]
fn f_58_acknowledged_writes_survive_a_kill_through_a_pooler() {
    kills_the_server(Way::pooled);
}

#[test]
fn f_58_acknowledged_writes_survive_a_kill_without_features() {
    kills_the_server_of(Way::straight, &WITHOUT_ALL);
}

fn kills_the_server(way: fn(&Server) -> Way) {
    kills_the_server_of(way, "");
}

fn kills_the_server_of(way: fn(&Server) -> Way, behind: &str) {
    const WRITERS: usize = 6;
    const PER_ROUND: usize = 120;
    let server = Server::alone(&[]);
    let way = way(&server);
    let url = way.url(&server.fresh_url()) + behind;
    open(&url).unwrap();
    let (stop, acked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let told: Mutex<Answers> = Mutex::default();
    std::thread::scope(|scope| {
        let _stopping = Stopping(&stop);
        for _ in 0..WRITERS {
            scope.spawn(|| {
                let store = open(&url).unwrap();
                while !stop.load(Ordering::SeqCst) {
                    let making = making(draft());
                    let made = try_write(&store, &making, &told, &acked);
                    if made != Told::Done {
                        std::thread::park_timeout(Duration::from_millis(20));
                        continue;
                    }
                    let record =
                        outlive::store::Record { run: making.run.clone(), revision: Revision(1), stamp: making.stamp };
                    let action = Action::RequestCancel { reason: None, grace: None, live: Default::default() };
                    let change = apply(&record.run, &action, &person("bob"), SystemClock.now()).unwrap();
                    try_write(&store, &Write::change(&record, change, stamp(&SystemEntropy)), &told, &acked);
                }
            });
        }
        for round in 0..kills() {
            let goal = acked.load(Ordering::SeqCst) + PER_ROUND;
            until("writes to be acknowledged", || acked.load(Ordering::SeqCst) >= goal);
            if round % 2 == 0 {
                server.kill();
            } else {
                server.stop("immediate");
            }
            server.start();
        }
        let goal = acked.load(Ordering::SeqCst) + PER_ROUND;
        until("writes to be acknowledged", || acked.load(Ordering::SeqCst) >= goal);
    });
    let store = open(&url).unwrap();
    let told = told.into_inner().unwrap();
    let (mut done, mut nothing, mut unknown, mut landed) = (0, 0, 0, 0);
    for ((id, revision), (stamp, told)) in told {
        let found = pollster::block_on(record(&store, id));
        let is_there = found
            .as_ref()
            .is_some_and(|found| found.revision.0 > revision || found.revision.0 == revision && found.stamp == stamp);
        match told {
            Told::Done => assert!(is_there, "acknowledged and lost: {id} at {revision}: {found:?}"),
            Told::Nothing => assert!(!is_there, "written though it was said that nothing was: {id} at {revision}"),
            Told::Unknown => landed += usize::from(is_there),
        }
        match told {
            Told::Done => done += 1,
            Told::Nothing => nothing += 1,
            Told::Unknown => unknown += 1,
        }
    }
    println!("{} kills: {done} acknowledged, 0 lost, {nothing} refused, {unknown} unknown, {landed} landed", kills());
    assert!(nothing + unknown > 0, "nobody noticed the kills");
}

/// Has the writers stop, also where the test has failed meanwhile.
struct Stopping<'a>(&'a AtomicBool);

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn try_write(store: &PostgresStore, write: &Write, told: &Mutex<Answers>, acked: &AtomicUsize) -> Told {
    let revision = match write.expect {
        Expect::Absent => 1,
        Expect::Revision(revision) => revision.0 + 1,
    };
    let outcome = match pollster::block_on(store.commit(vec![write.clone()])) {
        Ok(written) => match written.as_slice() {
            [WriteOutcome::Done(_)] => Told::Done,
            other => panic!("nobody else writes this run: {other:?}"),
        },
        Err(Error::Unknown(_)) => Told::Unknown,
        Err(Error::Unavailable(_)) => Told::Nothing,
        Err(error) => panic!("a server that is killed is none of this: {error:?}"),
    };
    if outcome == Told::Done {
        acked.fetch_add(1, Ordering::SeqCst);
    }
    told.lock().unwrap().insert((write.run.id, revision), (write.stamp, outcome));
    outcome
}

const BEAT: Duration = Duration::from_secs(2);
const LEASE: Duration = Duration::from_secs(6);

#[test]
fn f_65_after_an_outage_heartbeats_come_before_reaps() {
    comes_back_late(Way::straight);
}

#[test]
fn f_65_heartbeats_come_before_reaps_after_a_pooler_outage() {
    comes_back_late(Way::pooled);
}

fn comes_back_late(way: fn(&Server) -> Way) {
    let server = Server::alone(&["fsync=off"]);
    let way = way(&server);
    let url = way.url(&server.fresh_url());
    let (living, dead) = (registry(&url), registry(&url));
    pollster::block_on(async {
        let kept = living.start(with_lease(spec("kept"), BEAT, LEASE)).await.unwrap();
        let orphan = dead.start(with_lease(spec("orphan"), BEAT, LEASE)).await.unwrap();
        living.tick().await.unwrap();
        server.stop("immediate");
        living.tick().await.unwrap_err();
        pass(LEASE * 3);
        server.start();
        let fresh = registry(&url);
        let reaped = Reaper::new(None).pass(&fresh).await.unwrap();
        assert_eq!((reaped.ended.len(), reaped.live), (0, 2), "{reaped:?}");
        until("the living to be heard", || pollster::block_on(living.tick()).is_ok());
        let mut ended = Vec::new();
        until("the dead to be reaped", || {
            pollster::block_on(living.tick()).unwrap();
            ended.extend(pollster::block_on(Reaper::new(None).pass(&fresh)).unwrap().ended);
            !ended.is_empty()
        });
        assert_eq!(ended.iter().map(|run| run.id).collect::<Vec<_>>(), [orphan.id()]);
        assert_eq!(fresh.get(kept.id()).await.unwrap().state, StateName::Running);
        kept.succeed().await.unwrap();
    });
}

#[test]
fn w06_a_killed_session_makes_no_worker_silent() {
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let owner = registry(&url);
    pollster::block_on(async {
        let handle = owner.start(spec("job")).await.unwrap();
        let silent =
            async |registry: &Registry| registry.get(handle.id()).await.unwrap().run.owner().unwrap().heard.silent_for;
        pass(Duration::from_secs(3));
        assert!(silent(&owner).await >= Duration::from_secs(3));
        let started = server.psql("SELECT pg_postmaster_start_time()");
        let backend = server.psql("SELECT pid FROM pg_stat_activity WHERE application_name = 'outlive' LIMIT 1");
        // Whoever gets over a crash counts anew.
        let counts_since = "SELECT pg_stat_get_bgwriter_stat_reset_time()";
        let before = server.psql(counts_since);
        succeeds("kill", &["-s", "KILL", &backend]);
        until("the server to get over it", || server.try_psql(counts_since).is_ok_and(|since| since != before));
        assert_eq!(server.psql("SELECT pg_postmaster_start_time()"), started, "it was restarted instead");
        let reader = process(&open(&url).unwrap(), Arc::new(SystemClock));
        let silence = silent(&reader).await;
        let since: i64 = server
            .psql(
                "SELECT (extract(epoch FROM clock_timestamp() - pg_stat_get_bgwriter_stat_reset_time()) * 1000)::int8",
            )
            .parse()
            .unwrap();
        assert!(silence <= Duration::from_millis(since.unsigned_abs()), "{silence:?} of silence, {since} ms after");
        owner.tick().await.unwrap();
        handle.succeed().await.unwrap();
    });
}

#[test]
fn f_60_an_older_state_that_comes_back_is_written_by_no_zombie() {
    let server = Server::alone(&["fsync=off"]);
    let url = server.fresh_url();
    let copies = Dir::make();
    let (data, copy) = (server.data().display().to_string(), copies.0.join("data").display().to_string());
    let (zombie, heir) = (registry(&url), registry(&url));
    pollster::block_on(async {
        let contested = zombie.enqueue(spec("contested")).await.unwrap();
        server.stop("fast");
        succeeds("cp", &["-a", &data, &copy]);
        server.start();

        let old = zombie.claim(Filter::of([contested.id]), 1).await.unwrap().pop().unwrap();
        let vanishing = zombie.start(spec("vanishing")).await.unwrap();
        zombie.tick().await.unwrap();
        server.stop("fast");
        succeeds("rm", &["-rf", &data]);
        succeeds("cp", &["-a", &copy, &data]);
        server.start();

        assert_eq!(heir.get(contested.id).await.unwrap().state, StateName::Pending);
        let new = heir.claim(Filter::of([contested.id]), 1).await.unwrap().pop().unwrap();
        assert_eq!(old.fence().epoch, new.fence().epoch, "epochs come again in a state that came back");
        let before = record(heir.store(), contested.id).await.unwrap();
        let refused = old.set_checkpoint("of a zombie".into()).await.unwrap_err();
        assert_eq!(refused.code(), outlive::error::Code::Lost, "{refused}");
        assert_eq!(record(heir.store(), contested.id).await.unwrap().stamp, before.stamp);
        assert!(heir.get(vanishing.id()).await.is_err(), "it was not in the state that came back");

        zombie.tick().await.unwrap();
        assert_eq!(old.stop_requested(), Some(Stop::Lost));
        assert_eq!(vanishing.stop_requested(), None);
        assert_eq!(heir.get(vanishing.id()).await.unwrap().state, StateName::Running, "its owner brings it back");
        let refused = old.succeed().await.unwrap_err();
        assert_eq!(refused.code(), outlive::error::Code::Lost, "{refused}");
        new.set_checkpoint("of its owner".into()).await.unwrap();
        new.succeed().await.unwrap();
        vanishing.succeed().await.unwrap();
        assert_eq!(heir.get(contested.id).await.unwrap().run.checkpoint, Some("of its owner".into()));
    });
}
