//! Many messages to one session.
//!
//! Problem: a message that is sent by itself costs several times what it takes to write its bytes: its session is found,
//! its limits are checked, its codec is asked, and so is the list of sessions to flush. Approach: a sender finds the session
//! and its limits once, and keeps the pattern of the last message's frame. One like it is a few comparisons
//! and a copy; every other goes through the codec. Where output is sent as datagrams, this goes on until one is full; the
//! message that does not fit begins the next. Rejected: a sender compiled for each codec into whoever sends, which had more to
//! choose and to keep at hand for every message than this compares.
//!
//! Nothing outside this file gets the address of a sender, so that the compiler may keep it in registers: through memory, the
//! length of the output would have to be stored and loaded again between any two messages.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidewire_io::append::Appender;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;
use tidewire_proto::message::Message;

use crate::engine::Core;
use crate::service::Context;
use crate::session::SessionId;
use crate::session::{SendError, Taken, encode_within, frame_pattern};
use crate::transport::datagram::Packing;

/// Sends messages to one session; see [`Context::with_sender`].
///
/// The messages are written at the end of the turn. If the session is another one of this lane than the one whose message is
/// being handled, an output of 64 KiB or more is written when the sender is dropped. Such a session's output is also written
/// whenever its queue is full. Messages are refused only if the queue stays full.
///
/// To send much to many sessions, send each session a whole block in its turn, and not a little to all: a write of 16 KiB
/// costs twice as much for each byte as one of 32 KiB or more. [`Context::queued_bytes`] returns the bytes that wait.
#[derive(Debug)]
pub struct SessionSender<'a> {
    place: Place<'a>,
    /// The bytes of the session's output, held here until the end; without capacity if there are none to hold, or no longer.
    output: Appender,
}

/// Where the messages go.
#[derive(Debug)]
struct Place<'a> {
    core: &'a mut Core,
    target: Target,
    /// Where the datagrams of the output end, if it is sent as datagrams.
    packing: Option<Box<Packing>>,
    /// Largest frame that both sides take.
    frame_bytes_max: usize,
    /// Bytes of the output, with those that went already, above which messages are refused.
    full_above: usize,
}

/// Which output the messages go to.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// That of a session of this lane, by its slot.
    Local(usize),
    /// None: each frame goes to another lane by itself.
    Remote(SessionId),
}

impl<'a> SessionSender<'a> {
    pub(crate) fn open(cx: &'a mut Context<'_>, id: SessionId) -> Result<Self, SendError> {
        if id == SessionId::NONE {
            return Err(SendError::NotOpen);
        }
        let core = &mut *cx.core;
        let (target, taken) = if id.lane() == core.exchange.lane {
            (Target::Local(id.slot()), core.sessions.take_output(id)?)
        } else {
            (Target::Remote(id), Taken::NOTHING)
        };
        Ok(Self {
            place: Place {
                core,
                target,
                packing: taken.packing,
                frame_bytes_max: taken.frame_bytes_max,
                full_above: taken.full_above,
            },
            output: Appender::new(taken.bytes),
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The session's queue is full and stays so, the session has ended meanwhile, the codec cannot express the message, or its
    /// frame is larger than what both sides agreed to take. A session on another lane may turn out to be gone or full later;
    /// that is counted in `sends_refused`.
    // Compiled into the loop of whoever sends, where most of the message is known.
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
        // The copies leave the message and the sender themselves in registers.
        let message = *message;
        let mut output = self.output.take();
        let sent = self.place.lend().send_apart(&mut output, &message);
        self.go_on(output, sent)
    }

    /// Appends the frame of a message with a name, if it is like the last one of the lane. Returns whether it is.
    #[inline(always)]
    fn append_named(&mut self, message: &Message<'_>) -> bool {
        let (place, output) = (&self.place, &mut self.output);
        let repeated = &place.core.sessions.outbox.repeated;
        place.packing.is_none()
            && output.bytes().len() <= place.full_above
            && repeated.is_within(place.frame_bytes_max)
            && repeated.is_like(message)
            && output.append_other(&repeated.pattern, message.id, message.payload)
    }

    /// Whether the session's output takes another message. A full one is written for that, as it is by sending, but nothing
    /// counts as refused. Whether the session is there at all, sending tells.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.output.bytes().len() <= self.place.full_above {
            return true;
        }
        let mut output = self.output.take();
        let written = self.place.lend().write(&mut output);
        self.go_on(output, written).is_ok()
    }

    /// Takes over what a call left.
    #[inline(always)]
    fn go_on(&mut self, output: Appender, sent: Sent) -> Result<(), SendError> {
        self.output = output;
        (self.place.packing, self.place.full_above) = (sent.packing, sent.full_above);
        sent.result
    }
}

impl Drop for SessionSender<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.lend().give_back(self.output.take_bytes());
    }
}

/// What a call leaves to the sender.
struct Sent {
    packing: Option<Box<Packing>>,
    full_above: usize,
    result: Result<(), SendError>,
}

impl Place<'_> {
    /// The same, for a call.
    #[inline(always)]
    fn lend(&mut self) -> Place<'_> {
        Place {
            core: self.core,
            packing: self.packing.take(),
            ..*self
        }
    }

    /// Sends a message that is not like the last one, or has a longer header, or finds no room, or goes another way.
    #[inline(never)]
    fn send_apart(mut self, output: &mut Appender, message: &Message<'_>) -> Sent {
        let (key, id, payload) = (key_of(message), message.id, message.payload);
        let is_alike = message.name.is_empty() && output.is_for(key, payload.len());
        if is_alike
            && (self.packing.is_none() || self.begin_datagram(output))
            && output.append(key, id, payload)
        {
            return Sent {
                packing: self.packing,
                full_above: self.full_above,
                result: Ok(()),
            };
        }
        self.send_by_codec(output, is_alike, message)
    }

    /// Ends the datagram that is full, if that is all that keeps a message like the last one from being appended.
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

    /// Sends a message that the codec must frame, because no pattern is known for it, or there is no room.
    fn send_by_codec(
        mut self,
        output: &mut Appender,
        is_alike: bool,
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
            let refused = self.core.sessions.refuse_to_send(SendError::NotOpen);
            return self.apart(output, bytes, Err(refused));
        }
        if bytes.len() > self.full_above {
            let refused = self.core.sessions.refuse_to_send(SendError::QueueFull);
            return self.apart(output, bytes, Err(refused));
        }
        let core = &mut *self.core;
        let (config, counters) = (&core.config, &core.counters);
        let repeated = &mut core.sessions.outbox.repeated;
        let has_name = !message.name.is_empty();
        let before = bytes.len();
        // A codec of one's own may panic, and a handler may go on after that: the bytes must not be lost, and a part of a frame
        // must not stay.
        let encoded = catch_unwind(AssertUnwindSafe(|| {
            encode_within(self.frame_bytes_max, &mut bytes, |out| match has_name {
                true => repeated.encode(&config.codec, message, out),
                false => config.codec.encode(message, out),
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
        // How far more of them may be appended without being noted.
        let length_max = match &mut self.packing {
            Some(packing) => {
                let frame_bytes = bytes.len() - before;
                packing.handle_appended(&bytes, &config.codec);
                packing.appendable(frame_bytes)
            }
            None => Some(usize::MAX),
        };
        match (&encoded, length_max) {
            // The lane keeps the pattern of those.
            (Ok(()), Some(length_max)) if !has_name => {
                if !is_alike {
                    let frame = bytes.get(before..).unwrap_or_default();
                    learn(output, &config.codec, frame, message);
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

    /// Has a full output written, and says whether it still is.
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

    /// What it leaves that no other message can follow without the codec.
    fn apart(self, output: &mut Appender, bytes: Vec<u8>, result: Result<(), SendError>) -> Sent {
        *output = Appender::new(bytes);
        Sent {
            packing: self.packing,
            full_above: self.full_above,
            result,
        }
    }

    /// Has a full output written. Returns it without capacity if the session ended of that.
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

    /// The sender ends, unless it has given the bytes back already.
    #[inline(never)]
    fn give_back(self, bytes: Vec<u8>) {
        if let Target::Local(slot) = self.target
            && bytes.capacity() > 0
        {
            let sessions = &mut self.core.sessions;
            sessions.put_back_and_write(slot, bytes, self.packing);
        }
    }
}

/// Has messages like this one, whose frame this is, appended without the codec.
fn learn(output: &mut Appender, codec: &AnyCodec, frame: &[u8], message: &Message<'_>) {
    let pattern = frame_pattern(codec, frame, message, true);
    output.set_pattern(pattern.as_ref(), key_of(message), message.payload.len());
}

/// Kind, flags and channel, which messages of one pattern agree in. No message has 0.
#[inline(always)]
fn key_of(message: &Message<'_>) -> u32 {
    u32::from(message.kind as u8) | u32::from(message.flags) << 8 | u32::from(message.channel) << 16
}

#[cfg(test)]
#[path = "sender_tests.rs"]
mod tests;
