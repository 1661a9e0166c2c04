//! TLS as a layer: rustls between the bytes of the socket and the plaintext of the codec.
//!
//! Bytes are copied once on each way, from and to the buffers of rustls. It allocates for each record, and a record
//! holds all that waited, up to 16 KiB of it.

use std::io::{BufRead, IoSlice, Write};

use rustls::{
    AlertDescription, CertificateError, Connection, Error, HandshakeKind, InvalidMessage,
    ProtocolVersion,
};
use tidewire_proto::layer::{
    CertificateNames, Encryption, Ending, FailedLayer, Layer, LayerError, TlsFault, is_tls_record,
};
use tidewire_proto::text::escaped;

#[derive(Debug)]
pub(super) struct TlsLayer {
    connection: Connection,
    /// The names in the peer's certificate, from the end of the handshake on.
    certificate: Option<CertificateNames>,
    /// The peer's first bytes were no record.
    is_plain_peer: bool,
    /// Bytes that were received before the end of the handshake. rustls keeps parts of a message until the message is
    /// complete.
    handshake_bytes: usize,
    /// Memory of the peer's certificates, which rustls keeps, and of their names.
    chain_bytes: usize,
    /// How often this side has answered during the handshake.
    answers: u8,
    has_ended: bool,
}

impl TlsLayer {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            certificate: None,
            is_plain_peer: false,
            handshake_bytes: 0,
            chain_bytes: 0,
            answers: 0,
            has_ended: false,
        }
    }

    /// Checks the peer's first bytes. Without it, a peer that sends less than the header of a record would wait until
    /// the handshake times out. Returns whether there are enough of them.
    fn check_first(&mut self, network: &[u8]) -> Result<bool, LayerError> {
        let may_be_record = match network {
            [kind] => RECORD_TYPES.contains(kind),
            [kind, major] => RECORD_TYPES.contains(kind) && *major == RECORD_MAJOR,
            _ => is_tls_record(network),
        };
        if !may_be_record {
            self.is_plain_peer = true;
            return Err(TlsFault::PlainText.into());
        }
        Ok(network.len() > 2)
    }

    /// Moves the decrypted bytes out of rustls.
    fn take_plain(&mut self, plain: &mut Vec<u8>) {
        let mut reader = self.connection.reader();
        // An error means that there is nothing to read, now or ever.
        while let Ok(bytes @ [_, ..]) = reader.fill_buf() {
            plain.extend_from_slice(bytes);
            let count = bytes.len();
            reader.consume(count);
        }
    }

    fn read_certificate(&mut self) {
        let certificates = self.connection.peer_certificates().unwrap_or_default();
        self.certificate = certificates
            .first()
            .and_then(|certificate| CertificateNames::of_der(certificate));
        let names = self.certificate.as_ref();
        let of_chain = certificates
            .iter()
            .map(|certificate| size_of_val(certificate) + certificate.len());
        self.chain_bytes =
            of_chain.sum::<usize>() + names.map_or(0, CertificateNames::memory_bytes);
    }
}

impl Layer for TlsLayer {
    fn receive(&mut self, network: &[u8], plain: &mut Vec<u8>) -> Result<usize, LayerError> {
        if self.handshake_bytes == 0 && !self.check_first(network)? {
            return Ok(0);
        }
        let was_ready = self.is_ready();
        let mut rest = network;
        // The call fails only if rustls still holds plaintext, which is taken below each time.
        let used = self
            .connection
            .read_tls(&mut rest)
            .map_err(|_| LayerError::Malformed)?;
        if !was_ready {
            self.handshake_bytes += used;
        }
        let state = self.connection.process_new_packets().map_err(explain)?;
        self.answers = self
            .answers
            .saturating_add(u8::from(!was_ready && state.tls_bytes_to_write() > 0));
        if state.plaintext_bytes_to_read() > 0 {
            self.take_plain(plain);
        }
        self.has_ended |= state.peer_has_closed();
        if !was_ready && self.is_ready() {
            self.read_certificate();
        }
        Ok(used)
    }

    fn send(&mut self, plain: &[IoSlice<'_>], network: &mut Vec<u8>) -> Result<usize, LayerError> {
        if !self.is_ready() {
            return Ok(0);
        }
        let sealed = self.connection.writer().write_vectored(plain);
        self.transmit(network);
        sealed.map_err(|_| LayerError::Malformed)
    }

    fn transmit(&mut self, network: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_plain_peer) {
            // This record shows a client in plain text the reason.
            network.extend_from_slice(&UNEXPECTED_MESSAGE);
            return;
        }
        while self.connection.wants_write() {
            // Writing to memory does not fail.
            let _ = self.connection.write_tls(network);
        }
    }

    fn is_ready(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// A server signs in its first answer, or in its second if the first requests another hello.
    fn awaits_costly_bytes(&self) -> bool {
        let Connection::Server(server) = &self.connection else {
            return false;
        };
        let asks_again = server.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
        server.is_handshaking() && self.answers <= u8::from(asks_again)
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn close(&mut self, _: Ending, network: &mut Vec<u8>) {
        self.connection.send_close_notify();
        self.transmit(network);
    }

    fn certificate(&self) -> Option<&CertificateNames> {
        self.certificate.as_ref()
    }

    fn encryption(&self) -> Option<Encryption> {
        if !self.is_ready() {
            return None;
        }
        let protocol = match self.connection.protocol_version()? {
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            ProtocolVersion::TLSv1_2 => "TLSv1.2",
            _ => return None,
        };
        let suite = self.connection.negotiated_cipher_suite()?.suite();
        Some(Encryption::new(
            protocol,
            suite.as_str().unwrap_or("unknown"),
        ))
    }

    fn memory_bytes(&self) -> usize {
        match self.is_ready() {
            true => SESSION_BYTES + self.chain_bytes,
            false => HANDSHAKE_BYTES + self.handshake_bytes.min(MESSAGES_BYTES_MAX),
        }
    }
}

/// The layer of a connection that cannot begin.
pub(super) fn failed(error: &Error) -> Box<dyn Layer> {
    tracing::error!(%error, "cannot begin TLS");
    Box::new(FailedLayer(TlsFault::NotReady.into()))
}

/// Converts an error into a fault for both operators. The log has the library's own text, which may contain names of
/// the peer.
fn explain(error: Error) -> LayerError {
    tracing::debug!(error = escaped(error.to_string().as_bytes()), "TLS failed");
    let fault = match error {
        // The peer gave up in order, before the handshake was over.
        Error::AlertReceived(AlertDescription::CloseNotify) => return LayerError::Truncated,
        Error::AlertReceived(alert) => TlsFault::Alert(alert.into()),
        Error::InvalidCertificate(error) => certificate_fault(&error),
        Error::NoCertificatesPresented => TlsFault::NoCertificate,
        Error::NoApplicationProtocol => TlsFault::OtherCodec,
        Error::PeerIncompatible(_) => TlsFault::Incompatible,
        Error::InvalidMessage(
            InvalidMessage::CertificatePayloadTooLarge | InvalidMessage::HandshakePayloadTooLarge,
        ) => TlsFault::ChainTooLong,
        Error::PeerSentOversizedRecord => return LayerError::RecordTooLong,
        _ => TlsFault::Malformed,
    };
    fault.into()
}

fn certificate_fault(error: &CertificateError) -> TlsFault {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsFault::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsFault::NotYetValid
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsFault::WrongHost
        }
        CertificateError::UnknownIssuer => TlsFault::UnknownIssuer,
        CertificateError::Revoked => TlsFault::Revoked,
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            TlsFault::WrongPurpose
        }
        // The verifier of the system has no public type for this error.
        CertificateError::Other(error) if error.to_string() == WRONG_PURPOSE => {
            TlsFault::WrongPurpose
        }
        _ => TlsFault::BadCertificate,
    }
}

/// A fatal alert in plain text: the answer to bytes that are no record.
const UNEXPECTED_MESSAGE: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];

/// The text of the system's verifier for a certificate of another purpose.
const WRONG_PURPOSE: &str = "certificate had invalid extensions";

/// The first byte of a record.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// The second byte of a record, the major version.
const RECORD_MAJOR: u8 = 3;

/// The memory of rustls for a connection at rest.
const SESSION_BYTES: usize = 12 << 10;

/// The memory of rustls for a handshake that has begun, beside the message that it receives.
const HANDSHAKE_BYTES: usize = 16 << 10;

/// The most bytes of a handshake that rustls holds: the peer's chain and the message that follows it. It accepts 64 KiB
/// of each.
const MESSAGES_BYTES_MAX: usize = 128 << 10;
