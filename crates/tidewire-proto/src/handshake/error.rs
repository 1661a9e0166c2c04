//! Why handshakes fail, in words that tell the reader what to change.
//!
//! The most common failure is not an attack but a wrong port or a wrong `--codec`. First bytes that are no hello are
//! therefore examined again, and the error names their probable protocol; see [`FirstBytes`].

use thiserror::Error;

use super::{FirstBytes, MAGIC};
use crate::body::{ErrorCode, Reader};
use crate::limits::{CREDENTIALS_BYTES_MAX, FRAME_BYTES_MAX, LONG_CREDENTIALS_BYTES_MAX};
use crate::message::Kind;

/// Why a handshake failed. The connection is closed; no message was exchanged on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The hello does not start with the magic; the peer speaks another protocol.
    #[error("the hello does not start with the TW1 magic: the peer speaks another protocol")]
    BadMagic,
    /// No common version; upgrade the older side.
    #[error("the peer speaks TW1 version {theirs}, this side {ours}: upgrade the older side")]
    UnsupportedVersion {
        /// The version of the peer.
        theirs: u16,
        /// The version of this side.
        ours: u16,
    },
    /// The first frame exceeds the limit of a handshake.
    #[error(
        "the peer's first frame is too large for a handshake: its credentials may have {CREDENTIALS_BYTES_MAX} bytes, \
         over tls:// and wss:// {LONG_CREDENTIALS_BYTES_MAX}"
    )]
    TooLarge,
    /// The credentials are longer than this connection takes.
    #[error(
        "the credentials have {bytes} bytes, and this connection takes {bytes_max}: over tls:// and wss:// they may \
         have {LONG_CREDENTIALS_BYTES_MAX}"
    )]
    CredentialsTooLong {
        /// The credentials' length.
        bytes: u16,
        /// The longest that is taken.
        bytes_max: u16,
    },
    /// The first frame's inner layout is broken.
    #[error("the peer's handshake frame is malformed")]
    Malformed,
    /// The peer announced a frame limit that is too small for control frames; raise it there.
    #[error(
        "the peer's frame limit of {bytes} bytes is below the least possible, {least}: raise it there"
    )]
    LimitTooSmall {
        /// The limit of the peer.
        bytes: u32,
        /// The smallest possible limit.
        least: u32,
    },
    /// The client's first frame was of another kind.
    #[error("expected a hello first, got a {kind:?} frame: the client skipped the handshake")]
    ExpectedHello {
        /// Kind of the first frame.
        kind: Kind,
    },
    /// The server's first frame was of another kind.
    #[error("expected a welcome first, got a {kind:?} frame: the server skipped the handshake")]
    ExpectedWelcome {
        /// Kind of the first frame.
        kind: Kind,
    },
    /// The server answered the hello with an error; its text says more.
    #[error("the server refused the hello: {code}")]
    Refused {
        /// The reason, for programs.
        code: ErrorCode,
    },
    /// The first bytes are no frame of the codec.
    #[error("the peer speaks another protocol: {looks_like}")]
    OtherProtocol {
        /// The protocol that the first bytes look like.
        looks_like: FirstBytes,
    },
}

/// Classifies first bytes that cannot be a hello, for a helpful error.
///
/// `bytes` are the first bytes, also fewer than a header.
#[must_use]
pub fn classify_garbage(bytes: &[u8]) -> HandshakeError {
    let looks_like = FirstBytes::of(bytes);
    if looks_like != FirstBytes::Unknown {
        return HandshakeError::OtherProtocol { looks_like };
    }
    let mut reader = Reader::new(bytes);
    let length = reader.u32().unwrap_or(u32::MAX);
    let kind = reader.u8().and_then(Kind::from_wire);
    let flags_and_channel = reader.array::<3>();
    match kind {
        Some(Kind::Hello) if flags_and_channel.is_some() && reader.array() == Some(MAGIC) => {
            HandshakeError::TooLarge
        }
        // A plausible frame of another kind: a TW1 peer that skipped its hello.
        Some(kind) if kind != Kind::Hello && (length as usize) < FRAME_BYTES_MAX => {
            HandshakeError::ExpectedHello { kind }
        }
        _ => HandshakeError::OtherProtocol { looks_like },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_named_by_its_protocol() {
        let other = |looks_like| HandshakeError::OtherProtocol { looks_like };
        let (http, text) = (other(FirstBytes::Http), other(FirstBytes::Text));
        let binary = other(FirstBytes::Unknown);
        let mut oversized = vec![0xFF, 0xFF, 0, 0, Kind::Hello as u8, 0, 0, 0];
        oversized.extend_from_slice(&MAGIC);
        let cases: [(&[u8], HandshakeError); 9] = [
            (b"GET / HTTP/1.1\r\n", http),
            (b"hi\n", text),
            ("Grüß Gott 王".as_bytes(), text),
            (b"", binary),
            (&[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01], binary),
            (&[0, 0, 0], binary),
            (&[0, 0, 0xFF, 0, Kind::Say as u8, 0, 0, 0], binary),
            (
                &[0, 0x20, 0, 0, Kind::Say as u8, 0, 0, 0],
                HandshakeError::ExpectedHello { kind: Kind::Say },
            ),
            (&oversized, HandshakeError::TooLarge),
        ];
        for (bytes, expected) in cases {
            assert_eq!(classify_garbage(bytes), expected, "{bytes:?}");
        }
        assert!(text.to_string().contains("--codec lines"));
        assert!(
            http.to_string()
                .starts_with("the peer speaks another protocol: its first bytes look like HTTP;")
        );
    }
}
