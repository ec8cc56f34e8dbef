//! Faults of the registry as a whole: replaced, copied, deleted, damaged in part; the ids are those of
//! `docs/faults.md`.

use serde_json::json;

use super::sandbox::{Ends, Sandbox, is_alive, signal_pid, until};

const WAIT: &str = "while [ ! -e go ]; do sleep 0.05; done";

#[test]
fn f_47_f_49_registry_replaced_by_its_copy_keeps_results() {
    let swap = "cp -a .outlive x; rm -rf .outlive; mv x .outlive";
    for (replace, meanwhile) in [
        (swap, &[][..]),
        ("git stash -qa; git stash pop -q", &[]),
        // Whoever writes to the copy before its owner does takes it for one.
        (swap, &["reap"]),
        (swap, &["run", "--", "true"]),
    ] {
        let sandbox = Sandbox::new();
        std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
        sandbox.shell("git init -q; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x").succeeds();
        sandbox.shell("git config user.name a; git config user.email a@b").succeeds();
        let mut run = sandbox.start("heir", &["sh", "-c", "while [ ! -e ../go ]; do sleep 0.05; done; exit 3"]);
        sandbox.shell(replace).succeeds();
        assert_eq!(sandbox.show("heir")["copied"], true, "{replace}: nobody was to tell a copy from the original");
        if !meanwhile.is_empty() {
            sandbox.outlive(meanwhile).succeeds();
        }
        std::fs::write(sandbox.path().join("go"), "").unwrap();
        assert_eq!(run.wrapper.wait().unwrap().code(), Some(3));
        let seen = sandbox.show("heir");
        assert_eq!(
            (&seen["state"], &seen["exit_code"], &seen["copied"]),
            (&"failed".into(), &3.into(), &false.into()),
            "{replace}, then {meanwhile:?}: {seen}"
        );
        // What is rebuilt from the files is the heir's own as well.
        std::fs::remove_file(sandbox.database()).unwrap();
        sandbox.outlive(["run", "--", "true"]).succeeds();
        let seen = sandbox.show("heir");
        assert_eq!((&seen["exit_code"], &seen["copied"]), (&3.into(), &false.into()), "{replace}, rebuilt: {seen}");
        sandbox.outlive(["doctor"]).succeeds();
    }
}

#[test]
fn f_49_a_copy_whose_original_is_still_there_inherits_nothing() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("original", &["sh", "-c", WAIT]);
    let copy = sandbox.path().join("copy");
    sandbox.command("cp", ["-a", sandbox.work().to_str().unwrap(), copy.to_str().unwrap()]).succeeds();
    // The original's directory is moved, not gone, and the copy stands where it was.
    std::fs::rename(sandbox.work(), sandbox.path().join("moved")).unwrap();
    std::fs::rename(&copy, sandbox.work()).unwrap();
    assert_eq!(sandbox.outlive(["reap", "--json"]).json()["reaped"], json!([]));
    std::fs::write(sandbox.path().join("moved/go"), "").unwrap();
    assert!(run.wrapper.wait().unwrap().success());
    assert_eq!(sandbox.show("original")["copied"], true);
    let mut moved = sandbox.outlive(["show", "original", "--json"]);
    let seen = moved.current_dir(sandbox.path().join("moved")).json();
    assert_eq!((&seen["state"], &seen["copied"]), (&"succeeded".into(), &false.into()));
}

/// A run whose result is in the spool, because a damaged file was in its way.
/// Puts something in the way of a run's end that cannot be put aside.
fn block(sandbox: &Sandbox, run: &str) -> std::path::PathBuf {
    let id = sandbox.show(run)["id"].as_str().unwrap().to_owned();
    let attempts = sandbox.registry().join("runs").join(id).join("attempts");
    std::fs::write(attempts.join("0001.json"), "{").unwrap();
    std::fs::create_dir_all(attempts.join("0001.json.damaged-2/taken")).unwrap();
    attempts
}

fn unblock(attempts: &std::path::Path) {
    std::fs::remove_file(attempts.join("0001.json")).unwrap();
    std::fs::remove_dir_all(attempts.join("0001.json.damaged-2")).unwrap();
}

pub(super) fn spool_a_result(sandbox: &Sandbox) {
    let mut run = sandbox.start("spooled", &["sh", "-c", &format!("{WAIT}; exit 6")]);
    let attempts = block(sandbox, "spooled");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(6));
    unblock(&attempts);
    assert_eq!(spooled(sandbox).len(), 1, "nothing was spooled");
}

pub(super) fn spooled(sandbox: &Sandbox) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(sandbox.home().join("spool")).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn l12_f_48_a_spooled_result_follows_its_registry_by_any_path() {
    for replace in ["mv . ../elsewhere", "ln -s work ../elsewhere", "mv . ../elsewhere; cp -a ../elsewhere ../work"] {
        let sandbox = Sandbox::new();
        spool_a_result(&sandbox);
        sandbox.shell(&replace.replace("mv .", "mv ../work")).succeeds();
        let elsewhere = sandbox.path().join("elsewhere");
        if replace.contains("cp") {
            // The copy that stands where it was is not the one that the result belongs to.
            sandbox.outlive(["reap"]).succeeds();
            assert_eq!(spooled(&sandbox).len(), 1, "a copy took the original's result");
        }
        let url = format!("sqlite:{}", elsewhere.join(".outlive").display());
        let shown = || sandbox.outlive(["--registry", &url, "show", "spooled", "--json"]).current_dir("/").json();
        assert_eq!(shown()["exit_code"], 6, "{replace}: a reader does not see the spooled result");
        sandbox.outlive(["--registry", &url, "reap"]).current_dir("/").succeeds();
        let seen = shown();
        assert_eq!((&seen["exit_code"], &seen["reaps"]), (&6.into(), &0.into()), "{replace}: {seen}");
        assert_eq!(spooled(&sandbox).len(), 0, "{replace}");
    }
}

#[test]
fn l12_result_spooled_by_path_by_an_earlier_version_arrives() {
    let sandbox = Sandbox::new();
    spool_a_result(&sandbox);
    let file = spooled(&sandbox).pop().unwrap();
    let mut result: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    result["registry"] = format!("sqlite:{}", sandbox.registry().display()).into();
    std::fs::remove_file(&file).unwrap();
    // Its name did not say whose it is.
    let (_, name) = file.file_name().unwrap().to_str().unwrap().split_once('.').unwrap();
    std::fs::write(file.with_file_name(name), result.to_string()).unwrap();
    std::os::unix::fs::symlink(sandbox.work(), sandbox.path().join("alias")).unwrap();
    let url = format!("sqlite:{}", sandbox.path().join("alias/.outlive").display());
    sandbox.outlive(["--registry", &url, "reap"]).succeeds();
    assert_eq!(sandbox.show("spooled")["exit_code"], 6);
    assert_eq!(spooled(&sandbox).len(), 0);
}

#[test]
fn f_47_deletions_of_the_database_lose_no_result_of_short_runs() {
    const SHELLS: usize = 4;
    const RUNS: usize = 25;
    const MOST_DELETIONS: usize = 150;
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    let script = |shell: usize| {
        format!("for i in $(seq {RUNS}); do outlive run --name short-{shell}-$i -- sh -c 'exit 3' || test $? = 3; done")
    };
    let mut shells: Vec<_> = (0..SHELLS)
        .map(|shell| sandbox.shell(&script(shell)).stderr(std::process::Stdio::piped()).spawn().unwrap())
        .collect();
    let mut deletions = 0;
    while deletions < MOST_DELETIONS && shells.iter_mut().any(|shell| shell.try_wait().unwrap().is_none()) {
        deletions += usize::from(std::fs::remove_file(sandbox.database()).is_ok());
        // Some are deleted as soon as they are made, others while they are in use.
        std::thread::park_timeout(std::time::Duration::from_micros(deletions as u64 * 1_237 % 40_000));
    }
    for shell in shells {
        let output = shell.wait_with_output().unwrap();
        let said = super::sandbox::text(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
    }
    let runs = sandbox.runs();
    let lost: Vec<_> = (0..SHELLS * RUNS)
        .map(|index| format!("short-{}-{}", index / RUNS, index % RUNS + 1))
        .filter(|name| !runs.iter().any(|run| run["name"] == **name && run["exit_code"] == 3))
        .collect();
    println!("{deletions} deletions under {} runs", SHELLS * RUNS);
    assert!(lost.is_empty(), "after {deletions} deletions, {} of {} are lost: {lost:?}", lost.len(), SHELLS * RUNS);
    assert!(deletions > 10, "the database was hardly ever deleted: {deletions}");
}

/// The processes that carry this run in their environment.
fn carriers(id: &str) -> Vec<u32> {
    let wanted = format!("OUTLIVE_RUN_ID={id}");
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    })
    .collect()
}

#[test]
fn f_49_ending_a_run_spares_its_namesake_in_another_registry() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("twin", &["sleep", "300"]);
    let id = sandbox.show("twin")["id"].as_str().unwrap().to_owned();
    let own = sandbox.outlive(["show", "twin", "--json"]).json()["id"].clone();
    assert_eq!(own, id.as_str());
    let registry: serde_json::Value =
        serde_json::from_slice(&std::fs::read(sandbox.registry().join("registry.id")).unwrap()).unwrap();
    // One of the run itself, one of a run of the same id elsewhere, one started by an outlive that named no registry.
    let sleeper = |registry: Option<&str>| -> u32 {
        // Its starter is gone: nothing but its environment tells whose it is.
        let mut command = sandbox.shell("sleep 300 >/dev/null 2>&1 & echo $!");
        command.env("OUTLIVE_RUN_ID", &id).envs(registry.map(|registry| ("OUTLIVE_REGISTRY_ID", registry)));
        command.succeeds().trim().parse().unwrap()
    };
    let (same, other, older) = (sleeper(registry["uuid"].as_str()), sleeper(Some("another")), sleeper(None));
    run.kill();
    let left = sandbox.wait_for("twin", |run| run["health"] == "orphaned");
    assert!(!left["leftover_pids"].as_array().unwrap().contains(&other.into()), "{left}");
    sandbox.outlive(["cancel", "twin"]).succeeds();
    until("those of the run to be gone", || !is_alive(same) && !is_alive(older));
    let alive = carriers(&id);
    signal_pid(other, "KILL");
    assert_eq!(alive, [other], "the namesake of another registry was ended, or one of the run was not");
}

#[test]
fn f_26_a_run_that_can_open_no_more_files_still_beats() {
    // The fewest that let a run start at all, and some more: wherever they run out, it beats.
    let mut beaten = 0;
    for limit in 13..20 {
        let sandbox = Sandbox::impatient();
        let words = [&format!("--nofile={limit}"), "outlive", "run", "--name", "few", "--", "sh", "-c", WAIT];
        let mut command = sandbox.command("prlimit", words);
        let mut run = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        // A run may be on record for a moment before its command turns out to find no descriptors either.
        let mut refused = false;
        let mut beats = std::collections::BTreeSet::new();
        super::sandbox::until(&format!("a second beat with {limit} descriptors, or a refusal"), || {
            refused = run.try_wait().unwrap().is_some();
            beats.extend(sandbox.runs().iter().filter_map(|run| run["last_beat_at"].as_str().map(str::to_owned)));
            refused || beats.len() > 1
        });
        if refused {
            continue;
        }
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert!(run.wait().unwrap().success());
        assert_eq!(sandbox.show("few")["state"], "succeeded");
        beaten += 1;
    }
    println!("{beaten} of 7 limits let a run start");
    assert!(beaten > 0, "no run could be started with so few descriptors");
}

fn doctor(sandbox: &Sandbox, words: &[&str]) -> String {
    super::sandbox::text(&sandbox.outlive(["doctor"].iter().chain(words)).output().unwrap().stdout)
}

#[test]
fn f_50_unreadable_row_hides_no_other_and_is_rebuilt() {
    for damage in ["body = '{'", "body = CAST(x'ff' AS TEXT)", "body = 7", "stamp = 'x'", "revision = 'x'"] {
        let sandbox = Sandbox::new();
        for name in ["before", "damaged", "after"] {
            sandbox.outlive(["run", "--name", name, "--", "true"]).succeeds();
        }
        let id = sandbox.show("damaged")["id"].as_str().unwrap().to_owned();
        let database = rusqlite::Connection::open(sandbox.database()).unwrap();
        database.execute_batch(&format!("UPDATE runs SET {damage} WHERE name = 'damaged'")).unwrap();
        drop(database);

        let seen = sandbox.outlive(["ps", "--all", "--json"]).output().unwrap();
        let said = super::sandbox::text(&seen.stderr);
        assert!(seen.status.success(), "{damage}: {said}");
        assert_eq!(said.matches(&id).count(), 1, "{damage} was not told, or more than once: {said}");
        assert!(said.contains("outlive doctor --fix"), "{said}");
        let names: Vec<_> = sandbox.runs().iter().map(|run| run["name"].clone()).collect();
        assert_eq!(names, ["after", "before"], "{damage} hid another run");
        sandbox.outlive(["show", &id]).fails_with(111);
        sandbox.outlive(["reap"]).succeeds();
        sandbox.outlive(["run", "--name", "later", "--", "true"]).succeeds();

        assert!(doctor(&sandbox, &[]).contains(&id), "{damage}: the doctor does not name it");
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        assert_eq!(sandbox.show("damaged")["state"], "succeeded", "{damage}");
        sandbox.outlive(["doctor"]).succeeds();
        let files = std::fs::read_dir(sandbox.registry().join("runs").join(&id)).unwrap().flatten();
        let kept = files.filter(|file| file.file_name().to_str().unwrap().starts_with("damaged-row-")).count();
        assert_eq!(kept, 1, "{damage}: what the row said is gone");
    }
}

#[test]
fn l12_undeliverable_spooled_result_delays_no_other() {
    let sandbox = Sandbox::new();
    let mut runs = Vec::new();
    for name in ["blocked", "free"] {
        let run = sandbox.start(name, &["sh", "-c", &format!("{WAIT}; exit 6")]);
        runs.push((run, block(&sandbox, name)));
    }
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    for (run, _) in &mut runs {
        assert_eq!(run.wrapper.wait().unwrap().code(), Some(6));
    }
    unblock(&runs[1].1);
    let next = sandbox.outlive(["run", "--name", "next", "--", "true"]).output().unwrap();
    let said = super::sandbox::text(&next.stderr);
    assert!(next.status.success() && said.contains("still waits to be recorded"), "{said}");
    assert_eq!(spooled(&sandbox).len(), 1, "the one that can be delivered was not");
    assert_eq!(sandbox.show("free")["exit_code"], 6);
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    assert_eq!((spooled(&sandbox).len(), sandbox.show("blocked")["exit_code"].clone()), (0, 6.into()));
}

#[test]
fn f_44_doctor_finds_a_damaged_end_and_writes_it_again() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "ended", "--", "sh", "-c", "exit 3"]).fails_with(3);
    let id = sandbox.show("ended")["id"].as_str().unwrap().to_owned();
    let end = sandbox.registry().join("runs").join(&id).join("attempts/0001.json");
    std::fs::write(&end, "{").unwrap();
    let found = doctor(&sandbox, &[]);
    assert!(found.contains("0001.json` is damaged"), "{found}");
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    sandbox.outlive(["doctor"]).succeeds();
    std::fs::remove_file(sandbox.database()).unwrap();
    assert_eq!(sandbox.show("ended")["exit_code"], 3, "the end was not filed again");
}

#[test]
fn the_doctor_reads_the_configuration() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    for (config, problem) in [
        ("beat = \"5s\"\nlease = \"6s\"\n", "at least three beats"),
        ("[kinds.train]\nbeat = \"soon\"\n", "soon"),
        ("beat = ", "config.toml"),
    ] {
        sandbox.write_config(config);
        let found = doctor(&sandbox, &[]);
        assert!(found.contains("problem") && found.contains(problem), "{config}: {found}");
        assert_eq!(sandbox.outlive(["doctor"]).output().unwrap().status.code(), Some(1));
    }
    sandbox.write_config("beat = \"1s\"\nlease = \"3s\"\n");
    sandbox.outlive(["doctor"]).succeeds();
}

#[test]
fn f_46_old_empty_directory_of_no_run_is_removed() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    let runs = sandbox.registry().join("runs");
    let [young, old] = ["01900000-0000-7000-8000-000000000001", "01900000-0000-7000-8000-000000000002"];
    std::fs::create_dir_all(runs.join(young)).unwrap();
    std::fs::create_dir_all(runs.join(old).join("attempts")).unwrap();
    sandbox.command("touch", ["-d", "2 hours ago", runs.join(old).to_str().unwrap()]).succeeds();
    let found = doctor(&sandbox, &[]);
    assert!(found.contains(old) && !found.contains(young), "{found}");
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    assert!(runs.join(young).exists() && !runs.join(old).exists());
    sandbox.outlive(["doctor"]).succeeds();
}

/// A process that holds a lock of the registry until it is killed.
struct Holder(std::process::Child);

impl Holder {
    fn of(sandbox: &Sandbox, lock: &str) -> Self {
        let lock = sandbox.registry().join(lock);
        let holder = sandbox.command("flock", ["-F", lock.to_str().unwrap(), "sleep", "300"]).spawn().unwrap();
        super::sandbox::until("the lock to be held", || {
            let try_it = sandbox.command("flock", ["-n", lock.to_str().unwrap(), "true"]).status();
            !try_it.unwrap().success()
        });
        Self(holder)
    }

    fn stopped(self) -> Self {
        super::sandbox::signal_pid(self.0.id(), "STOP");
        self
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn f_13_lock_of_a_stopped_process_is_waited_for_to_a_deadline() {
    for lock in ["open.lock", "write.lock"] {
        let sandbox = Sandbox::new();
        sandbox.outlive(["run", "--", "true"]).succeeds();
        if lock == "open.lock" {
            std::fs::remove_file(sandbox.database()).unwrap();
        }
        let holder = Holder::of(&sandbox, lock).stopped();
        let refused = sandbox.command("timeout", ["50", "outlive", "run", "--", "true"]).fails_with(107);
        assert!(refused.contains(lock) && refused.contains(&format!("process {}", holder.0.id())), "{refused}");
        drop(holder);
        sandbox.outlive(["run", "--", "true"]).succeeds();
    }
}

#[test]
fn f_13_result_is_kept_while_a_stopped_process_blocks_writes() {
    let sandbox = Sandbox::new();
    let words = ["50", "outlive", "run", "--name", "kept", "--", "sh", "-c", &format!("{WAIT}; exit 6")];
    let mut run = sandbox.command("timeout", words).stderr(std::process::Stdio::null()).spawn().unwrap();
    sandbox.wait_for_state("kept", "running");
    let holder = Holder::of(&sandbox, "write.lock").stopped();
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(6), "it waited until it was ended");
    assert_eq!(sandbox.show("kept")["exit_code"], 6, "a reader did not see the result");
    drop(holder);
    sandbox.outlive(["reap"]).succeeds();
    let seen = sandbox.show("kept");
    assert_eq!((&seen["exit_code"], &seen["reaps"], spooled(&sandbox).len()), (&6.into(), &0.into(), 0));
}

#[test]
fn a_run_that_waits_to_be_registered_can_be_asked_to_stop() {
    for signal in ["TERM", "INT"] {
        let sandbox = Sandbox::new();
        sandbox.outlive(["init"]).succeeds();
        let _holder = Holder::of(&sandbox, "write.lock");
        let mut run = sandbox.outlive(["run", "--", "true"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
        super::sandbox::until("the run to wait for its turn", || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", run.id())).unwrap().flatten();
            let mut names =
                threads.map(|thread| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
            names.any(|name| name.trim() == "outlive-turn")
        });
        super::sandbox::signal_pid(run.id(), signal);
        let mut ended = false;
        super::sandbox::until("the run to end", || {
            ended = run.try_wait().unwrap().is_some();
            ended
        });
        let said = super::sandbox::text(&run.wait_with_output().unwrap().stderr);
        assert!(said.contains("asked to stop"), "{signal}: {said}");
    }
}

#[test]
fn reading_writes_nothing_whatever_is_missing() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "read", "--", "sh", "-c", "exit 3"]).fails_with(3);
    for name in ["registry.db", "registry.db-wal", "registry.db-shm", "open.lock", "write.lock", "spare"] {
        std::fs::remove_file(sandbox.registry().join(name)).unwrap();
    }
    std::fs::remove_file(sandbox.home().join("key")).unwrap();
    let listed = || sandbox.shell("find . ../home -printf '%p %i %s %T@ %m\\n' | sort").succeeds();
    let before = listed();
    for words in [
        &["ps", "--all"][..],
        &["show", "read"],
        &["why", "read"],
        &["doctor"],
        &["wait", "read"],
        &["reap", "--dry-run"],
    ] {
        let output = sandbox.outlive(words).output().unwrap();
        assert!([Some(0), Some(3)].contains(&output.status.code()), "{words:?}: {output:?}");
        assert_eq!(listed(), before, "{words:?} wrote something");
    }
    assert_eq!(sandbox.show("read")["exit_code"], 3);
    sandbox.outlive(["reap"]).succeeds();
    assert!(sandbox.database().exists(), "whoever writes rebuilds it");
}

#[test]
fn s_02_damaged_key_is_reported_by_every_run_and_doctor() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    for bytes in [&b""[..], &[7; 31], &[7; 33]] {
        std::fs::write(sandbox.home().join("key"), bytes).unwrap();
        let run = sandbox.outlive(["run", "--", "true"]).output().unwrap();
        let said = super::sandbox::text(&run.stderr);
        assert!(run.status.success() && said.contains("is damaged") && said.contains("home/key"), "{said}");
        assert!(doctor(&sandbox, &[]).contains("is damaged"));
        sandbox.outlive(["doctor"]).fails_with(1);
    }
    std::fs::remove_file(sandbox.home().join("key")).unwrap();
    sandbox.outlive(["run", "--name", "signed", "--", "true"]).succeeds();
    assert_eq!(sandbox.show("signed")["trusted"], true);
}

#[test]
fn named_registry_is_not_created_in_a_missing_directory() {
    let sandbox = Sandbox::new();
    for words in [&["run", "--", "true"][..], &["init"]] {
        let refused = sandbox.outlive(["--registry", "sqlite:misspelt/runs"].iter().chain(words)).fails_with(107);
        assert!(refused.contains("no directory `misspelt`"), "{refused}");
        assert!(!sandbox.work().join("misspelt").exists(), "it was made");
    }
    // The user's own is made with all that is above it.
    std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
    let home = sandbox.path().join("a/b/home");
    sandbox.outlive(["run", "--", "true"]).env("OUTLIVE_HOME", &home).succeeds();
    assert!(home.join("registry/registry.db").exists());
}

#[test]
fn s_32_umask_that_denies_all_lets_runs_start() {
    if !super::sandbox::is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.command("chown", ["-R", "65534:65534", sandbox.path().to_str().unwrap()]).succeeds();
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec"];
    let script = "umask 777; outlive run --name first -- true; outlive run --name second -- true; outlive ps -a --json";
    let seen = sandbox.command("setpriv", nobody.iter().chain([&script])).json();
    assert_eq!(seen["runs"].as_array().unwrap().len(), 2, "{seen}");
}
