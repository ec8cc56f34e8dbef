//! Runs whose time has come, many at once.

use super::*;
use outlive::filter::Filter;

/// How many of them one claim makes ready, where it wants no more.
const MADE_READY: usize = 1_000;

/// Makes copies of a run that waits. They were due a second ago.
fn copy_due(schema: &str, of: RunId, copies: usize, kind: &str) {
    Server::shared().psql(&format!(
        "SET search_path TO {schema};
         CREATE TEMP TABLE copies AS SELECT gen_random_uuid() AS id FROM generate_series(1, {copies});
         INSERT INTO spec SELECT copies.id, created_at, priority, NULL, '{kind}', NULL, NULL,
                (body::jsonb || '{{\"kind\": \"{kind}\"}}')::text FROM copies, spec WHERE spec.id = '{of}';
         INSERT INTO waiting (id, revision, stamp, epoch, created_at, priority, ready, due_at, state, kind, body, events)
             SELECT copies.id, 1, gen_random_uuid(), 0, created_at, priority, false, clock() - 1000000, 'pending', '{kind}', body,
                    events FROM copies, waiting WHERE waiting.id = '{of}'"
    ));
}

fn ready(schema: &str, kind: &str) -> usize {
    let sql = format!("SELECT count(*) FROM {schema}.waiting WHERE ready AND kind = '{kind}'");
    Server::shared().psql(&sql).parse().unwrap()
}

/// A registry in which thousands of runs are due at once, and its schema.
async fn many_due(due: usize) -> (Registry, String) {
    let url = Server::shared().fresh_url();
    let (worker, schema) = (registry(&url), schema_of(&url));
    let one = worker.enqueue(spec("job")).await.unwrap();
    copy_due(&schema, one.id, due, "job");
    let claimed = worker.claim(Filter::of([one.id]), 1).await.unwrap();
    claimed.into_iter().for_each(std::mem::forget);
    assert_eq!(ready(&schema, "job"), 0, "a claim of one run by its id makes no other ready");
    (worker, schema)
}

#[test]
fn thousands_due_at_once_are_made_ready_by_parts() {
    const DUE: usize = 5_000;
    pollster::block_on(async {
        let (worker, schema) = many_due(DUE).await;
        let of_kind = || Filter { kind: Some("job".into()), ..Filter::default() };
        assert_eq!(worker.claim(of_kind(), 1).await.unwrap().into_iter().map(std::mem::forget).count(), 1);
        assert_eq!(ready(&schema, "job"), MADE_READY - 1);
        let kinds = Some(["job".to_owned(), "other".to_owned()].into());
        let of_kinds = || Filter { kinds: kinds.clone(), ..Filter::default() };
        let mut left = DUE - 1;
        for filter in [Filter::default(), of_kinds(), of_kind()].into_iter().cycle() {
            let claimed = worker.claim(filter, 500).await.unwrap().into_iter().map(std::mem::forget).count();
            assert_eq!(claimed, left.min(500), "{left} are left, and all of them are due");
            left -= claimed;
            if left == 0 {
                break;
            }
        }
        assert!(worker.claim(of_kind(), 500).await.unwrap().is_empty());
    });
}

#[test]
fn due_runs_of_other_kinds_are_left_as_they_are() {
    const DUE: usize = 2_500;
    pollster::block_on(async {
        let (worker, schema) = many_due(DUE).await;
        let none = Filter { kind: Some("none".into()), ..Filter::default() };
        let nones = Filter { kinds: Some(["no".to_owned(), "none".to_owned()].into()), ..Filter::default() };
        // The first of them begins a transaction, those behind it look first.
        for filter in [&none, &none, &nones, &nones] {
            assert!(worker.claim(filter.clone(), 4).await.unwrap().is_empty());
        }
        assert_eq!(ready(&schema, "job"), 0);
        // One that is due is found after that.
        let due = Filter { kind: Some("job".into()), ..Filter::default() };
        assert_eq!(worker.claim(due, 4).await.unwrap().into_iter().map(std::mem::forget).count(), 4);
    });
}

#[test]
fn due_runs_stay_ready_though_none_is_claimed() {
    const DUE: usize = 2_500;
    pollster::block_on(async {
        let (worker, schema) = many_due(DUE).await;
        let mut claims = outlive::engine::claims::Claims::of(["job".to_owned()]);
        for made in [MADE_READY, 2 * MADE_READY, DUE, DUE] {
            let (claimed, _) = claims.claim(&worker, 1, &|_| false).await.unwrap();
            assert!(claimed.is_empty());
            assert_eq!(ready(&schema, "job"), made.min(DUE));
        }
    });
}
