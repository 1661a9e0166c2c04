//! The guards with the feature `trace`. Their fields are put together only if a subscriber wants the span.

use tidewire_proto::codec::Codec;
use tidewire_proto::message::Kind;
use tracing::field::{DisplayValue, Empty, display};
use tracing::span::{EnteredSpan, Span};

use crate::address::Endpoint;
use crate::lane::Core;
use crate::session::{CloseReason, Session, SessionId};

/// A connection being made. It lasts over many turns, so it is the one span that a session keeps.
#[derive(Debug)]
pub(crate) struct Connecting(Option<Box<Span>>);

/// Something being done to a session: handling a message, closing.
#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct Entered(EnteredSpan);

/// Bytes on their way through a socket. How many is known from the lane's counters when it ends.
#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct Moving {
    span: EnteredSpan,
    direction: Direction,
    counted_before: u64,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    In,
    Out,
}

impl Connecting {
    /// Not yet, or no more.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn of(session: &Session, codec: &'static str) -> Self {
        let span = tracing::debug_span!(
            target: TARGET,
            "connect",
            session = %session.id,
            peer = peer_of(Some(session)),
            codec,
            outgoing = session.connection.is_outgoing(),
            opened = Empty,
        );
        Self((!span.is_disabled()).then(|| Box::new(span)))
    }

    /// The session is open for messages.
    pub(crate) fn end(&mut self) {
        if let Some(span) = self.0.take() {
            span.record("opened", true);
        }
    }
}

impl Entered {
    #[inline]
    pub(crate) fn handle(core: &Core, id: SessionId, kind: Kind, bytes: usize) -> Self {
        let span = tracing::trace_span!(
            target: TARGET,
            "handle",
            session = %id,
            peer = peer_of(core.session(id)),
            codec = core.shared.codec.name(),
            kind = ?kind,
            bytes,
        );
        Self(span.entered())
    }

    pub(crate) fn close(core: &Core, id: SessionId, reason: CloseReason) -> Self {
        let span = tracing::debug_span!(
            target: TARGET,
            "close",
            session = %id,
            peer = peer_of(core.session(id)),
            codec = core.shared.codec.name(),
            reason = reason.name(),
        );
        Self(span.entered())
    }

    #[inline]
    pub(crate) fn end(self) {
        drop(self.0);
    }
}

impl Moving {
    #[inline]
    pub(crate) fn receive(core: &Core, slot: usize) -> Self {
        let session = core.sessions.get(slot);
        let span = tracing::trace_span!(
            target: TARGET,
            "receive",
            session = session.map(|session| display(session.id)),
            peer = peer_of(session),
            codec = core.shared.codec.name(),
            bytes = Empty,
        );
        Self::new(core, span, Direction::In)
    }

    #[inline]
    pub(crate) fn send(core: &Core, slot: usize) -> Self {
        let session = core.sessions.get(slot);
        let span = tracing::trace_span!(
            target: TARGET,
            "send",
            session = session.map(|session| display(session.id)),
            peer = peer_of(session),
            codec = core.shared.codec.name(),
            bytes = Empty,
        );
        Self::new(core, span, Direction::Out)
    }

    #[inline]
    fn new(core: &Core, span: Span, direction: Direction) -> Self {
        Self {
            span: span.entered(),
            direction,
            counted_before: direction.counted(core),
        }
    }

    #[inline]
    pub(crate) fn end(self, core: &Core) {
        let counted = self.direction.counted(core);
        self.span
            .record("bytes", counted.wrapping_sub(self.counted_before));
    }
}

impl Direction {
    #[inline]
    fn counted(self, core: &Core) -> u64 {
        match self {
            Self::In => core.counters.bytes_in.read(),
            Self::Out => core.counters.bytes_out.read(),
        }
    }
}

fn peer_of(session: Option<&Session>) -> Option<DisplayValue<&Endpoint>> {
    session?.peer.as_deref().map(display)
}

/// What subscribers filter by, apart from the logs.
const TARGET: &str = "tidewire::span";
