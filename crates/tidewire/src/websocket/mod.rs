//! WebSocket for `ws://` and `wss://` addresses, so that browsers reach a server.
//!
//! The subprotocol is the codec's name: a page opens `new WebSocket("ws://HOST:PORT/PATH", "tw1")`. A peer that names
//! no subprotocol is accepted. A peer that names only others is refused. At `ws://HOST:PORT/PATH?codec=json&codec=tw1`
//! a peer chooses one of these codecs, and one that names none gets the first. The bytes of binary messages are those
//! of a connection over `tcp://`, and the boundaries of messages have no meaning. Codecs of text
//! ([`Format::is_text`](crate::codec::Format::is_text)) send text messages of whole lines, and a received message
//! without a line end gets one.
//!
//! A server has one path for each address, and answers everything else with an HTTP status. Pages of other origins are
//! refused, unless [`ServerBuilder::websocket_origins`](crate::ServerBuilder::websocket_origins) names them.
//!
//! ```
//! use tidewire::{Client, Context, Message, Server};
//!
//! let server = Server::builder()
//!     .listen("ws://127.0.0.1:0/echo")?
//!     .websocket_origins(["https://app.example"])?
//!     .start_one(|cx: &mut Context<'_>, message: Message<'_>| cx.reply(message.payload))?;
//!
//! let client = Client::connect(&server.addresses()[0].to_string()).wait()?;
//! assert_eq!(client.request(b"hello").wait()?.payload(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `wss://` is this over TLS, with the settings of [`tls`](crate::tls). The module
//! [`tidewire_proto::websocket`] has the layer itself.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tidewire_proto::codec::{AnyCodec, Codec};
use tidewire_proto::layer::Layer;
use tidewire_proto::websocket::{
    ClientTerms, HeadLimits, Masks, MessageKind, Origins, ServerTerms, WebSocketLayer,
};

pub use tidewire_proto::layer::WebSocketFault;
pub use tidewire_proto::websocket::{PAGE_BYTES_MAX, WebPage};

use crate::address::{Address, WebSocketEndpoint};

/// Makes the layers of the WebSockets that a server accepts.
#[derive(Debug)]
pub(crate) struct WebSocketAcceptor {
    /// The terms of each address.
    terms: Vec<(Address, Arc<ServerTerms>)>,
}

impl WebSocketAcceptor {
    /// Returns `None` if no address is one of WebSocket.
    pub(crate) fn new<'a, C: Iterator<Item = &'a AnyCodec>>(
        addresses: &[Address],
        codecs_of: impl Fn(&Address) -> C,
        origins: &Origins,
        head_limits: HeadLimits,
        page: Option<&WebPage>,
        keeps_forwarded: bool,
    ) -> Option<Self> {
        let terms = addresses.iter().filter_map(|address| {
            let (path, mut codecs) = (address.websocket_path()?, codecs_of(address));
            let first = codecs.next()?;
            let terms = ServerTerms::new(path, first.name(), kind_of(first));
            let terms = codecs.fold(terms, |terms, codec| {
                terms.or_protocol(codec.name(), kind_of(codec))
            });
            let terms = terms
                .origins(origins.clone())
                .head_limits(head_limits)
                .keep_forwarded(keeps_forwarded);
            let terms = match page {
                Some(page) => terms.page(page.clone()),
                None => terms,
            };
            Some((address.clone(), Arc::new(terms)))
        });
        let terms: Vec<_> = terms.collect();
        (!terms.is_empty()).then_some(Self { terms })
    }

    /// Makes the layer of an accepted connection, if its address is of WebSocket.
    pub(crate) fn layer(&self, address: &Address) -> Option<Box<dyn Layer>> {
        let (_, terms) = self.terms.iter().find(|(known, _)| known == address)?;
        Some(Box::new(WebSocketLayer::accepting(Arc::clone(terms))))
    }
}

/// Makes the layers of a client's connections to one server.
#[derive(Debug)]
pub(crate) struct WebSocketConnector {
    terms: Arc<ClientTerms>,
    /// Random keys from the system. Each connection has its own masks.
    random: RandomState,
}

impl WebSocketConnector {
    /// Returns `None` if the address is not one of WebSocket.
    pub(crate) fn new(address: &Address, codec: &AnyCodec) -> Option<Self> {
        let (host, path) = (address.websocket_host()?, address.websocket_path()?);
        let terms = ClientTerms::new(host, path, codec.name(), kind_of(codec))?;
        Some(Self {
            terms: Arc::new(terms),
            random: RandomState::new(),
        })
    }

    /// Returns a connector for an address without a host name. The request names the IP address.
    pub(crate) fn of_endpoint(endpoint: &WebSocketEndpoint, codec: &AnyCodec) -> Self {
        let (host, path) = (endpoint.address().to_string(), endpoint.path());
        let terms = ClientTerms::new(host, path, codec.name(), kind_of(codec));
        Self {
            terms: Arc::new(
                terms.expect("an IP address and a valid path have only plain characters"),
            ),
            random: RandomState::new(),
        }
    }

    pub(crate) fn layer(&self) -> Box<dyn Layer> {
        let connection = RandomState::new();
        let seed = [
            self.random.hash_one(connection.hash_one(0)),
            connection.hash_one(1),
        ];
        let terms = Arc::clone(&self.terms);
        Box::new(WebSocketLayer::connecting(terms, Masks::new(seed)))
    }
}

fn kind_of(codec: &AnyCodec) -> MessageKind {
    match codec.format().is_text() {
        true => MessageKind::Text,
        false => MessageKind::Binary,
    }
}
