//! The codec axis: every codec, and the limits of each.

use tidewire_examples::checksum::Checksum;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::message::{Kind, Message};

/// The codec of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecKind {
    /// The native protocol.
    Tw1,
    /// Lines of text.
    Lines,
    /// JSON in lines.
    Json,
    /// NewLife's "StandardCodec".
    Srmp,
    /// NewLife's remote calls.
    SrmpRpc,
    /// A length in front of the payload.
    LengthField,
    /// A delimiter after the payload.
    Delimited,
    /// UVRPC.
    Uvrpc,
    /// Unframed bytes.
    Raw,
    /// The codec of the examples, which is added like a user's custom codec.
    Custom,
}

/// A requirement of a behaviour that some codecs do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Messages have boundaries.
    Frames,
    /// Messages have none.
    Stream,
    /// Frames come in pieces.
    Pieces,
    /// Several frames are written at once.
    Together,
    /// A sender waits for a peer that does not take its messages.
    Waiting,
    /// A refusal differs from a reply.
    Errors,
    /// A request can be taken back.
    Cancel,
    /// A request cannot be taken back, so its reply may come late.
    LateReplies,
    /// A peer can subscribe by a special frame.
    Subscribe,
    /// A delivery for a pattern with a wildcard contains its topic.
    Wildcards,
    /// A person or program can enter a room of the chat service.
    Chat,
    /// A member can list the members.
    List,
    /// A member can send a message to one member.
    Whisper,
    /// A member can leave and stay connected.
    Leave,
    /// The network brings frames twice, late and out of order.
    Copies,
}

impl CodecKind {
    /// All codecs, the native protocol and lines first.
    pub const ALL: [Self; 10] = [
        Self::Tw1,
        Self::Lines,
        Self::Json,
        Self::Srmp,
        Self::SrmpRpc,
        Self::LengthField,
        Self::Delimited,
        Self::Uvrpc,
        Self::Raw,
        Self::Custom,
    ];

    /// The codec.
    #[must_use]
    pub fn codec(self) -> AnyCodec {
        match self {
            Self::Custom => AnyCodec::custom(Checksum),
            known => AnyCodec::by_name(known.name()).expect("a built-in codec"),
        }
    }

    /// The codec's name in the matrix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tw1 => "tw1",
            Self::Lines => "lines",
            Self::Json => "json",
            Self::Srmp => "srmp",
            Self::SrmpRpc => "srmp-rpc",
            Self::LengthField => "length-field",
            Self::Delimited => "delimited",
            Self::Uvrpc => "uvrpc",
            Self::Raw => "raw",
            Self::Custom => "custom",
        }
    }

    /// The method of requests, for codecs that always name one.
    pub(super) const fn method(self) -> &'static str {
        match self {
            Self::SrmpRpc | Self::Uvrpc => "ask",
            _ => "",
        }
    }

    /// Whether it has the whole vocabulary of the native protocol.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Tw1 | Self::Json)
    }

    /// Whether every behaviour runs over every poller. A poller does not see the codec. So with other codecs,
    /// behaviours with their own server run over one poller.
    pub(super) const fn is_run_over_every_poller(self) -> bool {
        matches!(self, Self::Tw1 | Self::Lines)
    }

    /// Returns why this codec does not meet the requirement, if it does not.
    #[must_use]
    pub fn lacks(self, need: Need) -> Option<&'static str> {
        match (need, self) {
            (Need::Stream, Self::Raw) => None,
            (Need::Stream, _) => Some("it has frames, for which echo_of_many_sizes is the same"),
            (_, Self::Raw) => Some("it has no frames, so there are no messages to check"),
            (Need::Frames | Need::Pieces | Need::Together | Need::Waiting | Need::Copies, _) => {
                None
            }
            (Need::Errors, Self::Lines) => Some("a refusal is a line like a reply"),
            (Need::Errors, Self::LengthField | Self::Delimited) => {
                Some("it has no errors; a refusal ends the session (tests/foreign.rs)")
            }
            (Need::Errors, _) => None,
            (Need::LateReplies, Self::Tw1 | Self::Json) => {
                Some("the server is told instead, see cancelled_requests_are_not_answered")
            }
            (Need::LateReplies, _) => None,
            (Need::Wildcards, Self::Tw1 | Self::Json | Self::SrmpRpc | Self::Uvrpc) => None,
            (Need::Wildcards, _) => {
                Some("it has no names, so a wildcard's delivery could not say its topic")
            }
            (_, Self::Tw1 | Self::Json) | (Need::Chat, Self::Lines) => None,
            (Need::Cancel, _) => {
                Some("no frame takes a request back, see late_replies_are_counted")
            }
            (Need::Subscribe, _) => {
                Some("no frame subscribes; a service does, see exact_topics_reach_subscribers")
            }
            (Need::List, Self::Lines) => {
                Some("lines have no room calls; who is here is told at joining")
            }
            (Need::Whisper, Self::Lines) => Some("lines have no private messages to send"),
            (Need::Leave, Self::Lines) => Some("lines leave a room by closing"),
            (Need::Chat | Need::List | Need::Whisper | Need::Leave, _) => {
                Some("no frame enters a room; a service does, see rooms_reach_every_codec")
            }
        }
    }

    /// Sizes of payloads of requests and replies, around every known boundary: of headers, of a datagram filled with
    /// frames, of the receive buffer, of the rest of a frame that is read directly, of a line, of the frame limit.
    pub(super) fn payload_sizes(self, codec: &AnyCodec, frame_bytes_max: usize) -> Vec<usize> {
        let frame_bytes = |size: usize| {
            // Some bytes of the payloads take more than one byte of a frame, if the codec escapes any.
            let byte = if codec.format().payload_growth_max > 1 {
                b'"'
            } else {
                b'x'
            };
            let payload = vec![byte; size];
            let kind = if codec.format().has_ids() {
                Kind::Request
            } else {
                Kind::OneWay
            };
            let message = Message::with_id(kind, 0, 1, &payload).with_name(self.method());
            let mut frame = Vec::new();
            codec.encode(&message, &mut frame).ok()?;
            (frame.len() <= frame_bytes_max).then_some(frame.len())
        };
        let overhead = frame_bytes(1).map_or(0, |bytes| bytes - 1);
        let boundaries = [
            1, 12, 32, 255, 256, 1_460, 4096, 8191, 16_372, 65_535, 262_132, 262_144,
        ];
        let mut sizes: Vec<usize> = boundaries
            .into_iter()
            .flat_map(|size| [size - 1, size, size + 1])
            .chain([frame_bytes_max - overhead - 1, frame_bytes_max - overhead])
            .filter(|size| frame_bytes(*size).is_some())
            .collect();
        sizes.dedup();
        sizes
    }
}
