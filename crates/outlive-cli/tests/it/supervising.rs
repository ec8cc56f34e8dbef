//! The supervisor: everything that should go on does, once, whoever dies meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::resuming::kill_everything;
use super::sandbox::{Ends, Sandbox, is_root, signal_pid, text, until};

/// A supervisor in the background. It is killed at the end, with everything that it has started.
struct Supervisor<'a> {
    process: Child,
    sandbox: &'a Sandbox,
}

impl<'a> Supervisor<'a> {
    fn start(sandbox: &'a Sandbox, words: &[&str]) -> Self {
        Self::of(sandbox, &mut sandbox.outlive(["supervise"].iter().chain(words)))
    }

    fn of(sandbox: &'a Sandbox, command: &mut Command) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(sandbox.path().join("supervisor.log"));
        let log = log.unwrap();
        let process = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        Self { process, sandbox }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Supervisor<'_> {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        kill_everything(self.sandbox);
    }
}

fn said(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path().join("supervisor.log")).unwrap_or_default()
}

/// `outlive` on the machine as it is after its `boot`th start.
pub(crate) fn after_boot(sandbox: &Sandbox, boot: usize, words: &[&str]) -> Command {
    let boot_id = sandbox.path().join(format!("boot_id_{boot}"));
    std::fs::write(&boot_id, format!("00000000-1111-2222-3333-{boot:012}\n")).unwrap();
    let script = format!("mount --bind {} /proc/sys/kernel/random/boot_id; exec outlive \"$@\"", boot_id.display());
    sandbox.command("unshare", ["-m", "sh", "-ec", &script, "sh"].iter().chain(words))
}

/// A small generator: the moments at which a rehearsal kills differ from one to the next, and can be repeated.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    pub(crate) fn wait(&mut self, at_most_ms: u64) {
        std::thread::park_timeout(std::time::Duration::from_millis(self.roll(at_most_ms + 1)));
    }
}

/// Notes its attempt and what it was handed, leaves something, notes that it did, and ends with the second attempt.
const JOB: &str = "echo \"begin $OUTLIVE_ATTEMPT ${OUTLIVE_CHECKPOINT:-none}\" >> log/$1; \
                   outlive checkpoint set $OUTLIVE_ATTEMPT && echo \"left $OUTLIVE_ATTEMPT\" >> log/$1; \
                   [ $OUTLIVE_ATTEMPT -gt 1 ] || exec sleep 300";

/// The policies of the runs of a rehearsal, and whether a run that has it goes on after a crash.
const POLICIES: [(&str, &[&str], bool); 5] = [
    ("crash", &["--resume-on", "crash"], true),
    ("all", &["--resume-on", "crash,interrupt,failure"], true),
    ("plain", &[], false),
    ("failure", &["--resume-on", "failure,interrupt"], false),
    ("never", &["--resume-on", "never"], false),
];

#[test]
fn r12_f_92_reboot_resumes_each_run_by_its_policy_once() {
    if !is_root() {
        return;
    }
    let rehearsals = std::env::var("OUTLIVE_REHEARSALS").ok().and_then(|count| count.parse().ok()).unwrap_or(2);
    let (mut resumed, mut supervisors) = (0, 0);
    for rehearsal in 0..rehearsals {
        let (went_on, killed) = rehearse(rehearsal);
        resumed += went_on;
        supervisors += killed;
    }
    println!("{rehearsals} rehearsals: {resumed} runs went on, {supervisors} supervisors were killed meanwhile");
    assert!(resumed > 0);
}

fn rehearse(seed: u64) -> (usize, usize) {
    let sandbox = Sandbox::new();
    let mut dice = Dice(seed);
    std::fs::create_dir(sandbox.work().join("log")).unwrap();
    let runs: Vec<(String, bool)> = (0..50)
        .map(|number| {
            let (policy, flags, goes_on) = POLICIES[number % POLICIES.len()];
            let name = format!("{policy}-{number}");
            let words = ["run", "-d", "--name", &name]
                .iter()
                .chain(flags)
                .chain(&["--", "sh", "-c", JOB, "sh", &name])
                .copied()
                .collect::<Vec<_>>();
            sandbox.outlive(words).succeeds();
            (name, goes_on)
        })
        .collect();
    dice.wait(300);
    kill_everything(&sandbox);

    // The machine is up again. Some supervisors die at their work; the last one lives.
    let mut killed = 0;
    for _ in 0..2 {
        let mut supervisor = Supervisor { process: quiet(after_boot(&sandbox, 1, &["supervise"])), sandbox: &sandbox };
        dice.wait(400);
        supervisor.kill();
        killed += 1;
        // Only the supervisor: what it has started goes on.
        std::mem::forget(supervisor);
    }
    let last = Supervisor { process: quiet(after_boot(&sandbox, 1, &["supervise"])), sandbox: &sandbox };
    let mut seen: BTreeMap<String, Value> = BTreeMap::new();
    until("everything to have come to its end", || {
        let listed = after_boot(&sandbox, 1, &["ps", "--all", "--limit", "1000", "--json"]).json();
        let by_name = |run: &Value| Some((run["name"].as_str()?.to_owned(), run.clone()));
        seen = listed["runs"].as_array().unwrap().iter().filter_map(by_name).collect();
        runs.iter().all(|(name, goes_on)| {
            let run = &seen[name];
            if *goes_on { run["state"] == "succeeded" } else { run["state"] == "dead" && run["owner"].is_null() }
        })
    });
    drop(last);
    for (name, goes_on) in &runs {
        let log = std::fs::read_to_string(sandbox.work().join("log").join(name)).unwrap_or_default();
        let begun: Vec<&str> = log.lines().filter(|line| line.starts_with("begin")).collect();
        let first = begun.iter().filter(|line| line.starts_with("begin 1 ")).count();
        let later: Vec<&&str> = begun.iter().filter(|line| !line.starts_with("begin 1 ")).collect();
        assert!(first <= 1, "seed {seed}: the first attempt of {name} ran twice: {log}");
        if !goes_on {
            assert!(later.is_empty() && seen[name]["attempt"] == 1, "seed {seed}: {name} went on: {log}");
            continue;
        }
        assert_eq!((later.len(), &seen[name]["attempt"]), (1, &2.into()), "seed {seed}: {name}: {log}");
        // It was killed before it had left anything, or was handed what it left.
        let handed = later[0].strip_prefix("begin 2 ").unwrap();
        assert!(handed == "1" || handed == "none" && !log.contains("left 1"), "seed {seed}: {name}: {log}");
    }
    (runs.iter().filter(|(_, goes_on)| *goes_on).count(), killed)
}

/// Says so where it runs beside itself, and notes its attempt. Whatever is left of it has its lock. Whoever asks for that
/// may be killed as well, and is then asked again.
const ALONE: &str = "exec 9>>lock/$1; until flock -n -E 7 9; do [ $? != 7 ] || { echo $1 >> twice; break; }; done; \
                     echo \"$1 $OUTLIVE_ATTEMPT\" >> attempts; sleep 0.$2; exit $3";

#[test]
fn f_94_random_faults_execute_no_attempt_twice_and_all_runs_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (faults, seed) = (number("OUTLIVE_SOAK_FAULTS").unwrap_or(60), number("OUTLIVE_SOAK_SEED").unwrap_or(1));
    let sandbox = Sandbox::impatient();
    std::fs::create_dir(sandbox.work().join("lock")).unwrap();
    let mut dice = Dice(seed);
    let mut supervisor = Supervisor::start(&sandbox, &[]);
    let (mut started, mut killed) = (0, [0, 0]);
    for _ in 0..faults {
        dice.wait(60);
        match dice.roll(6) {
            0..3 => {
                let (name, sleep, status) =
                    (format!("soak-{started}"), dice.roll(5).to_string(), dice.roll(2).to_string());
                let policy = ["--resume-on", "crash,failure", "--backoff", "1ms", "--max-attempts", "2"];
                let words = ["run", "-d", "--name", &name].into_iter().chain(policy);
                let words = words.chain(["--", "sh", "-c", ALONE, "sh", &name, &sleep, &status]);
                sandbox.outlive(words).succeeds();
                started += 1;
            }
            3..5 => {
                // Anything that there is: an owner, a command, or what one of them has started.
                let all = super::resuming::processes(&sandbox);
                let others: Vec<&u32> = all.iter().filter(|pid| **pid != supervisor.process.id()).collect();
                if let Some(victim) = others.get(dice.roll(others.len().max(1) as u64) as usize) {
                    let victim = rustix::process::Pid::from_raw(i32::try_from(**victim).unwrap()).unwrap();
                    // It may have ended by itself.
                    let _ = rustix::process::kill_process(victim, rustix::process::Signal::KILL);
                    killed[0] += 1;
                }
            }
            _ => {
                supervisor.kill();
                std::mem::forget(std::mem::replace(&mut supervisor, Supervisor::start(&sandbox, &[])));
                killed[1] += 1;
            }
        }
    }
    until("everything to have come to its end", || {
        let is_open =
            |run: &Value| run["kind"] == "command" && ["pending", "running"].contains(&run["state"].as_str().unwrap());
        !sandbox.runs().iter().any(is_open)
    });
    drop(supervisor);
    println!("seed {seed}: {started} runs; {} of their processes and {} supervisors were killed", killed[0], killed[1]);
    let read = |name: &str| std::fs::read_to_string(sandbox.work().join(name)).unwrap_or_default();
    assert_eq!(read("twice"), "", "seed {seed}: a run ran beside itself");
    let attempts = read("attempts");
    let mut lines: Vec<&str> = attempts.lines().collect();
    lines.sort_unstable();
    let all = lines.len();
    lines.dedup();
    assert_eq!(lines.len(), all, "seed {seed}: an attempt ran twice: {attempts}");
    let known = sandbox.runs().iter().filter(|run| run["kind"] == "command").count();
    assert_eq!(known, started, "seed {seed}: a run was lost");
}

fn quiet(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn r12_at_its_start_a_supervisor_says_what_it_found_by_state() {
    let sandbox = Sandbox::new();
    let _running = sandbox.start("running", &["sleep", "300"]);
    let mut stopped = sandbox.start("stopped", &["sleep", "300"]);
    stopped.signal("TERM");
    stopped.wrapper.wait().unwrap();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    sandbox.outlive(["queue", "add", "--not-before", "1h", "--", "true"]).succeeds();
    let found = sandbox.outlive(["supervise", "--once", "--json"]).succeeds();
    let found: Value = serde_json::from_str(found.lines().next().unwrap()).unwrap();
    assert_eq!(found["event"], "found");
    assert_eq!(found["states"], serde_json::json!({ "interrupted": 1, "pending": 1, "running": 1 }));
}

#[test]
fn f_88_one_of_two_supervisors_works_and_the_other_follows() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let mut first = Supervisor::start(&sandbox, &[]);
    until("the first to work", || said(&sandbox).contains("supervises"));
    let _second = Supervisor::start(&sandbox, &[]);
    until("the second to wait", || said(&sandbox).contains("another supervisor works"));
    let job = "echo $OUTLIVE_ATTEMPT >> tries; [ $OUTLIVE_ATTEMPT -gt 2 ] || exec sleep 300";
    sandbox.outlive(["run", "-d", "--name", "job", "--resume-on", "crash", "--", "sh", "-c", job]).succeeds();
    let crash = |attempt: u64| {
        let run = sandbox.wait_for("job", |run| run["attempt"] == attempt && run["state"] == "running");
        until("its command to run", || {
            std::fs::read_to_string(sandbox.work().join("tries")).unwrap_or_default().lines().count() as u64 == attempt
        });
        let owner = u32::try_from(run["owner_pid"].as_u64().unwrap()).unwrap();
        let children = std::fs::read_to_string(format!("/proc/{owner}/task/{owner}/children")).unwrap();
        signal_pid(owner, "KILL");
        children.split_whitespace().for_each(|child| signal_pid(child.parse().unwrap(), "KILL"));
    };
    crash(1);
    sandbox.wait_for("job", |run| run["attempt"] == 2);
    first.kill();
    std::mem::forget(first);
    crash(2);
    sandbox.wait_for("job", |run| run["state"] == "succeeded" && run["attempt"] == 3);
    assert_eq!(std::fs::read_to_string(sandbox.work().join("tries")).unwrap(), "1\n2\n3\n", "an attempt ran twice");
    let supervisors = sandbox.outlive(["ps", "--all", "--kind", "supervisor", "--json"]).json();
    let states: Vec<&Value> = supervisors["runs"].as_array().unwrap().iter().map(|run| &run["state"]).collect();
    assert_eq!(states, ["running", "failed"]);
}

#[test]
fn f_88_sixteen_supervisors_resume_each_dead_run_once() {
    let sandbox = Sandbox::new();
    let job = "echo $OUTLIVE_ATTEMPT >> $1; [ $OUTLIVE_ATTEMPT -gt 1 ] || exec sleep 300";
    let names: Vec<String> = (0..30).map(|number| format!("run-{number}")).collect();
    for name in &names {
        let words = ["run", "-d", "--name", name, "--resume-on", "crash", "--", "sh", "-c", job, "sh", name];
        sandbox.outlive(words).succeeds();
    }
    until("all to have begun", || names.iter().all(|name| sandbox.has_line(name)));
    kill_everything(&sandbox);
    let supervisors: Vec<Child> = (0..16)
        .map(|_| {
            sandbox
                .outlive(["supervise", "--once", "--json"])
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    let told: Vec<String> = supervisors.into_iter().map(|one| text(&one.wait_with_output().unwrap().stdout)).collect();
    let stood_by = told.iter().filter(|told| told.contains("\"standby\"")).count();
    println!("{stood_by} of 16 supervisors found another at work");
    // One look starts a few at a time; another finishes what is left.
    until("all to have gone on", || {
        sandbox.outlive(["supervise", "--once"]).succeeds();
        sandbox.runs().iter().filter(|run| run["state"] == "succeeded" && run["kind"] == "command").count()
            == names.len()
    });
    for name in &names {
        assert_eq!(std::fs::read_to_string(sandbox.work().join(name)).unwrap(), "1\n2\n", "{name}");
    }
}

#[test]
fn f_91_live_processes_of_a_dead_owner_are_adopted() {
    let sandbox = Sandbox::new();
    let job = "echo $OUTLIVE_ATTEMPT >> tries; until [ -e go ]; do sleep 0.02; done";
    sandbox.outlive(["run", "-d", "--name", "job", "--resume-on", "crash", "--", "sh", "-c", job]).succeeds();
    let _supervisor = Supervisor::start(&sandbox, &[]);
    until("its command to run", || sandbox.has_line("tries"));
    let run = sandbox.wait_for_state("job", "running");
    signal_pid(u32::try_from(run["owner_pid"].as_u64().unwrap()).unwrap(), "KILL");
    let adopted = sandbox.wait_for("job", |now| now["owner_pid"] != run["owner_pid"] && now["health"] == "healthy");
    assert_eq!(adopted["attempt"], 1);
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.wait_for("job", |run| run["owner"].is_null());
    assert_eq!(std::fs::read_to_string(sandbox.work().join("tries")).unwrap(), "1\n");
}

#[test]
fn f_89_run_whose_new_owner_dies_at_any_moment_still_ends() {
    let sandbox = Sandbox::new();
    let job = "echo $OUTLIVE_ATTEMPT >> tries; [ $OUTLIVE_ATTEMPT -gt 1 ] || exec sleep 300";
    let mut died = 0;
    for moment in [1, 2, 3, 5, 8, 13, 21, 34] {
        let name = format!("job-{moment}");
        let flags = ["--resume-on", "crash", "--backoff", "1ms"];
        let words = ["run", "-d", "--name", &name]
            .iter()
            .chain(&flags)
            .chain(&["--", "sh", "-c", job])
            .copied()
            .collect::<Vec<_>>();
        sandbox.outlive(words).succeeds();
        sandbox.wait_for_state(&name, "running");
        kill_everything(&sandbox);
        // The process that is to own it is killed at this system call of those that change something.
        let calls = "pwrite64,write,renameat2,linkat,clone,vfork,clone3,fdatasync,unlinkat,mkdirat";
        let inject = format!("inject={calls}:signal=KILL:when={moment}");
        let strace = ["-qq", "-f", "-o", "/dev/null", "-e", &inject, "outlive", "resume", &name];
        let output = sandbox.command("strace", strace).output().unwrap();
        died += usize::from(!output.status.success());
        kill_everything(&sandbox);
        until("it to come to its end", || {
            sandbox.outlive(["supervise", "--once"]).succeeds();
            let run = sandbox.show(&name);
            run["state"] == "succeeded"
        });
        assert!(sandbox.show(&name)["attempt"].as_u64().unwrap() >= 2);
    }
    println!("{died} of 8 resumers died");
    assert!(died > 0, "nobody died");
}

#[test]
fn s_01_cloned_repository_executes_nothing_before_it_is_trusted() {
    let sandbox = Sandbox::new();
    let job = "touch attempt-$OUTLIVE_ATTEMPT; [ $OUTLIVE_ATTEMPT -gt 1 ] || exec sleep 300";
    let words =
        ["run", "-d", "--name", "evil", "--resume-on", "crash", "--notify", "touch notified", "--", "sh", "-c", job];
    sandbox.outlive(words).succeeds();
    until("it to begin", || sandbox.work().join("attempt-1").exists());
    kill_everything(&sandbox);
    let mine = sandbox.path().join("another home");
    let outlive = |words: &[&str]| {
        let output = sandbox.outlive(words).env("OUTLIVE_HOME", &mine).output().unwrap();
        format!("{}{}", text(&output.stdout), text(&output.stderr))
    };
    let told = [
        outlive(&["resume", "--all"]),
        outlive(&["resume", "evil"]),
        outlive(&["supervise", "--once"]),
        outlive(&["work", "--drain"]),
    ];
    assert!(!sandbox.work().join("attempt-2").exists(), "a stranger's command was executed: {told:?}");
    assert!(told[1].contains("outlive trust"), "{told:?}");
    outlive(&["trust", "evil", "--yes"]);
    outlive(&["supervise", "--once"]);
    until("it to go on", || sandbox.work().join("attempt-2").exists());
    // A configuration that came with it cannot name a command at all.
    sandbox.write_config("[hooks]\non_end = \"touch hooked\"\n");
    sandbox.outlive(["run", "--", "true"]).fails_with(2);
    assert!(!sandbox.work().join("hooked").exists());
}

#[test]
fn s_46_supervised_run_inherits_no_variable_that_changes_it() {
    let sandbox = Sandbox::new();
    let job = "env > env-$OUTLIVE_ATTEMPT; [ $OUTLIVE_ATTEMPT -gt 1 ] || exec sleep 300";
    let mut run =
        sandbox.outlive(["run", "-d", "--name", "job", "--resume-on", "crash", "--env", "KEPT", "--", "sh", "-c", job]);
    run.env("KEPT", "as it was").succeeds();
    until("it to begin", || sandbox.has_line("env-1"));
    kill_everything(&sandbox);
    let mut supervisor = sandbox.outlive(["supervise", "--once"]);
    supervisor
        .env("LD_PRELOAD", "")
        .env("PYTHONPATH", "/evil")
        .env("BASH_ENV", "/evil")
        .env("KEPT", "as it is")
        .succeeds();
    sandbox.outlive(["wait", "job"]).succeeds();
    let env = std::fs::read_to_string(sandbox.work().join("env-2")).unwrap();
    for name in ["LD_PRELOAD=", "PYTHONPATH=", "BASH_ENV="] {
        assert!(!env.lines().any(|line| line.starts_with(name)), "{name} came through: {env}");
    }
    assert!(env.contains("KEPT=as it was\n") && env.contains("PATH="), "{env}");
}

#[test]
fn f_93_replaced_binary_changes_nothing_for_its_run() {
    let sandbox = Sandbox::new();
    let bin = sandbox.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let own = bin.join("outlive");
    std::fs::copy(super::sandbox::binary(), &own).unwrap();
    let job = "until [ -e go ]; do sleep 0.02; done; echo done";
    sandbox.command(&own, ["run", "-d", "--name", "old", "--", "sh", "-c", job]).succeeds();
    std::fs::copy(super::sandbox::binary(), bin.join("new")).unwrap();
    std::fs::rename(bin.join("new"), &own).unwrap();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    sandbox.command(&own, ["wait", "old"]).succeeds();
    assert_eq!(sandbox.command(&own, ["logs", "old"]).succeeds(), "done\n");
}

/// A hook that adds what it is told as one line in one write: hooks of several ends run at the same time.
fn line_to(told: &Path) -> String {
    format!("told=$(cat); printf \"%s\\n\" \"$told\" >> {}", told.display())
}

#[test]
fn hooks_are_called_once_for_every_end() {
    let sandbox = Sandbox::new();
    let told = sandbox.path().join("told");
    let hook = line_to(&told);
    let config = format!("[hooks]\non_end = '{hook}'\non_dead = '{hook}'\non_queue_empty = '{hook}'\n");
    sandbox.write_home_config(&config);
    let events = || -> Vec<(String, String)> {
        let told = std::fs::read_to_string(&told).unwrap_or_default();
        let parse = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let named = |event: Value| {
            (event["event"].as_str().unwrap().to_owned(), event["run"]["name"].as_str().unwrap_or_default().to_owned())
        };
        let mut events: Vec<(String, String)> =
            told.lines().filter(|line| !line.is_empty()).map(parse).map(named).collect();
        events.sort();
        events
    };
    sandbox.outlive(["run", "--name", "done", "--", "true"]).succeeds();
    sandbox.outlive(["run", "--name", "failed", "--", "false"]).fails_with(1);
    sandbox.outlive(["run", "-d", "--name", "killed", "--", "sleep", "300"]).succeeds();
    // One that is killed between telling and noting it is told again, which is another test's matter.
    let is_noted = |name: &str| {
        let id = sandbox.show(name)["id"].as_str().unwrap().to_owned();
        let mark = sandbox.registry().join(format!("runs/{id}/attempts/0001.told"));
        std::fs::read_to_string(mark).is_ok_and(|noted| noted == "end\n")
    };
    until("two ends to be told", || events().len() == 2 && is_noted("done") && is_noted("failed"));
    kill_everything(&sandbox);
    let reapers: Vec<Child> = (0..8).map(|_| quiet(sandbox.outlive(["reap"]))).collect();
    reapers.into_iter().for_each(|mut reaper| assert!(reaper.wait().unwrap().success()));
    sandbox.outlive(["queue", "add", "--name", "queued", "--", "true"]).succeeds();
    let _supervisor = Supervisor::start(&sandbox, &[]);
    let pair = |event: &str, name: &str| (event.to_owned(), name.to_owned());
    let wanted = [
        pair("dead", "killed"),
        pair("end", "done"),
        pair("end", "failed"),
        pair("end", "killed"),
        pair("end", "queued"),
        pair("queue-empty", "queued"),
    ];
    until("all to be told", || events().len() >= wanted.len());
    // Another look at everything tells nobody anything again.
    sandbox.outlive(["reap"]).succeeds();
    sandbox.outlive(["run", "--name", "after", "--", "true"]).succeeds();
    until("what came after to be told", || events().contains(&pair("end", "after")));
    let mut all = wanted.to_vec();
    all.push(pair("end", "after"));
    all.sort();
    assert_eq!(events(), all);
}

#[test]
fn stalled_run_calls_its_hook_once() {
    let sandbox = Sandbox::new();
    let told = sandbox.path().join("told");
    let config = format!("[hooks]\non_stalled = '{}'\n", line_to(&told));
    sandbox.write_home_config(&config);
    sandbox.outlive(["run", "-d", "--name", "stuck", "--stall-after", "1ms", "--", "sleep", "300"]).succeeds();
    sandbox.wait_for("stuck", |run| run["health"] == "stalled");
    for _ in 0..2 {
        sandbox.outlive(["supervise", "--once"]).succeeds();
        until("it to be told", || std::fs::read_to_string(&told).unwrap_or_default().contains("stuck"));
    }
    // Whoever tells is done by the time that the next one has its turn.
    sandbox.outlive(["run", "--name", "after", "--", "true"]).succeeds();
    let lines = std::fs::read_to_string(&told).unwrap();
    assert_eq!(lines.lines().filter(|line| line.contains("stuck")).count(), 1, "{lines}");
    kill_everything(&sandbox);
}

#[test]
fn old_ended_runs_are_archived_and_pinned_ones_are_not() {
    let sandbox = Sandbox::new();
    for name in ["first", "second", "third"] {
        sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
    }
    sandbox.outlive(["supervise", "--once"]).succeeds();
    assert!(sandbox.runs().iter().all(|run| run["archived"] == false), "something was put away unasked");
    // The supervisor of before has ended as well, and is the newest.
    sandbox.write_config("[retention]\narchive_after = \"1ms\"\nkeep_last = 2\n");
    sandbox.outlive(["supervise", "--once"]).succeeds();
    for (name, archived) in [("first", true), ("second", true), ("third", false)] {
        assert_eq!(sandbox.show(name)["archived"], archived, "{name}");
    }
}

#[test]
fn hook_interrupted_by_a_crash_is_called_again() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "old", "--", "true"]).succeeds();
    let told = sandbox.path().join("told");
    // Hooks are as old as the second in which they were written.
    std::thread::park_timeout(std::time::Duration::from_millis(1_100));
    let config = format!("[hooks]\non_end = '{}'\n", line_to(&told));
    sandbox.write_home_config(&config);
    sandbox.outlive(["run", "--name", "new", "--", "true"]).succeeds();
    let times = |name: &str| std::fs::read_to_string(&told).unwrap_or_default().matches(&format!("\"{name}\"")).count();
    until("it to be told", || times("new") == 1);
    let mark =
        sandbox.registry().join(format!("runs/{}/attempts/0001.told", sandbox.show("new")["id"].as_str().unwrap()));
    until("it to be noted", || std::fs::read_to_string(&mark).is_ok_and(|noted| noted == "end\n"));
    std::fs::remove_file(&mark).unwrap();
    sandbox.outlive(["supervise", "--once"]).succeeds();
    until("it to be told again", || times("new") == 2);
    assert_eq!(times("old"), 0, "a hook was told of what had ended before it was there");
}

#[test]
fn t1_21_worker_reports_an_empty_queue_and_a_broken_hook() {
    let sandbox = Sandbox::new();
    let told = sandbox.path().join("told");
    sandbox.write_home_config(&format!(
        "[hooks]\non_queue_empty = \"echo empty >> {}\"\non_end = \"exit 7\"\n",
        told.display()
    ));
    for _ in 0..3 {
        sandbox.outlive(["queue", "add", "--", "true"]).succeeds();
    }
    sandbox.outlive(["work", "--drain"]).succeeds();
    until("the hook to be told", || told.exists());
    until("the doctor to tell of the broken hook", || {
        let said = sandbox.outlive(["doctor"]).output().unwrap().stdout;
        let said = String::from_utf8_lossy(&said).into_owned();
        said.contains("the hook `on_end` failed 3 times") && said.contains("7")
    });
    assert_eq!(std::fs::read_to_string(&told).unwrap(), "empty\n", "it was told once, after the last");
}
