//! Messages of a lane for other nodes, collected for a turn and posted together.

use tidewire_proto::backplane::{Entries, Entry, SequenceKind};
use tidewire_proto::message::MemberId;

/// The addressee of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addressee<'a> {
    /// The members of a room on other nodes.
    Room,
    /// The history of a room or topic, whose messages the carrier numbers.
    History {
        kind: SequenceKind,
        /// The number of the session that sent the message.
        session: u64,
    },
    /// The subscribers of a topic on other nodes.
    Topic,
    /// One member of a room.
    Member {
        /// The member's node.
        node: &'a str,
        /// The member's number there.
        member: MemberId,
    },
    /// The node itself: news of the session with this number. The item has neither name nor entry.
    Own(News, u64),
}

/// News of a session for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The session asks whether all that it sent before is stored. The [question](super::StoreQuestion) is beside the
    /// batch.
    AsksStored,
    Ended,
}

/// One message of a batch for other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) to: Addressee<'a>,
    /// The name of the room or topic.
    pub(crate) name: &'a str,
    /// An [`Entry`] as packets have it.
    pub(crate) entry: &'a [u8],
}

impl<'a> Item<'a> {
    pub(crate) fn encode(
        to: Addressee<'_>,
        name: &str,
        entry: Option<&Entry<'_>>,
        out: &mut Vec<u8>,
    ) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        match to {
            Addressee::Room => out.push(ROOM),
            Addressee::Topic => out.push(TOPIC),
            Addressee::History { kind, session } => {
                out.push(match kind {
                    SequenceKind::Room => ROOM_HISTORY,
                    SequenceKind::Topic => TOPIC_HISTORY,
                });
                out.extend_from_slice(&session.to_le_bytes());
            }
            Addressee::Own(news, session) => {
                out.push(match news {
                    News::AsksStored => ASKS_STORED,
                    News::Ended => ENDED,
                });
                out.extend_from_slice(&session.to_le_bytes());
            }
            Addressee::Member { node, member } => {
                out.push(MEMBER);
                push_text(node, out);
                out.extend_from_slice(&member.0.to_le_bytes());
            }
        }
        push_text(name, out);
        if let Some(entry) = entry {
            entry.encode(out);
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    pub(crate) fn messages_of(mut batch: &[u8]) -> u64 {
        let mut messages = 0;
        while let Some(item) = Item::decode(&mut batch) {
            let entry = Entries::new(item.entry).next().flatten();
            messages += u64::from(entry.is_some_and(|entry| entry.is_message()));
        }
        messages
    }

    /// Takes the first item off `batch`.
    pub(crate) fn decode(batch: &mut &'a [u8]) -> Option<Self> {
        let (length, rest) = batch.split_first_chunk::<4>()?;
        let (item, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        *batch = rest;
        let (kind, mut item) = item.split_first()?;
        let to = match *kind {
            ROOM => Addressee::Room,
            TOPIC => Addressee::Topic,
            ROOM_HISTORY | TOPIC_HISTORY => Addressee::History {
                kind: match *kind {
                    ROOM_HISTORY => SequenceKind::Room,
                    _ => SequenceKind::Topic,
                },
                session: take_number(&mut item)?,
            },
            ASKS_STORED => Addressee::Own(News::AsksStored, take_number(&mut item)?),
            ENDED => Addressee::Own(News::Ended, take_number(&mut item)?),
            _ => {
                let node = take_text(&mut item)?;
                let (member, rest) = item.split_first_chunk::<4>()?;
                item = rest;
                let member = MemberId(u32::from_le_bytes(*member));
                Addressee::Member { node, member }
            }
        };
        let name = take_text(&mut item)?;
        Some(Self {
            to,
            name,
            entry: item,
        })
    }
}

const ROOM: u8 = 0;
const TOPIC: u8 = 1;
const MEMBER: u8 = 2;
const ROOM_HISTORY: u8 = 3;
const TOPIC_HISTORY: u8 = 4;
const ASKS_STORED: u8 = 5;
const ENDED: u8 = 6;

/// Appends a name of at most 255 bytes.
fn push_text(text: &str, out: &mut Vec<u8>) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let (number, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*number))
}

fn take_text<'a>(bytes: &mut &'a [u8]) -> Option<&'a str> {
    let (length, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(*length))?;
    *bytes = rest;
    str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use tidewire_proto::backplane::Entries;

    use super::*;

    #[test]
    fn items_decode_to_what_was_encoded() {
        let entry = Entry::Published { payload: b"42" };
        let member = MemberId(7);
        let history = |kind| Addressee::History { kind, session: 7 };
        let items = [
            (Addressee::Room, "lobby"),
            (Addressee::Topic, "price.eur"),
            (history(SequenceKind::Room), "lobby"),
            (history(SequenceKind::Topic), "price.eur"),
            (Addressee::Member { node: "n2", member }, "lobby"),
            (Addressee::Own(News::AsksStored, 8), ""),
            (Addressee::Own(News::Ended, u64::MAX), ""),
        ];
        let mut batch = Vec::new();
        for (to, name) in items {
            let entry = (!name.is_empty()).then_some(&entry);
            Item::encode(to, name, entry, &mut batch);
        }
        let mut rest = &batch[..];
        for (to, name) in items {
            let item = Item::decode(&mut rest).unwrap();
            assert_eq!((item.to, item.name), (to, name));
            let expected = (!name.is_empty()).then_some(Some(entry));
            assert_eq!(Entries::new(item.entry).next(), expected);
        }
        assert_eq!(Item::decode(&mut rest), None);
    }
}
