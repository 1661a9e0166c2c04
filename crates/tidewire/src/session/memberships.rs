//! The changes of a membership in its session: the position in the log, the output and the account of memory.

use tidewire_proto::codec::Codec;
use tidewire_proto::room::{Subscriber, Verdict};

use super::{LaneSessions, LogKey, MEMBERSHIP_BYTES, Membership, Session};
use crate::observe::DropReason;

/// The work of a room for the policy of a slow subscriber.
pub(crate) enum SlowSubscriber {
    /// Nothing.
    Served,
    /// Close the session, which has these messages and bytes before it.
    Disconnect { behind: (u64, u64) },
    /// Hold back the publishers.
    Block,
}

impl LaneSessions {
    /// Applies the policy to a subscriber whose socket is full.
    pub(crate) fn enforce_policy(&mut self, slot: usize, alias: u16) -> SlowSubscriber {
        let Self {
            table,
            logs,
            outputs,
            counters,
            config,
            relief,
            ..
        } = self;
        let session = &mut table[slot];
        let codec = config.codecs.get(session.codec_number());
        let Some(index) = session.membership(alias) else {
            return SlowSubscriber::Served;
        };
        let membership = &mut session.memberships[index];
        let Some(log) = logs.get_mut(membership.log()) else {
            return SlowSubscriber::Served;
        };
        let subscription = membership.subscription();
        let held_bytes = MEMBERSHIP_BYTES + membership.subscriber.held_bytes();
        relief.charge(membership.held_bytes, held_bytes);
        membership.held_bytes = held_bytes;
        let subscriber = &mut membership.subscriber;
        let behind = subscriber.messages_behind(log);
        let output = outputs.of_mut(slot);
        let is_empty = output.is_empty();
        let verdict = subscriber.enforce(log, is_empty, |frame| {
            output.push_delivery(codec, subscription, frame);
        });
        match verdict {
            Verdict::Keep { dropped } => {
                counters.room_dropped[DropReason::Policy as usize].add(dropped);
                let spilled = behind - subscriber.messages_behind(log) - dropped;
                output.add_room_messages(spilled);
                relief.charge_buffers(session, outputs);
            }
            Verdict::Replay { replayed } => {
                counters.room_dropped[DropReason::Replayed as usize].add(replayed);
            }
            Verdict::Disconnect => {
                let behind = (behind, subscriber.bytes_behind(log));
                return SlowSubscriber::Disconnect { behind };
            }
            Verdict::Block => return SlowSubscriber::Block,
            Verdict::Conflate => {
                subscriber.conflate(log, |frame| codec.delivery_topic(frame));
            }
        }
        SlowSubscriber::Served
    }
}

impl Membership {
    #[inline]
    pub(crate) fn room(&self) -> u16 {
        self.room
    }

    /// The log that the session reads.
    #[inline(always)]
    pub(crate) fn log(&self) -> LogKey {
        LogKey::new(self.room, self.codec)
    }

    pub(crate) fn is_topic(&self) -> bool {
        self.is_topic
    }

    /// Whether it is a subscription in a queue group.
    pub(crate) fn is_in_group(&self) -> bool {
        self.is_in_group
    }
}

impl Session {
    /// Adds a membership in a room, or a subscription. `index` is its place in the room's list of members.
    pub(crate) fn enter(
        &mut self,
        room: u16,
        (is_topic, is_in_group): (bool, bool),
        index: usize,
        subscriber: Subscriber,
    ) {
        let membership = Membership {
            room,
            codec: self.codec,
            held_bytes: MEMBERSHIP_BYTES,
            is_topic,
            is_in_group,
            number: 0,
            index,
            subscriber,
        };
        let at = self.memberships.partition_point(|it| it.room < room);
        self.memberships.insert(at, membership);
    }

    /// Notes the new place of the session in a room's list of members.
    pub(crate) fn move_member(&mut self, room: u16, index: usize) {
        if let Some(membership) = self.membership(room) {
            self.memberships[membership].index = index;
        }
    }

    /// Sets the number of a membership, which is the id of the message that requested it.
    pub(crate) fn number_membership(&mut self, room: u16, number: u32) {
        if let Some(membership) = self.membership(room) {
            self.memberships[membership].number = number;
        }
    }

    /// Returns the index of the session's membership in a room that is not a topic's.
    #[inline]
    pub(crate) fn room_membership(&self, alias: u16) -> Option<usize> {
        self.membership(alias)
            .filter(|index| !self.memberships[*index].is_topic)
    }

    /// Returns the index of the session's subscription with this alias.
    pub(crate) fn subscription(&self, alias: u16) -> Option<usize> {
        self.membership(alias)
            .filter(|index| self.memberships[*index].is_topic)
    }

    /// Returns the index of the session's membership or subscription with this alias.
    #[inline]
    pub(crate) fn membership(&self, alias: u16) -> Option<usize> {
        self.memberships
            .binary_search_by_key(&alias, |membership| membership.room)
            .ok()
    }

    /// Whether it has at least this many subscriptions, or memberships in rooms.
    pub(crate) fn has_memberships(&self, of_topics: bool, count: usize) -> bool {
        let memberships = self.memberships.iter();
        self.memberships.len() >= count
            && memberships.filter(|it| it.is_topic == of_topics).count() >= count
    }
}
