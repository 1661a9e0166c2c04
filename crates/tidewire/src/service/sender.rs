//! Sending many messages to one session.
//!
//! Problem: sending a message costs several times what it takes to write its bytes. Its session is looked up, limits
//! are checked, the codec frames it, and the session is put on the list of sessions to flush. Approach: a sender
//! looks the session and its limits up once, and keeps the template of the last message's frame. A message like the
//! last one costs a few comparisons and a copy; every other message goes through the codec. If the output is sent as
//! datagrams, the same holds until a datagram is full; the next message begins another one. Rejected: a sender
//! compiled for each codec into its callers, which had more branches and more live values for every message than this
//! has comparisons.
//!
//! The address of a sender does not leave this file, so that the compiler may keep it in registers. In memory, the
//! length of the output would be stored and loaded again between any two messages.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidewire_io::append::Appender;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use crate::config::CodecNumber;
use crate::engine::Core;
use crate::service::Context;
use crate::session::{OutputLoan, SendError, encode_within, frame_pattern};
use crate::session::{Session, SessionId};
use crate::transport::datagram::Packing;

/// Sends messages to one session; see [`Context::with_sender`].
///
/// The messages are written at the end of the turn. If the session is on this lane, but not the one whose message is
/// being handled, an output of 64 KiB or more is written when the sender is dropped. Such an output is also written
/// whenever the session's queue is full. Messages are refused only if the queue stays full.
///
/// To send large amounts to many sessions, send each session a whole block at a time instead of a little to each. For
/// each byte, a write of 16 KiB costs twice as much as one of 32 KiB or more. [`Context::queued_bytes`] returns the
/// bytes that wait.
#[derive(Debug)]
pub struct SessionSender<'a> {
    destination: Destination<'a>,
    /// The bytes of the session's output, held here until the sender is dropped. Without capacity if there are none
    /// or they were given back.
    output: Appender,
}

/// The destination of the messages.
#[derive(Debug)]
struct Destination<'a> {
    core: &'a mut Core,
    target: Target,
    /// The codec of the messages.
    codec: CodecNumber,
    /// The codec of the session of the call, for whose replies the lane keeps frames.
    own_codec: CodecNumber,
    /// The boundaries of the datagrams in the output, if it is sent as datagrams.
    packing: Option<Box<Packing>>,
    /// Largest frame that both sides accept.
    frame_bytes_max: usize,
    /// Messages are refused when the output has more bytes than this, including bytes that were already sent.
    full_above: usize,
}

/// The output that messages are appended to.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// The output of a session of this lane, by its slot.
    Local(usize),
    /// No output: each frame is sent to another lane by itself.
    Remote(SessionId),
}

impl<'a> SessionSender<'a> {
    pub(crate) fn open(cx: &'a mut Context<'_>, id: SessionId) -> Result<Self, SendError> {
        if id == SessionId::NONE {
            return Err(SendError::NotOpen);
        }
        let core = &mut *cx.core;
        let (target, loan) = if id.lane() == core.exchange.lane() {
            (Target::Local(id.slot()), core.sessions.lend_output(id)?)
        } else {
            (Target::Remote(id), OutputLoan::NOTHING)
        };
        let session = core.sessions.table.find(id);
        let codec = session.map_or(CodecNumber::MAIN, Session::codec_number);
        let own_codec = core.replies.codec_number();
        core.replies.speak(codec);
        Ok(Self {
            destination: Destination {
                core,
                target,
                codec,
                own_codec,
                packing: loan.packing,
                frame_bytes_max: loan.frame_bytes_max,
                full_above: loan.full_above,
            },
            output: Appender::new(loan.bytes),
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The session's queue is full and stays so, the session has ended meanwhile, the codec cannot express the
    /// message, or its frame is larger than both sides agreed to accept. A session on another lane may have ended or
    /// be full when the message arrives; its lane counts that in `sends_refused`.
    // Inlined into the caller's loop, where most fields of the message are known.
    #[inline(always)]
    pub fn send(&mut self, message: &Message<'_>) -> Result<(), SendError> {
        let is_sent = if message.name.is_empty() {
            let key = key_of(message);
            self.output.append(key, message.id, message.payload)
        } else {
            self.append_named(message)
        };
        if is_sent {
            return Ok(());
        }
        // The copies keep the message and the sender themselves in registers.
        let message = *message;
        let mut output = self.output.take();
        let sent = self.destination.lend().send_apart(&mut output, &message);
        self.go_on(output, sent)
    }

    /// Appends the frame of a message with a name, if it matches the lane's last one. Returns whether it does.
    #[inline(always)]
    fn append_named(&mut self, message: &Message<'_>) -> bool {
        let (destination, output) = (&self.destination, &mut self.output);
        let repeated = &destination.core.replies.repeated;
        destination.packing.is_none()
            && output.bytes().len() <= destination.full_above
            && repeated.append_within(destination.frame_bytes_max, message, output)
    }

    /// Whether the session's output accepts another message. A full output is written first, as a send does, but no
    /// message counts as refused. The session may have ended all the same; only a send finds that out.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.output.bytes().len() <= self.destination.full_above {
            return true;
        }
        let mut output = self.output.take();
        let written = self.destination.lend().write(&mut output);
        self.go_on(output, written).is_ok()
    }

    /// Stores the state that a call returned.
    #[inline(always)]
    fn go_on(&mut self, output: Appender, sent: Sent) -> Result<(), SendError> {
        self.output = output;
        (self.destination.packing, self.destination.full_above) = (sent.packing, sent.full_above);
        sent.result
    }
}

impl Drop for SessionSender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.destination.lend().give_back(self.output.take_bytes());
    }
}

/// The state that a call returns to the sender.
struct Sent {
    packing: Option<Box<Packing>>,
    full_above: usize,
    result: Result<(), SendError>,
}

impl Destination<'_> {
    /// Returns this value for a call.
    #[inline(always)]
    fn lend(&mut self) -> Destination<'_> {
        Destination {
            core: self.core,
            packing: self.packing.take(),
            ..*self
        }
    }

    /// Sends a message that does not match the template, has a longer header, finds no room, or goes to another lane.
    #[inline(never)]
    fn send_apart(mut self, output: &mut Appender, message: &Message<'_>) -> Sent {
        let (key, id, payload) = (key_of(message), message.id, message.payload);
        let matches_template = message.name.is_empty() && output.is_for(key, payload.len());
        if matches_template
            && (self.packing.is_none() || self.begin_datagram(output))
            && output.append(key, id, payload)
        {
            return Sent {
                packing: self.packing,
                full_above: self.full_above,
                result: Ok(()),
            };
        }
        self.send_by_codec(output, matches_template, message)
    }

    /// Ends the current datagram if it is full and this is the only reason why a matching message cannot be appended.
    fn begin_datagram(&mut self, output: &mut Appender) -> bool {
        let length = output.bytes().len();
        if length > self.full_above {
            return false;
        }
        let packing = self.packing.as_mut();
        packing
            .and_then(|packing| packing.next_appendable(length))
            .is_some_and(|length_max| output.set_length_max(length_max.min(self.full_above)))
    }

    /// Frames a message with the codec, because no template is known for it or there is no room.
    fn send_by_codec(
        mut self,
        output: &mut Appender,
        matches_template: bool,
        message: &Message<'_>,
    ) -> Sent {
        let mut bytes = output.take_bytes();
        if let Target::Remote(id) = self.target {
            let Core {
                exchange, sessions, ..
            } = &mut *self.core;
            let sent = exchange.send_to(sessions, id, |codec, out| codec.encode(message, out));
            return self.apart(output, bytes, sent);
        }
        if let Some(packing) = &mut self.packing {
            packing.end_appending(bytes.len());
        }
        if bytes.len() > self.full_above {
            bytes = self.make_room(bytes);
        }
        if bytes.capacity() == 0 {
            let refused = self.core.sessions.outputs.refuse(SendError::NotOpen);
            return self.apart(output, bytes, Err(refused));
        }
        if bytes.len() > self.full_above {
            let refused = self.core.sessions.outputs.refuse(SendError::QueueFull);
            return self.apart(output, bytes, Err(refused));
        }
        let core = &mut *self.core;
        let (codec, counters) = (core.config.codecs.get(self.codec), &core.counters);
        let repeated = &mut core.replies.repeated;
        let has_name = !message.name.is_empty();
        let before = bytes.len();
        // A custom codec may panic, and the handler may catch that and go on. The bytes must not be lost, and no
        // partial frame may remain.
        let encoded = catch_unwind(AssertUnwindSafe(|| {
            encode_within(self.frame_bytes_max, &mut bytes, |out| match has_name {
                true => repeated.encode(codec, message, out),
                false => codec.encode(message, out),
            })
        }));
        let encoded = match encoded {
            Ok(encoded) => encoded,
            Err(panic) => {
                bytes.truncate(before);
                self.give_back(bytes);
                resume_unwind(panic);
            }
        };
        if let Err(EncodeError::PayloadTooLarge { .. }) = &encoded {
            counters.sends_too_large.add(1);
        }
        // The length that the output may reach before the end of a datagram must be recorded again.
        let length_max = match &mut self.packing {
            Some(packing) => {
                let frame_bytes = bytes.len() - before;
                packing.handle_appended(&bytes, codec);
                packing.appendable(frame_bytes)
            }
            None => Some(usize::MAX),
        };
        match (&encoded, length_max) {
            // The lane keeps the templates of messages with names.
            (Ok(()), Some(length_max)) if !has_name => {
                if !matches_template {
                    let frame = bytes.get(before..).unwrap_or_default();
                    learn(output, codec, frame, message);
                }
                output.resume(bytes, message.id, length_max.min(self.full_above));
            }
            _ => *output = Appender::new(bytes),
        }
        Sent {
            packing: self.packing,
            full_above: self.full_above,
            result: encoded.map_err(SendError::from),
        }
    }

    /// Writes a full output. The result tells whether it is still full.
    #[cold]
    #[inline(never)]
    fn write(mut self, output: &mut Appender) -> Sent {
        let bytes = self.make_room(output.take_bytes());
        let is_full = bytes.len() > self.full_above;
        let result = if is_full {
            Err(SendError::QueueFull)
        } else {
            Ok(())
        };
        self.apart(output, bytes, result)
    }

    /// Returns the state after which the next message must go through the codec.
    fn apart(self, output: &mut Appender, bytes: Vec<u8>, result: Result<(), SendError>) -> Sent {
        *output = Appender::new(bytes);
        Sent {
            packing: self.packing,
            full_above: self.full_above,
            result,
        }
    }

    /// Writes a full output. Returns bytes without capacity if that ended the session.
    #[cold]
    fn make_room(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let Target::Local(slot) = self.target else {
            return bytes;
        };
        match self
            .core
            .sessions
            .make_room(slot, bytes, self.packing.take())
        {
            Some(lent) => {
                (self.packing, self.full_above) = (lent.packing, lent.full_above);
                lent.bytes
            }
            None => Vec::new(),
        }
    }

    /// Returns the output to the session, unless this was done already.
    #[inline(never)]
    fn give_back(self, bytes: Vec<u8>) {
        self.core.replies.speak(self.own_codec);
        if let Target::Local(slot) = self.target
            && bytes.capacity() > 0
        {
            let sessions = &mut self.core.sessions;
            sessions.put_back_and_write(slot, bytes, self.packing);
        }
    }
}

/// Learns the template of a frame, so that messages like this one are appended without the codec.
fn learn(output: &mut Appender, codec: &AnyCodec, frame: &[u8], message: &Message<'_>) {
    let pattern = frame_pattern(codec, frame, message, true);
    output.set_pattern(pattern.as_ref(), key_of(message), message.payload.len());
}

/// Returns the kind, flags and channel, which are equal for all messages of one template. No message has 0.
#[inline(always)]
fn key_of(message: &Message<'_>) -> u32 {
    u32::from(message.kind as u8) | u32::from(message.flags) << 8 | u32::from(message.channel) << 16
}

#[cfg(test)]
#[path = "sender_tests.rs"]
mod tests;
