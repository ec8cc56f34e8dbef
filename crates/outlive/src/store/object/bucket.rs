//! A bucket: objects that are read, listed, deleted, and written on a condition.
//!
//! A conditional write is tried until it is known what became of it. The writer puts a write id into the bytes that
//! no other write has, so that after a lost answer the object itself tells whose it is. The crate below asks once:
//! what it would take for a lost race after a retry of its own may be a race that was won.

use std::collections::HashMap;
#[cfg(feature = "postgres")]
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetOptions, ObjectStore as Client, PutMode, PutOptions, UpdateVersion};

use super::address::{BucketAddress, InvalidBucketAddress};
use super::credentials::NO_CREDENTIALS;
use super::server_time::ServerTime;
use super::wire::{Counted, RequestOutcome, Wire, watched};
use crate::model::id::{Entropy, SystemEntropy};
use crate::model::time::Timestamp;
use crate::store::Error;
use crate::util::backoff::Backoff;

/// How long a call usually goes on asking.
const TIMEOUT: Duration = Duration::from_secs(12);
/// How long it goes on asking a server that has never answered this process: a wrong address is reported quickly.
const FIRST_CONTACT: Duration = Duration::from_secs(2);
/// The first pause before asking again, and the longest.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(40), Duration::from_secs(2));
/// How many requests of one call are under way at once.
pub(super) const AT_ONCE: usize = 16;
/// What a server says of one object of many that may go better later.
const PASSING: [&str; 7] = [
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "ThrottlingException",
    "TooManyRequests",
];
/// How many names one request deletes at most.
pub const DELETED_AT_ONCE: usize = 1_000;

/// A client of one bucket. Clones share it.
#[derive(Clone)]
pub(crate) struct Bucket {
    client: Arc<dyn Client>,
    pub(super) wire: Arc<Wire>,
    pub(super) time: Arc<dyn ServerTime>,
    /// How long a call goes on asking before it gives up.
    pub(super) timeout: Duration,
    name: String,
}

/// An object as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) bytes: Bytes,
    pub(crate) version: Version,
    /// When it was put, to the second.
    pub(crate) modified: Timestamp,
}

/// What a listing tells of an object.
#[derive(Debug, Clone)]
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) tag: Option<String>,
    pub(crate) modified: Timestamp,
    pub(crate) size: u64,
}

/// Which version of an object is meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Version {
    pub(crate) tag: Option<String>,
    generation: Option<String>,
}

impl Version {
    /// The version that a listing names.
    pub(super) fn of_tag(tag: Option<String>) -> Self {
        Self { tag, generation: None }
    }

    fn condition(&self) -> UpdateVersion {
        UpdateVersion { e_tag: self.tag.clone(), version: self.generation.clone() }
    }
}

/// What became of a conditional write.
#[derive(Debug)]
pub(crate) enum Landed {
    /// It is there.
    Done(Version),
    /// Something else is, or nothing.
    Other(Option<Object>),
}

/// How one request to write fared.
pub(super) enum Tried {
    Done(Version),
    /// The condition did not hold.
    Refused,
    /// Another writer was at it: what became of this one is seen by looking.
    Contended(Error),
    /// It may have been carried out, or may be yet.
    Unknown(Error),
    /// It has not been, and may be tried again.
    NotYet(Error),
    /// It has not been, and will not be.
    Never(Error),
}

impl Bucket {
    pub(crate) fn new(address: &BucketAddress, time: Arc<dyn ServerTime>) -> Result<Self, InvalidBucketAddress> {
        let wire = Wire::new(time.clone());
        Ok(Self { client: address.connect(wire.clone())?, wire, time, timeout: TIMEOUT, name: address.bucket.clone() })
    }

    /// A directory, where only reading, listing and deleting is asked for.
    pub(crate) fn over(client: Arc<dyn Client>, name: String, time: Arc<dyn ServerTime>) -> Self {
        Self { client, wire: Wire::new(time.clone()), time, timeout: TIMEOUT, name }
    }

    pub(crate) fn counted(&self) -> Counted {
        self.wire.requests.counted()
    }

    /// What the server's clock says, as far as it was heard.
    pub(crate) fn server_time(&self) -> Option<Timestamp> {
        self.time.now()
    }

    /// Whether it was seen to keep versions of objects.
    pub(crate) fn keeps_versions(&self) -> bool {
        self.wire.keeps_versions()
    }

    /// The object, if there is one.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Object>, Error> {
        let path = path(key)?;
        self.again(async || {
            let read = async {
                let found = self.client.get_opts(&path, GetOptions::default()).await?;
                let (meta, bytes) = (found.meta.clone(), found.bytes().await?);
                Ok::<_, object_store::Error>((meta, bytes))
            };
            match watched(read).await {
                (Ok((meta, bytes)), _) => Ok(Some(Object {
                    bytes,
                    modified: Timestamp::from_micros(meta.last_modified.timestamp_micros()),
                    version: Version { tag: meta.e_tag, generation: meta.version },
                })),
                (Err(object_store::Error::NotFound { source, .. }), _) if !says(&*source, "NoSuchBucket") => Ok(None),
                (Err(error), fared) => Err(self.failure(&error, &fared)),
            }
        })
        .await
    }

    /// These bytes of an object, or all of them; none where there is no such object.
    #[cfg(feature = "postgres")]
    pub(crate) async fn get_range(&self, key: &str, range: Option<Range<u64>>) -> Result<Option<Bytes>, Error> {
        let path = path(key)?;
        self.again(async || {
            let options = GetOptions { range: range.clone().map(Into::into), ..GetOptions::default() };
            let read = async { self.client.get_opts(&path, options).await?.bytes().await };
            match watched(read).await {
                (Ok(bytes), _) => Ok(Some(bytes)),
                (Err(object_store::Error::NotFound { source, .. }), _) if !says(&*source, "NoSuchBucket") => Ok(None),
                (Err(error), fared) => Err(self.failure(&error, &fared)),
            }
        })
        .await
    }

    /// Whether there is such an object.
    pub(crate) async fn has(&self, key: &str) -> Result<bool, Error> {
        let path = path(key)?;
        self.again(async || match watched(self.client.get_opts(&path, GetOptions::new().with_head(true))).await {
            (Ok(_), _) => Ok(true),
            (Err(object_store::Error::NotFound { source, .. }), _) if !says(&*source, "NoSuchBucket") => Ok(false),
            (Err(error), fared) => Err(self.failure(&error, &fared)),
        })
        .await
    }

    /// Puts an object where there is none, or in place of that version. `mark` is in its bytes and in no other object's.
    pub(crate) async fn put(
        &self,
        key: &str,
        bytes: Bytes,
        mark: &str,
        instead: Option<&Version>,
    ) -> Result<Landed, Error> {
        let path = path(key)?;
        let is_ours = |object: &Object| contains(&object.bytes, mark);
        let mut doubt = None;
        let mut tries = Tries::new(self.timeout());
        loop {
            let error = match self.try_put(&path, bytes.clone(), instead).await {
                Tried::Done(version) => return Ok(Landed::Done(version)),
                Tried::Never(error) => return Err(doubt.unwrap_or(error)),
                Tried::Refused => {
                    let found = self.get(key).await.map_err(|error| doubt.clone().unwrap_or(error))?;
                    return Ok(match found {
                        Some(object) if is_ours(&object) => Landed::Done(object.version),
                        found => Landed::Other(found),
                    });
                }
                Tried::NotYet(error) => error,
                Tried::Contended(error) | Tried::Unknown(error) => {
                    doubt = Some(Error::Unknown(error.to_string()));
                    error
                }
            };
            if !tries.again().await {
                return Err(doubt.unwrap_or(error));
            }
            // What an earlier try has put is not put again; what another process has put is not waited for.
            if doubt.is_some()
                && let Ok(found) = self.get(key).await
            {
                match found {
                    Some(object) if is_ours(&object) => return Ok(Landed::Done(object.version)),
                    Some(object) if instead.is_none_or(|instead| *instead != object.version) => {
                        return Ok(Landed::Other(Some(object)));
                    }
                    _ => {}
                }
            }
        }
    }

    /// One request to write, whatever it comes to.
    pub(super) async fn try_once(&self, key: &str, bytes: Bytes, instead: Option<&Version>) -> Tried {
        match path(key) {
            Ok(path) => self.try_put(&path, bytes, instead).await,
            Err(error) => Tried::Never(error),
        }
    }

    async fn try_put(&self, path: &Path, bytes: Bytes, instead: Option<&Version>) -> Tried {
        let mode = instead.map_or(PutMode::Create, |version| PutMode::Update(version.condition()));
        let options = PutOptions { mode, attributes: attributes(path), ..PutOptions::default() };
        let (done, fared) = watched(self.client.put_opts(path, bytes.into(), options)).await;
        let error = match done {
            Ok(done) => return Tried::Done(Version { tag: done.e_tag, generation: done.version }),
            Err(error) => error,
        };
        let failure = self.failure(&error, &fared);
        match fared.status {
            _ if fared.for_credentials || matches!(&failure, Error::Denied(why) if why.contains(NO_CREDENTIALS)) => {
                Tried::Never(failure)
            }
            Some(412 | 304) => Tried::Refused,
            // Some servers say so where there is nothing to be replaced.
            Some(404) if instead.is_some() && !says(&error, "NoSuchBucket") => Tried::Refused,
            Some(409) => Tried::Contended(failure),
            // Asked to come later, before it was looked at.
            Some(429) => Tried::NotYet(failure),
            Some(408 | 500..=599) => Tried::Unknown(failure),
            Some(_) => Tried::Never(failure),
            None if fared.unsent => Tried::NotYet(failure),
            None if matches!(error, object_store::Error::NotImplemented { .. }) => Tried::Never(failure),
            None => Tried::Unknown(failure),
        }
    }

    /// Puts an object whatever is there. Only for what one writer alone ever writes.
    pub(crate) async fn overwrite(&self, key: &str, bytes: Bytes) -> Result<(), Error> {
        let path = path(key)?;
        self.again(async || {
            let options = PutOptions { attributes: attributes(&path), ..PutOptions::default() };
            let put = self.client.put_opts(&path, bytes.clone().into(), options);
            let (done, fared) = watched(put).await;
            done.map(drop).map_err(|error| self.failure(&error, &fared))
        })
        .await
    }

    /// Whatever is below a prefix, some at a time, in the order of their names where the bucket has one. What was handed
    /// over is not again after a failure on the way.
    pub(crate) async fn list(
        &self,
        prefix: &str,
        mut hand_over: impl AsyncFnMut(Vec<ListedObject>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let prefix = path(prefix)?;
        let mut after: Option<Path> = None;
        let mut tries = Tries::new(self.timeout());
        loop {
            let mut listed = match &after {
                None => self.client.list(Some(&prefix)),
                Some(after) => self.client.list_with_offset(Some(&prefix), after),
            };
            let mut page = Vec::new();
            let failed = loop {
                let (next, fared) = watched(listed.next()).await;
                match next {
                    Some(Ok(meta)) => page.push(meta),
                    Some(Err(error)) => break Some(self.failure(&error, &fared)),
                    None => break None,
                }
                if page.len() == PAGE {
                    after = page.last().map(|meta| meta.location.clone());
                    tries = Tries::new(self.timeout());
                    hand_over(page.drain(..).map(listed_as).collect()).await?;
                }
            };
            after = page.last().map(|meta| meta.location.clone()).or(after);
            hand_over(page.into_iter().map(listed_as).collect()).await?;
            match failed {
                None => return Ok(()),
                Some(error) if error.is_transient() && tries.again().await => {}
                Some(error) => return Err(error),
            }
        }
    }

    /// The next objects below a prefix, behind that name: as many as one answer holds, and none behind the last.
    pub(crate) async fn list_page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<ListedObject>, Error> {
        let (prefix, after) = (path(prefix)?, after.map(path).transpose()?);
        self.again(async || {
            let mut listed = match &after {
                None => self.client.list(Some(&prefix)),
                Some(after) => self.client.list_with_offset(Some(&prefix), after),
            };
            let mut page = Vec::new();
            while page.len() < PAGE {
                match watched(listed.next()).await {
                    (Some(Ok(meta)), _) => page.push(listed_as(meta)),
                    (Some(Err(error)), fared) => return Err(self.failure(&error, &fared)),
                    (None, _) => break,
                }
            }
            Ok(page)
        })
        .await
    }

    /// Everything below a prefix, which must be little.
    pub(crate) async fn list_all(&self, prefix: &str) -> Result<Vec<ListedObject>, Error> {
        let mut all = Vec::new();
        self.list(prefix, async |page| {
            all.extend(page);
            Ok(())
        })
        .await?;
        Ok(all)
    }

    /// Deletes objects, in requests of [`DELETED_AT_ONCE`] each. Answers with those that could not be, and why.
    pub(crate) async fn delete(&self, keys: &[String]) -> Result<Vec<(String, Error)>, Error> {
        let mut left: Vec<String> = keys.to_vec();
        let mut stay = Vec::new();
        let mut tries = Tries::new(self.timeout());
        loop {
            let mut failed = Vec::new();
            for batch in left.chunks(DELETED_AT_ONCE) {
                failed.extend(self.delete_once(batch).await?);
            }
            // Only what failed is asked for again, and of that only what asking again may help.
            let (passing, hopeless): (Vec<_>, Vec<_>) = failed.into_iter().partition(|(_, error)| error.is_transient());
            stay.extend(hopeless);
            if passing.is_empty() || !tries.again().await {
                stay.extend(passing);
                return Ok(stay);
            }
            left = passing.into_iter().map(|(key, _)| key).collect();
        }
    }

    async fn delete_once(&self, batch: &[String]) -> Result<Vec<(String, Error)>, Error> {
        let paths: Vec<Path> = batch.iter().map(|key| path(key)).collect::<Result<_, _>>()?;
        let asked = stream::iter(paths.into_iter().map(Ok)).boxed();
        let deleting = async { self.client.delete_stream(asked).collect::<Vec<_>>().await };
        let (answers, fared) = watched(deleting).await;
        if answers.len() != batch.len() {
            // The request failed as a whole: of none is it known.
            let error = answers.into_iter().find_map(Result::err);
            let error =
                error.map_or_else(|| Error::Unavailable("no answer".into()), |error| self.failure(&error, &fared));
            return Ok(batch.iter().map(|key| (key.clone(), error.clone())).collect());
        }
        let refused: HashMap<&str, &str> = fared.refused.iter().map(|(key, code)| (&**key, &**code)).collect();
        if let Some((_, code)) = fared.refused.iter().find(|(key, _)| !batch.contains(key)) {
            // Whom that is said of is not known, so it is said of all.
            return Ok(batch.iter().map(|key| (key.clone(), self.refused(code))).collect());
        }
        let is_left = |(key, answer): (&String, Result<Path, object_store::Error>)| match answer {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {
                refused.get(key.as_str()).map(|code| (key.clone(), self.refused(code)))
            }
            Err(error) => Some((key.clone(), self.failure(&error, &fared))),
        };
        Ok(batch.iter().zip(answers).filter_map(is_left).collect())
    }

    /// Why one object of many was not deleted.
    fn refused(&self, code: &str) -> Error {
        let bucket = &self.name;
        match code {
            code if PASSING.contains(&code) => {
                Error::Unavailable(format!("bucket `{bucket}`: the server could not do it ({code})"))
            }
            "AccessDenied" => {
                Error::Denied(format!("bucket `{bucket}`: this is not permitted with these credentials ({code})"))
            }
            _ => Error::Denied(format!("bucket `{bucket}`: the server refused it ({code})")),
        }
    }

    fn timeout(&self) -> Duration {
        if self.wire.has_answered() { self.timeout } else { self.timeout.min(FIRST_CONTACT) }
    }

    /// Asks until there is an answer, as long as one may come.
    async fn again<T>(&self, ask: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
        let mut tries = Tries::new(self.timeout());
        loop {
            match ask().await {
                Err(error) if error.is_transient() && tries.again().await => {}
                answer => return answer,
            }
        }
    }

    /// What went wrong, for people.
    fn failure(&self, error: &object_store::Error, fared: &RequestOutcome) -> Error {
        let whole = chain(error);
        let (bucket, code) = (&self.name, code(&whole).unwrap_or_default());
        let because = if code.is_empty() { String::new() } else { format!(" ({code})") };
        let denied = |why: &str| Error::Denied(format!("bucket `{bucket}`: {why}{because}"));
        if fared.for_credentials || whole.contains(NO_CREDENTIALS) {
            return Error::Denied(format!("bucket `{bucket}`: {}", without_credentials(&whole)));
        }
        match (code, fared.status) {
            ("NoSuchBucket", _) => denied("there is no such bucket; make it, or check the name in the URL"),
            ("RequestTimeTooSkewed", _) => {
                denied("the clock of this host is too far off for the server to take its word; set it")
            }
            ("ExpiredToken" | "TokenRefreshRequired", _) => denied("the credentials have expired; renew them"),
            ("InvalidAccessKeyId" | "SignatureDoesNotMatch" | "InvalidToken", _) => {
                denied("the server does not know these credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
            }
            ("PermanentRedirect" | "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException", _)
            | (_, Some(301 | 307)) => denied("it is in another region; name it in the URL with `?region=…`"),
            (_, Some(401 | 403)) => denied("this is not permitted with these credentials"),
            (_, Some(501)) => Error::Unsupported(format!("bucket `{bucket}`: the server cannot do this{because}")),
            (_, Some(408 | 409 | 429 | 500..=599)) => {
                let status = fared.status.unwrap_or_default();
                Error::Unavailable(format!("bucket `{bucket}`: the server answered with {status}{because}"))
            }
            (_, Some(status)) => {
                Error::Denied(format!("bucket `{bucket}`: the server answered with {status}{because}"))
            }
            (_, None) if matches!(error, object_store::Error::NotImplemented { .. }) => {
                Error::Unsupported(format!("bucket `{bucket}`: {error}"))
            }
            (_, None) if whole.contains("HTTP error") => {
                Error::Unavailable(format!("bucket `{bucket}` cannot be reached: {}", last_cause(error)))
            }
            (_, None) => Error::Denied(format!("bucket `{bucket}`: {}", last_cause(error))),
        }
    }
}

/// What to do where no credentials were found, or could not be obtained.
fn without_credentials(whole: &str) -> String {
    // An error quotes its causes, so that the last time it is said is the first cause.
    match whole.rsplit_once(NO_CREDENTIALS).map(|(_, why)| why).filter(|why| !why.is_empty()) {
        Some(why) => format!("{NO_CREDENTIALS}{why}"),
        None => format!(
            "{NO_CREDENTIALS} were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or `aws configure`"
        ),
    }
}

/// The metadata of an object: the media type of its contents, by its name.
fn attributes(path: &Path) -> Attributes {
    let media_type = match path.extension() {
        Some("yaml") => "application/yaml",
        Some("jsonl") => "application/jsonl",
        _ => return Attributes::new(),
    };
    Attributes::from_iter([(Attribute::ContentType, media_type)])
}

/// How many names of a listing are handed over at a time.
const PAGE: usize = 1_000;

/// Tries of one call, with pauses that become longer and are never as long as another's.
struct Tries {
    until: Duration,
    backoff: Backoff,
}

impl Tries {
    fn new(timeout: Duration) -> Self {
        Self { until: clock().saturating_add(timeout), backoff: PAUSES }
    }

    /// Waits for the next try; whether there is one.
    async fn again(&mut self) -> bool {
        let spread = (SystemEntropy.draw() % 1_000) as u32;
        let pause = self.backoff.pause();
        let pause = pause / 2 + pause * spread / 2_000;
        if clock() + pause >= self.until {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}

/// How long this machine has been awake: pauses are real, whatever clock a test goes by.
fn clock() -> Duration {
    use crate::model::time::{Clock, SystemClock};
    SystemClock.awake()
}

fn listed_as(meta: object_store::ObjectMeta) -> ListedObject {
    let modified = Timestamp::from_micros(meta.last_modified.timestamp_micros());
    ListedObject { key: meta.location.to_string(), tag: meta.e_tag, modified, size: meta.size }
}

fn path(key: &str) -> Result<Path, Error> {
    Path::parse(key).map_err(|error| Error::Corrupt(format!("`{key}` is no name of an object: {error}")))
}

fn contains(bytes: &[u8], mark: &str) -> bool {
    memchr::memmem::find(bytes, mark.as_bytes()).is_some()
}

/// An error and all its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn last_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let last = std::iter::successors(Some(error), |error| error.source()).last();
    last.map_or_else(|| error.to_string(), ToString::to_string)
}

fn says(error: &(dyn std::error::Error + 'static), word: &str) -> bool {
    chain(error).contains(word)
}

/// The code by which a server names what went wrong.
fn code(whole: &str) -> Option<&str> {
    let (_, rest) = whole.split_once("<Code>")?;
    rest.split_once("</Code>").map(|(code, _)| code).filter(|code| code.len() < 64)
}
