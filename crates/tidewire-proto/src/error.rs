//! Errors of the sans-IO core. Errors that a peer can cause are small, `Copy`, comparable and allocate nothing.

use thiserror::Error;

/// Bytes from a peer that can never become a frame. The connection is closed with this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The header announces more than the limit allows, or no end of line came within the limit.
    #[error("frame of at least {bytes} bytes exceeds the limit of {limit} bytes")]
    FrameTooLarge {
        /// The announced length, or the number of bytes without an end.
        bytes: u64,
        /// The limit in force.
        limit: u64,
    },
    /// The length field is smaller than the rest of the header.
    #[error("frame length {bytes} is shorter than its header")]
    FrameTooShort {
        /// The announced length.
        bytes: u64,
    },
    /// The protocol has no kind with this number.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// A payload's inner layout is broken.
    #[error("malformed payload of a {kind:?} frame")]
    MalformedPayload {
        /// The kind of the frame.
        kind: crate::message::Kind,
    },
    /// The frame does not start with the agreed constant bytes; the peer speaks another protocol.
    #[error("frame differs from the agreed header at byte {at}")]
    HeaderMismatch {
        /// Offset of the first byte that differs, counted from 0.
        at: u8,
    },
    /// The frame's own structure is broken, so not even its kind is known.
    #[error("malformed frame")]
    MalformedFrame,
    /// The line is no message of the codec `json`.
    #[error(transparent)]
    Json(crate::json::JsonFault),
}

/// This codec cannot express the message. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The payload does not fit the frame's length field or the frame limit.
    #[error("payload of {bytes} bytes does not fit a frame (limit {limit})")]
    PayloadTooLarge {
        /// The length of the payload.
        bytes: u64,
        /// The maximum.
        limit: u64,
    },
    /// The codec has no frame of this kind.
    #[error("codec {codec} has no {kind:?} frames")]
    Unsupported {
        /// Name of the codec.
        codec: &'static str,
        /// The kind of the message.
        kind: crate::message::Kind,
    },
    /// A string field is longer than its one-byte length allows.
    #[error("text field of {bytes} bytes exceeds {limit} bytes")]
    TextTooLong {
        /// The length of the text.
        bytes: usize,
        /// The maximum.
        limit: usize,
    },
    /// The payload contains the codec's delimiter, so the receiver would see several frames.
    #[error("payload contains the delimiter of codec {codec}")]
    ContainsDelimiter {
        /// Name of the codec.
        codec: &'static str,
    },
    /// The payload is not a valid body of its kind, so the codec cannot translate it.
    #[error("payload is not a valid body of a {kind:?} frame")]
    InvalidBody {
        /// The kind of the frame.
        kind: crate::message::Kind,
    },
    /// The codec has no names of methods and topics; put the name into the payload, or use the channel.
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
        /// The id of the request.
        id: u32,
        /// The maximum.
        limit: u32,
    },
}
