//! Immediate replies.
//!
//! Problem: asking the codec for the header of a small reply and checking its limits takes longer than writing it.
//! Approach: most replies of a lane have the same kind, channel and length, so the lane keeps the template of the last
//! ones. The next such reply costs a few comparisons and a copy. A template is learned from two equal replies in a row;
//! if lengths vary, none is learned. Rejected: one template for each session, because every read would have to set up
//! the same template again.

use super::CallState;
use crate::engine::Core;
use crate::service::{HandlerError, HandlerResult};

impl CallState {
    /// Sends a reply to the message being handled; see [`Context::reply`](crate::Context::reply).
    // This function is not inlined: inlined into every handler, it would make handlers too long to be inlined into
    // the lane's loop. The rare cases are tail calls, so that it needs no stack frame.
    #[inline(never)]
    pub(in crate::service) fn reply(&mut self, core: &mut Core, payload: &[u8]) -> HandlerResult {
        if !core
            .replies
            .matches(self.current.origin, self.reply_bytes_max)
        {
            return self.reply_by_codec(core, payload);
        }
        let Core {
            sessions, replies, ..
        } = core;
        if sessions
            .outputs
            .append_small(replies.pattern(), self.current.id, payload)
        {
            self.note_appended(sessions);
            return Ok(());
        }
        self.reply_by_pattern(core, payload)
    }

    /// Appends a reply that is large, is the first of a read and needs a buffer, or has another length or a longer
    /// header.
    #[inline(never)]
    fn reply_by_pattern(&mut self, core: &mut Core, payload: &[u8]) -> HandlerResult {
        let Core {
            sessions, replies, ..
        } = core;
        if replies.covers(payload.len())
            && sessions
                .outputs
                .append_pattern(replies.pattern(), self.current.id, payload)
        {
            self.note_appended(sessions);
            return Ok(());
        }
        self.reply_by_codec(core, payload)
    }

    #[inline(never)]
    fn reply_by_codec(&mut self, core: &mut Core, payload: &[u8]) -> HandlerResult {
        if self.follows_rooms {
            self.follow_rooms(&mut core.sessions);
            return self.reply(core, payload);
        }
        if self.current.named || self.keeps_order {
            return Ok(self.reply_apart(core, payload)?);
        }
        let before = core.sessions.outputs.current().len();
        let answer = self.current.answer("", payload);
        self.send_at_once(&mut core.sessions, &answer)
            .map_err(HandlerError::from)?;
        if core.replies.may_learn(payload.len()) {
            let output = core.sessions.outputs.current().unsent();
            let frame = output.get(before..).unwrap_or_default();
            let codec = core.config.codecs.get(self.codec);
            core.replies
                .learn(codec, self.current.origin, &answer, frame);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::config::CodecNumber;
    use crate::engine::Origin;
    use crate::lane::lane;
    use crate::server::Server;
    use crate::service::call::Current;
    use crate::session::Output;
    use crate::transport::datagram::Packing;
    use tidewire_proto::codec::{AnyCodec, Codec};
    use tidewire_proto::message::{Kind, Message};

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
                    cx.call.current = current;
                    let answer = current.answer("", &payload[..length]);
                    let encoded = codec.encode(&answer, &mut expected[read % 2]);
                    assert_eq!(cx.reply(&payload[..length]).is_ok(), encoded.is_ok());
                    kept += u32::from(cx.core.replies.has_template());
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
        cx.call.current = asked(Kind::OneWay, 0, 0);
        for payload in [&long[..], &long, &short, &short, &short] {
            codec
                .encode(&cx.call.current.answer("", payload), &mut expected)
                .unwrap();
            cx.reply(payload).unwrap();
        }
        assert!(cx.core.replies.has_template());
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
                cx.call.current = asked(Kind::Request, 0, number);
                assert_eq!(cx.reply(&payload).is_ok(), slot == wide);
            }
            assert!(cx.core.replies.has_template());
        }
        let lengths = [wide, narrow].map(|slot| lane.core.sessions.outputs.of(slot).len());
        assert_eq!(lengths, [6 * 41, 0]);
        assert_eq!(lane.core.counters.sends_too_large.read(), 6);

        let nobody = lane.core.context_without_session().reply(&payload);
        assert!(nobody.is_err());
    }

    /// Regression: each turn of the service, which is about no session, forgot the templates of a session whose codec
    /// is not the main one.
    #[test]
    fn a_turn_keeps_the_templates_of_any_codec() {
        let mut lane = lane(&Server::builder());
        let other = CodecNumber::of_other(0);
        lane.core.replies.speak(other);
        lane.turn();
        assert_eq!(lane.core.replies.codec_number(), other);
    }

    #[test]
    fn datagrams_end_where_each_reply_does() {
        let mut lane = lane(&Server::builder());
        let codec = lane.core.config.codecs.main().clone();
        let [stream, datagrams] = [(); 2].map(|()| lane.open_session().0);
        let packing = Some(Box::new(Packing::new(&codec, 100)));
        lane.core
            .sessions
            .replace_output(datagrams, Output::new(CodecNumber::MAIN, packing));
        for slot in [stream, datagrams] {
            let id = lane.core.sessions[slot].id;
            let mut cx = lane.core.context(id);
            for number in 0..6 {
                cx.call.current = asked(Kind::Request, 0, number);
                cx.reply(&[1; 20]).unwrap();
            }
            assert!(cx.core.replies.has_template());
        }
        let run = lane.core.sessions.outputs.of(datagrams).first_run();
        assert_eq!(run, Some((96, 192)), "three replies each");
    }
}
