//! The content of requests, and the check of replies.

use anyhow::{Result, ensure};

use crate::{Work, not_offered};

/// The request and reply of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// `echo`: the reply repeats the payload. Its first 8 bytes are a number, little-endian.
    Echo {
        /// Bytes of the payload.
        bytes: usize,
    },
    /// `rpc`: the request has two i32, little-endian, and the reply their sum.
    Add,
}

impl Exchange {
    /// The exchange that `work` asks for.
    ///
    /// # Errors
    /// The work is neither, or its payload has no room for a number.
    pub fn of(work: &Work) -> Result<Self> {
        match work.suite.as_str() {
            "echo" => {
                let bytes = work.message_bytes;
                ensure!(
                    bytes >= NUMBER_BYTES,
                    "{bytes} bytes have no room for a number of 8"
                );
                Ok(Self::Echo { bytes })
            }
            "rpc" => Ok(Self::Add),
            _ => Err(not_offered(work)),
        }
    }

    /// Bytes of a request.
    #[must_use]
    pub fn request_bytes(self) -> usize {
        match self {
            Self::Echo { bytes } => bytes,
            Self::Add => ADD_BYTES,
        }
    }

    /// Writes request `number` into `request`, which has [`Exchange::request_bytes`].
    pub fn write_request(self, number: u64, request: &mut [u8]) {
        match self {
            Self::Echo { .. } => request[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes()),
            Self::Add => {
                let (left, right) = terms(number);
                request[..4].copy_from_slice(&left.to_le_bytes());
                request[4..ADD_BYTES].copy_from_slice(&right.to_le_bytes());
            }
        }
    }

    /// Whether this is the reply to request `number`.
    #[must_use]
    pub fn is_reply(self, number: u64, reply: &[u8]) -> bool {
        match self {
            Self::Echo { bytes } => {
                reply.len() == bytes && reply[..NUMBER_BYTES] == number.to_le_bytes()
            }
            Self::Add => {
                let (left, right) = terms(number);
                reply == left.wrapping_add(right).to_le_bytes()
            }
        }
    }

    /// Server: replaces a request by its reply. A malformed request becomes empty, which no driver accepts.
    pub fn answer(self, message: &mut Vec<u8>) {
        if self == Self::Add {
            let sum = <[u8; ADD_BYTES]>::try_from(message.as_slice()).map(add);
            message.clear();
            message.extend_from_slice(sum.as_ref().map_or(&[], <[u8; 4]>::as_slice));
        }
    }
}

/// The two terms that request `number` adds. Libraries with typed calls encode them in their own way.
#[must_use]
pub fn terms(number: u64) -> (i32, i32) {
    (number as i32, (number >> 7) as i32)
}

/// The reply to a request of `add`.
#[must_use]
pub fn add(request: [u8; ADD_BYTES]) -> [u8; 4] {
    let [a, b, c, d, e, f, g, h] = request;
    let left = i32::from_le_bytes([a, b, c, d]);
    left.wrapping_add(i32::from_le_bytes([e, f, g, h]))
        .to_le_bytes()
}

/// Bytes of the number in an echoed payload.
const NUMBER_BYTES: usize = 8;

/// Bytes of a request of `add`.
const ADD_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn of(suite: &str, message_bytes: usize) -> Result<Exchange> {
        Exchange::of(&Work {
            suite: suite.to_owned(),
            message_bytes,
            ..Work::default()
        })
    }

    #[test]
    fn only_the_right_reply_is_taken() {
        for exchange in [of("echo", 32).unwrap(), of("rpc", 0).unwrap()] {
            let mut message = vec![0x5a; exchange.request_bytes()];
            exchange.write_request(7_000, &mut message);
            exchange.answer(&mut message);
            assert!(exchange.is_reply(7_000, &message), "{exchange:?}");
            assert!(!exchange.is_reply(7_001, &message), "{exchange:?}");
            message.pop();
            assert!(!exchange.is_reply(7_000, &message), "{exchange:?}");
        }
    }

    #[test]
    fn a_request_that_is_none_gets_no_sum() {
        let mut message = vec![1; 9];
        Exchange::Add.answer(&mut message);
        assert!(message.is_empty());
    }

    #[test]
    fn work_without_room_for_a_number_is_refused() {
        assert!(of("echo", 7).is_err() && of("ingest", 32).is_err());
    }
}
