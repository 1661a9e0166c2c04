//! The earlier messages of rooms, for new members.
//!
//! A history belongs to a room's name and to the whole server. It remains after the room's last member has left. It
//! has each message once, with the lanes that the message is still on its way to. A session that joins on a lane gets
//! the messages of the history, except those that are on their way to this lane, because it will get these live. So
//! each member gets each message exactly once, whichever lane it was sent on.
//!
//! ```text
//!   lane 0: say ── lock ── number 7, "hi" ── append to own log, send to lanes 1 and 2 ── on its way to 1, 2 ── unlock
//!   lane 1: ............. join: 7 is on its way to 1, so it is left out ....... 7 arrives live, also for the new member
//!   lane 2: ............. 7 arrives: no more on its way to 2 ....... join: 7 is sent from the history, and the cursor starts behind it
//! ```
//!
//! A join and an arrival on one lane cannot overlap, because one thread does both. A join first marks its lane as one
//! that gets messages, and then reads the history. A message is sent and recorded under the history's lock. So either
//! the history has the message before the join reads it, or the message is also sent to the lane of the join.
//!
//! Rejected: a history for each lane, because all lanes would need all messages of all rooms. Rejected: numbers in
//! frames by which members drop duplicates: only `tw1` has a field for them, and the members of a lane share its log.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::message::MemberId;

/// Limits of the messages that a room keeps for new members; see [`Chat::history`](crate::Chat::history).
///
/// A room keeps the newest messages within both limits. The memory of all histories is at most `rooms_max × bytes_max` and
/// does not count towards [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Messages of one room. Default 50, which fills a screen.
    pub messages_max: usize,
    /// Bytes of these messages, including the names of their authors and 64 bytes for each message. Default 64 KiB. A
    /// new member is sent all of it at once, so keep it well below
    /// [`Limits::queue_bytes_max`](crate::Limits::queue_bytes_max). A single message that exceeds it is delivered but
    /// not kept. The earlier messages stay, and [`Metrics::history_skipped`](crate::Metrics::history_skipped) counts
    /// the message.
    pub bytes_max: usize,
    /// Rooms of the server with a history, including those without members. Default 1,024. A further room replaces
    /// the history of the room without members that has been silent for the longest time. If all have members, the
    /// further room keeps no messages, and its messages are counted as skipped.
    pub rooms_max: usize,
}

impl History {
    /// Returns limits for the last messages of each room, in this number.
    #[must_use]
    pub fn last(messages: usize) -> Self {
        Self {
            messages_max: messages,
            ..Self::default()
        }
    }
}

impl Default for History {
    fn default() -> Self {
        Self {
            messages_max: 50,
            bytes_max: 64 * 1024,
            rooms_max: 1_024,
        }
    }
}

/// A message of a former run of the program: the name of its author and the payload.
pub(crate) type PastMessage = (String, Vec<u8>);

/// The histories of a server, by the names of their rooms.
#[derive(Debug, Default)]
pub(super) struct Histories {
    rooms: Mutex<HashMap<Box<str>, Arc<RoomHistory>>>,
    /// Counts messages, and so shows which room was silent for the longest time.
    clock: AtomicU64,
}

#[derive(Debug)]
pub(super) struct RoomHistory {
    limits: History,
    records: Mutex<Records>,
    /// The clock when the newest message was recorded.
    touched: AtomicU64,
}

/// The messages of a history, oldest first.
#[derive(Debug, Default)]
pub(super) struct Records {
    records: VecDeque<Record>,
    bytes: usize,
    /// The number of the next message.
    pub(super) next: u64,
}

#[derive(Debug)]
struct Record {
    message: Arc<Remembered>,
    /// The alias that the room had when the message was sent.
    alias: u16,
    /// Bit n is set while the message is on its way to lane n.
    on_its_way: u64,
}

/// A message of a history.
#[derive(Debug)]
pub(super) struct Remembered {
    /// The author, who may have left; 0 for the room itself.
    pub(super) member: MemberId,
    pub(super) name: Box<str>,
    pub(super) payload: Box<[u8]>,
}

impl Histories {
    /// Returns the history of this room, and creates it if there is none.
    pub(super) fn open(&self, room: &str, limits: History) -> Arc<RoomHistory> {
        let mut rooms = self.rooms.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(history) = rooms.get(room) {
            return Arc::clone(history);
        }
        let begin = |limits| {
            Arc::new(RoomHistory {
                limits,
                records: Mutex::default(),
                touched: AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed)),
            })
        };
        if rooms.len() >= limits.rooms_max {
            // A room with members has a second reference to its history.
            let silent = rooms
                .iter()
                .filter(|(_, history)| Arc::strong_count(history) == 1)
                .min_by_key(|(_, history)| history.touched.load(Ordering::Relaxed))
                .map(|(name, _)| name.clone());
            let Some(name) = silent else {
                // The history keeps nothing, because its memory would exceed the limit.
                let bytes_max = 0;
                return begin(History {
                    bytes_max,
                    ..limits
                });
            };
            rooms.remove(&name);
        }
        let history = begin(limits);
        rooms.insert(room.into(), Arc::clone(&history));
        history
    }

    /// Notes that a message was sent in the room of this history.
    pub(super) fn touch(&self, history: &RoomHistory) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        history.touched.store(now, Ordering::Relaxed);
    }
}

impl RoomHistory {
    pub(super) fn lock(&self) -> MutexGuard<'_, Records> {
        // After a panic while a message is recorded, the message is missing and the others are intact.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records messages of a former run, if the history is still empty.
    pub(super) fn begin_with(&self, past: Vec<PastMessage>, alias: u16) {
        let mut records = self.lock();
        if records.next > 0 {
            return;
        }
        for (name, payload) in past {
            if !self.has_room_for(&name, &payload) {
                continue;
            }
            let message = Remembered {
                member: MemberId(0),
                name: name.into(),
                payload: payload.into(),
            };
            self.record(&mut records, message, alias, 0);
        }
    }

    /// Whether the limits allow the message at all. Do not record a message that they do not allow, because it would
    /// displace all others and then itself.
    pub(super) fn has_room_for(&self, name: &str, payload: &[u8]) -> bool {
        self.limits.messages_max > 0 && held_bytes(name, payload) <= self.limits.bytes_max
    }

    /// Records a message that was just sent and is on its way to these lanes. The limits must
    /// [allow](Self::has_room_for) it.
    pub(super) fn record(
        &self,
        records: &mut Records,
        message: Remembered,
        alias: u16,
        lanes: u64,
    ) {
        records.bytes += message.held_bytes();
        records.records.push_back(Record {
            message: Arc::new(message),
            alias,
            on_its_way: lanes,
        });
        records.next += 1;
        let limits = &self.limits;
        while records.records.len() > limits.messages_max || records.bytes > limits.bytes_max {
            let Some(oldest) = records.records.pop_front() else {
                return;
            };
            records.bytes -= oldest.message.held_bytes();
        }
    }
}

impl Records {
    /// Notes that message `number` has arrived at a lane.
    pub(super) fn note_arrival(&mut self, number: u64, lane: usize) {
        let first = self.next - self.records.len() as u64;
        let index = number.checked_sub(first).map(usize::try_from);
        if let Some(Ok(index)) = index
            && let Some(record) = self.records.get_mut(index)
        {
            record.on_its_way &= !(1 << lane);
        }
    }

    /// Returns the messages for a new member on this lane: all except those that it will get live.
    pub(super) fn messages_for(&self, lane: usize, alias: u16) -> Vec<Arc<Remembered>> {
        // A message with a former alias will not reach this room.
        let comes_live =
            |record: &Record| record.alias == alias && record.on_its_way & (1 << lane) != 0;
        let messages = self.records.iter().filter(|record| !comes_live(record));
        messages.map(|record| Arc::clone(&record.message)).collect()
    }
}

impl Remembered {
    fn held_bytes(&self) -> usize {
        held_bytes(&self.name, &self.payload)
    }
}

fn held_bytes(name: &str, payload: &[u8]) -> usize {
    name.len() + payload.len() + RECORD_BYTES
}

/// Bytes counted for a message in addition to its name and payload.
const RECORD_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn remembered(payload: &[u8]) -> Remembered {
        Remembered {
            member: MemberId(1),
            name: "ada".into(),
            payload: payload.into(),
        }
    }

    fn say(history: &RoomHistory, payload: &[u8], lanes: u64) -> u64 {
        let mut records = history.lock();
        let number = records.next;
        let message = remembered(payload);
        if history.has_room_for(&message.name, &message.payload) {
            history.record(&mut records, message, 7, lanes);
        }
        number
    }

    fn messages(history: &RoomHistory, lane: usize, alias: u16) -> Vec<Vec<u8>> {
        let messages = history.lock().messages_for(lane, alias);
        messages
            .iter()
            .map(|message| message.payload.to_vec())
            .collect()
    }

    #[test]
    fn the_newest_messages_within_both_limits_are_kept() {
        let limits = History {
            messages_max: 3,
            bytes_max: 400,
            ..History::default()
        };
        let history = Histories::default().open("lobby", limits);
        for payload in [b"1", b"2", b"3", b"4"] {
            say(&history, payload, 0);
        }
        assert_eq!(messages(&history, 0, 7), [b"2", b"3", b"4"]);
        say(&history, &[b'x'; 200], 0);
        assert_eq!(messages(&history, 0, 7), [b"4".to_vec(), vec![b'x'; 200]]);
        say(&history, b"5", 0);
        assert_eq!(messages(&history, 0, 7), [vec![b'x'; 200], b"5".to_vec()]);
    }

    /// Regression: a message that was too large displaced every message of a former run, so the history began empty.
    #[test]
    fn a_message_of_a_former_run_that_is_too_large_leaves_the_others() {
        let limits = History {
            bytes_max: 400,
            ..History::default()
        };
        let history = Histories::default().open("lobby", limits);
        let past = [&b"1"[..], &[b'x'; 400], b"2"];
        let past = past.map(|payload| ("ada".to_owned(), payload.to_vec()));
        history.begin_with(past.into(), 7);
        assert_eq!(messages(&history, 0, 7), [b"1", b"2"]);
    }

    #[test]
    fn a_new_member_gets_all_messages_except_those_on_their_way_to_its_lane() {
        let history = Histories::default().open("lobby", History::default());
        let first = say(&history, b"first", 0b110);
        let second = say(&history, b"second", 0b100);
        assert_eq!(messages(&history, 0, 7), [&b"first"[..], b"second"]);
        assert_eq!(messages(&history, 1, 7), [b"second"]);
        assert_eq!(messages(&history, 2, 7).len(), 0);
        // A room that was closed and opened again does not get the live messages of the former one.
        assert_eq!(messages(&history, 2, 8), [&b"first"[..], b"second"]);
        let arrive = |number, lane| history.lock().note_arrival(number, lane);
        arrive(first, 2);
        assert_eq!(messages(&history, 2, 7), [b"first"]);
        arrive(second, 2);
        arrive(first, 1);
        arrive(first + 1_000, 1);
        for lane in 0..3 {
            assert_eq!(messages(&history, lane, 7).len(), 2);
        }
    }

    #[test]
    fn a_further_room_takes_the_place_of_the_empty_one_that_was_silent_for_longest() {
        let limits = History {
            rooms_max: 2,
            ..History::default()
        };
        let histories = Histories::default();
        say(&histories.open("old", limits), b"x", 0);
        let young = histories.open("young", limits);
        say(&young, b"x", 0);
        let kept = |room| messages(&histories.open(room, limits), 0, 7).len();
        histories.touch(&histories.open("old", limits));
        assert_eq!(kept("new"), 0);
        assert_eq!(kept("young"), 1, "it has members");
        let new = histories.open("new", limits);
        let other = histories.open("other", limits);
        say(&other, b"x", 0);
        assert_eq!(
            messages(&other, 0, 7).len(),
            0,
            "its memory would exceed the limit"
        );
        assert_eq!(kept("other"), 0, "all have members: it is not kept");
        drop(new);
    }
}
