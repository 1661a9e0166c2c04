//! Calls about TCP connections that `rustix` does not have.
#![expect(unsafe_code, reason = "the kernel reads and writes addresses of ours")]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libc::{c_int, c_void, socklen_t};

/// The time since the peer's last bytes arrived. `None` if the kernel does not know.
pub(super) fn since_arrival(socket: impl AsFd) -> Option<Duration> {
    let socket = socket.as_fd();
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut found: libc::tcp_info = unsafe { mem::zeroed() };
    let mut bytes = mem::size_of::<libc::tcp_info>() as socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `bytes` bytes, the size of
    // `found`, all of whose bit patterns are valid.
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

/// Limits the bytes that the kernel takes for a connection beyond the bytes on their way to the peer.
pub(super) fn set_unsent_bytes_max(socket: impl AsFd, bytes_max: u32) -> io::Result<()> {
    let value: c_int = c_int::try_from(bytes_max).unwrap_or(c_int::MAX);
    let socket = socket.as_fd();
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads as many bytes as `value` has, which
    // outlives the call.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_NOTSENT_LOWAT,
            (&raw const value).cast::<c_void>(),
            mem::size_of::<c_int>() as socklen_t,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
