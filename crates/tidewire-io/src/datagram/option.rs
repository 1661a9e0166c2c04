//! Socket options that neither `rustix` nor `quinn-udp` has.
#![expect(
    unsafe_code,
    reason = "socket options are passed to the kernel by address and size"
)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_int, c_void, socklen_t};

pub(super) fn set_integer(
    socket: impl AsFd,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    let socket = socket.as_fd();
    // SAFETY: the descriptor is open while it is borrowed, and the kernel reads as many bytes as the integer has.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast::<c_void>(),
            mem::size_of::<c_int>() as socklen_t,
        )
    };
    if outcome == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns how often the kernel had no room for data that arrived at this socket.
pub(super) fn drops(socket: impl AsFd) -> io::Result<u32> {
    let socket = socket.as_fd();
    let mut figures = [0_u32; FIGURES];
    let mut length = mem::size_of_val(&figures) as socklen_t;
    // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes, the size of
    // the array; any content of it is valid.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            figures.as_mut_ptr().cast::<c_void>(),
            &raw mut length,
        )
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    if (length as usize) < mem::size_of_val(&figures) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel does not count dropped datagrams (it came with Linux 4.12)",
        ));
    }
    Ok(figures[FIGURES - 1])
}

/// `SO_MEMINFO` of <asm-generic/socket.h>, which the libc crate leaves out.
const SO_MEMINFO: c_int = 55;

/// The number of figures up to and including `SK_MEMINFO_DROPS`, the ninth.
const FIGURES: usize = 9;
const _: () = assert!(FIGURES == libc::SK_MEMINFO_DROPS as usize + 1);
