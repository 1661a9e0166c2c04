//! The positions of a client in the rooms that keep a history, so that it gets what it missed when it joins again.

use std::collections::HashMap;

use slab::Slab;
use tidewire_proto::body::{JoinBody, PositionBody, Recovery, RecoveryBody, Since, split_delivery};
use tidewire_proto::message::{FLAG_POSITION, Kind, Message};

use super::effect::Effect;
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
    rooms: Slab<Room>,
    /// The rooms of this connection.
    by_alias: HashMap<u16, usize>,
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
}

impl RoomPositions {
    /// Returns the key of the room of this name.
    fn key_of(&mut self, name: &str) -> usize {
        let found = self.rooms.iter().find(|(_, room)| &*room.name == name);
        found.map(|(key, _)| key).unwrap_or_else(|| {
            self.rooms.insert(Room {
                name: name.into(),
                position: None,
                is_interrupted: false,
            })
        })
    }

    /// Notes the reply to a join.
    pub(super) fn handle_joined(
        &mut self,
        key: usize,
        alias: u16,
        recovery: Option<RecoveryBody>,
    ) -> Option<Event> {
        let Some(RecoveryBody { position, recovery }) = recovery else {
            // The room keeps no history, so there is nothing to know of it.
            self.rooms.try_remove(key);
            return None;
        };
        let room = self.rooms.get_mut(key)?;
        room.is_interrupted = false;
        room.position = Some(position);
        self.by_alias.insert(alias, key);
        recovered(recovery).map(|missing| Event::Recovered {
            room: alias,
            missing,
        })
    }

    /// Forgets a room whose join was refused for the first time.
    pub(super) fn handle_refused(&mut self, key: usize) {
        let is_unknown = self.rooms.get(key).is_some_and(|it| it.position.is_none());
        if is_unknown {
            self.rooms.remove(key);
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
        let key = *self.by_alias.get(&alias)?;
        self.rooms.get_mut(key)?.position.as_mut()
    }

    /// Notes which position the next message of a room follows.
    fn handle_position(&mut self, message: &Message<'_>) -> Option<Event> {
        let position = PositionBody::decode(message.payload).ok()?.position;
        let key = *self.by_alias.get(&message.channel)?;
        let room = self.rooms.get_mut(key)?;
        let former = room.position.replace(position);
        let is_new_epoch = former.is_some_and(|former| former.epoch != position.epoch);
        is_new_epoch.then_some(Event::Recovered {
            room: message.channel,
            missing: None,
        })
    }

    /// Handles the end of the connection.
    pub(super) fn handle_close(&mut self) {
        for (_, key) in self.by_alias.drain() {
            if let Some(room) = self.rooms.get_mut(key) {
                room.is_interrupted = true;
            }
        }
        self.rooms.retain(|_, room| room.position.is_some());
    }
}

impl ClientService {
    /// Sends the request to join a room, with the position that the client has in it.
    pub(super) fn join(&mut self, cx: &mut Context<'_>, join: Join) {
        // Requests about subscriptions came earlier and may wait for room in the window. They go first.
        self.ask_due(cx);
        let key = self.rooms.key_of(&join.room);
        let known = &self.rooms.rooms[key];
        let own = known.position.filter(|_| known.is_interrupted);
        let since = join.since.or(own.map(Since::Position));
        let (mut body, mut flags) = (Vec::new(), 0);
        if let Some(since) = since.filter(|_| self.server_knows_positions(cx)) {
            since.encode(&mut body);
            flags = FLAG_POSITION;
        }
        // The names were encoded before the request was submitted.
        let _ = JoinBody {
            room: &known.name,
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
            effect: Some(Effect::of_join(key)),
        };
        match self.pending.send_one(cx, &head, flags, &body) {
            Ok(()) => {}
            Err(RequestError::WindowFull) if join.when_full == WhenWindowFull::Wait => {
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

    /// Whether the server of this connection knows positions.
    pub(super) fn server_knows_positions(&self, cx: &Context<'_>) -> bool {
        let session = self.pending.session;
        session.is_some_and(|session| cx.peer_knows_positions(session))
    }

    /// Handles a message of a room that keeps a history, or a position of one.
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
