//! The guards with the feature `trace`. Their fields are computed only if a subscriber wants the span.

use tidewire_proto::connection::CloseReason;
use tidewire_proto::message::Kind;
use tracing::field::Empty;
use tracing::span::{EnteredSpan, Span};

use super::Traced;
use crate::observe::LaneCounters;

/// A connection being made. A session keeps this span, because it lasts over many turns.
#[derive(Debug, Default)]
pub(crate) struct Connecting(Option<Box<Span>>);

/// The handling of a message, or the closing of a session.
#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct SpanGuard(EnteredSpan);

/// Bytes on their way through a socket. Their number is the change of the lane's counters.
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
    pub(crate) fn of(session: &impl Traced, codec: impl FnOnce() -> &'static str) -> Self {
        let span = tracing::debug_span!(
            target: TARGET,
            "connect",
            session = %session.id(),
            peer = session.peer().map(display),
            codec = codec(),
            outgoing = session.is_outgoing(),
            opened = Empty,
        );
        Self((!span.is_disabled()).then(|| Box::new(span)))
    }

    pub(crate) fn note_codec(&self, codec: impl FnOnce() -> &'static str) {
        if let Some(span) = &self.0 {
            span.record("codec", codec());
        }
    }

    pub(crate) fn end(&mut self) {
        if let Some(span) = self.0.take() {
            span.record("opened", true);
        }
    }
}

impl SpanGuard {
    #[inline]
    pub(crate) fn handle<T: Traced>(
        session: Option<&T>,
        codec: impl FnOnce() -> &'static str,
        kind: Kind,
        bytes: usize,
    ) -> Self {
        let span = tracing::trace_span!(
            target: TARGET,
            "handle",
            session = session.map(|session| display(session.id())),
            peer = session.and_then(Traced::peer).map(display),
            codec = codec(),
            kind = ?kind,
            bytes,
        );
        Self(span.entered())
    }

    pub(crate) fn close(
        session: &impl Traced,
        codec: impl FnOnce() -> &'static str,
        reason: CloseReason,
    ) -> Self {
        let span = tracing::debug_span!(
            target: TARGET,
            "close",
            session = %session.id(),
            peer = session.peer().map(display),
            codec = codec(),
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
    pub(crate) fn receive(
        session: &impl Traced,
        codec: impl FnOnce() -> &'static str,
        counters: &LaneCounters,
    ) -> Self {
        let span = tracing::trace_span!(
            target: TARGET,
            "receive",
            session = %session.id(),
            peer = session.peer().map(display),
            codec = codec(),
            bytes = Empty,
        );
        Self::new(counters, span, Direction::In)
    }

    #[inline]
    pub(crate) fn send(
        session: &impl Traced,
        codec: impl FnOnce() -> &'static str,
        counters: &LaneCounters,
    ) -> Self {
        let span = tracing::trace_span!(
            target: TARGET,
            "send",
            session = %session.id(),
            peer = session.peer().map(display),
            codec = codec(),
            bytes = Empty,
        );
        Self::new(counters, span, Direction::Out)
    }

    #[inline]
    fn new(counters: &LaneCounters, span: Span, direction: Direction) -> Self {
        Self {
            span: span.entered(),
            direction,
            counted_before: direction.counted(counters),
        }
    }

    #[inline]
    pub(crate) fn end(self, counters: &LaneCounters) {
        let counted = self.direction.counted(counters);
        self.span
            .record("bytes", counted.wrapping_sub(self.counted_before));
    }
}

impl Direction {
    #[inline]
    fn counted(self, counters: &LaneCounters) -> u64 {
        match self {
            Self::In => counters.bytes_in.read(),
            Self::Out => counters.bytes_out.read(),
        }
    }
}

/// The target of spans. Subscribers filter by it, so that spans do not mix with log lines.
const TARGET: &str = "tidewire::span";
