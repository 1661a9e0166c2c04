//! Tells a child of `fork` from its parent.
//!
//! A child has the memory of its parent, but no thread of its parent. A lock that another thread held stays locked in
//! the child, and a lane never answers. So a caller of a lane first checks whether the lane is in this process.
//!
//! The C library runs a function of this module in each child, which counts the fork. The check then costs one load.
//! Rejected: the number of the process, because reading it is a system call for each message.
//!
//! A child of `vfork` or `posix_spawn`, as `std::process::Command` makes it, runs no code of this program and is not
//! counted. A child that a program makes with the system call itself is not counted either.
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
            // an atomic number, which is allowed in a child right after `fork`.
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

/// The number of forks between the first process of the program and this one. Two children may have the same number,
/// but they share no memory, so their values never meet.
static FORKS: AtomicU32 = AtomicU32::new(0);
