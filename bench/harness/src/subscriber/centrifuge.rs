//! Centrifuge, the engine of Centrifugo: replies in protobuf, each behind its length, some of them in one message of
//! WebSocket.
//!
//! ```text
//! client: Command { id: 1, connect: {} }    server: Reply { id: 1, connect: … }: the server has subscribed us, too
//!                                           Reply { push: { channel: "t", pub: { data: payload } } }
//! ```
//!
//! Our server of it subscribes whoever connects, and sends no pings.

use super::dialect::{Dialect, DialectError, Next, Role, refused, whole, within_limit};
use super::websocket::{BINARY, WebSocket, length};

#[derive(Debug, Default)]
pub(super) struct Centrifuge {
    socket: WebSocket,
    /// Bytes of the current message that have not been taken.
    left: usize,
    is_connected: bool,
}

impl Dialect for Centrifuge {
    fn greet(&mut self, role: Role, out: &mut Vec<u8>) {
        self.socket.greet(role, out);
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        if self.left > 0 {
            return self.next_reply(bytes);
        }
        if self.socket.is_ready() {
            let (&[first, second], rest) = whole!(bytes.split_first_chunk());
            if first == BINARY {
                let (payload_bytes, header_bytes) = whole!(length(second, rest)?);
                self.left = payload_bytes;
                return Ok(Next::Other(header_bytes));
            }
        }
        self.next_of_socket(bytes, out)
    }

    fn is_ready(&self) -> bool {
        self.is_connected
    }
}

impl Centrifuge {
    #[inline]
    fn next_reply<'a>(&mut self, bytes: &'a [u8]) -> Result<Next<'a>, DialectError> {
        let bytes = &bytes[..bytes.len().min(self.left)];
        let Some((reply, consumed)) = delimited(bytes)? else {
            return match bytes.len() < self.left {
                true => Ok(Next::Incomplete),
                false => Err(DialectError::Malformed("a reply longer than its message")),
            };
        };
        self.left -= consumed;
        match publication(reply)? {
            Some(payload) => Ok(Next::Message(payload, consumed)),
            None => {
                self.handle_reply(reply)?;
                Ok(Next::Other(consumed))
            }
        }
    }

    #[cold]
    fn next_of_socket<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Next<'a>, DialectError> {
        let was_open = self.socket.is_ready();
        let next = self.socket.next(bytes, out)?;
        if !was_open && self.socket.is_ready() {
            out.extend_from_slice(CONNECT);
        }
        match next {
            Next::Message(..) => Err(DialectError::Malformed("text in place of protobuf")),
            other => Ok(other),
        }
    }

    #[cold]
    fn handle_reply(&mut self, reply: &[u8]) -> Result<(), DialectError> {
        if let Some(error) = field(reply, ERROR)? {
            return Err(refused(field(error, ERROR_MESSAGE)?.unwrap_or_default()));
        }
        self.is_connected |= field(reply, CONNECT_RESULT)?.is_some();
        Ok(())
    }
}

/// The payload of a reply that is a publication.
#[inline]
fn publication(reply: &[u8]) -> Result<Option<&[u8]>, DialectError> {
    let Some(push) = field(reply, PUSH)? else {
        return Ok(None);
    };
    match field(push, PUBLICATION)? {
        Some(publication) => field(publication, DATA),
        None => Ok(None),
    }
}

/// A message behind its length, and the bytes of both; nothing if it is not whole.
#[inline]
fn delimited(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, DialectError> {
    let Some((bytes_announced, head)) = varint(bytes)? else {
        return Ok(None);
    };
    let end = head + within_limit(bytes_announced)?;
    Ok(bytes.get(head..end).map(|message| (message, end)))
}

/// The first field of this number in a message, if it has a length; nothing if there is none.
#[inline]
fn field(mut message: &[u8], number: u64) -> Result<Option<&[u8]>, DialectError> {
    while !message.is_empty() {
        let (key, key_bytes) = varint(message)?.ok_or(CUT)?;
        let rest = &message[key_bytes..];
        let value_bytes = match key & 7 {
            0 => varint(rest)?.ok_or(CUT)?.1,
            1 => 8,
            2 => {
                let (value, consumed) = delimited(rest)?.ok_or(CUT)?;
                if key >> 3 == number {
                    return Ok(Some(value));
                }
                consumed
            }
            5 => 4,
            _ => return Err(DialectError::Malformed("a field of no known kind")),
        };
        message = rest.get(value_bytes..).ok_or(CUT)?;
    }
    Ok(None)
}

/// A number of seven bits a byte, and its bytes; nothing if it is not whole.
#[inline]
fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, DialectError> {
    let mut number = 0;
    for (at, &byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok(Some((number, at + 1)));
        }
    }
    match bytes.len() < VARINT_BYTES_MAX {
        true => Ok(None),
        false => Err(DialectError::Malformed("a number without an end")),
    }
}

/// `Command { id: 1, connect: {} }` behind its length, in a message that is masked with zeros.
const CONNECT: &[u8] = &[BINARY, 0x85, 0, 0, 0, 0, 4, 0x08, 1, 0x22, 0];

/// Fields of `Reply`, `Error`, `Push` and `Publication`.
const ERROR: u64 = 2;
const ERROR_MESSAGE: u64 = 2;
const PUSH: u64 = 4;
const CONNECT_RESULT: u64 = 5;
const PUBLICATION: u64 = 4;
const DATA: u64 = 4;

/// Bytes of a number below 2⁶³.
const VARINT_BYTES_MAX: usize = 9;

const CUT: DialectError = DialectError::Malformed("a field that is cut off");

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;
    use crate::probes::websocket::ACCEPT;

    fn opened() -> Vec<u8> {
        format!("HTTP/1.1 101 x\r\nSec-WebSocket-Accept: {ACCEPT}\r\n\r\n").into_bytes()
    }

    /// A whole message of WebSocket with these replies.
    fn message(replies: &[&[u8]]) -> Vec<u8> {
        let replies: Vec<u8> = replies
            .iter()
            .flat_map(|reply| [&[reply.len() as u8], *reply].concat())
            .collect();
        [&[BINARY, replies.len() as u8][..], &replies].concat()
    }

    /// `Reply { id: 1, connect: { client: "a" } }`
    const CONNECTED: &[u8] = b"\x08\x01\x2a\x03\x0a\x01a";

    /// `Reply { push: { channel: "t", pub: { data: "news", offset: 1 } } }`
    const NEWS: &[u8] = b"\x22\x0d\x12\x01t\x22\x08\x22\x04news\x30\x01";

    fn conversation() -> Vec<u8> {
        let connected = message(&[CONNECTED]);
        let news = message(&[NEWS, b"", NEWS]);
        [opened(), connected, news, b"\x89\x00".to_vec()].concat()
    }

    #[test]
    fn it_connects_and_takes_publications_out_of_shared_messages() {
        let (heard, out, ready) = hear::<Centrifuge>(&conversation());
        assert_eq!(heard, [b"news", b"news"]);
        assert!(ready);
        let answers = [CONNECT, b"\x8a\x80\0\0\0\0"].concat();
        assert!(out.ends_with(&answers), "{out:?}");
        assert!(!hear::<Centrifuge>(&opened()).2);
    }

    #[test]
    fn what_is_wrong_is_told_and_nothing_panics() {
        let then = |message: &[u8]| error::<Centrifuge>(&[&opened(), message].concat());
        let refusal = message(&[b"\x08\x01\x12\x06\x08\x65\x12\x02no"]);
        assert_eq!(then(&refusal), DialectError::Refused("no".to_owned()));
        for bad in [
            &b"\x81\x02{}"[..],
            b"\x82\x01\x05",
            b"\x82\x02\x01\x22",
            b"\x82\x03\x02\x22\x09",
            b"\x82\x02\x01\x0b",
            b"\x82\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            assert!(matches!(then(bad), DialectError::Malformed(_)), "{bad:?}");
        }
        survives_anything::<Centrifuge>(&conversation());
    }
}
