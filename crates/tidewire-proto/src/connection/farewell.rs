//! The farewell of a connection: why one side closes it, for programs and for people.

use super::{CloseReason, Connection, Outbound, Rules, Side};
use crate::body::{GoAwayBody, GoAwayCode, MovedBody};
use crate::codec::Codec;
use crate::error::EncodeError;
use crate::limits::TEXT_BYTES_MAX;
use crate::message::{FLAG_MOVED, Kind, Message};

/// The reason why a side closes a connection, as in a go-away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The reason, for programs.
    pub code: GoAwayCode,
    /// The reason, for people, in at most 255 bytes; may be empty. A peer's text may contain any characters: pass it
    /// through [`escaped`](crate::text::escaped) or [`visible`](crate::text::visible) before you show it.
    pub text: Box<str>,
}

/// The farewells of both sides of a connection.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    pub(super) peer: Option<Farewell>,
    /// The address at which the peer wants this side to connect.
    moved_to: Option<Box<str>>,
    own: Option<Farewell>,
    /// Whether this side's go-away is written, or among the frames to transmit.
    is_own_told: bool,
}

impl Farewell {
    /// Makes a farewell. Its text is cut to 255 bytes.
    #[must_use]
    pub fn new(code: GoAwayCode, text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        Self {
            code,
            text: text.into(),
        }
    }
}

impl Connection {
    /// Closes like [`Self::finish`], and sends the peer the reason last, if its codec has a frame for it: after the
    /// present output and after the pending replies. The first farewell stays.
    ///
    /// A connecting side whose codec has no go-away sends nothing, because the peer would read the text as a request.
    pub fn finish_with(&mut self, rules: &Rules, reason: CloseReason, farewell: Farewell) {
        let is_mistaken = !rules.format.has_go_away && self.side == Side::Connecting;
        let is_writing = matches!(self.outbound, Outbound::Writing { .. });
        if self.is_open() && is_writing && !is_mistaken {
            self.last_words
                .get_or_insert_default()
                .own
                .get_or_insert(farewell);
        }
        self.finish(reason);
    }

    /// The peer's farewell, if it sent one.
    #[must_use]
    pub fn peer_farewell(&self) -> Option<&Farewell> {
        self.last_words.as_ref()?.peer.as_ref()
    }

    /// The address of another server that the peer's go-away has. It may be any text.
    #[must_use]
    pub fn peer_moved_to(&self) -> Option<&str> {
        self.last_words.as_ref()?.moved_to.as_deref()
    }

    pub(super) fn note_peer_farewell(&mut self, farewell: Farewell, moved_to: &str) {
        let words = self.last_words.get_or_insert_default();
        words.peer = Some(farewell);
        words.moved_to = (!moved_to.is_empty()).then(|| moved_to.into());
    }

    /// Takes the code of this side's farewell, once.
    pub(super) fn take_untold_code(&mut self) -> Option<GoAwayCode> {
        let words = self.last_words.as_deref_mut()?;
        let code = words.own.as_ref()?.code;
        (!std::mem::replace(&mut words.is_own_told, true)).then_some(code)
    }

    /// The text of this side's farewell.
    pub(super) fn own_text(&self) -> Box<str> {
        let own = self
            .last_words
            .as_ref()
            .and_then(|words| words.own.as_ref());
        own.map_or_else(|| "".into(), |own| own.text.clone())
    }
}

/// Appends a go-away, with the address of another server if there is one.
pub(super) fn encode_go_away<C: Codec + ?Sized>(
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
