//! The positions of a client in rooms that keep a history, so that it receives missed messages when it joins again.

use std::collections::HashMap;

use tidewire_proto::body::{
    JoinBody, PlacementBody, PositionBody, Recovery, RecoveryBody, Since, split_delivery,
};
use tidewire_proto::message::{FLAG_POSITION, Kind, Message, RoomId};

use super::effect::{Effect, EffectKey};
use super::error::RequestError;
use super::events::{Event, OwnedMessage};
use super::link::Join;
use super::service::ClientService;
use super::submissions::{RequestHead, WhenWindowFull};
use crate::broker::Position;
use crate::service::Context;

/// The rooms that a client has joined or wants to join.
#[derive(Debug, Default)]
pub(super) struct RoomPositions {
    rooms: HashMap<u32, Room>,
    /// The key of the latest room. Keys are not used again, because a reply may come long after its request.
    key_last: u32,
    by_alias: HashMap<u16, u32>,
    /// Joins that wait for room in the window.
    waiting: Vec<Join>,
}

#[derive(Debug)]
struct Room {
    name: Box<str>,
    /// The position of the last message, if the room keeps a history.
    position: Option<Position>,
    /// Whether the position is of an earlier connection.
    is_interrupted: bool,
    /// Joins without a reply. Until then the room is not forgotten.
    joins: u32,
}

impl RoomPositions {
    /// Notes a join. Returns the key of the room, and the position to continue from.
    fn begin_join(&mut self, name: &str) -> (u32, Option<Position>) {
        let found = self.rooms.iter().find(|(_, room)| &*room.name == name);
        let key = found.map_or_else(|| self.key_last.wrapping_add(1), |(key, _)| *key);
        let room = self.rooms.entry(key).or_insert_with(|| {
            self.key_last = key;
            Room {
                name: name.into(),
                position: None,
                is_interrupted: false,
                joins: 0,
            }
        });
        room.joins += 1;
        (key, room.position.filter(|_| room.is_interrupted))
    }

    /// Notes the outcome of a join. Forgets the room if there is nothing to know of it.
    fn end_join(&mut self, key: u32) {
        if let Some(room) = self.rooms.get_mut(&key) {
            room.joins = room.joins.saturating_sub(1);
            if room.joins == 0 && room.position.is_none() {
                self.rooms.remove(&key);
            }
        }
    }

    /// Notes the reply to a join.
    pub(super) fn handle_joined(
        &mut self,
        key: u32,
        alias: u16,
        recovery: Option<RecoveryBody>,
    ) -> Option<Event> {
        let room = self.rooms.get_mut(&key)?;
        room.is_interrupted = false;
        // A room without a history has no position.
        room.position = recovery.map(|body| body.position);
        self.end_join(key);
        let RecoveryBody { recovery, .. } = recovery?;
        self.by_alias.insert(alias, key);
        recovered(recovery).map(|missing| Event::Recovered {
            room: RoomId(alias),
            missing,
        })
    }

    pub(super) fn handle_refused(&mut self, key: u32) {
        self.end_join(key);
    }

    /// Forgets a room that the client has left.
    pub(super) fn handle_left(&mut self, alias: u16) {
        if let Some(key) = self.by_alias.remove(&alias)
            && let Some(room) = self.rooms.get_mut(&key)
        {
            room.position = None;
            if room.joins == 0 {
                self.rooms.remove(&key);
            }
        }
    }

    /// Notes the position of a message, and returns the message for the application.
    fn handle_delivery(&mut self, message: &Message<'_>) -> OwnedMessage {
        let (offset, payload) = split_delivery(message).unwrap_or((None, message.payload));
        let flags = message.flags & !FLAG_POSITION;
        let mut owned = OwnedMessage::from(Message {
            flags,
            payload,
            ..*message
        });
        if let Some(position) = self.position_mut(message.channel)
            && let Some(offset) = offset
        {
            position.offset = offset;
            owned.position = Some(*position);
        }
        owned
    }

    fn position_mut(&mut self, alias: u16) -> Option<&mut Position> {
        let key = self.by_alias.get(&alias)?;
        self.rooms.get_mut(key)?.position.as_mut()
    }

    /// Notes which position the next message of a room follows.
    fn handle_position(&mut self, message: &Message<'_>) -> Option<Event> {
        let position = PositionBody::decode(message.payload).ok()?.position;
        let key = self.by_alias.get(&message.channel)?;
        let room = self.rooms.get_mut(key)?;
        let former = room.position.replace(position);
        let is_new_epoch = former.is_some_and(|former| former.epoch != position.epoch);
        is_new_epoch.then_some(Event::Recovered {
            room: message.room(),
            missing: None,
        })
    }

    pub(super) fn handle_close(&mut self) {
        for (_, key) in self.by_alias.drain() {
            if let Some(room) = self.rooms.get_mut(&key) {
                room.is_interrupted = true;
            }
        }
        // No reply comes any more.
        self.rooms.retain(|_, room| {
            room.joins = 0;
            room.position.is_some()
        });
    }
}

impl ClientService {
    /// Sends the request to join a room, with the position that the client has in it.
    pub(super) fn join(&mut self, cx: &mut Context<'_>, join: Join) {
        // Requests about subscriptions came earlier and may wait for room in the window. They go first.
        self.ask_due(cx);
        let (key, own) = self.rooms.begin_join(&join.room);
        let since = join.since.or(own.map(Since::Position));
        let (mut body, mut flags) = (Vec::new(), 0);
        if let Some(since) = since.filter(|_| self.server_knows_positions(cx)) {
            since.encode(&mut body);
            flags = FLAG_POSITION;
        }
        // The names were encoded before the request was submitted.
        let _ = JoinBody {
            room: &join.room,
            name: &join.name,
        }
        .encode(&mut body);
        let head = RequestHead {
            slot: Some(join.slot),
            kind: Kind::Join,
            channel: 0,
            deadline_ns: join.deadline_ns,
            idempotent: false,
            when_full: join.when_full,
            effect: Some(Effect::Join {
                key: EffectKey::new(key),
            }),
            is_given_up: false,
        };
        match self.pending.send_one(cx, &head, flags, &body) {
            Ok(()) => {}
            Err(RequestError::WindowFull) if join.when_full == WhenWindowFull::Wait => {
                self.rooms.end_join(key);
                self.rooms.waiting.push(join);
            }
            Err(error) => {
                self.rooms.handle_refused(key);
                self.pending.completions.fail(Some(join.slot), error);
            }
        }
    }

    /// Sends the joins that wait for room in the window. Returns the next of their deadlines.
    pub(super) fn join_waiting(&mut self, cx: &mut Context<'_>, now_ns: u64) -> Option<u64> {
        for join in std::mem::take(&mut self.rooms.waiting) {
            match join.deadline_ns <= now_ns {
                true => {
                    let completions = &mut self.pending.completions;
                    completions.fail(Some(join.slot), RequestError::TimedOut);
                }
                false => self.join(cx, join),
            }
        }
        self.rooms.waiting.iter().map(|join| join.deadline_ns).min()
    }

    pub(super) fn server_knows_positions(&self, cx: &Context<'_>) -> bool {
        let session = self.pending.session;
        let session = session.and_then(|session| cx.core.sessions.table.find(session));
        session.is_some_and(|session| session.connection.handshake().knows_positions())
    }

    /// Handles a placement: a handler of the server put this client into a room or subscription, or removed it.
    #[cold]
    pub(super) fn handle_placement(&mut self, message: &Message<'_>) {
        let Ok(placement) = PlacementBody::decode(message.payload) else {
            return;
        };
        let channel = message.channel;
        if placement == PlacementBody::Out {
            self.rooms.handle_left(channel);
            // The application has the subscription, which gets the event.
            if self.listening.handle_removed(channel) {
                return;
            }
        }
        let event = Event::of_placement(channel, &placement);
        self.link.events.push(event);
    }

    /// Handles a message or a position of a room that keeps a history.
    #[cold]
    pub(super) fn handle_positioned(&mut self, message: &Message<'_>) {
        if message.kind == Kind::Deliver {
            let message = self.rooms.handle_delivery(message);
            return self.link.events.push(Event::Message(message));
        }
        self.listening.handle_position(message);
        if let Some(event) = self.rooms.handle_position(message) {
            self.link.events.push(event);
        }
    }
}

/// The number of missing messages, if a position was given.
pub(super) fn recovered(recovery: Recovery) -> Option<Option<u64>> {
    match recovery {
        Recovery::NotAsked => None,
        Recovery::Recovered => Some(Some(0)),
        Recovery::Missing(count) => Some(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(offset: u64) -> Option<RecoveryBody> {
        Some(RecoveryBody {
            position: Position { epoch: 7, offset },
            recovery: Recovery::NotAsked,
        })
    }

    /// Regression: a refused join freed its key while another join of the same room had no reply. The next room got the
    /// key, and its position from that reply.
    #[test]
    fn a_late_reply_to_a_join_never_moves_another_room() {
        let mut rooms = RoomPositions::default();
        let (first, _) = rooms.begin_join("a");
        let (second, _) = rooms.begin_join("a");
        rooms.handle_refused(first);
        let (other, _) = rooms.begin_join("b");
        assert_ne!(second, other);
        rooms.handle_joined(second, 5, reply(10));
        rooms.handle_joined(other, 6, reply(20));
        rooms.handle_close();
        for (name, offset) in [("a", 10), ("b", 20)] {
            let since = rooms.begin_join(name).1.map(|position| position.offset);
            assert_eq!(since, Some(offset), "{name}");
        }
    }

    /// Regression: a room that the client had left was kept for ever, and a later join continued from its position.
    #[test]
    fn rooms_that_were_left_or_refused_are_forgotten() {
        let mut rooms = RoomPositions::default();
        for alias in 1..=1_000 {
            let (key, since) = rooms.begin_join(&format!("room{alias}"));
            assert_eq!(since, None);
            match alias % 3 {
                0 => rooms.handle_refused(key),
                1 => drop(rooms.handle_joined(key, alias, None)),
                _ => drop(rooms.handle_joined(key, alias, reply(1))),
            }
            rooms.handle_left(alias);
        }
        assert!(rooms.rooms.is_empty() && rooms.by_alias.is_empty());
        let (key, _) = rooms.begin_join("room2");
        rooms.handle_joined(key, 2, reply(1));
        rooms.handle_left(2);
        rooms.handle_close();
        assert_eq!(rooms.begin_join("room2").1, None);
    }
}
