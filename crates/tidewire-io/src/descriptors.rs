//! How many descriptors this process may have open, and whether one is writable now.
//!
//! A session costs one descriptor. The soft limit is 1,024 on most machines, because some programs use a fixed
//! `fd_set`. The hard limit is far higher. This crate uses no fixed `fd_set`, so a server raises the soft limit to the
//! hard one.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limits on the number of open descriptors (`RLIMIT_NOFILE`).
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct DescriptorLimit {
    /// The limit in force; `u64::MAX` means none.
    pub soft: u64,
    /// The limit up to which an unprivileged process may raise it; `u64::MAX` means none.
    pub hard: u64,
}

/// Returns the limits in force.
#[must_use]
pub fn descriptor_limit() -> DescriptorLimit {
    let limit = getrlimit(Resource::Nofile);
    DescriptorLimit {
        soft: limit.current.unwrap_or(u64::MAX),
        hard: limit.maximum.unwrap_or(u64::MAX),
    }
}

/// Raises the soft limit to the hard limit and returns the limit then in force; `u64::MAX` means none.
///
/// # Errors
///
/// The kernel refuses, for example in a sandbox; the limits are then unchanged.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        )?;
    }
    Ok(descriptor_limit().soft)
}

/// Waits until a descriptor is writable or has failed; the next write then reports the failure. Returns false if
/// `timeout` ends first. A writable pipe takes at least 4,096 bytes.
///
/// # Errors
///
/// The error of the kernel's call.
pub fn wait_writable(descriptor: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    wait_for(descriptor, PollFlags::OUT, Some(timeout))
}

/// Waits until a descriptor is ready for this or has failed. Returns false at the timeout and after a signal.
pub(crate) fn wait_for(
    descriptor: BorrowedFd<'_>,
    flags: PollFlags,
    timeout: Option<Duration>,
) -> io::Result<bool> {
    let mut asked = [PollFd::from_borrowed_fd(descriptor, flags)];
    match poll(&mut asked, timeout.map(timespec).as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Converts a timeout to the kernel's form, cut to the maximum of all kernel interfaces.
pub(crate) fn timespec(timeout: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(timeout.as_secs())
            .unwrap_or(TIMEOUT_SECS_MAX)
            .min(TIMEOUT_SECS_MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    }
}

/// Some kernel interfaces refuse larger values. 68 years are as good as no limit.
const TIMEOUT_SECS_MAX: i64 = i32::MAX as i64;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_full_pipe_cannot_be_written_until_it_is_read_or_broken() {
        let (reader, mut writer) = io::pipe().unwrap();
        while wait_writable(writer.as_fd(), Duration::ZERO).unwrap() {
            writer.write_all(&[0; 4096]).unwrap();
        }
        drop(reader);
        assert!(wait_writable(writer.as_fd(), Duration::ZERO).unwrap());
        assert!(writer.write_all(&[0]).is_err());
    }

    #[test]
    fn raising_takes_soft_to_hard_and_may_be_repeated() {
        let before = descriptor_limit();
        let raised = raise_descriptor_limit().unwrap();
        assert_eq!(raised, before.hard);
        assert_eq!(raise_descriptor_limit().unwrap(), raised);
        let now = descriptor_limit();
        assert_eq!((now.soft, now.hard), (raised, raised));
    }
}
