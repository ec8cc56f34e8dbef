//! What tests do to a bucket directly: as other writers, deleters and readers.

use futures_util::{StreamExt, stream};

use super::bucket::AT_ONCE;
use super::{Bucket, ObjectStore, io_thread};
use crate::store::Error;

impl ObjectStore {
    /// Puts an object, whatever is there.
    pub async fn raw_put(&self, key: &str, bytes: &[u8]) -> Result<(), Error> {
        let (key, bytes) = (key.to_owned(), bytes.to_vec());
        self.raw(move |bucket| async move { bucket.overwrite(&key, bytes.into()).await }).await
    }

    /// Puts objects, many at a time.
    pub async fn raw_put_many(&self, objects: Vec<(String, Vec<u8>)>) -> Result<(), Error> {
        let put = |bucket: Bucket| async move {
            let putting = stream::iter(objects).map(async |(key, bytes)| bucket.overwrite(&key, bytes.into()).await);
            putting.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await.into_iter().collect()
        };
        self.raw(put).await
    }

    /// The object, if there is one.
    pub async fn raw_get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let key = key.to_owned();
        let got = self.raw(move |bucket| async move { bucket.get(&key).await }).await?;
        Ok(got.map(|object| object.bytes.to_vec()))
    }

    /// The names below a prefix of the bucket.
    pub async fn raw_list(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let prefix = prefix.to_owned();
        let listed = self.raw(move |bucket| async move { bucket.list_all(&prefix).await }).await?;
        Ok(listed.into_iter().map(|object| object.key).collect())
    }

    /// Deletes objects.
    pub async fn raw_delete(&self, keys: &[String]) -> Result<(), Error> {
        let keys = keys.to_vec();
        self.raw(move |bucket| async move { bucket.delete(&keys).await.map(drop) }).await
    }

    async fn raw<T: Send + 'static, F: Future<Output = Result<T, Error>> + 'static>(
        &self,
        work: impl FnOnce(Bucket) -> F + Send + 'static,
    ) -> Result<T, Error> {
        let bucket = self.bucket().clone();
        io_thread::spawn(move || work(bucket)).await
    }

    /// Where the record of a run is.
    pub fn place_of_record(&self, id: crate::model::id::RunId) -> String {
        self.place_of(id)
    }
}
