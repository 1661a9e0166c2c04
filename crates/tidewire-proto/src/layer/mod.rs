//! Layers over a byte stream, without input and output: TLS, WebSocket, or one over the other.
//!
//! Problem: TLS and WebSocket are both between the bytes of a socket and the frames of a codec, on servers and on
//! clients, and may be stacked. Approach: a [`Layer`] turns network bytes into plaintext and plaintext into network
//! bytes. It owns no socket, clock or thread. A [`Stack`] chains layers, keeps the bytes that wait between them, and
//! bounds their number.
//!
//! ```text
//!   socket ── receive ──▶ [ layer 0 ── plaintext ──▶ layer 1 ] ── read ──▶ codec
//!   socket ◀── unsent ─── [ layer 0 ◀── send ─────── layer 1 ] ◀── write ── output
//! ```
//!
//! # The contract of a layer
//!
//! - [`receive`](Layer::receive) may leave the beginning of a record unused. The stack keeps these bytes and offers
//!   them again with the next bytes, so a layer needs no buffer. A layer that keeps records itself uses all offered
//!   bytes.
//! - [`receive`](Layer::receive) and [`send`](Layer::send) append to their output; they never remove bytes. The bytes
//!   that a layer returned as used are accepted, and the stack counts them as output until the socket has taken them.
//! - A record is longer than its plaintext by at most an eighth and 256 bytes. A layer's own records (handshake,
//!   answers, alerts) are a few KiB: a layer that answers each request of its peer keeps only the newest answer.
//! - A layer that expands its input, as decompression does, stops after [`PLAIN_BYTES_MAX`] and leaves the rest unused.
//! - Before a layer [is ready](Layer::is_ready) it accepts nothing and yields no plaintext.
//!
//! There is no method for the events that a layer waits for. It waits to read until its peer has ended, and to write
//! when [`Stack::unsent`] is not empty. [`transmit`](Layer::transmit) leaves its handshake there.
//!
//! Rejected: layers that own a socket, because tests would need one; and a plaintext buffer in each layer, because each
//! buffer would need its own limit.

mod buffer;
mod certificate;
mod expiry;
mod forwarded;
mod stack;
mod tls_fault;
mod websocket_fault;

use std::fmt;
use std::io::IoSlice;
use std::net::IpAddr;

use thiserror::Error;

pub use certificate::CertificateNames;
pub use expiry::certificate_expiry;
pub use forwarded::Forwarded;
pub use stack::{OUTPUT_BYTES_MAX, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, Stack};
pub use tls_fault::{TlsFault, is_tls_record};
pub use websocket_fault::WebSocketFault;

/// One layer of one connection. See the [module](self) for the contract.
pub trait Layer: fmt::Debug + Send {
    /// Takes bytes from the network, or from the layer beneath, and appends their plaintext. Returns the number of used
    /// bytes. It is called again until it uses none.
    ///
    /// # Errors
    /// The connection failed. Bytes that [`Self::transmit`] appends after an error are still sent, if the socket
    /// takes them.
    fn receive(&mut self, network: &[u8], plain: &mut Vec<u8>) -> Result<usize, LayerError>;

    /// Appends plaintext as records for the network, or for the layer beneath. Returns the number of accepted bytes:
    /// all while the layer is ready and not closed, otherwise none.
    ///
    /// # Errors
    /// The connection failed.
    fn send(&mut self, plain: &[IoSlice<'_>], network: &mut Vec<u8>) -> Result<usize, LayerError>;

    /// The header before this many bytes of plaintext, if the layer sends plaintext unchanged after a header and keeps
    /// nothing of it. The plaintext is then sent from its place, without [`Self::send`] and without a copy.
    fn header(&self, plain_bytes: usize) -> Option<RecordHeader> {
        let _ = plain_bytes;
        None
    }

    /// Appends the layer's own records. It is called at the beginning and after each call of [`Self::receive`].
    fn transmit(&mut self, network: &mut Vec<u8>);

    /// Whether the layer has [pings](Self::ping).
    fn has_pings(&self) -> bool {
        false
    }

    /// Appends a record that the peer's layer answers, if this layer has such records and is ready. The answer is no
    /// plaintext.
    fn ping(&mut self, network: &mut Vec<u8>) {
        let _ = network;
    }

    /// Whether its handshake is over, so that plaintext may be sent. This never becomes false again.
    fn is_ready(&self) -> bool;

    /// Whether the next bytes of the peer may cost much computation, such as a signature of TLS. The owner then first
    /// checks whether the peer is still there, and spreads such work over time.
    fn awaits_costly_bytes(&self) -> bool {
        false
    }

    /// Whether its peer has announced that no more plaintext follows.
    fn has_ended(&self) -> bool;

    /// Whether its peer wanted a page and no connection. The page is among its own records, and the connection ends
    /// when they are sent.
    fn has_served_page(&self) -> bool {
        false
    }

    /// Appends the record that announces the end of the plaintext, and why, if the records can say that. It is called
    /// at most once.
    fn close(&mut self, why: Ending, network: &mut Vec<u8>);

    /// The names in the peer's certificate, if the layer has verified one.
    fn certificate(&self) -> Option<&CertificateNames> {
        None
    }

    /// The client that proxies named in the peer's handshake: the last address that is not a listed proxy. Any client
    /// can write such addresses, so ask only for a peer that is a listed proxy.
    fn forwarded_client(&self, is_listed: &dyn Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let _ = is_listed;
        None
    }

    /// The place of the codec that a client chose among those of this server, after its handshake. `None` if the layer
    /// leaves no choice.
    fn chosen_protocol(&self) -> Option<usize> {
        None
    }

    /// How the layer encrypts, after its handshake. `None` if it does not.
    fn encryption(&self) -> Option<Encryption> {
        None
    }

    /// The part of the peer's handshake that caused the refusal, for the log: escaped and short. `None` if the error
    /// says everything.
    fn refused_part(&self) -> Option<&str> {
        None
    }

    /// The memory that the layer holds itself, in bytes. The memory account of a server counts it.
    fn memory_bytes(&self) -> usize {
        0
    }
}

/// Why this side ends a connection, as far as a layer may tell the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// The connection did its work.
    #[default]
    InOrder,
    /// This side stops, or drains.
    GoingAway,
    /// The peer sent bytes that are not valid.
    Invalid,
    /// The peer sent a frame that is too long.
    TooLong,
    /// The peer broke the rules of this side, for example by silence or slowness.
    Forbidden,
    /// This side has too much to do or to keep; the peer may try again later.
    Overloaded,
    /// This side failed.
    Failed,
}

/// How a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Encryption {
    /// The protocol with its version, such as `TLSv1.3`.
    pub protocol: &'static str,
    /// The name of the cipher suite, such as `TLS13_AES_256_GCM_SHA384`.
    pub cipher_suite: &'static str,
}

impl Encryption {
    /// Names a protocol and a cipher suite.
    #[must_use]
    pub fn new(protocol: &'static str, cipher_suite: &'static str) -> Self {
        Self {
            protocol,
            cipher_suite,
        }
    }
}

/// The bytes in front of a record, at most 14.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordHeader {
    bytes: [u8; 14],
    count: usize,
}

impl RecordHeader {
    /// Appends bytes.
    ///
    /// # Panics
    /// There is no room for them.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.count..][..bytes.len()].copy_from_slice(bytes);
        self.count += bytes.len();
    }

    /// The header's bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.count]
    }
}

/// The error of a layer that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayerError {
    /// The bytes are not records of the layer, or were changed on their way.
    #[error("the bytes are not valid records")]
    Malformed,
    /// A record is longer than [`RECORD_BYTES_MAX`], or than the layer allows.
    #[error("a record is longer than allowed")]
    RecordTooLong,
    /// One side refused the other in the handshake of the layer.
    #[error("the handshake was refused")]
    Refused,
    /// The peer wanted the page of a WebSocket server, and got it.
    #[error("the peer got a page")]
    PageServed,
    /// The layer has more answers for its peer than [`OUTPUT_BYTES_MAX`], because the peer does not take them.
    #[error("the peer requests answers and does not read them")]
    Flood,
    /// The bytes beneath the layer ended before the layer did: the connection was cut.
    #[error("the connection was cut")]
    Truncated,
    /// TLS failed.
    #[error(transparent)]
    Tls(#[from] TlsFault),
    /// WebSocket failed.
    #[error(transparent)]
    WebSocket(#[from] WebSocketFault),
}

/// Stands in for a layer that could not be made, so that its connection fails and never becomes plaintext.
#[derive(Debug)]
pub struct FailedLayer(pub LayerError);

impl Layer for FailedLayer {
    fn receive(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<usize, LayerError> {
        Err(self.0)
    }

    fn send(&mut self, _: &[IoSlice<'_>], _: &mut Vec<u8>) -> Result<usize, LayerError> {
        Err(self.0)
    }

    fn transmit(&mut self, _: &mut Vec<u8>) {}

    fn is_ready(&self) -> bool {
        false
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn close(&mut self, _: Ending, _: &mut Vec<u8>) {}
}
