//! What a membership changes in its session: the position in the log, the output and the account of memory.

use tidewire_proto::codec::Codec;
use tidewire_proto::room::Verdict;

use super::{LaneSessions, MEMBERSHIP_BYTES};
use crate::observe::DropReason;

/// What the room of a slow subscriber has to do for its policy.
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
            slab,
            logs,
            outputs,
            counters,
            config,
            relief,
            ..
        } = self;
        let session = &mut slab[slot];
        let (Some(index), Some(log)) = (session.membership(alias), logs.get_mut(alias)) else {
            return SlowSubscriber::Served;
        };
        let membership = &mut session.memberships[index];
        let subscription = membership.subscription();
        let held_bytes = MEMBERSHIP_BYTES + membership.subscriber.held_bytes();
        relief.memory.resize(membership.held_bytes, held_bytes);
        membership.held_bytes = held_bytes;
        let subscriber = &mut membership.subscriber;
        let behind = subscriber.messages_behind(log);
        let output = outputs.of_mut(slot);
        let is_empty = output.is_empty();
        let verdict = subscriber.enforce(log, is_empty, |frame| {
            output.push_delivery(&config.codec, subscription, frame);
        });
        match verdict {
            Verdict::Keep { dropped } => {
                counters.room_dropped[DropReason::Policy as usize].add(dropped);
                let spilled = behind - subscriber.messages_behind(log) - dropped;
                output.add_room_messages(spilled);
                self.charge_buffers(slot);
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
                subscriber.conflate(log, |frame| config.codec.delivery_topic(frame));
            }
        }
        SlowSubscriber::Served
    }
}
