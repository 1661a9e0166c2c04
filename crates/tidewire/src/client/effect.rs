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

use std::num::NonZeroU32;
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

/// Marks a request with a lasting effect at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect(NonZeroU32);

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
        has_effect.then_some(Self(NonZeroU32::MIN))
    }

    /// The effect of a subscribe request, with the key of its entry in [`Listening`](super::listening::Listening).
    pub(crate) fn of_subscription(key: usize) -> Self {
        // The server assigns a 16-bit alias to each subscription, so keys stay far below 32 bits.
        Self(NonZeroU32::MIN.saturating_add(1 + key as u32))
    }

    /// Marks a flush. Its reply [confirms](super::unconfirmed) all earlier messages. It needs no undoing.
    pub(crate) const FLUSH: Self = Self(NonZeroU32::new(1 << 29).unwrap());

    /// The effect of joining a room, with its key in [`RoomPositions`](super::room_positions::RoomPositions).
    pub(crate) fn of_join(key: usize) -> Self {
        Self(NonZeroU32::MIN | OF_JOIN | (key as u32) << 1)
    }

    pub(crate) fn subscription(self) -> Option<usize> {
        if self.0.get() & OF_JOIN != 0 || self == Self::FLUSH {
            return None;
        }
        ((self.0.get() & !GIVEN_UP) as usize).checked_sub(2)
    }

    /// The key of the room that is joined.
    fn room(self) -> Option<usize> {
        let is_join = self.0.get() & OF_JOIN != 0;
        is_join.then_some(((self.0.get() & !(GIVEN_UP | OF_JOIN)) >> 1) as usize)
    }

    /// The effect of a request that its caller gave up. The client still waits for the reply.
    pub(super) fn given_up(self) -> Self {
        Self(self.0 | GIVEN_UP)
    }

    pub(super) fn is_given_up(self) -> bool {
        self.0.get() & GIVEN_UP != 0
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
        if effect == Effect::FLUSH {
            return self.handle_flushed(head, result, message.payload);
        }
        let (payload, recovery) = match RecoveryBody::split(message) {
            Ok(split) if message.kind == Kind::Reply => split,
            _ => (message.payload, None),
        };
        let result = match (effect.subscription(), effect.room()) {
            (Some(key), _) => {
                let told = self.listening.handle_answer(key, head.kind, result);
                if let (Ok(alias), Some(recovery)) = (&told, recovery) {
                    self.listening.handle_recovery(*alias, recovery);
                }
                told
            }
            (None, Some(key)) => {
                match &result {
                    Ok(alias) => {
                        let event = self.rooms.handle_joined(key, *alias, recovery);
                        event.into_iter().for_each(|it| self.link.events.push(it));
                    }
                    Err(_) => self.rooms.handle_refused(key),
                }
                result
            }
            (None, None) => {
                if head.kind == Kind::Leave && result.is_ok() {
                    self.rooms.handle_left(head.channel);
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
        let undo = match (effect.subscription(), session) {
            (None, Some(session)) => Undo::of(session, head.kind, channel),
            // A subscription is undone when its handle is dropped.
            _ => None,
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

/// The bit of an [`Effect`] that is a membership with a known room.
const OF_JOIN: u32 = 1 << 30;

/// The bit of an [`Effect`] of a request that its caller gave up.
const GIVEN_UP: u32 = 1 << 31;

/// Timeout for the server's confirmation that an effect was undone. The confirmation is ignored.
const UNDO_TIMEOUT: Duration = Duration::from_secs(10);
