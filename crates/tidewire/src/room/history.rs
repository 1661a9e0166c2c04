//! What was said in rooms, for those who join later.
//!
//! A history belongs to a room's name and to the whole server, and outlives the room's last member. Each message is in it once,
//! with the lanes that it is still on its way to. Whoever joins on a lane is told the messages of the history but those that
//! are on their way to this lane, because these come as live ones. So nobody hears a message twice, and nobody misses
//! one, wherever it was said.
//!
//! ```text
//!   lane 0: say ── lock ── number 7, "hi" ── append to own log, send to lanes 1 and 2 ── on its way to 1, 2 ── unlock
//!   lane 1: ............. join: 7 is on its way to 1, so it is not told ....... 7 arrives: live, for the one who joined too
//!   lane 2: ............. 7 arrives: no more on its way to 2 ....... join: 7 is told, and is behind the newcomer's cursor
//! ```
//!
//! A join and an arrival on one lane cannot overlap, since one thread does both. A join makes its lane one that gets what is
//! said, and only then reads the history; a message is sent and recorded under the history's lock. So one of them sees the
//! other.
//!
//! Rejected: a history for each lane (all lanes would need all messages of all rooms), and numbers in frames by which members
//! drop what comes twice (only a codec of our own has a place for them, and a lane's log is shared by all its members).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidewire_proto::message::MemberId;

/// How much of what was said in a room is kept for those who join later; see [`Chat::history`](crate::Chat::history).
///
/// A room keeps the newest messages within both limits. The memory of all histories is at most `rooms_max × bytes_max` and
/// does not count towards [`Limits::memory_bytes_max`](crate::Limits::memory_bytes_max).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    /// Messages of one room. Default 50: a screen full.
    pub messages_max: usize,
    /// Bytes of these messages, with the names of those who said them and 64 for each message. Default 64 KiB. Whoever joins
    /// is sent as much at once, so keep it well below [`Limits::queue_bytes_max`](crate::Limits::queue_bytes_max). A
    /// message that exceeds it alone is said and not kept, those before it stay, and
    /// [`Metrics::history_skipped`](crate::Metrics::history_skipped) counts it.
    pub bytes_max: usize,
    /// Rooms of the server with a history, also those without members. Default 1,024. A further room takes the place
    /// of the one without members in which the longest time nothing was said; where all have members, nothing of it is kept,
    /// and what is said in it is counted as skipped.
    pub rooms_max: usize,
}

impl History {
    /// The last messages of each room, so many of them.
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

/// A message of a former run of the program: the name of its author and what was said.
pub(crate) type PastMessage = (String, Vec<u8>);

/// The histories of a server, by the names of their rooms.
#[derive(Debug, Default)]
pub(super) struct Histories {
    rooms: Mutex<HashMap<Box<str>, Arc<RoomHistory>>>,
    /// Counts messages, to tell which room was silent for the longest time.
    clock: AtomicU64,
}

/// The history of one room.
#[derive(Debug)]
pub(super) struct RoomHistory {
    limits: History,
    records: Mutex<Records>,
    /// The histories' count when the newest message was said.
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
    /// The alias of the room when it was said.
    alias: u16,
    /// Bit n is set while the message is on its way to lane n.
    on_its_way: u64,
}

/// A message of a history.
#[derive(Debug)]
pub(super) struct Remembered {
    /// The member who said it, who may have left; 0 for the room itself.
    pub(super) member: MemberId,
    pub(super) name: Box<str>,
    pub(super) payload: Box<[u8]>,
}

impl Histories {
    /// The history of this room, which begins now if there is none.
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
            // A room that has members holds its history, too.
            let silent = rooms
                .iter()
                .filter(|(_, history)| Arc::strong_count(history) == 1)
                .min_by_key(|(_, history)| history.touched.load(Ordering::Relaxed))
                .map(|(name, _)| name.clone());
            let Some(name) = silent else {
                // It would be memory beyond all limits.
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

    /// A message was said in the room of this history.
    pub(super) fn touch(&self, history: &RoomHistory) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        history.touched.store(now, Ordering::Relaxed);
    }
}

impl RoomHistory {
    pub(super) fn lock(&self) -> MutexGuard<'_, Records> {
        // A panic while a message is recorded leaves one that is not there.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records messages of a former run, if nothing was said here yet.
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

    /// Whether the limits allow the message at all. One that they do not allow must not be recorded: all others would make
    /// room for it in vain.
    pub(super) fn has_room_for(&self, name: &str, payload: &[u8]) -> bool {
        self.limits.messages_max > 0 && held_bytes(name, payload) <= self.limits.bytes_max
    }

    /// Adds the message that was just said and is on its way to these lanes. The limits [allow](Self::has_room_for) it.
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
    /// Message `number` has arrived at a lane.
    pub(super) fn note_arrival(&mut self, number: u64, lane: usize) {
        let first = self.next - self.records.len() as u64;
        let index = number.checked_sub(first).map(usize::try_from);
        if let Some(Ok(index)) = index
            && let Some(record) = self.records.get_mut(index)
        {
            record.on_its_way &= !(1 << lane);
        }
    }

    /// What somebody who has just joined on this lane is told: all but what will come as live messages.
    pub(super) fn told_on(&self, lane: usize, alias: u16) -> Vec<Arc<Remembered>> {
        // Under a former alias it will not reach this room.
        let comes_live =
            |record: &Record| record.alias == alias && record.on_its_way & (1 << lane) != 0;
        let told = self.records.iter().filter(|record| !comes_live(record));
        told.map(|record| Arc::clone(&record.message)).collect()
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

/// What a message takes beside its name and its payload.
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

    fn told(history: &RoomHistory, lane: usize, alias: u16) -> Vec<Vec<u8>> {
        let told = history.lock().told_on(lane, alias);
        told.iter()
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
        assert_eq!(told(&history, 0, 7), [b"2", b"3", b"4"]);
        say(&history, &[b'x'; 200], 0);
        assert_eq!(told(&history, 0, 7), [b"4".to_vec(), vec![b'x'; 200]]);
        say(&history, b"5", 0);
        assert_eq!(told(&history, 0, 7), [vec![b'x'; 200], b"5".to_vec()]);
    }

    /// Every message of a former run made room for one that was too large, so the history began empty.
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
        assert_eq!(told(&history, 0, 7), [b"1", b"2"]);
    }

    #[test]
    fn who_joins_is_told_all_but_what_is_on_its_way_to_their_lane() {
        let history = Histories::default().open("lobby", History::default());
        let first = say(&history, b"first", 0b110);
        let second = say(&history, b"second", 0b100);
        assert_eq!(told(&history, 0, 7), [&b"first"[..], b"second"]);
        assert_eq!(told(&history, 1, 7), [b"second"]);
        assert_eq!(told(&history, 2, 7).len(), 0);
        // A room that was closed and opened again does not get what was said to the former one.
        assert_eq!(told(&history, 2, 8), [&b"first"[..], b"second"]);
        let arrive = |number, lane| history.lock().note_arrival(number, lane);
        arrive(first, 2);
        assert_eq!(told(&history, 2, 7), [b"first"]);
        arrive(second, 2);
        arrive(first, 1);
        arrive(first + 1_000, 1);
        for lane in 0..3 {
            assert_eq!(told(&history, lane, 7).len(), 2);
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
        let kept = |room| told(&histories.open(room, limits), 0, 7).len();
        histories.touch(&histories.open("old", limits));
        assert_eq!(kept("new"), 0);
        assert_eq!(kept("young"), 1, "it has members");
        let new = histories.open("new", limits);
        let other = histories.open("other", limits);
        say(&other, b"x", 0);
        assert_eq!(told(&other, 0, 7).len(), 0, "it would be beyond all limits");
        assert_eq!(kept("other"), 0, "all have members: it is not kept");
        drop(new);
    }
}
