//! TLS for rivals: the settings of tokio-rustls, which are those of all contenders, and files for servers of other
//! projects.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::pki_types::ServerName;
pub use tidewire_bench::certificates::SERVER_NAME;
use tidewire_bench::certificates::{client_config, own, server_config};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The files of a server: its certificate, its key, and the certificate of the authority.
#[derive(Debug)]
pub struct Files {
    /// The certificate of the server.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificate of the authority.
    pub authority: PathBuf,
}

impl Files {
    /// Writes the files of a server at this port into the directory of temporary files, which the benchmark removes.
    ///
    /// # Errors
    /// The certificates cannot be made, or the files not written.
    pub fn write(port: u16) -> Result<Self> {
        let certificates = own()?;
        let server = &certificates.server;
        let files = Self::of(port);
        for (path, text) in [
            (&files.certificate, &server.certificate),
            (&files.key, &server.key),
            (&files.authority, &certificates.authority),
        ] {
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600);
            let written = file
                .open(path)
                .and_then(|mut file| file.write_all(text.as_bytes()));
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(files)
    }

    /// The files of the server at this port.
    #[must_use]
    pub fn of(port: u16) -> Self {
        let path = |name| std::env::temp_dir().join(format!("tidewire-peer-{port}-{name}.pem"));
        Self {
            certificate: path("server"),
            key: path("key"),
            authority: path("authority"),
        }
    }
}

pub(crate) fn acceptor() -> Result<TlsAcceptor> {
    Ok(TlsAcceptor::from(Arc::new(server_config(false)?)))
}

pub(crate) async fn connect(stream: TcpStream) -> Result<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(Arc::new(client_config()?));
    let name = ServerName::try_from(SERVER_NAME)?;
    connector
        .connect(name, stream)
        .await
        .context("the handshake of TLS")
}
