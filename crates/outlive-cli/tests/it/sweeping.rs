//! The sweeper as a command: killed in the middle, on a schedule, with clocks that are off, and where nothing is as it should be.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use outlive::store::object::ObjectStore;
use outlive::testing::bucket::{BUCKET, Bucket, KEY, READ_KEY, url_at};
use outlive::testing::proxy::{Fate, Gate, Proxy, Request};
use outlive::testing::set_clock_off;
use serde_json::Value;

use super::sandbox::{Ends, Sandbox, signal_pid, text, until};

/// A policy by which nothing is spared for having ended only now.
pub(crate) const NO_GRACE: &str = "[sweep]\ngrace = \"0s\"\n";

/// A registry in a bucket, and artifacts beside it, in a home whose policy is [`NO_GRACE`].
pub(crate) struct Yard {
    pub(crate) sandbox: Sandbox,
    pub(crate) prefix: String,
    pub(crate) store: ObjectStore,
}

impl Yard {
    pub(crate) fn new() -> Self {
        let url = Bucket::shared().fresh_url();
        let prefix = url.split_once(&format!("@{BUCKET}/")).unwrap().1.split('?').next().unwrap().to_owned();
        let store = pollster::block_on(ObjectStore::open(&url.parse().unwrap())).unwrap();
        let sandbox = Sandbox::new();
        sandbox.write_home_config(NO_GRACE);
        Self { sandbox, prefix, store }
    }

    fn at(&self, port: u16, words: &[&str]) -> Command {
        self.with(&url_at(port, KEY, &self.prefix), words)
    }

    fn with(&self, url: &str, words: &[&str]) -> Command {
        let mut command = self.sandbox.outlive(words);
        command.env("OUTLIVE_REGISTRY", url);
        command
    }

    pub(crate) fn outlive(&self, words: &[&str]) -> Command {
        self.at(Bucket::shared().port(), words)
    }

    pub(crate) fn place(&self) -> String {
        format!("s3://{BUCKET}/{}/data", self.prefix)
    }

    /// A run that ended badly, with so many objects.
    fn failed(&self, name: &str, objects: usize) -> String {
        let place = self.place();
        let words = ["run", "--name", name, "--artifacts", &place, "--", "false"];
        assert_eq!(self.outlive(&words).status().unwrap().code(), Some(1));
        let id = self.id(name);
        self.put(&id, objects);
        id
    }

    fn id(&self, name: &str) -> String {
        self.outlive(&["show", name, "--json"]).json()["id"].as_str().unwrap().to_owned()
    }

    fn put(&self, id: &str, objects: usize) {
        let key = |number: usize| format!("{}/data/shards/run_id={id}/db=00000/attempt=00/{number:05}", self.prefix);
        let objects = (0..objects).map(|number| (key(number), b"12345".to_vec())).collect();
        pollster::block_on(self.store.raw_put_many(objects)).unwrap();
    }

    fn left(&self) -> usize {
        pollster::block_on(self.store.raw_list(&format!("{}/data", self.prefix))).unwrap().len()
    }

    fn sweep(&self, words: &[&str]) -> Value {
        self.outlive(&[&["sweep", "--yes", "--json"], words].concat()).json()
    }
}

fn deletes(request: &Request) -> bool {
    request.method == "POST" && request.target.contains("delete")
}

#[test]
fn b07_killed_sweep_is_completed_by_the_next() {
    let yard = Yard::new();
    let id = yard.failed("bad", 1_500);
    let (gate, asked) = (Gate::new(), AtomicUsize::new(0));
    let (holds, (tell, told)) = (gate.clone(), std::sync::mpsc::channel());
    let proxy = Proxy::new(Bucket::shared().port(), move |request| {
        // Of two batches the first has gone when it is killed, and the second is never heard of.
        if !deletes(request) || asked.fetch_add(1, Ordering::SeqCst) == 0 {
            return Fate::Pass;
        }
        tell.send(()).unwrap();
        Fate::Hold(holds.clone())
    });
    let mut command = yard.at(proxy.port(), &["sweep", "--yes", "--grace", "0s"]);
    let mut sweeper = command.stdout(Stdio::null()).spawn().unwrap();
    told.recv().unwrap();
    // As long as it lives, nobody else sweeps the run.
    let other = yard.sweep(&["--grace", "0s"]);
    assert_eq!(other["objects"], 0, "{other}");
    assert!(other["kept"][0]["reason"].as_str().unwrap().contains("sweeps it"), "{other}");
    signal_pid(sweeper.id(), "KILL");
    sweeper.wait().unwrap();
    assert_eq!(yard.left(), 500);
    let refused = yard.outlive(&["resume", "bad", "--failed"]).output().unwrap();
    assert!(text(&refused.stderr).contains("swept"), "{}", text(&refused.stderr));

    let done = yard.sweep(&["--grace", "0s"]);
    assert_eq!((&done["objects"], &done["left"], yard.left()), (&500.into(), &0.into(), 0), "{done}");
    let why = text(&yard.outlive(&["why", &id]).output().unwrap().stdout);
    assert_eq!(why.matches("failed, and it has no manifest").count(), 2, "{why}");
    assert!(why.contains("500 objects of 2500 bytes deleted"), "{why}");
    assert_eq!(yard.sweep(&["--grace", "0s"])["objects"], 0);
    drop(gate);
}

#[test]
fn b03_killed_writer_is_running_until_its_lease_ends() {
    let yard = Yard::new();
    let place = yard.place();
    let said = format!("[registries.\"s3://{BUCKET}/{}\"]\nbeat = \"1s\"\nlease = \"3s\"\n", yard.prefix);
    yard.sandbox.write_home_config(&format!("{NO_GRACE}{said}"));
    let start = |name: &str| {
        let words = ["run", "--name", name, "--artifacts", &place, "--", "sleep", "600"];
        let wrapper = yard.outlive(&words).stdout(Stdio::null()).spawn().unwrap();
        until("the run to be on record", || yard.outlive(&["show", name]).output().unwrap().status.success());
        wrapper
    };
    let (mut dying, mut living) = (start("dying"), start("living"));
    let (dead, alive) = (yard.id("dying"), yard.id("living"));
    yard.put(&dead, 3);
    yard.put(&alive, 2);
    signal_pid(dying.id(), "KILL");
    dying.wait().unwrap();
    assert_eq!(yard.outlive(&["show", "dying", "--json"]).json()["state"], "running", "nobody has seen it die");
    assert_eq!(yard.sweep(&["--grace", "0s"])["objects"], 0);
    let mut swept = 0;
    until("its lease to end, and it to be swept", || {
        swept = yard.sweep(&["--grace", "0s"])["objects"].as_u64().unwrap();
        swept > 0
    });
    assert_eq!((swept, yard.left()), (3, 2));
    assert_eq!(yard.outlive(&["show", "dying", "--json"]).json()["state"], "dead");
    let why = text(&yard.outlive(&["why", "dying"]).output().unwrap().stdout);
    assert!(why.contains("reap") && why.contains("3 objects of 15 bytes deleted"), "{why}");
    assert_eq!(yard.outlive(&["show", "living", "--json"]).json()["state"], "running");
    signal_pid(living.id(), "KILL");
    living.wait().unwrap();
}

#[test]
fn f_75_grace_is_measured_by_the_server_whatever_the_clocks() {
    let yard = Yard::new();
    let place = yard.place();
    for (name, off) in [("behind", "-10m"), ("ahead", "+10m")] {
        let mut command = yard.outlive(&["run", "--name", name, "--artifacts", &place, "--", "false"]);
        assert_eq!(set_clock_off(&mut command, off).status().unwrap().code(), Some(1));
        yard.put(&yard.id(name), 1);
    }
    for off in ["-10m", "+0", "+10m"] {
        let report = set_clock_off(&mut yard.outlive(&["sweep", "--yes", "--grace", "5m", "--json"]), off).json();
        assert_eq!((&report["objects"], yard.left()), (&0.into(), 2), "{off}: {report}");
        assert_eq!(report["kept"].as_array().unwrap().len(), 2, "{off}: {report}");
    }
    // Nobody's grace is longer than it is, either. Objects are as young as their dates are exact.
    let report = yard.sweep(&["--grace", "0s"]);
    assert_eq!(report["objects"], 2, "{report}");
}

#[test]
fn l21_thirty_processes_that_make_a_registry_at_once_make_one() {
    let (sandbox, url) = (Sandbox::new(), Bucket::shared().fresh_url());
    let start = |number: usize| {
        let mut command = sandbox.outlive(["run", "--name", &format!("r{number}"), "--", "true"]);
        command.env("OUTLIVE_REGISTRY", &url).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    let all: Vec<_> = (0..30).map(start).collect();
    for process in all {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "");
    }
    let mut command = sandbox.outlive(["ps", "--all", "--limit", "100", "--json"]);
    let listed = command.env("OUTLIVE_REGISTRY", &url).json();
    let runs = listed["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 30);
    assert!(runs.iter().all(|run| run["state"] == "succeeded"), "{listed}");
}

#[test]
fn sweep_of_a_broken_bucket_reports_it_and_deletes_nothing() {
    let yard = Yard::new();
    yard.failed("bad", 2);
    let port = Bucket::shared().port();
    let url = url_at(port, KEY, &yard.prefix);
    let failing = |fate: Fate| Proxy::new(port, move |_| fate.clone());
    let (region, expired) =
        (failing(Fate::Answer(400, "AuthorizationHeaderMalformed")), failing(Fate::Answer(403, "ExpiredToken")));
    let denying =
        Proxy::new(port, |request| if deletes(request) { Fate::Answer(403, "AccessDenied") } else { Fate::Pass });
    let mut said = String::new();
    for (what, url) in [
        ("missing bucket", url.replace(&format!("@{BUCKET}/"), "@no-such-bucket/")),
        ("unknown key", url_at(port, ("NOBODY", "nothing"), &yard.prefix)),
        ("may only read", url_at(port, READ_KEY, &yard.prefix)),
        ("may not delete", url_at(denying.port(), KEY, &yard.prefix)),
        ("wrong region", url_at(region.port(), KEY, &yard.prefix)),
        ("expired credentials", url_at(expired.port(), KEY, &yard.prefix)),
    ] {
        let output = yard.with(&url, &["sweep", "--yes", "--grace", "0s"]).output().unwrap();
        assert_eq!(yard.left(), 2, "{what}");
        said +=
            &format!("## {what}: {}\n{}{}", output.status.code().unwrap(), text(&output.stdout), text(&output.stderr));
    }
    let id = yard.id("bad");
    let said = said.replace(&id, "[RUN]").replace(&yard.prefix, "[PREFIX]");
    let said = said.lines().map(|line| line.split("attempt=00/").next().unwrap()).collect::<Vec<_>>().join("\n");
    insta::assert_snapshot!("sweeps_of_buckets_that_are_not_as_they_should_be", said);
    assert_eq!(yard.sweep(&["--grace", "0s"])["objects"], 2);
}

#[test]
fn supervisor_sweeps_as_often_as_configured_and_never_unasked() {
    let sandbox = Sandbox::new();
    let place = sandbox.path().join("data");
    std::fs::create_dir_all(&place).unwrap();
    let artifacts = place.to_str().unwrap();
    let write = "d=$0/shards/run_id=$OUTLIVE_RUN_ID/db=00000/attempt=00; mkdir -p $d; echo a > $d/x; exit 1";
    let fail = |name: &str| {
        let words = ["run", "--name", name, "--artifacts", artifacts, "--", "sh", "-c", write, artifacts];
        assert_eq!(sandbox.outlive(words).status().unwrap().code(), Some(1));
        place.join(format!("shards/run_id={}/db=00000/attempt=00/x", sandbox.show(name)["id"].as_str().unwrap()))
    };
    let (first, second) = (fail("first"), fail("second"));
    sandbox.outlive(["supervise", "--once"]).succeeds();
    assert!(first.exists() && second.exists(), "something was deleted unasked");
    // What a repository carries has nothing deleted.
    sandbox.write_config("[sweep]\nevery = \"1s\"\n");
    let refused = sandbox.outlive(["supervise", "--once"]).output().unwrap();
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("unknown field `sweep`"),
        "{}",
        text(&refused.stderr)
    );
    sandbox.write_config("");
    let config = "[sweep]\nevery = \"1h\"\ngrace = \"0s\"\nkeep_last = 1\n";
    sandbox.write_home_config(config);
    let said = sandbox.outlive(["supervise", "--once"]).succeeds();
    assert!(said.contains("swept: 1 object of 2 bytes deleted"), "{said}");
    assert!(!first.exists() && second.exists(), "the last one was to be kept");
    let why = sandbox.outlive(["why", "first"]).succeeds();
    assert!(why.contains("sweep") && why.contains("1 objects of 2 bytes deleted"), "{why}");
    // The schedule is that of the registry, whoever comes next.
    let third = fail("third");
    let once = || sandbox.outlive(["supervise", "--once"]).succeeds();
    let again = once();
    assert!(!again.contains("swept") && second.exists(), "swept twice within an hour: {again}");
    let note = std::fs::read_dir(sandbox.home().join("swept")).unwrap().next().unwrap().unwrap().path();
    for (text, why) in [("2020-01-01T00:00:00Z", "the hour is over"), ("9999-01-01T00:00:00Z", "nobody knows when")] {
        std::fs::write(&note, text).unwrap();
        assert!(once().contains("swept: 1 object of 2 bytes deleted"), "{why}");
        assert!(std::fs::read_to_string(&note).unwrap() != text, "{why}, and it was not noted");
        fail(why);
    }
    assert!(!second.exists() && !third.exists());
}

#[test]
fn dry_sweep_lists_artifacts_of_a_run_not_reaped_yet() {
    let sandbox = Sandbox::new();
    sandbox.write_home_config(NO_GRACE);
    let place = sandbox.path().join("data");
    std::fs::create_dir_all(&place).unwrap();
    let artifacts = place.to_str().unwrap();
    let write = "d=$0/shards/run_id=$OUTLIVE_RUN_ID/db=00000/attempt=00; mkdir -p $d; echo a > $d/x; exec sleep 300";
    let words = ["run", "--name", "killed", "--artifacts", artifacts, "--", "sh", "-c", write, artifacts];
    let mut owner = sandbox.outlive(words).spawn().unwrap();
    let shards = place.join("shards");
    until("something to be written", || {
        std::fs::read_dir(&shards)
            .is_ok_and(|mut found| found.any(|tree| tree.unwrap().path().join("db=00000/attempt=00/x").exists()))
    });
    let child = super::running::child_of(owner.id());
    signal_pid(owner.id(), "KILL");
    signal_pid(child, "KILL");
    owner.wait().unwrap();
    sandbox.wait_for_state("killed", "dead");
    let told = sandbox.outlive(["sweep", "--grace", "0s", "--json"]).json();
    assert_eq!(sandbox.outlive(["why", "killed", "--json"]).json()["events"].as_array().unwrap().len(), 2);
    let done = sandbox.outlive(["sweep", "--grace", "0s", "--yes", "--json"]).json();
    assert_eq!((&told["objects"], &done["objects"]), (&1.into(), &1.into()), "{told} {done}");
    assert_eq!(told["swept"][0]["reason"], done["swept"][0]["reason"]);
}

#[test]
fn records_are_deleted_in_buckets_and_kept_elsewhere() {
    let yard = Yard::new();
    yard.failed("bad", 0);
    let refused = yard.outlive(&["sweep", "--forget-after", "90d"]).output().unwrap();
    assert!(text(&refused.stderr).contains("records are kept"), "{}", text(&refused.stderr));
    yard.sandbox.write_home_config(&format!("{NO_GRACE}forget_after = \"0s\"\n"));
    let dry = yard.outlive(&["sweep", "--json"]).json();
    assert_eq!(dry["forgotten"], serde_json::json!([]), "it ended less than an hour ago, and may be asked for again");
    let local = Sandbox::new();
    local.outlive(["run", "--", "true"]).succeeds();
    local.write_home_config("[sweep]\nforget_after = \"1d\"\n");
    let refused = local.outlive(["sweep", "--forget-after", "30d"]).output().unwrap();
    assert!(text(&refused.stderr).contains("outlive archive --older-than"), "{}", text(&refused.stderr));
    local.outlive(["sweep"]).succeeds();
}

#[test]
fn flags_only_ever_spare_more_than_the_policy() {
    let sandbox = Sandbox::new();
    let place = sandbox.path().join("data");
    std::fs::create_dir_all(&place).unwrap();
    let artifacts = place.to_str().unwrap();
    let write = "d=$0/shards/run_id=$OUTLIVE_RUN_ID/db=00000/attempt=00; mkdir -p $d; echo a > $d/x; exit 1";
    for name in ["first", "second"] {
        let words = ["run", "--name", name, "--artifacts", artifacts, "--", "sh", "-c", write, artifacts];
        assert_eq!(sandbox.outlive(words).status().unwrap().code(), Some(1));
    }
    let said = |words: &[&str]| {
        let output = sandbox.outlive([&["sweep", "--yes"], words].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    let objects = |words: &[&str]| sandbox.outlive([&["sweep", "--json"], words].concat()).json()["objects"].clone();
    let mut refusals = said(&["--grace", "0s"]) + &said(&["--forget-after", "90d"]);
    assert_eq!(objects(&[]), 0, "they ended less than an hour ago");
    sandbox.write_home_config("[sweep]\ngrace = \"0s\"\nolder_than = \"30d\"\n");
    refusals += &said(&["--older-than", "1d"]);
    assert_eq!(objects(&["--grace", "0s"]), 0, "a sweep by hand spared less than one of the supervisor");
    sandbox.write_home_config("[sweep]\ngrace = \"0s\"\nkeep_last = 1\nforget_after = \"30d\"\n");
    refusals += &said(&["--forget-after", "1d"]);
    insta::assert_snapshot!(refusals);
    assert_eq!((objects(&[]), objects(&["--keep-last", "0"])), (1.into(), 1.into()));
    assert_eq!((objects(&["--keep-last", "2"]), objects(&["--grace", "1h"])), (0.into(), 0.into()));
}
