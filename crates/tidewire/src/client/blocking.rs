//! The blocking twin of a future: the calling thread polls it and sleeps in between.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// A waker that unparks a sleeping thread.
struct SleepingThread(Thread);

/// Blocks this thread until the future is ready.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let here = this_thread();
    let mut cx = Context::from_waker(&here);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        // `park` may return early; then the loop polls again.
        thread::park();
    }
}

/// Returns the waker of this thread.
pub(super) fn this_thread() -> Waker {
    let here = THIS_THREAD.try_with(Waker::clone);
    // Thread-local variables are gone while a thread ends.
    here.unwrap_or_else(|_| SleepingThread::here())
}

impl SleepingThread {
    fn here() -> Waker {
        Waker::from(Arc::new(Self(thread::current())))
    }
}

impl Wake for SleepingThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// Waker of this thread. It is kept, because the lane recognises by it that several replies are for one thread.
    static THIS_THREAD: Waker = SleepingThread::here();
}
