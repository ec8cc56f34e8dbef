//! Faults of disks, files and databases; the ids are those of `docs/faults.md`.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::sandbox::{Ends, Sandbox, binary, is_root, text, until};

const WAIT: &str = "while [ ! -e go ]; do sleep 0.05; done";

/// A file system of its own, unmounted at the end.
struct Mount {
    path: PathBuf,
}

impl Mount {
    fn new(path: &Path, words: &[&str]) -> Self {
        std::fs::create_dir_all(path).unwrap();
        Command::new("mount").args(words).arg(path).succeeds();
        Self { path: path.into() }
    }

    fn remount(&self, how: &str) {
        Command::new("mount").args(["-o", &format!("remount,{how}")]).arg(&self.path).succeeds();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// A sandbox whose working directory is a small file system of its own; its home is not.
fn small(size: &str) -> (Sandbox, Mount) {
    let sandbox = Sandbox::new();
    let mount = Mount::new(&sandbox.work(), &["-t", "tmpfs", "-o", &format!("size={size}"), "none"]);
    sandbox.outlive(["init"]).succeeds();
    sandbox.write_config("beat = \"100ms\"\nlease = \"500ms\"\n");
    (sandbox, mount)
}

fn fill(path: &Path) {
    let filled =
        Command::new("dd").args(["if=/dev/zero", "bs=4k", &format!("of={}", path.join("ballast").display())]).output();
    assert!(text(&filled.unwrap().stderr).contains("No space left"), "the disk did not fill up");
}

#[test]
fn f_38_f_39_full_disk_stops_no_command_and_loses_no_result() {
    if !is_root() {
        return;
    }
    for ballast in ["all but the spare", "everything"] {
        let (sandbox, _mount) = small("1m");
        let mut run =
            sandbox.start("full", &["sh", "-c", "while [ ! -e /proc/self/cwd/go ]; do sleep 0.05; done; exit 7"]);
        if ballast == "everything" {
            std::fs::remove_file(sandbox.registry().join("spare")).unwrap();
        }
        std::fs::write(sandbox.work().join("go-on"), "").unwrap();
        fill(&sandbox.work());
        std::fs::rename(sandbox.work().join("go-on"), sandbox.work().join("go")).unwrap();
        assert_eq!(run.wrapper.wait().unwrap().code(), Some(7), "the command's exit status was lost ({ballast})");
        let seen = sandbox.show("full");
        assert_eq!((&seen["state"], &seen["exit_code"]), (&"failed".into(), &7.into()), "before there is room: {seen}");
        std::fs::remove_file(sandbox.work().join("ballast")).unwrap();
        sandbox.outlive(["reap"]).succeeds();
        let seen = sandbox.show("full");
        assert_eq!(
            (&seen["state"], &seen["exit_code"], &seen["reaps"]),
            (&"failed".into(), &7.into(), &0.into()),
            "{ballast}"
        );
        assert_eq!(seen["error_message"], "exit code 7");
        sandbox.outlive(["doctor", "--fix"]).succeeds();
    }
}

#[test]
fn f_40_read_only_registry_refuses_a_run_and_can_be_read() {
    if !is_root() {
        return;
    }
    let (sandbox, mount) = small("1m");
    sandbox.outlive(["run", "--name", "before", "--", "true"]).succeeds();
    mount.remount("ro");
    let marker = sandbox.path().join("started");
    let refused = sandbox.outlive(["run", "--", "touch", marker.to_str().unwrap()]).fails_with(109);
    assert!(refused.contains("Read-only file system"), "{refused}");
    assert!(!marker.exists(), "the command was started");
    assert_eq!(sandbox.show("before")["state"], "succeeded");
    mount.remount("rw");
    sandbox.outlive(["run", "--name", "after", "--", "true"]).succeeds();
}

#[test]
fn f_41_a_disk_that_turns_read_only_keeps_the_result_for_later() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let image = sandbox.path().join("disk.img");
    Command::new("truncate").args(["-s", "16M"]).arg(&image).succeeds();
    Command::new("mkfs.ext4").arg("-q").arg(&image).succeeds();
    let words = ["-o", "loop", image.to_str().unwrap()];
    let disk = Mount::new(&sandbox.work(), &words);
    sandbox.outlive(["init"]).succeeds();
    sandbox.write_config("beat = \"100ms\"\nlease = \"500ms\"\n");
    let go = sandbox.path().join("go");
    let script = format!("while [ ! -e {} ]; do sleep 0.05; done; exit 5", go.display());
    let mut run = sandbox.start("ro", &["sh", "-c", &script]);
    // As the kernel does on an error of the disk, whoever writes to it.
    disk.remount("abort");
    std::fs::write(&go, "").unwrap();
    assert_eq!(run.wrapper.wait().unwrap().code(), Some(5));
    assert_eq!(sandbox.show("ro")["exit_code"], 5, "a reader did not see the spooled result");
    drop(disk);
    let _disk = Mount::new(&sandbox.work(), &words);
    sandbox.outlive(["reap"]).succeeds();
    let seen = sandbox.show("ro");
    assert_eq!((&seen["state"], &seen["exit_code"], &seen["reaps"]), (&"failed".into(), &5.into(), &0.into()));
    assert_eq!(std::fs::read_dir(sandbox.home().join("spool")).unwrap().count(), 0);
}

#[test]
fn f_42_a_failed_sync_is_never_taken_for_a_write() {
    // Each sync of a run fails once in turn: whatever was answered must be what is on record.
    let mut struck = 0;
    for point in 1..=8 {
        let sandbox = Sandbox::new();
        sandbox.outlive(["run", "--name", "before", "--", "true"]).succeeds();
        let inject = format!("inject=fsync,fdatasync,syncfs:error=EIO:when={point}");
        let syncs = sandbox.path().join("syncs");
        let strace = ["-qq", "-f", "-o", syncs.to_str().unwrap(), "-e", "trace=fsync,fdatasync,syncfs", "-e", &inject];
        let words = strace.into_iter().chain(["outlive", "run", "--name", "struck", "--", "sh", "-c", "exit 3"]);
        let output = sandbox.command("strace", words).output().unwrap();
        let syncs = std::fs::read_to_string(&syncs).unwrap();
        struck += syncs.matches("INJECTED").count();
        assert!(
            !syncs.trim_end().ends_with("(INJECTED)") || !output.stderr.is_empty(),
            "point {point}: nothing was synced after the failure, and nobody was told:\n{syncs}"
        );
        sandbox.outlive(["doctor"]).succeeds();
        sandbox.outlive(["reap"]).succeeds();
        let runs = sandbox.runs();
        let run = runs.iter().find(|run| run["name"] == "struck");
        match output.status.code() {
            Some(3) => assert_eq!(run.unwrap()["exit_code"], 3, "point {point}: an end that was told is not on record"),
            // Refused before the command started: either it is not there, or it is there and over.
            Some(_) => assert!(
                run.is_none_or(|run| run["state"] == "dead" || run["state"] == "failed"),
                "point {point}: {run:?}"
            ),
            None => panic!("point {point}: ended by a signal"),
        }
        assert_eq!(sandbox.show("before")["state"], "succeeded");
    }
    assert!(struck > 0, "no sync failed");
}

#[test]
fn f_43_acknowledged_writes_survive_a_power_cut() {
    if !is_root() {
        return;
    }
    let cuts = std::env::var("OUTLIVE_POWER_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(12);
    let sandbox = Sandbox::new();
    let (image, cut) = (sandbox.path().join("disk.img"), sandbox.path().join("cut.img"));
    Command::new("truncate").args(["-s", "64M"]).arg(&image).succeeds();
    Command::new("mkfs.ext4").arg("-q").arg(&image).succeeds();
    let disk = Mount::new(&sandbox.path().join("disk"), &["-o", "loop,commit=60", image.to_str().unwrap()]);
    let url = format!("sqlite:{}", disk.path.join("registry").display());
    let outlive = |words: &[&str]| sandbox.outlive(["--registry", &url].iter().chain(words));
    outlive(&["init"]).succeeds();
    let mut told: Vec<String> = Vec::new();
    let mut checked = 0;
    for number in 0..cuts {
        let mut next = outlive(&["run", "--name", "unfinished", "--", "sh", "-c", "exit 4"]);
        let mut next = next.stderr(Stdio::null()).spawn().unwrap();
        // A cut is one moment: whoever writes stands still while the disk is copied.
        std::thread::park_timeout(std::time::Duration::from_millis(number as u64 % 12));
        let tell = |signal| Command::new("kill").args(["-s", signal, &next.id().to_string()]).output().unwrap();
        tell("STOP");
        std::fs::copy(&image, &cut).unwrap();
        tell("CONT");
        next.wait().unwrap();
        {
            let after = Mount::new(&sandbox.path().join("after"), &["-o", "loop", cut.to_str().unwrap()]);
            let url = format!("sqlite:{}", after.path.join("registry").display());
            sandbox.outlive(["--registry", &url, "doctor"]).output().unwrap();
            for name in &told {
                let seen = sandbox.outlive(["--registry", &url, "show", name.as_str(), "--json"]).json();
                assert_eq!(
                    (&seen["state"], &seen["exit_code"]),
                    (&"failed".into(), &9.into()),
                    "cut {number}: {name} was told and is lost"
                );
                checked += 1;
            }
        }
        let name = format!("told-{number}");
        assert_eq!(outlive(&["run", "--name", &name, "--", "sh", "-c", "exit 9"]).status().unwrap().code(), Some(9));
        told.push(name);
    }
    println!("{cuts} cuts, {checked} ends looked for");
    assert!(checked >= cuts * (cuts - 1) / 2);
}

#[test]
fn f_44_a_torn_end_is_no_evidence_of_anything() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "torn", "--", "sh", "-c", "exit 3"]).status().unwrap();
    let id = sandbox.show("torn")["id"].as_str().unwrap().to_owned();
    let file = sandbox.registry().join("runs").join(&id).join("attempts/0001.json");
    let whole = std::fs::read(&file).unwrap();
    let mut flipped = whole.clone();
    let at = text(&whole).find("\"code\":3").unwrap() + 7;
    flipped[at] = b'0';
    let torn = [0, 1, whole.len() / 2, whole.len() - 2].map(|length| whole[..length].to_vec());
    for damaged in torn.into_iter().chain([flipped]) {
        std::fs::write(&file, &damaged).unwrap();
        std::fs::remove_file(sandbox.database()).unwrap_or_default();
        // Without a database that is written, and with one.
        for rebuilt in [false, true] {
            let told = sandbox.outlive(["show", &id]).fails_with(111);
            assert!(told.contains("0001.json` is damaged"), "rebuilt: {rebuilt}: {told}");
            let listed = sandbox.outlive(["ps", "--json"]).output().unwrap();
            assert!(text(&listed.stderr).contains(&id), "rebuilt: {rebuilt}: {}", text(&listed.stderr));
            assert!(!text(&listed.stdout).contains(&id), "a state was invented: {}", text(&listed.stdout));
            sandbox.outlive(["reap"]).succeeds();
            assert_eq!(std::fs::read(&file).unwrap(), damaged, "a reap ended what has ended");
        }
        let found = sandbox.outlive(["doctor"]).output().unwrap();
        assert!(!found.status.success() && text(&found.stdout).contains(&id), "{}", text(&found.stdout));
    }
    std::fs::write(&file, &whole).unwrap();
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    assert_eq!(sandbox.show("torn")["exit_code"], 3);
}

#[test]
fn f_46_only_old_files_that_were_left_behind_are_swept() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--", "true"]).succeeds();
    let (old, fresh, other) = (".tmp-old", ".tmp-fresh", "precious");
    for name in [old, fresh, other] {
        std::fs::write(sandbox.registry().join(name), "").unwrap();
    }
    for name in [old, other] {
        sandbox.command("touch", ["-d", "2 hours ago", sandbox.registry().join(name).to_str().unwrap()]).succeeds();
    }
    let found = sandbox.outlive(["doctor", "--json"]).output().unwrap();
    assert!(text(&found.stdout).contains(".tmp-old") && sandbox.registry().join(old).exists());
    sandbox.outlive(["doctor", "--fix"]).succeeds();
    let left = [old, fresh, other].map(|name| sandbox.registry().join(name).exists());
    assert_eq!(left, [false, true, true]);
}

#[test]
fn f_47_a_registry_deleted_under_a_run_is_made_again_by_it() {
    for delete in ["rm -rf .outlive", "git clean -qfdx"] {
        let sandbox = Sandbox::new();
        std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
        sandbox.command("git", ["init", "-q"]).succeeds();
        sandbox.outlive(["init"]).succeeds();
        sandbox.write_config("beat = \"100ms\"\nlease = \"500ms\"\n");
        let mut run = sandbox.start("bereft", &["sh", "-c", WAIT]);
        let id = sandbox.show("bereft")["id"].clone();
        sandbox.shell(delete).succeeds();
        assert!(!sandbox.registry().join("registry.id").exists() || delete.starts_with("git"));
        let again = sandbox.wait_for("bereft", |run| run["id"] == id && run["state"] == "running");
        assert_eq!(again["epoch"], 1);
        std::fs::write(sandbox.work().join("go"), "").unwrap();
        assert!(run.wrapper.wait().unwrap().success());
        assert_eq!(sandbox.show("bereft")["state"], "succeeded", "after {delete}");
    }
}

#[test]
fn f_48_a_repository_may_be_moved_while_its_runs_are_in_flight() {
    let sandbox = Sandbox::impatient();
    let mut run = sandbox.start("mover", &["sh", "-c", WAIT]);
    let moved = sandbox.path().join("moved");
    std::fs::rename(sandbox.work(), &moved).unwrap();
    let shown = || sandbox.outlive(["show", "mover", "--json"]).current_dir(&moved).json();
    let beat = shown()["last_beat_at"].clone();
    until("a beat after the move", || shown()["last_beat_at"] != beat);
    std::fs::write(moved.join("go"), "").unwrap();
    assert!(run.wrapper.wait().unwrap().success());
    let seen = shown();
    assert_eq!((&seen["state"], &seen["copied"]), (&"succeeded".into(), &false.into()));
}

#[test]
fn f_49_runs_of_a_copied_registry_are_shown_and_left_alone() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "ended", "--", "true"]).succeeds();
    let mut run = sandbox.start("original", &["sleep", "300"]);
    let copy = sandbox.path().join("copy");
    sandbox.command("cp", ["-r", sandbox.work().to_str().unwrap(), copy.to_str().unwrap()]).succeeds();
    let at_copy = |words: &[&str]| {
        let mut command = sandbox.outlive(words);
        command.current_dir(&copy);
        command
    };
    let before = at_copy(&["show", "original", "--json"]).json();
    assert_eq!((&before["copied"], &before["state"]), (&true.into(), &"running".into()));
    assert_eq!(at_copy(&["reap", "--json"]).json()["reaped"], json!([]));
    at_copy(&["cancel", "original"]).fails_with(103);
    // The copy becomes a registry of its own with its first run; what came along stays what it is.
    at_copy(&["run", "--name", "own", "--", "true"]).succeeds();
    assert_eq!(at_copy(&["show", "own", "--json"]).json()["copied"], false);
    assert_eq!(at_copy(&["show", "original", "--json"]).json()["copied"], true);
    assert_eq!(at_copy(&["show", "ended", "--json"]).json()["state"], "succeeded");
    run.kill();
    assert_eq!(at_copy(&["reap", "--json"]).json()["reaped"], json!([]));
    assert_eq!(sandbox.show("original")["copied"], false);
}

#[test]
fn f_50_a_corrupt_database_is_kept_read_around_and_rebuilt() {
    let sandbox = Sandbox::new();
    for index in 0..5 {
        sandbox.outlive(["run", "--name", &format!("kept-{index}"), "--", "true"]).succeeds();
    }
    let states =
        || -> Vec<Value> { sandbox.runs().iter().map(|run| json!([run["name"], run["state"], run["id"]])).collect() };
    let before = states();
    // Everything into the one file, then damage in its header, in its middle, and cut off.
    let whole = {
        let copy = sandbox.path().join("whole.db");
        for rest in ["", "-wal"] {
            std::fs::copy(
                sandbox.registry().join(format!("registry.db{rest}")),
                sandbox.path().join(format!("whole.db{rest}")),
            )
            .unwrap();
        }
        copy
    };
    for (damage, at) in [("header", 0), ("magic", 16), ("pages", 4096), ("cut", usize::MAX)] {
        std::fs::copy(&whole, sandbox.database()).unwrap();
        for rest in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(sandbox.registry().join(format!("registry.db{rest}")));
        }
        let mut bytes = std::fs::read(&whole).unwrap();
        match at {
            usize::MAX => bytes.truncate(1000),
            at => bytes[at..at + 64].fill(0xa5),
        }
        std::fs::write(sandbox.database(), &bytes).unwrap();
        let said = sandbox.outlive(["ps", "--all"]).output().unwrap();
        if said.status.success() && !said.stderr.is_empty() {
            for run in &before {
                assert!(states().contains(run), "{damage}: {run} is known to the files and was not shown");
            }
        }
        let left = std::fs::read(sandbox.database()).unwrap();
        assert_eq!(left, bytes, "{damage}: a read changed the damaged file");
        let refused = sandbox.outlive(["run", "--", "true"]).output().unwrap();
        if refused.status.code() == Some(111) {
            assert!(text(&refused.stderr).contains("doctor --fix"), "{}", text(&refused.stderr));
        }
        sandbox.outlive(["doctor", "--fix"]).succeeds();
        let kept = std::fs::read_dir(sandbox.registry()).unwrap().flatten().any(|entry| {
            std::fs::read(entry.path()).is_ok_and(|content| content == bytes) && entry.file_name() != "registry.db"
        });
        assert!(kept, "{damage}: the damaged file is gone");
        for run in &before {
            assert!(states().contains(run), "{damage}: {run} is lost");
        }
        sandbox.outlive(["doctor"]).succeeds();
        sandbox.outlive(["run", "--", "true"]).succeeds();
    }
}

#[test]
fn f_51_a_newer_format_is_refused_and_left_as_it_is() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["run", "--name", "kept", "--", "true"]).succeeds();
    set_format(&sandbox, 99, None);
    let bytes = std::fs::read(sandbox.database()).unwrap();
    for words in [&["ps"][..], &["run", "--", "true"], &["reap"]] {
        let refused = sandbox.outlive(words).fails_with(110);
        assert!(refused.contains("has format 99; this outlive knows formats up to"), "{refused}");
    }
    assert_eq!(std::fs::read(sandbox.database()).unwrap(), bytes, "a newer database was changed");
    // One that says it can be read by us is read, and still not written.
    set_format(&sandbox, 99, Some(1));
    assert_eq!(sandbox.show("kept")["state"], "succeeded");
    assert!(sandbox.outlive(["run", "--", "true"]).fails_with(109).contains("later outlive"));
}

fn set_format(sandbox: &Sandbox, format: i64, readable_from: Option<i64>) {
    let database = rusqlite::Connection::open(sandbox.database()).unwrap();
    let readable = readable_from.unwrap_or(format);
    database
        .execute_batch(&format!("PRAGMA user_version = {format}; UPDATE meta SET value = {readable} WHERE name = 'readable_from'; PRAGMA wal_checkpoint(TRUNCATE);"))
        .unwrap();
}

#[test]
fn f_52_the_binary_brings_its_own_sqlite_alone() {
    let linked = Command::new("ldd").arg(binary()).succeeds();
    assert!(!linked.contains("libsqlite3"), "{linked}");
}

#[test]
fn f_53_the_log_stays_short_however_many_read_and_write() {
    let sandbox = Sandbox::new();
    let script = "for i in $(seq 150); do outlive run -- true; outlive ps --all >/dev/null; done";
    let (one, other) = (sandbox.shell(script).spawn().unwrap(), sandbox.shell(script).spawn().unwrap());
    for mut shell in [one, other] {
        assert!(shell.wait().unwrap().success());
    }
    let log = std::fs::metadata(sandbox.registry().join("registry.db-wal")).unwrap().len();
    println!("log of {log} bytes after 300 runs");
    assert!(log < 4 << 20, "the log has {log} bytes");
    assert_eq!(sandbox.runs().len(), 300);
}

#[test]
fn l24_the_file_of_an_attempt_is_written_once() {
    let sandbox = Sandbox::new();
    let mut run = sandbox.start("once", &["sh", "-c", WAIT]);
    let id = sandbox.show("once")["id"].as_str().unwrap().to_owned();
    let file = sandbox.registry().join("runs").join(&id).join("attempts/0001.json");
    assert!(!file.exists(), "an attempt that runs has an end");
    std::fs::write(sandbox.work().join("go"), "").unwrap();
    run.wrapper.wait().unwrap();
    let mark = |file: &Path| {
        std::fs::metadata(file)
            .map(|found| (found.ino(), found.mtime_nsec(), found.len(), found.mode() & 0o777))
            .unwrap()
    };
    let before = mark(&file);
    assert_eq!(before.3, 0o600);
    for words in [&["reap"][..], &["cancel", "once"], &["doctor", "--fix"], &["ps", "-a"], &["why", "once"]] {
        sandbox.outlive(words).output().unwrap();
    }
    std::fs::remove_file(sandbox.database()).unwrap();
    sandbox.outlive(["ps", "-a"]).succeeds();
    assert_eq!(mark(&file), before);
}

#[test]
fn s_32_s_33_registry_is_private_and_ignored_for_any_umask() {
    let sandbox = Sandbox::new();
    std::fs::remove_dir(sandbox.work().join(".git")).unwrap();
    sandbox.command("git", ["init", "-q"]).succeeds();
    sandbox.shell("umask 000; outlive run -- true").succeeds();
    assert_eq!(sandbox.command("git", ["status", "--porcelain"]).succeeds(), "");
    let listed = sandbox.shell("find .outlive -perm /077").succeeds();
    assert_eq!(listed, "", "others can read or write these");
}

#[test]
fn t1_09_a_run_refused_on_a_full_disk_is_never_executed() {
    if !is_root() {
        return;
    }
    let mut refused = 0;
    // How far a refused run gets depends on what is left: its files, the log of the database, or neither fits.
    for free in ["0", "8k", "24k", "40k", "68k", "88k"] {
        let (sandbox, _mount) = small("1m");
        sandbox.outlive(["run", "--", "true"]).succeeds();
        let _ = std::fs::remove_file(sandbox.registry().join("spare"));
        fill(&sandbox.work());
        sandbox.command("truncate", ["-s", &format!("-{free}"), "ballast"]).succeeds();
        let mut names = Vec::new();
        for number in 0..4 {
            let script = format!("touch ../ran-{number}");
            let words = ["run", "-d", "--resume-on", "crash", "--", "sh", "-c", &script];
            match sandbox.outlive(words).output().unwrap().status.code() {
                Some(0) => {}
                Some(108) => names.push(format!("ran-{number}")),
                other => panic!("{free} free: ended with {other:?}"),
            }
        }
        refused += names.len();
        let said = text(&sandbox.outlive(["doctor"]).output().unwrap().stdout);
        assert!(said.contains("the disk of the registry is full") && !said.contains("damaged"), "{free} free: {said}");
        std::fs::remove_file(sandbox.work().join("ballast")).unwrap();
        let said = text(&sandbox.outlive(["doctor"]).output().unwrap().stdout);
        assert!(!said.contains("damaged") && !said.contains("does not know"), "{free} free: {said}");
        sandbox.outlive(["supervise", "--once"]).succeeds();
        let kept = super::secrets::files(&sandbox.home().join("environment"));
        assert_eq!(kept.len(), 0, "{free} free: refused runs left their environment: {kept:?}");
        for name in names {
            assert!(!sandbox.path().join(&name).exists(), "{free} free: {name} was refused and executed");
        }
    }
    assert!(refused > 6, "the disk was hardly ever full: {refused} refused");
}

#[test]
fn t1_21_a_run_in_a_read_only_checkout_is_recorded_in_the_home() {
    if !is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let mount = Mount::new(&sandbox.work(), &["-t", "tmpfs", "none"]);
    std::fs::create_dir(sandbox.work().join(".git")).unwrap();
    mount.remount("ro");
    let ran = sandbox.outlive(["run", "--name", "here", "--", "true"]).output().unwrap();
    let said = text(&ran.stderr);
    assert!(ran.status.success() && said.contains("cannot be written to") && said.contains("home/registry"), "{said}");
    assert_eq!(sandbox.show("here")["state"], "succeeded");
    assert!(sandbox.outlive(["ps", "--all"]).succeeds().contains("here"));
}
