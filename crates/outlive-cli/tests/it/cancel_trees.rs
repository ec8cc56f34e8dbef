//! Cancelling random process trees: `cancel --wait` never answers `cancelled` while a process of the tree lives.
//!
//! The processes are found by a variable of their own in their environment, and by nothing of outlive.

use std::process::Stdio;

use serde_json::Value;

use super::sandbox::{Sandbox, is_alive, text, until};
use super::supervising::Dice;

/// How many trees there are, unless `OUTLIVE_CANCEL_TREES` says otherwise.
const TREES: u64 = 60;
/// The variable that marks the processes of one tree.
const MARK: &str = "CANCEL_TREE";

/// Live processes that carry the mark of a tree.
fn marked(mark: &str) -> Vec<u32> {
    let mark = format!("{MARK}={mark}");
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let carries = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    };
    pids.filter(carries).filter(|pid| is_alive(*pid)).collect()
}

/// A shell script that starts a random tree, notes that it has, and does not end by itself.
fn script(dice: &mut Dice) -> String {
    let children: String = (0..1 + dice.roll(3)).map(|_| child(dice, 2)).collect();
    let trap = if dice.roll(3) == 0 { "trap '' TERM; " } else { "" };
    format!("{trap}{children} echo > ready; while :; do sleep 0.2; done")
}

fn child(dice: &mut Dice, depth: u64) -> String {
    match dice.roll(if depth == 0 { 4 } else { 6 }) {
        0 => "sleep 300 & ".into(),
        1 => "setsid sleep 300 & ".into(),
        // Its parent is gone at once.
        2 => "( setsid sleep 300 & ); ".into(),
        3 => "( trap '' TERM; while :; do sleep 0.1; done ) & ".into(),
        4 => format!("( {}sleep 300 ) & ", child(dice, depth - 1)),
        _ => format!("( ( trap '' TERM; {}exec setsid sleep 300 ) & ); ", child(dice, depth - 1)),
    }
}

/// What befalls the owner of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    Killed,
    Terminated,
    Stopped,
}

const FATES: [Fate; 4] = [Fate::Lives, Fate::Killed, Fate::Terminated, Fate::Stopped];

fn befall(fate: Fate, owner: u32) {
    let signal = match fate {
        Fate::Lives => return,
        Fate::Killed => "KILL",
        Fate::Terminated => "TERM",
        Fate::Stopped => "STOP",
    };
    // It may be gone already.
    let mut kill = std::process::Command::new("kill");
    let _ = kill.args(["-s", signal, &owner.to_string()]).stderr(Stdio::null()).status();
}

/// Cancels one tree. Answers with what befell its owner, the outcome, and the marked processes that lived then.
fn cancel_one(sandbox: &Sandbox, number: u64) -> (Fate, String, Vec<u32>) {
    let dice = &mut Dice(number * 7_919 + 1);
    let mark = format!("{}-{number}", std::process::id());
    let name = format!("tree{number}");
    let (policy, fate) = (dice.roll(3), FATES[usize::try_from(dice.roll(4)).unwrap()]);
    let flags: &[&str] = match policy {
        0 => &["--resume-on", "interrupt"],
        1 => &["--resume-on", "crash"],
        _ => &[],
    };
    let script = script(dice);
    let _ = std::fs::remove_file(sandbox.work().join("ready"));
    let marking = format!("{MARK}={mark}");
    let words = ["run", "-d", "--name", &name].into_iter().chain(flags.iter().copied());
    let started = sandbox.outlive(words.chain(["--", "env", &marking, "sh", "-c", &script])).output().unwrap();
    assert!(started.status.success(), "{}", text(&started.stderr));
    let owner = u32::try_from(sandbox.show(&name)["owner_pid"].as_u64().unwrap()).unwrap();
    if dice.roll(4) > 0 {
        until("the tree to be there", || sandbox.work().join("ready").exists());
    }
    let before = dice.roll(2) == 0;
    if before {
        befall(fate, owner);
        dice.wait(20);
    }
    let mut cancel = sandbox.outlive(["cancel", &name, "--wait", "--grace", "50ms", "--json"]);
    let cancel = cancel.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if !before {
        dice.wait(60);
        befall(fate, owner);
    }
    let said = cancel.wait_with_output().unwrap();
    let alive = marked(&mark);
    if holds_the_registry(&said.stderr, owner) {
        end_by_force(sandbox, &name, &mark, owner);
        return (fate, "blocked".into(), alive);
    }
    let answer: Value = serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{}", text(&said.stderr)));
    let outcome = answer["runs"][0]["outcome"].as_str().unwrap().to_owned();
    assert_eq!(outcome == "cancelled", said.status.success(), "{answer}");
    if outcome == "cancelled" {
        assert_eq!(answer["runs"][0]["live_pids"], serde_json::json!([]), "{answer}");
    } else {
        end_by_force(sandbox, &name, &mark, owner);
    }
    (fate, outcome, alive)
}

/// Whether a call was refused because the owner was stopped while it wrote to the registry; it is continued then.
fn holds_the_registry(stderr: &[u8], owner: u32) -> bool {
    let is_stopped = text(stderr).contains(&format!("is held by process {owner}, which is stopped"));
    if is_stopped {
        let _ = std::process::Command::new("kill").args(["-s", "CONT", &owner.to_string()]).status();
    }
    is_stopped
}

/// What a request could not end is ended by force, and nothing is left then either.
fn end_by_force(sandbox: &Sandbox, name: &str, mark: &str, owner: u32) {
    until("the owner to be ended by force", || {
        let said = sandbox.outlive(["cancel", name, "--wait", "--force", "--grace", "0s"]).output().unwrap();
        let alive = marked(mark);
        assert!(!said.status.success() || alive.is_empty(), "{}: {alive:?}", text(&said.stdout));
        holds_the_registry(&said.stderr, owner);
        said.status.success() || text(&said.stderr).contains("already")
    });
}

#[test]
fn t1_03_no_random_tree_lives_when_cancel_says_cancelled() {
    let trees = std::env::var("OUTLIVE_CANCEL_TREES").ok().and_then(|trees| trees.parse().ok()).unwrap_or(TREES);
    let sandbox = Sandbox::impatient();
    let (mut lies, mut outcomes) = (Vec::new(), std::collections::BTreeMap::<String, u64>::new());
    for number in 0..trees {
        let (fate, outcome, alive) = cancel_one(&sandbox, number);
        *outcomes.entry(format!("{fate:?} {outcome}")).or_default() += 1;
        if outcome == "cancelled" && !alive.is_empty() {
            lies.push(format!("tree {number}, owner {fate:?}: {alive:?}"));
        }
        // Nothing of this tree is to disturb the next.
        for pid in alive {
            befall(Fate::Killed, pid);
        }
    }
    println!("{trees} trees, {} lies: {outcomes:?}", lies.len());
    assert!(lies.is_empty(), "`cancelled` while processes lived: {lies:#?}");
    for fate in FATES {
        let count: u64 =
            outcomes.iter().filter(|(what, _)| what.starts_with(&format!("{fate:?} "))).map(|(_, n)| n).sum();
        assert!(count > 0, "no owner was {fate:?}: {outcomes:?}");
    }
    let cancelled: u64 = outcomes.iter().filter(|(what, _)| what.ends_with(" cancelled")).map(|(_, n)| n).sum();
    assert!(cancelled * 2 > trees, "most were not cancelled at all: {outcomes:?}");
}
