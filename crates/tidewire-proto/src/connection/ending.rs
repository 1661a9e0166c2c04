//! The end of a connection: closing, finishing and draining, and the reports of the transport that decide when each is
//! done.

use super::output::may_tell;
use super::{
    CloseReason, Connection, Delivery, Drain, Farewell, NewWork, Outbound, Phase, Rules, Then,
    Written,
};
use crate::layer::{LayerError, WebSocketFault};

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
        let is_silent_end = matches!(
            reason,
            CloseReason::PeerClosed | CloseReason::PeerReset | CloseReason::HandshakeTimeout
        );
        let first = match (self.output.state(), self.output.peer_farewell()) {
            _ if self.is_closed() => return,
            (Outbound::Ending(first), _) => Some(first),
            (_, Some(farewell)) if is_told => Some(CloseReason::GoAway(farewell.code)),
            _ if is_silent_end && self.phase() == Phase::AwaitWelcome => {
                self.input.other_protocol()
            }
            _ => None,
        };
        self.handshake.close(first.unwrap_or(reason));
    }

    /// Closes the connection when all output is written. No more input is read. If no output can be written, it closes
    /// now.
    ///
    /// The peer is sent the farewell last, if its codec has a frame for it: after the present output and after the
    /// pending replies. The first farewell stays. Without go-away frames, the connecting side sends nothing, because
    /// the peer would read the text as a request.
    pub fn finish(&mut self, rules: &Rules, reason: CloseReason, farewell: Option<Farewell>) {
        if let Some(farewell) = farewell
            && self.is_open()
            && self.output.is_writing()
            && may_tell(rules, self.handshake.is_outgoing())
        {
            self.output.note_own_farewell(farewell);
        }
        let is_connected = !matches!(self.phase(), Phase::Connecting | Phase::Securing);
        match self.output.state() {
            Outbound::Writing { .. } if is_connected => {
                self.output.close_after_output(reason);
                self.input.end();
            }
            // The first reason stays, and the last bytes are written.
            Outbound::Ending(_) => {}
            _ => self.close(reason),
        }
    }

    /// Asks the peer to end the connection, by a go-away, or by this side's end after its pending replies. A connection
    /// that has reached its maximum age asks only once. Close it after a while if the peer does not.
    pub fn drain(&mut self, rules: &Rules, drain: Drain) {
        if drain == Drain::Age && self.output.drain().is_some() {
            return;
        }
        self.output.set_drain(drain);
        let reason = drain.reason();
        match self.output.state() {
            // The connection is about to close, for its own reason.
            Outbound::Ending(_) => {}
            Outbound::HalfClosed => self.close(reason),
            _ if !self.is_open() => self.close(reason),
            _ if rules.format.has_go_away && !self.handshake.is_outgoing() => {
                self.output.tell_going(reason);
                self.output.set_new_work(match self.input.has_frames() {
                    true => NewWork::ServedToBacklog,
                    false => NewWork::Refused,
                });
            }
            _ if self.handshake.delivery() == Delivery::Lossy && !rules.format.has_go_away => {
                // Some peers do not answer this side's end with their own.
                self.output.note_going_told();
                self.finish(rules, reason, None);
            }
            // A server that this side connected to needs no go-away: the end of the stream is enough. All input that
            // has arrived is read and answered before this side ends.
            _ => self.output.half_close(),
        }
    }

    /// Handles the end of the peer's side: this side's output is written first.
    pub fn handle_input_end(&mut self, rules: &Rules) {
        let reason = self.output.peer_end_reason();
        match self.output.state() {
            Outbound::Failed => self.close(CloseReason::PeerReset),
            Outbound::Writing { .. } if self.is_open() => self.finish(rules, reason, None),
            _ => self.close(reason),
        }
    }

    /// Notes that the transport takes output again. A peer that takes output is not idle.
    pub fn handle_writable(&mut self, now_ns: u64) {
        if self.output.unblock() && self.is_open() {
            self.timing.note_taken(now_ns);
        }
    }

    /// Handles the moment when all output is written. `has_pending_replies` says whether requests that were read wait
    /// for their replies, and `has_layers` whether layers of the transport write bytes at the end.
    pub fn handle_written(
        &mut self,
        rules: &Rules,
        has_pending_replies: bool,
        has_layers: bool,
        now_ns: u64,
    ) -> Written {
        let has_pings = rules.format.has_pings || self.timing.has_layer_pings();
        if !has_pings && self.handshake.delivery() == Delivery::Reliable && self.is_open() {
            // A listener that never sends is not idle while it takes output.
            self.timing.note_taken(now_ns);
        }
        self.output.unblock();
        let Outbound::Writing { then, .. } = self.output.state() else {
            return Written::GoOn;
        };
        match then {
            Then::Close(reason) if !(has_pending_replies && reason.waits_for_answers()) => {
                if self.output.tell_farewell() {
                    return Written::Transmit;
                }
                if has_layers {
                    self.output.set_state(Outbound::Ending(reason));
                    return Written::ShutdownWrite;
                }
                self.close(reason);
                Written::Closed
            }
            // Whole frames that wait to be handled were accepted: they are answered before this side ends.
            Then::HalfClose
                if self.is_open() && !has_pending_replies && !self.input.has_frames() =>
            {
                self.output.set_state(Outbound::HalfClosed);
                if !self.handshake.is_outgoing() {
                    self.output.set_new_work(NewWork::Dropped);
                }
                Written::ShutdownWrite
            }
            _ => Written::GoOn,
        }
    }

    /// Closes a connection that is ending: the transport has written its last bytes.
    pub fn handle_ended(&mut self) {
        if let Outbound::Ending(reason) = self.output.state() {
            self.close(reason);
        }
    }

    /// Handles a peer that takes no more output. Its earlier input is still read to its end: the messages of a client
    /// that sends and closes at once must arrive.
    pub fn handle_write_failed(&mut self) {
        match self.output.state() {
            Outbound::Writing {
                then: Then::Close(reason),
                ..
            }
            | Outbound::Ending(reason) => self.close(reason),
            _ => self.output.set_state(Outbound::Failed),
        }
    }

    /// Notes that the frames that were left when reading paused have been handled.
    pub fn handle_backlog_served(&mut self) {
        if self.output.new_work() == NewWork::ServedToBacklog && !self.input.has_frames() {
            self.output.set_new_work(NewWork::Refused);
        }
    }
}
