//! UVRPC: calls by method name, each a FlatBuffer.
//!
//! Problem: the frames come from untrusted peers and consist of offsets, which the format's usual accessors follow
//! unchecked. Approach: a bounds-checked reader for the single small table of the format ([`RpcFrame`]). A frame that
//! cannot be read whole is refused before any of it is used. The encoder writes one fixed layout.
//!
//! Over TCP a frame has a u32 big-endian length in front; a datagram is one frame without it. Over Unix sockets the
//! original sends no length either and takes each read as one frame, so it loses frames that arrive together.
//! [`Uvrpc::legacy_unframed`] talks to such peers without that loss: it computes the end of a frame from its offsets.
//! That end is certain for frames that keep their vtable last, as the original's do. Use the framing with a length
//! whenever the peer has it.
//!
//! A datagram can also be a registration or a published message. A registration is read as a subscription to every
//! topic; it gets no answer, and there is no other way to subscribe. A published message is read and sent as a delivery
//! with the name of its topic. The original has no way to publish through a server, so a publication is sent as a
//! one-way call with the topic as its method.
//!
//! A one-way message is sent as a request with id 0, because the original has no other form. Its answer matches no
//! request. Frames of type notification are read as one-way messages, and deliveries are sent as them.
//!
//! Rejected: the `flatbuffers` crate (its safe accessors read out of bounds on hostile input, and this format has one
//! table), and ignoring unknown methods like the original (its callers hang). Servers answer with error 2.

mod error;
mod frame;
mod table;

pub use error::ErrorParams;
pub use frame::{BroadcastMessage, RpcFrame, RpcFrameType};

use frame::frame_type_of;
use table::Broken;

use super::frame::Framed;
use super::spec::{BuiltIn, Parameters};
use super::{
    AnyCodec, Codec, Decoded, Format, FrameLayout, Framing, KnownCodec, RequestIds, StreamFraming,
    unsupported,
};
use crate::body::ErrorBody;
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, Message};
use crate::setting::SettingError;

/// The codec of UVRPC frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uvrpc {
    framing: Framing,
}

impl Uvrpc {
    /// Frames with a length in front, for streams.
    #[must_use]
    pub const fn new() -> Self {
        Self { framing: LENGTH }
    }

    /// Frames without a length, one in each datagram. `decode` reads its whole input as one frame.
    #[must_use]
    pub const fn for_datagrams() -> Self {
        Self {
            framing: Framing::Datagrams,
        }
    }

    /// Frames without a length in a stream, for peers of the original over Unix sockets.
    #[must_use]
    pub const fn legacy_unframed() -> Self {
        Self { framing: LEGACY }
    }
}

impl Default for Uvrpc {
    fn default() -> Self {
        Self::new()
    }
}

impl BuiltIn for Uvrpc {
    const FORMAT: Format = FORMAT;
    const PARAMETERS: &'static [&'static str] = &["legacy_unframed"];

    fn configured(parameters: &Parameters<'_>) -> Result<Self, SettingError> {
        Ok(match parameters.flag("legacy_unframed")? {
            true => Self::legacy_unframed(),
            false => Self::new(),
        })
    }
}

impl Codec for Uvrpc {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        match self.framing {
            LENGTH => &FORMAT,
            Framing::Datagrams => &DATAGRAM_FORMAT,
            LEGACY => &LEGACY_FORMAT,
        }
    }

    fn with_framing(&self, framing: Framing) -> Option<AnyCodec> {
        // Nothing in a datagram says which framing its codec had in streams.
        let is_known = self.framing != Framing::Datagrams || framing == Framing::Datagrams;
        is_known.then_some(KnownCodec::Uvrpc(Self { framing }).chosen())
    }

    #[inline]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        match self.framing {
            LENGTH => decode_length(input, frame_bytes_max),
            Framing::Datagrams => decode_datagram(input, frame_bytes_max),
            LEGACY => decode_legacy(input, frame_bytes_max),
        }
    }

    #[inline]
    fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout> {
        let start = match (self.framing, message.kind) {
            (LENGTH, _) => LENGTH_BYTES,
            // In datagrams these kinds have their own formats.
            (Framing::Datagrams, Kind::Subscribe | Kind::Deliver) => return None,
            (Framing::Datagrams, _) => 0,
            (LEGACY, _) => return None,
        };
        let (msgid_at, params) = RpcFrame::template_positions(frame.get(start..)?)?;
        let msgid_at = start + msgid_at;
        let layout = FrameLayout::new(start + params.start..start + params.end);
        Some(if has_msgid(message.kind) {
            layout.with_id(msgid_at)
        } else {
            layout.with_ignored(msgid_at..msgid_at + MSGID_BYTES)
        })
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let kind = message.kind;
        if self.framing == Framing::Datagrams {
            match kind {
                Kind::Subscribe => {
                    out.extend_from_slice(REGISTRATION);
                    return Ok(());
                }
                Kind::Deliver if !message.name.is_empty() => {
                    let (topic, data) = (message.name, message.payload);
                    return BroadcastMessage { topic, data }.encode(out);
                }
                Kind::Publish => {
                    let kind = Kind::OneWay;
                    return self.encode(&Message { kind, ..*message }, out);
                }
                _ => {}
            }
        }
        let frame = rpc_frame_of(message)?;
        let frame_bytes = frame.encoded_bytes()?;
        if self.framing == LENGTH {
            out.reserve(LENGTH_BYTES + frame_bytes);
            out.extend_from_slice(&(frame_bytes as u32).to_be_bytes());
        }
        // The call cannot fail: the size was accepted above.
        frame.encode(out)
    }

    fn encode_error(
        &self,
        request: &Message<'_>,
        error: &ErrorBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let text = &*error.words();
        let code = ErrorParams::code_for(error.code);
        let mut params = Vec::with_capacity(text.len() + 5);
        ErrorParams { code, text }.encode(&mut params);
        let answer = Message {
            kind: Kind::Error,
            payload: &params,
            ..*request
        };
        self.encode(&answer, out)
    }

    fn decode_error<'a>(&self, message: &Message<'a>) -> Result<ErrorBody<'a>, DecodeError> {
        ErrorParams::decode(message.payload).map(|params| params.body())
    }

    fn error_number(&self, message: &Message<'_>) -> i32 {
        ErrorParams::decode(message.payload).map_or(0, |params| params.code)
    }
}

#[inline]
fn decode_length(input: &[u8], frame_bytes_max: usize) -> Result<Decoded<'_>, DecodeError> {
    let Some(length) = input.first_chunk::<LENGTH_BYTES>() else {
        return Ok(Decoded::Incomplete { frame_bytes: 0 });
    };
    let payload_bytes = u64::from(u32::from_be_bytes(*length));
    match Framed::cut(input, LENGTH_BYTES, payload_bytes, frame_bytes_max)? {
        Framed::Whole { payload, consumed } => {
            let message = message_of(&RpcFrame::decode(payload)?);
            Ok(Decoded::Frame { message, consumed })
        }
        Framed::Part { frame_bytes } => Ok(Decoded::Incomplete { frame_bytes }),
    }
}

fn decode_datagram(input: &[u8], frame_bytes_max: usize) -> Result<Decoded<'_>, DecodeError> {
    if input.is_empty() {
        return Ok(Decoded::Incomplete { frame_bytes: 0 });
    }
    check_limit(input.len(), frame_bytes_max)?;
    let message = if input == REGISTRATION {
        Message::new(Kind::Subscribe, 0, EVERY_TOPIC)
    } else if let Some(BroadcastMessage { topic, data }) = BroadcastMessage::recognise(input) {
        Message::new(Kind::Deliver, 0, data).with_name(topic)
    } else {
        message_of(&RpcFrame::decode(input)?)
    };
    Ok(Decoded::Frame {
        message,
        consumed: input.len(),
    })
}

fn decode_legacy(input: &[u8], frame_bytes_max: usize) -> Result<Decoded<'_>, DecodeError> {
    let window = &input[..input.len().min(frame_bytes_max)];
    match RpcFrame::read(window) {
        Ok((frame, extent)) => {
            // Padding after the last part belongs to this frame and not to the next.
            let padding = window[extent..]
                .iter()
                .take(extent.next_multiple_of(4) - extent)
                .take_while(|byte| **byte == 0)
                .count();
            Ok(Decoded::Frame {
                message: message_of(&frame),
                consumed: extent + padding,
            })
        }
        Err(Broken::Short { bytes }) => {
            check_limit(bytes, frame_bytes_max)?;
            Ok(Decoded::Incomplete { frame_bytes: 0 })
        }
        Err(broken) => Err(broken.error()),
    }
}

fn check_limit(frame_bytes: usize, frame_bytes_max: usize) -> Result<(), DecodeError> {
    if frame_bytes > frame_bytes_max {
        return Err(DecodeError::FrameTooLarge {
            bytes: frame_bytes as u64,
            limit: frame_bytes_max as u64,
        });
    }
    Ok(())
}

#[inline]
fn message_of<'a>(frame: &RpcFrame<'a>) -> Message<'a> {
    let kind = match frame.frame_type {
        RpcFrameType::Request => Kind::Request,
        RpcFrameType::Response => Kind::Reply,
        RpcFrameType::Notification => Kind::OneWay,
        RpcFrameType::Error => Kind::Error,
    };
    // A notification's number is dropped: its refusal would look like that of the request with this number.
    let id = if has_msgid(kind) { frame.msgid } else { 0 };
    Message::with_id(kind, 0, id, frame.params).with_name(frame.method)
}

fn rpc_frame_of<'a>(message: &Message<'a>) -> Result<RpcFrame<'a>, EncodeError> {
    let kind = message.kind;
    Ok(RpcFrame {
        frame_type: frame_type_of(kind).ok_or(unsupported(NAME, kind))?,
        msgid: if has_msgid(kind) { message.id } else { 0 },
        method: if is_call(kind) { message.name } else { "" },
        params: message.payload,
    })
}

#[inline(always)]
const fn has_msgid(kind: Kind) -> bool {
    matches!(kind, Kind::Request | Kind::Reply | Kind::Error)
}

const fn is_call(kind: Kind) -> bool {
    matches!(kind, Kind::Request | Kind::OneWay)
}

/// The datagram of a subscriber that registers at a publisher's port.
pub const REGISTRATION: &[u8; 9] = b"UVRPC_REG";

/// The body of a subscription to every topic, under the server's own policy.
const EVERY_TOPIC: &[u8] = b"\0>";

const FORMAT: Format = Format {
    ids: RequestIds::Bits32,
    framing: Some(LENGTH),
    ignores_method_case: true,
    repeats_names: false,
    has_binary_arguments: true,
    ..Format::new("uvrpc")
};
const LEGACY_FORMAT: Format = Format {
    framing: Some(LEGACY),
    ..FORMAT
};
const DATAGRAM_FORMAT: Format = Format {
    framing: Some(Framing::Datagrams),
    registers_subscribers: true,
    ..FORMAT
};
const NAME: &str = FORMAT.name;
const LENGTH: Framing = Framing::Stream(StreamFraming::Length);
/// The content of a frame determines its end.
const LEGACY: Framing = Framing::Stream(StreamFraming::None);
const LENGTH_BYTES: usize = 4;
const MSGID_BYTES: usize = 4;

#[cfg(test)]
mod tests;
