//! The HTTP of the handshake: where its head ends, and its headers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

use super::HeadLimits;
use crate::layer::{RECORD_BYTES_MAX, WebSocketFault};
use crate::text::escaped;

/// The headers of a request or an answer.
#[derive(Debug)]
pub(super) struct Headers<'a>(&'a [httparse::Header<'a>]);

impl<'a> Headers<'a> {
    pub(super) fn new(headers: &'a [httparse::Header<'a>]) -> Self {
        Self(headers)
    }

    /// The value of a header that may be there once.
    ///
    /// # Errors
    /// The header is there twice, or is not ASCII.
    pub(super) fn single(&self, name: &str) -> Result<Option<&'a str>, WebSocketFault> {
        let mut values = self.values(name);
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(value), None) => std::str::from_utf8(value)
                .map(|text| Some(text.trim()))
                .map_err(|_| WebSocketFault::BadRequest),
            (Some(_), Some(_)) => Err(WebSocketFault::BadRequest),
        }
    }

    /// Whether a list of tokens, perhaps spread over several headers, has this token.
    pub(super) fn has_token(&self, name: &str, token: &str) -> bool {
        self.tokens(name).any(|it| it.eq_ignore_ascii_case(token))
    }

    pub(super) fn tokens(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.values(name)
            .filter_map(|value| std::str::from_utf8(value).ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .filter(|token| !token.is_empty())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.values(name).next().is_some()
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.0
            .iter()
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value)
    }
}

/// Searches for the end of a head that comes in pieces. The next call gets the same bytes and more.
#[derive(Debug, Default)]
pub(super) struct HeadEnd {
    searched: usize,
}

impl HeadEnd {
    /// The length of the head with its empty line. `None` if it is not whole.
    ///
    /// # Errors
    /// It is too long.
    pub(super) fn find(
        &mut self,
        input: &[u8],
        limits: HeadLimits,
    ) -> Result<Option<usize>, WebSocketFault> {
        let bytes_max = limits.bytes_max.min(RECORD_BYTES_MAX);
        let input = &input[..input.len().min(bytes_max)];
        let start = self.searched.saturating_sub(END.len() - 1);
        let end = input[start..].windows(END.len()).position(|it| it == END);
        self.searched = input.len();
        match end {
            Some(end) => Ok(Some(start + end + END.len())),
            None if input.len() == bytes_max => Err(WebSocketFault::HeadersTooLong),
            None => Ok(None),
        }
    }
}

/// Checks the parser's result for a head: it has used every byte, or the head is refused as `bad`.
///
/// The parser also ends a head and a line at a line feed alone. This side would not read the bytes after such an end,
/// but a proxy might: as another header, or as a second request.
pub(super) fn check_whole(
    parsed: httparse::Result<usize>,
    head: &[u8],
    bad: WebSocketFault,
) -> Result<(), WebSocketFault> {
    match parsed {
        Ok(httparse::Status::Complete(bytes))
            if bytes == head.len() && has_whole_line_ends(head) =>
        {
            Ok(())
        }
        Err(httparse::Error::TooManyHeaders) => Err(WebSocketFault::HeadersTooLong),
        Ok(_) | Err(_) => Err(bad),
    }
}

/// Whether every carriage return and line feed is a part of a line end.
fn has_whole_line_ends(head: &[u8]) -> bool {
    let mut returned = false;
    head.iter().all(|byte| {
        let is_right = returned == (*byte == b'\n');
        returned = *byte == b'\r';
        is_right
    }) && !returned
}

/// The part of a request by which it was refused, for the log: escaped and short. `None` if the fault says everything.
pub(super) fn refused_part(
    fault: WebSocketFault,
    network: &[u8],
    limits: HeadLimits,
) -> Option<String> {
    let header = |name: &str| {
        let mut lines = network.split(|byte| *byte == b'\n').skip(1);
        lines.find_map(|line| {
            let at = line.iter().position(|byte| *byte == b':')?;
            let (found, value) = (&line[..at], &line[at + 1..]);
            found
                .eq_ignore_ascii_case(name.as_bytes())
                .then(|| value.trim_ascii())
        })
    };
    let shown = |bytes: &[u8]| escaped(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]);
    match fault {
        WebSocketFault::ForeignOrigin => header("origin").map(shown),
        WebSocketFault::OtherCodec => header("sec-websocket-protocol").map(shown),
        WebSocketFault::WrongVersion => header("sec-websocket-version").map(shown),
        WebSocketFault::OtherPath | WebSocketFault::NoSuchPage => {
            network.split(|byte| *byte == b' ').nth(1).map(shown)
        }
        WebSocketFault::HeadersTooLong => {
            let lines = || network.split(|byte| *byte == b'\n').skip(1);
            let largest = lines().max_by_key(|line| line.len())?;
            let name = largest
                .split(|byte| *byte == b':')
                .next()
                .unwrap_or_default();
            Some(format!(
                "{} bytes in {} headers have come, {} and {} are allowed; the largest is {} with {} bytes",
                network.len(),
                lines().filter(|line| line.contains(&b':')).count(),
                limits.bytes_max,
                limits.headers_max,
                shown(name),
                largest.len()
            ))
        }
        _ => None,
    }
}

/// The answer to a key, which shows that the server speaks WebSocket.
pub(super) fn accept_key(key: &str) -> String {
    let mut hash = Sha1::new();
    hash.update(key.as_bytes());
    hash.update(GUID);
    STANDARD.encode(hash.finalize())
}

/// Whether this is the base64 of 16 bytes.
pub(super) fn is_key(key: &str) -> bool {
    STANDARD
        .decode(key)
        .is_ok_and(|bytes| bytes.len() == KEY_BYTES)
}

pub(super) fn key_text(bytes: [u8; KEY_BYTES]) -> String {
    STANDARD.encode(bytes)
}

/// The empty line after the headers.
const END: &[u8] = b"\r\n\r\n";

/// RFC 6455, section 1.3.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

pub(super) const KEY_BYTES: usize = 16;

/// Bytes of a refused value that the log shows. An origin of a browser is shorter.
const SHOWN_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, section 1.3.
    #[test]
    fn the_key_of_the_rfc_has_its_answer() {
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        assert!(is_key(key));
        assert_eq!(accept_key(key), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        for bad in [
            "",
            "dGhlIHNhbXBsZSBub25j",
            "dGhlIHNhbXBsZSBub25jZQ",
            "????",
            "AAAA AAAAAAAAAAAAAAAAAA==",
        ] {
            assert!(!is_key(bad), "{bad}");
        }
    }

    #[test]
    fn the_end_of_a_head_is_found_wherever_it_is_cut() {
        let limits = HeadLimits::default();
        let head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nrest";
        for cut in 0..head.len() {
            let mut end = HeadEnd::default();
            let first = end.find(&head[..cut], limits).unwrap();
            assert_eq!(first, (cut >= 27).then_some(27), "{cut}");
            if first.is_none() {
                assert_eq!(end.find(head, limits).unwrap(), Some(27));
            }
        }
        let long = vec![b'a'; limits.bytes_max];
        let mut end = HeadEnd::default();
        assert_eq!(end.find(&long[1..], limits), Ok(None));
        assert_eq!(end.find(&long, limits), Err(WebSocketFault::HeadersTooLong));
    }
}
