//! Packets for one node: a message for one of its sessions, and requests to services with their answers.

use super::{NodeLife, begin, long_text, push_long_text};
use crate::body::{ErrorCode, Reader};
use crate::message::{Kind, Message};

/// A message for a session of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directed<'a> {
    /// The run of the receiver in which the session has this number.
    pub epoch: u64,
    /// The number of the session.
    pub session: u64,
    /// The message.
    pub message: Message<'a>,
}

/// A request to a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceRequest<'a> {
    /// The number that the asking node gave the request.
    pub request: u64,
    /// The time that is left for the answer, in milliseconds. It is no date, because clocks of nodes differ.
    pub left_ms: u32,
    /// The name of the service.
    pub service: &'a str,
    /// The payload.
    pub payload: &'a [u8],
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceAnswer<'a> {
    /// The run of the asking node that the request is of.
    pub epoch: u64,
    /// The number of the request.
    pub request: u64,
    /// The payload of the reply, or the refusal.
    pub outcome: Result<&'a [u8], (ErrorCode, &'a str)>,
}

/// The requests of the receiver that the sender works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Working<'a> {
    /// The run of the asking node that the requests are of.
    pub epoch: u64,
    requests: &'a [u8],
}

impl<'a> Working<'a> {
    /// The numbers of the requests.
    pub fn requests(&self) -> impl Iterator<Item = u64> + use<'a> {
        let (numbers, _) = self.requests.as_chunks::<8>();
        numbers.iter().map(|number| u64::from_le_bytes(*number))
    }
}

pub(super) const DIRECTED: u8 = 4;
pub(super) const ASKED: u8 = 5;
pub(super) const ANSWERED: u8 = 6;
pub(super) const WORKING: u8 = 7;
pub(super) const GIVEN_UP: u8 = 8;

const REPLIED: u8 = 0;
const REFUSED: u8 = 1;

pub(super) fn decode_directed<'a>(mut reader: Reader<'a>) -> Option<Directed<'a>> {
    let (epoch, session) = (reader.u64()?, reader.u64()?);
    let kind = Kind::from_wire(reader.u8()?)?;
    let (flags, channel, id) = (reader.u8()?, reader.u16()?, reader.u32()?);
    let name = long_text(&mut reader)?;
    let message = Message {
        flags,
        ..Message::with_id(kind, channel, id, reader.rest()).with_name(name)
    };
    Some(Directed {
        epoch,
        session,
        message,
    })
}

pub(super) fn decode_asked<'a>(mut reader: Reader<'a>) -> Option<ServiceRequest<'a>> {
    Some(ServiceRequest {
        request: reader.u64()?,
        left_ms: reader.u32()?,
        service: long_text(&mut reader)?,
        payload: reader.rest(),
    })
}

pub(super) fn decode_answered<'a>(mut reader: Reader<'a>) -> Option<ServiceAnswer<'a>> {
    let (epoch, request) = (reader.u64()?, reader.u64()?);
    let outcome = match reader.u8()? {
        REPLIED => Ok(reader.rest()),
        REFUSED => {
            let code = ErrorCode::from_wire(reader.u16()?);
            Err((code, str::from_utf8(reader.rest()).ok()?))
        }
        _ => return None,
    };
    Some(ServiceAnswer {
        epoch,
        request,
        outcome,
    })
}

pub(super) fn decode_working<'a>(mut reader: Reader<'a>) -> Option<Working<'a>> {
    let (epoch, requests) = (reader.u64()?, reader.rest());
    requests
        .len()
        .is_multiple_of(8)
        .then_some(Working { epoch, requests })
}

/// Appends a whole packet with a message for a session.
pub fn encode_directed(from: NodeLife<&str>, directed: &Directed<'_>, out: &mut Vec<u8>) {
    begin(DIRECTED, from, out);
    let message = &directed.message;
    out.extend_from_slice(&directed.epoch.to_le_bytes());
    out.extend_from_slice(&directed.session.to_le_bytes());
    out.extend_from_slice(&[message.kind as u8, message.flags]);
    out.extend_from_slice(&message.channel.to_le_bytes());
    out.extend_from_slice(&message.id.to_le_bytes());
    push_long_text(message.name, out);
    out.extend_from_slice(message.payload);
}

/// Appends a whole packet with a request.
pub fn encode_asked(from: NodeLife<&str>, asked: &ServiceRequest<'_>, out: &mut Vec<u8>) {
    begin(ASKED, from, out);
    out.extend_from_slice(&asked.request.to_le_bytes());
    out.extend_from_slice(&asked.left_ms.to_le_bytes());
    push_long_text(asked.service, out);
    out.extend_from_slice(asked.payload);
}

/// Appends a whole packet with an answer.
pub fn encode_answered(from: NodeLife<&str>, answered: &ServiceAnswer<'_>, out: &mut Vec<u8>) {
    begin(ANSWERED, from, out);
    out.extend_from_slice(&answered.epoch.to_le_bytes());
    out.extend_from_slice(&answered.request.to_le_bytes());
    match answered.outcome {
        Ok(payload) => {
            out.push(REPLIED);
            out.extend_from_slice(payload);
        }
        Err((code, text)) => {
            out.push(REFUSED);
            out.extend_from_slice(&code.to_wire().to_le_bytes());
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// Appends a whole packet with the requests of another node that this node works on.
pub fn encode_working(
    from: NodeLife<&str>,
    of: u64,
    requests: impl IntoIterator<Item = u64>,
    out: &mut Vec<u8>,
) {
    begin(WORKING, from, out);
    out.extend_from_slice(&of.to_le_bytes());
    for request in requests {
        out.extend_from_slice(&request.to_le_bytes());
    }
}

/// Appends a whole packet about a request that the sender has given up.
pub fn encode_given_up(from: NodeLife<&str>, request: u64, out: &mut Vec<u8>) {
    begin(GIVEN_UP, from, out);
    out.extend_from_slice(&request.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::{Content, Packet, PacketError};
    use super::*;

    const ME: NodeLife<&str> = NodeLife {
        node: "n1",
        epoch: 7,
    };

    fn content(bytes: &[u8]) -> Content<'_> {
        let packet = Packet::decode(bytes).unwrap();
        assert_eq!(packet.from, ME);
        packet.content
    }

    #[test]
    fn packets_for_one_node_are_decoded_as_encoded() {
        let message = Message::with_id(Kind::OneWay, 3, 9, b"hi").with_name("news");
        let directed = Directed {
            epoch: 4,
            session: u64::MAX - 1,
            message,
        };
        let mut bytes = Vec::new();
        encode_directed(ME, &directed, &mut bytes);
        assert_eq!(content(&bytes), Content::Directed(directed));

        let asked = ServiceRequest {
            request: 1 << 56,
            left_ms: 5_000,
            service: "resize",
            payload: b"image",
        };
        bytes.clear();
        encode_asked(ME, &asked, &mut bytes);
        assert_eq!(content(&bytes), Content::Asked(asked));

        for outcome in [Ok(&b"small"[..]), Err((ErrorCode::NotFound, "no image"))] {
            let answered = ServiceAnswer {
                epoch: 4,
                request: 8,
                outcome,
            };
            bytes.clear();
            encode_answered(ME, &answered, &mut bytes);
            assert_eq!(content(&bytes), Content::Answered(answered));
        }

        bytes.clear();
        encode_working(ME, 4, [8, 9], &mut bytes);
        let Content::Working(working) = content(&bytes) else {
            panic!("another content");
        };
        assert_eq!(working.epoch, 4);
        assert_eq!(working.requests().collect::<Vec<u64>>(), [8, 9]);

        bytes.clear();
        encode_given_up(ME, 8, &mut bytes);
        assert_eq!(content(&bytes), Content::GivenUp { request: 8 });
    }

    #[test]
    fn packets_that_are_cut_off_within_their_fields_are_malformed() {
        let asked = ServiceRequest {
            request: 1,
            left_ms: 5_000,
            service: "resize",
            payload: b"",
        };
        let answered = ServiceAnswer {
            epoch: 4,
            request: 8,
            outcome: Err((ErrorCode::Internal, "")),
        };
        let mut packets = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        encode_asked(ME, &asked, &mut packets[0]);
        encode_answered(ME, &answered, &mut packets[1]);
        encode_working(ME, 4, [], &mut packets[2]);
        encode_given_up(ME, 8, &mut packets[3]);
        for packet in &packets {
            assert!(Packet::decode(packet).is_ok());
            for end in 3..packet.len() {
                let decoded = Packet::decode(&packet[..end]);
                assert_eq!(decoded, Err(PacketError::Malformed), "{end}");
            }
        }
        packets[2].push(0);
        assert_eq!(Packet::decode(&packets[2]), Err(PacketError::Malformed));
    }
}
