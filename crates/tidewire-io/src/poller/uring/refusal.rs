//! Explains why a ring could not be created.
//!
//! `io_uring` is often switched off, in three ways with the same error number. The system's switch tells them apart.

use std::io;

use rustix::io::Errno;

use crate::poller::{PollerError, PollerKind};

pub(super) fn unavailable(source: io::Error) -> PollerError {
    let errno = source.raw_os_error().map(Errno::from_raw_os_error);
    let (cause, remedy) = explain(errno, std::fs::read_to_string(SWITCH).ok().as_deref());
    PollerError::Unavailable {
        kind: PollerKind::Uring,
        cause,
        remedy,
        source,
    }
}

/// Returns the likely cause and the remedy, from the kernel's answer and the content of the system's switch.
pub(super) fn explain(errno: Option<Errno>, switch: Option<&str>) -> (&'static str, &'static str) {
    match (errno, switch.map(str::trim)) {
        (Some(Errno::PERM), Some("2")) => (
            "io_uring is switched off on this machine (kernel.io_uring_disabled = 2)",
            "run `sysctl kernel.io_uring_disabled=0` as root, or choose the epoll poller",
        ),
        (Some(Errno::PERM), Some("1")) => (
            "io_uring is reserved for privileged processes (kernel.io_uring_disabled = 1)",
            "join the group named by kernel.io_uring_group, run `sysctl kernel.io_uring_disabled=0` \
             as root, or choose the epoll poller",
        ),
        (Some(Errno::PERM | Errno::ACCESS), _) => (
            "a sandbox forbids the io_uring system calls, as container runtimes do by default",
            "allow io_uring_setup, io_uring_enter and io_uring_register in its seccomp profile, or \
             choose the epoll poller",
        ),
        (Some(Errno::NOSYS), _) => (
            "the kernel is built without io_uring, or a sandbox hides it",
            "use a kernel from 5.13 with CONFIG_IO_URING, or choose the epoll poller",
        ),
        (Some(Errno::OPNOTSUPP), _) => (
            "the kernel's io_uring is too old for multishot poll",
            "use Linux 5.13 or newer, or choose the epoll poller",
        ),
        (Some(Errno::NOMEM), _) => (
            "the memory for its queues was refused",
            "raise the limit with `ulimit -l`, or choose the epoll poller",
        ),
        (Some(Errno::MFILE | Errno::NFILE), _) => (
            "no descriptor is left for it",
            "raise the limit with `ulimit -n`",
        ),
        _ => (
            "the kernel refused to create a ring",
            "choose the epoll poller",
        ),
    }
}

/// The system-wide switch for io_uring: 0 on, 1 restricted, 2 off.
const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";
