//! The probe: does the server keep to its conditions, also when writers race?
//!
//! Some servers take a condition and ignore it; some look first and write then, and let everybody win who came in
//! between. On either, two owners could both believe that a run is theirs. So nothing is made on a server before it has
//! refused what it must, in races whose writers had all sent everything but their last byte before any of them ended, and
//! of which everybody was answered: silence proves nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::Barrier;

use super::bucket::{Tried, Version};
use super::wire::held_back;
use super::{ObjectStore, io_thread};
use crate::model::id::{Stamp, SystemEntropy};
use crate::model::time::{Clock, SystemClock};
use crate::store::Error;
use crate::util::backoff::Backoff;

/// How many race.
const WRITERS: usize = 8;
/// How often.
const ROUNDS: usize = 5;
/// How often something is tried, each time under another name, until everybody was answered.
const TRIES: u32 = 4;
/// How many objects a listing must tell.
const LISTED: usize = 3;
/// How long after the first try the second begins; it doubles with every further one.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(2));

/// What one trial showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketFinding {
    /// What was tried.
    pub what: &'static str,
    /// What went wrong; none where nothing did.
    pub wrong: Option<String>,
    /// Why it is not known whether anything did; none where it is.
    pub unproven: Option<String>,
}

impl BucketFinding {
    fn is_good(&self) -> bool {
        self.wrong.is_none() && self.unproven.is_none()
    }
}

/// What was found out about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// What it calls itself.
    pub server: String,
    /// What was tried, in order.
    pub findings: Vec<BucketFinding>,
    /// By how much this host's clock is ahead of the server's, in milliseconds.
    pub skew_ms: i64,
}

impl Probed {
    /// Whether runs can be kept there. What could not be proven is refused as well, until it can be.
    pub fn outcome(&self) -> Result<(), Error> {
        let describe = |said: fn(&BucketFinding) -> &Option<String>| {
            let said = |finding: &BucketFinding| said(finding).as_ref().map(|why| format!("{}: {why}", finding.what));
            let all: Vec<String> = self.findings.iter().filter_map(said).collect();
            (!all.is_empty()).then(|| all.join("; "))
        };
        let server = if self.server.is_empty() { "the server" } else { &self.server };
        if let Some(wrong) = describe(|finding| &finding.wrong) {
            return Err(Error::Unsupported(format!(
                "{server} does not keep to the conditions of writes, so that two owners could both hold one run: {wrong}"
            )));
        }
        match describe(|finding| &finding.unproven) {
            Some(why) => Err(Error::Unavailable(format!(
                "{server} could not be proven to keep to the conditions of writes, without which two owners could both \
                 hold one run: {why}"
            ))),
            None => Ok(()),
        }
    }
}

/// What is tried.
#[derive(Clone, Copy)]
enum What {
    Second,
    Older,
    Nothing,
    Listed,
    Race { replaces: bool },
}

impl What {
    fn describe(self) -> &'static str {
        match self {
            Self::Second => "a second object of the same name",
            Self::Older => "a write over an older version",
            Self::Nothing => "a write over what is not there",
            Self::Listed => "what was written is listed",
            Self::Race { replaces: false } => "writers who race to make an object",
            Self::Race { replaces: true } => "writers who race to replace one",
        }
    }

    /// What its objects are called.
    fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Older => "older",
            Self::Nothing => "nothing",
            Self::Listed => "listed",
            Self::Race { replaces: false } => "race-create",
            Self::Race { replaces: true } => "race-replace",
        }
    }
}

struct Trial<'a> {
    store: &'a ObjectStore,
    place: String,
}

impl ObjectStore {
    /// Tries the server out, below the registry's own prefix.
    pub async fn check(&self) -> Result<Probed, Error> {
        let store = self.clone();
        io_thread::spawn(move || async move { store.probe().await }).await
    }

    pub(super) async fn probe(&self) -> Result<Probed, Error> {
        let place = self.own(&format!("probe/{}", Stamp::draw(&SystemEntropy)));
        let trial = Trial { store: self, place };
        let findings = trial.all().await;
        // What stays behind is small and harmless.
        if let Ok(all) = self.bucket().list_all(&trial.place).await {
            let names: Vec<String> = all.into_iter().map(|one| one.key).collect();
            let _ = self.bucket().delete(&names).await;
        }
        let skew = SystemClock.now().as_micros() - self.now()?.as_micros();
        let server = self.bucket().wire.server().unwrap_or_default();
        Ok(Probed { server, findings: findings?, skew_ms: skew / 1_000 })
    }
}

impl Trial<'_> {
    /// Tries one thing after another, until one has failed: what comes after it would prove nothing more.
    async fn all(&self) -> Result<Vec<BucketFinding>, Error> {
        let mut findings = Vec::new();
        for what in [
            What::Second,
            What::Older,
            What::Nothing,
            What::Listed,
            What::Race { replaces: false },
            What::Race { replaces: true },
        ] {
            // Where conditions are ignored altogether the report says how far that goes.
            let is_simple = !matches!(what, What::Listed | What::Race { .. });
            if !is_simple && findings.iter().any(|finding: &BucketFinding| !finding.is_good()) {
                break;
            }
            findings.push(self.find(what).await?);
        }
        Ok(findings)
    }

    /// What the server does where something is tried. Races are held several times, and all at once, for a server may
    /// make the loser wait for seconds.
    async fn find(&self, what: What) -> Result<BucketFinding, Error> {
        let rounds = if matches!(what, What::Race { .. }) { ROUNDS } else { 1 };
        let mut finding = BucketFinding { what: what.describe(), wrong: None, unproven: None };
        for proven in join_all((0..rounds).map(|round| self.prove(what, round))).await {
            match proven {
                Ok(wrong) => finding.wrong = finding.wrong.or(wrong),
                Err(error) if error.is_transient() => finding.unproven = Some(error.to_string()),
                Err(error) => return Err(error),
            }
        }
        Ok(finding)
    }

    /// What is wrong with one trial, once each writer in it was answered. A writer without an answer, or asked to come again, has
    /// neither won nor lost, and so nothing is proven.
    async fn prove(&self, what: What, round: usize) -> Result<Option<String>, Error> {
        let (mut tries, mut backoff) = (0, PAUSES);
        loop {
            let name = format!("{}-{round}-{tries}", what.name());
            let tried = match what {
                What::Second => self.create_twice(&name).await,
                What::Older => self.write_over_older(&name).await,
                What::Nothing => self.write_over_nothing(&name).await,
                What::Listed => self.list(&name).await,
                What::Race { replaces } => self.race(&name, replaces).await,
            };
            tries += 1;
            match tried {
                Err(error) if error.is_transient() && tries < TRIES => {
                    tokio::time::sleep(backoff.pause()).await;
                }
                tried => return tried,
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }

    /// One write; none where it was refused.
    async fn put(&self, name: &str, body: &str, instead: Option<&Version>) -> Result<Option<Version>, Error> {
        match self.store.bucket().try_once(&self.key(name), Bytes::from(body.to_owned()), instead).await {
            Tried::Done(version) => Ok(Some(version)),
            Tried::Refused => Ok(None),
            Tried::Contended(error) | Tried::Unknown(error) | Tried::NotYet(error) | Tried::Never(error) => Err(error),
        }
    }

    async fn made(&self, name: &str, body: &str) -> Result<Version, Error> {
        let refused = || Error::Unsupported("a new object was refused".into());
        self.put(name, body, None).await?.ok_or_else(refused)
    }

    async fn body(&self, name: &str) -> Result<Option<String>, Error> {
        let found = self.store.bucket().get(&self.key(name)).await?;
        Ok(found.map(|object| String::from_utf8_lossy(&object.bytes).into_owned()))
    }

    async fn create_twice(&self, name: &str) -> Result<Option<String>, Error> {
        self.made(name, "first").await?;
        let taken = self.put(name, "second", None).await?.is_some();
        let body = self.body(name).await?;
        Ok((taken || body.as_deref() != Some("first")).then(|| "was taken, and the first is gone".into()))
    }

    async fn write_over_older(&self, name: &str) -> Result<Option<String>, Error> {
        let first = self.made(name, "first").await?;
        if self.put(name, "second", Some(&first)).await?.is_none() {
            return Ok(Some("one over the current version was refused".into()));
        }
        let taken = self.put(name, "third", Some(&first)).await?.is_some();
        let body = self.body(name).await?;
        Ok((taken || body.as_deref() != Some("second")).then(|| "was taken, and what was there is gone".into()))
    }

    async fn write_over_nothing(&self, name: &str) -> Result<Option<String>, Error> {
        let version = self.made(&format!("{name}-model"), "a version").await?;
        let taken = self.put(name, "something", Some(&version)).await?.is_some();
        Ok((taken || self.body(name).await?.is_some()).then(|| "was taken".into()))
    }

    async fn list(&self, name: &str) -> Result<Option<String>, Error> {
        for number in 0..LISTED {
            self.made(&format!("{name}/{number}"), "one of them").await?;
        }
        let listed = self.store.bucket().list_all(&self.key(name)).await?;
        Ok((listed.len() != LISTED).then(|| format!("{} objects of {LISTED} are", listed.len())))
    }

    /// Has writers race once: one wins, and all others learn that they have not.
    async fn race(&self, name: &str, replaces: bool) -> Result<Option<String>, Error> {
        let base = if replaces { Some(self.made(name, "base").await?) } else { None };
        let gate = Arc::new(Barrier::new(WRITERS));
        let racing = (0..WRITERS).map(|writer| {
            let (gate, base) = (gate.clone(), base.as_ref());
            async move {
                let (key, body) = (self.key(name), format!("written by {writer}"));
                let written = self.store.bucket().try_once(&key, Bytes::from(body.clone()), base);
                (held_back(gate, written).await, body)
            }
        });
        let (mut winners, mut unheard) = (Vec::new(), Vec::new());
        for (tried, body) in join_all(racing).await {
            match tried {
                Tried::Done(_) => winners.push(body),
                // The answer says that another was at it: it has not won, or what is read in the end says so.
                Tried::Refused | Tried::Contended(_) => {}
                Tried::Unknown(error) | Tried::NotYet(error) => unheard.push(error),
                Tried::Never(error) => return Err(error),
            }
        }
        if winners.len() > 1 {
            return Ok(Some(format!("{} of {WRITERS} got the answer that they won", winners.len())));
        }
        let read = self.body(name).await?;
        match (winners.first(), unheard.first()) {
            (Some(winner), _) if read.as_ref() != Some(winner) => {
                Ok(Some("the writer that got the answer that it won is not the one that is read".into()))
            }
            (_, Some(error)) => {
                Err(Error::Unavailable(format!("{} of {WRITERS} got no answer: {error}", unheard.len())))
            }
            (None, None) => Err(Error::Unavailable(format!("all {WRITERS} got the answer that they lost"))),
            (Some(_), None) => Ok(None),
        }
    }
}
