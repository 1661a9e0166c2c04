//! Requests with a lasting effect at the server: joining a room, subscribing.
//!
//! Problem: the caller gives up such a request because its deadline passed or its future was dropped, and the server
//! agrees later. Then the client would be a member or a subscriber without knowing it, and the server would refuse the
//! next attempt.
//!
//! Approach: such a request is never cancelled. It fails for the caller, and the client keeps waiting for the reply. If
//! the server agrees, the client undoes the effect. A reply may also be in its slot, unread, when the future is
//! dropped. The lock of the [table](super::table) orders the reply and the drop, so one side notices the reply, and the
//! lane undoes the effect.
//!
//! A request that waits for its reply like this still counts as pending. So a server that never replies uses up the
//! connection's window, but no unbounded memory. Over UDP the reply may be lost, so the client stops waiting for it
//! after ten minutes.
//!
//! Rejected: cancelling the request. The cancel and the reply may cross, and then the effect stays.
//!
//! A flush is marked as well, because its reply changes the client's [counts](super::unconfirmed). It is cancelled like
//! a request without an effect.

use std::time::Duration;

use tidewire_io::clock::now_ns;
use tidewire_proto::body::RecoveryBody;
use tidewire_proto::message::{Kind, Message};

use super::error::RequestError;
use super::pending::{Pending, RequestCopy};
use super::service::ClientService;
use super::submissions::{RequestHead, WhenWindowFull};
use crate::limits::nanoseconds;
use crate::service::Context;
use crate::session::SessionId;

/// The change that a request makes beyond its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Its reply [confirms](super::unconfirmed) all earlier messages. It needs no undoing.
    Flush,
    /// The application made a request of a kind with a lasting effect itself.
    OfKind,
    /// Joins a room, subscribes or unsubscribes, with the key in [`Holdings`](super::holdings::Holdings).
    Holding { key: HoldingKey },
}

/// The key of a room or subscription, without alignment: a head of a request has 24 bytes with it. Heads of 32 bytes
/// cost each request 1 % more instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldingKey([u8; 4]);

const _: () = assert!(size_of::<RequestHead>() == 24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undo {
    /// The connection on which the channel is valid.
    pub(super) session: SessionId,
    pub(super) kind: Kind,
    pub(super) channel: u16,
}

impl Effect {
    /// The effect of a request that the application made itself with this kind.
    pub(crate) fn of(kind: Kind) -> Option<Self> {
        let has_effect = matches!(kind, Kind::Join | Kind::Leave | Kind::Subscribe);
        has_effect.then_some(Self::OfKind)
    }
}

impl HoldingKey {
    /// The server assigns a 16-bit alias to each room and subscription, so their indexes stay far below 32 bits.
    pub(super) fn new(index: usize) -> Self {
        Self((index as u32).to_ne_bytes())
    }

    pub(super) fn get(self) -> usize {
        u32::from_ne_bytes(self.0) as usize
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
    /// Handles the reply or the refusal of a request with an effect.
    #[cold]
    pub(super) fn handle_effect(
        &mut self,
        cx: &mut Context<'_>,
        head: &RequestHead,
        effect: Effect,
        result: Result<u16, RequestError>,
        message: &Message<'_>,
    ) {
        let (payload, recovery) = match RecoveryBody::split(message) {
            Ok(split) if message.kind == Kind::Reply => split,
            _ => (message.payload, None),
        };
        let result = match effect {
            Effect::Flush => return self.handle_flushed(head, result, message.payload),
            Effect::Holding { key } => {
                let key = key.get();
                self.holdings
                    .handle_answer(key, head.kind, result, recovery)
            }
            Effect::OfKind => {
                if head.kind == Kind::Leave && result.is_ok() {
                    self.holdings.handle_left(head.channel);
                }
                result
            }
        };
        let session = self.session();
        let completions = &mut self.pending.completions;
        let channel = match result {
            Ok(channel) => channel,
            Err(error) => return completions.fail(head.slot, error),
        };
        let undo = match effect {
            // A subscription is undone when its handle is dropped.
            Effect::Holding { .. } if head.kind != Kind::Join => None,
            _ => session.and_then(|session| Undo::of(session, head.kind, channel)),
        };
        match (head.slot, undo) {
            (Some(slot), undo) => {
                let table = &self.link.table;
                table.reply_long(completions, slot, channel, payload, undo);
            }
            (None, Some(undo)) => self.pending.undo(cx, undo),
            (None, None) => {}
        }
    }
}

impl Pending {
    /// Undoes the effect of a request, unless its connection has ended and the effect with it.
    pub(super) fn undo(&mut self, cx: &mut Context<'_>, undo: Undo) {
        if self.session != Some(undo.session) {
            return;
        }
        let head = RequestHead {
            slot: None,
            kind: undo.kind,
            channel: undo.channel,
            deadline_ns: now_ns().saturating_add(nanoseconds(UNDO_TIMEOUT)),
            idempotent: false,
            when_full: WhenWindowFull::Wait,
            effect: None,
            is_given_up: false,
        };
        self.enqueue(RequestCopy::new(&head, "", &[]));
        // Send at once, so that it comes before the application's next submissions.
        self.send_queued(cx);
    }
}

fn undo_kind(kind: Kind) -> Option<Kind> {
    match kind {
        Kind::Join => Some(Kind::Leave),
        Kind::Subscribe => Some(Kind::Unsubscribe),
        _ => None,
    }
}

/// Timeout for the server's confirmation that an effect was undone. The confirmation is ignored.
const UNDO_TIMEOUT: Duration = Duration::from_secs(10);
