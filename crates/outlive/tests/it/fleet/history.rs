//! History: kept in tables of a time each, which go as a whole.

use super::*;
use outlive::run::StateName;

const DAY: i64 = 86_400_000_000;

/// Sets the server's clock so many days ahead.
pub(super) fn days_later(schema: &str, days: i64) {
    let body = format!("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8 + {days} * {DAY}");
    let sql = format!("CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS int8 LANGUAGE sql AS $$ {body} $$");
    Server::shared().psql(&sql);
}

fn parts(schema: &str) -> usize {
    Server::shared().psql(&format!("SELECT count(*) FROM {schema}.part")).parse().unwrap()
}

#[test]
fn history_is_dropped_by_table_and_never_with_a_live_run() {
    let url = Server::shared().fresh_url();
    let (store, owner, schema) = (open(&url).unwrap(), registry(&url), schema_of(&url));
    pollster::block_on(async {
        let done = owner.start(spec("done")).await.unwrap();
        let id = done.id();
        done.succeed().await.unwrap();
        let waits = owner.enqueue(spec("waits")).await.unwrap();
        // Without a limit nothing ever goes.
        days_later(&schema, 400);
        assert_eq!(store.maintain().await.unwrap(), 0);
        let kept = parts(&schema);
        assert!(kept > 10, "{kept} tables for more than a year");
        let month = Some(Duration::from_secs(30 * 86_400));
        Registry::open(&url).await.unwrap().keep_history(month).await.unwrap();
        let refused = Registry::open("memory:").await.unwrap().keep_history(month).await.unwrap_err();
        assert_eq!(refused.code(), outlive::Code::Invalid, "{refused}");
        // The first is held by the run that waits; those between are empty.
        let dropped = store.maintain().await.unwrap();
        assert!(dropped > 8 && parts(&schema) < kept, "{dropped} of {kept}");
        assert_eq!(record(&store, id).await.unwrap().run.state.name(), StateName::Succeeded);
        assert_eq!(owner.events(id).await.unwrap().len(), 3);
        owner.cancel(waits.id, None).await.unwrap();
        let ended = format!("UPDATE {schema}.ended SET ended_at = ended_at - {DAY}");
        Server::shared().psql(&ended);
        assert_eq!(store.maintain().await.unwrap(), 1);
        assert!(record(&store, id).await.is_none());
        assert!(owner.events(id).await.unwrap().is_empty());
        // What is made from then on has a table.
        let later = owner.enqueue(spec("later")).await.unwrap();
        assert!(record(&store, later.id).await.is_some());
    });
}
