//! A codec chosen at run time.
//!
//! The known codecs are variants instead of boxes, so that a decode loop can be compiled for each of them. A custom
//! codec is reached through a pointer. A codec is copied for every read of a session, so none of them owns memory.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::{
    ChatMessage, Codec, CodecSpecError, ConnectionState, Decoded, Delimited, FrameLayout, Json,
    LengthField, Lines, MethodCase, Presence, Raw, RequestIds, RoomReply, Srmp, SrmpRpc,
    Subscription, Tw1, Uvrpc, spec,
};
use crate::body::ErrorBody;
use crate::error::{DecodeError, EncodeError};
use crate::message::Message;

/// A codec chosen at run time. The known ones are variants, so that the decode loop is compiled for each.
#[derive(Clone)]
#[non_exhaustive]
// The enum has a tag of its own instead of one hidden in a codec's configuration, because every sent message reads it.
#[repr(u8)]
pub enum AnyCodec {
    /// The native protocol.
    Tw1(Tw1),
    /// LF-terminated UTF-8 lines.
    Lines(Lines),
    /// JSON objects in lines.
    Json(Json),
    /// NewLife's "StandardCodec".
    Srmp(Srmp),
    /// A length in front of the payload.
    LengthField(LengthField),
    /// A delimiter behind the payload.
    Delimited(Delimited),
    /// Unframed bytes.
    Raw(Raw),
    /// NewLife's remote calls.
    SrmpRpc(SrmpRpc),
    /// UVRPC.
    Uvrpc(Uvrpc),
    /// A custom codec.
    Custom(Arc<dyn Codec>),
}

/// Calls the same method of whichever codec it is.
macro_rules! each {
    ($any:expr, $codec:ident => $call:expr) => {
        match $any {
            AnyCodec::Tw1($codec) => $call,
            AnyCodec::Lines($codec) => $call,
            AnyCodec::Json($codec) => $call,
            AnyCodec::Srmp($codec) => $call,
            AnyCodec::LengthField($codec) => $call,
            AnyCodec::Delimited($codec) => $call,
            AnyCodec::Raw($codec) => $call,
            AnyCodec::SrmpRpc($codec) => $call,
            AnyCodec::Uvrpc($codec) => $call,
            AnyCodec::Custom($codec) => $call,
        }
    };
}

impl AnyCodec {
    /// Wraps a custom codec; see [the module](super) for its contract.
    #[must_use]
    pub fn custom(codec: impl Codec) -> Self {
        Self::Custom(Arc::new(codec))
    }

    /// The names that `by_name` knows, in the order in which to offer them.
    pub const NAMES: [&'static str; 9] = [
        "tw1",
        "lines",
        "json",
        "srmp",
        "srmp-rpc",
        "length-field",
        "delimited",
        "raw",
        "uvrpc",
    ];

    /// Returns the codec of this name, as used in flags; see [`AnyCodec::NAMES`].
    ///
    /// Parameters may follow the name: `NAME:KEY=VALUE,KEY=VALUE`. A key without a value switches something on.
    ///
    /// | codec | key | value | without it |
    /// |---|---|---|---|
    /// | `length-field` | `size` | 1, 2, 4 bytes; -2, -4 big-endian; 0 a varint | 2 |
    /// | | `offset` | zero bytes in front of the length, 0 to 255 | 0 |
    /// | | `header` | the first bytes of every frame: at most 16 bytes in hex | nothing |
    /// | `delimited` | `delimiter` | 1 to 16 bytes in hex | `0D0A` |
    /// | | `keep_delimiter` | none, `true` or `false` | `false` |
    /// | | `limit` | longest frame in bytes, delimiter included | 1048576 |
    /// | `uvrpc` | `legacy_unframed` | none, `true` or `false`: no length in front of frames | `false` |
    ///
    /// ```
    /// use tidewire_proto::codec::{AnyCodec, Codec};
    ///
    /// let netbox = AnyCodec::by_name("length-field:size=-4,header=00000001")?;
    /// assert_eq!(netbox.name(), "length-field");
    /// # Ok::<(), tidewire_proto::codec::CodecSpecError>(())
    /// ```
    ///
    /// # Errors
    /// The name, a key or a value is not one of these. The error says which, and what is expected.
    pub fn by_name(name: &str) -> Result<Self, CodecSpecError> {
        spec::parse(name)
    }

    /// As [`Codec::encode`].
    #[inline(never)]
    fn encode_apart(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        each!(self, codec => codec.encode(message, out))
    }

    /// Returns the same codec for datagrams. Only that of UVRPC differs: its datagrams are frames without the length
    /// that streams need.
    #[must_use]
    pub fn for_datagrams(self) -> Self {
        match self {
            Self::Uvrpc(_) => Self::Uvrpc(Uvrpc::for_datagrams()),
            other => other,
        }
    }

    /// The framing of a stream, if the codec offers a choice. Only UVRPC's codec does.
    #[must_use]
    pub fn stream_framing(&self) -> Option<StreamFraming> {
        match self {
            Self::Uvrpc(codec) => codec.stream_framing(),
            _ => None,
        }
    }

    /// Returns the same codec with this framing in streams, or `None` if the codec offers no choice.
    #[must_use]
    pub fn with_stream_framing(&self, framing: StreamFraming) -> Option<Self> {
        self.stream_framing()?;
        Some(Self::Uvrpc(match framing {
            StreamFraming::Length => Uvrpc::new(),
            StreamFraming::None => Uvrpc::legacy_unframed(),
        }))
    }
}

/// The framing of a stream, for a codec whose peers do not agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFraming {
    /// A length in front of each frame.
    Length,
    /// Nothing: the content of a frame determines its end.
    None,
}

impl Codec for AnyCodec {
    fn name(&self) -> &'static str {
        each!(self, codec => codec.name())
    }

    fn begins_with_hello(&self) -> bool {
        each!(self, codec => codec.begins_with_hello())
    }

    fn hello_is_optional(&self) -> bool {
        each!(self, codec => codec.hello_is_optional())
    }

    fn has_positions(&self) -> bool {
        each!(self, codec => codec.has_positions())
    }

    fn has_pings(&self) -> bool {
        each!(self, codec => codec.has_pings())
    }

    fn has_go_away(&self) -> bool {
        each!(self, codec => codec.has_go_away())
    }

    fn proves_addresses(&self) -> bool {
        each!(self, codec => codec.proves_addresses())
    }

    fn has_room_frames(&self) -> bool {
        each!(self, codec => codec.has_room_frames())
    }

    #[inline]
    fn ids(&self) -> RequestIds {
        each!(self, codec => codec.ids())
    }

    #[inline]
    fn has_ids(&self) -> bool {
        each!(self, codec => codec.has_ids())
    }

    fn fills_datagrams(&self) -> bool {
        each!(self, codec => codec.fills_datagrams())
    }

    fn is_typed(&self) -> bool {
        each!(self, codec => codec.is_typed())
    }

    fn is_text(&self) -> bool {
        each!(self, codec => codec.is_text())
    }

    fn has_binary_arguments(&self) -> bool {
        each!(self, codec => codec.has_binary_arguments())
    }

    fn registers_subscribers(&self) -> bool {
        each!(self, codec => codec.registers_subscribers())
    }

    #[inline]
    fn repeats_names(&self) -> bool {
        each!(self, codec => codec.repeats_names())
    }

    fn method_case(&self) -> MethodCase {
        each!(self, codec => codec.method_case())
    }

    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        each!(self, codec => codec.decode(input, frame_bytes_max))
    }

    fn decode_grown<'a>(
        &self,
        input: &'a [u8],
        searched: usize,
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        each!(self, codec => codec.decode_grown(input, searched, frame_bytes_max))
    }

    #[inline]
    fn translates(&self) -> bool {
        each!(self, codec => codec.translates())
    }

    fn translate<'a>(
        &self,
        frame: Message<'a>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Message<'a>, DecodeError> {
        each!(self, codec => codec.translate(frame, scratch))
    }

    #[inline]
    fn keeps_state(&self) -> bool {
        each!(self, codec => codec.keeps_state())
    }

    fn decode_with_state<'a>(
        &self,
        state: &mut ConnectionState,
        input: &'a [u8],
        searched: usize,
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        each!(self, codec => codec.decode_with_state(state, input, searched, frame_bytes_max))
    }

    fn adapt_frame(&self, state: &mut ConnectionState, frame: &[u8], out: &mut Vec<u8>) {
        each!(self, codec => codec.adapt_frame(state, frame, out));
    }

    #[inline]
    fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout> {
        each!(self, codec => codec.layout(frame, message))
    }

    /// Codecs with a header of fixed size are compiled into the caller, where most of the message is known.
    #[inline(always)]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let head = match self {
            Self::Tw1(codec) if message.name.is_empty() => codec.head(message)?,
            Self::Srmp(codec) => codec.head(message)?,
            Self::LengthField(codec) if !codec.has_prefix() => codec.head(message)?,
            other => {
                // A reference would keep the message in memory; the copy leaves the message itself in registers.
                let message = *message;
                return other.encode_apart(&message, out);
            }
        };
        head.push_with(message.payload, out);
        Ok(())
    }

    fn encode_chat_message(
        &self,
        message: &ChatMessage<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        each!(self, codec => codec.encode_chat_message(message, out))
    }

    fn encode_presence(
        &self,
        presence: &Presence<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        each!(self, codec => codec.encode_presence(presence, out))
    }

    fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        each!(self, codec => codec.encode_gap(channel, lost, out))
    }

    fn encode_room_reply(
        &self,
        room: u16,
        id: u32,
        reply: &RoomReply<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        each!(self, codec => codec.encode_room_reply(room, id, reply, out))
    }

    fn delivery_topic<'a>(&self, shared: &'a [u8]) -> &'a str {
        each!(self, codec => codec.delivery_topic(shared))
    }

    fn delivery_header_bytes_max(&self) -> usize {
        each!(self, codec => codec.delivery_header_bytes_max())
    }

    fn payload_growth_max(&self) -> usize {
        each!(self, codec => codec.payload_growth_max())
    }

    fn delivery_header(&self, subscription: Subscription, shared: &[u8], out: &mut Vec<u8>) {
        each!(self, codec => codec.delivery_header(subscription, shared, out));
    }

    fn encode_error(
        &self,
        request: &Message<'_>,
        error: &ErrorBody<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        each!(self, codec => codec.encode_error(request, error, out))
    }

    fn decode_error<'a>(&self, message: &Message<'a>) -> Result<ErrorBody<'a>, DecodeError> {
        each!(self, codec => codec.decode_error(message))
    }

    fn error_number(&self, message: &Message<'_>) -> i32 {
        each!(self, codec => codec.error_number(message))
    }
}

impl fmt::Debug for AnyCodec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_tuple("AnyCodec")
            .field(&self.name())
            .finish()
    }
}

impl FromStr for AnyCodec {
    type Err = CodecSpecError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::by_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Kind, MemberId};

    #[test]
    fn every_name_finds_the_codec_of_that_name() {
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            assert_eq!(codec.name(), name);
            assert_eq!(format!("{codec:?}"), format!("AnyCodec({name:?})"));
            assert_eq!(codec.has_ids(), codec.ids() != RequestIds::None);
        }
    }

    #[test]
    fn a_custom_codec_answers_for_itself() {
        let custom = AnyCodec::Custom(Arc::new(Lines));
        let message = ChatMessage {
            channel: 1,
            member: MemberId(2),
            name: "ada",
            private: false,
            payload: b"hi",
        };
        let mut out = Vec::new();
        custom.encode_chat_message(&message, &mut out).unwrap();
        // The trait's default would write a bare "hi".
        assert_eq!(out, b"[ada]: hi\n");
    }

    /// Returns every answer of a codec about its format: how replies find requests, and its properties.
    fn answers(codec: &AnyCodec) -> (RequestIds, String) {
        let answers = [
            ("hello", codec.begins_with_hello()),
            ("optional", codec.hello_is_optional()),
            ("positions", codec.has_positions()),
            ("pings", codec.has_pings()),
            ("go-away", codec.has_go_away()),
            ("proves", codec.proves_addresses()),
            ("rooms", codec.has_room_frames()),
            ("typed", codec.is_typed()),
            ("text", codec.is_text()),
            ("binary", codec.has_binary_arguments()),
            ("registers", codec.registers_subscribers()),
            ("fills", codec.fills_datagrams()),
            ("repeats", codec.repeats_names()),
            ("translates", codec.translates()),
            ("state", codec.keeps_state()),
            ("headers", codec.delivery_header_bytes_max() > 0),
            ("lower", codec.method_case() == MethodCase::Lower),
        ];
        let yes = answers.iter().filter(|(_, is_true)| *is_true);
        let yes: Vec<&str> = yes.map(|(answer, _)| *answer).collect();
        (codec.ids(), yes.join(" "))
    }

    #[test]
    fn every_codec_answers_as_its_table_says() {
        let over_udp = AnyCodec::by_name("uvrpc").unwrap().for_datagrams();
        let codecs = AnyCodec::NAMES.map(|name| AnyCodec::by_name(name).unwrap());
        let found: Vec<_> = codecs.iter().chain([&over_udp]).map(answers).collect();
        let table = [
            (
                RequestIds::Bits32,
                "hello positions pings go-away proves rooms",
            ),
            (RequestIds::None, "typed text"),
            (
                RequestIds::Bits32,
                "hello optional go-away rooms text translates",
            ),
            (RequestIds::Bits8, ""),
            (RequestIds::Bits8, "repeats"),
            (RequestIds::None, ""),
            (RequestIds::None, ""),
            (RequestIds::None, "fills"),
            (RequestIds::Bits32, "binary lower"),
            (RequestIds::Bits32, "binary registers fills lower"),
        ];
        assert_eq!(found, table.map(|(ids, yes)| (ids, yes.to_owned())));
        for codec in codecs {
            let custom = AnyCodec::custom(codec.clone());
            assert_eq!(answers(&custom), answers(&codec), "{codec:?}");
        }
    }

    #[test]
    fn every_codec_frames_chat_messages_and_some_frame_presence() {
        let message = ChatMessage {
            channel: 1,
            member: MemberId(2),
            name: "ada",
            private: true,
            payload: b"hi",
        };
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            let mut out = Vec::new();
            codec.encode_chat_message(&message, &mut out).unwrap();
            assert!(!out.is_empty(), "{name}");
            out.clear();
            let told = codec.encode_gap(1, 5, &mut out);
            if ["tw1", "lines", "json"].contains(&name) {
                assert!(told.is_ok() && !out.is_empty(), "{name}");
            } else {
                let unsupported = EncodeError::Unsupported {
                    codec: codec.name(),
                    kind: Kind::Gap,
                };
                assert_eq!((told, out.len()), (Err(unsupported), 0), "{name}");
            }
        }
    }
}
