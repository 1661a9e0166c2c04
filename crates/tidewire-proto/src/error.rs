//! Errors of the sans-IO core. Those a peer can cause are small, `Copy`, comparable and allocate nothing.

use thiserror::Error;

/// Bytes from a peer that can never become a frame. The connection is closed with this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The header announces more than the limit allows, or no end of line came within the limit.
    #[error("frame of at least {bytes} bytes exceeds the limit of {limit} bytes")]
    FrameTooLarge {
        /// Length announced, or bytes seen without an end.
        bytes: u64,
        /// The limit in force.
        limit: u64,
    },
    /// The length field is smaller than the rest of the header.
    #[error("frame length {bytes} is shorter than its header")]
    FrameTooShort {
        /// Length announced.
        bytes: u64,
    },
    /// The kind byte is not one of the protocol's.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A payload's inner layout is broken.
    #[error("malformed payload of a {kind:?} frame")]
    MalformedPayload {
        /// The kind of frame whose payload it was.
        kind: crate::message::Kind,
    },
    /// The frame does not start with the constant bytes agreed on; the peer speaks something else.
    #[error("frame differs from the agreed header at byte {at}")]
    HeaderMismatch {
        /// Place of the first byte that differs, counted from 0.
        at: u8,
    },
    /// The frame's own structure is broken, so that not even its kind is known.
    #[error("malformed frame")]
    MalformedFrame,
}

/// A message this codec cannot express. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The payload does not fit the frame's length field or the frame limit.
    #[error("payload of {bytes} bytes does not fit a frame (limit {limit})")]
    PayloadTooLarge {
        /// Bytes offered.
        bytes: u64,
        /// Most that fits.
        limit: u64,
    },
    /// The codec has no such kind of frame.
    #[error("codec {codec} has no {kind:?} frames")]
    Unsupported {
        /// Name of the codec.
        codec: &'static str,
        /// The kind asked for.
        kind: crate::message::Kind,
    },
    /// A string field is longer than its one-byte length allows.
    #[error("text field of {bytes} bytes exceeds {limit} bytes")]
    TextTooLong {
        /// Bytes offered.
        bytes: usize,
        /// Most that fits.
        limit: usize,
    },
    /// The payload contains the codec's delimiter, so the receiver would see several frames.
    #[error("payload contains the delimiter of codec {codec}")]
    ContainsDelimiter {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The payload is not a valid body of its kind, so the codec cannot say it in its own way.
    #[error("payload is not a valid body of a {kind:?} frame")]
    InvalidBody {
        /// The kind of frame whose payload it was.
        kind: crate::message::Kind,
    },
    /// The codec has no names of methods and topics; say it in the payload or the channel.
    #[error("codec {codec} has no names of methods and topics")]
    NameUnsupported {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The codec cannot express a message without payload.
    #[error("codec {codec} has no empty frames")]
    EmptyFrame {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The id does not fit the codec, or is 0, which names no request.
    #[error("request id {id} is not one of 1 to {limit}")]
    IdOutOfRange {
        /// The id given.
        id: u32,
        /// The largest that fits.
        limit: u32,
    },
}
