//! Requests on a room's channel, and the roster that answers one of them.

use std::iter;

use super::{Reader, malformed, push_short_text};
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, MemberId};

/// Body of a `Request` on a room's channel.
///
/// Layout: u8 operation; for `Whisper` (2) a u8 length and the bytes of the receiver's name, then the text
/// to the end. `List` (1) has nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RoomCall<'a> {
    /// Lists the members. The answer is a [`Roster`].
    List,
    /// Sends text to one member only. The answer is an empty reply once the message is on its way.
    Whisper {
        /// Name of the receiver.
        to: &'a str,
        /// The text.
        text: &'a [u8],
    },
}

impl<'a> RoomCall<'a> {
    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if the receiver's name is longer than 255 bytes; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match *self {
            Self::List => out.push(LIST),
            Self::Whisper { to, text } => {
                let start = out.len();
                out.push(WHISPER);
                push_short_text(to, out).inspect_err(|_| out.truncate(start))?;
                out.extend_from_slice(text);
            }
        }
        Ok(())
    }

    /// Reads the payload of a `Request` on a room's channel.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`], also for an operation this version does not have.
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        match reader.u8() {
            Some(LIST) if reader.is_empty() => Ok(Self::List),
            Some(WHISPER) => match reader.short_text() {
                Some(to) => Ok(Self::Whisper {
                    to,
                    text: reader.rest(),
                }),
                None => Err(malformed(Kind::Request)),
            },
            _ => Err(malformed(Kind::Request)),
        }
    }
}

/// Body of the `Reply` to [`RoomCall::List`]: the members of a room.
///
/// Layout: for each member a u32 member, a u8 length and the bytes of the name, to the end of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roster<'a> {
    payload: &'a [u8],
}

impl<'a> Roster<'a> {
    /// Appends one member to a roster's payload.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if the name is longer than 255 bytes; `out` is unchanged.
    pub fn push_entry(member: MemberId, name: &str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        out.extend_from_slice(&member.0.to_le_bytes());
        push_short_text(name, out).inspect_err(|_| out.truncate(start))
    }

    /// Checks a whole roster, so that iterating over it cannot fail.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        while !reader.is_empty() {
            if next_entry(&mut reader).is_none() {
                return Err(malformed(Kind::Reply));
            }
        }
        Ok(Self { payload })
    }

    /// The payload.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.payload
    }

    /// The members, in the order in which they were sent.
    pub fn entries(&self) -> impl Iterator<Item = (MemberId, &'a str)> + use<'a> {
        let mut reader = Reader::new(self.payload);
        iter::from_fn(move || next_entry(&mut reader))
    }
}

fn next_entry<'a>(reader: &mut Reader<'a>) -> Option<(MemberId, &'a str)> {
    let member = reader.u32()?;
    Some((MemberId(member), reader.short_text()?))
}

const LIST: u8 = 1;
const WHISPER: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_calls_survive_the_wire() {
        let calls = [
            RoomCall::List,
            RoomCall::Whisper {
                to: "bob",
                text: b"psst",
            },
            RoomCall::Whisper { to: "", text: b"" },
        ];
        for call in calls {
            let mut out = Vec::new();
            call.encode(&mut out).unwrap();
            assert_eq!(RoomCall::decode(&out), Ok(call));
        }
    }

    #[test]
    fn broken_room_calls_are_malformed() {
        for payload in [
            &b""[..],
            &[0],
            &[3],
            &[LIST, 0],
            &[WHISPER],
            &[WHISPER, 2, b'a'],
        ] {
            assert_eq!(
                RoomCall::decode(payload),
                Err(malformed(Kind::Request)),
                "{payload:?}"
            );
        }
    }

    #[test]
    fn a_roster_lists_the_pushed_members() {
        let mut out = Vec::new();
        Roster::push_entry(MemberId(7), "ada", &mut out).unwrap();
        Roster::push_entry(MemberId(9), "王", &mut out).unwrap();
        let whole = out.len();
        let long = "n".repeat(256);
        assert!(Roster::push_entry(MemberId(1), &long, &mut out).is_err());
        assert_eq!(out.len(), whole);

        let entries: Vec<_> = Roster::decode(&out).unwrap().entries().collect();

        assert_eq!(entries, [(MemberId(7), "ada"), (MemberId(9), "王")]);
    }

    #[test]
    fn a_roster_cut_short_is_malformed() {
        let mut out = Vec::new();
        Roster::push_entry(MemberId(7), "ada", &mut out).unwrap();
        assert_eq!(Roster::decode(&out[..7]), Err(malformed(Kind::Reply)));
        assert_eq!(Roster::decode(&[]).unwrap().entries().count(), 0);
    }
}
