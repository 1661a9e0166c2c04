//! The end of a connection: closing, finishing, half-closing and draining, and the reports of the transport that decide when each
//! is done.

use super::{
    CloseReason, Connection, Delivery, Drain, Inbound, NewWork, Outbound, Phase, Rules, Side, Then,
    Written,
};
use crate::handshake::{FirstBytes, HandshakeError};
use crate::layer::{LayerError, TlsFault, WebSocketFault, is_tls_record};

impl Connection {
    /// Closes the connection now. Unwritten output is lost. The first reason stays, also for a connection that only
    /// waits for the last bytes of its transport. A reset after a peer's farewell counts as that farewell: the peer did
    /// not read the output that crossed it.
    pub fn close(&mut self, reason: CloseReason) {
        // A WebSocket tells its end by a code, which is less exact than a farewell.
        let is_told = matches!(
            reason,
            CloseReason::PeerReset
                | CloseReason::Layer(LayerError::WebSocket(WebSocketFault::Closed(_)))
        );
        if !self.is_closed() {
            self.phase = Phase::Closed(match (self.outbound, self.peer_farewell()) {
                (Outbound::Ending(first), _) => first,
                (_, Some(farewell)) if is_told => CloseReason::GoAway(farewell.code),
                _ => self.other_protocol(reason).unwrap_or(reason),
            });
        }
    }

    /// The better reason for the end of a connection whose server sent the beginning of another protocol and no whole frame: an
    /// alert of TLS, for example, has no line end for which a codec of lines waits.
    fn other_protocol(&self, reason: CloseReason) -> Option<CloseReason> {
        let is_silent_end = matches!(
            reason,
            CloseReason::PeerClosed | CloseReason::PeerReset | CloseReason::HandshakeTimeout
        );
        if self.phase != Phase::AwaitWelcome || !is_silent_end {
            return None;
        }
        let bytes = self.partial.bytes();
        if is_tls_record(bytes) {
            return Some(CloseReason::Layer(TlsFault::UnexpectedTls.into()));
        }
        let looks_like = FirstBytes::of(bytes);
        let reason = CloseReason::Handshake(HandshakeError::OtherProtocol { looks_like });
        looks_like.is_foreign().then_some(reason)
    }

    /// Closes the connection when all output is written. No more input is read. If no output can be written, it closes
    /// now.
    pub fn finish(&mut self, reason: CloseReason) {
        match &mut self.outbound {
            Outbound::Writing { then, .. }
                if !matches!(self.phase, Phase::Connecting | Phase::Securing) =>
            {
                if !matches!(then, Then::Close(_)) {
                    *then = Then::Close(reason);
                }
                self.inbound = Inbound::Ended;
            }
            // The first reason stays, and the last bytes are written.
            Outbound::Ending(_) => {}
            _ => self.close(reason),
        }
    }

    /// Ends this side when all output is written. The peer's input is read to its end.
    pub fn half_close(&mut self) {
        if let Outbound::Writing {
            then: then @ Then::GoOn,
            ..
        } = &mut self.outbound
        {
            *then = Then::HalfClose;
        }
    }

    /// Begins the shutdown of the server: the peer gets a go-away, or this side ends after its pending replies.
    pub fn drain(&mut self, rules: &Rules) {
        self.begin_drain(rules, Drain::Shutdown, CloseReason::Shutdown);
    }

    /// Asks the peer of an open connection to come back with another one, as at a shutdown, because this one has reached its
    /// maximum age. Close it after a while if the peer does not.
    pub fn retire(&mut self, rules: &Rules) {
        if self.drain == Drain::No {
            self.begin_drain(rules, Drain::Age, CloseReason::ConnectionAge);
        }
    }

    /// Whether [`Self::retire`] was called, and not [`Self::drain`].
    #[must_use]
    pub const fn is_retiring(&self) -> bool {
        matches!(self.drain, Drain::Age)
    }

    /// Whether the server shuts down.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        matches!(self.drain, Drain::Shutdown)
    }

    fn begin_drain(&mut self, rules: &Rules, drain: Drain, reason: CloseReason) {
        self.drain = drain;
        match self.outbound {
            // The connection is about to close, for its own reason.
            Outbound::Ending(_) => return,
            Outbound::HalfClosed => return self.close(reason),
            _ if !self.is_open() => return self.close(reason),
            _ => {}
        }
        match self.side {
            // A server that this side connected to needs no go-away: the end of the stream is enough.
            Side::Accepting if rules.format.has_go_away => {
                self.tell_going(reason);
                self.new_work = if self.partial.has_frames() {
                    NewWork::ServedToBacklog
                } else {
                    NewWork::Refused
                };
            }
            _ if self.delivery == Delivery::Lossy && !rules.format.has_go_away => {
                // The peer may not know that it should answer this side's end with its own.
                self.is_going_told = true;
                self.finish(reason);
            }
            // All input that has arrived is read and answered before this side ends.
            _ => self.half_close(),
        }
    }

    /// Handles the end of the peer's side: this side's output is written first.
    pub fn handle_input_end(&mut self) {
        let reason = self.end_reason();
        match self.outbound {
            Outbound::Failed => self.close(CloseReason::PeerReset),
            Outbound::Writing { .. } if self.is_open() => self.finish(reason),
            _ => self.close(reason),
        }
    }

    /// Notes that the transport took less output than was offered.
    pub fn handle_blocked(&mut self) {
        if let Outbound::Writing { is_blocked, .. } = &mut self.outbound {
            *is_blocked = true;
        }
    }

    /// Notes that the transport takes output again. A peer that takes output is not idle.
    pub fn handle_writable(&mut self, now_ns: u64) {
        if let Outbound::Writing { is_blocked, .. } = &mut self.outbound
            && std::mem::take(is_blocked)
            && self.is_open()
        {
            self.timing.note_taken(now_ns);
        }
    }

    /// Handles the moment when all output is written. `has_pending_replies` says whether requests that were read wait
    /// for their replies, and `has_layers` whether the transport has bytes of its own to write at the end.
    pub fn handle_written(
        &mut self,
        rules: &Rules,
        has_pending_replies: bool,
        has_layers: bool,
        now_ns: u64,
    ) -> Written {
        let has_pings = rules.format.has_pings || self.has_layer_pings;
        if !has_pings && self.delivery == Delivery::Reliable && self.is_open() {
            // A listener that never sends is not idle while it takes output.
            self.timing.note_taken(now_ns);
        }
        let Outbound::Writing { then, .. } = self.outbound else {
            return Written::GoOn;
        };
        self.outbound = Outbound::Writing {
            is_blocked: false,
            then,
        };
        match then {
            Then::Close(reason) if !(has_pending_replies && reason.waits_for_answers()) => {
                if self.tell_farewell() {
                    return Written::Transmit;
                }
                if has_layers {
                    self.outbound = Outbound::Ending(reason);
                    return Written::ShutdownWrite;
                }
                self.close(reason);
                Written::Closed
            }
            // Whole frames that wait to be handled were accepted: they are answered before this side ends.
            Then::HalfClose
                if self.is_open() && !has_pending_replies && !self.partial.has_frames() =>
            {
                self.outbound = Outbound::HalfClosed;
                if self.side == Side::Accepting {
                    self.new_work = NewWork::Dropped;
                }
                Written::ShutdownWrite
            }
            _ => Written::GoOn,
        }
    }

    /// The reason for which this side ends its output.
    #[must_use]
    pub fn output_end(&self) -> CloseReason {
        match self.outbound {
            Outbound::Ending(reason) => reason,
            _ => self.end_reason(),
        }
    }

    /// Closes a connection that is ending: the transport has written its last bytes.
    pub fn handle_ended(&mut self) {
        if let Outbound::Ending(reason) = self.outbound {
            self.close(reason);
        }
    }

    /// Handles a peer that takes no more output. Its earlier input is still read to its end: the messages of a client
    /// that sends and closes at once must arrive.
    pub fn handle_write_failed(&mut self) {
        match self.outbound {
            Outbound::Writing {
                then: Then::Close(reason),
                ..
            }
            | Outbound::Ending(reason) => self.close(reason),
            _ => self.outbound = Outbound::Failed,
        }
    }

    /// Whether the connection waits for pending replies before it ends.
    #[must_use]
    pub const fn waits_for_answers(&self) -> bool {
        match self.outbound {
            Outbound::Writing {
                then: Then::Close(reason),
                ..
            } => reason.waits_for_answers(),
            Outbound::Writing {
                then: Then::HalfClose,
                ..
            } => true,
            _ => false,
        }
    }

    /// Notes that the frames that were left when reading paused have been handled.
    pub fn handle_backlog_served(&mut self) {
        if self.new_work == NewWork::ServedToBacklog && !self.partial.has_frames() {
            self.new_work = NewWork::Refused;
        }
    }

    /// Whether new work of the peer is served or refused.
    #[must_use]
    pub const fn new_work(&self) -> NewWork {
        self.new_work
    }

    /// Whether the peer has announced that it will close.
    #[must_use]
    pub const fn is_peer_going(&self) -> bool {
        matches!(&self.last_words, Some(words) if words.peer.is_some())
    }

    /// The reason of the close when the peer's input has ended.
    #[must_use]
    pub fn end_reason(&self) -> CloseReason {
        match self.peer_farewell() {
            Some(farewell) => CloseReason::GoAway(farewell.code),
            None => match self.drain {
                Drain::Shutdown => CloseReason::Shutdown,
                Drain::Age => CloseReason::ConnectionAge,
                Drain::No => CloseReason::PeerClosed,
            },
        }
    }
}
