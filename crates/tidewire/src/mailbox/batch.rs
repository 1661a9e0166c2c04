//! Messages for sessions and rooms of another lane, collected for a turn and posted together.

use crossbeam_queue::ArrayQueue;

use crate::config::{CODECS_MAX, CodecNumber};
use crate::observe::LaneCounters;
use crate::session::{LogKey, SessionId};

/// Buffers for batches, shared by all lanes. Without it the buffers of a lane that mostly sends would all end at lanes
/// that mostly receive, and every batch would be allocated anew. A lane uses it once per batch.
#[derive(Debug)]
pub(crate) struct SpareBatches {
    queue: ArrayQueue<Vec<u8>>,
}

impl Default for SpareBatches {
    fn default() -> Self {
        Self {
            queue: ArrayQueue::new(SPARE_BATCHES_MAX),
        }
    }
}

impl SpareBatches {
    pub(crate) fn take(&self) -> Vec<u8> {
        self.queue
            .pop()
            .unwrap_or_else(|| Vec::with_capacity(BATCH_RESERVE_BYTES))
    }

    /// Keeps a buffer, unless it grew large or enough buffers are kept.
    pub(crate) fn put(&self, mut batch: Vec<u8>) {
        if batch.capacity() <= 4 * BATCH_RESERVE_BYTES {
            batch.clear();
            // If the queue is full, enough buffers are kept, and this one is freed.
            let _ = self.queue.push(batch);
        }
    }
}

/// One entry of a batch between lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchEntry<'a> {
    /// A frame for every member of a log. Empty if the codec cannot express the message.
    Room { log: LogKey, frame: &'a [u8] },
    /// A frame for every member of a room. The room's history has its message under this number.
    Recorded {
        alias: u16,
        number: u64,
        /// The session of the author, which must not get the message, if another thread than its lane sends the entry.
        author: SessionId,
        frame: &'a [u8],
    },
    /// A frame for one session.
    Session { id: SessionId, frame: &'a [u8] },
    /// A session that must leave a room.
    Remove { id: SessionId, alias: u16 },
}

impl<'a> BatchEntry<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let of_room =
            |kind: u64, alias: &u16| ROOM_TARGETS | kind << KIND_SHIFT | u64::from(*alias);
        let mut number = [0; 16];
        let of_session;
        let (target, head, frame): (u64, &[u8], &[u8]) = match self {
            Self::Room { log, frame } => {
                let codec = u64::from(log.codec().to_byte()) << u16::BITS;
                (of_room(ROOM, &log.alias()) | codec, &[], frame)
            }
            Self::Session { id, frame } => (id.number(), &[], frame),
            Self::Recorded {
                alias,
                number: of_record,
                author,
                frame,
            } => {
                number[..8].copy_from_slice(&of_record.to_le_bytes());
                number[8..].copy_from_slice(&author.number().to_le_bytes());
                (of_room(RECORDED, alias), &number, frame)
            }
            Self::Remove { id, alias } => {
                of_session = id.number().to_le_bytes();
                (of_room(REMOVE, alias), &of_session, &[])
            }
        };
        out.extend_from_slice(&target.to_le_bytes());
        out.extend_from_slice(&((head.len() + frame.len()) as u64).to_le_bytes());
        out.extend_from_slice(head);
        out.extend_from_slice(frame);
    }

    /// Takes the first entry off `batch`.
    pub(crate) fn decode(batch: &mut &'a [u8]) -> Option<Self> {
        let (target, rest) = batch.split_first_chunk::<8>()?;
        let (length, rest) = rest.split_first_chunk::<8>()?;
        let (frame, rest) = rest.split_at_checked(u64::from_le_bytes(*length) as usize)?;
        *batch = rest;
        let target = u64::from_le_bytes(*target);
        if target & ROOM_TARGETS != ROOM_TARGETS {
            let id = SessionId::from_number(target);
            return Some(Self::Session { id, frame });
        }
        let alias = (target & 0xFFFF) as u16;
        match target >> KIND_SHIFT & KIND_MASK {
            RECORDED => {
                let (number, frame) = frame.split_first_chunk::<8>()?;
                let (author, frame) = frame.split_first_chunk::<8>()?;
                let number = u64::from_le_bytes(*number);
                let author = SessionId::from_number(u64::from_le_bytes(*author));
                Some(Self::Recorded {
                    alias,
                    number,
                    author,
                    frame,
                })
            }
            REMOVE => {
                let number = u64::from_le_bytes(*frame.first_chunk::<8>()?);
                let id = SessionId::from_number(number);
                Some(Self::Remove { id, alias })
            }
            _ => {
                let codec = CodecNumber::from_byte((target >> u16::BITS) as u8 & CODEC_MASK);
                let log = LogKey::new(alias, codec);
                Some(Self::Room { log, frame })
            }
        }
    }
}

pub(crate) fn messages_of(mut batch: &[u8]) -> u64 {
    let mut messages = 0;
    while BatchEntry::decode(&mut batch).is_some() {
        messages += 1;
    }
    messages
}

/// Counts the messages of a batch that will not be delivered.
pub(super) fn count_undelivered(batch: &[u8], counters: &LaneCounters) {
    counters.mail_undelivered.add_shared(messages_of(batch));
}

/// Batch buffers kept for all lanes: at most 16 MiB.
const SPARE_BATCHES_MAX: usize = 64;

/// First capacity of a batch: a turn's worth of small messages.
const BATCH_RESERVE_BYTES: usize = 64 * 1024;

/// A target with these upper bits is a room: its kind, the number of a codec and an alias follow. The numbers of
/// sessions never reach them, because there are fewer lanes.
const ROOM_TARGETS: u64 = 0xFFFF_FFFF_FF00_0000;
const KIND_SHIFT: u32 = 22;
const KIND_MASK: u64 = 0b11;
const CODEC_MASK: u8 = 0b11_1111;

/// The target is a log of a room.
const ROOM: u64 = 0;
/// The target is a room whose history has the message.
const RECORDED: u64 = 1;
/// The target is a room that a session must leave.
const REMOVE: u64 = 2;

const _: () = assert!(CODECS_MAX < CODEC_MASK as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_decode_to_what_was_encoded() {
        let entries = [
            BatchEntry::Room {
                log: LogKey::main(7),
                frame: b"frame",
            },
            BatchEntry::Session {
                id: SessionId::new(3, 9, 5),
                frame: b"",
            },
            BatchEntry::Room {
                log: LogKey::new(u16::MAX, CodecNumber::of_other(CODECS_MAX - 1)),
                frame: b"x",
            },
            BatchEntry::Recorded {
                alias: 9,
                number: u64::MAX,
                author: SessionId::new(3, 9, 5),
                frame: b"said",
            },
            BatchEntry::Remove {
                id: SessionId::new(63, 9, 5),
                alias: 1,
            },
        ];
        let mut bytes = Vec::new();
        for entry in &entries {
            entry.encode(&mut bytes);
        }
        let mut rest = &bytes[..];
        for entry in &entries {
            assert_eq!(BatchEntry::decode(&mut rest), Some(*entry));
        }
        assert_eq!(BatchEntry::decode(&mut rest), None);
    }
}
