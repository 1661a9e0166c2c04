//! The template that the replies of a lane share from one message to the next.

use tidewire_io::append::FramePattern;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::message::{Kind, Message};

use crate::broker::RemoteTicket;
use crate::config::CodecNumber;
use crate::session::{RepeatedFrame, frame_pattern};

/// The state of replies; see the module.
#[derive(Debug)]
pub(crate) struct Replies {
    /// The codec of the frames that are kept here.
    codec: CodecNumber,
    /// The name of the called method; empty if there is none.
    pub(crate) method_name: String,
    last_reply: LastReply,
    /// The last frame with a name that was sent to a session.
    pub(crate) repeated: RepeatedFrame,
    /// The length, kind and channel of the last frame for the service that the codec decoded.
    last_header: u64,
    /// The duty to answer the request of another node, while a handler has it.
    pub(crate) remote: Option<RemoteTicket>,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            codec: CodecNumber::MAIN,
            method_name: String::new(),
            last_reply: LastReply::NONE,
            repeated: RepeatedFrame::default(),
            last_header: 0,
            remote: None,
        }
    }
}

impl Replies {
    /// Prepares for replies with this codec. Frames of another codec are forgotten.
    #[inline(always)]
    pub(crate) fn speak(&mut self, codec: CodecNumber) {
        if codec != self.codec {
            self.change_codec(codec);
        }
    }

    #[cold]
    #[inline(never)]
    fn change_codec(&mut self, codec: CodecNumber) {
        self.codec = codec;
        self.last_reply = LastReply::NONE;
        self.repeated = RepeatedFrame::default();
    }

    /// The codec of the frames that are kept here.
    #[inline]
    pub(crate) fn codec_number(&self) -> CodecNumber {
        self.codec
    }

    /// Whether a reply to such a message matches the template, if its payload has the same length.
    #[inline(always)]
    pub(crate) fn matches(&self, origin: Origin, frame_bytes_max: usize) -> bool {
        // The first comparison already fails when there is no template.
        self.last_reply.frame_bytes <= frame_bytes_max && origin == self.last_reply.origin
    }

    /// Whether the template is for payloads of this length.
    #[inline]
    pub(crate) fn covers(&self, payload_bytes: usize) -> bool {
        payload_bytes == self.last_reply.payload_bytes
    }

    /// The template.
    #[inline(always)]
    pub(crate) fn pattern(&self) -> &FramePattern {
        &self.last_reply.pattern
    }

    /// Whether a template may be learned from a reply of this length.
    #[inline]
    pub(crate) fn may_learn(&self, payload_bytes: usize) -> bool {
        payload_bytes < self.last_reply.without_layout_from
    }

    /// Learns from a reply that the codec has framed.
    #[cold]
    pub(crate) fn learn(
        &mut self,
        codec: &AnyCodec,
        origin: Origin,
        answer: &Message<'_>,
        frame: &[u8],
    ) {
        let (last, payload_bytes) = (&mut self.last_reply, answer.payload.len());
        let is_repeated = origin == last.origin && payload_bytes == last.payload_bytes;
        if is_repeated && last.frame_bytes < usize::MAX {
            // The template is already known; only this session had no room, or accepts smaller frames.
            return;
        }
        last.origin = origin;
        (last.payload_bytes, last.frame_bytes) = (payload_bytes, usize::MAX);
        if !is_repeated {
            return;
        }
        // Names in replies differ from one to the next.
        if codec.format().repeats_names || codec.layout(frame, answer).is_none() {
            // An answer to a one-way message says nothing about the layout of replies.
            if answer.kind == Kind::Reply || !codec.format().has_ids() {
                last.without_layout_from = payload_bytes;
            }
        } else if let Some(pattern) =
            frame_pattern(codec, frame, answer, answer.kind == Kind::Reply)
        {
            last.frame_bytes = frame.len();
            last.pattern = pattern;
        }
    }

    /// Notes the header of a frame for the service. Returns whether the frame before had the same header.
    #[inline(always)]
    pub(crate) fn repeats_header(&mut self, header: u64) -> bool {
        std::mem::replace(&mut self.last_header, header) == header
    }

    #[cfg(test)]
    pub(crate) fn has_template(&self) -> bool {
        self.last_reply.frame_bytes < usize::MAX
    }
}

/// The template of a lane's last replies.
#[derive(Clone, Copy, Debug)]
struct LastReply {
    /// The kind and channel of the answered messages.
    origin: Origin,
    payload_bytes: usize,
    /// The length of a frame of the template.
    frame_bytes: usize,
    pattern: FramePattern,
    /// The payload length from which on the codec has no layout for replies.
    without_layout_from: usize,
}

impl LastReply {
    /// The value before the first reply.
    const NONE: Self = Self {
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
