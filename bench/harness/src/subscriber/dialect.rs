//! The dialects of the subscriber.
//!
//! A dialect is the state of one connection: what to say first, how to take apart what comes, and whether the
//! subscription holds. Each is written from the public specification of its protocol and knows no more of it than a
//! subscriber, or a publisher where a broker stands between, needs. Nothing that a server sends may make it panic, and
//! of a frame or line that is not yet whole no more than [`FRAME_BYTES_MAX`] bytes and its head are kept. Answers that
//! the server does not read are bounded by the connection, which ends.

use std::io;

use thiserror::Error;

/// One protocol, on one connection.
pub(super) trait Dialect: Default {
    /// How a publication is written to a broker; absent where the server publishes by itself.
    const PUBLISH: Option<Publish> = None;

    /// Appends what a connection says first.
    fn greet(&mut self, role: Role, out: &mut Vec<u8>);

    /// Decodes the frame at the front of `bytes`, and appends the answer to the server, if one is due, to `out`.
    fn next<'a>(&mut self, bytes: &'a [u8], out: &mut Vec<u8>) -> Result<Next<'a>, DialectError>;

    /// Whether the server is known to have taken the subscription, or the publisher's greeting.
    fn is_ready(&self) -> bool;
}

/// Appends a publication with this payload.
pub(super) type Publish = fn(&[u8], &mut Vec<u8>);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It hears everything that is published to [`TOPIC`].
    Subscriber,
    /// It publishes to it.
    Publisher,
}

/// The item at the front of the input, with the bytes that it took up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    /// The payload of a publication.
    Message(&'a [u8], usize),
    /// Something else, which has been dealt with.
    Other(usize),
    /// Too little to tell.
    Incomplete,
}

/// Returns from the caller if an item is not whole yet, so that it waits for more.
macro_rules! whole {
    ($part:expr) => {
        match $part {
            Some(part) => part,
            None => return Ok(Next::Incomplete),
        }
    };
}
pub(super) use whole;

/// A server does not speak the dialect, or refuses.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum DialectError {
    /// The bytes cannot be of this protocol.
    #[error("the server does not speak as expected: {0}")]
    Malformed(&'static str),
    /// The next item would be larger than any publication of the benchmark.
    #[error(
        "the server announces {bytes} bytes at once, more than the {FRAME_BYTES_MAX} that are taken"
    )]
    TooLarge { bytes: u64 },
    /// The server asks, as with pings, and does not read the answers.
    #[error("the server asks for answers and does not read them")]
    Deaf,
    /// The server said no.
    #[error("the server refuses: {0}")]
    Refused(String),
}

impl DialectError {
    /// The error of a dialect that is in this one, if there is one.
    pub(super) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<DialectError> for io::Error {
    fn from(error: DialectError) -> Self {
        Self::other(error)
    }
}

/// The subject, channel or topic of all publications.
pub(crate) const TOPIC: &str = "t";

/// Largest frame or line that is taken, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 64 * 1024;

/// The line at the front without its CR LF, and how many bytes it takes up; nothing if it has not ended yet.
pub(super) fn line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, DialectError> {
    let searched = &bytes[..bytes.len().min(FRAME_BYTES_MAX)];
    let (end, bytes_now) = (searched.iter().position(|&byte| byte == b'\n'), bytes.len());
    match end.map(|end| (bytes[..end].strip_suffix(b"\r"), end + 1)) {
        Some((Some(line), consumed)) => Ok(Some((line, consumed))),
        Some((None, _)) => Err(DialectError::Malformed(
            "a line that does not end with CR LF",
        )),
        None if bytes_now < FRAME_BYTES_MAX => Ok(None),
        None => Err(DialectError::TooLarge {
            bytes: bytes_now as u64,
        }),
    }
}

/// A decimal number without a sign that is small enough for a frame.
pub(super) fn small_number(digits: &[u8]) -> Result<usize, DialectError> {
    let text = str::from_utf8(digits).ok();
    let number: u64 = text
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok())
        .ok_or(DialectError::Malformed("a length that is no number"))?;
    within_limit(number)
}

/// A length, if it is small enough for a frame.
pub(super) fn within_limit(bytes: u64) -> Result<usize, DialectError> {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= FRAME_BYTES_MAX => Ok(bytes),
        _ => Err(DialectError::TooLarge { bytes }),
    }
}

/// A refusal in the server's words.
pub(super) fn refused(text: &[u8]) -> DialectError {
    DialectError::Refused(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Feeds `input` in one piece, and byte by byte; the publications and the answers must be the same.
    pub(in super::super) fn hear<D: Dialect>(input: &[u8]) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
        let whole = feed::<D>(input, input.len().max(1)).unwrap();
        assert_eq!(feed::<D>(input, 1).unwrap(), whole);
        whole
    }

    /// The first error in `input`.
    pub(in super::super) fn error<D: Dialect>(input: &[u8]) -> DialectError {
        feed::<D>(input, 1).unwrap_err()
    }

    /// Random bytes, and `valid` with random changes, must never make the dialect panic or stand still.
    pub(in super::super) fn survives_anything<D: Dialect>(valid: &[u8]) {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..2_000 {
            let mut input = valid.to_vec();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..input.len());
                match random.u8(..3) {
                    0 => input[at] = random.u8(..),
                    1 => input.truncate(at + 1),
                    _ => input.insert(at, random.u8(..)),
                }
            }
            // Whether it is refused is its affair.
            let _ = feed::<D>(&input, random.usize(1..=input.len()));
            let noise: Vec<u8> = (0..random.usize(..200)).map(|_| random.u8(..)).collect();
            let _ = feed::<D>(&noise, 7);
        }
    }

    type Heard = (Vec<Vec<u8>>, Vec<u8>, bool);

    fn feed<D: Dialect>(input: &[u8], piece_bytes: usize) -> Result<Heard, DialectError> {
        let mut dialect = D::default();
        let (mut heard, mut out, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        dialect.greet(Role::Subscriber, &mut out);
        for piece in input.chunks(piece_bytes) {
            kept.extend_from_slice(piece);
            let mut at = 0;
            loop {
                match dialect.next(&kept[at..], &mut out)? {
                    Next::Message(payload, consumed) => {
                        assert!(payload.len() <= consumed && consumed <= kept.len() - at);
                        heard.push(payload.to_vec());
                        at += consumed;
                    }
                    Next::Other(consumed) => {
                        assert!(0 < consumed && consumed <= kept.len() - at);
                        at += consumed;
                    }
                    Next::Incomplete => break,
                }
            }
            kept.drain(..at);
        }
        Ok((heard, out, dialect.is_ready()))
    }

    #[test]
    fn lines_end_with_both_characters_and_are_not_endless() {
        assert_eq!(line(b"a b\r\nc").unwrap(), Some((&b"a b"[..], 5)));
        assert_eq!(line(b"a b\r").unwrap(), None);
        assert!(matches!(line(b"a\n"), Err(DialectError::Malformed(_))));
        let endless = vec![b'x'; FRAME_BYTES_MAX];
        assert!(matches!(line(&endless), Err(DialectError::TooLarge { .. })));
    }

    #[test]
    fn numbers_are_digits_within_the_limit() {
        assert_eq!(small_number(b"32").unwrap(), 32);
        for bad in [&b""[..], b"-1", b"+1", b"3x", b"99999999999999999999"] {
            assert!(matches!(small_number(bad), Err(DialectError::Malformed(_))));
        }
        assert_eq!(
            small_number(b"65537").unwrap_err(),
            DialectError::TooLarge { bytes: 65_537 }
        );
    }
}
