//! The locks, atomics and threads of shared state, so that a model checker can replace them.
//!
//! `.ci/run models` compiles the library with `--cfg tidewire_model`. Then the types are those of
//! `loom`, and the tests in the files `model.rs` run the real mailbox, event queue, seat, link to the backplane and
//! memory account in every interleaving. In all other builds the types are those of the standard library.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use tidewire_io::clock::now_ns;

#[cfg(tidewire_model)]
pub(crate) use loom::{
    sync::{Mutex, MutexGuard, atomic},
    thread_local,
};
#[cfg(not(tidewire_model))]
pub(crate) use std::{
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};

use thread::Thread;
pub(crate) use try_mutex::{TryGuard, TryMutex};

/// Parks this thread for at most this time. A model has no time: only an unpark ends the pause.
pub(crate) fn park_for(time: Duration) {
    #[cfg(not(tidewire_model))]
    thread::park_timeout(time);
    #[cfg(tidewire_model)]
    {
        let _ = time;
        thread::park();
    }
}

/// Parks this thread until it is unparked, at most until this time. Returns false at once if the time has come.
pub(crate) fn park_until(until_ns: Option<u64>) -> bool {
    match until_ns.map(|until_ns| until_ns.saturating_sub(now_ns())) {
        None => thread::park(),
        Some(0) => return false,
        Some(left_ns) => park_for(Duration::from_nanos(left_ns)),
    }
    true
}

/// The waker that unparks the calling thread.
pub(crate) fn this_thread() -> Waker {
    let here = THIS_THREAD.try_with(Waker::clone);
    // Thread-local variables are gone while a thread ends.
    here.unwrap_or_else(|_| ParkedThread::here())
}

struct ParkedThread(Thread);

impl ParkedThread {
    fn here() -> Waker {
        Waker::from(Arc::new(Self(thread::current())))
    }
}

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    /// It is kept, because a lane recognises by it that several replies are for one thread.
    static THIS_THREAD: Waker = ParkedThread::here();
}

/// A mutex for which nobody waits.
#[cfg(not(tidewire_model))]
mod try_mutex {
    use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

    #[derive(Debug)]
    pub(crate) struct TryMutex<T>(Mutex<T>);

    pub(crate) type TryGuard<'a, T> = MutexGuard<'a, T>;

    impl<T> TryMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        /// Locks the value, unless another thread has. The value of a holder that panicked is used as it is.
        #[inline]
        pub(crate) fn try_lock(&self) -> Option<TryGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        /// Locks the value, and waits for that if need be.
        pub(crate) fn lock(&self) -> TryGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}

/// The same in a model. In `loom`, a thread that tries to lock waits if another thread locks meanwhile.
#[cfg(tidewire_model)]
mod try_mutex {
    use std::ops::{Deref, DerefMut};

    use loom::sync::Mutex;

    /// The value, unless a thread has taken it.
    #[derive(Debug)]
    pub(crate) struct TryMutex<T>(Mutex<Option<T>>);

    pub(crate) struct TryGuard<'a, T> {
        home: &'a TryMutex<T>,
        value: Option<T>,
    }

    impl<T> TryMutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(Some(value)))
        }

        pub(crate) fn try_lock(&self) -> Option<TryGuard<'_, T>> {
            let value = self.0.lock().expect("no holder panics").take()?;
            Some(TryGuard {
                home: self,
                value: Some(value),
            })
        }
    }

    impl<T> TryMutex<T> {
        pub(crate) fn lock(&self) -> TryGuard<'_, T> {
            loop {
                if let Some(guard) = self.try_lock() {
                    return guard;
                }
                loom::thread::yield_now();
            }
        }
    }

    impl<T> Deref for TryGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.value.as_ref().expect("locked")
        }
    }

    impl<T> DerefMut for TryGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.value.as_mut().expect("locked")
        }
    }

    impl<T> Drop for TryGuard<'_, T> {
        fn drop(&mut self) {
            *self.home.0.lock().expect("no holder panics") = self.value.take();
        }
    }
}

/// Threads of a model. Those of `loom` forget an unpark when another thread releases a lock.
#[cfg(tidewire_model)]
pub(crate) mod thread {
    use std::sync::Arc;

    use loom::sync::Notify;

    #[derive(Clone, Debug)]
    pub(crate) struct Thread(Arc<Notify>);

    impl Thread {
        pub(crate) fn unpark(&self) {
            self.0.notify();
        }

        pub(crate) fn id(&self) -> usize {
            Arc::as_ptr(&self.0).addr()
        }
    }

    pub(crate) fn current() -> Thread {
        THREAD.with(Clone::clone)
    }

    pub(crate) fn park() {
        current().0.wait();
    }

    loom::thread_local! {
        static THREAD: Thread = Thread(Arc::new(Notify::new()));
    }
}
