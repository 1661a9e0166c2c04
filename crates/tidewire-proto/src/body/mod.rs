//! Bodies: the layouts inside the payloads of control frames.
//!
//! Problem: joins, refusals, presence, gaps and go-aways need structure, and their bytes come from untrusted peers.
//! Approach: each body is a borrowing struct with `encode` (appends the payload) and `decode` (reads it from the
//! receive buffer). Integers are little-endian; a text either follows a one-byte length or is the last field. A decoder
//! accepts exactly one spelling: surplus bytes are [`DecodeError::MalformedPayload`], because new fields need a new
//! protocol version.
//!
//! A name that is too long is an error of `encode`, because a shortened name is another name. A reason in an error or a
//! go-away is shortened instead, because it is for people, and the code has the meaning for programs.
//!
//! Rejected: a serialisation crate (a dependency inside the public wire format, and no usual crate decodes without
//! copies within these bounds), and tagged optional fields (no field here is optional).

mod call;
mod code;
mod field;
mod name;
mod placement;
mod position;
mod topic;

pub use call::{RoomCall, Roster};
pub use code::{ErrorCode, GoAwayCode};
pub use name::{NameError, displayed_name, name_skeleton, typed_name, validate_name};
pub use placement::PlacementBody;
pub use position::{PositionBody, Recovery, RecoveryBody, Since, split_delivery};
pub use topic::SubscribeBody;

pub(crate) use field::{Reader, push_short_text};

use std::borrow::Cow;

use crate::error::{DecodeError, EncodeError};
use crate::limits::TEXT_BYTES_MAX;
use crate::message::{FLAG_MOVED, Kind, MemberId, Message, PresenceEvent};

use field::clip_text;

/// Body of a `Join`: the room to enter and the member's name in it.
///
/// Layout: u8 length and bytes of the room, u8 length and bytes of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinBody<'a> {
    /// The room's name.
    pub room: &'a str,
    /// The name that the member wants in the room.
    pub name: &'a str,
}

impl<'a> JoinBody<'a> {
    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if a field is longer than 255 bytes; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        push_short_text(self.room, out)?;
        push_short_text(self.name, out).inspect_err(|_| out.truncate(start))
    }

    /// Reads the payload of a `Join`. It does not check the names: call [`validate_name`], so that a bad name can be
    /// refused with its reason.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let body = reader.short_text().zip(reader.short_text());
        match body {
            Some((room, name)) if reader.is_empty() => Ok(Self { room, name }),
            _ => Err(malformed(Kind::Join)),
        }
    }
}

/// Body of the `Reply` to a `Join`. The alias of the room is in the frame's channel.
///
/// Layout: u32 member, u32 members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedBody {
    /// The number of the member who joined.
    pub member: MemberId,
    /// The number of members in the room, including this one.
    pub members: u32,
}

impl JoinedBody {
    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_bytes());
    }

    /// Returns the payload.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 8] {
        let number = u64::from(self.member.0) | u64::from(self.members) << 32;
        number.to_le_bytes()
    }

    /// Reads the payload of the `Reply`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        match (reader.u32(), reader.u32()) {
            (Some(member), Some(members)) if reader.is_empty() => Ok(Self {
                member: MemberId(member),
                members,
            }),
            _ => Err(malformed(Kind::Reply)),
        }
    }
}

/// Body of an `Error`: why a request was refused, for programs and for people.
///
/// Layout: u16 code, then the text to the end of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorBody<'a> {
    /// The reason, for programs.
    pub code: ErrorCode,
    /// The reason, for people; may be empty.
    pub text: &'a str,
}

impl<'a> ErrorBody<'a> {
    /// Appends the payload to `out`, with the text cut to at most [`TEXT_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.code.to_wire().to_le_bytes());
        out.extend_from_slice(clip_text(self.text).as_bytes());
    }

    /// The text, or the code's own text if it is empty.
    pub(crate) fn words(&self) -> Cow<'a, str> {
        match self.text {
            "" => self.code.to_string().into(),
            text => text.into(),
        }
    }

    /// Passes the payload to `take`, for an encoder that needs all of it.
    pub(crate) fn with_bytes<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
        let text = clip_text(self.text).as_bytes();
        let mut bytes = [0; CODE_BYTES + TEXT_BYTES_MAX];
        let (code, room) = bytes.split_at_mut(CODE_BYTES);
        code.copy_from_slice(&self.code.to_wire().to_le_bytes());
        room[..text.len()].copy_from_slice(text);
        take(&bytes[..CODE_BYTES + text.len()])
    }

    /// Reads the payload of an `Error`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let (code, text) = decode_reason(payload).ok_or(malformed(Kind::Error))?;
        Ok(Self {
            code: ErrorCode::from_wire(code),
            text,
        })
    }
}

/// Body of a `Presence`: a member who is in, joined, or left a room.
///
/// Layout: u8 event, u32 member, u8 length and bytes of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceBody<'a> {
    /// The kind of event.
    pub event: PresenceEvent,
    /// The member this event is about.
    pub member: MemberId,
    /// The member's name.
    pub name: &'a str,
}

impl<'a> PresenceBody<'a> {
    /// Appends the payload to `out`.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if the name is longer than 255 bytes; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        out.push(self.event as u8);
        out.extend_from_slice(&self.member.0.to_le_bytes());
        push_short_text(self.name, out).inspect_err(|_| out.truncate(start))
    }

    /// Reads the payload of a `Presence`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let event = reader.u8().and_then(presence_event);
        match (event, reader.u32(), reader.short_text()) {
            (Some(event), Some(member), Some(name)) if reader.is_empty() => Ok(Self {
                event,
                member: MemberId(member),
                name,
            }),
            _ => Err(malformed(Kind::Presence)),
        }
    }
}

/// Body of a `Gap`: the number of messages that were dropped for this receiver before the next one.
///
/// Layout: u64 lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GapBody {
    /// The number of dropped messages.
    pub lost: u64,
}

impl GapBody {
    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lost.to_le_bytes());
    }

    /// Reads the payload of a `Gap`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        match payload.try_into() {
            Ok(lost) => Ok(Self {
                lost: u64::from_le_bytes(lost),
            }),
            Err(_) => Err(malformed(Kind::Gap)),
        }
    }
}

/// Body of a `GoAway`: why the sender will close the connection.
///
/// Layout: u16 code, then the text to the end of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoAwayBody<'a> {
    /// The reason, for programs.
    pub code: GoAwayCode,
    /// The reason, for people; may be empty.
    pub text: &'a str,
}

impl<'a> GoAwayBody<'a> {
    /// Appends the payload to `out`, with the text cut to at most [`TEXT_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.code.to_wire().to_le_bytes());
        out.extend_from_slice(clip_text(self.text).as_bytes());
    }

    /// Reads the payload of a `GoAway`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let (code, text) = decode_reason(payload).ok_or(malformed(Kind::GoAway))?;
        Ok(Self {
            code: GoAwayCode::from_wire(code),
            text,
        })
    }
}

/// Body of a `GoAway` with [`FLAG_MOVED`]: why the sender will close the connection, and where its peer should connect.
///
/// Layout: u16 code, u8 length and bytes of the address, then the text to the end of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedBody<'a> {
    /// The reason, for programs.
    pub code: GoAwayCode,
    /// The address of the other server, such as `tcp://10.0.0.2:8080`, in at most
    /// [`MOVED_ADDRESS_BYTES_MAX`](crate::limits::MOVED_ADDRESS_BYTES_MAX) bytes. That of a peer may be any text: check
    /// it before use.
    pub address: &'a str,
    /// The reason, for people; may be empty.
    pub text: &'a str,
}

impl<'a> MovedBody<'a> {
    /// Appends the payload to `out`, with the text cut to at most [`TEXT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// [`EncodeError::TextTooLong`] if the address is longer than 255 bytes; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        out.extend_from_slice(&self.code.to_wire().to_le_bytes());
        push_short_text(self.address, out).inspect_err(|_| out.truncate(start))?;
        out.extend_from_slice(clip_text(self.text).as_bytes());
        Ok(())
    }

    /// Reads any `GoAway`. Without the flag the address is empty.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn of(message: &Message<'a>) -> Result<Self, DecodeError> {
        if message.flags & FLAG_MOVED == 0 {
            let GoAwayBody { code, text } = GoAwayBody::decode(message.payload)?;
            let address = "";
            return Ok(Self {
                code,
                address,
                text,
            });
        }
        Self::decode(message.payload).ok_or(malformed(Kind::GoAway))
    }

    fn decode(payload: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(payload);
        let code = GoAwayCode::from_wire(reader.u16()?);
        let address = reader.short_text()?;
        let text = str::from_utf8(reader.rest()).ok()?;
        (text.len() <= TEXT_BYTES_MAX).then_some(Self {
            code,
            address,
            text,
        })
    }
}

pub(crate) const fn malformed(kind: Kind) -> DecodeError {
    DecodeError::MalformedPayload { kind }
}

/// Reads a u16 code followed by a text to the end.
fn decode_reason(payload: &[u8]) -> Option<(u16, &str)> {
    let mut reader = Reader::new(payload);
    let code = reader.u16()?;
    let text = reader.rest();
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    Some((code, str::from_utf8(text).ok()?))
}

const fn presence_event(number: u8) -> Option<PresenceEvent> {
    match number {
        0 => Some(PresenceEvent::Here),
        1 => Some(PresenceEvent::Joined),
        2 => Some(PresenceEvent::Left),
        _ => None,
    }
}

/// Size of an error's or a go-away's code.
const CODE_BYTES: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MOVED_ADDRESS_BYTES_MAX;

    #[test]
    fn a_lent_error_body_is_the_encoded_one() {
        for text in ["", "err", &"é".repeat(200)] {
            let body = ErrorBody {
                code: ErrorCode::NotFound,
                text,
            };
            let mut out = Vec::new();
            body.encode(&mut out);
            assert_eq!(body.with_bytes(<[u8]>::to_vec), out);
        }
    }

    #[test]
    fn a_name_that_does_not_fit_leaves_the_output_unchanged() {
        let long = "n".repeat(256);
        let mut out = b"before".to_vec();
        let expected = Err(EncodeError::TextTooLong {
            bytes: 256,
            limit: 255,
        });

        assert_eq!(
            JoinBody {
                room: "lobby",
                name: &long
            }
            .encode(&mut out),
            expected
        );
        assert_eq!(
            JoinBody {
                room: &long,
                name: "a"
            }
            .encode(&mut out),
            expected
        );
        let presence = PresenceBody {
            event: PresenceEvent::Here,
            member: MemberId(1),
            name: &long,
        };
        assert_eq!(presence.encode(&mut out), expected);

        assert_eq!(out, b"before");
    }

    fn decode(payload: &[u8], flags: u8) -> Result<MovedBody<'_>, DecodeError> {
        let message = Message::new(Kind::GoAway, 0, payload);
        MovedBody::of(&Message { flags, ..message })
    }

    #[test]
    fn a_go_away_with_an_address_fits_the_smallest_frame_limit() {
        let body = MovedBody {
            code: GoAwayCode::Shutdown,
            address: &"a".repeat(MOVED_ADDRESS_BYTES_MAX),
            text: &"t".repeat(TEXT_BYTES_MAX),
        };
        let mut out = Vec::new();
        body.encode(&mut out).unwrap();
        let header_bytes = 8;
        assert!(header_bytes + out.len() <= 512, "{}", out.len());
        assert_eq!(decode(&out, FLAG_MOVED), Ok(body));
        for cut in 0..3 + MOVED_ADDRESS_BYTES_MAX {
            assert_eq!(
                decode(&out[..cut], FLAG_MOVED),
                Err(malformed(Kind::GoAway))
            );
        }
        out.push(b't');
        assert_eq!(decode(&out, FLAG_MOVED), Err(malformed(Kind::GoAway)));
        let plain = decode(b"\x01\0bye", 0).unwrap();
        assert_eq!((plain.address, plain.text), ("", "bye"));
    }

    #[test]
    fn reasons_are_cut_at_a_character_and_still_decode() {
        // 255 is odd, so the limit falls inside a two-byte character.
        let text = "é".repeat(200);
        let mut out = Vec::new();
        ErrorBody {
            code: ErrorCode::Internal,
            text: &text,
        }
        .encode(&mut out);

        let body = ErrorBody::decode(&out).unwrap();

        assert_eq!(body.code, ErrorCode::Internal);
        assert_eq!(body.text, "é".repeat(127));
    }

    #[test]
    fn left_over_and_missing_bytes_are_malformed() {
        let mut join = Vec::new();
        JoinBody {
            room: "lobby",
            name: "ada",
        }
        .encode(&mut join)
        .unwrap();
        for end in 0..join.len() {
            assert_eq!(JoinBody::decode(&join[..end]), Err(malformed(Kind::Join)));
        }
        join.push(0);
        assert_eq!(JoinBody::decode(&join), Err(malformed(Kind::Join)));

        assert_eq!(GapBody::decode(&[0; 7]), Err(malformed(Kind::Gap)));
        assert_eq!(GapBody::decode(&[0; 9]), Err(malformed(Kind::Gap)));
        assert_eq!(JoinedBody::decode(&[0; 9]), Err(malformed(Kind::Reply)));
    }

    #[test]
    fn text_must_be_utf8_and_bounded() {
        assert_eq!(
            ErrorBody::decode(&[1, 0, 0xFF]),
            Err(malformed(Kind::Error))
        );
        assert_eq!(GoAwayBody::decode(&[1]), Err(malformed(Kind::GoAway)));
        let mut long = vec![1, 0];
        long.extend(std::iter::repeat_n(b'x', TEXT_BYTES_MAX + 1));
        assert_eq!(GoAwayBody::decode(&long), Err(malformed(Kind::GoAway)));
        assert!(GoAwayBody::decode(&long[..long.len() - 1]).is_ok());
    }

    #[test]
    fn an_unknown_presence_event_is_malformed() {
        assert_eq!(
            PresenceBody::decode(&[3, 0, 0, 0, 0, 0]),
            Err(malformed(Kind::Presence))
        );
    }
}
