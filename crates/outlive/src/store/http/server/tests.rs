use std::sync::Arc;

use super::*;
use crate::lifecycle::{Action, Fence, Outcome, apply, enqueued};
use crate::model::id::Stamp;
use crate::model::owner::LiveProcesses;
use crate::model::run::{After, Release, Spec};
use crate::store::Revision;
use crate::store::memory::MemoryStore;
use crate::testing::{SeededEntropy, spec};

/// A store that is served to the bearer of a token named `ci`.
struct ServedStore {
    store: MemoryStore,
    context: ServeContext,
    entropy: SeededEntropy,
}

fn ci() -> Actor {
    Actor { user: "ci".into(), host: "runner".into(), pid: 7 }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + 1_000_000 * second)
}

impl ServedStore {
    fn new() -> Self {
        let context = ServeContext { user: Some("ci".into()), is_far: true, ..ServeContext::default() };
        Self { store: MemoryStore::default(), context, entropy: SeededEntropy::new(3) }
    }

    fn write(&self, expect: Expect, transition: Transition) -> Write {
        let Transition { run, event, ended } = transition;
        Write { expect, run, events: vec![event], ended, stamp: Stamp::draw(&self.entropy) }
    }

    fn send(&self, write: Write) -> Result<(), String> {
        let mut stale = 0;
        let commit = Commit { writes: vec![write] };
        let became = pollster::block_on(commit_sent(&self.store, &self.context, commit, &mut stale));
        match became.map_err(|error| error.to_string())?.as_slice() {
            [WriteResult::Done(_)] => Ok(()),
            _ => Err("conflict".into()),
        }
    }

    fn read(&self, id: RunId) -> Record {
        pollster::block_on(self.store.get(&[id])).unwrap().pop().unwrap()
    }

    fn make(&self, spec: Spec) -> Record {
        let run = Run::new(RunId::draw(at(0), &self.entropy), Arc::new(spec), Some("signed".into()), at(0));
        let (id, events) = (run.id, vec![enqueued(&run, &ci())]);
        let stamp = Stamp::draw(&self.entropy);
        self.send(Write { expect: Expect::Absent, run, events, ended: None, stamp }).unwrap();
        self.read(id)
    }

    fn act(&self, record: &Record, action: &Action, second: i64) -> Record {
        let made = apply(&record.run, action, &ci(), at(second)).unwrap();
        self.send(self.write(Expect::Revision(record.revision), made)).unwrap();
        self.read(record.run.id)
    }

    fn succeeded(&self) -> Record {
        let record = self.make(Spec { created_by: ci(), ..spec("deploy") });
        let worker = WorkerId::draw(at(0), &self.entropy);
        let claim = Action::Claim { owner: Owner::unknown(worker), early: false, leftovers: Default::default() };
        let claimed = self.act(&record, &claim, 1);
        let fence = Fence { worker, epoch: claimed.run.epoch };
        self.act(&claimed, &Action::Finish { fence, outcome: Outcome::SUCCEEDED, exit: None }, 2)
    }

    fn events(&self, id: RunId) -> Vec<Event> {
        pollster::block_on(self.store.events(id)).unwrap()
    }
}

use super::commit as commit_sent;

#[test]
fn t8_05_no_token_writes_a_succeeded_run_back_to_pending() {
    let served = ServedStore::new();
    let done = served.succeeded();
    let events = served.events(done.run.id);
    let actions: Vec<&str> = events.iter().map(|event| event.action.as_ref()).collect();
    assert_eq!(actions, ["enqueue", "claim", "finish"]);
    let mut again = Run { attempt: 2, epoch: Epoch(2), ..done.run.clone() };
    again.state = Run::new(again.id, again.spec.clone(), None, at(3)).state;
    let recorded = |action: &'static str| {
        let to = again.state.name();
        vec![Event { action: action.into(), at: at(3), to, epoch: Epoch(2), attempt: 2, ..events[2].clone() }]
    };
    let named = ["resume", "release", "unpark", "claim", "restore", "enqueue", "reap", "made up"];
    let mut refused = 0;
    for events in [Vec::new()].into_iter().chain(named.map(recorded)) {
        let (expect, run, stamp) = (Expect::Revision(done.revision), again.clone(), Stamp::draw(&served.entropy));
        let why = served.send(Write { expect, run, events, ended: None, stamp }).unwrap_err();
        assert!(why.contains("cannot be written so"), "{why}");
        refused += 1;
    }
    assert_eq!(refused, 9);
    assert_eq!(served.read(done.run.id), done, "a refused write changed the run");
    assert_eq!(served.events(done.run.id), events, "a refused write is in the event log");
}

#[test]
fn t8_05_server_writes_the_event_that_the_lifecycle_makes() {
    let served = ServedStore::new();
    let record = served.make(Spec { created_by: ci(), ..spec("deploy") });
    let cancel = Action::RequestCancel { reason: Some("enough".into()), grace: None, live: LiveProcesses::default() };
    let made = apply(&record.run, &cancel, &ci(), at(1)).unwrap();
    let mut write = served.write(Expect::Revision(record.revision), made.clone());
    write.events[0].to = StateName::Succeeded;
    write.events[0].epoch = Epoch(9);
    served.send(write).unwrap();
    assert_eq!(served.events(record.run.id).pop(), Some(made.event), "a forged event was written");
    // While processes of the last attempt live, the request is kept and the run is not cancelled.
    let live = LiveProcesses { pids: Vec::new(), unseen: true };
    let request = Action::RequestCancel { reason: None, grace: None, live };
    let asked = served.act(&served.make(Spec { created_by: ci(), ..spec("deploy") }), &request, 1);
    assert!(asked.run.cancel.is_some() && asked.run.ending().is_none());
    // What is cancelled in the name of another is refused: the record and its event would differ.
    let other = served.make(Spec { created_by: ci(), ..spec("deploy") });
    let root = Actor { user: "root".into(), ..ci() };
    let made = apply(&other.run, &cancel, &root, at(1)).unwrap();
    served.send(served.write(Expect::Revision(other.revision), made)).unwrap_err();
    assert_eq!(served.read(other.run.id), other);
}

#[test]
fn t8_05_no_token_releases_a_run_whose_parent_has_not_ended() {
    let served = ServedStore::new();
    let parent = served.make(Spec { created_by: ci(), ..spec("build") });
    let after = vec![After { run: parent.run.id, release: Release::Success }];
    let child = served.make(Spec { after, created_by: ci(), ..spec("deploy") });
    let release = Action::Release { parent: parent.run.id, ended: StateName::Succeeded };
    let made = apply(&child.run, &release, &ci(), at(3)).unwrap();
    let write = served.write(Expect::Revision(child.revision), made);
    served.send(write.clone()).unwrap_err();
    assert_eq!(served.read(child.run.id), child);
    let done = served.succeeded();
    let after = vec![After { run: done.run.id, release: Release::Success }];
    let child = served.make(Spec { after, created_by: ci(), ..spec("deploy") });
    let release = Action::Release { parent: done.run.id, ended: StateName::Succeeded };
    let released = served.act(&child, &release, 3);
    assert!(matches!(released.run.state, State::Pending(pending) if pending.waits_for.is_empty()));
}

#[test]
fn t8_05_a_record_that_its_owner_restores_is_announced() {
    let served = ServedStore::new();
    let record = served.make(Spec { created_by: ci(), ..spec("deploy") });
    let worker = WorkerId::draw(at(0), &served.entropy);
    let claim = Action::Claim { owner: Owner::unknown(worker), early: false, leftovers: Default::default() };
    let claimed = apply(&record.run, &claim, &ci(), at(1)).unwrap().run;
    // The store was put back to an earlier state: the owner knows more than the record.
    let (expect, stamp) = (Expect::Revision(record.revision), Stamp::draw(&served.entropy));
    served.send(Write { expect, run: claimed, events: Vec::new(), ended: None, stamp }).unwrap();
    let recorded = served.events(record.run.id).pop().unwrap();
    assert_eq!((recorded.action.as_ref(), &*recorded.by.user, recorded.worker), ("restore", "ci", Some(worker)));
    assert_eq!(served.read(record.run.id).revision, Revision(record.revision.0 + 1));
}

#[test]
fn t8_06_author_of_a_lent_run_is_the_bearer_of_the_token() {
    let served = ServedStore::new();
    let root = Actor { user: "root".into(), host: "vm".into(), pid: 1 };
    let made = served.make(Spec { created_by: root.clone(), ..spec("deploy") });
    assert_eq!(&*made.run.spec.created_by.user, "ci", "a token made a run in the name of another user");
    assert!(served.events(made.run.id).iter().all(|event| &*event.by.user == "ci"));
    // The server's own user has the registry itself, and says who acts.
    let own = ServedStore { context: ServeContext { is_far: true, ..ServeContext::default() }, ..ServedStore::new() };
    assert_eq!(own.make(Spec { created_by: root.clone(), ..spec("deploy") }).run.spec.created_by, root);
}

#[test]
fn t8_05_read_tokens_receive_no_signatures() {
    let served = ServedStore::new();
    let made = served.make(Spec { created_by: ci(), ..spec("deploy") });
    let page = List { filter: Filter::default(), page: Page::default() };
    let calls = [
        ("get", serde_json::to_vec(&[made.run.id]).unwrap()),
        ("list", serde_json::to_vec(&page).unwrap()),
        ("hello", b"null".to_vec()),
    ];
    for (reads_only, expected) in [(false, [true, true, false]), (true, [false, false, false])] {
        let context = ServeContext { reads_only, ..served.context.clone() };
        let recorded = calls.each_ref().map(|(call, body)| {
            let answered = pollster::block_on(answer(&served.store, &context, call, body)).unwrap();
            String::from_utf8(answered.body).unwrap().contains("signed")
        });
        assert_eq!(recorded, expected, "reads_only: {reads_only}");
    }
}
