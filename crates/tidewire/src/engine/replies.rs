//! The pattern that replies of a lane share from one message to the next.

use tidewire_io::append::FramePattern;
use tidewire_proto::message::Kind;

/// See the module.
#[derive(Debug)]
pub(crate) struct Replies {
    /// Name of the method being called, if it has one.
    pub(crate) method_name: String,
    pub(crate) last_reply: LastReply,
    /// Length, kind and channel of the last frame for the service that the codec decoded.
    pub(crate) last_header: u64,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            method_name: String::new(),
            last_reply: LastReply::NONE,
            last_header: 0,
        }
    }
}

/// The pattern of the last replies of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastReply {
    /// Of the messages that were answered.
    pub(crate) origin: Origin,
    pub(crate) payload_bytes: usize,
    /// Bytes of a frame of the pattern.
    pub(crate) frame_bytes: usize,
    pub(crate) pattern: FramePattern,
    /// The codec has no layout for replies with payloads of so many bytes; then nor has it for longer ones.
    pub(crate) without_layout_from: usize,
}

impl LastReply {
    /// Nothing was answered yet.
    pub(crate) const NONE: Self = Self {
        origin: Origin::new(Kind::OneWay, 0),
        payload_bytes: usize::MAX,
        // No reply may be so long, so that none is alike.
        frame_bytes: usize::MAX,
        pattern: FramePattern::NONE,
        without_layout_from: usize::MAX,
    };
}

/// Kind and channel of a message, in one word: every reply is compared with the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u32);

impl Origin {
    #[inline(always)]
    pub(crate) const fn new(kind: Kind, channel: u16) -> Self {
        Self((kind as u32) << u16::BITS | channel as u32)
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        Kind::from_wire((self.0 >> u16::BITS) as u8).unwrap_or(Kind::OneWay)
    }

    /// Whether such a message is answered by a reply.
    #[inline(always)]
    pub(crate) const fn asks(self) -> bool {
        ASKING_KINDS >> (self.0 >> u16::BITS) & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn channel(self) -> u16 {
        self.0 as u16
    }
}

/// A bit for the number of every kind that a reply answers.
const ASKING_KINDS: u32 = 1 << Kind::Request as u8
    | 1 << Kind::Join as u8
    | 1 << Kind::Leave as u8
    | 1 << Kind::Subscribe as u8
    | 1 << Kind::Unsubscribe as u8;
