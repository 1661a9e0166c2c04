//! Calls whose effect at the server outlives them: joining a room, subscribing.
//!
//! Problem: the caller of such a call gives up, because its deadline passed or its future was dropped, and the server agrees
//! later. Then the client would be a member or a subscriber without knowing it, and would be refused when it tries again.
//!
//! Approach: such a call is never cancelled. The caller is told, and the client goes on listening for the answer; if the
//! server agrees, the client takes the effect back with the call that undoes it. The same holds for a reply that is in its
//! slot when its future is dropped: the lock of the [table](super::table) decides which side sees the other.
//!
//! A call that waits for its answer like this counts among those in flight, so a server that never answers costs the
//! connection's window and no memory without a bound.
//!
//! Rejected: cancelling the call. A cancel crosses the answer, and says nothing about what was done before it came.

use std::num::NonZeroU32;

use tidewire_proto::message::{Kind, Message};

use super::error::RequestError;
use super::service::ClientService;
use super::submissions::RequestHead;
use crate::service::Context;
use crate::session::SessionId;

/// The mark of a request whose effect at the server outlives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect(NonZeroU32);

/// The call that takes an effect back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undo {
    /// The connection on which the channel means something.
    pub(super) session: SessionId,
    pub(super) kind: Kind,
    pub(super) channel: u16,
}

impl Effect {
    /// The effect of a request of this kind that the application made itself.
    pub(crate) fn of(kind: Kind) -> Option<Self> {
        undo_kind(kind).map(|_| Self(NonZeroU32::MIN))
    }

    /// The effect of a request to subscribe, for an entry of the client's table of subscriptions.
    pub(crate) fn of_subscription(key: usize) -> Self {
        // The server gives out an alias of 16 bits for each, so that there are never as many as would wrap.
        Self(NonZeroU32::MIN.saturating_add(1 + key as u32))
    }

    /// The entry of the subscription that it is about.
    pub(crate) fn subscription(self) -> Option<usize> {
        (self.0.get() as usize).checked_sub(2)
    }
}

impl Undo {
    fn of(session: SessionId, kind: Kind, channel: u16) -> Option<Self> {
        let kind = undo_kind(kind)?;
        Some(Self {
            session,
            kind,
            channel,
        })
    }
}

impl ClientService {
    /// A request with an effect was answered, or refused.
    #[cold]
    pub(super) fn handle_effect(
        &mut self,
        cx: &mut Context<'_>,
        head: &RequestHead,
        effect: Effect,
        result: Result<u16, RequestError>,
        message: &Message<'_>,
    ) {
        let result = match effect.subscription() {
            Some(key) => self.listening.handle_answer(key, head.kind, result),
            None => result,
        };
        let completions = &mut self.pending.completions;
        let channel = match result {
            Ok(channel) => channel,
            Err(error) => return completions.fail(head.slot, error),
        };
        let undo = match (effect.subscription(), self.session) {
            (None, Some(session)) => Undo::of(session, head.kind, channel),
            // A subscription is undone by whoever drops it.
            _ => None,
        };
        match (head.slot, undo) {
            (Some(slot), undo) => {
                let table = &self.link.table;
                table.reply_long(completions, slot, channel, message.payload, undo);
            }
            (None, Some(undo)) => self.pending.undo(cx, undo),
            (None, None) => {}
        }
    }
}

fn undo_kind(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::Join => Some(Kind::Leave),
        Kind::Subscribe => Some(Kind::Unsubscribe),
        _ => None,
    }
}
