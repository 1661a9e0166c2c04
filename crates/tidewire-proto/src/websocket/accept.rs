//! The server's side of the handshake.

use super::http::{HeadEnd, Headers, accept_key, check_whole, is_key, refused_part};
use super::reader::{Frames, Side};
use super::{HeadLimits, MESSAGE_BYTES_MAX, MessageKind, Origins, WebPage};
use crate::layer::{Forwarded, WebSocketFault};

/// A server's side of a handshake: its path, its codecs, and the pages that may connect.
#[derive(Clone, Debug)]
pub struct ServerTerms {
    path: String,
    /// The subprotocols, and the kind of messages of each. The first is that of clients that name none.
    protocols: Vec<(&'static str, MessageKind)>,
    origins: Origins,
    message_bytes_max: u64,
    head_limits: HeadLimits,
    /// Whether the addresses that proxies wrote into a request are kept.
    keeps_forwarded: bool,
    page: Option<WebPage>,
}

/// The answer of a server to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// The handshake is accepted. Frames follow.
    Accepted {
        /// The head of the answer.
        head: Vec<u8>,
        /// The place of the chosen codec among those of the terms.
        protocol: usize,
    },
    /// The request gets the page, and the connection ends.
    Page(Vec<u8>),
}

impl ServerTerms {
    /// A server at this path, such as `/` or `/chat`. `protocol` is the name of its codec, which is the subprotocol,
    /// and `kind` the kind of its messages. [`or_protocol`](Self::or_protocol) adds further codecs.
    #[must_use]
    pub fn new(path: impl Into<String>, protocol: &'static str, kind: MessageKind) -> Self {
        Self {
            path: path.into(),
            protocols: vec![(protocol, kind)],
            origins: Origins::default(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            head_limits: HeadLimits::default(),
            keeps_forwarded: false,
            page: None,
        }
    }

    /// Adds a codec for clients that name it as their subprotocol. A client that names several gets the first of its
    /// own list that this server has.
    ///
    /// # Panics
    /// The terms have 256 codecs already.
    #[must_use]
    pub fn or_protocol(mut self, protocol: &'static str, kind: MessageKind) -> Self {
        assert!(
            self.protocols.len() <= 255,
            "a layer keeps the place of its codec in a byte"
        );
        self.protocols.push((protocol, kind));
        self
    }

    /// Sets the page for requests to this path without WebSocket. Without a page they get status 426.
    #[must_use]
    pub fn page(mut self, page: WebPage) -> Self {
        self.page = Some(page);
        self
    }

    /// Keeps the addresses that proxies write into requests, for
    /// [`Layer::forwarded_client`](crate::layer::Layer::forwarded_client).
    #[must_use]
    pub fn keep_forwarded(mut self, keeps: bool) -> Self {
        self.keeps_forwarded = keeps;
        self
    }

    /// Sets the origins of pages that may connect. Default: those of the host itself, see [`Origins::allow`].
    #[must_use]
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Sets the longest message that a client may send, in bytes. Default [`MESSAGE_BYTES_MAX`].
    #[must_use]
    pub fn message_bytes_max(mut self, bytes: u64) -> Self {
        self.message_bytes_max = bytes;
        self
    }

    /// Sets the limits of the request.
    #[must_use]
    pub fn head_limits(mut self, limits: HeadLimits) -> Self {
        self.head_limits = limits;
        self
    }

    /// The kind of the messages of a codec.
    pub(super) fn kind(&self, protocol: usize) -> MessageKind {
        self.protocols[protocol].1
    }

    /// The frames of a connection, once its request is accepted.
    pub(super) fn frames(&self) -> Frames {
        Frames::new(Side::Server, self.message_bytes_max)
    }

    /// Takes the head of a request. Returns the number of its bytes, the answer, and the addresses that proxies wrote;
    /// `None` until the head is complete.
    pub(super) fn take(
        &self,
        network: &[u8],
        end: &mut HeadEnd,
    ) -> Result<Option<(usize, Answer, Forwarded)>, WebSocketFault> {
        let Some(bytes) = end.find(network, self.head_limits)? else {
            return Ok(None);
        };
        let head = &network[..bytes];
        let forwarded = match self.keeps_forwarded {
            true => forwarded(head, self.head_limits.headers_max)?,
            false => Forwarded::default(),
        };
        Ok(Some((bytes, self.answer(head)?, forwarded)))
    }

    /// The part of a request that was refused, for the log.
    pub(super) fn refused_part(&self, fault: WebSocketFault, network: &[u8]) -> Option<Box<str>> {
        refused_part(fault, network, self.head_limits).map(Into::into)
    }

    /// Judges the head of a request, with its empty line. Returns the answer, which accepts it or is the page.
    ///
    /// # Errors
    /// The request is refused, with the [status](WebSocketFault::http_status) of the fault.
    pub fn answer(&self, head: &[u8]) -> Result<Answer, WebSocketFault> {
        let mut headers = vec![httparse::EMPTY_HEADER; self.head_limits.headers_max];
        let mut request = httparse::Request::new(&mut headers);
        check_whole(request.parse(head), head, WebSocketFault::BadRequest)?;
        let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
        let is_http_1_1 = request.version == Some(1);
        let headers = Headers::new(request.headers);
        // The path has one spelling, so nothing is resolved.
        let path = target.split_once('?').map_or(target, |(path, _)| path);
        if let Some(page) = &self.page
            && !asks_for_websocket(&headers)
        {
            check_page(&headers, method)?;
            return match path == self.path {
                true => Ok(Answer::Page(page.answer(method == "GET"))),
                false => Err(WebSocketFault::NoSuchPage),
            };
        }
        let key = check_upgrade(&headers, method, is_http_1_1)?;
        if path != self.path {
            return Err(WebSocketFault::OtherPath);
        }
        let host = headers.single("host")?.ok_or(WebSocketFault::BadRequest)?;
        if let Some(origin) = headers.single("origin")?
            && !self.origins.allow(origin, host)
        {
            return Err(WebSocketFault::ForeignOrigin);
        }
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n",
            accept_key(key)
        );
        let mut protocol = 0;
        if headers.has("sec-websocket-protocol") {
            let mut wanted = headers.tokens("sec-websocket-protocol");
            let place_of = |name| self.protocols.iter().position(|(known, _)| *known == name);
            protocol = wanted
                .find_map(place_of)
                .ok_or(WebSocketFault::OtherCodec)?;
            answer.push_str("Sec-WebSocket-Protocol: ");
            answer.push_str(self.protocols[protocol].0);
            answer.push_str("\r\n");
        }
        answer.push_str("\r\n");
        let head = answer.into_bytes();
        Ok(Answer::Accepted { head, protocol })
    }
}

/// The addresses that proxies wrote into a request. The handshake refuses a request that cannot be parsed.
fn forwarded(head: &[u8], headers_max: usize) -> Result<Forwarded, WebSocketFault> {
    let mut headers = vec![httparse::EMPTY_HEADER; headers_max];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(_) => Forwarded::read(request.headers.iter().map(|it| (it.name, it.value))),
        Err(_) => Ok(Forwarded::default()),
    }
}

fn asks_for_websocket(headers: &Headers<'_>) -> bool {
    headers.has_token("upgrade", "websocket") && headers.has_token("connection", "upgrade")
}

fn check_page(headers: &Headers<'_>, method: &str) -> Result<(), WebSocketFault> {
    if !matches!(method, "GET" | "HEAD") {
        return Err(WebSocketFault::BadPageMethod);
    }
    match has_body(headers)? {
        true => Err(WebSocketFault::BadRequest),
        false => Ok(()),
    }
}

/// A proxy and this server could disagree where a request with a body ends.
fn has_body(headers: &Headers<'_>) -> Result<bool, WebSocketFault> {
    let length = headers.single("content-length")?;
    Ok(headers.has("transfer-encoding") || length.is_some_and(|bytes| bytes != "0"))
}

/// Checks that a request asks for WebSocket. Returns its key.
fn check_upgrade<'a>(
    headers: &Headers<'a>,
    method: &str,
    is_http_1_1: bool,
) -> Result<&'a str, WebSocketFault> {
    if !asks_for_websocket(headers) {
        return Err(WebSocketFault::NotWebSocket);
    }
    if method != "GET" {
        return Err(WebSocketFault::BadMethod);
    }
    if !is_http_1_1 || has_body(headers)? {
        return Err(WebSocketFault::BadRequest);
    }
    if headers.single("sec-websocket-version")? != Some("13") {
        return Err(WebSocketFault::WrongVersion);
    }
    let key = headers.single("sec-websocket-key")?;
    key.filter(|key| is_key(key)).ok_or(WebSocketFault::BadKey)
}

/// The answer to a request that is refused. The answer repeats nothing of the request. An answer to `HEAD` has no body.
pub(super) fn refusal(fault: WebSocketFault, to_head: bool) -> Vec<u8> {
    let status = fault.http_status().unwrap_or(400);
    let reason = match status {
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        426 => "Upgrade Required",
        431 => "Request Header Fields Too Large",
        _ => "Bad Request",
    };
    let more = match fault {
        WebSocketFault::BadMethod => "Allow: GET\r\n",
        WebSocketFault::BadPageMethod => "Allow: GET, HEAD\r\n",
        WebSocketFault::NotWebSocket | WebSocketFault::WrongVersion => {
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        }
        _ => "",
    };
    let connection = if status == 426 {
        "Upgrade, close"
    } else {
        "close"
    };
    let body = match fault {
        WebSocketFault::NotWebSocket => {
            "This is a WebSocket server of Tidewire: connect to ws:// or wss:// with this host, port and path, for \
             example by `tidewire chat ws://HOST:PORT/PATH` or `new WebSocket(url, \"tw1\")`.\n"
                .to_owned()
        }
        fault => format!("{fault}\n"),
    };
    let bytes = body.len();
    let body = if to_head { "" } else { &body };
    format!(
        "HTTP/1.1 {status} {reason}\r\n{more}Connection: {connection}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         X-Content-Type-Options: nosniff\r\nContent-Length: {bytes}\r\n\r\n{body}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests;
