//! The process at the other end of a Unix socket.
#![expect(
    unsafe_code,
    reason = "the kernel writes the credentials to an address of ours"
)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_void, socklen_t};

/// Process, user and group of the peer of a Unix socket, as they were when it connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerCredentials {
    /// The process; 0 if it is in a namespace that is not visible from here. The process may have ended since, and
    /// another one may have its number.
    pub process_id: u32,
    /// The user.
    pub user_id: u32,
    /// The group.
    pub group_id: u32,
}

impl PeerCredentials {
    /// Reads the credentials without `rustix`, which assumes a process number that is never 0. The kernel answers 0 for
    /// a process of another namespace.
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let socket = socket.as_fd();
        let mut found = libc::ucred {
            pid: 0,
            uid: libc::uid_t::MAX,
            gid: libc::gid_t::MAX,
        };
        let mut bytes = mem::size_of::<libc::ucred>() as socklen_t;
        // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `bytes` bytes, the size of
        // `found`, all of whose bit patterns are valid.
        let outcome = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast::<c_void>(),
                &raw mut bytes,
            )
        };
        if outcome != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            process_id: found.pid.unsigned_abs(),
            user_id: found.uid,
            group_id: found.gid,
        })
    }
}
