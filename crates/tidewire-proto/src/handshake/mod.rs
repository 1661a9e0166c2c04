//! The handshake of TW1: a client's hello, a server's welcome, and the agreement.
//!
//! Problem: before either end trusts the other, both must agree on the protocol, its version and its limits. An
//! untrusted peer must not be able to make this side hold much memory or wait long. Approach: the first frame in each
//! direction is an ordinary TW1 frame with a magic and fixed fields at its front, bounded by [`HELLO_BYTES_MAX`].
//! Everything here is a function of bytes; timeouts are the caller's.
//! ```text
//!  client                                server
//!    | -- Hello (version, features, limits, credentials) --> |
//!    |                                                       |  accept: lower version, common features,
//!    | <-- Welcome (what was agreed) ----------------------- |          smaller frame limit
//! ```
//!
//! Rejected: a magic outside the frames, because the decoder would need a state before the first frame. Rejected:
//! negotiation in several rounds, because one offer and one answer are enough, and each round costs a round trip.

mod error;
mod first_bytes;

use std::fmt;

pub use error::{HandshakeError, classify_garbage};
pub use first_bytes::FirstBytes;

use crate::body::{Reader, push_short_text};
use crate::error::EncodeError;
use crate::limits::{
    CREDENTIALS_BYTES_MAX, FRAME_BYTES_MIN, HELLO_BYTES_MAX, LONG_CREDENTIALS_BYTES_MAX,
    LONG_HELLO_BYTES_MAX,
};
use crate::message::Kind;
use crate::text::is_hazardous;

/// The first frame of a client.
///
/// Layout of the payload: magic `54 57 31 00`, u16 version, u32 features, u32 frame_bytes_max, u16 length and bytes of
/// the credentials, u8 length and bytes of the agent. Fields of a later version follow. This version ignores them, so
/// it can answer with its own version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Newest version the client speaks; it speaks all older ones that are still in use.
    pub version: u16,
    /// Optional features the client can use, one bit each.
    pub features: u32,
    /// Largest whole frame the client accepts and will send, in bytes.
    pub frame_bytes_max: u32,
    /// Data by which the server identifies the client; may be empty. `Debug` never shows it.
    pub credentials: &'a [u8],
    /// Name and version of the client's software, for logs.
    pub agent: &'a str,
}

impl<'a> Hello<'a> {
    /// Appends the whole TW1 frame to `out`.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if the credentials or the agent are too long; `out` is unchanged.
    pub fn encode_frame(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        encode_frame(Kind::Hello, out, |out| self.encode(out))
    }

    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// As [`Hello::encode_frame`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let limit = credentials_bytes_max(self.features);
        if self.credentials.len() > limit {
            return Err(EncodeError::TextTooLong {
                bytes: self.credentials.len(),
                limit,
            });
        }
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.features.to_le_bytes());
        out.extend_from_slice(&self.frame_bytes_max.to_le_bytes());
        // The limit above is less than 65,536, so the cast is exact.
        out.extend_from_slice(&(self.credentials.len() as u16).to_le_bytes());
        out.extend_from_slice(self.credentials);
        push_short_text(self.agent, out).inspect_err(|_| out.truncate(start))
    }

    /// Reads the payload of a `Hello` frame.
    ///
    /// # Errors
    /// [`HandshakeError::BadMagic`], [`HandshakeError::TooLarge`], [`HandshakeError::CredentialsTooLong`] or
    /// [`HandshakeError::Malformed`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, HandshakeError> {
        if payload.len() > LONG_HELLO_BYTES_MAX {
            return Err(HandshakeError::TooLarge);
        }
        let mut reader = Reader::new(payload);
        let magic = reader.array().ok_or(HandshakeError::Malformed)?;
        if magic != MAGIC {
            return Err(HandshakeError::BadMagic);
        }
        let version = reader.u16().ok_or(HandshakeError::Malformed)?;
        let features = reader.u32().ok_or(HandshakeError::Malformed)?;
        let frame_bytes_max = reader.u32().ok_or(HandshakeError::Malformed)?;
        let bytes = reader.u16().ok_or(HandshakeError::Malformed)?;
        check_credentials(bytes, LONG_CREDENTIALS_BYTES_MAX)?;
        let credentials = reader
            .bytes(usize::from(bytes))
            .ok_or(HandshakeError::Malformed)?;
        let agent = read_agent(&mut reader)?;
        check_end(&reader, version)?;
        Ok(Self {
            version,
            features,
            frame_bytes_max,
            credentials,
            agent,
        })
    }
}

impl fmt::Debug for Hello<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Hello")
            .field("version", &self.version)
            .field("features", &self.features)
            .field("frame_bytes_max", &self.frame_bytes_max)
            .field("credentials_bytes", &self.credentials.len())
            .field("agent", &self.agent)
            .finish()
    }
}

/// The server's answer to a [`Hello`]: the values of this connection.
///
/// Layout of the payload: u16 version, u32 features, u32 frame_bytes_max, u32 heartbeat_ms, u64 session,
/// u8 length and bytes of the agent, and u64 expires_in_ms if [`FEATURE_RENEWAL`] is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome<'a> {
    /// The version of the connection.
    pub version: u16,
    /// The features both can use.
    pub features: u32,
    /// Largest whole frame on this connection, in bytes.
    pub frame_bytes_max: u32,
    /// A client that sent nothing for this long sends a ping; 0 means never.
    pub heartbeat_ms: u32,
    /// Number of the session, for logs on both sides.
    pub session: u64,
    /// Name and version of the server's software, for logs.
    pub agent: &'a str,
    /// Milliseconds until the client's credentials expire, 0 for never. On the wire only if [`FEATURE_RENEWAL`] is in
    /// use.
    pub expires_in_ms: u64,
}

impl<'a> Welcome<'a> {
    /// Appends the whole TW1 frame to `out`.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if the agent is longer than 255 bytes; `out` is unchanged.
    pub fn encode_frame(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        encode_frame(Kind::Welcome, out, |out| self.encode(out))
    }

    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// As [`Welcome::encode_frame`].
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.features.to_le_bytes());
        out.extend_from_slice(&self.frame_bytes_max.to_le_bytes());
        out.extend_from_slice(&self.heartbeat_ms.to_le_bytes());
        out.extend_from_slice(&self.session.to_le_bytes());
        push_short_text(self.agent, out).inspect_err(|_| out.truncate(start))?;
        if self.features & FEATURE_RENEWAL != 0 {
            out.extend_from_slice(&self.expires_in_ms.to_le_bytes());
        }
        Ok(())
    }

    /// Reads the payload of a `Welcome` frame.
    ///
    /// # Errors
    /// [`HandshakeError::UnsupportedVersion`] if the server chose a version this side does not speak,
    /// [`HandshakeError::LimitTooSmall`], [`HandshakeError::TooLarge`] or [`HandshakeError::Malformed`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, HandshakeError> {
        if payload.len() > HELLO_BYTES_MAX {
            return Err(HandshakeError::TooLarge);
        }
        let mut reader = Reader::new(payload);
        let version = reader.u16().ok_or(HandshakeError::Malformed)?;
        if version != PROTOCOL_VERSION {
            return Err(unsupported(version));
        }
        let features = reader.u32().ok_or(HandshakeError::Malformed)?;
        let frame_bytes_max = reader.u32().ok_or(HandshakeError::Malformed)?;
        let heartbeat_ms = reader.u32().ok_or(HandshakeError::Malformed)?;
        let session = reader.u64().ok_or(HandshakeError::Malformed)?;
        let agent = read_agent(&mut reader)?;
        let expires_in_ms = match features & FEATURE_RENEWAL {
            0 => 0,
            _ => reader.u64().ok_or(HandshakeError::Malformed)?,
        };
        check_end(&reader, version)?;
        check_frame_limit(frame_bytes_max)?;
        Ok(Self {
            version,
            features,
            frame_bytes_max,
            heartbeat_ms,
            session,
            agent,
            expires_in_ms,
        })
    }
}

/// The offer of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Optional features the server has, one bit each.
    pub features: u32,
    /// Largest whole frame the server accepts and will send, in bytes.
    pub frame_bytes_max: u32,
    /// Heartbeat interval of clients; 0 for none.
    pub heartbeat_ms: u32,
}

/// The agreed values of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The version of both sides.
    pub version: u16,
    /// The features of both sides.
    pub features: u32,
    /// The smaller of both frame limits, in bytes.
    pub frame_bytes_max: u32,
}

/// Computes the agreement of a server with this hello.
///
/// # Errors
/// [`HandshakeError::UnsupportedVersion`], [`HandshakeError::LimitTooSmall`], or [`HandshakeError::CredentialsTooLong`]
/// if the offer has no long credentials.
pub fn accept(hello: &Hello<'_>, offer: &Offer) -> Result<Agreed, HandshakeError> {
    // A newer client also speaks this version; there is no version older than the first.
    if hello.version < PROTOCOL_VERSION {
        return Err(unsupported(hello.version));
    }
    check_frame_limit(hello.frame_bytes_max)?;
    let bytes = u16::try_from(hello.credentials.len()).unwrap_or(u16::MAX);
    check_credentials(bytes, credentials_bytes_max(offer.features))?;
    Ok(Agreed {
        version: PROTOCOL_VERSION,
        features: hello.features & offer.features,
        frame_bytes_max: hello.frame_bytes_max.min(offer.frame_bytes_max),
    })
}

/// Appends the TW1 frame of a body, whose header has no id.
fn encode_frame(
    kind: Kind,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind as u8, 0, 0, 0]);
    write(out).inspect_err(|_| out.truncate(start))?;
    // A body has at most some 8,500 bytes, so the cast is exact.
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// Reads the agent. It goes into logs, so it must not contain hazardous characters.
fn read_agent<'a>(reader: &mut Reader<'a>) -> Result<&'a str, HandshakeError> {
    let agent = reader.short_text();
    agent
        .filter(|agent| !agent.chars().any(is_hazardous))
        .ok_or(HandshakeError::Malformed)
}

/// Checks that nothing follows the last field. Only a newer version may have more.
fn check_end(reader: &Reader<'_>, version: u16) -> Result<(), HandshakeError> {
    match reader.is_empty() || version > PROTOCOL_VERSION {
        true => Ok(()),
        false => Err(HandshakeError::Malformed),
    }
}

fn check_frame_limit(bytes: u32) -> Result<(), HandshakeError> {
    if bytes < FRAME_BYTES_MIN {
        return Err(HandshakeError::LimitTooSmall {
            bytes,
            least: FRAME_BYTES_MIN,
        });
    }
    Ok(())
}

/// The longest credentials in a hello with these features.
const fn credentials_bytes_max(features: u32) -> usize {
    match features & FEATURE_LONG_CREDENTIALS {
        0 => CREDENTIALS_BYTES_MAX,
        _ => LONG_CREDENTIALS_BYTES_MAX,
    }
}

fn check_credentials(bytes: u16, bytes_max: usize) -> Result<(), HandshakeError> {
    if usize::from(bytes) > bytes_max {
        // Both limits are below 65,536, so the cast is exact.
        let bytes_max = bytes_max as u16;
        return Err(HandshakeError::CredentialsTooLong { bytes, bytes_max });
    }
    Ok(())
}

const fn unsupported(theirs: u16) -> HandshakeError {
    HandshakeError::UnsupportedVersion {
        theirs,
        ours: PROTOCOL_VERSION,
    }
}

/// The TW1 version of this crate.
pub const PROTOCOL_VERSION: u16 = 1;

/// The feature of clients that renew their credentials: they may send a hello again while the connection is open, and
/// each welcome says when the credentials expire.
pub const FEATURE_RENEWAL: u32 = 1;

/// The feature of clients that follow the address of another server in a go-away; see
/// [`MovedBody`](crate::body::MovedBody).
pub const FEATURE_MOVED: u32 = 2;
/// The feature of clients that know positions: they may join rooms and subscribe to topics that keep a history.
pub const FEATURE_POSITIONS: u32 = 1 << 2;
/// The feature of clients that know placements: their server may put them into rooms and subscriptions, and reports it;
/// see [`PlacementBody`](crate::body::PlacementBody).
pub const FEATURE_PLACEMENT: u32 = 1 << 3;

/// The feature of connections that are encrypted: credentials may have up to [`LONG_CREDENTIALS_BYTES_MAX`] bytes.
pub const FEATURE_LONG_CREDENTIALS: u32 = 1 << 4;

/// The first bytes of a hello's payload.
pub const MAGIC: [u8; 4] = *b"TW1\0";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Codec, Decoded, Tw1};

    fn hello() -> Hello<'static> {
        Hello {
            version: PROTOCOL_VERSION,
            features: 0b10_0011,
            frame_bytes_max: 4096,
            credentials: b"secret",
            agent: "test/1",
        }
    }

    fn payload_of(frame: &[u8]) -> &[u8] {
        match Tw1.decode(frame, HELLO_BYTES_MAX) {
            Ok(Decoded::Frame { message, consumed }) if consumed == frame.len() => message.payload,
            other => panic!("no whole frame: {other:?}"),
        }
    }

    #[test]
    fn a_hello_survives_the_wire() {
        let mut out = Vec::new();
        hello().encode_frame(&mut out).unwrap();
        assert_eq!(Hello::decode(payload_of(&out)), Ok(hello()));
        for end in 0..payload_of(&out).len() {
            assert_eq!(
                Hello::decode(&payload_of(&out)[..end]),
                Err(HandshakeError::Malformed)
            );
        }
    }

    #[test]
    fn the_largest_hello_fits_its_limit() {
        let credentials = [7; CREDENTIALS_BYTES_MAX];
        let agent = "a".repeat(255);
        let mut out = Vec::new();
        let largest = Hello {
            credentials: &credentials,
            agent: &agent,
            ..hello()
        };
        largest.encode_frame(&mut out).unwrap();
        assert!(out.len() <= HELLO_BYTES_MAX);
        assert_eq!(Hello::decode(payload_of(&out)), Ok(largest));

        let too_long = Hello {
            credentials: &[7; CREDENTIALS_BYTES_MAX + 1],
            ..hello()
        };
        let before = out.clone();
        assert!(too_long.encode_frame(&mut out).is_err());
        assert_eq!(out, before);
    }

    #[test]
    fn credentials_over_their_limit_are_refused_by_the_reader_too() {
        let mut out = Vec::new();
        let full = [7; CREDENTIALS_BYTES_MAX];
        Hello {
            credentials: &full,
            ..hello()
        }
        .encode_frame(&mut out)
        .unwrap();
        let mut payload = payload_of(&out).to_vec();
        // One byte more, in the length field as well as in the credentials.
        let length = CREDENTIALS_BYTES_MAX as u16 + 1;
        payload[14..16].copy_from_slice(&length.to_le_bytes());
        payload.insert(16, 7);
        let too_long = HandshakeError::CredentialsTooLong {
            bytes: CREDENTIALS_BYTES_MAX as u16 + 1,
            bytes_max: CREDENTIALS_BYTES_MAX as u16,
        };
        let offer = Offer {
            features: 0,
            frame_bytes_max: 1 << 20,
            heartbeat_ms: 0,
        };
        let hello = Hello::decode(&payload).unwrap();
        assert_eq!(accept(&hello, &offer), Err(too_long));
        assert!(too_long.to_string().contains("1025 bytes"), "{too_long}");
    }

    #[test]
    fn long_credentials_are_taken_where_the_server_offers_them() {
        let agent = "a".repeat(255);
        let longest = Hello {
            features: FEATURE_LONG_CREDENTIALS,
            credentials: &[7; LONG_CREDENTIALS_BYTES_MAX],
            agent: &agent,
            ..hello()
        };
        let mut out = Vec::new();
        longest.encode_frame(&mut out).unwrap();
        assert!(out.len() > HELLO_BYTES_MAX && out.len() <= LONG_HELLO_BYTES_MAX);
        let payload = match Tw1.decode(&out, LONG_HELLO_BYTES_MAX) {
            Ok(Decoded::Frame { message, .. }) => message.payload,
            other => panic!("no whole frame: {other:?}"),
        };
        assert_eq!(Hello::decode(payload), Ok(longest));
        let offer = |features| Offer {
            features,
            frame_bytes_max: 1 << 20,
            heartbeat_ms: 0,
        };
        assert!(accept(&longest, &offer(FEATURE_LONG_CREDENTIALS)).is_ok());
        let too_long = HandshakeError::CredentialsTooLong {
            bytes: LONG_CREDENTIALS_BYTES_MAX as u16,
            bytes_max: CREDENTIALS_BYTES_MAX as u16,
        };
        assert_eq!(accept(&longest, &offer(0)), Err(too_long));
        // A client that does not say the feature has it, too: the server's connection decides.
        let mut without = payload.to_vec();
        without[6..10].copy_from_slice(&0_u32.to_le_bytes());
        let without = Hello::decode(&without).unwrap();
        assert!(accept(&without, &offer(FEATURE_LONG_CREDENTIALS)).is_ok());
        assert_eq!(accept(&without, &offer(0)), Err(too_long));
        let longer = Hello {
            credentials: &[7; LONG_CREDENTIALS_BYTES_MAX + 1],
            ..longest
        };
        assert!(longer.encode_frame(&mut out).is_err());
    }

    #[test]
    fn credentials_are_not_shown() {
        let shown = format!("{:?}", hello());
        assert!(
            shown.contains("credentials_bytes: 6") && !shown.contains("secret"),
            "{shown}"
        );
    }

    #[test]
    fn both_sides_get_the_common_ground() {
        let offer = Offer {
            features: 0b0110,
            frame_bytes_max: 1 << 20,
            heartbeat_ms: 0,
        };
        let agreed = Agreed {
            version: 1,
            features: 0b0010,
            frame_bytes_max: 4096,
        };
        assert_eq!(accept(&hello(), &offer), Ok(agreed));

        let newer = Hello {
            version: 9,
            ..hello()
        };
        assert_eq!(accept(&newer, &offer), Ok(agreed));
        let older = Hello {
            version: 0,
            ..hello()
        };
        assert_eq!(
            accept(&older, &offer),
            Err(HandshakeError::UnsupportedVersion { theirs: 0, ours: 1 })
        );
        let tiny = Hello {
            frame_bytes_max: 0,
            ..hello()
        };
        assert_eq!(
            accept(&tiny, &offer),
            Err(HandshakeError::LimitTooSmall {
                bytes: 0,
                least: FRAME_BYTES_MIN
            })
        );
    }

    #[test]
    fn only_later_versions_may_append_fields() {
        for (version, expected) in [(1, Err(HandshakeError::Malformed)), (2, Ok(2))] {
            let mut out = Vec::new();
            Hello { version, ..hello() }.encode_frame(&mut out).unwrap();
            let mut payload = payload_of(&out).to_vec();
            payload.push(0);
            assert_eq!(Hello::decode(&payload).map(|hello| hello.version), expected);
        }
    }

    #[test]
    fn a_welcome_in_another_version_is_refused() {
        let welcome = Welcome {
            version: 2,
            features: 0,
            frame_bytes_max: 4096,
            heartbeat_ms: 0,
            session: 1,
            agent: "test/1",
            expires_in_ms: 0,
        };
        let mut out = Vec::new();
        welcome.encode_frame(&mut out).unwrap();
        assert_eq!(
            Welcome::decode(payload_of(&out)),
            Err(HandshakeError::UnsupportedVersion { theirs: 2, ours: 1 })
        );
        out.clear();
        let welcome = Welcome {
            version: 1,
            ..welcome
        };
        welcome.encode_frame(&mut out).unwrap();
        assert_eq!(Welcome::decode(payload_of(&out)), Ok(welcome));
    }

    #[test]
    fn an_agent_cannot_write_into_logs() {
        let mut out = Vec::new();
        Hello {
            agent: "a\nERROR forged",
            ..hello()
        }
        .encode_frame(&mut out)
        .unwrap();
        assert_eq!(
            Hello::decode(payload_of(&out)),
            Err(HandshakeError::Malformed)
        );
    }
}
