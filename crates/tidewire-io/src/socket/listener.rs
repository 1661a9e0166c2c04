//! Listening sockets that accept connections.
//!
//! A Unix listener leaves a file when its process is killed, and binding to that file fails from then on. A connection
//! attempt shows whether a server still listens. The listener replaces the file of a dead server. It refuses the file
//! of a live server and any file that is not a socket. Rejected: a lock file. It closes the small gap between attempt
//! and replacement, but is a second file that a killed process leaves.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, chmod, fchmod, fstat, open};
use rustix::io::Errno;
use rustix::net::{acceptfrom_with, bind, connect, getsockname, listen, sockopt};

use super::error::LISTEN;
use super::options::{SocketOptions, invalid, refused};
use super::{
    AcceptError, FLAGS, PassedSocket, SocketAddress, SocketError, Stream, abstract_name, io_error,
};

/// A listening socket. Dropping closes it, and removes its socket file if no other server has replaced the file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: SocketAddress,
    _file: Option<SocketFile>,
    /// The options that accepted connections do not inherit.
    per_connection: Option<SocketOptions>,
}

/// One accepted connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: Stream,
    /// The peer's address; `None` for Unix sockets, whose clients have no address.
    pub peer: Option<SocketAddr>,
}

impl Listener {
    /// Binds to an address and listens, without blocking.
    ///
    /// # Errors
    ///
    /// [`SocketError`], each variant with its remedy.
    pub fn bind(address: &SocketAddress, options: &SocketOptions) -> Result<Self, SocketError> {
        let socket = address
            .socket()
            .map_err(|cause| SocketError::listening(address, cause))?;
        let unusable = |source| SocketError::options(LISTEN, address, source);
        options.apply(&socket, address).map_err(unusable)?;
        let (address, file) = match address {
            SocketAddress::Tcp(_) => {
                // Connections of a former listener linger for a minute and would otherwise hold the port.
                sockopt::set_socket_reuseaddr(&socket, options.reuse_address)
                    .map_err(refused("reuse_address"))
                    .map_err(unusable)?;
                if let SocketAddress::Tcp(SocketAddr::V6(_)) = address {
                    sockopt::set_ipv6_v6only(&socket, options.ipv6_only)
                        .map_err(refused("ipv6_only"))
                        .map_err(unusable)?;
                }
                let local = bind_tcp(&socket, address)
                    .map_err(|cause| SocketError::listening(address, cause))?;
                (SocketAddress::Tcp(local), None)
            }
            SocketAddress::Unix(path) if abstract_name(path).is_some() => {
                if options.unix_mode.is_some() {
                    return Err(unusable(invalid(
                        "an abstract socket has no file and so no unix_mode: anybody on this machine may connect; \
                         leave the mode out, or use a path",
                    )));
                }
                let failed = |cause| SocketError::listening(address, cause);
                let kernel = address.to_kernel().map_err(failed)?;
                bind(&socket, &kernel).map_err(failed)?;
                (address.clone(), None)
            }
            SocketAddress::Unix(path) => {
                let file = bind_unix(&socket, address, path, options)?;
                (address.clone(), Some(file))
            }
        };
        let listener = Self::new(socket, address, file, options);
        let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
        listen(&listener.socket, backlog)
            .map_err(|cause| SocketError::listening(&listener.address, cause))?;
        Ok(listener)
    }

    /// Takes up a listener of another program, and sets these options for its connections. `reuse_address`, `backlog`,
    /// `unix_mode` and `ipv6_only` are those of the other program. The file of a Unix socket stays when this listener
    /// is dropped.
    ///
    /// # Errors
    ///
    /// [`SocketError::Options`] for invalid options, [`SocketError::Io`] if it receives datagrams,
    /// [`SocketError::DescriptorsExhausted`] if no descriptor is left.
    pub fn adopt(passed: &PassedSocket, options: &SocketOptions) -> Result<Self, SocketError> {
        let io_failed = |source| SocketError::other(LISTEN, passed.address().clone(), source);
        let Some(address) = passed.address().stream() else {
            return Err(io_failed(io_error(Errno::PROTOTYPE)));
        };
        let address = &address;
        options
            .apply(passed, address)
            .map_err(|source| SocketError::options(LISTEN, address, source))?;
        let socket = passed.descriptor().map_err(io_failed)?;
        Ok(Self::new(socket, address.clone(), None, options))
    }

    fn new(
        socket: OwnedFd,
        address: SocketAddress,
        file: Option<SocketFile>,
        options: &SocketOptions,
    ) -> Self {
        let is_unix = matches!(address, SocketAddress::Unix(_));
        Self {
            socket,
            address,
            _file: file,
            per_connection: (is_unix && options.has_buffers()).then(|| options.clone()),
        }
    }

    /// The address in force, with the port that the system chose in place of 0.
    #[must_use]
    pub fn local_address(&self) -> &SocketAddress {
        &self.address
    }

    /// Takes one waiting connection. Neither this call nor the stream blocks.
    ///
    /// # Errors
    ///
    /// [`AcceptError::WouldBlock`] when no connection waits. [`AcceptError`] lists the other errors that leave the
    /// listener usable.
    pub fn accept(&self) -> Result<Accepted, AcceptError> {
        loop {
            match acceptfrom_with(&self.socket, FLAGS) {
                Ok((socket, peer)) => {
                    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
                    if let Some(options) = &self.per_connection
                        && let Err(error) = options.apply_buffers(&socket)
                    {
                        // The listener took the same sizes, so this is next to impossible; the connection works.
                        tracing::warn!(%error, "a connection keeps the default buffer sizes");
                    }
                    return Ok(Accepted {
                        stream: Stream::accepted(socket, peer),
                        peer,
                    });
                }
                Err(Errno::INTR) => {}
                Err(cause) => return Err(AcceptError::new(cause)),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Listens on TCP as a [`Listener`] does, for a program that accepts connections by the standard library or by a
/// runtime.
///
/// # Errors
///
/// The errors of [`Listener::bind`].
pub fn listen_tcp(
    address: SocketAddr,
    options: &SocketOptions,
) -> Result<TcpListener, SocketError> {
    let listener = Listener::bind(&address.into(), options)?;
    Ok(TcpListener::from(listener.socket))
}

/// The file of a bound Unix socket, identified by its inode, because another server may put its file at the same path.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|identity| identity == Some(self.identity)) {
            // A directory that was made read-only must not make closing fail.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn bind_tcp(socket: &OwnedFd, address: &SocketAddress) -> Result<SocketAddr, Errno> {
    bind(socket, &address.to_kernel()?)?;
    SocketAddr::try_from(getsockname(socket)?)
}

fn bind_unix(
    socket: &OwnedFd,
    address: &SocketAddress,
    path: &Path,
    options: &SocketOptions,
) -> Result<SocketFile, SocketError> {
    let failed = |cause| SocketError::listening(address, cause);
    let kernel = address.to_kernel().map_err(failed)?;
    let mode = Mode::from_raw_mode(options.unix_mode.unwrap_or(UNIX_MODE_DEFAULT));
    // When `bind` creates the file, it copies this mode (less the umask). So the file is never open to more users than
    // requested.
    fchmod(socket, mode).map_err(failed)?;
    match bind(socket, &kernel) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(address, path)?;
            bind(socket, &kernel).map_err(failed)?;
        }
        other => other.map_err(failed)?,
    }
    let io_failed = |source| SocketError::other(LISTEN, address.to_any(), source);
    let identity = identity(path)
        .and_then(|identity| identity.ok_or_else(|| io_error(Errno::NOENT)))
        .map_err(io_failed)?;
    let file = SocketFile {
        path: path.to_path_buf(),
        identity,
    };
    set_mode(path, identity, mode).map_err(failed)?;
    Ok(file)
}

/// Sets the bits that the umask took away. In a shared directory, another user may have put a link in place of the
/// file. So the mode is set through a descriptor of the bound file, and only if bits are missing.
fn set_mode(path: &Path, bound: (u64, u64), mode: Mode) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty())?;
    let found = fstat(&file)?;
    if (found.st_dev, found.st_ino) != bound {
        return Err(Errno::NOENT);
    }
    if Mode::from_raw_mode(found.st_mode) == mode {
        return Ok(());
    }
    // On all supported kernels, only this name reaches the file of a path descriptor.
    chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), mode)
}

/// The default mode of a socket file: only its own user may connect.
const UNIX_MODE_DEFAULT: u32 = 0o600;

/// Removes the socket file of a server that is gone.
fn remove_stale(address: &SocketAddress, path: &Path) -> Result<(), SocketError> {
    let in_use = || SocketError::listening(address, Errno::ADDRINUSE);
    let io_failed = |source| SocketError::other(LISTEN, address.to_any(), source);
    // The owner has just removed it, so the path is free.
    let Some(found) = identity(path).map_err(io_failed)? else {
        return Ok(());
    };
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return Err(SocketError::NotASocket {
            address: address.to_any(),
        });
    }
    let failed = |cause| SocketError::listening(address, cause);
    let probe = address.socket().map_err(failed)?;
    match connect(&probe, &address.to_kernel().map_err(failed)?) {
        // No process listens. After any other answer, such as a full backlog, a process does.
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        _ => return Err(in_use()),
    }
    // Another server may have replaced the file since it was looked at.
    if identity(path).map_err(io_failed)? != Some(found) {
        return Err(in_use());
    }
    fs::remove_file(path).map_err(io_failed)
}

/// Returns device and inode of the file at a path, if there is one.
fn identity(path: &Path) -> io::Result<Option<(u64, u64)>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// The mode was set through the path, which another user of the directory could replace by a link.
    #[test]
    fn a_link_in_place_of_the_socket_file_changes_no_mode() {
        let directory = tempfile::tempdir().unwrap();
        let [victim, path] = ["victim", "socket"].map(|name| directory.path().join(name));
        let mode_of = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        for file in [&victim, &path] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let bound = identity(&path).unwrap().unwrap();
        set_mode(&path, bound, Mode::from_raw_mode(0o640)).unwrap();
        assert_eq!(mode_of(&path), 0o640);

        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        // The link may have the number of the removed file. Then the kernel refuses, because a link has no mode.
        let refused = set_mode(&path, bound, Mode::from_raw_mode(0o666));
        assert!(refused.is_err());
        assert_eq!(mode_of(&victim), 0o600);
    }
}
