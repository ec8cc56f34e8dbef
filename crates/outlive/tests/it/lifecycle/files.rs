//! What the files of a local registry keep: L23 and L24.

use std::path::PathBuf;
use std::time::Duration;

use outlive::filter::Filter;
use outlive::ownership::Stop;
use outlive::run::{Progress, Run, StateName};
use outlive::store::{Page, Record};
use outlive::testing::spec;

use crate::world::{LEASE, World, inode_and_mtime, unseen};

fn delete_database(world: &World) {
    for rest in ["", "-wal", "-shm"] {
        let path = world.path.as_ref().unwrap().join(format!("registry.db{rest}"));
        std::fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn attempt_file(world: &World, run: &Run, attempt: u32) -> PathBuf {
    world.path.as_ref().unwrap().join(format!("runs/{}/attempts/{attempt:04}.json", run.id))
}

async fn all(world: &World) -> Vec<Record> {
    world.store.list(&Filter::default(), &Page::default()).await.unwrap().records
}

/// What must be the same before and after: everything but what the store has only heard, and how often it wrote.
fn kept(record: &Record) -> serde_json::Value {
    let mut run = serde_json::to_value(&record.run).unwrap();
    run.as_object_mut().unwrap().remove("updated_at");
    run
}

#[test]
fn l23_a_deleted_database_loses_nothing() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process();
        let mut running = Vec::new();
        for number in 0..5_u64 {
            let handle = owner.start(spec("running")).await.unwrap();
            handle.progress(Progress { done: Some(number), ..Progress::default() }).await.unwrap();
            handle.set_checkpoint(number.into()).await.unwrap();
            running.push(handle);
        }
        let ends = [
            owner.start(spec("ended")).await.unwrap().succeed().await,
            owner.start(spec("ended")).await.unwrap().fail("exit", "code 1").await,
            owner.start(spec("ended")).await.unwrap().interrupt(Some(2), "SIGINT").await,
            owner.start(spec("ended")).await.unwrap().succeed().await,
            owner.start(spec("ended")).await.unwrap().succeed().await,
        ];
        assert!(ends.iter().all(Result::is_ok));
        let archived =
            all(&world).await.into_iter().find(|record| record.run.state.name() == StateName::Failed).unwrap();
        owner.archive(archived.run.id).await.unwrap();
        owner.tick().await.unwrap();
        let before = all(&world).await;
        let mut event_logs = Vec::new();
        for record in &before {
            event_logs.push(world.store.events(record.run.id).await.unwrap());
        }

        delete_database(&world);
        assert_eq!(all(&world).await.len(), 10, "runs come back with the first read");
        assert!(world.reap().await.ended.is_empty(), "nobody could have been heard meanwhile");
        owner.tick().await.unwrap();
        owner.tick().await.unwrap();

        let after = all(&world).await;
        assert_eq!(after.iter().map(kept).collect::<Vec<_>>(), before.iter().map(kept).collect::<Vec<_>>());
        for (record, events) in before.iter().zip(event_logs) {
            let told = world.store.events(record.run.id).await.unwrap();
            // How far a run in flight is, is in its record; the steps on the way there are told once it has ended.
            let steps = events.into_iter().filter(|event| record.run.ending().is_some() || event.action != "report");
            assert_eq!(told, steps.collect::<Vec<_>>(), "the event log of a run that is {}", record.run.state.name());
        }
        assert!(running.iter().all(|handle| handle.stop_requested().is_none()));
        world.clock.pass(LEASE * 2);
        owner.tick().await.unwrap();
        assert!(world.reap().await.ended.is_empty(), "beats are heard again");
        for handle in running {
            handle.succeed().await.unwrap();
        }
    });
}

#[test]
fn l23_claim_after_a_deletion_does_not_hide_earlier_holders() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process();
        let handle = owner.start(spec("first")).await.unwrap();
        owner.tick().await.unwrap();
        handle.set_checkpoint(7.into()).await.unwrap();
        owner.tick().await.unwrap();
        delete_database(&world);
        let _second = owner.start(spec("second")).await.unwrap();
        let _third = owner.start(spec("third")).await.unwrap();
        for _ in 0..3 {
            world.clock.pass(Duration::from_secs(1));
            owner.tick().await.unwrap();
        }
        assert_eq!(world.record(handle.id()).await.run.checkpoint, Some(7.into()));
    });
}

#[test]
fn l23_a_cancel_request_outlives_the_database() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process();
        let (told, untold) = (owner.start(spec("a")).await.unwrap(), owner.start(spec("b")).await.unwrap());
        owner.tick().await.unwrap();
        world.process().cancel(told.id(), Some("enough".into())).await.unwrap();
        owner.tick().await.unwrap();
        world.process().cancel(untold.id(), Some("enough".into())).await.unwrap();
        delete_database(&world);
        owner.tick().await.unwrap();
        owner.tick().await.unwrap();
        for handle in [told, untold] {
            assert!(matches!(handle.stop_requested(), Some(Stop::Cancelled(_))), "{:?}", handle.stop_requested());
            let id = handle.id();
            handle.cancelled().await.unwrap();
            assert_eq!(world.see(id).await.state, StateName::Cancelled);
            assert_eq!(world.actions(id).await, ["enqueue", "claim", "request cancel", "finish"]);
        }
    });
}

#[test]
fn l24_attempt_file_is_written_once_at_the_end() {
    let world = World::sqlite();
    pollster::block_on(async {
        let owner = world.process();
        let handle = owner.start(spec("job")).await.unwrap();
        let (id, file) = (handle.id(), attempt_file(&world, &handle.run(), 1));
        handle.set_checkpoint(1.into()).await.unwrap();
        owner.tick().await.unwrap();
        assert!(!file.exists(), "there is an attempt file while the attempt runs");
        handle.interrupt(Some(15), "SIGTERM").await.unwrap();
        let (bytes, written) = (std::fs::read(&file).unwrap(), inode_and_mtime(&file));

        owner.archive(id).await.unwrap();
        owner.unarchive(id).await.unwrap();
        let resumed = owner.resume(id, outlive::ResumeOptions::default()).await.unwrap();
        let second = attempt_file(&world, &resumed.run(), 2);
        world.clock.pass(LEASE * 2);
        assert!(!second.exists());
        assert_eq!(world.reap().await.ended.len(), 1);
        assert!(second.exists());
        delete_database(&world);
        all(&world).await;
        assert!(resumed.succeed().await.is_err(), "the reaped owner has lost");
        owner.resume(id, outlive::ResumeOptions::default()).await.unwrap().succeed().await.unwrap();
        assert_eq!((std::fs::read(&file).unwrap(), inode_and_mtime(&file)), (bytes, written));
        assert_eq!(world.see(id).await.run.attempt, 3);
    });
}

/// The first change that is written to a database has its files before the log has a head.
#[test]
fn c02_who_reads_while_the_first_change_is_written_waits_for_it() {
    use std::sync::Arc;

    use outlive::id::SystemEntropy;
    use outlive::store::sqlite::{Sharing, SqliteStore};
    use outlive::time::SystemClock;
    use rustix::fs::{FlockOperation, flock};

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry");
    let store = SqliteStore::create(&path, Sharing::Private, Arc::new(SystemClock), Arc::new(SystemEntropy)).unwrap();
    let world = World::sqlite();
    let process = world.process_on(Arc::new(store), unseen(1));
    pollster::block_on(async { process.start(spec("job")).await.unwrap().succeed().await }).unwrap();
    drop(process);
    std::fs::remove_file(path.join("registry.db-shm")).unwrap();
    let log = path.join("registry.db-wal");
    let whole = std::fs::read(&log).unwrap();
    // As somebody leaves it who is about to write its head.
    let turn = std::fs::File::open(path.join("write.lock")).unwrap();
    flock(&turn, FlockOperation::LockExclusive).unwrap();
    std::fs::write(&log, b"").unwrap();
    let waits_at = std::fs::canonicalize(path.join("write.lock")).unwrap();
    let has_open = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        fds.filter(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).is_ok_and(|file| file == waits_at)).count()
    };
    let before = has_open();
    let reader = std::thread::spawn(move || SqliteStore::read(&path, Arc::new(SystemClock), Arc::new(SystemEntropy)));
    while has_open() == before && !reader.is_finished() {
        std::thread::yield_now();
    }
    std::fs::write(&log, whole).unwrap();
    flock(&turn, FlockOperation::Unlock).unwrap();
    let read = reader.join().unwrap().unwrap_or_else(|error| panic!("{error}"));
    assert!(read.trouble().is_none(), "a change that was not whole was read from its files: {:?}", read.trouble());
}

#[test]
fn a_log_stays_short_though_each_process_makes_one_change() {
    use std::sync::Arc;

    use outlive::id::SystemEntropy;
    use outlive::store::sqlite::{Sharing, SqliteStore};
    use outlive::time::SystemClock;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("registry");
    let world = World::sqlite();
    for _ in 0..100 {
        let store = SqliteStore::create(&path, Sharing::Private, Arc::new(SystemClock), Arc::new(SystemEntropy));
        let process = world.process_on(Arc::new(store.unwrap()), unseen(1));
        pollster::block_on(process.enqueue(spec("job"))).unwrap();
        pollster::block_on(process.close());
    }
    let frames = std::fs::metadata(path.join("registry.db-wal")).unwrap().len() / 4096;
    assert!((50..200).contains(&frames), "{frames} frames");
}
