//! The frames that a connection sends and handles itself: hello, welcome, ping, pong and go-away.

use super::filter::is_new_work;
use super::handshake::{ControlFrame, malformed};
use super::output::may_tell;
use super::{CloseReason, Connection, Introduction, Outbound, PauseReason, Rules};
use crate::body::MovedBody;
use crate::codec::Codec;
use crate::error::EncodeError;
use crate::message::{Kind, Message};

/// The outcome of a control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Handled {
    /// The frame was handled. There may be frames to transmit.
    Done,
    /// The frame came before the opening frame, as datagrams may. It counts as lost.
    Early,
    /// The frame requests new work, which is refused because this side will close. Nothing of it was done.
    /// [`OutputSide::new_work`](super::OutputSide::new_work) says whether the sender can get an answer.
    Refused,
    /// The handshake is over: messages may be exchanged. Call [`Connection::poll_timeout`] again.
    Opened,
    /// The hello is acceptable. Identify the peer by the credentials in the hello, and call
    /// [`Handshake::admit`](super::Handshake::admit) or [`Handshake::refuse`](super::Handshake::refuse). Until then no
    /// further frame may be handled, unless the connection was open already.
    Authenticate,
    /// The connection has closed.
    Closed(CloseReason),
}

/// The answer to the newest ping.
#[derive(Debug)]
pub(super) struct Pong {
    channel: u16,
    payload: Box<[u8]>,
}

impl Connection {
    /// Begins the handshakes of the transport's layers, which is connected or accepted. The handshake's deadline is
    /// counted from now. Call [`Self::handle_connected`] when all layers are ready.
    pub fn secure(&mut self, now_ns: u64) {
        self.timing.begin_handshake(now_ns);
        self.handshake.secure();
        self.input.resume(PauseReason::Authentication);
    }

    /// Handles a transport that is ready: it is connected, and its layers are ready. Returns whether the connection is
    /// open now: without a hello there is nothing to wait for, unless the owner authenticates peers.
    pub fn handle_connected(&mut self, rules: &Rules, now_ns: u64) -> bool {
        self.timing.note_input(now_ns);
        self.timing.begin_handshake(now_ns);
        self.handshake.begin(rules);
        self.input.hold_in(self.handshake.phase());
        self.is_open()
    }

    /// Handles a frame that [`Self::filter`] does not let through to the service.
    pub fn handle_frame(&mut self, rules: &Rules, message: &Message<'_>, now_ns: u64) -> Handled {
        if is_new_work(message.kind) && self.is_open() && self.output.new_work().is_refused() {
            return Handled::Refused;
        }
        let handled = match self.handshake.handle(rules, message, now_ns) {
            ControlFrame::Handled(handled) => handled,
            ControlFrame::GoAway => match MovedBody::of(message) {
                Err(_) => malformed(Kind::GoAway),
                Ok(body) => {
                    self.output.note_peer_farewell(&body);
                    if !self.is_open() || self.output.state() == Outbound::HalfClosed {
                        Handled::Closed(CloseReason::GoAway(body.code))
                    } else {
                        if self.handshake.is_outgoing() {
                            // All output so far is written, then this side ends. The server answers the requests that
                            // it has read until then.
                            self.output.half_close();
                        }
                        Handled::Done
                    }
                }
            },
            ControlFrame::Ping if message.payload.len() > PING_BYTES_MAX => {
                Handled::Closed(CloseReason::ControlFlood)
            }
            ControlFrame::Ping => {
                self.pong = Some(Pong {
                    channel: message.channel,
                    payload: message.payload.into(),
                });
                Handled::Done
            }
        };
        match handled {
            Handled::Closed(reason) => self.close(reason),
            Handled::Authenticate => self.input.hold_in(self.handshake.phase()),
            _ => {}
        }
        handled
    }

    /// Opens a connection whose client sent another frame instead of a hello, if its codec allows that. Returns `None`
    /// if a hello must come first. Otherwise the frame was not handled: handle it again when the connection is open.
    pub fn handle_missing_hello(&mut self, rules: &Rules, kind: Kind) -> Option<Handled> {
        let handled = self.handshake.handle_missing_hello(rules, kind);
        self.input.hold_in(self.handshake.phase());
        handled
    }

    /// Schedules the reason of the close for the peer, if this side may still send, and the reason has a code.
    /// `keeps_order` means that replies are matched by their order and that one is pending.
    ///
    /// Returns whether there is a frame to send. The owner makes one attempt to write it, and never waits.
    pub fn tell_reason(&mut self, rules: &Rules, reason: CloseReason, keeps_order: bool) -> bool {
        // In a codec without go-away frames, a farewell looks like a reply and would match the next request.
        let is_mistaken = keeps_order || !may_tell(rules, self.handshake.is_outgoing());
        !is_mistaken && self.output.tell_reason(reason)
    }

    /// Whether [`Self::poll_transmit`] has a frame to append.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.timing.has_transmit()
            || self.pong.is_some()
            || self.handshake.has_transmit()
            || self.output.has_transmit()
    }

    /// Appends the next frame that the connection has to send. Call it until it returns `None`.
    ///
    /// Fails if the codec has no such frame; `out` is then unchanged.
    pub fn poll_transmit<C: Codec + ?Sized>(
        &mut self,
        rules: &Rules,
        own: &Introduction<'_>,
        codec: &C,
        out: &mut Vec<u8>,
    ) -> Option<Result<(), EncodeError>> {
        // The answer to a challenge precedes the hello that is repeated with it.
        if let Some(Pong { channel, payload }) = self.pong.take() {
            return Some(codec.encode(&Message::new(Kind::Pong, channel, &payload), out));
        }
        if let Some(hello) = self.handshake.take_hello(rules, own) {
            return Some(encode_with(Kind::Hello, codec, out, |body| {
                hello.encode(body)
            }));
        }
        if let Some(welcome) = self.handshake.take_welcome(rules, own) {
            return Some(encode_with(Kind::Welcome, codec, out, |body| {
                welcome.encode(body)
            }));
        }
        if self.timing.take_ping() {
            return Some(codec.encode(&Message::new(Kind::Ping, 0, &[]), out));
        }
        let knows_moves = self.handshake.knows_moves();
        self.output.transmit(own, knows_moves, codec, out)
    }
}

/// Appends a frame whose payload is a body.
fn encode_with<C: Codec + ?Sized>(
    kind: Kind,
    codec: &C,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let mut body = Vec::new();
    write(&mut body)?;
    codec.encode(&Message::new(kind, 0, &body), out)
}

/// Largest payload of a ping that is answered.
const PING_BYTES_MAX: usize = 64;
