//! Immediate replies.
//!
//! Problem: asking the codec for the header of a small reply and checking its limits takes longer than writing it.
//! Approach: most replies of a lane have the same kind, channel and length, so the lane keeps the template of the last
//! ones. The next such reply costs a few comparisons and a copy. A template is learned from two equal replies in a row;
//! if lengths vary, none is learned. Rejected: one template for each session, because every read would have to set up
//! the same template again.

use tidewire_proto::codec::Codec;
use tidewire_proto::message::Kind;

use super::Context;
use crate::engine::Core;
use crate::service::{HandlerError, HandlerResult};
use crate::session::frame_pattern;

impl Context<'_> {
    /// Answers the message being handled: a request with a reply of the same id, any other message with a one-way
    /// message on the same channel. If replies are matched by their order, the reply waits for earlier deferred ones. It comes after
    /// what this handler has [published](crate::TopicActions::publish) and said to the same session before.
    ///
    /// # Errors
    /// The payload does not fit a frame of the codec.
    // This function is not inlined: inlined into every handler, it would make handlers too long to be inlined into
    // the lane's loop. The rare cases are tail calls, so that it needs no stack frame.
    #[inline(never)]
    pub fn reply(&mut self, payload: &[u8]) -> HandlerResult {
        if !self.matches_template() {
            return self.reply_by_codec(payload);
        }
        let Core {
            sessions, replies, ..
        } = &mut *self.core;
        let (pattern, id) = (&replies.last_reply.pattern, self.current.id);
        if sessions.outputs.append_small(pattern, id, payload) {
            self.handle_appended();
            return Ok(());
        }
        self.reply_by_pattern(payload)
    }

    /// Sets the largest frame, once both sides have agreed on it.
    pub(crate) fn set_frame_bytes_max(&mut self, bytes: usize) {
        self.frame_bytes_max = bytes;
        self.update_fast_reply_limit();
    }

    /// Precomputes the largest reply that can take the fast path. Call it again when codec, order or frame limit change.
    pub(crate) fn update_fast_reply_limit(&mut self) {
        // The end of each datagram must be recorded, so no reply takes the fast path.
        let is_apart = self.keeps_order
            || self.follows_rooms
            || self.core.sessions.outputs.current().has_datagrams();
        self.reply_bytes_max = if is_apart { 0 } else { self.frame_bytes_max };
    }

    /// Whether this reply matches the template, if its payload has the same length.
    #[inline(always)]
    fn matches_template(&self) -> bool {
        let (current, last) = (&self.current, &self.core.replies.last_reply);
        // The first comparison already fails when there is no template.
        last.frame_bytes <= self.reply_bytes_max && current.origin == last.origin
    }

    /// Appends a reply that is large, is the first of a read and needs a buffer, or has another length or a longer
    /// header.
    #[inline(never)]
    fn reply_by_pattern(&mut self, payload: &[u8]) -> HandlerResult {
        if payload.len() == self.core.replies.last_reply.payload_bytes {
            let Core {
                sessions, replies, ..
            } = &mut *self.core;
            let (pattern, id) = (&replies.last_reply.pattern, self.current.id);
            if sessions.outputs.append_pattern(pattern, id, payload) {
                self.handle_appended();
                return Ok(());
            }
        }
        self.reply_by_codec(payload)
    }

    #[inline(never)]
    fn reply_by_codec(&mut self, payload: &[u8]) -> HandlerResult {
        if self.follows_rooms {
            self.follow_rooms();
            return self.reply(payload);
        }
        if self.current.named || self.keeps_order {
            return Ok(self.reply_apart(payload)?);
        }
        let before = self.core.sessions.outputs.current().len();
        self.send_at_once(&self.current.answer("", payload))
            .map_err(HandlerError::from)?;
        if payload.len() < self.core.replies.last_reply.without_layout_from {
            self.note_reply(payload, before);
        }
        Ok(())
    }

    /// Learns from a reply that the codec has framed after the first `before` bytes of the output.
    #[cold]
    fn note_reply(&mut self, payload: &[u8], before: usize) {
        let Core {
            sessions,
            replies,
            config,
            ..
        } = &mut *self.core;
        let (current, last) = (self.current, &mut replies.last_reply);
        let is_repeated = current.origin == last.origin && payload.len() == last.payload_bytes;
        if is_repeated && last.frame_bytes < usize::MAX {
            // The template is already known; only this session had no room, or accepts smaller frames.
            return;
        }
        last.origin = current.origin;
        (last.payload_bytes, last.frame_bytes) = (payload.len(), usize::MAX);
        if !is_repeated {
            return;
        }
        let (codec, answer) = (&config.codec, current.answer("", payload));
        let output = sessions.outputs.current().unsent();
        let frame = output.get(before..).unwrap_or_default();
        // Names in replies differ from one to the next.
        if codec.format().repeats_names || codec.layout(frame, &answer).is_none() {
            // An answer to a one-way message says nothing about the layout of replies.
            if answer.kind == Kind::Reply || !codec.format().has_ids() {
                last.without_layout_from = payload.len();
            }
        } else if let Some(pattern) =
            frame_pattern(codec, frame, &answer, answer.kind == Kind::Reply)
        {
            last.frame_bytes = frame.len();
            last.pattern = pattern;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Origin;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::service::Current;
    use crate::session::Output;
    use crate::transport::datagram::Packing;
    use tidewire_proto::codec::{AnyCodec, Codec};
    use tidewire_proto::message::Message;

    /// Makes messages to answer, mostly like the one before, and the length of each answer.
    fn messages() -> Vec<(Current, usize)> {
        let mut random = fastrand::Rng::with_seed(7);
        let kinds = [Kind::Request, Kind::OneWay, Kind::Publish];
        let (mut current, mut length) = (asked(Kind::Request, 0, 0), 20);
        (0..3_000)
            .map(|_| {
                match random.u32(0..16) {
                    0 => {
                        let kind = kinds[random.usize(..3)];
                        current.origin = Origin::new(kind, current.origin.channel());
                    }
                    1 => current.origin = Origin::new(current.origin.kind(), random.u16(0..3)),
                    2 => length = random.usize(0..100),
                    // Some ids have few bits.
                    3 => current.id = random.u32(..) >> random.u32(0..32),
                    _ => current.id = current.id.wrapping_add(random.u32(0..2)),
                }
                (current, length)
            })
            .collect()
    }

    /// Makes the current message for a message of this kind.
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
            // A context serves one read, which has several messages.
            for (read, messages) in messages().chunks(7).enumerate() {
                let mut cx = lane.core.context(ids[read % 2]);
                for &(mut current, length) in messages {
                    if !codec.format().has_ids() {
                        current.id = 0;
                    }
                    cx.current = current;
                    let answer = current.answer("", &payload[..length]);
                    let encoded = codec.encode(&answer, &mut expected[read % 2]);
                    assert_eq!(cx.reply(&payload[..length]).is_ok(), encoded.is_ok());
                    kept += u32::from(cx.core.replies.last_reply.frame_bytes < usize::MAX);
                }
            }
            for (id, expected) in ids.iter().zip(&expected) {
                let output = lane.core.sessions.outputs.of(id.slot());
                assert!(output.unsent() == expected, "{name}");
            }
            let keeps = ["tw1", "srmp", "length-field", "raw", "uvrpc"].contains(&name);
            assert_eq!(kept > 0, keeps, "{name}");
        }
    }

    #[test]
    fn replies_too_long_to_be_kept_say_nothing_about_shorter_ones() {
        // The header has six bytes and a length. A length of three bytes makes it nine bytes long, and templates
        // cover eight.
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
        assert!(cx.core.replies.last_reply.frame_bytes < usize::MAX);
        drop(cx);
        assert_eq!(lane.core.sessions.outputs.of(slot).unsent(), expected);
    }

    #[test]
    fn a_header_that_is_kept_lifts_no_limit() {
        let mut lane = lane(&Server::builder());
        let [wide, narrow] = [(); 2].map(|()| lane.open_session().0);
        lane.core.sessions[narrow]
            .connection
            .handshake_mut()
            .limit_frames(40);
        let payload = [1; 29];
        for slot in [wide, narrow, wide, narrow] {
            let id = lane.core.sessions[slot].id;
            let mut cx = lane.core.context(id);
            for number in 0..3 {
                cx.current = asked(Kind::Request, 0, number);
                assert_eq!(cx.reply(&payload).is_ok(), slot == wide);
            }
            assert!(cx.core.replies.last_reply.frame_bytes < usize::MAX);
        }
        let lengths = [wide, narrow].map(|slot| lane.core.sessions.outputs.of(slot).len());
        assert_eq!(lengths, [6 * 41, 0]);
        assert_eq!(lane.core.counters.sends_too_large.read(), 6);

        let nobody = lane.core.context_without_session().reply(&payload);
        assert!(nobody.is_err());
    }

    #[test]
    fn datagrams_end_where_each_reply_does() {
        let mut lane = lane(&Server::builder());
        let codec = lane.core.config.codec.clone();
        let [stream, datagrams] = [(); 2].map(|()| lane.open_session().0);
        let packing = Some(Box::new(Packing::new(&codec, 100)));
        lane.core
            .sessions
            .replace_output(datagrams, Output::new(packing));
        for slot in [stream, datagrams] {
            let id = lane.core.sessions[slot].id;
            let mut cx = lane.core.context(id);
            for number in 0..6 {
                cx.current = asked(Kind::Request, 0, number);
                cx.reply(&[1; 20]).unwrap();
            }
            assert!(cx.core.replies.last_reply.frame_bytes < usize::MAX);
        }
        let run = lane.core.sessions.outputs.of(datagrams).first_run();
        assert_eq!(run, Some((96, 192)), "three replies each");
    }
}
