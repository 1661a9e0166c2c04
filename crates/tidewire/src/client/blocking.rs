//! The blocking twin of a future: the thread that waits is the task.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Wakes a thread that waits.
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
        // Woken by anybody else it asks again.
        thread::park();
    }
}

/// What wakes this thread.
pub(super) fn this_thread() -> Waker {
    let here = THIS_THREAD.try_with(Waker::clone);
    // A thread that ends has no such variables any more.
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
    /// Wakes this thread. Kept, because the lane knows by it that several answers are for one thread.
    static THIS_THREAD: Waker = SleepingThread::here();
}
