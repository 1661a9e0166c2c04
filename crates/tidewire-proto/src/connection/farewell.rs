//! The last words of a connection: why one side closes it, for programs and for people.

use super::{CloseReason, Connection, Outbound, Rules, Side};
use crate::body::GoAwayCode;
use crate::limits::TEXT_BYTES_MAX;

/// Why a side closes a connection: what a go-away says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// Why, for programs.
    pub code: GoAwayCode,
    /// Why, for people, in at most 255 bytes; may be empty. From a peer, it may hold anything: pass it through
    /// [`escaped`](crate::text::escaped) or [`visible`](crate::text::visible) before it is shown.
    pub text: Box<str>,
}

/// The words with which the sides of a connection close it.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    pub(super) peer: Option<Farewell>,
    own: Option<Farewell>,
    /// This side's go-away is written, or among the frames to transmit.
    is_own_told: bool,
}

impl Farewell {
    /// A farewell whose text is cut to 255 bytes.
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
    /// As [`Self::finish`], and tells the peer why as the very last, where its codec can say it: after the output that there
    /// is, and after the answers that the connection still owes. The first farewell stays.
    ///
    /// A connecting side whose codec has no go-away tells nothing, for the peer would take the words for a request.
    pub fn finish_with(&mut self, rules: &Rules, reason: CloseReason, farewell: Farewell) {
        let is_mistaken = !rules.has_go_away && self.side == Side::Connecting;
        let is_writing = matches!(self.outbound, Outbound::Writing { .. });
        if self.is_open() && is_writing && !is_mistaken {
            self.last_words
                .get_or_insert_default()
                .own
                .get_or_insert(farewell);
        }
        self.finish(reason);
    }

    /// The last words of the peer, if it said why it closes.
    #[must_use]
    pub fn peer_farewell(&self) -> Option<&Farewell> {
        self.last_words.as_ref()?.peer.as_ref()
    }

    pub(super) fn note_peer_farewell(&mut self, farewell: Farewell) {
        self.last_words.get_or_insert_default().peer = Some(farewell);
    }

    /// The code of this side's farewell, once.
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
