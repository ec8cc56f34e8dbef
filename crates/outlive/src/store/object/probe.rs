//! The probe: does the server keep to its conditions, also when writers race?
//!
//! Some servers take a condition and ignore it; some look first and write then, and let everybody win who came in
//! between. On either, two owners could both believe that a run is theirs. So nothing is made on a server before it has
//! refused what it must, in races whose writers had all sent everything but their last byte before any of them ended.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::sync::Barrier;

use super::bucket::{Tried, Version};
use super::wire::held_back;
use super::{ObjectStore, link};
use crate::id::{Stamp, SystemEntropy};
use crate::store::Error;
use crate::time::{Clock, SystemClock};

/// How many race.
const WRITERS: usize = 8;
/// How often.
const ROUNDS: usize = 3;

/// What one trial showed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was tried.
    pub what: &'static str,
    /// What went wrong; none where nothing did.
    pub wrong: Option<String>,
}

/// What was found out about a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probed {
    /// What it calls itself.
    pub server: String,
    /// What was tried, in order.
    pub findings: Vec<Finding>,
    /// By how much this host's clock is ahead of the server's, in milliseconds.
    pub skew_ms: i64,
}

impl Probed {
    /// Whether runs can be kept there.
    pub fn verdict(&self) -> Result<(), Error> {
        let wrong = |finding: &Finding| finding.wrong.as_ref().map(|wrong| format!("{}: {wrong}", finding.what));
        let wrong: Vec<String> = self.findings.iter().filter_map(wrong).collect();
        if wrong.is_empty() {
            return Ok(());
        }
        let server = if self.server.is_empty() { "the server" } else { &self.server };
        Err(Error::Unsupported(format!(
            "{server} does not keep to the conditions of writes, so that two owners could both hold one run: {}",
            wrong.join("; ")
        )))
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
        link::spawn(move || async move { store.probe().await }).await
    }

    pub(super) async fn probe(&self) -> Result<Probed, Error> {
        let place = self.own(&format!("probe/{}", Stamp::draw(&SystemEntropy)));
        let trial = Trial { store: self, place };
        let findings = trial.all().await;
        // What stays behind is small, and harms nobody.
        let names: Vec<String> =
            self.bucket().list_all(&trial.place).await.map(|all| all.into_iter().map(|one| one.key).collect())?;
        let _ = self.bucket().delete(&names).await;
        let skew = SystemClock.now().as_micros() - self.now()?.as_micros();
        let server = self.bucket().wire.server().unwrap_or_default();
        Ok(Probed { server, findings: findings?, skew_ms: skew / 1_000 })
    }
}

impl Trial<'_> {
    async fn all(&self) -> Result<Vec<Finding>, Error> {
        let mut findings = Vec::new();
        for (what, wrong) in [
            ("a second object of the same name", self.create_twice().await?),
            ("a write over an older version", self.write_over_older().await?),
            ("a write over what is not there", self.write_over_nothing().await?),
            ("what was written is listed", self.list().await?),
        ] {
            findings.push(Finding { what, wrong });
        }
        // Where even that fails, a race proves nothing more.
        if findings.iter().any(|finding| finding.wrong.is_some()) {
            return Ok(findings);
        }
        let wrong = self.race(false).await?;
        findings.push(Finding { what: "writers who race to make an object", wrong });
        let wrong = self.race(true).await?;
        findings.push(Finding { what: "writers who race to replace one", wrong });
        Ok(findings)
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }

    /// One write; none where it was refused.
    async fn put(&self, name: &str, body: &str, instead: Option<&Version>) -> Result<Option<Version>, Error> {
        match self.store.bucket().try_once(&self.key(name), Bytes::from(body.to_owned()), instead).await {
            Tried::Done(version) => Ok(Some(version)),
            Tried::Refused => Ok(None),
            Tried::Unknown(error) | Tried::NotYet(error) | Tried::Never(error) => Err(error),
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

    async fn create_twice(&self) -> Result<Option<String>, Error> {
        self.made("twice", "first").await?;
        let taken = self.put("twice", "second", None).await?.is_some();
        let body = self.body("twice").await?;
        Ok((taken || body.as_deref() != Some("first")).then(|| "was taken, and the first is gone".into()))
    }

    async fn write_over_older(&self) -> Result<Option<String>, Error> {
        let first = self.made("older", "first").await?;
        if self.put("older", "second", Some(&first)).await?.is_none() {
            return Ok(Some("one over the current version was refused".into()));
        }
        let taken = self.put("older", "third", Some(&first)).await?.is_some();
        let body = self.body("older").await?;
        Ok((taken || body.as_deref() != Some("second")).then(|| "was taken, and what was there is gone".into()))
    }

    async fn write_over_nothing(&self) -> Result<Option<String>, Error> {
        let version = self.made("model", "a version").await?;
        let taken = self.put("nothing", "something", Some(&version)).await?.is_some();
        Ok((taken || self.body("nothing").await?.is_some()).then(|| "was taken".into()))
    }

    async fn list(&self) -> Result<Option<String>, Error> {
        let listed = self.store.bucket().list_all(&self.place).await?;
        Ok((listed.len() != 3).then(|| format!("{} objects of 3 are", listed.len())))
    }

    /// Has writers race, round after round: each round one wins.
    async fn race(&self, replaces: bool) -> Result<Option<String>, Error> {
        for round in 0..ROUNDS {
            let name = format!("race-{replaces}-{round}");
            let base = if replaces { Some(self.made(&name, "base").await?) } else { None };
            let gate = Arc::new(Barrier::new(WRITERS));
            let racing = (0..WRITERS).map(|writer| {
                let (gate, name, base) = (gate.clone(), &name, base.as_ref());
                async move {
                    let body = format!("written by {writer}");
                    held_back(gate, self.put(name, &body, base)).await.map(|won| won.map(|_| body))
                }
            });
            let mut winners = Vec::new();
            for outcome in join_all(racing).await {
                match outcome {
                    Ok(won) => winners.extend(won),
                    // Whoever got no answer, or was told to come again, has neither won nor lost.
                    Err(error) if error.is_passing() => {}
                    Err(error) => return Err(error),
                }
            }
            let body = self.body(&name).await?;
            match winners.as_slice() {
                [] => {}
                [winner] if body.as_ref() == Some(winner) => {}
                [_] => return Ok(Some("who was told to have won is not who is read".into())),
                many => return Ok(Some(format!("{} of {WRITERS} were told to have won", many.len()))),
            }
        }
        Ok(None)
    }
}
