//! The template that the replies of a lane share from one message to the next.

use tidewire_io::append::FramePattern;
use tidewire_proto::message::Kind;

use crate::broker::RemoteTicket;
use crate::session::RepeatedFrame;

/// The state of replies; see the module.
#[derive(Debug)]
pub(crate) struct Replies {
    /// The name of the called method; empty if there is none.
    pub(crate) method_name: String,
    pub(crate) last_reply: LastReply,
    /// The last frame with a name that was sent to a session.
    pub(crate) repeated: RepeatedFrame,
    /// The length, kind and channel of the last frame for the service that the codec decoded.
    pub(crate) last_header: u64,
    /// The duty to answer the request of another node, while a handler has it.
    pub(crate) remote: Option<RemoteTicket>,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            method_name: String::new(),
            last_reply: LastReply::NONE,
            repeated: RepeatedFrame::default(),
            last_header: 0,
            remote: None,
        }
    }
}

/// The template of a lane's last replies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastReply {
    /// The kind and channel of the answered messages.
    pub(crate) origin: Origin,
    pub(crate) payload_bytes: usize,
    /// The length of a frame of the template.
    pub(crate) frame_bytes: usize,
    pub(crate) pattern: FramePattern,
    /// The payload length from which on the codec has no layout for replies.
    pub(crate) without_layout_from: usize,
}

impl LastReply {
    /// The value before the first reply.
    pub(crate) const NONE: Self = Self {
        origin: Origin::new(Kind::OneWay, 0),
        payload_bytes: usize::MAX,
        // No reply is this long, so none matches.
        frame_bytes: usize::MAX,
        pattern: FramePattern::NONE,
        without_layout_from: usize::MAX,
    };
}

/// The kind and channel of a message in one word, because every reply is compared with the last one.
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

    /// Whether such a message is answered with a reply.
    #[inline(always)]
    pub(crate) const fn asks(self) -> bool {
        ASKING_KINDS >> (self.0 >> u16::BITS) & 1 != 0
    }

    #[inline(always)]
    pub(crate) const fn channel(self) -> u16 {
        self.0 as u16
    }
}

/// One bit for each kind that a reply answers.
const ASKING_KINDS: u32 = 1 << Kind::Request as u8
    | 1 << Kind::Join as u8
    | 1 << Kind::Leave as u8
    | 1 << Kind::Subscribe as u8
    | 1 << Kind::Unsubscribe as u8;
