//! What a list of runs looks like.

use std::sync::Arc;

use outlive::id::WorkerId;
use outlive::lifecycle::health::Health;
use outlive::lifecycle::health::see;
use outlive::owner::{Evidence, Identity};
use outlive::run::{
    Actor, Arg, CancelRequest, Command, End, Ending, Failure, GaveUp, Interruption, Key, Owner, Pending, Progress,
    Reap, Run, Spec, State, Step as SpecStep, Swept, Usage, Withheld,
};
use outlive::time::Timestamp;

use super::*;

fn run(number: u32, name: Option<&str>) -> RunView {
    let at = Timestamp::from_micros(1_790_000_000_000_000);
    let id = format!("01a1e1d5-{number:04x}-7f4e-980e-58a2015d54aa");
    RunView {
        id: id.parse().unwrap(),
        name: name.map(Into::into),
        kind: "command".into(),
        labels: BTreeMap::new(),
        command: None,
        cwd: None,
        state: StateName::Running,
        health: Some(Health::Healthy),
        can: Vec::new(),
        reason: None,
        share: None,
        priority: 0,
        queued: false,
        not_before: None,
        schedule: None,
        upcoming: Vec::new(),
        keys: Vec::new(),
        waits_for: Vec::new(),
        attempt: 1,
        epoch: 1,
        owner: None,
        owner_host: Some("here".into()),
        owner_pid: Some(4_242),
        host: Some("here".into()),
        last_beat_at: None,
        leftover_pids: Vec::new(),
        leftover_names: Vec::new(),
        created_by: "ada@here".into(),
        created_at: at,
        started_at: Some(at),
        ended_at: None,
        updated_at: at,
        duration_ms: Some(754_000),
        exit_code: None,
        signal: None,
        error_type: None,
        error_message: None,
        cancel_requested_at: None,
        cancel_requested_by: None,
        progress_done: None,
        progress_total: None,
        progress_message: None,
        cpu_ms: Some(1_500),
        memory_bytes: Some(250_000_000),
        peak_memory_bytes: Some(300_000_000),
        read_bytes: Some(0),
        written_bytes: Some(0),
        processes: Some(2),
        ready: None,
        ready_at: None,
        ports: Default::default(),
        url: None,
        leash: None,
        reaps: 0,
        failures: 0,
        archived: false,
        copied: false,
        trusted: Some(true),
        step: None,
        step_of: None,
        step_attempt: None,
        step_parent: None,
        replays: None,
        repo: None,
        command_line: None,
        resumes_unnamed: false,
        resumes_without_live: false,
    }
}

fn list(hosts_differ: bool, wide: bool) -> Runs {
    let progress = |done, total| (Some(done), Some(total));
    let mut runs = vec![
        run(1, Some("train")),
        run(2, Some("訓練ジョブの名前がとても長いので切られる")),
        run(3, None),
        run(4, Some("cafe\u{301}")),
        run(5, Some("crash")),
    ];
    (runs[0].progress_done, runs[0].progress_total) = progress(40, 100);
    runs[1].health = Some(Health::Orphaned);
    runs[1].reason =
        Some("its owner is gone: the lock it held is free; still alive: pid 22891 (sh), 22892 (sleep)".into());
    runs[1].host = Some("gpu-17".into());
    runs[2].command_line = Some("python 'my script.py' --epochs 100 --data s3://bucket/prefix".into());
    runs[2].health = Some(Health::Stalled);
    runs[2].reason = Some("no progress for more than 30m 0s".into());
    (runs[2].progress_done, runs[2].progress_total) = progress(7, 9);
    runs[3].health = Some(Health::Unresponsive);
    runs[3].reason = Some("its owner, pid 4242, lives but has been silent for 20s".into());
    runs[4].state = StateName::Dead;
    runs[4].health = None;
    runs[4].attempt = 3;
    runs[4].reason = Some("its owner is gone: 漢字が理由の中にある, and more words behind them".into());
    let shown = PsStyle { nothing: "none".into(), wide, hosts_differ };
    let lines = runs.iter().map(PsRow::of).collect();
    Runs { registry: "sqlite:/r".into(), runs, next: None, more: None, lines, shown }
}

fn table(runs: &Runs, width: usize) -> String {
    let text = runs.show(Look { on_terminal: width < 1_000, width, colour: false });
    let table: Vec<&str> = text.lines().filter(|line| !line.starts_with("next: ")).collect();
    assert!(table.iter().all(|line| ui::columns(line) <= width), "wider than {width}:\n{text}");
    table.join("\n")
}

#[test]
fn the_reason_is_shown_at_every_width() {
    insta::assert_snapshot!("width_40", table(&list(false, false), 40));
    insta::assert_snapshot!("width_80", table(&list(false, false), 80));
    insta::assert_snapshot!("width_120", table(&list(true, false), 120));
    insta::assert_snapshot!("width_200", table(&list(true, false), 200));
    insta::assert_snapshot!("no_terminal", table(&list(false, false), usize::MAX));
    insta::assert_snapshot!("wide", table(&list(false, true), usize::MAX));
    for width in 40..200 {
        let shown = table(&list(true, false), width);
        let heading = shown.lines().find(|line| line.contains("REASON")).unwrap();
        let room = width - ui::columns(heading.split("REASON").next().unwrap());
        assert!(room >= 20, "{room} columns for the reason at {width}:\n{shown}");
    }
}

#[test]
fn colours_change_no_place() {
    let runs = list(true, false);
    for width in [40, 80, 120] {
        let coloured = runs.show(Look { on_terminal: true, width, colour: true });
        assert!(
            coloured.contains("\x1b[31morphaned\x1b[0m") && coloured.contains("\x1b[32mrunning\x1b[0m"),
            "{coloured}"
        );
        let stripped = ["31", "32", "33", "2", "0"]
            .iter()
            .fold(coloured.clone(), |text, code| text.replace(&format!("\x1b[{code}m"), ""));
        assert_eq!(stripped, runs.show(Look { on_terminal: true, width, colour: false }));
    }
}

#[test]
fn next_page_call_repeats_every_flag_and_can_be_pasted() {
    let ps = Ps {
        sort: Some("-name".into()),
        global: false,
        all: true,
        steps: true,
        status: vec!["failed".into(), "orphaned".into()],
        name: Some("it's".into()),
        kind: Some("train".into()),
        labels: vec!["team=a b".into()],
        text: Some("lr 3".into()),
        host: Some("gpu-17".into()),
        user: Some("ada".into()),
        since: Some("2h".into()),
        until: Some("1h".into()),
        unarchived: true,
        limit: 2,
        cursor: None,
        wide: true,
    };
    let context = Context::new(Some("sqlite:/my runs".into()));
    insta::assert_snapshot!(ps.again(&context, "0.1.x"), @r"outlive --registry 'sqlite:/my runs' ps --all --steps --wide --unarchived --status=failed --status=orphaned '--name=it'\''s' --kind=train '--text=lr 3' --host=gpu-17 --user=ada --since=2h --until=1h --sort=-name '--label=team=a b' --limit 2 --cursor=0.1.x");
}

#[test]
fn a_word_behind_status_is_a_state_or_a_health() {
    let parse = |words: &[&str]| StatusFilter::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
    let both = parse(&["failed", "late"]).unwrap();
    assert_eq!(both.to_look_at(), Some([StateName::Failed, StateName::Running].into()));
    assert_eq!(parse(&[]).unwrap().to_look_at(), None);
    insta::assert_snapshot!(parse(&["lat"]).unwrap_err(), @"`lat` is not a state: pending, running, suspended, interrupted, dead, succeeded, failed or cancelled; nor is it a health: healthy, late, stalled, overdue, unresponsive, orphaned");
}

/// Runs that have ended in every way, and differ in whatever a list shows.
fn ended_runs() -> Vec<Run> {
    let at = |seconds: i64| Timestamp::from_micros(1_790_000_000_000_000 + seconds * 1_234_567);
    let by = Actor { user: "ada".into(), host: "here".into(), pid: 1 };
    let worker: WorkerId = "01a1e1d5-0001-7f4e-980e-58a2015d54aa".parse().unwrap();
    let owner = Owner { worker, identity: Identity::own(), lease: Default::default(), heard: Default::default() };
    let request = CancelRequest { by: by.clone(), at: at(3), reason: Some("enough".into()), grace: None };
    let failure = Failure {
        error_type: "exit".into(),
        error_message: "exit\tcode 3".into(),
        reap: None,
        gave_up: Some(GaveUp::Permanent),
    };
    let reap = Reap { evidence: Evidence::NoSuchProcess { pid: 7 }, by: by.clone(), last_heard: at(2) };
    let ends = [
        End::Succeeded,
        End::Failed(failure),
        End::Cancelled(Box::new(request)),
        End::Interrupted(Interruption { signal: Some(15), reason: "signal 15".into() }),
        End::Dead(Box::new(reap)),
    ];
    let mut runs = Vec::new();
    for (number, how) in ends.into_iter().enumerate() {
        for variant in 0..8 {
            let mut spec = Spec::new("sort\u{1b}", by.clone());
            let argv = [Arg::Text("two words".into()), Arg::Bytes { hex: "ff2d".into() }].into();
            spec.command = (variant != 1).then(|| Command::new(argv, Arg::Text("/".into())));
            spec.name = (variant == 2).then(|| "na\u{202e}me".into());
            spec.withheld = (variant == 3).then_some(Withheld::Arguments);
            spec.priority = variant;
            let id = format!("01a1e1d5-00{number:x}{variant:x}-7f4e-980e-58a2015d54aa").parse().unwrap();
            spec.step = (variant == 4).then(|| SpecStep {
                of: id,
                attempt: 1,
                name: "part".into(),
                fingerprint: "f".into(),
                changed: false,
                replays: Some(id),
                parent: None,
            });
            let mut run = Run::new(id, Arc::new(spec), None, at(0));
            run.attempt = if variant == 5 { 10 } else { 2 };
            run.progress =
                (variant < 3).then(|| Box::new(Progress { done: Some(3), total: Some(7), ..Progress::default() }));
            let usage = Usage { cpu_ms: 12, peak_memory_bytes: Some(5_000_000), ..Usage::default() };
            run.usage = (variant == 3).then(|| Arc::new(usage));
            (run.archived, run.copied) = (None, variant == 7);
            let (started_at, owner) = ((variant != 6).then(|| at(1)), (variant != 6).then(|| owner.clone()));
            run.state = State::Ended(Ending { how: how.clone(), at: at(4), started_at, owner, exit: None });
            runs.push(run.clone());
            let swept = Swept { by: by.clone(), at: at(5), done: true, process: None };
            runs.push(Run { swept: Some(Box::new(swept)), ..run.clone() });
            run.archived = Some(Box::new(outlive::run::Archived { by: by.clone(), at: at(5), reason: None }));
            runs.push(run);
        }
    }
    runs
}

#[test]
fn ended_run_has_the_same_line_however_much_is_read() {
    let registry = pollster::block_on(Registry::open("memory:")).unwrap();
    for run in ended_runs() {
        let brief: Result<RunSummary, _> = serde_json::from_str(&serde_json::to_string(&run).unwrap());
        assert_eq!(brief.is_ok(), run.state.name().is_final(), "{run:?}");
        let Ok(brief) = brief else { continue };
        assert_eq!(brief.place(), Cursor::at(&run));
        let whole = RunView::unsigned(&see(run, None, registry.clock().now()), &registry);
        assert_eq!(format!("{:?}", PsRow::of_brief(brief)), format!("{:?}", PsRow::of(&whole)));
    }
}

#[test]
fn t1_21_ended_runs_need_attention_for_a_while_only() {
    let ended = |run: &Run| run.ending().map(|ending| ending.at).unwrap();
    for run in ended_runs() {
        // Of a run that may be resumed more than the brief form is read.
        let brief: Option<RunSummary> = serde_json::from_str(&serde_json::to_string(&run).unwrap()).ok();
        let at = ended(&run);
        let seen = see(run, None, at);
        for found in brief
            .map(|brief| ListItem::RunSummary(Box::new(brief)))
            .into_iter()
            .chain([ListItem::RunStatus(Box::new(seen))])
        {
            let since = |since| StatusFilter { ended_since: since, ..StatusFilter::default() }.matches(&found);
            assert!(since(None) && since(Some(at)));
            assert!(!since(Some(at.after(std::time::Duration::from_secs(1)))));
        }
    }
}

#[test]
fn run_waiting_for_its_turn_has_the_same_line_however_read() {
    let registry = pollster::block_on(Registry::open("memory:")).unwrap();
    let now = registry.clock().now();
    let by = Actor { user: "ada".into(), host: "here".into(), pid: 1 };
    let pending = |change: &dyn Fn(&mut Spec)| {
        let mut spec = Spec::new("job", by.clone());
        change(&mut spec);
        Run::new("01a1e1d5-0011-7f4e-980e-58a2015d54aa".parse().unwrap(), Arc::new(spec), None, now)
    };
    let command = || Command::new(vec![Arg::Text("sleep".into())], Arg::Text("/".into()));
    let read = |run: &Run| serde_json::from_str::<RunSummary>(&serde_json::to_string(run).unwrap());
    for run in [
        pending(&|_| ()),
        pending(&|spec| spec.name = Some("na\u{202e}me".into())),
        pending(&|spec| spec.command = Some(command())),
        Run {
            archived: Some(Box::new(outlive::run::Archived { by: by.clone(), at: now, reason: None })),
            ..pending(&|_| ())
        },
    ] {
        let brief = read(&run).unwrap();
        assert_eq!((brief.place(), brief.state()), (Cursor::at(&run), StateName::Pending));
        let whole = RunView::unsigned(&see(run, None, now), &registry);
        assert_eq!(format!("{:?}", PsRow::of_brief(brief)), format!("{:?}", PsRow::of(&whole)));
    }
    // Of these more must be asked.
    let again = |reason: &str| {
        State::Pending(Pending {
            since: now,
            not_before: None,
            waits_for: vec![],
            reason: Some(reason.into()),
            paused: None,
            slot: None,
        })
    };
    for run in [
        pending(&|spec| spec.keys = vec![Key::limit("gpu", 1)]),
        pending(&|spec| spec.not_before = Some(now)),
        Run { attempt: 2, ..pending(&|_| ()) },
        Run { copied: true, ..pending(&|_| ()) },
        Run { state: again("failed"), ..pending(&|_| ()) },
    ] {
        assert!(read(&run).is_err(), "{run:?}");
    }
}
