//! Many messages to one session.
//!
//! Problem: a message that is sent by itself costs several times what it takes to write its bytes: its session is found,
//! its limits are checked, its codec is asked, and so is the list of sessions to flush. Approach: a sender finds the session
//! and its limits once, and remembers what stood in front of the last message. One of the same shape is a few comparisons
//! and a copy; every other goes through the codec. Rejected: a sender compiled for each codec into whoever sends, which had
//! more to choose and to keep at hand for every message than this compares.
//!
//! Nothing outside this file gets the address of a sender, so that the compiler may keep it in registers: through memory, the
//! length of the output would have to be stored and loaded again between any two messages.

use tidewire_io::append::Appender;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use crate::context::{Context, SendError, encode_within};
use crate::lane::{BatchEntry, Core};
use crate::session::{Output, SessionId};

/// Sends messages to one session; see [`Context::sender`].
///
/// What it was given is written at the end of the turn, or as soon as the sender is dropped if it is a block of 64 KiB.
#[derive(Debug)]
pub struct SessionSender<'a> {
    place: Place<'a>,
    /// The bytes of the session's output, held here until the end.
    output: Appender,
    shape: Shape,
}

/// Where the messages go.
#[derive(Debug)]
struct Place<'a> {
    core: &'a mut Core,
    target: Target<'a>,
    /// Largest frame that both sides take.
    frame_bytes_max: usize,
    /// Bytes of the output, with those that went already, above which messages are refused.
    full_above: usize,
}

/// Whose the output is.
#[derive(Debug)]
enum Target<'a> {
    /// The context's that the sender comes from.
    Current(&'a mut Output),
    /// A session's of this lane, by its slot.
    Local(usize),
    /// Nobody's: each frame goes to another lane by itself.
    Remote(SessionId),
}

/// What a message must be for the header of the last one to stand in front of it.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Kind, flags and channel.
    word: u32,
    /// The bits of the id that matter, and what they must be.
    id_mask: u32,
    id: u32,
}

impl<'a> SessionSender<'a> {
    pub(crate) fn open(cx: &'a mut Context<'_>, id: SessionId) -> Result<Self, SendError> {
        if id == SessionId::NONE {
            return Err(SendError::NotOpen);
        }
        let Context {
            core,
            id: current,
            output,
            frame_bytes_max,
            ..
        } = cx;
        let (target, bytes, frame_bytes_max, full_above) = if id == *current {
            // It is not read while its output is full, so that its own messages need no refusal.
            let bytes = core.lend_bytes(output);
            (Target::Current(output), bytes, *frame_bytes_max, usize::MAX)
        } else if id.lane() == core.lane {
            let lent = core.lend_output(id)?;
            let target = Target::Local(id.slot());
            (target, lent.bytes, lent.frame_bytes_max, lent.full_above)
        } else {
            let bytes = core.buffers.take();
            (Target::Remote(id), bytes, usize::MAX, usize::MAX)
        };
        Ok(Self {
            place: Place {
                core,
                target,
                frame_bytes_max,
                full_above,
            },
            output: Appender::new(bytes),
            shape: Shape::ANY,
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The session's queue is full, the codec cannot express the message, or its frame is larger than what both sides
    /// agreed to take. A session on another lane may turn out to be gone or full later; that is counted in
    /// `sends_refused`.
    // Compiled into the loop of whoever sends, where most of the message is known.
    #[inline(always)]
    pub fn send(&mut self, message: &Message<'_>) -> Result<(), SendError> {
        if self.shape.is_of(message) && self.output.append(message.id, message.payload) {
            return Ok(());
        }
        // The copies leave the message and the sender themselves in registers.
        let message = *message;
        let sent = self
            .place
            .lend()
            .send_apart(self.output.take_bytes(), &message);
        (self.output, self.shape) = (sent.output, sent.shape);
        sent.result
    }
}

impl Drop for SessionSender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.lend().give_back(self.output.take_bytes());
    }
}

/// What sending a message by itself leaves.
struct Sent {
    output: Appender,
    shape: Shape,
    result: Result<(), SendError>,
}

impl Place<'_> {
    /// The same, for a call.
    #[inline(always)]
    fn lend(&mut self) -> Place<'_> {
        Place {
            core: self.core,
            target: match &mut self.target {
                Target::Current(output) => Target::Current(output),
                Target::Local(slot) => Target::Local(*slot),
                Target::Remote(id) => Target::Remote(*id),
            },
            ..*self
        }
    }

    /// Sends a message of another shape than the last one, or that finds no room, or that goes another way.
    #[inline(never)]
    fn send_apart(self, mut bytes: Vec<u8>, message: &Message<'_>) -> Sent {
        let core = self.core;
        if bytes.len() > self.full_above {
            return Sent {
                output: Appender::new(bytes),
                shape: Shape::ANY,
                result: Err(core.refuse_to_send(SendError::QueueFull)),
            };
        }
        let shared = &core.shared;
        let encoded = encode_within(self.frame_bytes_max, &mut bytes, |out| {
            shared.codec.encode(message, out)
        });
        if let Err(EncodeError::PayloadTooLarge { .. }) = &encoded {
            core.counters.sends_too_large.add(1);
        }
        let (packing, is_remote) = match self.target {
            Target::Current(output) => (output.packing.as_mut(), false),
            Target::Local(slot) => (core.sessions[slot].output.packing.as_mut(), false),
            Target::Remote(id) => {
                if !bytes.is_empty() {
                    let frame = &bytes;
                    core.batch(id.lane(), &BatchEntry::Session { id, frame });
                }
                bytes.clear();
                (None, true)
            }
        };
        let goes_apart = packing.is_some() || is_remote || encoded.is_err();
        if let Some(packing) = packing {
            packing.handle_appended(&bytes, &core.shared.codec);
        }
        let output = Appender::new(bytes);
        let (output, shape) = if goes_apart {
            (output, Shape::ANY)
        } else {
            Shape::of(message, output, &core.shared.codec, self.full_above)
        };
        Sent {
            output,
            shape,
            result: encoded.map_err(SendError::from),
        }
    }

    /// The sender ends.
    #[inline(never)]
    fn give_back(self, bytes: Vec<u8>) {
        match self.target {
            Target::Current(output) => output.bytes = bytes,
            Target::Local(slot) => self.core.return_output(slot, bytes),
            Target::Remote(_) => self.core.buffers.put(bytes),
        }
    }
}

impl Shape {
    /// The appender knows none.
    const ANY: Self = Self {
        word: 0,
        id_mask: 0,
        id: 0,
    };

    /// That of a message which the codec has just appended, and an appender for more of them.
    fn of(
        message: &Message<'_>,
        output: Appender,
        codec: &AnyCodec,
        full_above: usize,
    ) -> (Appender, Self) {
        let Some(head) = codec.frame_head(message) else {
            return (output, Self::ANY);
        };
        let id_mask = if head.id_matters { u32::MAX } else { 0 };
        let shape = Self {
            word: word_of(message),
            id_mask,
            id: message.id & id_mask,
        };
        let payload_bytes = message.payload.len();
        let output = output.with_shape(head.word, head.bytes, payload_bytes, full_above);
        (output, shape)
    }

    #[inline(always)]
    fn is_of(self, message: &Message<'_>) -> bool {
        word_of(message) == self.word
            && message.id & self.id_mask == self.id
            && message.name.is_empty()
    }
}

/// Kind, flags and channel in one word.
#[inline(always)]
fn word_of(message: &Message<'_>) -> u32 {
    u32::from(message.kind as u8) | u32::from(message.flags) << 8 | u32::from(message.channel) << 16
}

#[cfg(test)]
mod tests {
    use tidewire_proto::message::Kind;

    use super::*;
    use crate::lane::lane;
    use crate::limits::Limits;
    use crate::server::Server;
    use crate::transport::datagram::Packing;

    /// Their frames are less than a block in every codec.
    const MESSAGES: usize = 500;

    /// Messages of all shapes, many of which follow one that is alike, and some that no codec can express.
    fn messages(payload: &[u8]) -> Vec<Message<'_>> {
        let mut random = fastrand::Rng::with_seed(5);
        let mut messages: Vec<Message<'_>> = Vec::new();
        for _ in 0..MESSAGES {
            let next = match messages.last() {
                Some(last) if random.u8(..) < 160 => Message {
                    id: last.id + u32::from(random.bool()),
                    ..*last
                },
                _ => {
                    let kinds = [Kind::OneWay, Kind::Request, Kind::Reply, Kind::Say];
                    let length = random.usize(0..45);
                    let at = random.usize(0..payload.len() - length);
                    Message {
                        kind: kinds[random.usize(0..4)],
                        flags: random.u8(0..3) << 2,
                        channel: random.u16(0..3),
                        id: random.u32(0..5),
                        name: ["", "", "method"][random.usize(0..3)],
                        payload: &payload[at..at + length],
                    }
                }
            };
            messages.push(next);
        }
        messages
    }

    #[test]
    fn every_message_is_framed_as_its_codec_frames_it() {
        let payload: Vec<u8> = (0..=255).collect();
        for name in AnyCodec::NAMES {
            let codec = AnyCodec::by_name(name).unwrap();
            let mut lane = lane(&Server::builder().codec(codec.clone()));
            let (slot, _far) = lane.open_session();
            let id = lane.core.sessions[slot].id;
            for is_current in [false, true] {
                let mut expected = Vec::new();
                let mut cx = match is_current {
                    false => lane.core.context_without_session(),
                    true => lane.core.context(id),
                };
                let mut sender = cx.sender(id).unwrap();
                let (mut taken, mut refused) = (0, 0);
                for message in messages(&payload) {
                    let encoded = codec.encode(&message, &mut expected);
                    *(if encoded.is_ok() {
                        &mut taken
                    } else {
                        &mut refused
                    }) += 1;
                    assert_eq!(sender.send(&message), encoded.map_err(SendError::from));
                }
                assert!(taken > 0 && taken + refused == MESSAGES, "{name}");
                drop(sender);
                drop(cx);
                let session = &mut lane.core.sessions[slot];
                assert!(session.output.bytes == expected && session.dirty, "{name}");
                session.output.bytes.clear();
            }
        }
    }

    #[test]
    fn limits_hold_message_by_message() {
        let limits = Limits {
            queue_bytes_max: 100,
            ..Limits::default()
        };
        let mut lane = lane(&Server::builder().limits(limits));
        let (slot, _far) = lane.open_session();
        lane.core.sessions[slot].frame_bytes_max = 40;
        let id = lane.core.sessions[slot].id;
        let mut cx = lane.core.context_without_session();
        let mut sender = cx.sender(id).unwrap();
        let (small, large) = ([1; 24], [2; 33]);
        let large = Message::new(Kind::OneWay, 0, &large);
        let small = Message::new(Kind::OneWay, 0, &small);
        let too_large = EncodeError::PayloadTooLarge {
            bytes: 41,
            limit: 40,
        };
        let sent = [small, small, large, small, small, small, small];
        let results = sent.map(|message| sender.send(&message));
        drop(sender);
        drop(cx);
        // The fourth small one passes the limit, and no other is taken behind it.
        let full = Err(SendError::QueueFull);
        let expected = [
            Ok(()),
            Ok(()),
            Err(too_large.into()),
            Ok(()),
            Ok(()),
            full,
            full,
        ];
        assert_eq!(results, expected);
        assert_eq!(lane.core.sessions[slot].output.len(), 4 * 32);
        assert_eq!(lane.core.counters.sends_refused.read(), 2);
        assert_eq!(lane.core.counters.sends_too_large.read(), 1);

        lane.core.close(slot, crate::CloseReason::Service);
        let mut cx = lane.core.context_without_session();
        assert_eq!(cx.sender(id).unwrap_err(), SendError::NotOpen);
        let nobody = cx.sender(SessionId::NONE).unwrap_err();
        assert_eq!(nobody, SendError::NotOpen);
    }

    #[test]
    fn a_block_is_written_at_once_and_less_at_the_end_of_the_turn() {
        const BLOCK: usize = 2_048;
        let mut lane = lane(&Server::builder());
        let (slot, mut far) = lane.open_session();
        let id = lane.core.sessions[slot].id;
        let send = |core: &mut Core, count: usize| {
            let mut cx = core.context_without_session();
            let mut sender = cx.sender(id).unwrap();
            for number in 0..count as u64 {
                let payload = [number; 3].map(u64::to_le_bytes);
                let message = Message::new(Kind::OneWay, 0, payload.as_flattened());
                sender.send(&message).unwrap();
            }
        };
        let mut bytes = vec![0; 2 * BLOCK * 32];
        send(&mut lane.core, BLOCK - 1);
        assert!(far.read(&mut bytes).is_err(), "nothing was written yet");
        lane.core.flush_dirty();
        assert_eq!(far.read(&mut bytes).unwrap(), (BLOCK - 1) * 32);
        send(&mut lane.core, BLOCK);
        assert_eq!(far.read(&mut bytes).unwrap(), BLOCK * 32);
        assert!(lane.core.sessions[slot].output.is_empty());
        // What the session ends with may still be to come.
        lane.core.sessions[slot].half_close = true;
        send(&mut lane.core, BLOCK);
        assert!(far.read(&mut bytes).is_err());
        assert_eq!(lane.core.sessions[slot].output.len(), BLOCK * 32);
    }

    #[test]
    fn frames_for_datagrams_and_other_lanes_are_as_if_sent_one_by_one() {
        let mut lane = lane(&Server::builder());
        let codec = lane.core.shared.codec.clone();
        let ids = [(); 2].map(|()| {
            let (slot, _far) = lane.open_session();
            let session = &mut lane.core.sessions[slot];
            session.output.packing = Some(Box::new(Packing::new(&codec, 100)));
            session.id
        });
        let elsewhere = [1, 2].map(|lane| SessionId::new(lane, 7, 1));
        let payloads = [&[1; 20][..], &[2; 20], &[3; 50], &[4; 150], &[5; 20]];
        let messages = payloads.map(|payload| Message::new(Kind::OneWay, 0, payload));
        let mut cx = lane.core.context_without_session();
        for [one_by_one, together] in [ids, elsewhere] {
            let mut sender = cx.sender(together).unwrap();
            for message in &messages {
                sender.send(message).unwrap();
            }
            drop(sender);
            for message in &messages {
                cx.send_to(one_by_one, message).unwrap();
            }
        }
        drop(cx);
        let outputs = ids.map(|id| &lane.core.session(id).unwrap().output);
        assert_eq!(outputs[0].bytes, outputs[1].bytes);
        let packings = outputs.map(|output| format!("{:?}", output.packing));
        assert!(packings[0].contains("ends: [56") && packings[0] == packings[1]);
        let mut batches = [1, 2].map(|lane_of| &lane.core.batches[lane_of][..]);
        for message in &messages {
            let mut frame = Vec::new();
            codec.encode(message, &mut frame).unwrap();
            let entries = batches.each_mut().map(BatchEntry::decode);
            for (entry, id) in entries.into_iter().zip(elsewhere) {
                assert_eq!(entry, Some(BatchEntry::Session { id, frame: &frame }));
            }
        }
        assert_eq!(batches, [&[] as &[u8]; 2]);
    }
}
