//! A codec chosen at run time.
//!
//! The known codecs are variants instead of boxes, so that a decode loop can be compiled for each of them. A custom
//! codec is reached through a pointer. A codec is copied for every read of a session, so no codec owns memory.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::spec::BuiltIn;
use super::{
    ChatMessage, Codec, ConnectionState, Decoded, Delimited, Format, FrameLayout, Framing, Json,
    LengthField, Lines, Presence, Raw, Srmp, SrmpRpc, StreamFraming, Subscription, Tw1, Uvrpc,
};
use crate::body::ErrorBody;
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, Message};
use crate::setting::SettingError;

/// Declares [`KnownCodec`] with a variant for each codec of this list. No other list of codecs exists.
macro_rules! codecs {
    ($dollar:tt $($(#[doc = $doc:literal])+ $codec:ident),+) => {
        /// The codec in an [`AnyCodec`], for loops that are compiled for each; see [`with_codec`](crate::with_codec).
        #[derive(Clone)]
        #[non_exhaustive]
        // Every sent message reads the tag of this enum, so the tag has its own field instead of a niche in a codec's
        // configuration.
        #[repr(u8)]
        pub enum KnownCodec {
            $($(#[doc = $doc])+ $codec($codec),)+
            /// A custom codec.
            Custom(Arc<dyn Codec>),
        }

        impl AnyCodec {
            /// The names that `by_name` knows, in the order in which to offer them.
            pub const NAMES: [&'static str; [$(stringify!($codec)),+].len()] = [$(<$codec as BuiltIn>::FORMAT.name),+];

            fn named(name: &str, parameters: &str) -> Result<Self, SettingError> {
                $(if name == <$codec as BuiltIn>::FORMAT.name {
                    let known = <$codec as BuiltIn>::parse(parameters);
                    return known.map(|known| Self(KnownCodec::$codec(known)));
                })+
                Err(super::spec::unknown_codec(name))
            }
        }

        impl PartialEq for KnownCodec {
            fn eq(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$codec(one), Self::$codec(other)) => one == other,)+
                    (Self::Custom(one), Self::Custom(other)) => Arc::ptr_eq(one, other),
                    _ => false,
                }
            }
        }

        /// Calls a method of the codec in the variant.
        macro_rules! each {
            ($dollar any:expr, $dollar chosen:ident => $dollar call:expr) => {
                match $dollar any {
                    $(KnownCodec::$codec($dollar chosen) => $dollar call,)+
                    KnownCodec::Custom($dollar chosen) => $dollar call,
                }
            };
        }
    };
}

codecs! { $
    /// The native protocol.
    Tw1,
    /// LF-terminated UTF-8 lines.
    Lines,
    /// JSON objects in lines.
    Json,
    /// NewLife's "StandardCodec".
    Srmp,
    /// NewLife's remote calls.
    SrmpRpc,
    /// A length in front of the payload.
    LengthField,
    /// A delimiter after the payload.
    Delimited,
    /// Unframed bytes.
    Raw,
    /// UVRPC.
    Uvrpc
}

/// Runs `$call` with the codec in an [`AnyCodec`]. The call is compiled for each codec with a frequent loop over
/// frames, so the choice costs one branch per read and none per frame. The other codecs share a loop with a branch for
/// each frame: a copy for each codec would add a fifth to a service's machine code.
#[doc(hidden)]
#[macro_export]
macro_rules! with_codec {
    (@ $chosen:expr, $codec:ident => $call:expr, $($known:ident)+) => {
        match $crate::codec::KnownCodec::of($chosen.clone()) {
            $($crate::codec::KnownCodec::$known(known) => {
                let $codec = &known;
                $call
            })+
            $crate::codec::KnownCodec::Custom(known) => {
                let $codec = &*known;
                $call
            }
            other => {
                let $codec = &other.chosen();
                $call
            }
        }
    };
    (stream $chosen:expr, $codec:ident => $call:expr) => {
        $crate::with_codec!(@ $chosen, $codec => $call, Tw1 Lines Srmp LengthField Delimited Uvrpc)
    };
    (datagrams $chosen:expr, $codec:ident => $call:expr) => {
        $crate::with_codec!(@ $chosen, $codec => $call, Tw1 Uvrpc)
    };
}

/// A codec chosen at run time: one of the built-in codecs, or a custom codec. The default is `tw1`, the native
/// protocol.
///
/// Two codecs are equal if they have the same name and parameters. A custom codec equals its clones only.
#[derive(Clone, Debug, PartialEq)]
pub struct AnyCodec(KnownCodec);

impl Default for AnyCodec {
    fn default() -> Self {
        KnownCodec::Tw1(Tw1).chosen()
    }
}

impl KnownCodec {
    /// Returns the codec as one that was chosen at run time.
    #[inline]
    #[must_use]
    pub fn chosen(self) -> AnyCodec {
        AnyCodec(self)
    }

    /// Returns the codec in `chosen`.
    #[inline]
    #[must_use]
    pub fn of(chosen: AnyCodec) -> Self {
        chosen.0
    }
}

impl AnyCodec {
    /// Wraps a custom codec; see [the module](super) for its contract.
    #[must_use]
    pub fn custom(codec: impl Codec) -> Self {
        Self(KnownCodec::Custom(Arc::new(codec)))
    }

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
    /// use tidewire_proto::codec::AnyCodec;
    ///
    /// let netbox = AnyCodec::by_name("length-field:size=-4,header=00000001")?;
    /// assert_eq!(netbox.name(), "length-field");
    /// # Ok::<(), tidewire_proto::setting::SettingError>(())
    /// ```
    ///
    /// # Errors
    /// The name, a key or a value is not one of these. The error says which, and what is expected.
    pub fn by_name(name: &str) -> Result<Self, SettingError> {
        let (name, parameters) = name.split_once(':').unwrap_or((name, ""));
        Self::named(name, parameters)
    }

    /// As [`Codec::encode`].
    #[inline(never)]
    fn encode_apart(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        each!(&self.0, codec => codec.encode(message, out))
    }

    /// The name used in flags, logs and reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.format().name
    }

    /// Returns the same codec for datagrams. It differs if the frames have a length only for streams.
    #[must_use]
    pub fn for_datagrams(self) -> Self {
        self.with_framing(Framing::Datagrams).unwrap_or(self)
    }

    /// Returns the same codec with this framing in streams, or `None` if the codec offers no choice.
    #[must_use]
    pub fn with_stream_framing(&self, framing: StreamFraming) -> Option<Self> {
        self.with_framing(Framing::Stream(framing))
    }
}

/// Implements methods by those of the codec in the variant.
macro_rules! forward {
    ($(
        $(#[$hint:meta])*
        fn $name:ident $(<$life:lifetime>)? (&self $(, $argument:ident: $type:ty)*) $(-> $result:ty)?;
    )+) => {
        $($(#[$hint])*
        fn $name $(<$life>)? (&self $(, $argument: $type)*) $(-> $result)? {
            each!(&self.0, codec => codec.$name($($argument),*))
        })+
    };
}

impl Codec for AnyCodec {
    forward! {
        #[inline]
        fn format(&self) -> &'static Format;
        fn with_framing(&self, framing: Framing) -> Option<AnyCodec>;
        fn decode<'a>(&self, input: &'a [u8], frame_bytes_max: usize) -> Result<Decoded<'a>, DecodeError>;
        fn decode_next<'a>(
            &self, state: &mut ConnectionState, input: &'a [u8], searched: usize, frame_bytes_max: usize
        ) -> Result<Decoded<'a>, DecodeError>;
        fn translate<'a>(&self, frame: Message<'a>, scratch: &'a mut Vec<u8>) -> Result<Message<'a>, DecodeError>;
        fn adapt_frame(&self, state: &mut ConnectionState, frame: &[u8], out: &mut Vec<u8>);
        #[inline]
        fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout>;
        fn encode_delivery_at(&self, offset: u64, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError>;
        fn encode_chat_message(&self, chat: &ChatMessage<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError>;
        fn encode_presence(&self, presence: &Presence<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError>;
        fn encode_gap(&self, channel: u16, lost: u64, out: &mut Vec<u8>) -> Result<(), EncodeError>;
        fn encode_room_reply(
            &self, request: Kind, reply: &Message<'_>, out: &mut Vec<u8>
        ) -> Result<(), EncodeError>;
        fn delivery_header(&self, subscription: Subscription, shared: &[u8], out: &mut Vec<u8>);
        fn delivery_topic<'a>(&self, shared: &'a [u8]) -> &'a str;
        fn encode_error(
            &self, request: &Message<'_>, error: &ErrorBody<'_>, out: &mut Vec<u8>
        ) -> Result<(), EncodeError>;
        fn decode_error<'a>(&self, message: &Message<'a>) -> Result<ErrorBody<'a>, DecodeError>;
        fn error_number(&self, message: &Message<'_>) -> i32;
    }

    /// Codecs with a header of fixed size are compiled into the caller, where most of the message is known.
    #[inline(always)]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let head = match &self.0 {
            KnownCodec::Tw1(codec) if message.name.is_empty() => codec.head(message)?,
            KnownCodec::Srmp(codec) => codec.head(message)?,
            KnownCodec::LengthField(codec) if !codec.has_prefix() => codec.head(message)?,
            _ => {
                // A reference would keep the message in memory; the copy leaves the message itself in registers.
                let message = *message;
                return self.encode_apart(&message, out);
            }
        };
        head.push_with(message.payload, out);
        Ok(())
    }
}

impl fmt::Debug for KnownCodec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = each!(self, codec => codec.format());
        format.name.fmt(formatter)
    }
}

impl FromStr for AnyCodec {
    type Err = SettingError;

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
        }
    }

    #[test]
    fn a_custom_codec_answers_for_itself() {
        let custom = AnyCodec::custom(Lines);
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

    #[test]
    fn a_codec_behind_a_pointer_has_the_same_format() {
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            let custom = AnyCodec::custom(codec.clone());
            assert_eq!(custom.format(), codec.format());
            let over_udp = custom.for_datagrams();
            assert_eq!(over_udp.format(), codec.for_datagrams().format());
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
