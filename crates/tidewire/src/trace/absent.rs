//! The guards without the feature `trace`: nothing.

use tidewire_proto::message::Kind;

use crate::lane::Core;
use crate::session::{CloseReason, Session, SessionId};

/// A connection being made.
#[derive(Debug)]
pub(crate) struct Connecting;

/// Something being done to a session: handling a message, closing.
#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct Entered;

/// Bytes on their way through a socket.
#[must_use = "a span ends where its guard does"]
#[derive(Debug)]
pub(crate) struct Moving;

impl Connecting {
    #[inline(always)]
    pub(crate) fn none() -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn of(_session: &Session, _codec: &'static str) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(&mut self) {}
}

impl Entered {
    #[inline(always)]
    pub(crate) fn handle(_core: &Core, _id: SessionId, _kind: Kind, _bytes: usize) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn close(_core: &Core, _id: SessionId, _reason: CloseReason) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(self) {}
}

impl Moving {
    #[inline(always)]
    pub(crate) fn receive(_core: &Core, _slot: usize) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn send(_core: &Core, _slot: usize) -> Self {
        Self
    }

    #[inline(always)]
    pub(crate) fn end(self, _core: &Core) {}
}
