//! The guards without the feature `trace`. They do nothing.

use tidewire_proto::connection::CloseReason;
use tidewire_proto::message::Kind;

use super::Traced;
use crate::observe::LaneCounters;

#[derive(Debug, Default)]
pub(crate) struct Connecting;

#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct SpanGuard;

#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct Moving;

impl Connecting {
    #[inline(always)]
    pub(crate) fn of(_session: &impl Traced, _codec: impl FnOnce() -> &'static str) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn note_codec(&self, _codec: impl FnOnce() -> &'static str) {}

    #[inline(always)]
    pub(crate) fn end(&mut self) {}
}

impl SpanGuard {
    #[inline(always)]
    pub(crate) fn handle<T: Traced>(
        _session: Option<&T>,
        _codec: impl FnOnce() -> &'static str,
        _kind: Kind,
        _bytes: usize,
    ) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn close(
        _session: &impl Traced,
        _codec: impl FnOnce() -> &'static str,
        _reason: CloseReason,
    ) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(self) {}
}

impl Moving {
    #[inline(always)]
    pub(crate) fn receive(
        _session: &impl Traced,
        _codec: impl FnOnce() -> &'static str,
        _counters: &LaneCounters,
    ) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn send(
        _session: &impl Traced,
        _codec: impl FnOnce() -> &'static str,
        _counters: &LaneCounters,
    ) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(self, _counters: &LaneCounters) {}
}
