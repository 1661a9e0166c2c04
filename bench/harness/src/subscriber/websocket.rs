//! WebSocket (RFC 6455): the handshake of a client, and the frames of a server, which are not masked. Being connected
//! is being subscribed.

use super::dialect::{Dialect, DialectError, Next, Role, line, refused, whole, within_limit};
use crate::probes::websocket::{ACCEPT, REQUEST};

#[derive(Debug, Default)]
pub(super) struct WebSocket {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The status line is next.
    #[default]
    Status,
    /// A header is next.
    Headers {
        /// The key was answered as it must be.
        accepted: bool,
    },
    Open,
}

impl Dialect for WebSocket {
    fn greet(&mut self, _: Role, out: &mut Vec<u8>) {
        out.extend_from_slice(REQUEST.as_bytes());
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        if self.state != State::Open {
            return self.next_of_handshake(bytes);
        }
        let (&[first, second], rest) = whole!(bytes.split_first_chunk());
        let (payload_bytes, header_bytes) = whole!(length(second, rest)?);
        let consumed = header_bytes + payload_bytes;
        let payload = whole!(bytes.get(header_bytes..consumed));
        if first == BINARY || first == TEXT {
            return Ok(Next::Message(payload, consumed));
        }
        handle_control(first, payload, out)?;
        Ok(Next::Other(consumed))
    }

    fn is_ready(&self) -> bool {
        self.state == State::Open
    }
}

impl WebSocket {
    #[cold]
    fn next_of_handshake<'a>(&mut self, bytes: &'a [u8]) -> Result<Next<'a>, DialectError> {
        let (line, consumed) = whole!(line(bytes)?);
        self.state = match self.state {
            State::Status if line.starts_with(b"HTTP/1.1 101") => {
                State::Headers { accepted: false }
            }
            State::Status => return Err(refused(line)),
            State::Headers { accepted: false } if line.is_empty() => {
                let text = "a handshake that does not answer the key";
                return Err(DialectError::Malformed(text));
            }
            State::Headers { .. } if line.is_empty() => State::Open,
            State::Headers { accepted } => State::Headers {
                accepted: accepted || is_accepted(line),
            },
            State::Open => State::Open,
        };
        Ok(Next::Other(consumed))
    }
}

/// Bytes of the payload and of the header, if they are there.
#[inline]
pub(super) fn length(second: u8, rest: &[u8]) -> Result<Option<(usize, usize)>, DialectError> {
    if second & MASKED != 0 {
        return Err(DialectError::Malformed("a server that masks its frames"));
    }
    Ok(match second {
        LENGTH_IN_2 => rest
            .first_chunk()
            .map(|length| (usize::from(u16::from_be_bytes(*length)), 4)),
        LENGTH_IN_8 => match rest.first_chunk() {
            Some(length) => Some((within_limit(u64::from_be_bytes(*length))?, 10)),
            None => None,
        },
        length => Some((usize::from(length), 2)),
    })
}

#[cold]
fn handle_control(first: u8, payload: &[u8], out: &mut Vec<u8>) -> Result<(), DialectError> {
    match first {
        PING if payload.len() <= CONTROL_BYTES_MAX => {
            // A client masks what it sends; with a mask of zeros the bytes stay as they are.
            out.extend_from_slice(&[PONG, MASKED | payload.len() as u8, 0, 0, 0, 0]);
            out.extend_from_slice(payload);
            Ok(())
        }
        PONG => Ok(()),
        // Behind the code of two bytes there may be words.
        CLOSE => Err(refused(payload.get(2..).unwrap_or_default())),
        _ => Err(DialectError::Malformed(
            "a frame that is in parts, or of no known kind",
        )),
    }
}

/// Whether a header is the one answer that there is to the key of the [request](REQUEST).
fn is_accepted(line: &[u8]) -> bool {
    let mut parts = line.splitn(2, |&byte| byte == b':');
    let name = parts.next().unwrap_or_default();
    let value = parts.next().unwrap_or_default();
    name.eq_ignore_ascii_case(b"sec-websocket-accept") && value.trim_ascii() == ACCEPT.as_bytes()
}

/// First bytes of frames that are whole.
const TEXT: u8 = 0x81;
pub(super) const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;
const PING: u8 = 0x89;
const PONG: u8 = 0x8a;

/// Bit of the second byte of a frame: the payload is masked.
const MASKED: u8 = 0x80;
const LENGTH_IN_2: u8 = 126;
const LENGTH_IN_8: u8 = 127;

/// Most bytes in the payload of a control frame.
const CONTROL_BYTES_MAX: usize = 125;

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    fn conversation() -> Vec<u8> {
        let mut input = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             sec-websocket-ACCEPT: {ACCEPT}\r\n\r\n"
        )
        .into_bytes();
        input.extend_from_slice(b"\x82\x04news\x89\x02hi\x8a\x00\x81\x00");
        input.extend_from_slice(b"\x82\x7e\x00\x80");
        input.extend_from_slice(&[7; 128]);
        input.extend_from_slice(b"\x82\x7f\0\0\0\0\0\0\x01\0");
        input.extend_from_slice(&[8; 256]);
        input
    }

    #[test]
    fn frames_of_all_three_lengths_come_out_and_pings_are_answered() {
        let (heard, out, ready) = hear::<WebSocket>(&conversation());
        assert_eq!(heard, [&b"news"[..], b"", &[7; 128], &[8; 256]]);
        assert!(out.starts_with(b"GET / HTTP/1.1\r\n"));
        assert!(out.ends_with(b"\r\n\r\n\x8a\x82\0\0\0\0hi"));
        assert!(ready);
    }

    #[test]
    fn what_is_wrong_is_told_and_nothing_panics() {
        assert_eq!(
            error::<WebSocket>(b"HTTP/1.1 404 Not Found\r\n"),
            DialectError::Refused("HTTP/1.1 404 Not Found".to_owned())
        );
        let then = |frame: &[u8]| error::<WebSocket>(&[&conversation(), frame].concat());
        assert_eq!(
            then(b"\x88\x04\x03\xe9by"),
            DialectError::Refused("by".to_owned())
        );
        for bad in [&b"\x82\x84"[..], b"\x02\x00", b"\x80\x00", b"\x8b\x00"] {
            assert!(matches!(then(bad), DialectError::Malformed(_)), "{bad:?}");
        }
        assert!(matches!(
            then(b"\x82\x7f\xff\0\0\0\0\0\0\0"),
            DialectError::TooLarge { .. }
        ));
        assert!(matches!(
            error::<WebSocket>(b"HTTP/1.1 101 x\r\nsec-websocket-accept: no\r\n\r\n"),
            DialectError::Malformed(_)
        ));
        survives_anything::<WebSocket>(&conversation());
    }
}
