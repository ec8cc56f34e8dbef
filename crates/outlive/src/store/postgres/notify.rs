//! Notifications (LISTEN/NOTIFY): workers learn at once of work to claim and of changes to what they own.
//!
//! A notification takes no part in the transaction: it is sent right behind the commit, seldom enough to delay none, and may
//! be lost, above all where a pooler is in between. So no process relies on it; it is only sooner than polling.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::{StreamExt, poll_fn};
use tokio::task::AbortHandle;
use tokio_postgres::AsyncMessage;
use uuid::Uuid;

use super::pool;
use super::{Feature, PostgresStore};
use crate::host::MadeBy;
use crate::model::id::WorkerId;
use crate::model::time::{Clock, SystemClock};
use crate::store::{Error, Notification};

/// The least time between two pieces of news of the same process that there is work.
const REST: Duration = Duration::from_millis(5);
/// How long to wait before listening again after the connection was lost.
const AGAIN: Duration = Duration::from_secs(2);

/// Hears news until it is dropped.
pub struct Listening(AbortHandle, MadeBy);

impl Drop for Listening {
    fn drop(&mut self) {
        if self.1.is_this_process() {
            self.0.abort();
        }
    }
}

/// When there was last said to be work, in microseconds of the time awake.
#[derive(Default)]
pub(super) struct NotifyLimiter(AtomicU64);

impl PostgresStore {
    /// Calls `heard` with every piece of news from now on, until what is answered is dropped. Refused where the engine has
    /// no notifications: then work and requests are found by polling.
    pub fn listen(&self, heard: impl Fn(Notification) + Send + Sync + 'static) -> Result<Listening, Error> {
        if !self.has(Feature::Listen) {
            return Err(Error::Unsupported("the database has no notifications".into()));
        }
        let (store, heard) = (self.clone(), Arc::new(heard));
        let listening = async move {
            loop {
                store.hear(&*heard).await;
                tokio::time::sleep(AGAIN).await;
            }
        };
        Ok(Listening(pool::in_passing(listening)?.abort_handle(), MadeBy::this_process()))
    }

    /// Hears until the connection is lost.
    async fn hear(&self, heard: &(dyn Fn(Notification) + Send + Sync)) {
        let Ok((client, mut connection)) = self.links().connect_raw().await else { return };
        let listening = format!("LISTEN \"{}\"", self.channel());
        let listen = client.batch_execute(&listening);
        let mut messages = poll_fn(move |context| connection.poll_message(context));
        let hear = async {
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(notification) = message {
                    match notification.payload().parse::<Uuid>() {
                        Ok(worker) => heard(Notification::Request(WorkerId::from_uuid(worker))),
                        Err(_) => heard(Notification::Work),
                    }
                }
            }
        };
        // What came before it could be heard is found by asking.
        let listen = async {
            if listen.await.is_ok() {
                heard(Notification::Work);
                std::future::pending::<()>().await;
            }
        };
        futures_util::future::select(std::pin::pin!(hear), std::pin::pin!(listen)).await;
    }

    fn channel(&self) -> String {
        format!("outlive_{}", self.id())
    }

    /// The statement that tells workers of work.
    pub(super) fn notify_work(&self) -> String {
        format!("NOTIFY \"{}\"", self.channel())
    }

    /// The notification to send behind a commit that makes something claimable: none if one was sent just now. Then its
    /// sender repeats it in a moment.
    pub(super) fn news_of_work(&self) -> Option<String> {
        if !self.has(Feature::Listen) {
            return None;
        }
        let now = u64::try_from(SystemClock.awake().as_micros()).unwrap_or(u64::MAX);
        let rest = REST.as_micros() as u64;
        let last = self.notify_limiter().0.fetch_max(now, Ordering::Relaxed);
        let notify = said(&self.notify_work());
        if now.saturating_sub(last) >= rest {
            return Some(notify);
        }
        // One of those that come meanwhile is enough.
        if self.notify_limiter().0.compare_exchange(now, now + rest, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let store = self.clone();
            let late = async move {
                tokio::time::sleep(REST).await;
                let said: Result<(), Error> =
                    async { pool::with_retry!(store.links(), |link| link.run(&notify)) }.await;
                // It may be lost.
                drop(said);
            };
            drop(pool::in_passing(late));
        }
        None
    }

    /// What is to be said to workers whose runs were changed by others.
    pub(super) fn news_for(&self, workers: &[Uuid]) -> String {
        let channel = self.channel();
        let say = |worker: &Uuid| format!("NOTIFY \"{channel}\", '{worker}'");
        said(&workers.iter().map(say).collect::<Vec<_>>().join("; "))
    }
}

/// The statement of a notification: a transaction of its own, which does not wait for the disk.
fn said(news: &str) -> String {
    format!("BEGIN; SET LOCAL synchronous_commit = off; {news}; COMMIT")
}
