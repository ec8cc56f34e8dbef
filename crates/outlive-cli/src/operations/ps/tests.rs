//! What a list of runs looks like.

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
        reason: None,
        priority: 0,
        queued: false,
        not_before: None,
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
        reaps: 0,
        failures: 0,
        archived: false,
        copied: false,
        trusted: true,
        step: None,
        step_of: None,
        step_attempt: None,
        replays: None,
        command_line: None,
        resumable: false,
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
    let shown = Shown { nothing: "none".into(), wide, hosts_differ };
    Runs { registry: "sqlite:/r".into(), runs, next: None, more: None, shown }
}

fn table(runs: &Runs, width: usize) -> String {
    let text = runs.show(Look { on_terminal: width < 1_000, width, colour: false });
    let table: Vec<&str> = text.lines().filter(|line| !line.starts_with("next: ")).collect();
    assert!(table.iter().all(|line| terminal::columns(line) <= width), "wider than {width}:\n{text}");
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
        let room = width - terminal::columns(heading.split("REASON").next().unwrap());
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
fn the_call_for_the_next_page_repeats_every_flag_and_can_be_pasted() {
    let ps = Ps {
        all: true,
        steps: true,
        status: vec!["failed".into(), "orphaned".into()],
        name: Some("it's".into()),
        kind: Some("train".into()),
        label: vec!["team=a b".into()],
        limit: 2,
        after: None,
        wide: true,
    };
    let context = Context::new(Some("sqlite:/my runs".into()));
    insta::assert_snapshot!(ps.again(&context, "0.1.x"), @r"outlive --registry 'sqlite:/my runs' ps --all --steps --wide --status=failed --status=orphaned '--name=it'\''s' --kind=train '--label=team=a b' --limit 2 --after=0.1.x");
}

#[test]
fn a_word_behind_status_is_a_state_or_a_health() {
    let parse = |words: &[&str]| Wanted::parse(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
    let both = parse(&["failed", "late"]).unwrap();
    assert_eq!(both.to_look_at(), Some([StateName::Failed, StateName::Running].into()));
    assert_eq!(parse(&[]).unwrap().to_look_at(), None);
    insta::assert_snapshot!(parse(&["lat"]).unwrap_err(), @"`lat` is not a state: pending, running, suspended, interrupted, dead, succeeded, failed or cancelled; nor is it a health: healthy, late, stalled, overdue, unresponsive, orphaned");
}
