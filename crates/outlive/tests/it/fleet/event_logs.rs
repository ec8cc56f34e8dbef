//! Records that grow.

use super::*;
use outlive::lifecycle::Report;
use outlive::run::Progress;

#[test]
fn a_long_event_log_is_read_back_whole_and_in_order() {
    const REPORTS: u64 = 300;
    let url = Server::shared().fresh_url();
    let owner = registry(&url);
    pollster::block_on(async {
        let handle = owner.start(spec("job")).await.unwrap();
        let id = handle.id();
        for done in 0..REPORTS {
            let message = Some(format!("step {done} {}", "x".repeat(90)));
            let progress = Some(Progress { done: Some(done), message, ..Progress::default() });
            handle.report(Report { progress, ..Report::default() }).await.unwrap();
            if done % 50 == 0 {
                handle.set_checkpoint(done.into()).await.unwrap();
            }
        }
        let halfway: Vec<String> = events(&owner, id).await;
        handle.succeed().await.unwrap();
        let whole = events(&owner, id).await;
        assert_eq!(whole[..halfway.len()], halfway);
        assert_eq!(whole.last(), Some(&"finish".to_owned()));
        assert_eq!(whole[..2], ["enqueue", "claim"]);
        let reports = whole.iter().filter(|action| *action == "report").count();
        let schema = schema_of(&url);
        let parts: u32 = Server::shared().psql(&format!("SELECT count(*) FROM {schema}.event_log")).parse().unwrap();
        println!("{} events, {reports} reports, {parts} parts put aside", whole.len());
        let times: Vec<_> = owner.events(id).await.unwrap().iter().map(|event| event.at).collect();
        assert!(times.is_sorted());
        let bytes: u64 =
            Server::shared().psql(&format!("SELECT sum(length(body)) FROM {schema}.event_log")).parse().unwrap_or(0);
        assert!(parts > 0 && bytes > 8 << 10, "nothing was put aside: {parts} parts, {bytes} bytes");
    });
}

async fn events(registry: &Registry, id: RunId) -> Vec<String> {
    registry.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect()
}

#[test]
fn a_checkpoint_of_a_megabyte_is_kept() {
    let url = Server::shared().fresh_url();
    let owner = registry(&url);
    pollster::block_on(async {
        let handle = owner.start(spec("job")).await.unwrap();
        let large = serde_json::Value::from("x".repeat((1 << 20) - 2));
        for _ in 0..3 {
            handle.set_checkpoint(large.clone()).await.unwrap();
        }
        let id = handle.id();
        owner.tick().await.unwrap();
        handle.succeed().await.unwrap();
        assert_eq!(registry(&url).get(id).await.unwrap().run.checkpoint, Some(large));
    });
}
