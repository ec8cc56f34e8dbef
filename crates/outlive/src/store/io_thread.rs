//! The thread that makes requests, so that callers may await a store on any executor or none.
//!
//! Both the queue and the number of requests under way are bounded: a caller that asks for more waits.

use std::sync::Arc;

use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{LocalSet, spawn_local};

use crate::host::PerProcess;
use crate::store::Error;

/// The most jobs that wait for the thread.
const QUEUED: usize = 64;
/// The most jobs under way at a time. A job never waits for another job, so none waits for itself.
const UNDER_WAY: usize = 256;

type Job = Box<dyn FnOnce(OwnedSemaphorePermit) + Send>;

/// The queue of the thread, which is started by the first call.
fn queue() -> Result<&'static mpsc::Sender<Job>, Error> {
    static QUEUE: PerProcess<Result<mpsc::Sender<Job>, String>> = PerProcess::new();
    let made = QUEUE.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let (queue, mut jobs) = mpsc::channel::<Job>(QUEUED);
        let work = move || {
            LocalSet::new().block_on(&runtime, async move {
                let slots = Arc::new(Semaphore::new(UNDER_WAY));
                while let Some(job) = jobs.recv().await {
                    let Ok(slot) = slots.clone().acquire_owned().await else { return };
                    job(slot);
                }
            });
        };
        let thread = std::thread::Builder::new().name("outlive-requests".into()).spawn(work);
        thread.map(|_| queue).map_err(|error| error.to_string())
    });
    made.as_ref().map_err(|error| Error::Unavailable(format!("no thread for requests: {error}")))
}

/// Does the work on the thread that makes requests.
pub(crate) async fn spawn<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + 'static,
{
    let (reply, replied) = oneshot::channel();
    let job = move |slot: OwnedSemaphorePermit| {
        spawn_local(async move {
            let done = work().await;
            drop(slot);
            // The caller may have gone.
            let _ = reply.send(done);
        });
    };
    let ended = || Error::Unknown("the thread that makes requests ended".into());
    queue()?.send(Box::new(job)).await.map_err(|_| ended())?;
    replied.await.unwrap_or_else(|_| Err(ended()))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn t5_b4_no_more_requests_are_under_way_than_the_limit() {
        const JOBS: usize = UNDER_WAY + QUEUED + 30;
        let gate = Arc::new(Semaphore::new(0));
        // How many are under way, and how many at most were at once.
        let counts = Arc::new(Mutex::new((0_usize, 0_usize)));
        let callers: Vec<_> = (0..JOBS)
            .map(|_| {
                let (gate, counts) = (gate.clone(), counts.clone());
                std::thread::spawn(move || {
                    pollster::block_on(spawn(move || async move {
                        {
                            let mut counts = counts.lock().unwrap();
                            counts.0 += 1;
                            counts.1 = counts.1.max(counts.0);
                        }
                        let _ = gate.acquire().await;
                        counts.lock().unwrap().0 -= 1;
                        Ok(())
                    }))
                })
            })
            .collect();
        while counts.lock().unwrap().0 < UNDER_WAY {
            std::thread::yield_now();
        }
        gate.add_permits(JOBS);
        for caller in callers {
            caller.join().unwrap().unwrap();
        }
        assert_eq!(*counts.lock().unwrap(), (0, UNDER_WAY));
    }
}
