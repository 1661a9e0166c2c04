//! Replies at once.
//!
//! Problem: asking the codec for the header of a small reply, and checking its limits, takes longer than writing it. Approach:
//! most replies of a lane are of the same kind, channel and length, so the header of the last ones is kept, and the next
//! one like them is a few comparisons and a copy. Where something stands behind the payload, too, all that is around it is
//! kept. Kept is what came twice in a row: where lengths vary, nothing is.
//! Rejected: keeping it for each session, which every read would have to set up for what is the same in all of them.

use tidewire_io::append::{FrameAround, Header, SmallFrame};
use tidewire_proto::codec::Codec;
use tidewire_proto::message::{Kind, Message};

use crate::context::Context;
use crate::lane::Core;
use crate::service::{HandlerError, HandlerResult};

/// What the last replies of a lane had in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyShape {
    /// Kind and channel of the messages that were answered.
    kind: Kind,
    channel: u16,
    payload_bytes: usize,
    /// With the header.
    frame_bytes: usize,
    /// The bits of the number before the id that must be 0.
    id_mask: u32,
    header: Option<Header>,
    /// The same for payloads that are small.
    small: SmallFrame,
    /// What stands around payloads where the header is a longer one, or not all there is.
    around: Option<FrameAround>,
    /// No header of this codec can be kept.
    is_unwanted: bool,
}

impl ReplyShape {
    /// Nothing was answered yet.
    pub(crate) const NONE: Self = Self {
        kind: Kind::OneWay,
        channel: 0,
        payload_bytes: usize::MAX,
        // No reply may be so long, so that none is alike.
        frame_bytes: usize::MAX,
        id_mask: 0,
        header: None,
        small: SmallFrame::NONE,
        around: None,
        is_unwanted: false,
    };
}

impl Context<'_> {
    /// Answers the message being handled: a request with a reply of the same id, anything else with a one-way
    /// message on the same channel. Where replies are matched by their order, it waits for those that are deferred.
    ///
    /// # Errors
    /// The payload does not fit a frame of the codec.
    // One call with everything in it that is frequent: compiled into every handler it would make those too long to be
    // compiled into the lane's loop. What is rare is called last, so that this needs no frame of its own.
    #[inline(never)]
    pub fn reply(&mut self, payload: &[u8]) -> HandlerResult {
        if !self.is_alike() {
            return self.reply_by_codec(payload);
        }
        let small = &self.core.reply_shape.small;
        if small.append(self.current.id, payload, &mut self.output.bytes) {
            return Ok(());
        }
        self.reply_with_header(payload)
    }

    /// Both sides have agreed on the largest frame.
    pub(crate) fn set_frame_bytes_max(&mut self, bytes: usize) {
        self.frame_bytes_max = bytes;
        self.settle_replies();
    }

    /// Puts all that decides for every message whether a reply may go into the output as it is into one number. To be called
    /// when any of it has changed.
    pub(crate) fn settle_replies(&mut self) {
        // Where datagrams end is noted for each frame.
        let is_apart = self.keeps_order || self.output.packing.is_some();
        self.reply_bytes_max = if is_apart { 0 } else { self.frame_bytes_max };
    }

    /// Whether the header of the last replies is that of this one, too, if its payload is as long as theirs.
    #[inline(always)]
    fn is_alike(&self) -> bool {
        let (current, shape) = (&self.current, &self.core.reply_shape);
        // First what decides where nothing is kept.
        shape.frame_bytes <= self.reply_bytes_max
            && current.kind == shape.kind
            && current.channel == shape.channel
            && current.id.wrapping_sub(1) & shape.id_mask == 0
    }

    /// A larger reply, or the first one of a read, which finds no room, or one of another length, or with a longer header.
    #[inline(never)]
    fn reply_with_header(&mut self, payload: &[u8]) -> HandlerResult {
        if payload.len() == self.core.reply_shape.payload_bytes {
            if self.output.bytes.capacity() == 0 {
                self.output.bytes = self.core.buffers.take();
            }
            let (shape, out) = (&self.core.reply_shape, &mut self.output.bytes);
            let id = self.current.id;
            let is_done = match (&shape.around, &shape.header) {
                (Some(around), _) => around.append(id, payload, out),
                (None, Some(header)) => header.append(id, payload, out),
                (None, None) => false,
            };
            if is_done {
                return Ok(());
            }
        }
        self.reply_by_codec(payload)
    }

    #[inline(never)]
    fn reply_by_codec(&mut self, payload: &[u8]) -> HandlerResult {
        if self.current.named || self.keeps_order {
            return Ok(self.reply_apart(payload)?);
        }
        let before = self.output.bytes.len();
        self.send_at_once(&self.current.answer("", payload))
            .map_err(HandlerError::from)?;
        if !self.core.reply_shape.is_unwanted {
            self.note_reply(payload, before);
        }
        Ok(())
    }

    /// The codec has framed a reply with this payload, behind the first `before` bytes of the output.
    #[cold]
    fn note_reply(&mut self, payload: &[u8], before: usize) {
        let (current, shape) = (self.current, &mut self.core.reply_shape);
        let was_alike = current.kind == shape.kind
            && current.channel == shape.channel
            && payload.len() == shape.payload_bytes;
        if was_alike && shape.frame_bytes < usize::MAX {
            // It did for another session, or for want of room not for this one.
            return;
        }
        *shape = ReplyShape {
            kind: current.kind,
            channel: current.channel,
            payload_bytes: payload.len(),
            ..ReplyShape::NONE
        };
        if !was_alike {
            return;
        }
        let answer = current.answer("", payload);
        let frame = self.output.bytes.get(before..).unwrap_or_default();
        if !self.core.keep_head(&answer) && !self.core.keep_places(&answer, frame) {
            // What is too long to be kept says nothing about shorter replies, nor does a message that asked for nothing.
            let (codec, short) = (&self.core.shared.codec, current.answer("", &[]));
            let is_never_kept =
                codec.frame_head(&short).is_none() && codec.frame_places(&short).is_none();
            let is_usual = answer.kind == Kind::Reply || !codec.has_ids();
            self.core.reply_shape.is_unwanted = is_never_kept && is_usual;
        }
    }
}

impl Core {
    /// Keeps the header of an answer, if its frame is nothing but that and the payload.
    fn keep_head(&mut self, answer: &Message<'_>) -> bool {
        let (codec, shape) = (&self.shared.codec, &mut self.reply_shape);
        let head = codec.frame_head(answer);
        // Names that come back in replies differ from one to the next.
        let Some(head) = head.filter(|_| !codec.repeats_names()) else {
            return false;
        };
        let mut header = Header::new(head.word, head.bytes);
        // The id of an answer that is no reply is always 0.
        if head.has_sequence && answer.kind == Kind::Reply {
            header = header.with_sequence();
        }
        shape.id_mask = head.id_mask;
        let payload_bytes = answer.payload.len();
        shape.frame_bytes = head.bytes + payload_bytes;
        shape.header = Some(header);
        shape.small = SmallFrame::new(header, payload_bytes).unwrap_or(SmallFrame::NONE);
        true
    }

    /// Keeps what stands around the payload of an answer in its frame, if that is not too long.
    fn keep_places(&mut self, answer: &Message<'_>, frame: &[u8]) -> bool {
        let codec = &self.shared.codec;
        let places = codec.frame_places(answer);
        let Some(places) = places.filter(|_| !codec.repeats_names()) else {
            return false;
        };
        let payload_bytes = answer.payload.len();
        let around = FrameAround::of(frame, places.id_at, places.payload_at, payload_bytes);
        if around.is_some() {
            self.reply_shape.frame_bytes = frame.len();
            self.reply_shape.around = around;
        }
        around.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Current;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::transport::datagram::Packing;
    use tidewire_proto::codec::{AnyCodec, Codec};
    use tidewire_proto::message::Message;

    /// Messages to answer, mostly like the one before, and the length of the answer.
    fn messages() -> Vec<(Current, usize)> {
        let mut random = fastrand::Rng::with_seed(7);
        let kinds = [Kind::Request, Kind::OneWay, Kind::Publish];
        let (mut current, mut length) = (asked(Kind::Request, 0, 0), 20);
        (0..3_000)
            .map(|_| {
                match random.u32(0..16) {
                    0 => current.kind = kinds[random.usize(..3)],
                    1 => current.channel = random.u16(0..3),
                    2 => length = random.usize(0..100),
                    // Some of them are of few bits.
                    3 => current.id = random.u32(..) >> random.u32(0..32),
                    _ => current.id = current.id.wrapping_add(random.u32(0..2)),
                }
                (current, length)
            })
            .collect()
    }

    /// What a message of this kind leaves to answer.
    fn asked(kind: Kind, channel: u16, id: u32) -> Current {
        Current::of(&Message::with_id(kind, channel, id, &[]))
    }

    #[test]
    fn every_reply_is_framed_as_its_codec_frames_it() {
        let payload: Vec<u8> = (0..100).collect();
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            let mut lane = lane(&Server::builder().codec(codec.clone()));
            let ids = [(); 2].map(|()| {
                let (slot, _far) = lane.open_session();
                lane.core.sessions[slot].id
            });
            let mut expected = [Vec::new(), Vec::new()];
            let mut kept = 0;
            // A context is that of a read, which has some messages.
            for (read, messages) in messages().chunks(7).enumerate() {
                let mut cx = lane.core.context(ids[read % 2]);
                for &(mut current, length) in messages {
                    if !codec.has_ids() {
                        current.id = 0;
                    }
                    cx.current = current;
                    let answer = current.answer("", &payload[..length]);
                    let encoded = codec.encode(&answer, &mut expected[read % 2]);
                    assert_eq!(cx.reply(&payload[..length]).is_ok(), encoded.is_ok());
                    kept += u32::from(cx.core.reply_shape.frame_bytes < usize::MAX);
                }
            }
            for (id, expected) in ids.iter().zip(&expected) {
                let output = &lane.core.session(*id).unwrap().output;
                assert!(output.unsent() == expected, "{name}");
            }
            let keeps = ["tw1", "srmp", "length-field", "raw", "uvrpc"].contains(&name);
            assert_eq!(kept > 0, keeps, "{name}");
        }
    }

    #[test]
    fn replies_too_long_to_be_kept_say_nothing_about_shorter_ones() {
        // Six bytes and the length: three more are a header of nine, of which eight are looked at.
        let codec = AnyCodec::by_name("length-field:size=0,header=010203040506").unwrap();
        let mut lane = lane(&Server::builder().codec(codec.clone()));
        let (slot, _far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let (long, short) = (vec![1; 20_000], [2; 20]);
        let mut expected = Vec::new();
        let mut cx = lane.core.context(id);
        cx.current = asked(Kind::OneWay, 0, 0);
        for payload in [&long[..], &long, &short, &short, &short] {
            codec
                .encode(&cx.current.answer("", payload), &mut expected)
                .unwrap();
            cx.reply(payload).unwrap();
        }
        assert!(cx.core.reply_shape.header.is_some());
        drop(cx);
        assert_eq!(lane.core.sessions[slot].output.unsent(), expected);
    }

    #[test]
    fn a_header_that_is_kept_lifts_no_limit() {
        let mut lane = lane(&Server::builder());
        let [wide, narrow] = [(); 2].map(|()| lane.open_session().0);
        lane.core.sessions[narrow].connection.limit_frames(40);
        let payload = [1; 29];
        for slot in [wide, narrow, wide, narrow] {
            let id = lane.core.sessions[slot].id;
            let mut cx = lane.core.context(id);
            for number in 0..3 {
                cx.current = asked(Kind::Request, 0, number);
                assert_eq!(cx.reply(&payload).is_ok(), slot == wide);
            }
            assert!(cx.core.reply_shape.header.is_some());
        }
        let lengths = [wide, narrow].map(|slot| lane.core.sessions[slot].output.len());
        assert_eq!(lengths, [6 * 41, 0]);
        assert_eq!(lane.core.counters.sends_too_large.read(), 6);

        let nobody = lane.core.context_without_session().reply(&payload);
        assert!(nobody.is_err());
    }

    #[test]
    fn datagrams_end_where_each_reply_does() {
        let mut lane = lane(&Server::builder());
        let codec = lane.core.shared.codec.clone();
        let [stream, datagrams] = [(); 2].map(|()| lane.open_session().0);
        lane.core.sessions[datagrams].output.packing = Some(Box::new(Packing::new(&codec, 100)));
        for slot in [stream, datagrams] {
            let id = lane.core.sessions[slot].id;
            let mut cx = lane.core.context(id);
            for number in 0..6 {
                cx.current = asked(Kind::Request, 0, number);
                cx.reply(&[1; 20]).unwrap();
            }
            assert!(cx.core.reply_shape.header.is_some());
        }
        let packing = lane.core.sessions[datagrams].output.packing.take();
        let run = packing.unwrap().run(0).unwrap();
        assert_eq!(
            (run.segment_bytes, run.end),
            (96, 192),
            "three replies each"
        );
    }
}
