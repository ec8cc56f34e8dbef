//! Connections that are cut at the worst moment: F-59.

use std::io::{Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;

use super::*;
use crate::world::with_lease;
use outlive::ownership::reaper::Reaper;
use outlive::run::Key;

/// What a cut connection has done to what was said last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// It reached the server, which carried it out and answered.
    Answered,
    /// It did not.
    Swallowed,
}

/// Somebody between a client and its server, who cuts a connection when certain words are said.
struct Proxy {
    port: u16,
    plan: Arc<Mutex<Option<(&'static str, Cut)>>>,
    cuts: Arc<AtomicUsize>,
}

impl Proxy {
    fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), plan: Arc::default(), cuts: Arc::default() };
        let (plan, cuts) = (proxy.plan.clone(), proxy.cuts.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (plan, cuts) = (plan.clone(), cuts.clone());
                std::thread::spawn(move || pass_on(client, server, &plan, &cuts));
            }
        });
        proxy
    }

    /// Before whoever is at a URL.
    fn before(url: &str) -> Self {
        let (_, after) = url.split_once("127.0.0.1:").unwrap();
        Self::start(after.split_once('/').unwrap().0.parse().unwrap())
    }

    fn url(&self, direct: &str) -> String {
        let (before, after) = direct.split_once("127.0.0.1:").unwrap();
        format!("{before}127.0.0.1:{}/{}", self.port, after.split_once('/').unwrap().1)
    }

    /// Has the connection cut on which these words are said next.
    fn cut_at(&self, words: &'static str, how: Cut) {
        *self.plan.lock().unwrap() = Some((words, how));
    }

    fn cuts(&self) -> usize {
        self.cuts.load(Ordering::SeqCst)
    }
}

fn pass_on(
    mut client: TcpStream,
    mut server: TcpStream,
    plan: &Mutex<Option<(&'static str, Cut)>>,
    cuts: &AtomicUsize,
) {
    let (mut answers, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let deaf = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_deaf = deaf.clone();
    let (heard, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read @ 1..) = answers.read(&mut buffer) {
            if is_deaf.load(Ordering::SeqCst) {
                if buffer[..read].windows(7).any(|window| window == b"COMMIT\0") {
                    let _ = heard.send(());
                }
            } else if to_client.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = client.read(&mut buffer) {
        let is_duplicate_finish =
            |words: &str| buffer[..read].windows(words.len()).any(|window| window == words.as_bytes());
        let cut = {
            let mut plan = plan.lock().unwrap();
            plan.take_if(|(words, _)| is_duplicate_finish(words)).map(|(_, how)| how)
        };
        match cut {
            Some(Cut::Swallowed) => {
                cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
            Some(Cut::Answered) => {
                cuts.fetch_add(1, Ordering::SeqCst);
                deaf.store(true, Ordering::SeqCst);
                server.write_all(&buffer[..read]).unwrap();
                // The end of the transaction may be said later than its beginning.
                client.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
                while hears.try_recv() == Err(TryRecvError::Empty) {
                    if let Ok(read @ 1..) = client.read(&mut buffer) {
                        server.write_all(&buffer[..read]).unwrap();
                    }
                }
                break;
            }
            None if server.write_all(&buffer[..read]).is_err() => break,
            None => {}
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

#[test]
fn f_59_a_lost_answer_is_neither_a_lost_race_nor_nothing() {
    loses_an_answer(Way::straight);
}

#[test]
fn f_59_lost_answer_is_no_lost_race_through_a_pooler() {
    loses_an_answer(Way::pooled);
}

fn loses_an_answer(way: fn(&Server) -> Way) {
    let direct = Server::shared().fresh_url();
    let way = way(Server::shared());
    let proxy = Proxy::before(&way.url(&direct));
    let store = open(&proxy.url(&direct)).unwrap();
    let there = open(&direct).unwrap();
    pollster::block_on(async {
        for how in [Cut::Answered, Cut::Swallowed] {
            let write = making(draft());
            proxy.cut_at("made AS (INSERT", how);
            let answer = store.commit(vec![write.clone()]).await;
            assert!(matches!(answer, Err(Error::Unknown(_))), "{how:?}: {answer:?}");
            let found = record(&there, write.run.id).await;
            assert_eq!(found.is_some_and(|found| found.stamp == write.stamp), how == Cut::Answered);
        }
    });
    assert_eq!(proxy.cuts(), 2);
}

#[test]
fn f_59_the_registry_finds_out_what_became_of_it() {
    finds_out(Way::straight);
}

#[test]
fn f_59_registry_resolves_unknown_outcomes_through_a_pooler() {
    finds_out(Way::pooled);
}

fn finds_out(way: fn(&Server) -> Way) {
    let direct = Server::shared().fresh_url();
    let way = way(Server::shared());
    let proxy = Proxy::before(&way.url(&direct));
    let (owner, reader) = (registry(&proxy.url(&direct)), registry(&direct));
    let keyed = || {
        let mut spec = with_lease(spec("keyed"), Duration::from_millis(500), Duration::from_millis(1_500));
        spec.keys = vec![Key::limit("gpu", 1)];
        spec
    };
    pollster::block_on(async {
        for how in [Cut::Answered, Cut::Swallowed] {
            proxy.cut_at("made AS (INSERT", how);
            let handle = owner.start(spec("plain")).await.unwrap();
            proxy.cut_at("done AS (UPDATE", how);
            handle.set_checkpoint(1.into()).await.unwrap();
            proxy.cut_at("moved AS (DELETE", how);
            let id = handle.id();
            handle.succeed().await.unwrap();
            let events: Vec<String> =
                reader.events(id).await.unwrap().into_iter().map(|event| event.action.into()).collect();
            assert_eq!(events, ["enqueue", "claim", "report", "finish"], "{how:?}");
            // With a key it is a transaction of several statements.
            proxy.cut_at("COMMIT", how);
            let handle = owner.start(keyed()).await.unwrap();
            let id = handle.id();
            proxy.cut_at("COMMIT", how);
            handle.succeed().await.unwrap();
            assert_eq!(reader.events(id).await.unwrap().len(), 3, "{how:?}");
            // A reaper tells of what it ended though it was not told.
            let orphan = owner.start(keyed()).await.unwrap();
            pass(Duration::from_secs(2));
            proxy.cut_at("COMMIT", how);
            let mut ended = Vec::new();
            until("the orphan to be reaped", || {
                ended.extend(
                    pollster::block_on(Reaper::new(None).pass(&owner)).into_iter().flat_map(|reaped| reaped.ended),
                );
                !ended.is_empty()
            });
            assert_eq!(ended.iter().map(|run| run.id).collect::<Vec<_>>(), [orphan.id()]);
            let _ = orphan.succeed().await;
        }
    });
    assert_eq!(proxy.cuts(), 12);
}
