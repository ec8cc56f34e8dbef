//! Durable steps of shell scripts: R10.
//!
//! Most scripts here end by killing their owner and themselves, so that every attempt is followed by another.

use std::collections::BTreeMap;

use serde_json::Value;

use super::sandbox::{Ends, Sandbox, is_alive, settled, signal_pid, text, until};

/// What every script of these tests ends with.
const CRASH: &str = "\nkill -s KILL $PPID $$\n";

/// The first attempt of a script, up to its crash.
fn crash(sandbox: &Sandbox, script: &str) {
    write(sandbox, "job.sh", format!("{script}{CRASH}"));
    let ended = sandbox.outlive(["run", "--name", "job", "--", "sh", "-e", "job.sh"]).output().unwrap();
    assert_eq!(ended.status.code(), None, "it did not come to its crash: {}", text(&ended.stderr));
    crashed(sandbox, 1);
}

fn crashed(sandbox: &Sandbox, attempt: u64) -> Value {
    sandbox.wait_for("job", |run| {
        assert_ne!(run["state"], "failed", "attempt {attempt} did not come to its crash: {}", said(sandbox));
        run["state"] == "dead" && run["attempt"] == attempt
    })
}

/// What the last attempt said, where nobody else was told.
fn said(sandbox: &Sandbox) -> String {
    sandbox.outlive(["logs", "job"]).output().map(|output| text(&output.stdout)).unwrap_or_default()
}

/// Another attempt, up to its crash.
fn resume(sandbox: &Sandbox, attempt: u64) -> Value {
    sandbox.outlive(["resume", "job"]).succeeds();
    crashed(sandbox, attempt)
}

fn write(sandbox: &Sandbox, name: &str, content: impl AsRef<[u8]>) {
    std::fs::write(sandbox.work().join(name), content).unwrap();
}

fn read(sandbox: &Sandbox, name: &str) -> Vec<u8> {
    std::fs::read(sandbox.work().join(name)).unwrap_or_default()
}

/// What was really done since this was last asked.
fn done(sandbox: &Sandbox) -> Vec<String> {
    let done = text(&read(sandbox, "effects")).lines().map(str::to_owned).collect();
    write(sandbox, "effects", "");
    done
}

/// The states of the steps of an attempt, with whether they were replayed.
fn steps(run: &Value, attempt: u64) -> Vec<(String, String, bool)> {
    let steps = run["steps"].as_array().unwrap().iter().filter(|step| step["attempt"] == attempt);
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    steps.map(|step| (word(&step["name"]), word(&step["state"]), !step["replays"].is_null())).collect()
}

/// A step that leaves a mark when it is really run.
fn marking(name: &str, flags: &str) -> String {
    format!("outlive step {name} {flags} -- sh -c 'echo {name} >> effects; echo {name}'\n")
}

fn group_of(pid: u64) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn r10_script_killed_at_30_random_points_does_each_step_once() {
    const STEPS: usize = 30;
    const KILLS: usize = 30;
    let sandbox = Sandbox::new();
    let step = |number| format!("outlive step s{number} -- sh -c 'echo {number} >> effects; sleep 0.02'\n");
    write(&sandbox, "job.sh", (0..STEPS).map(step).collect::<String>());
    write(&sandbox, "effects", "");
    let effects =
        || -> Vec<usize> { text(&read(&sandbox, "effects")).lines().map(|line| line.parse().unwrap()).collect() };
    sandbox.outlive(["run", "-d", "--name", "job", "--", "sh", "-e", "job.sh"]).succeeds();
    let (mut seed, mut in_flight) = (7_u64, BTreeMap::<usize, usize>::new());
    for _ in 0..KILLS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let more = (seed >> 60) as usize % 4;
        let target = (effects().len() + more).min(STEPS);
        let owner = sandbox.wait_for("job", |run| run["owner_pid"].is_u64())["owner_pid"].as_u64().unwrap();
        until("more to be done", || effects().len() >= target);
        let group = rustix::process::Pid::from_raw(group_of(owner)).unwrap();
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        sandbox.wait_for_state("job", "dead");
        if let Some(last) = effects().last() {
            *in_flight.entry(*last).or_default() += 1;
        }
        sandbox.outlive(["resume", "job"]).succeeds();
    }
    sandbox.outlive(["wait", "job"]).succeeds();
    let mut times = BTreeMap::<usize, usize>::new();
    effects().into_iter().for_each(|number| *times.entry(number).or_default() += 1);
    assert_eq!(times.len(), STEPS, "{times:?}");
    for (number, times) in &times {
        let killed = in_flight.get(number).copied().unwrap_or(0);
        assert!(*times <= 1 + killed, "step {number} was done {times} times, and killed {killed} times in flight");
    }
    println!("{} of {STEPS} steps were repeated", times.values().filter(|times| **times > 1).count());
    let run = sandbox.show("job");
    assert_eq!(run["attempt"], KILLS + 1);
    assert!(steps(&run, KILLS as u64 + 1).iter().all(|(_, state, _)| state == "succeeded"));
    let live = run["steps"].as_array().unwrap().iter();
    let live = live.filter(|step| step["state"] == "succeeded" && step["replays"].is_null()).count();
    assert_eq!(live, STEPS, "a step has succeeded more than once");
}

#[test]
fn r10_replayed_output_is_byte_for_byte_on_its_own_stream() {
    let sandbox = Sandbox::new();
    let mut seed = 1_u64;
    let mut noise = |size: usize| -> Vec<u8> {
        let next = |_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        };
        (0..size).map(next).collect()
    };
    let (large, small) = (noise(10 << 20), noise(4_321));
    write(&sandbox, "large", &large);
    write(&sandbox, "small", &small);
    let script = "outlive step noise -- sh -c 'echo noise >> effects; cat large; cat small >&2' >out.$OUTLIVE_ATTEMPT 2>err.$OUTLIVE_ATTEMPT\n\
                  word=$(outlive step word -- sh -c 'echo word >> effects; printf hello; echo aside >&2')\n\
                  printf %s \"$word\" > word.$OUTLIVE_ATTEMPT\n\
                  outlive step piped -- sh -c 'echo piped >> effects; seq 100000' | tail -n 1 > piped.$OUTLIVE_ATTEMPT\n\
                  outlive step quiet -- sh -c 'echo quiet >> effects' > quiet.$OUTLIVE_ATTEMPT";
    crash(&sandbox, script);
    assert_eq!(done(&sandbox), ["noise", "word", "piped", "quiet"]);
    let run = resume(&sandbox, 2);
    assert_eq!(done(&sandbox), [""; 0]);
    assert!(steps(&run, 2).iter().all(|(_, state, replayed)| state == "succeeded" && *replayed));
    for attempt in 1..=2 {
        assert!(read(&sandbox, &format!("out.{attempt}")) == large, "attempt {attempt} wrote something else");
        assert!(read(&sandbox, &format!("err.{attempt}")) == small, "attempt {attempt} complained of something else");
        assert_eq!(text(&read(&sandbox, &format!("word.{attempt}"))), "hello");
        assert_eq!(text(&read(&sandbox, &format!("piped.{attempt}"))), "100000\n");
        assert_eq!(text(&read(&sandbox, &format!("quiet.{attempt}"))), "");
    }
    let aside = sandbox.outlive(["logs", "job", "--attempt", "2", "--stderr"]).succeeds();
    assert_eq!(aside, "aside\n");
}

#[test]
fn r10_first_changed_step_and_all_after_it_are_executed() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.work().join("src/deep")).unwrap();
    write(&sandbox, "in", "1");
    write(&sandbox, "src/deep/a.c", "1");
    let flags = ["", "--input in", "--input 'src/**/*.c'", "--input src in", ""];
    let script: String = flags.iter().enumerate().map(|(index, flags)| marking(&format!("s{index}"), flags)).collect();
    crash(&sandbox, &script);
    assert_eq!(done(&sandbox), ["s0", "s1", "s2", "s3", "s4"]);
    resume(&sandbox, 2);
    assert_eq!(done(&sandbox), [""; 0]);
    write(&sandbox, "src/deep/a.c", "2");
    resume(&sandbox, 3);
    assert_eq!(done(&sandbox), ["s2", "s3", "s4"]);
    write(&sandbox, "src/deep/b.c", "2");
    resume(&sandbox, 4);
    assert_eq!(done(&sandbox), ["s2", "s3", "s4"]);
    write(&sandbox, "src/deep/not-for-s2", "2");
    resume(&sandbox, 5);
    assert_eq!(done(&sandbox), ["s3", "s4"]);
    resume(&sandbox, 6);
    assert_eq!(done(&sandbox), [""; 0]);
    // The same content is the same input, whenever it was written.
    write(&sandbox, "in", "1");
    resume(&sandbox, 7);
    assert_eq!(done(&sandbox), [""; 0]);
}

#[test]
fn r10_step_depends_on_words_variables_and_named_results() {
    let sandbox = Sandbox::new();
    write(&sandbox, "word", "one");
    write(&sandbox, "value", "private-value-a");
    let tail = marking("own", "") + &marking("depends", "--input @told");
    let script = format!(
        "FLAVOUR=$(cat value); export FLAVOUR; [ \"$FLAVOUR\" != none ] || unset FLAVOUR\n\
         outlive step flavour --env FLAVOUR -- sh -c 'echo flavour >> effects' &\n\
         wait\n\
         outlive step told -- sh -c 'echo told >> effects; cat word' && {}",
        tail.trim_end()
    );
    crash(&sandbox, &script);
    assert_eq!(done(&sandbox), ["flavour", "told", "own", "depends"]);
    for (attempt, value) in [(2, "private-value-b"), (3, "none")] {
        write(&sandbox, "value", value);
        resume(&sandbox, attempt);
        assert_eq!(done(&sandbox), ["flavour", "told", "own", "depends"], "{value}");
    }
    resume(&sandbox, 4);
    assert_eq!(done(&sandbox), [""; 0]);
    // The value of a variable is nowhere on record.
    let records = sandbox.command("grep", ["-rlaF", "private-value", ".outlive"]).output().unwrap();
    assert_eq!(text(&records.stdout), "");
    // Other words: this one and what comes after it.
    write(&sandbox, "job.sh", text(&read(&sandbox, "job.sh")).replace("echo own >>", "echo  own >>"));
    resume(&sandbox, 5);
    assert_eq!(done(&sandbox), ["own", "depends"]);
}

#[test]
fn r10_step_with_another_output_changes_those_that_name_it() {
    let sandbox = Sandbox::new();
    write(&sandbox, "word", "one");
    let script = "[ ! -e fresh ] || mark=again\n\
                  outlive step told$mark -- sh -c 'echo told >> effects; cat word'\n\
                  outlive step depends --input @told$mark -- sh -c 'echo depends >> effects'\n\
                  outlive step apart -- sh -c 'echo apart >> effects'";
    crash(&sandbox, script);
    assert_eq!(done(&sandbox), ["told", "depends", "apart"]);
    // A step that is new makes nothing be done anew but what names it, and what comes after that.
    write(&sandbox, "fresh", "");
    resume(&sandbox, 2);
    assert_eq!(done(&sandbox), ["told", "depends", "apart"]);
}

#[test]
fn r10_parallel_steps_are_each_done_once_and_replayed() {
    let sandbox = Sandbox::new();
    let script = "seq 24 | xargs -P 4 -I N outlive step pN -- sh -c 'echo pN >> effects; echo said-N'";
    crash(&sandbox, script);
    let mut first = done(&sandbox);
    first.sort();
    first.dedup();
    assert_eq!(first.len(), 24);
    let run = resume(&sandbox, 2);
    assert_eq!(done(&sandbox), [""; 0]);
    assert_eq!(steps(&run, 2).len(), 24);
    let said = sandbox.outlive(["logs", "job", "--attempt", "2", "--stdout"]).succeeds();
    assert_eq!(said.lines().filter(|line| line.starts_with("said-")).count(), 24);
}

#[test]
fn r10_a_step_that_failed_or_was_killed_is_run_again() {
    let sandbox = Sandbox::new();
    let script = "outlive step fails -- sh -c 'echo fails >> effects; exit 7' || echo $? >> status\n\
                  outlive step missing -- ./nothing || echo $? >> status\n\
                  outlive step killed -- sh -c 'echo killed >> effects; kill -s KILL $$' || echo $? >> status";
    crash(&sandbox, script);
    resume(&sandbox, 2);
    assert_eq!(done(&sandbox), ["fails", "killed", "fails", "killed"]);
    assert_eq!(text(&read(&sandbox, "status")), "7\n127\n137\n".repeat(2));
    let states: Vec<String> = steps(&sandbox.show("job"), 2).into_iter().map(|(_, state, _)| state).collect();
    assert_eq!(states, ["failed", "failed", "failed"]);
}

#[test]
fn step_with_masked_cut_or_removed_output_is_run_again() {
    let sandbox = Sandbox::new();
    sandbox.outlive(["init"]).succeeds();
    sandbox.write_config("[logs]\ncap = \"256KiB\"\n");
    let script = "outlive step masked -- sh -c 'echo masked >> effects; echo password=hunter2hunter2'\n\
                  outlive step cut -- sh -c 'echo cut >> effects; head -c 9000000 /dev/zero' > cut\n\
                  outlive step removed -- sh -c 'echo removed >> effects; echo here'\n\
                  outlive step kept -- sh -c 'echo kept >> effects; echo here'";
    crash(&sandbox, script);
    assert_eq!(done(&sandbox), ["masked", "cut", "removed", "kept"]);
    let run = sandbox.show("job");
    let id = |name: &str| {
        let steps = run["steps"].as_array().unwrap();
        steps.iter().find(|step| step["name"] == name).unwrap()["id"].as_str().unwrap().to_owned()
    };
    let attempts = sandbox.registry().join(format!("runs/{}/attempts", id("removed")));
    std::fs::remove_file(attempts.join("0001.out")).unwrap();
    resume(&sandbox, 2);
    assert_eq!(done(&sandbox), ["masked", "cut", "removed"]);
    let said = sandbox.outlive(["logs", "job", "--attempt", "2", "--stderr"]).succeeds();
    assert_eq!(said.lines().count(), 3, "{said}");
    insta::assert_snapshot!(said.lines().next().unwrap(), @"outlive: the step `masked` is run again: what it wrote was cut, masked or removed, and cannot be repeated");
}

#[test]
fn a_step_that_makes_no_sense_is_refused_before_anything_runs() {
    let sandbox = Sandbox::new();
    let script = "outlive step once -- true\n\
                  refused() { outlive step \"$@\" -- sh -c 'echo ran >> effects' 2>> said && exit 1; [ $? = 2 ] || exit 2; }\n\
                  refused once\n\
                  refused gone --input nowhere.txt\n\
                  refused none --input '*.nothing'\n\
                  refused special --input /dev/null\n\
                  refused ahead --input @later\n\
                  outlive step bad -- false || refused after --input @bad\n\
                  refused \"$(printf 'a\\nb')\"\n\
                  OUTLIVE_RUN_ID= refused outside";
    write(&sandbox, "job.sh", script);
    sandbox.outlive(["run", "--name", "job", "--", "sh", "-e", "job.sh"]).succeeds();
    assert_eq!(done(&sandbox), [""; 0]);
    insta::assert_snapshot!("refusals", settled(&sandbox, &text(&read(&sandbox, "said"))));
    let id = sandbox.show("job")["id"].as_str().unwrap().to_owned();
    let mut lost = sandbox.outlive(["step", "late", "--", "sh", "-c", "echo ran >> effects"]);
    let said = lost.env("OUTLIVE_RUN_ID", &id).env("OUTLIVE_EPOCH", "1").fails_with(104);
    assert!(said.contains("lost: it has already succeeded"), "{said}");
    assert_eq!(done(&sandbox), [""; 0]);
}

#[test]
fn what_is_reported_inside_a_step_is_said_of_its_run() {
    let sandbox = Sandbox::new();
    let script =
        "outlive step outer -- sh -ec 'outlive checkpoint set 5; outlive fence check; outlive step inner -- echo hi'";
    let said = sandbox.outlive(["run", "--name", "job", "--", "sh", "-ec", script]).succeeds();
    assert_eq!(said, "hi\n");
    let run = sandbox.show("job");
    assert_eq!(run["checkpoint_bytes"], 1);
    let names: Vec<String> = steps(&run, 1).into_iter().map(|(name, _, _)| name).collect();
    assert_eq!(names, ["outer", "inner"]);
}

#[test]
fn steps_are_shown_as_a_tree_and_hidden_from_lists() {
    let sandbox = Sandbox::new();
    crash(
        &sandbox,
        "outlive step fetch -- true\n[ -e job.log ] && outlive step build -- true; outlive step test -- false || true; touch job.log",
    );
    resume(&sandbox, 2);
    let shown = sandbox.outlive(["show", "job"]).succeeds();
    let tree: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("steps")).collect();
    let without_times: Vec<String> = tree
        .iter()
        .map(|line| {
            let words: Vec<&str> =
                line.split("  ").filter(|word| !word.trim().ends_with('s') || word.contains("steps")).collect();
            words.join("  ")
        })
        .collect();
    insta::assert_snapshot!("tree", without_times.join("\n"));
    let listed = |words: &[&str]| sandbox.outlive(words).json()["runs"].as_array().unwrap().len();
    assert_eq!(listed(&["ps", "--all", "--json"]), 1);
    assert_eq!(listed(&["ps", "--all", "--steps", "--json"]), 6);
    assert_eq!(listed(&["ps", "--all", "--kind", "step", "--json"]), 5);
    assert_eq!(sandbox.show("@last")["name"], "job");
    let id = sandbox.show("job")["id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.show(&id[..13])["name"], "job", "the ids of its steps begin alike");
}

#[test]
fn cancelling_a_run_ends_its_steps() {
    let sandbox = Sandbox::new();
    write(&sandbox, "job.sh", "outlive step long -- sh -c 'echo $$ > pid; exec sleep 300'");
    sandbox.outlive(["run", "-d", "--name", "job", "--", "sh", "job.sh"]).succeeds();
    until("the step to run", || !read(&sandbox, "pid").is_empty());
    sandbox.outlive(["cancel", "--wait", "job"]).succeeds();
    let pid: u32 = text(&read(&sandbox, "pid")).trim().parse().unwrap();
    assert!(!is_alive(pid), "the command of the step lives on");
    let run = sandbox.wait_for_state("job", "cancelled");
    let (_, state, _) = steps(&run, 1).pop().unwrap();
    assert!(state == "interrupted" || state == "dead", "{state}");
    assert_eq!(
        sandbox.outlive(["ps", "--steps", "--status", "running", "--json"]).json()["runs"],
        serde_json::json!([])
    );
}

#[test]
fn step_of_a_killed_owner_is_not_done_and_never_runs_twice() {
    let sandbox = Sandbox::new();
    let script = "[ ! -e second ] || exec outlive step long -- true\n\
                  outlive step long -- sh -c 'echo $$ > pid; exec sleep 300' &\n\
                  until [ -s pid ]; do sleep 0.05; done\n\
                  kill -s KILL $!; wait $! || true";
    write(&sandbox, "job.sh", format!("{script}{CRASH}"));
    let ended = sandbox.outlive(["run", "--name", "job", "--", "sh", "-e", "job.sh"]).output().unwrap();
    assert_eq!(ended.status.code(), None);
    let pid: u32 = text(&read(&sandbox, "pid")).trim().parse().unwrap();
    let run = sandbox.wait_for("job", |run| run["health"] == "orphaned");
    assert_eq!(steps(&run, 1), [("long".into(), "running".into(), false)]);
    let step = run["steps"][0]["id"].as_str().unwrap().to_owned();
    write(&sandbox, "second", "");
    let said = sandbox.outlive(["resume", "job"]).fails_with(103);
    assert!(said.contains("still alive"), "{said}");
    let said = sandbox.outlive(["adopt", &step]).fails_with(103);
    assert!(said.contains("it is a step of run"), "{said}");
    assert!(is_alive(pid));
    signal_pid(pid, "KILL");
    sandbox.wait_for_state("job", "dead");
    sandbox.outlive(["reap"]).succeeds();
    assert_eq!(sandbox.wait_for_state(&step, "dead")["step"], "long");
    let said = sandbox.outlive(["resume", &step]).fails_with(103);
    assert!(said.contains("it is a step of run"), "{said}");
    sandbox.outlive(["resume", "job"]).succeeds();
    sandbox.outlive(["wait", "job"]).succeeds();
    assert_eq!(steps(&sandbox.show("job"), 2), [("long".into(), "succeeded".into(), false)]);
}

/// What a step is inside of, by name.
fn parents(run: &Value, attempt: u64) -> Vec<(String, Option<String>)> {
    let steps = run["steps"].as_array().unwrap();
    let name = |step: &Value| step["name"].as_str().unwrap().to_owned();
    let of_id = |id: &Value| steps.iter().find(|step| step["id"] == *id && step["attempt"] == attempt).map(name);
    steps.iter().filter(|step| step["attempt"] == attempt).map(|step| (name(step), of_id(&step["parent"]))).collect()
}

#[test]
fn r10_steps_inside_steps_are_a_tree_that_replay_leaves_alone() {
    let sandbox = Sandbox::new();
    write(&sandbox, "compile.sh", marking("link", ""));
    let build = format!(
        "outlive step compile -- sh -e compile.sh\noutlive run -d --name apart -- outlive step apart -- true\n{}[ $OUTLIVE_ATTEMPT -gt 1 ]",
        marking("pack", "")
    );
    write(&sandbox, "build.sh", build);
    crash(&sandbox, &format!("outlive step build -- sh -e build.sh || :\n{}", marking("publish", "")));
    assert_eq!(done(&sandbox), ["link", "pack", "publish"]);
    let tree = |of: &[(&str, Option<&str>)]| -> Vec<(String, Option<String>)> {
        of.iter().map(|(name, parent)| ((*name).to_owned(), parent.map(str::to_owned))).collect()
    };
    let first = [
        ("build", None),
        ("compile", Some("build")),
        ("link", Some("compile")),
        ("pack", Some("build")),
        ("publish", None),
    ];
    assert_eq!(parents(&sandbox.show("job"), 1), tree(&first));
    // A run that is started inside a step is a run of its own, and so is what is inside that.
    assert_eq!(parents(&sandbox.wait_for_state("apart", "succeeded"), 1), tree(&[("apart", None)]));
    let shown = sandbox.outlive(["show", "job"]).succeeds();
    let lines = shown.lines().skip_while(|line| !line.starts_with("steps")).skip(1);
    let listed: Vec<&str> = lines.map(|line| line.rsplit_once("  ").unwrap().0.trim_end()).collect();
    insta::assert_snapshot!("nested", listed.join("\n"));
    // The outer one had failed and is done again. What is inside it had not, and what is inside that is not come to.
    let run = resume(&sandbox, 2);
    assert_eq!(done(&sandbox), [""; 0]);
    let second = first.into_iter().filter(|(name, _)| *name != "link").collect::<Vec<_>>();
    assert_eq!(parents(&run, 2), tree(&second));
    let replayed = steps(&run, 2).into_iter().filter(|(_, _, replayed)| *replayed).map(|(name, ..)| name);
    assert_eq!(replayed.collect::<Vec<_>>(), ["compile", "pack", "publish"]);
}
