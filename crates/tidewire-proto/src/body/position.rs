//! Positions on the wire: the position of a client, the replay of a server, and the offsets of deliveries.

use super::{Reader, malformed};
use crate::error::DecodeError;
use crate::message::{FLAG_POSITION, Kind, Message, Position};

/// The part of a history that a client requests when it joins a room or subscribes to a topic. The fields come before
/// the body of a `Join` or a `Subscribe` with [`FLAG_POSITION`].
///
/// Layout: u64 epoch, u64 offset. The epoch 2^64-1 asks for the newest messages, and the offset is their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// All messages after this position, which is the position of the client's last message.
    Position(Position),
    /// The newest messages, at most this many.
    Last(u64),
}

impl Since {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (epoch, offset) = match *self {
            Self::Position(Position { epoch, offset }) => (epoch, offset),
            Self::Last(count) => (EPOCH_OF_NEWEST, count),
        };
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
    }

    /// Separates the fields from the body after them. Without the flag there are no fields.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn split<'a>(message: &Message<'a>) -> Result<(Option<Self>, &'a [u8]), DecodeError> {
        if message.flags & FLAG_POSITION == 0 {
            return Ok((None, message.payload));
        }
        let mut reader = Reader::new(message.payload);
        let (Some(epoch), Some(offset)) = (reader.u64(), reader.u64()) else {
            return Err(malformed(message.kind));
        };
        let since = match epoch {
            EPOCH_OF_NEWEST => Self::Last(offset),
            epoch => Self::Position(Position { epoch, offset }),
        };
        Ok((Some(since), reader.rest()))
    }
}

/// How much of the requested history the server can replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The client gave no position.
    NotAsked,
    /// Every message after the client's position follows.
    Recovered,
    /// Messages are missing: their number, or `None` if the server does not know it.
    Missing(Option<u64>),
}

/// The end of the `Reply` to a `Join` or a `Subscribe` with [`FLAG_POSITION`].
///
/// Layout: u64 epoch, u64 offset, u8 recovered (0 no position was given, 1 recovered, 2 not recovered), u64 missing (0
/// unless not recovered; 2^64-1 for an unknown number).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryBody {
    /// The position before the first message after the reply.
    pub position: Position,
    /// How much of the requested history follows.
    pub recovery: Recovery,
}

impl RecoveryBody {
    /// Appends the fields.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (recovered, missing) = match self.recovery {
            Recovery::NotAsked => (0, 0),
            Recovery::Recovered => (1, 0),
            Recovery::Missing(count) => (2, count.unwrap_or(UNKNOWN)),
        };
        PositionBody {
            position: self.position,
        }
        .encode(out);
        out.push(recovered);
        out.extend_from_slice(&u64::to_le_bytes(missing));
    }

    /// Separates the fields from the body in front of them. Without the flag there are no fields.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn split<'a>(message: &Message<'a>) -> Result<(&'a [u8], Option<Self>), DecodeError> {
        if message.flags & FLAG_POSITION == 0 {
            return Ok((message.payload, None));
        }
        let error = malformed(message.kind);
        let end = message.payload.len().checked_sub(RECOVERY_BYTES);
        let (body, fields) = message.payload.split_at(end.ok_or(error)?);
        let (position, rest) = fields.split_at(POSITION_BYTES);
        let position = PositionBody::decode(position)?.position;
        let mut reader = Reader::new(rest);
        let recovery = match (reader.u8(), reader.u64()) {
            (Some(0), Some(0)) => Recovery::NotAsked,
            (Some(1), Some(0)) => Recovery::Recovered,
            (Some(2), Some(UNKNOWN)) => Recovery::Missing(None),
            (Some(2), Some(count)) => Recovery::Missing(Some(count)),
            _ => return Err(error),
        };
        Ok((body, Some(Self { position, recovery })))
    }
}

/// Body of a `Position`: the next message of its channel follows this position.
///
/// Layout: u64 epoch, u64 offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PositionBody {
    /// The position.
    pub position: Position,
}

impl PositionBody {
    /// Appends the payload to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.position.epoch.to_le_bytes());
        out.extend_from_slice(&self.position.offset.to_le_bytes());
    }

    /// Reads the payload of a `Position`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedPayload`].
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        match (reader.u64(), reader.u64()) {
            (Some(epoch), Some(offset)) if reader.is_empty() => Ok(Self {
                position: Position { epoch, offset },
            }),
            _ => Err(malformed(Kind::Position)),
        }
    }
}

/// Separates the offset of a `Deliver` from its payload. Without the flag there is none.
///
/// # Errors
/// [`DecodeError::MalformedPayload`].
pub fn split_delivery<'a>(message: &Message<'a>) -> Result<(Option<u64>, &'a [u8]), DecodeError> {
    if message.flags & FLAG_POSITION == 0 {
        return Ok((None, message.payload));
    }
    let mut reader = Reader::new(message.payload);
    match reader.u64() {
        Some(offset) => Ok((Some(offset), reader.rest())),
        None => Err(malformed(message.kind)),
    }
}

/// The epoch that means the newest messages. No history has it.
const EPOCH_OF_NEWEST: u64 = u64::MAX;
/// Stands for an unknown number of missing messages.
const UNKNOWN: u64 = u64::MAX;
const POSITION_BYTES: usize = 16;
const RECOVERY_BYTES: usize = POSITION_BYTES + 1 + 8;

#[cfg(test)]
mod tests {
    use super::*;

    const POSITION: Position = Position {
        epoch: 7,
        offset: 300,
    };

    fn flagged(kind: Kind, payload: &[u8]) -> Message<'_> {
        Message {
            flags: FLAG_POSITION,
            ..Message::with_id(kind, 3, 1, payload)
        }
    }

    #[test]
    fn positions_survive_the_wire() {
        for since in [Since::Position(POSITION), Since::Last(10)] {
            let mut out = Vec::new();
            since.encode(&mut out);
            out.extend_from_slice(b"body");
            let message = flagged(Kind::Join, &out);
            assert_eq!(Since::split(&message), Ok((Some(since), &b"body"[..])));
            let plain = Message {
                flags: 0,
                ..message
            };
            assert_eq!(Since::split(&plain), Ok((None, &out[..])));
        }
        let recoveries = [
            Recovery::NotAsked,
            Recovery::Recovered,
            Recovery::Missing(Some(5)),
            Recovery::Missing(None),
        ];
        for recovery in recoveries {
            let body = RecoveryBody {
                position: POSITION,
                recovery,
            };
            let mut out = b"body".to_vec();
            body.encode(&mut out);
            let message = flagged(Kind::Reply, &out);
            let split = RecoveryBody::split(&message);
            assert_eq!(split, Ok((&b"body"[..], Some(body))));
        }
    }

    #[test]
    fn broken_positions_are_malformed() {
        let short = [0; 15];
        for kind in [Kind::Join, Kind::Subscribe] {
            assert_eq!(Since::split(&flagged(kind, &short)), Err(malformed(kind)));
        }
        assert!(RecoveryBody::split(&flagged(Kind::Reply, &short)).is_err());
        let mut unknown = [0; RECOVERY_BYTES];
        unknown[POSITION_BYTES] = 3;
        assert!(RecoveryBody::split(&flagged(Kind::Reply, &unknown)).is_err());
        unknown[POSITION_BYTES] = 1;
        unknown[POSITION_BYTES + 1] = 1;
        assert!(RecoveryBody::split(&flagged(Kind::Reply, &unknown)).is_err());
        assert!(PositionBody::decode(&[0; 17]).is_err());
        assert!(split_delivery(&flagged(Kind::Deliver, &[0; 7])).is_err());
    }
}
