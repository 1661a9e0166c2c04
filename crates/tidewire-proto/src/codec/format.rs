//! The description of a codec's format, as data.
//!
//! Problem: services, lanes and clients decide by the format of their codec: whether requests have ids, whether a
//! silent peer can be asked, how long a message may be. Approach: one constant for each format, which a codec returns
//! as a whole. A loop that is compiled for one codec reads the constant at compile time. All optional properties are
//! off in [`Format::new`]. So a codec names only its properties, and a new property changes no other codec.
//!
//! Properties that exclude each other are one field. Rejected: a method for each property, because [`AnyCodec`] and
//! every wrapper of a codec had to repeat all methods, and defaults depended on other methods.
//!
//! [`AnyCodec`]: super::AnyCodec

/// The properties of a format. See [the module](super) for the vocabulary.
///
/// ```
/// use tidewire_proto::codec::{Format, RequestIds};
///
/// const FORMAT: Format = Format {
///     ids: RequestIds::Bits32,
///     repeats_names: false,
///     ..Format::new("telemetry")
/// };
/// assert!(FORMAT.has_ids() && !FORMAT.has_pings);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The name used in flags, logs and reports.
    pub name: &'static str,
    /// The frames with which a connection begins.
    pub opening: Opening,
    /// How replies find their requests.
    pub ids: RequestIds,
    /// How a frame ends, if the frame does not contain its end.
    pub framing: Option<Framing>,
    /// Whether frames are text, and whether programs or people write it.
    pub text: Text,
    /// The calls that make a message of bytes.
    pub decoding: Decoding,
    /// Whether ASCII letters of method names compare in lower case. Otherwise names compare byte for byte.
    pub ignores_method_case: bool,
    /// Whether replies repeat the name of the method, so that a lane must keep it while a request is handled. A codec
    /// without names in its replies sets this to false.
    pub repeats_names: bool,
    /// Whether frames can carry the [`Position`](crate::message::Position) of messages.
    pub has_positions: bool,
    /// Whether both sides answer a [`Ping`](crate::message::Kind::Ping) by a [`Pong`](crate::message::Kind::Pong), so
    /// that a silent peer can be distinguished from a vanished peer.
    pub has_pings: bool,
    /// Whether peers can distinguish a [`GoAway`](crate::message::Kind::GoAway) from an answer. A codec with false here
    /// may still write a go-away, for example as a line for people. A client then sends no go-away, and a server sends
    /// one only if no reply is pending.
    pub has_go_away: bool,
    /// Whether [`Join`](crate::message::Kind::Join), [`Say`](crate::message::Kind::Say) and
    /// [`Leave`](crate::message::Kind::Leave) are frames. Otherwise a chat reads every message as a line that a person
    /// typed.
    pub has_room_frames: bool,
    /// Whether the programs that use this format pass numbers as little-endian bytes and not as text. A service for
    /// programs and people reads this field.
    pub has_binary_arguments: bool,
    /// Whether subscribers register for every topic at once, without an answer and repeatedly, and filter by
    /// themselves. Otherwise they subscribe to patterns and receive an alias.
    pub registers_subscribers: bool,
    /// Maximum number of bytes that [`Codec::delivery_header`](super::Codec::delivery_header) appends; 0 if deliveries
    /// have no header. The maximum length of messages in rooms and topics is smaller by that much than the largest
    /// frame.
    pub delivery_header_bytes_max: usize,
    /// How many bytes of a frame a byte of the payload takes at most. A codec that escapes or encodes payloads has more
    /// than 1, and never 0. The maximum length of messages in rooms and topics is smaller by this factor.
    pub payload_growth_max: usize,
}

impl Format {
    /// A binary format with frames that contain their end, with replies in the order of their requests, and without the
    /// other properties. Replies repeat names, which works for every codec.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            opening: Opening::Nothing,
            ids: RequestIds::None,
            framing: None,
            text: Text::No,
            decoding: Decoding::Direct,
            ignores_method_case: false,
            repeats_names: true,
            has_positions: false,
            has_pings: false,
            has_go_away: false,
            has_room_frames: false,
            has_binary_arguments: false,
            registers_subscribers: false,
            delivery_header_bytes_max: 0,
            payload_growth_max: 1,
        }
    }

    /// Whether a connection begins with a hello, or may.
    #[inline]
    #[must_use]
    pub const fn begins_with_hello(&self) -> bool {
        !matches!(self.opening, Opening::Nothing)
    }

    /// Whether a client may leave the hello out.
    #[inline]
    #[must_use]
    pub const fn hello_is_optional(&self) -> bool {
        matches!(self.opening, Opening::OptionalHello)
    }

    /// Whether requests and replies carry ids.
    #[inline]
    #[must_use]
    pub const fn has_ids(&self) -> bool {
        !matches!(self.ids, RequestIds::None)
    }

    /// Whether a challenge validates an address over UDP: a ping, which a client returns in front of its hello. Without
    /// a challenge, a server sends an address at most as many bytes as came from there, unless it trusts all addresses.
    #[inline]
    #[must_use]
    pub const fn proves_addresses(&self) -> bool {
        self.begins_with_hello() && self.has_pings
    }

    /// Whether a frame is a whole datagram, because the frame does not contain its length.
    #[inline]
    #[must_use]
    pub const fn fills_datagrams(&self) -> bool {
        matches!(self.framing, Some(Framing::Datagrams))
    }

    /// The framing of a stream, if peers do not agree on it.
    #[inline]
    #[must_use]
    pub const fn stream_framing(&self) -> Option<StreamFraming> {
        match self.framing {
            Some(Framing::Stream(framing)) => Some(framing),
            _ => None,
        }
    }

    /// Whether frames are lines of UTF-8. WebSocket then sends text messages of whole lines.
    #[inline]
    #[must_use]
    pub const fn is_text(&self) -> bool {
        !matches!(self.text, Text::No)
    }

    /// Whether people type frames. Such a frame may take as long as a login.
    #[inline]
    #[must_use]
    pub const fn is_typed(&self) -> bool {
        matches!(self.text, Text::Typed)
    }

    /// Whether each decoded frame passes [`Codec::translate`](super::Codec::translate).
    #[inline]
    #[must_use]
    pub const fn translates(&self) -> bool {
        matches!(self.decoding, Decoding::Translated)
    }

    /// Whether the codec keeps a [`ConnectionState`](super::ConnectionState).
    #[inline]
    #[must_use]
    pub const fn keeps_state(&self) -> bool {
        matches!(self.decoding, Decoding::WithState)
    }
}

/// The frames with which a connection begins. Hello and welcome are frames of the native protocol, so only codecs that
/// read such frames have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opening {
    /// The first frame is a message.
    Nothing,
    /// [`Hello`](crate::message::Kind::Hello) and [`Welcome`](crate::message::Kind::Welcome).
    Hello,
    /// A hello, or any other frame. Another frame opens the connection like a hello without credentials, and there is
    /// no welcome.
    OptionalHello,
}

/// How the replies of a codec find their requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestIds {
    /// By order: the first reply belongs to the first request, and both travel as one-way messages.
    None,
    /// By an id of 8 bits. The ids are 1 to 255, so at most 255 requests are in flight.
    Bits8,
    /// By an id of 32 bits.
    Bits32,
}

/// The framing of a stream, for a codec with several framings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFraming {
    /// A length in front of each frame.
    Length,
    /// Nothing: the content of a frame determines its end.
    None,
}

/// A framing that depends on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Framing {
    /// For a stream. Peers do not agree on it, so [`Codec::with_framing`](super::Codec::with_framing)
    /// offers the other framings.
    Stream(StreamFraming),
    /// A frame ends with its datagram, or with a read of a stream.
    Datagrams,
}

/// Whether frames are text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Text {
    /// Frames are bytes.
    No,
    /// Frames are UTF-8 text that ends in a line feed.
    Lines,
    /// Lines of UTF-8 text that people type, key by key.
    Typed,
}

/// The calls that make a message of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Decoding {
    /// A decoded frame is the message, and the codec keeps nothing of a connection.
    Direct,
    /// A decoded frame is not the message yet: each frame passes [`Codec::translate`](super::Codec::translate).
    Translated,
    /// The codec keeps a [`ConnectionState`](super::ConnectionState), which
    /// [`Codec::decode_next`](super::Codec::decode_next) and [`Codec::adapt_frame`](super::Codec::adapt_frame) get.
    WithState,
}
