//! The packets that nodes of a cluster send each other over a backplane.
//!
//! A node is a server that shares rooms and topics with others. Problem: the engine that carries packets between nodes
//! may drop packets, and no node may hide the loss from its clients. Approach: every packet of a room or topic names
//! the node that sent it, the run of that node (its epoch), and its point in the *sequence* of this node for this room
//! or topic. A sequence counts messages, so a receiver knows the exact number of missed messages. [`sequence`] has both
//! sides. Rejected: headers of the engine, because some engines have none, and because our own decoder is fuzzed.
//!
//! ```text
//! packet   "TB" · u8 version 1 · u8 content · u64 epoch · u8 length, node · content
//! alive    u8 flags · u64 beat
//! sequence u8 kind (0 room, 1 topic) · u16 length, name · u64 start · u64 message · u64 change · entries to the end
//! whisper  u16 length, room · u32 target · entry (said)
//! directed u64 epoch of the receiver · u64 session · u8 kind · u8 flags · u16 channel · u32 id · u16 length, name
//!          · payload to the end
//! asked    u64 request · u32 ms left · u16 length, service · payload to the end
//! answered u64 epoch of the receiver · u64 request · u8 0, payload to the end | u8 1, u16 error code, text to the end
//! working  u64 epoch of the receiver · u64 requests to the end
//! given up u64 request
//! entry    u8 type · u32 member · u8 length, name · u32 length, payload        said, by a member of a room
//!                  · u32 length, payload                                       published, to a topic
//!                  · u32 member · u8 length, name                              joined
//!                  · u32 member                                                left
//!                  · u8 flags · u32 count · the listed members: u32 member · u8 length, name   here
//! ```
//!
//! Numbers are little-endian. Names come from peers of other nodes, so users of this module must check them.

pub mod directed;
pub mod entry;
pub mod sequence;

use thiserror::Error;

use crate::body::Reader;
use crate::message::MemberId;
use crate::setting::SettingError;
use directed::{
    ANSWERED, ASKED, DIRECTED, GIVEN_UP, WORKING, decode_answered, decode_asked, decode_directed,
    decode_working,
};
pub use directed::{
    Directed, ServiceAnswer, ServiceRequest, Working, encode_answered, encode_asked,
    encode_directed, encode_given_up, encode_working,
};
pub use entry::{Entries, Entry, Here};

/// A packet of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The node that sent the packet.
    pub from: NodeLife<&'a str>,
    /// The content.
    pub content: Content<'a>,
}

/// One run of a node, from its start to its end. Numbers of members, sessions and requests are those of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeLife<Id> {
    /// The id of the node.
    pub node: Id,
    /// Another number for each run of the node.
    pub epoch: u64,
}

impl<Id: AsRef<str>> NodeLife<Id> {
    /// The life of a node with this epoch.
    pub fn new(node: impl Into<Id>, epoch: u64) -> Self {
        let node = node.into();
        Self { node, epoch }
    }

    /// The same life, with a borrowed id.
    pub fn borrow(&self) -> NodeLife<&str> {
        NodeLife {
            node: self.node.as_ref(),
            epoch: self.epoch,
        }
    }
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The node lives.
    Alive {
        /// Bits such as [`ALIVE_ASKS`].
        flags: u8,
        /// Counts the heartbeats of the node.
        beat: u64,
    },
    /// News of a room or topic.
    Sequence(SequencePacket<'a>),
    /// A message for one member of a room.
    Whisper {
        /// The name of the room.
        room: &'a str,
        /// The member's number at its own node.
        target: MemberId,
        /// The message. It is an [`Entry::ChatMessage`].
        message: Entry<'a>,
    },
    /// A message for a session.
    Directed(Directed<'a>),
    /// A request to a service.
    Asked(ServiceRequest<'a>),
    /// The answer to a request.
    Answered(ServiceAnswer<'a>),
    /// Requests that the sender works on.
    Working(Working<'a>),
    /// The sender no longer waits for the answer to a request.
    GivenUp {
        /// The number that the sender gave the request.
        request: u64,
    },
}

/// News of a room or topic, in the order of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequencePacket<'a> {
    /// A room or a topic.
    pub kind: SequenceKind,
    /// The name of the room or topic.
    pub name: &'a str,
    /// The point of the first entry.
    pub point: SequencePoint,
    /// The entries. A packet without entries only tells the point.
    pub entries: Entries<'a>,
}

/// The two kinds of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SequenceKind {
    /// The sequence of a room.
    Room,
    /// The sequence of a topic.
    Topic,
}

/// A point in the sequence of a node for one room or topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequencePoint {
    /// The number of the sequence. A node that forgot a sequence begins a new sequence with another number.
    pub start: u64,
    /// Messages before this point.
    pub message: u64,
    /// Changes of presence before this point.
    pub change: u64,
}

/// The node asks the others to tell their rooms and sequences: it is new, or was cut off.
pub const ALIVE_ASKS: u8 = 1;

/// The node ends. All its members leave.
pub const ALIVE_LEAVES: u8 = 2;

/// Another node wants the id of this node, which lives.
pub const ALIVE_OBJECTS: u8 = 4;

/// The node asks the receiver to answer with the same beat.
pub const ALIVE_ECHO: u8 = 8;

/// The heartbeat answers [`ALIVE_ECHO`], with its beat.
pub const ALIVE_ANSWERS: u8 = 16;

/// Most bytes of a node's id.
pub const NODE_BYTES_MAX: usize = 32;

/// Most bytes that a packet has around the payload of one message: names of 255 bytes at most and the fixed fields.
pub const PACKET_OVERHEAD_BYTES_MAX: usize = 1024;

const MAGIC: &[u8; 2] = b"TB";
const VERSION: u8 = 1;
const ALIVE: u8 = 1;
const SEQUENCE: u8 = 2;
const WHISPER: u8 = 3;

/// Bytes that are no packet of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PacketError {
    /// The bytes do not begin like a packet. Another program sends on these subjects.
    #[error("the bytes are no packet of a node")]
    Foreign,
    /// The packet is of another version. Run the same release on all nodes.
    #[error("the packet has version {0}, and this node has {VERSION}")]
    Version(u8),
    /// The packet is cut off or broken.
    #[error("the packet of a node is malformed")]
    Malformed,
}

/// Checks the id of a node. It is part of subjects, so few characters are allowed.
///
/// # Errors
/// [`SettingError`] if it is empty, too long, or has other characters.
pub fn validate_node(id: &str) -> Result<(), SettingError> {
    match is_node(id) {
        true => Ok(()),
        false => Err(SettingError::new(
            "node",
            id,
            format!("not a node's id; use 1 to {NODE_BYTES_MAX} ASCII letters, digits, - and _"),
        )),
    }
}

/// Whether a text is the id of a node. Unlike [`validate_node`] it allocates nothing for the text of a peer.
fn is_node(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !id.is_empty() && id.len() <= NODE_BYTES_MAX && id.bytes().all(is_allowed)
}

impl<'a> Packet<'a> {
    /// Reads a packet. The entries of a sequence are read when they are iterated.
    ///
    /// # Errors
    /// [`PacketError`] if the bytes are no packet of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PacketError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(PacketError::Foreign)?;
        let mut reader = Reader::new(rest);
        match reader.u8().ok_or(PacketError::Malformed)? {
            VERSION => Self::decode_fields(reader).ok_or(PacketError::Malformed),
            version => Err(PacketError::Version(version)),
        }
    }

    fn decode_fields(mut reader: Reader<'a>) -> Option<Self> {
        let kind = reader.u8()?;
        let epoch = reader.u64()?;
        let node = reader.short_text()?;
        is_node(node).then_some(())?;
        let from = NodeLife { node, epoch };
        let content = match kind {
            ALIVE => Content::Alive {
                flags: reader.u8()?,
                beat: reader.u64()?,
            },
            DIRECTED | ASKED | ANSWERED | WORKING => {
                let content = match kind {
                    DIRECTED => Content::Directed(decode_directed(reader)?),
                    ASKED => Content::Asked(decode_asked(reader)?),
                    ANSWERED => Content::Answered(decode_answered(reader)?),
                    _ => Content::Working(decode_working(reader)?),
                };
                return Some(Self { from, content });
            }
            GIVEN_UP => Content::GivenUp {
                request: reader.u64()?,
            },
            SEQUENCE => {
                let kind = match reader.u8()? {
                    0 => SequenceKind::Room,
                    1 => SequenceKind::Topic,
                    _ => return None,
                };
                let name = long_text(&mut reader)?;
                let (start, message, change) = (reader.u64()?, reader.u64()?, reader.u64()?);
                let point = SequencePoint {
                    start,
                    message,
                    change,
                };
                return Some(Self {
                    from,
                    content: Content::Sequence(SequencePacket {
                        kind,
                        name,
                        point,
                        entries: Entries::new(reader.rest()),
                    }),
                });
            }
            WHISPER => {
                let room = long_text(&mut reader)?;
                let target = MemberId(reader.u32()?);
                let message = Entry::decode(&mut reader)?;
                let Entry::ChatMessage { .. } = message else {
                    return None;
                };
                Content::Whisper {
                    room,
                    target,
                    message,
                }
            }
            _ => return None,
        };
        reader.is_empty().then_some(Self { from, content })
    }
}

/// Appends the beginning of a packet, up to its content.
fn begin(content: u8, from: NodeLife<&str>, out: &mut Vec<u8>) {
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[VERSION, content]);
    out.extend_from_slice(&from.epoch.to_le_bytes());
    push_name(from.node, out);
}

/// Appends a whole heartbeat.
pub fn encode_alive(from: NodeLife<&str>, flags: u8, beat: u64, out: &mut Vec<u8>) {
    begin(ALIVE, from, out);
    out.push(flags);
    out.extend_from_slice(&beat.to_le_bytes());
}

/// Appends the packet of a sequence up to its entries, which follow.
pub fn encode_sequence(
    from: NodeLife<&str>,
    (kind, name): (SequenceKind, &str),
    point: SequencePoint,
    out: &mut Vec<u8>,
) {
    begin(SEQUENCE, from, out);
    out.push(match kind {
        SequenceKind::Room => 0,
        SequenceKind::Topic => 1,
    });
    push_long_text(name, out);
    for number in [point.start, point.message, point.change] {
        out.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends a whole whisper.
pub fn encode_whisper(
    from: NodeLife<&str>,
    room: &str,
    target: MemberId,
    message: &Entry<'_>,
    out: &mut Vec<u8>,
) {
    begin(WHISPER, from, out);
    push_long_text(room, out);
    out.extend_from_slice(&target.0.to_le_bytes());
    message.encode(out);
}

fn long_text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let count = reader.u16()?;
    str::from_utf8(reader.bytes(usize::from(count))?).ok()
}

/// Appends a name of a room or topic. Names are far shorter than the length allows. A longer name would be cut.
fn push_long_text(text: &str, out: &mut Vec<u8>) {
    let count = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..usize::from(count)]);
}

/// Appends the name of a member or node. The rules limit names to 255 bytes. A longer name would be left out.
fn push_name(name: &str, out: &mut Vec<u8>) {
    if crate::body::push_short_text(name, out).is_err() {
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeLife<&str> = NodeLife {
        node: "n1",
        epoch: 7,
    };

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn packets_have_the_bytes_that_the_module_describes() {
        let mut bytes = Vec::new();
        encode_alive(ME, ALIVE_ASKS, 258, &mut bytes);
        assert_eq!(
            hex(&bytes),
            "5442010107000000000000000\
                                 26e31010201000000000000"
                .replace(' ', "")
        );
        let packet = Packet::decode(&bytes).unwrap();
        let content = Content::Alive {
            flags: 1,
            beat: 258,
        };
        assert_eq!((packet.from, packet.content), (ME, content));
        for end in 0..bytes.len() {
            assert!(Packet::decode(&bytes[..end]).is_err(), "{end}");
        }
        bytes.push(0);
        assert_eq!(Packet::decode(&bytes), Err(PacketError::Malformed));
    }

    #[test]
    fn sequences_and_whispers_are_decoded_as_encoded() {
        let message = Entry::ChatMessage {
            member: MemberId(9),
            name: "ann",
            payload: b"hi",
        };
        let point = SequencePoint {
            start: 1,
            message: 2,
            change: 3,
        };
        let mut bytes = Vec::new();
        encode_sequence(ME, (SequenceKind::Room, "lobby"), point, &mut bytes);
        let entries = [
            message,
            Entry::Published { payload: b"" },
            Entry::Joined {
                member: MemberId(1),
                name: "bob",
            },
            Entry::Left {
                member: MemberId(1),
            },
        ];
        for entry in &entries {
            entry.encode(&mut bytes);
        }
        let Ok(Packet {
            content: Content::Sequence(sequence),
            ..
        }) = Packet::decode(&bytes)
        else {
            panic!("no sequence");
        };
        assert_eq!(
            (sequence.kind, sequence.name, sequence.point),
            (SequenceKind::Room, "lobby", point)
        );
        let decoded: Option<Vec<Entry<'_>>> = sequence.entries.collect();
        assert_eq!(decoded.unwrap(), entries);

        bytes.clear();
        encode_whisper(ME, "lobby", MemberId(4), &message, &mut bytes);
        let content = Packet::decode(&bytes).unwrap().content;
        let (room, target) = ("lobby", MemberId(4));
        assert_eq!(
            content,
            Content::Whisper {
                room,
                target,
                message
            }
        );
    }

    #[test]
    fn foreign_bytes_other_versions_and_wrong_ids_are_told_apart() {
        assert_eq!(Packet::decode(b"{}"), Err(PacketError::Foreign));
        assert_eq!(Packet::decode(b"TB\x02rest"), Err(PacketError::Version(2)));
        let mut bytes = Vec::new();
        encode_alive(NodeLife::new("a.b", 7), 0, 0, &mut bytes);
        assert_eq!(Packet::decode(&bytes), Err(PacketError::Malformed));
        for (id, is_valid) in [
            ("", false),
            ("a", true),
            ("a b", false),
            ("ä", false),
            ("A-1_", true),
        ] {
            assert_eq!(validate_node(id).is_ok(), is_valid, "{id}");
        }
        assert!(validate_node(&"n".repeat(33)).is_err());
    }
}
