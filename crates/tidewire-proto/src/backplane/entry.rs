//! The entries of a packet: messages, and changes of presence.

use super::push_name;
use crate::body::Reader;
use crate::message::MemberId;

/// An entry of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A member said something in a room.
    ChatMessage {
        /// The member's number at its own node; 0 for the room itself.
        member: MemberId,
        /// The member's name; empty for the room itself.
        name: &'a str,
        /// The message.
        payload: &'a [u8],
    },
    /// A message of a topic.
    Published {
        /// The message.
        payload: &'a [u8],
    },
    /// A member came into a room.
    Joined {
        /// The member's number at its own node.
        member: MemberId,
        /// The member's name.
        name: &'a str,
    },
    /// A member left a room.
    Left {
        /// The member's number at its own node.
        member: MemberId,
    },
    /// All members that the node has in a room at this position. The list replaces earlier knowledge of them.
    Here(Here<'a>),
}

/// The members that a node has in a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Here<'a> {
    /// The node asks the others for their members.
    pub asks: bool,
    /// The number of members. In a room that is too large for a list, the number is larger than that of the listed
    /// members.
    pub count: u32,
    listed: &'a [u8],
}

impl<'a> Here<'a> {
    /// The listed members: number and name.
    pub fn members(&self) -> impl Iterator<Item = (MemberId, &'a str)> + use<'a> {
        let mut reader = Reader::new(self.listed);
        std::iter::from_fn(move || Some((MemberId(reader.u32()?), reader.short_text()?)))
    }
}

const CHAT_MESSAGE: u8 = 1;
const PUBLISHED: u8 = 2;
const JOINED: u8 = 3;
const LEFT: u8 = 4;
const HERE: u8 = 5;

/// A flag of `Here`: the node asks the others for their members.
const ASKS: u8 = 1;

impl<'a> Entry<'a> {
    /// Whether sequences count the entry as a message. Sequences count all other entries as changes of presence, except
    /// `Here`.
    #[must_use]
    pub fn is_message(&self) -> bool {
        matches!(self, Self::ChatMessage { .. } | Self::Published { .. })
    }

    /// Whether the entry changes who is present.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Joined { .. } | Self::Left { .. })
    }

    /// Appends the entry. Append `Here` with [`encode_here`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::ChatMessage {
                member,
                name,
                payload,
            } => {
                out.push(CHAT_MESSAGE);
                out.extend_from_slice(&member.0.to_le_bytes());
                push_name(name, out);
                push_payload(payload, out);
            }
            Self::Published { payload } => {
                out.push(PUBLISHED);
                push_payload(payload, out);
            }
            Self::Joined { member, name } => {
                out.push(JOINED);
                out.extend_from_slice(&member.0.to_le_bytes());
                push_name(name, out);
            }
            Self::Left { member } => {
                out.push(LEFT);
                out.extend_from_slice(&member.0.to_le_bytes());
            }
            Self::Here(here) => encode_here(here.asks, here.count, here.members(), out),
        }
    }

    /// Reads the next entry. `None` if it is malformed.
    pub(super) fn decode(reader: &mut Reader<'a>) -> Option<Self> {
        Some(match reader.u8()? {
            CHAT_MESSAGE => Self::ChatMessage {
                member: MemberId(reader.u32()?),
                name: reader.short_text()?,
                payload: payload(reader)?,
            },
            PUBLISHED => Self::Published {
                payload: payload(reader)?,
            },
            JOINED => Self::Joined {
                member: MemberId(reader.u32()?),
                name: reader.short_text()?,
            },
            LEFT => Self::Left {
                member: MemberId(reader.u32()?),
            },
            HERE => {
                let asks = match reader.u8()? {
                    0 => false,
                    ASKS => true,
                    _ => return None,
                };
                let count = reader.u32()?;
                let listed = payload(reader)?;
                let mut members = Reader::new(listed);
                while !members.is_empty() {
                    members.u32()?;
                    members.short_text()?;
                }
                Self::Here(Here {
                    asks,
                    count,
                    listed,
                })
            }
            _ => return None,
        })
    }
}

/// Appends the members of a node in a room. `count` may be larger than the number of the listed members.
pub fn encode_here<'n>(
    asks: bool,
    count: u32,
    members: impl Iterator<Item = (MemberId, &'n str)>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(&[HERE, if asks { ASKS } else { 0 }]);
    out.extend_from_slice(&count.to_le_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    for (member, name) in members {
        out.extend_from_slice(&member.0.to_le_bytes());
        push_name(name, out);
    }
    let length = (out.len() - length_at - 4) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_le_bytes());
}

fn payload<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let count = reader.u32()?;
    reader.bytes(usize::try_from(count).ok()?)
}

fn push_payload(payload: &[u8], out: &mut Vec<u8>) {
    // A frame is never as long as the number allows.
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

/// The entries of a packet, in their order. It yields `None` for a malformed entry, and then ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entries<'a> {
    bytes: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Entries in encoded form.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Option<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bytes.is_empty() {
            return None;
        }
        let mut reader = Reader::new(self.bytes);
        let entry = Entry::decode(&mut reader);
        self.bytes = match entry {
            Some(_) => reader.rest(),
            None => &[],
        };
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_of_a_room_are_listed_or_counted() {
        let mut bytes = Vec::new();
        let members = [(MemberId(1), "ann"), (MemberId(7), "bob")];
        encode_here(true, 2, members.into_iter(), &mut bytes);
        encode_here(false, 50_000, [].into_iter(), &mut bytes);
        let entries: Vec<_> = Entries::new(&bytes).map(Option::unwrap).collect();
        let [Entry::Here(listed), Entry::Here(counted)] = entries[..] else {
            panic!("{entries:?}");
        };
        assert!(listed.asks && !counted.asks);
        assert_eq!(listed.members().collect::<Vec<_>>(), members);
        assert_eq!((counted.count, counted.members().count()), (50_000, 0));
    }

    #[test]
    fn a_malformed_entry_ends_the_entries() {
        let mut bytes = Vec::new();
        Entry::Published { payload: b"x" }.encode(&mut bytes);
        bytes.extend_from_slice(&[99, 1, 2]);
        let entries: Vec<_> = Entries::new(&bytes).collect();
        assert_eq!(entries, [Some(Entry::Published { payload: b"x" }), None]);
    }
}
