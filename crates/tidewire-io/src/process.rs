//! Tells a child of `fork` from its parent.
//!
//! A child has the memory of its parent, and none of its threads. A lock that another thread held stays locked in the
//! child, and a lane that is waited for never answers. So whoever talks to a lane asks first whether the lane is in
//! this process.
//!
//! The C library runs a function of this module in each child, which counts. The question then costs one load.
//! Rejected: asking the system for the number of the process, because that is a system call for each message.
//!
//! A child of `vfork` or `posix_spawn`, as `std::process::Command` makes it, runs no code of this program and is not
//! counted. Neither is one that a program makes with the system call itself, past the C library.
#![expect(unsafe_code, reason = "registers a function with the C library")]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process in which this value was made.
///
/// ```
/// let process = tidewire_io::process::Process::this();
/// assert!(process.is_this());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Default for Process {
    fn default() -> Self {
        Self::this()
    }
}

impl Process {
    /// Returns this process.
    #[must_use]
    pub fn this() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: `count_fork` stays where it is as long as the program runs, takes no arguments, and only adds to
            // an atomic number, which is allowed between `fork` and whatever the child does next.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            if failed != 0 {
                tracing::warn!(
                    "no memory to notice a fork: a child of this process must not use its clients"
                );
            }
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still the process in which the value was made.
    #[inline]
    #[must_use]
    pub fn is_this(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }
}

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks between the first process of the program and this one. Values of two children with the same
/// number never meet, because they share no memory.
static FORKS: AtomicU32 = AtomicU32::new(0);
