//! Chaos: eight worker processes, some with clocks an hour off, are killed and stopped at random while their server is
//! killed, restarted, cut off from them and full of others. There is always more to do than they can, so that whoever is
//! stopped owns runs.
//! `OUTLIVE_CHAOS_RUNS=20000` makes it last longer.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outlive::engine::worker::{BlockingJob, Failed, Tally, Worker, WorkerTiming};
use outlive::lifecycle::{Action, Fence, Observed, Outcome, apply};
use outlive::owner::Evidence;
use outlive::policy::{Lease, OrphanPolicy, Policy, Retry};
use outlive::registry::{Planned, Registry};
use outlive::run::{Event, Interruption, Key, LastHeartbeat, Owner, Run, Spec, State, StateName};
use outlive::testing::server::{Server, program};
use outlive::testing::{SeededEntropy, set_clock_off};
use outlive::time::{Clock, SystemClock};

const URL: &str = "OUTLIVE_TEST_CHAOS";
const NAME: &str = "fleet_workers::chaos::w06_each_run_ends_once_whatever_workers_and_server_suffer";
const WORKERS: usize = 8;
/// What happens to them, in turns, and how often each does at the least.
const TORMENTS: usize = 7;
const ROUNDS: usize = 2;
/// More than all of them do while one is stopped.
const AHEAD: usize = 2_000;
/// Two leases of a fast worker, and a little.
const STOPPED: Duration = Duration::from_millis(4_500);
/// More than the server has room for.
const MOST: usize = 60;
/// How far a host may be off that knows the time of the server by what it was told.
const DOUBT: Duration = Duration::from_secs(2);
/// How many may do at a time what is scarce, and how long it takes.
const SCARCE: usize = 2;
const SCARCE_WORK: Duration = Duration::from_millis(250);
/// Notes when a key is taken and given back, by the clock of the server, in the very transactions that do it: whoever takes
/// one that was given back does so after that was done. What runs tell of themselves is dated before they waited for a key.
const WATCH_KEYS: &str = "
    CREATE TABLE @.kept (run uuid, since timestamptz, until timestamptz);
    CREATE FUNCTION @.note_key() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO @.kept VALUES (NEW.run, clock_timestamp());
        ELSE
            UPDATE @.kept SET until = clock_timestamp() WHERE run = OLD.run AND until IS NULL;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER note_key AFTER INSERT OR DELETE ON @.held_key FOR EACH ROW EXECUTE FUNCTION @.note_key();";
/// The most that were kept at a time, and how often any was.
const KEPT: &str = "SELECT coalesce(max(beside), 0) || ' ' || count(*) FROM (
    SELECT (SELECT count(*) FROM @.kept b WHERE b.since <= a.since AND coalesce(b.until > a.since, true)) AS beside
    FROM @.kept a) AS moment";

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
    println!("clock {}", SystemClock.now().as_micros());
    let work = |lasts| {
        move |job: &BlockingJob| {
            job.wait_for_stop(lasts);
            Ok::<_, Failed>(())
        }
    };
    let worker = Worker::builder(registry).concurrency(8).prefetch(4).times(WorkerTiming::fast());
    let worker =
        worker.handle_blocking("job", work(Duration::from_millis(200))).handle_blocking("scarce", work(SCARCE_WORK));
    let worker = worker.start().unwrap();
    let input = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    // Said as it happens: whoever is killed says nothing more.
    let mut said = 0;
    let mut say = |tally: Tally| {
        if tally.refused > said {
            println!("refused {}", tally.refused - said);
            said = tally.refused;
        }
    };
    while !input.is_finished() {
        say(worker.tally());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    say(worker.stop());
}

/// What workers have said.
#[derive(Default)]
struct Said {
    /// Writes that the store refused.
    refused: u64,
    /// By how many hours their clocks were off, and how many of them.
    clocks: BTreeMap<i64, usize>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        if let Some((_, count)) = line.split_once("refused ") {
            self.refused += count.trim().parse::<u64>().unwrap();
        }
        if let Some((_, clock)) = line.split_once("clock ") {
            let off = clock.trim().parse::<i64>().unwrap() - SystemClock.now().as_micros();
            // Off by less than a quarter of an hour because it was said a while ago.
            *self.clocks.entry((off as f64 / 3.6e9).round() as i64).or_default() += 1;
        }
    }
}

struct Fleet {
    url: String,
    home: tempfile::TempDir,
    members: Vec<Child>,
    started: usize,
    said: Arc<Mutex<Said>>,
    listeners: Vec<std::thread::JoinHandle<()>>,
}

impl Fleet {
    fn start_one(&mut self) {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", NAME, "--nocapture"]).stdout(Stdio::piped()).stdin(Stdio::piped());
        // Few connections for some: they wait for each other.
        let connections = if self.started.is_multiple_of(2) { 1 } else { 4 };
        inside.env(URL, format!("{}&connections={connections}", self.url)).env("OUTLIVE_HOME", self.home.path());
        if self.started % 4 > 1 {
            let shift = if self.started % 4 == 2 { "+1h" } else { "-1h" };
            set_clock_off(&mut inside, shift);
        }
        let mut child = inside.spawn().unwrap();
        let (lines, said) = (BufReader::new(child.stdout.take().unwrap()), self.said.clone());
        self.listeners.push(std::thread::spawn(move || {
            lines.lines().map_while(Result::ok).for_each(|line| said.lock().unwrap().hear(&line));
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
    if number.is_multiple_of(50) {
        return Spec { policy, keys: vec![Key::limit("scarce", SCARCE as u32)], ..outlive::testing::spec("scarce") };
    }
    Spec { policy, ..outlive::testing::spec("job") }
}

/// The owner that an event tells of, long silent: whether it was, its store has judged.
fn owner(event: &Event) -> Owner {
    let heard = LastHeartbeat { silent_for: Duration::from_secs(3_600), ..LastHeartbeat::default() };
    let identity = outlive::testing::stranger(1);
    Owner { worker: event.worker.unwrap(), identity, lease: Lease::default(), heard }
}

/// What an event says was done, as the rules know it.
fn action(run: &Run, event: &Event) -> Action {
    let fence = || Fence { worker: event.worker.unwrap(), epoch: run.epoch };
    match &*event.action {
        "claim" => Action::Claim { owner: owner(event), early: false, leftovers: Default::default() },
        "finish" => Action::Finish { fence: fence(), outcome: Outcome::SUCCEEDED, exit: None },
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

/// Follows an event log by the rules alone. Answers with how often it was claimed and reaped.
fn check(run: &Run, events: &[Event]) -> (usize, usize) {
    let mut now = Run::new(run.id, run.spec.clone(), run.signature.clone(), run.created_at);
    assert_eq!((&*events[0].action, events[0].to), ("enqueue", StateName::Pending), "{events:#?}");
    for event in &events[1..] {
        assert_eq!(event.from, Some(now.state.name()), "{events:#?}");
        assert!(event.at.after(DOUBT) >= now.updated_at, "time runs backwards at {event:?} in {events:#?}");
        let done = apply(&now, &action(&now, event), &event.by, event.at.max(now.updated_at));
        let done = done.unwrap_or_else(|refusal| panic!("{refusal} at {event:?} in {events:#?}"));
        let told = (event.to, event.epoch, event.attempt);
        assert_eq!((done.run.state.name(), done.run.epoch, done.run.attempt), told, "{events:#?}");
        now = done.run;
    }
    assert_eq!((now.state.name(), now.epoch), (run.state.name(), run.epoch), "{events:#?}");
    let count = |name: &str| events.iter().filter(|event| event.action == name).count();
    assert_eq!(events.iter().filter(|event| event.to == StateName::Succeeded).count(), 1, "{events:#?}");
    (count("claim"), count("reap"))
}

/// Has others take every connection that the server has left, and whatever is free while they have them. Answers with how
/// many found none.
fn exhaust(server: &Server) -> usize {
    let hog = |number: usize| {
        let cut = if number == 0 { CUT_OFF } else { "SELECT 1" };
        let lasts = format!("SELECT pg_sleep({})", STOPPED.as_secs_f64());
        let mut psql = Command::new(program("psql"));
        psql.args(["-X", "-q", "-h", "127.0.0.1", "-U", "tester", "-d", "postgres", "-p", &server.port().to_string()]);
        psql.args(["-c", cut, "-c", &lasts]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        psql.spawn().unwrap()
    };
    let hogs: Vec<Child> = (0..MOST + 5).map(hog).collect();
    hogs.into_iter().map(|mut hog| usize::from(!hog.wait().unwrap().success())).sum()
}

const CUT_OFF: &str = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
                       WHERE application_name = 'outlive' ORDER BY random() LIMIT 8) AS victim";

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
            server.psql(CUT_OFF);
            "cut off"
        }
        5 => {
            assert!(exhaust(server) > 0, "there was room for everybody");
            "exhausted"
        }
        _ => {
            server.stop("immediate");
            server.start();
            "restarted"
        }
    }
}

#[test]
fn w06_each_run_ends_once_whatever_workers_and_server_suffer() {
    if let Ok(url) = std::env::var(URL) {
        return be_worker(&url);
    }
    let server = Server::alone(&[&format!("max_connections={MOST}")]);
    let url = server.fresh_url();
    let maker = pollster::block_on(Registry::open(&url)).unwrap();
    let mut ids = Vec::new();
    let home = tempfile::tempdir().unwrap();
    let said = Arc::<Mutex<Said>>::default();
    let mut fleet = Fleet { url: url.clone(), home, members: Vec::new(), started: 0, said, listeners: Vec::new() };
    let (draw, mut torments) = (SeededEntropy::new(SystemClock.now().as_micros().unsigned_abs()), BTreeMap::new());
    let schema = url.split_once("schema=").unwrap().1.split('&').next().unwrap().to_owned();
    let here = |sql: &str| server.psql(&sql.replace('@', &schema));
    here(WATCH_KEYS);
    let left = || -> usize {
        let counted = format!("SELECT (SELECT count(*) FROM {schema}.waiting) + (SELECT count(*) FROM {schema}.live)");
        server.psql(&counted).parse().unwrap()
    };
    (0..WORKERS).for_each(|_| fleet.start_one());
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
        let told = check(&run, &pollster::block_on(maker.events(id)).unwrap());
        (claims, reaps) = (claims + told.0, reaps + told.1);
    }
    let kept = here(KEPT);
    let (most, kept) = kept.split_once(' ').unwrap();
    let Said { refused, clocks } = std::mem::take(&mut *fleet.said.lock().unwrap());
    println!(
        "{runs} runs, {claims} claims ({kept} of what is scarce, {most} at a time), {reaps} reaps, {refused} refused; {torments:?}; \
         hours off: {clocks:?}"
    );
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.held_key")), "0", "keys are held by nobody");
    assert_eq!(clocks.keys().copied().collect::<Vec<_>>(), [-1, 0, 1], "clocks are not what they were to be");
    assert_eq!(most.parse::<usize>().unwrap(), SCARCE, "that many had what only two may have, or nobody had to wait");
    assert!(reaps > 0, "nobody was ever reaped");
    assert!(refused > 0, "no stale write was ever refused");
}
