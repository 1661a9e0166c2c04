//! Options of sockets, as one value for listening and connecting.
//!
//! The options are checked before a socket is made, so that a mistake is an error that names the option and its valid
//! range. Accepted TCP connections inherit all of them from their listener, which saves a system call for each.
//! Accepted Unix connections inherit no buffer sizes, so each is set.

use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::{SocketAddress, tcp};

/// Options of new sockets. Start from `SocketOptions::default()` and change what you must.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Whether TCP sends small writes at once, or holds them back to join them (Nagle's algorithm). Default yes: the
    /// library joins messages itself.
    pub nodelay: bool,
    /// Probes of silent TCP connections by the kernel. Default none: heartbeats notice a vanished peer sooner, and
    /// sessions without heartbeats have an idle timeout.
    pub keep_alive: Option<KeepAlive>,
    /// Size of the kernel's send buffer in bytes. The kernel doubles it for its own bookkeeping, cuts it to
    /// `net.core.wmem_max`, and no longer adapts it. Default none: the kernel adapts it to the connection.
    pub send_buffer_bytes: Option<usize>,
    /// Bytes that TCP takes for a connection beyond the bytes on their way to the peer. A peer that does not read then
    /// holds this much of the kernel's memory instead of 4 MB, the kernel's limit of a send buffer. The rate of a peer
    /// that reads does not depend on it. Default 64 KiB. None leaves the choice to the kernel.
    pub unsent_bytes_max: Option<u32>,
    /// Size of the kernel's receive buffer in bytes, like `send_buffer_bytes`, with `net.core.rmem_max`.
    pub receive_buffer_bytes: Option<usize>,
    /// Whether a server may listen on a TCP port while connections of its former listener linger, which they do for a
    /// minute. Default yes. A port with a live listener is refused all the same.
    pub reuse_address: bool,
    /// How many connections may wait to be accepted. The kernel cuts it to `net.core.somaxconn`. Default 1,024.
    pub backlog: u32,
    /// The permission bits of a Unix socket's file, such as `0o660`. They are in force before any client can connect.
    /// Default none, which is `0o600`: only the user of the server may connect. Connecting requires the permission to
    /// write.
    pub unix_mode: Option<u32>,
    /// Whether a server at `[::]` leaves IPv4 to another socket at the same port. Default no: the server listens on
    /// every IPv4 address, too, whatever the system's `net.ipv6.bindv6only` is.
    pub ipv6_only: bool,
}

/// When the kernel probes a silent TCP connection, and when it ends it. In whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive {
    /// The silence before the first probe, 1 s to 32,767 s.
    pub idle: Duration,
    /// The pause between probes, 1 s to 32,767 s.
    pub interval: Duration,
    /// The number of unanswered probes that ends the connection, 1 to 127.
    pub count: u32,
}

impl SocketOptions {
    /// Checks the values.
    ///
    /// # Errors
    ///
    /// Names the first option with an invalid value.
    fn validate(&self) -> io::Result<()> {
        if let Some(KeepAlive {
            idle,
            interval,
            count,
        }) = self.keep_alive
        {
            whole_seconds("keep_alive.idle", idle)?;
            whole_seconds("keep_alive.interval", interval)?;
            within("keep_alive.count", count.into(), 1, KEEP_ALIVE_COUNT_MAX)?;
        }
        let buffers = [
            ("send_buffer_bytes", self.send_buffer_bytes),
            ("receive_buffer_bytes", self.receive_buffer_bytes),
        ];
        for (option, bytes) in buffers {
            if let Some(bytes) = bytes {
                within(option, bytes as u64, 1, BUFFER_BYTES_MAX)?;
            }
        }
        within("backlog", self.backlog.into(), 0, BACKLOG_MAX)?;
        match self.unix_mode {
            Some(mode) if mode > 0o777 => Err(invalid(format!(
                "unix_mode is {mode:#o}, but must be 0 to 0o777"
            ))),
            _ => Ok(()),
        }
    }

    /// Sets the options of connections on a new socket for `address`: one that connects, or a listener whose accepted
    /// connections inherit them.
    pub(super) fn apply(&self, socket: impl AsFd, address: &SocketAddress) -> io::Result<()> {
        self.validate()?;
        if let SocketAddress::Tcp(_) = address {
            sockopt::set_tcp_nodelay(&socket, self.nodelay).map_err(refused("nodelay"))?;
            if let Some(bytes_max) = self.unsent_bytes_max {
                tcp::set_unsent_bytes_max(&socket, bytes_max)
                    .map_err(refused("unsent_bytes_max"))?;
            }
            if let Some(keep_alive) = &self.keep_alive {
                keep_alive.apply(&socket).map_err(refused("keep_alive"))?;
            }
        }
        self.apply_buffers(socket)
    }

    pub(super) fn apply_buffers(&self, socket: impl AsFd) -> io::Result<()> {
        if let Some(bytes) = self.send_buffer_bytes {
            sockopt::set_socket_send_buffer_size(&socket, bytes)
                .map_err(refused("send_buffer_bytes"))?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            sockopt::set_socket_recv_buffer_size(&socket, bytes)
                .map_err(refused("receive_buffer_bytes"))?;
        }
        Ok(())
    }

    pub(super) fn has_buffers(&self) -> bool {
        self.send_buffer_bytes.is_some() || self.receive_buffer_bytes.is_some()
    }
}

impl KeepAlive {
    fn apply(&self, socket: impl AsFd) -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, self.idle)?;
        sockopt::set_tcp_keepintvl(&socket, self.interval)?;
        sockopt::set_tcp_keepcnt(&socket, self.count)
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            nodelay: true,
            keep_alive: None,
            send_buffer_bytes: None,
            unsent_bytes_max: Some(UNSENT_BYTES_MAX),
            receive_buffer_bytes: None,
            reuse_address: true,
            backlog: BACKLOG,
            unix_mode: None,
            ipv6_only: false,
        }
    }
}

pub(super) fn refused<E: Into<io::Error>>(option: &'static str) -> impl FnOnce(E) -> io::Error {
    move |cause| {
        let cause = cause.into();
        io::Error::new(
            cause.kind(),
            format!("the kernel refused {option}: {cause}"),
        )
    }
}

/// The error of an option that cannot be as it was set.
pub(super) fn invalid(text: impl Into<Box<dyn Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

fn whole_seconds(option: &'static str, value: Duration) -> io::Result<()> {
    within(option, value.as_secs(), 1, KEEP_ALIVE_SECONDS_MAX)?;
    if value.subsec_nanos() > 0 {
        return Err(invalid(format!(
            "{option} is {value:?}; the kernel takes whole seconds only"
        )));
    }
    Ok(())
}

fn within(option: &'static str, value: u64, least: u32, most: u32) -> io::Result<()> {
    if (u64::from(least)..=u64::from(most)).contains(&value) {
        return Ok(());
    }
    Err(invalid(format!(
        "{option} is {value}, but must be {least} to {most}"
    )))
}

/// A lane that writes to a session every 10 ms then sends 6 MB/s.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// Enough for the burst of connections at the start of a load test. `net.core.somaxconn` had this default for long.
const BACKLOG: u32 = 1_024;

/// The kernel takes it as a signed integer.
const BACKLOG_MAX: u32 = i32::MAX as u32;

/// The kernel takes sizes as signed integers and doubles them.
const BUFFER_BYTES_MAX: u32 = i32::MAX as u32 / 2;

/// Linux's `MAX_TCP_KEEPIDLE` and `MAX_TCP_KEEPINTVL`.
const KEEP_ALIVE_SECONDS_MAX: u32 = 32_767;

/// Linux's `MAX_TCP_KEEPCNT`.
const KEEP_ALIVE_COUNT_MAX: u32 = 127;

#[cfg(test)]
mod tests {
    use super::*;

    fn said(change: impl FnOnce(&mut SocketOptions)) -> String {
        let mut options = SocketOptions::default();
        change(&mut options);
        options.validate().unwrap_err().to_string()
    }

    #[test]
    fn invalid_options_are_named_with_their_valid_range() {
        let seconds = Duration::from_secs;
        let keep_alive = KeepAlive {
            idle: seconds(60),
            interval: seconds(10),
            count: 3,
        };
        let good = SocketOptions {
            keep_alive: Some(keep_alive),
            unix_mode: Some(0o660),
            ..SocketOptions::default()
        };
        assert!(good.validate().is_ok());
        let mistaken = |keep_alive| said(|options| options.keep_alive = Some(keep_alive));
        assert_eq!(
            mistaken(KeepAlive {
                idle: seconds(40_000),
                ..keep_alive
            }),
            "keep_alive.idle is 40000, but must be 1 to 32767"
        );
        assert_eq!(
            mistaken(KeepAlive {
                interval: Duration::from_millis(1500),
                ..keep_alive
            }),
            "keep_alive.interval is 1.5s; the kernel takes whole seconds only"
        );
        assert_eq!(
            mistaken(KeepAlive {
                count: 0,
                ..keep_alive
            }),
            "keep_alive.count is 0, but must be 1 to 127"
        );
        assert_eq!(
            said(|options| options.send_buffer_bytes = Some(0)),
            "send_buffer_bytes is 0, but must be 1 to 1073741823"
        );
        assert!(
            said(|options| options.receive_buffer_bytes = Some(usize::MAX)).contains("must be")
        );
        assert_eq!(
            said(|options| options.unix_mode = Some(0o1777)),
            "unix_mode is 0o1777, but must be 0 to 0o777"
        );
        assert!(said(|options| options.backlog = u32::MAX).contains("backlog"));
    }
}
