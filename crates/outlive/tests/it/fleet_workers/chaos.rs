//! Chaos: eight worker processes, some with clocks an hour off, are killed and stopped at random while their server is
//! killed, restarted and cut off from them. There is always more to do than they can, so that whoever is stopped owns runs.
//! `OUTLIVE_CHAOS_RUNS=20000` makes it last longer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outlive::policy::{Lease, OrphanPolicy, Policy, Retry};
use outlive::process::Evidence;
use outlive::registry::{Planned, Registry};
use outlive::run::{Event, Heard, Interruption, Key, Owner, Run, Spec, State, StateName};
use outlive::runtime::worker::{Times, Worker};
use outlive::testing::SeededEntropy;
use outlive::testing::server::Server;
use outlive::time::{Clock, SystemClock};
use outlive::transition::{Action, Fence, Observed, Verdict, apply};

const URL: &str = "OUTLIVE_TEST_CHAOS";
const NAME: &str = "fleet_workers::chaos::f06_each_run_ends_once_whatever_happens_to_workers_and_server";
const WORKERS: usize = 8;
/// What happens to them, in turns, and how often each does at the least.
const TORMENTS: usize = 6;
const ROUNDS: usize = 2;
/// More than all of them do while one is stopped.
const AHEAD: usize = 2_000;
/// Two leases of a fast worker, and a little.
const STOPPED: Duration = Duration::from_millis(4_500);

fn wanted() -> usize {
    std::env::var("OUTLIVE_CHAOS_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(0)
}

/// Works until its standard input ends, and says what was refused to it.
fn be_worker(url: &str) {
    let registry = loop {
        if let Ok(registry) = pollster::block_on(Registry::open(url)) {
            break registry;
        }
    };
    let worker = Worker::builder(registry).slots(8).prefetch(4).times(Times::fast()).handle("job", |job| {
        job.wait_for_stop(Duration::from_millis(200));
        Ok(())
    });
    let worker = worker.start().unwrap();
    let input = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    // Said as it happens: whoever is killed says nothing more.
    let mut said = 0;
    let mut say = |lost: u64| {
        if lost > said {
            println!("refused {}", lost - said);
            said = lost;
        }
    };
    while !input.is_finished() {
        say(worker.tally().lost);
        std::thread::park_timeout(Duration::from_millis(20));
    }
    say(worker.stop().lost);
}

struct Fleet {
    url: String,
    home: tempfile::TempDir,
    members: Vec<Child>,
    started: usize,
    refused: Arc<AtomicUsize>,
    listeners: Vec<std::thread::JoinHandle<()>>,
}

impl Fleet {
    fn start_one(&mut self) {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", NAME, "--nocapture"]).stdout(Stdio::piped()).stdin(Stdio::piped());
        // Few connections for some: they wait for each other.
        let connections = if self.started.is_multiple_of(2) { 1 } else { 4 };
        inside.env(URL, format!("{}&connections={connections}", self.url)).env("OUTLIVE_HOME", self.home.path());
        let library = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
        if self.started % 4 > 1 {
            let shift = if self.started % 4 == 2 { "+1h" } else { "-1h" };
            inside.env("LD_PRELOAD", library).env("FAKETIME", shift).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let mut child = inside.spawn().unwrap();
        let (said, refused) = (BufReader::new(child.stdout.take().unwrap()), self.refused.clone());
        self.listeners.push(std::thread::spawn(move || {
            for line in said.lines().map_while(Result::ok) {
                if let Some((_, count)) = line.split_once("refused ") {
                    refused.fetch_add(count.trim().parse().unwrap_or(0), Ordering::SeqCst);
                }
            }
        }));
        self.started += 1;
        self.members.push(child);
    }

    fn signal(child: &Child, signal: &str) {
        let _ = Command::new("kill").args(["-s", signal, &child.id().to_string()]).status();
    }
}

fn job(number: usize) -> Spec {
    let retry = Retry { on_interrupt: true, max_reaps: 1_000, ..Retry::default() };
    let policy = Policy { orphans: OrphanPolicy::Requeue, retry, ..Policy::default() };
    // Some have a key that only two may hold.
    let keys = if number.is_multiple_of(50) { vec![Key::limit("scarce", 2)] } else { Vec::new() };
    Spec { policy, keys, ..outlive::testing::spec("job") }
}

/// The owner that an event tells of, long silent: whether it was, its store has judged.
fn owner(event: &Event) -> Owner {
    let heard = Heard { silent_for: Duration::from_secs(3_600), ..Heard::default() };
    let identity = outlive::testing::stranger(1);
    Owner { worker: event.worker.unwrap(), identity, lease: Lease::default(), heard }
}

/// What an event says was done, as the rules know it.
fn action(run: &Run, event: &Event) -> Action {
    let fence = || Fence { worker: event.worker.unwrap(), epoch: run.epoch };
    match event.action.as_str() {
        "claim" => Action::Claim { owner: owner(event), early: false, leftovers: Default::default() },
        "finish" => Action::Finish { fence: fence(), verdict: Verdict::Succeeded, exit: None },
        "interrupt" => {
            let interruption = Interruption { signal: None, reason: event.reason.clone().unwrap_or_default() };
            Action::Interrupt { fence: fence(), interruption, exit: None }
        }
        "reap" => {
            assert!(matches!(event.evidence, Some(Evidence::LeaseLapsed { .. })), "{event:?}");
            let observed = Observed { epoch: run.epoch, beat: 0 };
            Action::Reap { observed, evidence: event.evidence.clone().unwrap(), reaper: None }
        }
        other => panic!("nobody was to {other}"),
    }
}

/// Follows a story by the rules alone. Answers with how often it was claimed and reaped.
fn check(run: &Run, story: &[Event]) -> (usize, usize) {
    let mut now = Run::new(run.id, run.spec.clone(), run.signature.clone(), run.created_at);
    assert_eq!((story[0].action.as_str(), story[0].to), ("enqueue", StateName::Pending), "{story:#?}");
    for event in &story[1..] {
        assert_eq!(event.from, Some(now.state.name()), "{story:#?}");
        let done = apply(&now, &action(&now, event), &event.by, event.at.max(now.updated_at));
        let done = done.unwrap_or_else(|refusal| panic!("{refusal} at {event:?} in {story:#?}"));
        let told = (event.to, event.epoch, event.attempt);
        assert_eq!((done.run.state.name(), done.run.epoch, done.run.attempt), told, "{story:#?}");
        now = done.run;
    }
    assert_eq!((now.state.name(), now.epoch), (run.state.name(), run.epoch), "{story:#?}");
    let count = |name: &str| story.iter().filter(|event| event.action == name).count();
    assert_eq!(story.iter().filter(|event| event.to == StateName::Succeeded).count(), 1, "{story:#?}");
    (count("claim"), count("reap"))
}

/// Does what is bad for somebody, and answers with what it was.
fn torment(server: &Server, fleet: &mut Fleet, draw: &SeededEntropy, turn: usize) -> &'static str {
    // Whoever came last has perhaps claimed nothing yet.
    let place = draw.below(WORKERS as u64 - 1) as usize;
    match turn % TORMENTS {
        0 | 3 => {
            let mut victim = fleet.members.remove(place);
            Fleet::signal(&victim, "KILL");
            victim.wait().unwrap();
            fleet.start_one();
            "killed"
        }
        1 | 4 => {
            let victim = &fleet.members[place];
            Fleet::signal(victim, "STOP");
            std::thread::park_timeout(STOPPED);
            Fleet::signal(victim, "CONT");
            "stopped"
        }
        2 => {
            let kill = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                        WHERE application_name = 'outlive' ORDER BY random() LIMIT 8) AS victim";
            server.psql(kill);
            "cut off"
        }
        _ => {
            server.stop("immediate");
            server.start();
            "restarted"
        }
    }
}

#[test]
fn f06_each_run_ends_once_whatever_happens_to_workers_and_server() {
    if let Ok(url) = std::env::var(URL) {
        return be_worker(&url);
    }
    let server = Server::alone(&["max_connections=40"]);
    let url = server.fresh_url();
    let maker = pollster::block_on(Registry::open(&url)).unwrap();
    let mut ids = Vec::new();
    let home = tempfile::tempdir().unwrap();
    let refused = Arc::<AtomicUsize>::default();
    let mut fleet = Fleet { url: url.clone(), home, members: Vec::new(), started: 0, refused, listeners: Vec::new() };
    (0..WORKERS).for_each(|_| fleet.start_one());
    let (draw, mut torments) = (SeededEntropy::new(SystemClock.now().as_micros().unsigned_abs()), BTreeMap::new());
    let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap().to_owned();
    let left = || -> usize {
        let counted = format!("SELECT (SELECT count(*) FROM {schema}.waiting) + (SELECT count(*) FROM {schema}.live)");
        server.psql(&counted).parse().unwrap()
    };
    let mut turn = 0;
    loop {
        let left = left();
        let is_enough = turn >= ROUNDS * TORMENTS && ids.len() >= wanted();
        if is_enough && left == 0 {
            break;
        }
        if !is_enough && left < AHEAD {
            let plan = (ids.len()..ids.len() + AHEAD).map(|number| Planned { spec: job(number), after: Vec::new() });
            ids.extend(pollster::block_on(maker.enqueue_all(plan.collect())).unwrap().iter().map(|run| run.id));
        }
        let done = torment(&server, &mut fleet, &draw, turn);
        *torments.entry(done).or_insert(0) += 1;
        turn += 1;
        assert!(turn < 10_000, "{left} are never done");
    }
    for child in &mut fleet.members {
        drop(child.stdin.take());
    }
    for mut child in fleet.members.drain(..) {
        assert!(child.wait().unwrap().success());
    }
    fleet.listeners.drain(..).for_each(|listener| listener.join().unwrap());
    let (runs, mut claims, mut reaps) = (ids.len(), 0, 0);
    for id in ids {
        let run = pollster::block_on(maker.store().get(&[id])).unwrap().pop().unwrap().run;
        assert!(matches!(run.state, State::Ended(_)) && run.state.name() == StateName::Succeeded, "{run:?}");
        let told = check(&run, &pollster::block_on(maker.story(id)).unwrap());
        (claims, reaps) = (claims + told.0, reaps + told.1);
    }
    let refused = fleet.refused.load(Ordering::SeqCst);
    println!("{runs} runs, {claims} claims, {reaps} reaps, {refused} refused; {torments:?}");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.held_key")), "0", "keys are held by nobody");
    assert!(reaps > 0, "nobody was ever reaped");
    assert!(refused > 0, "no stale write was ever refused");
}
