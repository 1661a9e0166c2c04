//! ZMTP 3.0 and 3.1, the protocol of ZeroMQ, as a SUB socket with the NULL mechanism speaks it.
//!
//! ```text
//! both:   signature FF …8 bytes… 7F, version, mechanism, as-server, filler: 64 bytes
//! both:   command READY with metadata (Socket-Type)
//! client: 3.1: command SUBSCRIBE with the prefix; 3.0: message 01 and the prefix (empty: everything)
//! server: a message per publication, of one frame; 3.1: commands PING, answered by PONG with its context
//! frame:  flags (01 more, 02 long, 04 command), length of 1 or 8 bytes (big-endian), body
//! ```

use super::dialect::{Dialect, DialectError, Next, Role, refused, whole, within_limit};

#[derive(Debug, Default)]
pub(super) struct Zmtp {
    state: State,
    /// The minor version of the server.
    minor: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Greeting,
    Handshake,
    Open,
}

impl Dialect for Zmtp {
    fn greet(&mut self, _: Role, out: &mut Vec<u8>) {
        let from = out.len();
        out.extend_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, MAJOR, MINOR]);
        out.extend_from_slice(b"NULL");
        out.resize(from + GREETING_BYTES, 0);
    }

    #[inline]
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<Next<'a>, DialectError> {
        if self.state == State::Greeting {
            return self.next_greeting(bytes, out);
        }
        let (&flags, rest) = whole!(bytes.split_first());
        let (length, header_bytes) = if flags & LONG == 0 {
            (usize::from(*whole!(rest.first())), 2)
        } else {
            let length = whole!(rest.first_chunk());
            (within_limit(u64::from_be_bytes(*length))?, 9)
        };
        let consumed = header_bytes + length;
        let body = whole!(bytes.get(header_bytes..consumed));
        if flags & !LONG == 0 && self.state == State::Open {
            return Ok(Next::Message(body, consumed));
        }
        if flags & !LONG != COMMAND {
            return Err(DialectError::Malformed(
                "a frame that is neither a command nor a message of one part",
            ));
        }
        self.handle_command(body, out)?;
        Ok(Next::Other(consumed))
    }

    fn is_ready(&self) -> bool {
        self.state == State::Open
    }
}

impl Zmtp {
    #[cold]
    fn next_greeting<'a>(
        &mut self,
        bytes: &'a [u8],
        out: &mut Vec<u8>,
    ) -> Result<Next<'a>, DialectError> {
        let greeting = whole!(bytes.first_chunk::<GREETING_BYTES>());
        if greeting[0] != 0xff || greeting[9] != 0x7f || greeting[10] != MAJOR {
            return Err(DialectError::Malformed("a greeting that is not of ZMTP 3"));
        }
        let mechanism = &greeting[12..32];
        if !mechanism.starts_with(b"NULL\0") {
            let text = "it asks for security; use the mechanism NULL";
            return Err(DialectError::Refused(text.to_owned()));
        }
        self.minor = greeting[11];
        self.state = State::Handshake;
        push_command(b"READY", b"\x0bSocket-Type\0\0\0\x03SUB", out);
        Ok(Next::Other(GREETING_BYTES))
    }

    #[cold]
    fn handle_command(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<(), DialectError> {
        let (name, data) = match body.split_first() {
            Some((&length, rest)) if rest.len() >= usize::from(length) => {
                rest.split_at(usize::from(length))
            }
            _ => return Err(DialectError::Malformed("a command without its name")),
        };
        match name {
            b"READY" if self.state == State::Handshake => {
                self.state = State::Open;
                if self.minor == 0 {
                    // Flags, length, and the message that subscribes to everything.
                    out.extend_from_slice(&[0, 1, 1]);
                } else {
                    push_command(b"SUBSCRIBE", b"", out);
                }
                Ok(())
            }
            // The first two bytes say how long the other side waits; the rest is to be repeated.
            b"PING" if (2..=2 + CONTEXT_BYTES_MAX).contains(&data.len()) => {
                push_command(b"PONG", &data[2..], out);
                Ok(())
            }
            b"PONG" => Ok(()),
            b"ERROR" => Err(refused(data.get(1..).unwrap_or_default())),
            _ => Err(DialectError::Malformed("a command that no subscriber gets")),
        }
    }
}

/// Appends a command, whose body is short.
fn push_command(name: &[u8], data: &[u8], out: &mut Vec<u8>) {
    let body_bytes = 1 + name.len() + data.len();
    out.extend_from_slice(&[COMMAND, body_bytes as u8, name.len() as u8]);
    out.extend_from_slice(name);
    out.extend_from_slice(data);
}

const MAJOR: u8 = 3;
const MINOR: u8 = 1;

const GREETING_BYTES: usize = 64;

/// Flags of a frame.
const LONG: u8 = 0x02;
const COMMAND: u8 = 0x04;

/// Most bytes in the context of a ping.
const CONTEXT_BYTES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::super::dialect::tests::{error, hear, survives_anything};
    use super::*;

    fn greeting(minor: u8, mechanism: &[u8]) -> Vec<u8> {
        let mut greeting = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, minor];
        greeting.extend_from_slice(mechanism);
        greeting.resize(GREETING_BYTES, 0);
        greeting
    }

    fn conversation(minor: u8) -> Vec<u8> {
        let mut input = greeting(minor, b"NULL");
        input.extend_from_slice(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB");
        input.extend_from_slice(b"\x00\x04news\x04\x09\x04PING\0\x0ahi\x00\x00");
        input.extend_from_slice(b"\x02\0\0\0\0\0\0\x01\0");
        input.extend_from_slice(&[8; 256]);
        input
    }

    #[test]
    fn it_subscribes_as_the_version_of_the_server_wants_it() {
        for (minor, subscription) in [(0, &b"\0\x01\x01"[..]), (1, b"\x04\x0a\x09SUBSCRIBE")] {
            let (heard, out, ready) = hear::<Zmtp>(&conversation(minor));
            assert_eq!(heard, [&b"news"[..], b"", &[8; 256]]);
            let ready_command = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
            let expected = [
                greeting(1, b"NULL"),
                ready_command.to_vec(),
                subscription.to_vec(),
                b"\x04\x07\x04PONGhi".to_vec(),
            ];
            let mut expected = expected.concat();
            // We have no idea of the length that the first versions had there.
            expected[8] = 0;
            assert_eq!(out, expected, "minor version {minor}");
            assert!(ready);
        }
    }

    #[test]
    fn what_is_wrong_is_told_and_nothing_panics() {
        assert!(matches!(
            error::<Zmtp>(&greeting(0, b"CURVE")),
            DialectError::Refused(_)
        ));
        assert!(matches!(
            error::<Zmtp>(&[b'x'; 64]),
            DialectError::Malformed(_)
        ));
        let then = |frame: &[u8]| error::<Zmtp>(&[&conversation(1), frame].concat());
        assert_eq!(
            then(b"\x04\x09\x05ERROR\x02no"),
            DialectError::Refused("no".to_owned())
        );
        for bad in [
            &b"\x01\x00"[..],
            b"\x04\x00",
            b"\x04\x02\x05R",
            b"\x04\x06\x05READY",
            b"\x04\x05\x04PING",
        ] {
            assert!(matches!(then(bad), DialectError::Malformed(_)), "{bad:?}");
        }
        assert!(matches!(
            then(b"\x02\xff\0\0\0\0\0\0\0"),
            DialectError::TooLarge { .. }
        ));
        survives_anything::<Zmtp>(&conversation(1));
    }
}
