//! The body of the frame that tells a client its rooms and subscriptions by decision of the server.

use super::field::{Reader, push_short_text};
use super::{JoinBody, JoinedBody, malformed};
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, MemberId};

/// Body of a `Placement`: the room or pattern of the frame's channel from now on, which a handler of the server set.
///
/// Layout: u8 0, then the body of a `Join` and that of its reply; or u8 1, u8 length and bytes of the pattern; or u8 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementBody<'a> {
    /// The client is in a room.
    Joined {
        /// The client's number in the room.
        member: MemberId,
        /// How many members the room has.
        members: u32,
        /// The name of the room.
        room: &'a str,
        /// The name of the client in the room.
        name: &'a str,
    },
    /// The client is subscribed to a pattern.
    Subscribed {
        /// The pattern.
        pattern: &'a str,
    },
    /// The client is out of the room, or the subscription has ended.
    Out,
}

impl<'a> PlacementBody<'a> {
    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if a text is longer than 255 bytes; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let encoded = match *self {
            Self::Joined {
                member,
                members,
                room,
                name,
            } => {
                out.push(JOINED);
                let asked = JoinBody { room, name }.encode(out);
                JoinedBody { member, members }.encode(out);
                asked
            }
            Self::Subscribed { pattern } => {
                out.push(SUBSCRIBED);
                push_short_text(pattern, out)
            }
            Self::Out => {
                out.push(OUT);
                Ok(())
            }
        };
        encoded.inspect_err(|_| out.truncate(start))
    }

    /// Reads the payload of a `Placement`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        Self::read(&mut reader)
            .filter(|_| reader.is_empty())
            .ok_or(malformed(Kind::Placement))
    }

    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        match reader.u8()? {
            JOINED => Some(Self::Joined {
                room: reader.short_text()?,
                name: reader.short_text()?,
                member: MemberId(reader.u32()?),
                members: reader.u32()?,
            }),
            SUBSCRIBED => Some(Self::Subscribed {
                pattern: reader.short_text()?,
            }),
            OUT => Some(Self::Out),
            _ => None,
        }
    }
}

const JOINED: u8 = 0;
const SUBSCRIBED: u8 = 1;
const OUT: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_have_one_spelling_each() {
        let joined = PlacementBody::Joined {
            member: MemberId(9),
            members: 2,
            room: "lobby",
            name: "ada",
        };
        let subscribed = PlacementBody::Subscribed { pattern: "temp.*" };
        for placement in [joined, subscribed, PlacementBody::Out] {
            let mut body = Vec::new();
            placement.encode(&mut body).unwrap();
            assert_eq!(PlacementBody::decode(&body), Ok(placement));
            for end in 0..body.len() {
                assert!(PlacementBody::decode(&body[..end]).is_err());
            }
            body.push(0);
            assert!(PlacementBody::decode(&body).is_err());
        }
        assert!(PlacementBody::decode(&[3]).is_err());
        let long = "x".repeat(256);
        let mut out = b"kept".to_vec();
        let too_long = PlacementBody::Subscribed { pattern: &long };
        assert!(too_long.encode(&mut out).is_err());
        assert_eq!(out, b"kept");
    }
}
