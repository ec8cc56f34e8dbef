//! Where requests are made: on a thread of their own, so that whoever calls the store may await it on any executor or none.

use std::sync::OnceLock;

use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use crate::store::Error;

type Job = Box<dyn FnOnce() + Send>;

/// Where work is handed in.
fn door() -> Result<&'static mpsc::UnboundedSender<Job>, Error> {
    static DOOR: OnceLock<Result<mpsc::UnboundedSender<Job>, String>> = OnceLock::new();
    let made = DOOR.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let (door, mut jobs) = mpsc::unbounded_channel::<Job>();
        let work = move || {
            LocalSet::new().block_on(&runtime, async move {
                while let Some(job) = jobs.recv().await {
                    job();
                }
            });
        };
        let thread = std::thread::Builder::new().name("outlive-requests".into()).spawn(work);
        thread.map(|_| door).map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| Error::Unavailable(format!("no thread for requests: {error}")))
}

/// Does the work there.
pub(crate) async fn spawn<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + 'static,
{
    let (tell, told) = oneshot::channel();
    let job = move || {
        spawn_local(async move {
            // Whoever asked may have gone.
            let _ = tell.send(work().await);
        });
    };
    let gone = || Error::Unknown("the thread that makes requests ended".into());
    door()?.send(Box::new(job)).map_err(|_| gone())?;
    told.await.unwrap_or_else(|_| Err(gone()))
}
