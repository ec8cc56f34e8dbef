//! Objects: what a sweep asks of the store that artifacts are in, and by which clock it reads their dates.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::model::owner::Identity;
use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::store::Error;
use crate::store::object::{Bucket, ListedObject, spawn};

/// Where artifacts are: a bucket, a directory that is read as one, or what a simulation has instead.
///
/// # Contract
///
/// A key that `get` finds is listed. An object that `delete` does not answer with is gone when it answers. What fails may
/// have been done.
#[async_trait]
pub(crate) trait Objects: Send + Sync {
    /// The bytes of an object, if there is one.
    async fn get(&self, key: &str) -> Result<Option<Bytes>, Error>;

    /// Whether there is such an object.
    async fn has(&self, key: &str) -> Result<bool, Error>;

    /// Everything below a prefix.
    async fn list_all(&self, prefix: &str) -> Result<Vec<ListedObject>, Error>;

    /// The next objects below a prefix, behind that name; none behind the last.
    async fn list_page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<ListedObject>, Error>;

    /// Deletes objects; answers with those that could not be.
    async fn delete(&self, keys: Vec<String>) -> Result<Vec<(String, Error)>, Error>;

    /// What its own clock says; none as long as nothing was heard of it.
    fn time(&self) -> Option<Timestamp>;
}

#[async_trait]
impl Objects for Bucket {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, Error> {
        let (bucket, key) = (self.clone(), key.to_owned());
        let found = spawn(move || async move { Self::get(&bucket, &key).await }).await?;
        Ok(found.map(|object| object.bytes))
    }

    async fn has(&self, key: &str) -> Result<bool, Error> {
        let (bucket, key) = (self.clone(), key.to_owned());
        spawn(move || async move { Self::has(&bucket, &key).await }).await
    }

    async fn list_all(&self, prefix: &str) -> Result<Vec<ListedObject>, Error> {
        let (bucket, prefix) = (self.clone(), prefix.to_owned());
        spawn(move || async move { Self::list_all(&bucket, &prefix).await }).await
    }

    async fn list_page(&self, prefix: &str, after: Option<&str>) -> Result<Vec<ListedObject>, Error> {
        let (bucket, prefix, after) = (self.clone(), prefix.to_owned(), after.map(str::to_owned));
        spawn(move || async move { Self::list_page(&bucket, &prefix, after.as_deref()).await }).await
    }

    async fn delete(&self, keys: Vec<String>) -> Result<Vec<(String, Error)>, Error> {
        let bucket = self.clone();
        spawn(move || async move { Self::delete(&bucket, &keys).await }).await
    }

    fn time(&self) -> Option<Timestamp> {
        self.server_time()
    }
}

/// Opens a place of that name, where it is not opened by what its name says.
pub(crate) type Open = dyn Fn(&str) -> Option<Arc<dyn Objects>> + Send + Sync;

/// The machine that a sweep runs on.
pub(crate) struct Machine {
    /// The clock that files of this machine are dated by.
    pub(crate) clock: Arc<dyn Clock>,
    /// The process that sweeps, for its marks.
    pub(crate) process: Identity,
    pub(crate) open: Box<Open>,
}

impl Machine {
    /// This one.
    pub(super) fn here() -> Self {
        Self { clock: Arc::new(SystemClock), process: Identity::own(), open: Box::new(|_| None) }
    }
}
