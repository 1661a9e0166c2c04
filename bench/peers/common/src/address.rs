//! Addresses on which a server may listen: a free port of the loopback interface, or a new path in the directory of
//! temporary files.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// An unused path for a Unix socket. The server removes the file at its end.
#[must_use]
pub fn socket_path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    std::env::temp_dir().join(format!("tidewire-peer-{process}-{number}.sock"))
}

/// A port that was free a moment ago, for servers that cannot choose a free port and report it. Another process may
/// take it in between; the server then fails to start and reports that.
///
/// # Errors
/// No port is free.
pub fn free_port() -> Result<u16> {
    let listener =
        TcpListener::bind(("127.0.0.1", 0)).context("no port of the loopback interface is free")?;
    Ok(listener.local_addr().context("the port taken")?.port())
}

/// Returns the part behind `tcp://`, `tls://` or `ipc://`, and whether it is a path.
///
/// # Errors
/// The address has another scheme.
pub fn split(address: &str) -> Result<(&str, bool)> {
    let host = address.strip_prefix("tcp://");
    if let Some(rest) = host.or_else(|| address.strip_prefix("tls://")) {
        return Ok((rest, false));
    }
    let path = address.strip_prefix("ipc://");
    path.map(|path| (path, true)).with_context(|| {
        format!("'{address}' is no address; tcp://HOST:PORT, tls://HOST:PORT and ipc://PATH are")
    })
}
