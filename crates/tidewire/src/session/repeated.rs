//! Repeated frames with the same name, copied from a pattern.
//!
//! Problem: the header of a message with a topic or a method's name is built byte by byte, which costs three times as
//! much as copying it. Approach: when two frames in a row have the same name and form, the frame is kept as a pattern.
//! The next such frame costs two comparisons and a copy. Names that alternate go through the codec, and cost one
//! comparison more.

use tidewire_io::append::{Appender, FramePattern};
use tidewire_proto::codec::{AnyCodec, Codec, FrameTemplate};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::{Kind, Message};

/// The last frame of a stream of messages, and the pattern for similar frames.
#[derive(Debug)]
pub(crate) struct RepeatedFrame {
    kind: Kind,
    channel: u16,
    name: String,
    payload_bytes: usize,
    /// Size of the pattern's frames. `usize::MAX` until a pattern was learned.
    frame_bytes: usize,
    pattern: FramePattern,
}

impl Default for RepeatedFrame {
    fn default() -> Self {
        Self {
            kind: Kind::OneWay,
            channel: 0,
            name: String::new(),
            payload_bytes: usize::MAX,
            frame_bytes: usize::MAX,
            pattern: FramePattern::NONE,
        }
    }
}

impl RepeatedFrame {
    /// Appends the frame of a message, with the same bytes as the codec writes.
    #[inline]
    pub(crate) fn encode(
        &mut self,
        codec: &AnyCodec,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        if self.is_like(message) && self.pattern.append(message.id, message.payload, out) {
            return Ok(());
        }
        self.encode_and_learn(codec, message, out)
    }

    /// As [`RepeatedFrame::encode`], for a stream in which only ids and payloads differ.
    #[inline(always)]
    pub(crate) fn encode_again(
        &mut self,
        codec: &AnyCodec,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        if self.pattern.append(message.id, message.payload, out) {
            return Ok(());
        }
        self.encode_and_learn(codec, message, out)
    }

    /// Appends the frame of a message to `out`, if the pattern fits the message and its frames are within the limit.
    /// Returns whether it does.
    #[inline(always)]
    pub(crate) fn append_within(
        &self,
        frame_bytes_max: usize,
        message: &Message<'_>,
        out: &mut Appender,
    ) -> bool {
        self.frame_bytes <= frame_bytes_max
            && self.is_like(message)
            && out.append_other(&self.pattern, message.id, message.payload)
    }

    /// Whether the pattern fits the message: kind, channel, flags and name.
    #[inline(always)]
    fn is_like(&self, message: &Message<'_>) -> bool {
        self.kind == message.kind
            && self.channel == message.channel
            && message.flags == 0
            && is_same_name(&self.name, message.name)
    }

    #[inline(never)]
    fn encode_and_learn(
        &mut self,
        codec: &AnyCodec,
        message: &Message<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let before = out.len();
        codec.encode(message, out)?;
        if self.is_like(message) && self.payload_bytes == message.payload.len() {
            if self.frame_bytes == usize::MAX {
                let frame = out.get(before..).unwrap_or_default();
                let pattern = frame_pattern(codec, frame, message, true);
                self.pattern = pattern.unwrap_or(FramePattern::NONE);
                self.frame_bytes = frame.len();
            }
            return Ok(());
        }
        (self.kind, self.channel) = (message.kind, message.channel);
        self.name.clear();
        self.name.push_str(message.name);
        self.payload_bytes = message.payload.len();
        (self.pattern, self.frame_bytes) = (FramePattern::NONE, usize::MAX);
        Ok(())
    }
}

/// Compares two names. Empty names skip the comparison: their pointer may point to no mapped page. The C library
/// compares zero bytes there with masked vector loads, which costs some hundred cycles.
#[inline(always)]
fn is_same_name(one: &str, other: &str) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

/// Learns the pattern of frames like this one, which the codec encoded from the message. Answers that are not replies
/// all have the id 0, so their id does not vary.
pub(crate) fn frame_pattern(
    codec: &AnyCodec,
    frame: &[u8],
    message: &Message<'_>,
    id_varies: bool,
) -> Option<FramePattern> {
    let template = FrameTemplate::learn(codec, frame, message)?;
    let layout = template.layout();
    let (id, first_id) = if id_varies {
        (layout.id(), layout.first_id())
    } else {
        (0..0, 0)
    };
    FramePattern::of(frame, &id, first_id, &layout.payload())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages whose name, kind, channel, id and length change from time to time.
    #[test]
    fn every_frame_is_the_one_of_its_codec() {
        let payload: Vec<u8> = (0..100).collect();
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            let mut random = fastrand::Rng::with_seed(11);
            let (mut repeated, mut patterns) = (RepeatedFrame::default(), 0);
            let mut message = Message::new(Kind::Publish, 0, &payload[..20]).with_name("a.topic");
            for _ in 0..3_000 {
                match random.u32(0..20) {
                    0 => {
                        let names = [
                            "",
                            "a.topic",
                            "b.topic",
                            "a.topic.that.is.too.long.to.be.kept",
                        ];
                        message.name = names[random.usize(..4)];
                    }
                    1 => {
                        let kinds = [Kind::Publish, Kind::Deliver, Kind::Request, Kind::OneWay];
                        message.kind = kinds[random.usize(..4)];
                    }
                    2 => message.channel = random.u16(0..3),
                    3 => message.payload = &payload[..random.usize(0..100)],
                    4 => message.flags = random.u8(0..2),
                    _ => message.id = random.u32(..) >> random.u32(0..32),
                }
                let (mut expected, mut encoded) = (vec![7], Vec::with_capacity(4096));
                encoded.push(7);
                let result = codec.encode(&message, &mut expected);
                assert_eq!(
                    repeated.encode(&codec, &message, &mut encoded),
                    result,
                    "{name}"
                );
                assert_eq!(encoded, expected, "{name}: {message:?}");
                patterns += u32::from(repeated.pattern != FramePattern::NONE);
            }
            let has_layouts = ["tw1", "srmp", "length-field", "raw", "uvrpc"].contains(&name);
            assert_eq!(patterns > 0, has_layouts, "{name}");
        }
    }
}
