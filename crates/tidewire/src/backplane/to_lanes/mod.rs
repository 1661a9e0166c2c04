//! Frames of other nodes on their way to the lanes. A lane gets a batch a turn, as from another lane.
//!
//! A lane that does not take its batches slows neither the node nor the other lanes: beyond a limit its messages are
//! dropped and counted, and its members are told how many, before the next message that they get.

mod frames;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::error::EncodeError;

use crate::config::Config;
use crate::mailbox::{BatchEntry, LaneMessage, LaneSet, Lanes, messages_of};
use crate::observe::LaneCounters;
use crate::room::SharedRoom;
use crate::session::{LogKey, OpenSessions, SessionId};

/// Batches for the lanes. See the module.
#[derive(Debug)]
pub(super) struct ToLanes {
    lanes: Arc<Lanes>,
    config: Arc<Config>,
    sessions: Arc<OpenSessions>,
    counters: Arc<CachePadded<LaneCounters>>,
    queues: Vec<LaneQueue>,
    /// See [`take_unshown`](Self::take_unshown).
    unshown: Vec<(usize, u16)>,
}

/// The frames that wait for one lane.
#[derive(Debug, Default)]
struct LaneQueue {
    batch: Vec<u8>,
    /// Dropped messages by log, that the members have not been told of.
    dropped: HashMap<LogKey, u64>,
    /// The rooms, by alias, whose members were not told of a change of presence.
    unshown: HashSet<u16>,
    /// The newest messages, by alias, that the lane must take from the histories of their rooms.
    behind: HashMap<u16, u64>,
}

impl ToLanes {
    pub(super) fn new(
        lanes: Arc<Lanes>,
        config: Arc<Config>,
        sessions: Arc<OpenSessions>,
        counters: Arc<CachePadded<LaneCounters>>,
    ) -> Self {
        let mut queues = Vec::new();
        queues.resize_with(lanes.all().len(), LaneQueue::default);
        Self {
            lanes,
            config,
            sessions,
            counters,
            queues,
            unshown: Vec::new(),
        }
    }

    /// Adds a frame of a room or topic for lanes. It stands for this many messages: one, or those that a gap
    /// tells of. Returns how many lanes had no room for it.
    fn send(&mut self, lanes: LaneSet, (log, messages): (LogKey, u64), frame: &[u8]) -> u64 {
        let codec = self.config.codecs.get(log.codec());
        let mut dropped = 0;
        for (lane, queue) in self.queues.iter_mut().enumerate() {
            if !lanes.has(lane) {
                continue;
            }
            if queue.batch.len() + frame.len() > WAITING_BYTES_MAX && !queue.batch.is_empty() {
                *queue.dropped.entry(log).or_default() += messages;
                dropped += 1;
                continue;
            }
            if !queue.dropped.is_empty()
                && let Some(lost) = queue.dropped.remove(&log)
            {
                let mut gap = Vec::new();
                // A codec without gap notices cannot tell; the loss is counted.
                if codec.encode_gap(log.alias(), lost, &mut gap).is_ok() {
                    BatchEntry::Room { log, frame: &gap }.encode(&mut queue.batch);
                }
            }
            BatchEntry::Room { log, frame }.encode(&mut queue.batch);
        }
        dropped
    }

    /// Adds a change of presence in a room for lanes. It may wait behind more messages than a message may. A lane
    /// without room for it gets a list of the members later.
    fn send_presence(&mut self, lanes: LaneSet, log: LogKey, frame: &[u8]) {
        for (lane, queue) in self.queues.iter_mut().enumerate() {
            if !lanes.has(lane) {
                continue;
            }
            if queue.batch.len() + frame.len() > WAITING_BYTES_MAX + PRESENCE_BYTES_MAX {
                queue.unshown.insert(log.alias());
                continue;
            }
            BatchEntry::Room { log, frame }.encode(&mut queue.batch);
        }
    }

    /// Adds a message that the history of its room or topic has at an offset, for the lanes with members. A lane
    /// without room for it takes it from the history later. Without a frame, lanes take it from there at once.
    pub(super) fn send_recorded(
        &mut self,
        shared: &SharedRoom,
        (number, author): (u64, SessionId),
        frame: &[u8],
    ) {
        let (lanes, alias) = (shared.lanes(), shared.alias());
        // A lane frames the message itself for members with other codecs.
        let frame = if shared.has_other_codecs() {
            &[]
        } else {
            frame
        };
        for (lane, queue) in self.queues.iter_mut().enumerate() {
            if !lanes.has(lane) {
                continue;
            }
            if queue.batch.len() + frame.len() > WAITING_BYTES_MAX && !queue.batch.is_empty() {
                queue.behind.insert(alias, number);
                continue;
            }
            let is_author_here = author != SessionId::NONE && author.lane() == lane;
            let entry = BatchEntry::Recorded {
                alias,
                number,
                author: if is_author_here {
                    author
                } else {
                    SessionId::NONE
                },
                frame,
            };
            entry.encode(&mut queue.batch);
        }
    }

    /// Frames a message or notice for the members of a room with each codec. `add` gets each log with its lanes and its
    /// frame. The frame is empty if the codec cannot express the content.
    fn frame_for_each_codec(
        &mut self,
        shared: &SharedRoom,
        frame: impl Fn(&AnyCodec, &mut Vec<u8>) -> Result<(), EncodeError>,
        mut add: impl FnMut(&mut Self, LaneSet, LogKey, &[u8]),
    ) {
        let config = Arc::clone(&self.config);
        let mut bytes = Vec::new();
        for codec in config.codecs.numbers() {
            let lanes = shared.lanes_with(codec);
            if lanes.is_empty() {
                continue;
            }
            bytes.clear();
            if frame(config.codecs.get(codec), &mut bytes).is_err() {
                bytes.clear();
            }
            let alias = shared.alias();
            add(self, lanes, LogKey::new(alias, codec), &bytes);
        }
    }

    fn codec_of(&self, id: SessionId) -> &AnyCodec {
        self.sessions.codec_of(id, &self.config.codecs)
    }

    /// Gives each lane a turn.
    pub(super) fn wake(&self) {
        for mailbox in self.lanes.all() {
            // A lane with a full mailbox has a turn anyway.
            let _ = mailbox.post(LaneMessage::Batch(Vec::new()));
        }
    }

    /// Adds a frame for one session. Returns whether there was room.
    fn send_to(&mut self, id: SessionId, frame: &[u8]) -> bool {
        let Some(queue) = self.queues.get_mut(id.lane()) else {
            return false;
        };
        if queue.batch.len() + frame.len() > WAITING_BYTES_MAX && !queue.batch.is_empty() {
            return false;
        }
        BatchEntry::Session { id, frame }.encode(&mut queue.batch);
        true
    }

    /// Returns the rooms, by lane and alias, whose members the lane must be told, because changes were dropped and now
    /// there is room.
    pub(super) fn take_unshown(&mut self) -> Vec<(usize, u16)> {
        std::mem::take(&mut self.unshown)
    }

    /// Posts the batches. Returns whether some wait because a mailbox is full.
    pub(super) fn post(&mut self) -> bool {
        let mut is_waiting = false;
        let queues = self.queues.iter_mut().zip(self.lanes.all());
        for (lane, (queue, mailbox)) in queues.enumerate() {
            if queue.batch.is_empty() {
                continue;
            }
            if mailbox.is_retired() {
                // Its sessions are closed. No lane had this message, so it is not one that lanes have lost among them.
                let dropped = messages_of(&queue.batch);
                self.counters.backplane_dropped.add_shared(dropped);
                queue.batch.clear();
                continue;
            }
            let next = self.lanes.spare_batches().take();
            let batch = std::mem::replace(&mut queue.batch, next);
            if let Err(LaneMessage::Batch(back)) = mailbox.post(LaneMessage::Batch(batch)) {
                let next = std::mem::replace(&mut queue.batch, back);
                self.lanes.spare_batches().put(next);
                is_waiting = true;
                continue;
            }
            for (alias, number) in queue.behind.drain() {
                let entry = BatchEntry::Recorded {
                    alias,
                    number,
                    author: SessionId::NONE,
                    frame: &[],
                };
                entry.encode(&mut queue.batch);
                is_waiting = true;
            }
            is_waiting |= !queue.unshown.is_empty();
            let unshown = queue.unshown.drain();
            self.unshown.extend(unshown.map(|alias| (lane, alias)));
            for (log, lost) in queue.dropped.drain() {
                let mut gap = Vec::new();
                let codec = self.config.codecs.get(log.codec());
                if codec.encode_gap(log.alias(), lost, &mut gap).is_ok() {
                    BatchEntry::Room { log, frame: &gap }.encode(&mut queue.batch);
                    is_waiting = true;
                }
            }
        }
        is_waiting
    }
}

/// Bytes that wait for a lane whose mailbox is full.
const WAITING_BYTES_MAX: usize = 4 << 20;

/// Bytes of changes of presence that wait behind as many messages as may wait.
const PRESENCE_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use crossbeam_utils::CachePadded;
    use tidewire_io::poller::PollerKind;
    use tidewire_proto::codec::{Decoded, Tw1};
    use tidewire_proto::message::Kind;

    use super::*;
    use crate::mailbox::{Mailbox, MessageQueue};
    use crate::mailbox::{Receiver, SharedLaneSet};
    use crate::server::Server;

    /// Batches for lanes of a server with one codec.
    fn to_lanes(lanes: Arc<Lanes>, counters: Arc<CachePadded<LaneCounters>>) -> ToLanes {
        let shared = Server::builder().share_alone(PollerKind::Poll);
        ToLanes::new(lanes, shared.config, shared.sessions, counters)
    }

    /// The kinds of the frames that a lane has got.
    fn taken(mailbox: &Mailbox) -> Vec<Kind> {
        let mut queue = MessageQueue::default();
        mailbox.take_all(&mut queue);
        let mut kinds = Vec::new();
        while let Some(message) = queue.pop() {
            let LaneMessage::Batch(batch) = message else {
                panic!("{message:?}");
            };
            let mut rest = &batch[..];
            while let Some(BatchEntry::Room { frame, .. }) = BatchEntry::decode(&mut rest) {
                let Ok(Decoded::Frame { message, .. }) = Tw1.decode(frame, 1 << 20) else {
                    panic!("no frame");
                };
                kinds.push(message.kind);
            }
        }
        kinds
    }

    /// A slow lane loses messages beyond its limit and is told how many; the other lane gets all.
    #[test]
    fn a_lane_that_does_not_take_its_batches_slows_no_other_and_is_told_its_losses() {
        const OFFERED: u64 = 200;
        let mailboxes = [0, 1].map(|_| Mailbox::new(Arc::default()).unwrap());
        let lanes = Arc::new(Lanes::default());
        lanes.set(mailboxes.to_vec());
        let codec = AnyCodec::default();
        let mut to_lanes = to_lanes(lanes, Arc::default());
        let mut frame = Vec::new();
        let payload = vec![7; 64 * 1024];
        let message = tidewire_proto::message::Message::new(Kind::Deliver, 9, &payload);
        codec.encode(&message, &mut frame).unwrap();
        let shared = SharedLaneSet::default();
        for lane in [0, 1] {
            shared.add(Receiver::Lane(lane));
        }
        let both = shared.get();
        let (mut dropped, mut quick) = (0, 0);
        for _ in 0..OFFERED {
            dropped += to_lanes.send(both, (LogKey::main(9), 1), &frame);
            to_lanes.post();
            quick += taken(&mailboxes[1]).len() as u64;
        }
        assert_eq!(quick, OFFERED);
        assert!(dropped > 0 && dropped < OFFERED, "{dropped}");
        let mut kinds = Vec::new();
        loop {
            let more = taken(&mailboxes[0]);
            kinds.extend(more);
            if !to_lanes.post() && mailboxes[0].is_empty() {
                break;
            }
        }
        let delivered = kinds.iter().filter(|kind| **kind == Kind::Deliver).count();
        assert_eq!(delivered as u64 + dropped, OFFERED);
        assert_eq!(kinds.last(), Some(&Kind::Gap), "the losses are told");
    }

    /// Regression: a presence frame of another node that came when the lanes had ended was counted as a message that
    /// the lanes had lost. `tidewire serve` then ended with an error, now and then.
    #[test]
    fn what_other_nodes_send_to_a_lane_that_has_ended_is_dropped_and_no_message_of_lanes() {
        let counters = Arc::<CachePadded<LaneCounters>>::default();
        let mailbox = Mailbox::new(Arc::clone(&counters)).unwrap();
        let lanes = Arc::new(Lanes::default());
        lanes.set(vec![Arc::clone(&mailbox)]);
        let mut to_lanes = to_lanes(lanes, Arc::clone(&counters));
        for _ in 0..2 {
            assert_eq!(
                to_lanes.send(Receiver::Lane(0).into(), (LogKey::main(9), 1), &[0; 64]),
                0
            );
        }
        mailbox.retire();
        assert!(!to_lanes.post(), "nothing waits");
        let counts = [&counters.backplane_dropped, &counters.mail_undelivered];
        assert_eq!(counts.map(|counter| counter.read()), [2, 0]);
    }

    /// Regression: a gap that a lane had no room for was told as one message.
    #[test]
    fn a_gap_that_is_dropped_is_told_with_its_number() {
        let lanes = Arc::new(Lanes::default());
        lanes.set(vec![Mailbox::new(Arc::default()).unwrap()]);
        let codec = AnyCodec::default();
        let mut to_lanes = to_lanes(lanes, Arc::default());
        let frame = vec![0; 64 * 1024];
        while to_lanes.send(Receiver::Lane(0).into(), (LogKey::main(9), 1), &frame) == 0 {}
        let mut gap = Vec::new();
        codec.encode_gap(9, 100, &mut gap).unwrap();
        gap.resize(frame.len(), 0);
        assert_eq!(
            to_lanes.send(Receiver::Lane(0).into(), (LogKey::main(9), 100), &gap),
            1
        );
        assert_eq!(to_lanes.queues[0].dropped.get(&LogKey::main(9)), Some(&101));
    }
}
