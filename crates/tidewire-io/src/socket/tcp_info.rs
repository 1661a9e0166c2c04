//! The facts that the kernel knows about a TCP connection.
#![expect(
    unsafe_code,
    reason = "the kernel writes the facts to an address of ours"
)]

use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_void, socklen_t};

/// The time since the peer's last bytes arrived. `None` if the kernel does not tell.
pub(super) fn since_arrival(socket: impl AsFd) -> Option<Duration> {
    let socket = socket.as_fd();
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut found: libc::tcp_info = unsafe { mem::zeroed() };
    let mut bytes = mem::size_of::<libc::tcp_info>() as socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `bytes` bytes, the size of `found`,
    // all of whose bit patterns are valid.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut found).cast::<c_void>(),
            &raw mut bytes,
        )
    };
    (outcome == 0).then(|| Duration::from_millis(found.tcpi_last_data_recv.into()))
}
