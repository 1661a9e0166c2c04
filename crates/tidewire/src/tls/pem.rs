//! Certificates and keys from files or bytes in PEM.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as FormatError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::error::TlsError;
use tidewire_io::trusted::{FileState, OpenError, Trust, open_trusted};

/// Certificates or a key in PEM. A path converts into it. [`TlsError`](crate::tls::TlsError) has an example.
#[derive(Clone)]
pub enum Pem {
    /// A file. It is read again when it has changed.
    File(PathBuf),
    /// The content of a file.
    Bytes(Arc<[u8]>),
}

/// The part of the settings that a file is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum PemPart {
    /// The certificate chain of this side.
    Chain,
    /// The key of this side.
    Key,
    /// The certificates of trusted authorities.
    Authorities,
}

impl PemPart {
    fn name(self) -> &'static str {
        match self {
            Self::Chain => "certificate",
            Self::Key => "key",
            Self::Authorities => "CA file",
        }
    }
}

impl Pem {
    /// The content of a file.
    pub fn bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self::Bytes(bytes.into())
    }

    pub(super) fn origin(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Bytes(_) => "given as bytes".to_owned(),
        }
    }

    /// The state of the file, for a later comparison. `None` if there is no file, or none at this moment.
    pub(super) fn file_state(&self) -> Option<FileState> {
        let Self::File(path) = self else { return None };
        FileState::of(path)
    }

    /// Reads one or more certificates.
    pub(super) fn certificates(
        &self,
        part: PemPart,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.read(part)?;
        let entries: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        let entries = entries.map_err(|error| self.malformed(part, &error))?;
        match entries.is_empty() {
            true => Err(self.empty(part)),
            false => Ok(entries),
        }
    }

    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let part = PemPart::Key;
        PrivateKeyDer::from_pem_slice(&self.read(part)?).map_err(|error| match error {
            FormatError::NoItemsFound => self.empty(part),
            error => self.malformed(part, &error),
        })
    }

    pub(super) fn read(&self, part: PemPart) -> Result<Vec<u8>, TlsError> {
        let limit = match part {
            PemPart::Chain => CHAIN_BYTES_MAX,
            PemPart::Key => KEY_BYTES_MAX,
            PemPart::Authorities => AUTHORITIES_BYTES_MAX,
        };
        let bytes = match self {
            Self::File(path) => read_file(path, part, limit)?,
            Self::Bytes(bytes) => bytes.to_vec(),
        };
        match bytes.len() > limit {
            true => Err(TlsError::TooLong {
                part: part.name(),
                origin: self.origin(),
                limit,
            }),
            false => Ok(bytes),
        }
    }

    fn empty(&self, part: PemPart) -> TlsError {
        TlsError::Empty {
            part: part.name(),
            origin: self.origin(),
            label: match part {
                PemPart::Key => "PRIVATE KEY",
                PemPart::Chain | PemPart::Authorities => "CERTIFICATE",
            },
        }
    }

    fn malformed(&self, part: PemPart, error: &FormatError) -> TlsError {
        TlsError::Malformed {
            part: part.name(),
            origin: self.origin(),
            detail: error.to_string(),
        }
    }
}

/// Reads a file up to one byte beyond the limit.
fn read_file(path: &Path, part: PemPart, limit: usize) -> Result<Vec<u8>, TlsError> {
    let unreadable = |source| TlsError::Unreadable {
        part: part.name(),
        path: path.display().to_string(),
        source,
    };
    let refused = |error| match error {
        OpenError::Io(source) => unreadable(source),
        source => TlsError::Untrusted {
            part: part.name(),
            source: source.into(),
        },
    };
    let file = match part {
        PemPart::Key => open_trusted(path, Trust::Secret).map_err(refused)?,
        PemPart::Authorities => open_trusted(path, Trust::Decides).map_err(refused)?,
        // A certificate is public, and a false certificate does not fit the key.
        PemPart::Chain => File::open(path).map_err(unreadable)?,
    };
    let mut bytes = Vec::new();
    let mut limited = file.take(limit as u64 + 1);
    limited.read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

impl From<PathBuf> for Pem {
    fn from(path: PathBuf) -> Self {
        Self::File(path)
    }
}

impl From<&Path> for Pem {
    fn from(path: &Path) -> Self {
        Self::File(path.to_owned())
    }
}

impl From<&str> for Pem {
    fn from(path: &str) -> Self {
        Self::File(path.into())
    }
}

impl From<String> for Pem {
    fn from(path: String) -> Self {
        Self::File(path.into())
    }
}

/// The bytes may be a key, so only the path is shown.
impl fmt::Debug for Pem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.origin())
    }
}

/// Longest file with a certificate chain. TLS itself carries at most 64 KiB of certificates.
const CHAIN_BYTES_MAX: usize = 128 << 10;

/// Longest file with a key. A long RSA key takes 6 KiB.
const KEY_BYTES_MAX: usize = 64 << 10;

/// Longest file with authorities. Those of the system take some 250 KiB.
const AUTHORITIES_BYTES_MAX: usize = 4 << 20;
