//! The client's side of the handshake.

use super::http::{Headers, KEY_BYTES, accept_key, check_whole, key_text};
use super::reader::{Frames, Side};
use super::{HeadLimits, MESSAGE_BYTES_MAX, Masks, MessageKind};
use crate::layer::WebSocketFault;

/// A client's side of a handshake: the host, the path, and the codec.
#[derive(Clone, Debug)]
pub struct ClientTerms {
    host: String,
    path: String,
    protocol: &'static str,
    kind: MessageKind,
    message_bytes_max: u64,
}

impl ClientTerms {
    /// A client of this host, which is `NAME:PORT`, and path. `protocol` is the name of its codec, which is the
    /// subprotocol, and `kind` the kind of its messages. Returns `None` if host or path have characters that would end
    /// a line of the request.
    #[must_use]
    pub fn new(
        host: impl Into<String>,
        path: impl Into<String>,
        protocol: &'static str,
        kind: MessageKind,
    ) -> Option<Self> {
        let terms = Self {
            host: host.into(),
            path: path.into(),
            protocol,
            kind,
            message_bytes_max: MESSAGE_BYTES_MAX,
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let is_valid =
            is_plain(&terms.host) && is_plain(&terms.path) && terms.path.starts_with('/');
        is_valid.then_some(terms)
    }

    /// Sets the longest message that the server may send, in bytes. Default [`MESSAGE_BYTES_MAX`].
    #[must_use]
    pub fn message_bytes_max(mut self, bytes: u64) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    pub(super) fn kind(&self) -> MessageKind {
        self.kind
    }

    /// The frames of a connection, once the server has accepted the request.
    pub(super) fn frames(&self) -> Frames {
        Frames::new(Side::Client, self.message_bytes_max)
    }

    /// Makes the request. Returns it with the answer to its key, which [`Self::check`] expects.
    #[must_use]
    pub fn request(&self, masks: &mut Masks) -> (Vec<u8>, String) {
        let mut key = [0; KEY_BYTES];
        for part in key.chunks_mut(8) {
            part.copy_from_slice(&masks.next_bytes());
        }
        let key = key_text(key);
        let Self {
            host,
            path,
            protocol,
            ..
        } = self;
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        (request.into_bytes(), accept_key(&key))
    }

    /// Judges the head of the server's answer, with its empty line.
    ///
    /// # Errors
    /// The server refused, or did not understand.
    pub fn check(&self, head: &[u8], expected_key: &str) -> Result<(), WebSocketFault> {
        let mut headers = vec![httparse::EMPTY_HEADER; HeadLimits::default().headers_max];
        let mut answer = httparse::Response::new(&mut headers);
        check_whole(answer.parse(head), head, WebSocketFault::BadAnswer)?;
        match answer.code {
            Some(101) => {}
            Some(code) => return Err(WebSocketFault::Status(code)),
            None => return Err(WebSocketFault::BadAnswer),
        }
        let headers = Headers::new(answer.headers);
        let single = |name| headers.single(name).map_err(|_| WebSocketFault::BadAnswer);
        let is_upgraded = headers.has_token("upgrade", "websocket")
            && headers.has_token("connection", "upgrade")
            && single("sec-websocket-accept")? == Some(expected_key);
        if !is_upgraded {
            return Err(WebSocketFault::BadAnswer);
        }
        if headers.has("sec-websocket-extensions") {
            return Err(WebSocketFault::UnofferedExtension);
        }
        match single("sec-websocket-protocol")? {
            Some(protocol) if protocol != self.protocol => Err(WebSocketFault::OtherCodec),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> ClientTerms {
        ClientTerms::new("h:1", "/chat", "tw1", MessageKind::Binary).unwrap()
    }

    fn answer(key: &str, more: &str) -> Vec<u8> {
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\n\
             Sec-WebSocket-Accept: {key}\r\n{more}\r\n"
        )
        .into_bytes()
    }

    #[test]
    fn an_answer_must_be_to_this_request() {
        let (request, key) = terms().request(&mut Masks::new([1, 2]));
        assert!(request.starts_with(b"GET /chat HTTP/1.1\r\nHost: h:1\r\n"));
        let check = |head: &[u8]| terms().check(head, &key);
        assert_eq!(check(&answer(&key, "")), Ok(()));
        assert_eq!(
            check(&answer(&key, "Sec-WebSocket-Protocol: tw1\r\n")),
            Ok(())
        );
        for (head, fault) in [
            (
                answer("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", ""),
                WebSocketFault::BadAnswer,
            ),
            (
                answer(&key, "Sec-WebSocket-Accept: x\r\n"),
                WebSocketFault::BadAnswer,
            ),
            (
                answer(&key, "Sec-WebSocket-Protocol: lines\r\n"),
                WebSocketFault::OtherCodec,
            ),
            (
                answer(&key, "Sec-WebSocket-Extensions: permessage-deflate\r\n"),
                WebSocketFault::UnofferedExtension,
            ),
            (
                b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec(),
                WebSocketFault::Status(404),
            ),
            (
                b"HTTP/1.1 101 x\r\n\r\n".to_vec(),
                WebSocketFault::BadAnswer,
            ),
            (b"hello\r\n\r\n".to_vec(), WebSocketFault::BadAnswer),
            // An end that only this side would see.
            (answer(&key, "\n"), WebSocketFault::BadAnswer),
            (answer(&key, "X: a\nY: b\r\n"), WebSocketFault::BadAnswer),
        ] {
            assert_eq!(
                check(&head),
                Err(fault),
                "{}",
                String::from_utf8_lossy(&head)
            );
        }
    }

    /// A host or path with a line end would add headers to the request.
    #[test]
    fn header_injection_by_the_address_is_impossible() {
        for (host, path) in [
            ("h:1", "/a\r\nCookie: x"),
            ("h:1\r\nCookie: x", "/"),
            ("h:1", "/a b"),
            ("h:1", "a"),
            ("h:1", "/\u{e4}"),
        ] {
            assert!(ClientTerms::new(host, path, "tw1", MessageKind::Binary).is_none());
        }
    }
}
