//! The output side of a connection: whether output is written, how it ends, and the farewells of both sides.

use super::{CloseReason, Drain, Farewell, Introduction, NewWork, Outbound, Rules, Then};
use crate::body::{GoAwayBody, GoAwayCode, MovedBody};
use crate::codec::Codec;
use crate::error::EncodeError;
use crate::message::{FLAG_MOVED, Kind, Message};

/// The state of the output, and the farewells of both sides.
#[derive(Debug)]
pub struct OutputSide {
    state: Outbound,
    /// The reason why this side asked the peer to end the connection, once it did.
    drain: Option<Drain>,
    new_work: NewWork,
    /// Whether the peer was sent a go-away.
    is_going_told: bool,
    go_away: Option<(GoAwayCode, Words)>,
    /// The farewells of both sides. There is none for most of the connection's life, so it is boxed.
    last_words: Option<Box<LastWords>>,
}

/// The text of a go-away.
#[derive(Clone, Copy, Debug)]
enum Words {
    ShuttingDown,
    Reason(CloseReason),
    /// The text of the service's farewell, which is in [`LastWords`].
    Own,
}

/// The farewells of both sides of a connection.
#[derive(Debug, Default)]
struct LastWords {
    peer: Option<Farewell>,
    /// The address at which the peer wants this side to connect.
    moved_to: Option<Box<str>>,
    own: Option<Farewell>,
    /// Whether this side's go-away is written, or among the frames to transmit.
    is_own_told: bool,
}

impl OutputSide {
    pub(super) const fn new() -> Self {
        Self {
            state: Outbound::WRITING,
            drain: None,
            new_work: NewWork::Served,
            is_going_told: false,
            go_away: None,
            last_words: None,
        }
    }

    /// Whether output is written, and what follows.
    #[inline]
    #[must_use]
    pub const fn state(&self) -> Outbound {
        self.state
    }

    pub(super) fn set_state(&mut self, state: Outbound) {
        self.state = state;
    }

    /// Whether output is written, as long as the connection is open.
    #[inline]
    #[must_use]
    pub const fn is_writing(&self) -> bool {
        matches!(self.state, Outbound::Writing { .. })
    }

    #[inline]
    pub(super) const fn has_ended(&self) -> bool {
        matches!(self.state, Outbound::HalfClosed | Outbound::Ending(_))
    }

    /// Whether output may be written before the end of a turn: no farewell or end follows it.
    #[inline]
    #[must_use]
    pub const fn may_write_early(&self) -> bool {
        matches!(self.state, Outbound::WRITING)
    }

    /// Whether the connection closes when its output is written.
    #[inline]
    #[must_use]
    pub const fn is_finishing(&self) -> bool {
        matches!(
            self.state,
            Outbound::Writing {
                then: Then::Close(_),
                ..
            }
        )
    }

    /// Whether this side has ended, and the connection closes when the transport has written its last bytes.
    #[inline]
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        matches!(self.state, Outbound::Ending(_))
    }

    /// Notes that the transport took less output than was offered.
    pub fn handle_blocked(&mut self) {
        if let Outbound::Writing { is_blocked, .. } = &mut self.state {
            *is_blocked = true;
        }
    }

    /// Notes that the transport takes output again. Returns whether it did not before.
    pub(super) fn unblock(&mut self) -> bool {
        match &mut self.state {
            Outbound::Writing { is_blocked, .. } => std::mem::take(is_blocked),
            _ => false,
        }
    }

    /// Ends this side when all output is written. The peer's input is read to its end.
    pub fn half_close(&mut self) {
        if let Outbound::Writing {
            then: then @ Then::GoOn,
            ..
        } = &mut self.state
        {
            *then = Then::HalfClose;
        }
    }

    /// Closes when all output is written. The first reason stays.
    pub(super) fn close_after_output(&mut self, reason: CloseReason) {
        if let Outbound::Writing { then, .. } = &mut self.state
            && !matches!(then, Then::Close(_))
        {
            *then = Then::Close(reason);
        }
    }

    /// Whether the connection waits for pending replies before it ends.
    #[must_use]
    pub const fn waits_for_answers(&self) -> bool {
        match self.state {
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

    /// Whether new work of the peer is served or refused.
    #[must_use]
    pub const fn new_work(&self) -> NewWork {
        self.new_work
    }

    pub(super) fn set_new_work(&mut self, new_work: NewWork) {
        self.new_work = new_work;
    }

    /// Why this side asked the peer to end the connection, if it did.
    #[must_use]
    pub const fn drain(&self) -> Option<Drain> {
        self.drain
    }

    pub(super) fn set_drain(&mut self, drain: Drain) {
        self.drain = Some(drain);
    }

    /// The reason for which this side ends its output.
    #[must_use]
    pub fn end_reason(&self) -> CloseReason {
        match self.state {
            Outbound::Ending(reason) => reason,
            _ => self.peer_end_reason(),
        }
    }

    /// The reason of the close when the peer's input has ended.
    pub(super) fn peer_end_reason(&self) -> CloseReason {
        match self.peer_farewell() {
            Some(farewell) => CloseReason::GoAway(farewell.code),
            None => self.drain.map_or(CloseReason::PeerClosed, Drain::reason),
        }
    }

    /// The peer's farewell, if it sent one.
    #[must_use]
    pub fn peer_farewell(&self) -> Option<&Farewell> {
        self.last_words.as_ref()?.peer.as_ref()
    }

    /// Whether the peer has announced that it will close.
    #[must_use]
    pub const fn is_peer_going(&self) -> bool {
        matches!(&self.last_words, Some(words) if words.peer.is_some())
    }

    /// The address of another server that the peer's go-away has. It may be any text.
    #[must_use]
    pub fn peer_moved_to(&self) -> Option<&str> {
        self.last_words.as_ref()?.moved_to.as_deref()
    }

    pub(super) fn note_peer_farewell(&mut self, body: &MovedBody<'_>) {
        let words = self.last_words.get_or_insert_default();
        words.peer = Some(Farewell::new(body.code, body.text));
        words.moved_to = (!body.address.is_empty()).then(|| body.address.into());
    }

    /// Sets the farewell of this side, unless it is set.
    pub(super) fn note_own_farewell(&mut self, farewell: Farewell) {
        let words = self.last_words.get_or_insert_default();
        words.own.get_or_insert(farewell);
    }

    /// Notes that the peer needs no go-away.
    pub(super) fn note_going_told(&mut self) {
        self.is_going_told = true;
    }

    /// Schedules the go-away of a drain for the peer. It is sent once.
    pub(super) fn tell_going(&mut self, reason: CloseReason) {
        let words = match reason {
            CloseReason::Shutdown => Words::ShuttingDown,
            reason => Words::Reason(reason),
        };
        if !self.is_going_told {
            self.tell(GoAwayCode::Shutdown, words);
        }
    }

    /// Schedules the reason of the close for the peer. Returns false if the reason has no code, or cannot be written
    /// any more.
    pub(super) fn tell_reason(&mut self, reason: CloseReason) -> bool {
        let may_be_told = self.state.may_write() && !self.is_going_told;
        let Some(code) = reason.go_away_code().filter(|_| may_be_told) else {
            return false;
        };
        self.tell(code, Words::Reason(reason));
        true
    }

    /// Schedules this side's farewell, if it was not sent. Returns whether there is.
    pub(super) fn tell_farewell(&mut self) -> bool {
        let Some(LastWords {
            own: Some(own),
            is_own_told: is_told @ false,
            ..
        }) = self.last_words.as_deref_mut()
        else {
            return false;
        };
        *is_told = true;
        let code = own.code;
        self.tell(code, Words::Own);
        true
    }

    fn tell(&mut self, code: GoAwayCode, words: Words) {
        self.is_going_told = true;
        self.go_away = Some((code, words));
    }

    pub(super) const fn has_transmit(&self) -> bool {
        self.go_away.is_some()
    }

    /// Appends the go-away to send, if any. It has the address of another server, if any and if the peer follows moves.
    pub(super) fn transmit<C: Codec + ?Sized>(
        &mut self,
        own: &Introduction<'_>,
        knows_moves: bool,
        codec: &C,
        out: &mut Vec<u8>,
    ) -> Option<Result<(), EncodeError>> {
        let (code, words) = self.go_away.take()?;
        let reason;
        let text = match words {
            Words::ShuttingDown => "the server is shutting down",
            Words::Reason(why) => {
                reason = why.to_string();
                &reason
            }
            Words::Own => {
                let own = self
                    .last_words
                    .as_ref()
                    .and_then(|words| words.own.as_ref());
                own.map_or("", |own| &own.text)
            }
        };
        let address = match words {
            Words::ShuttingDown if knows_moves => own.moved_to,
            _ => "",
        };
        Some(encode_go_away(code, address, text, codec, out))
    }
}

/// Whether a codec lets this side tell the reason of its end. Without go-away frames, a client's farewell would look
/// like a request.
pub(super) const fn may_tell(rules: &Rules, is_outgoing: bool) -> bool {
    rules.format.has_go_away || !is_outgoing
}

/// Appends a go-away, with the address of another server, if any.
fn encode_go_away<C: Codec + ?Sized>(
    code: GoAwayCode,
    address: &str,
    text: &str,
    codec: &C,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let mut body = Vec::new();
    let flags = match address {
        "" => {
            GoAwayBody { code, text }.encode(&mut body);
            0
        }
        _ => {
            MovedBody {
                code,
                address,
                text,
            }
            .encode(&mut body)?;
            FLAG_MOVED
        }
    };
    let message = Message {
        flags,
        ..Message::new(Kind::GoAway, 0, &body)
    };
    codec.encode(&message, out)
}
