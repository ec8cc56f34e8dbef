//! Blocking on a future for a limited time, with any executor or none.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::model::time::{Clock, SystemClock};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until the future is ready, and answers with nothing where it is not after `limit`. A future that blocks its own
/// thread is not interrupted: the limit is looked at between two polls.
pub fn block_on_within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    let until = SystemClock.awake().saturating_add(limit);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return Some(done);
        }
        let left = until.saturating_sub(SystemClock.awake());
        if left.is_zero() {
            return None;
        }
        std::thread::park_timeout(left);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn future_that_is_never_ready_is_given_up() {
        assert_eq!(block_on_within(Duration::from_millis(20), std::future::pending::<()>()), None);
        assert_eq!(block_on_within(Duration::ZERO, std::future::pending::<()>()), None);
    }

    #[test]
    fn future_that_another_thread_wakes_is_awaited() {
        let (send, receive) = oneshot::channel();
        let other = std::thread::spawn(move || send.send(7));
        assert_eq!(block_on_within(Duration::MAX, receive), Some(Ok(7)));
        other.join().unwrap().unwrap();
    }

    #[test]
    fn future_that_is_ready_is_answered_without_time() {
        assert_eq!(block_on_within(Duration::ZERO, std::future::ready(7)), Some(7));
    }
}
