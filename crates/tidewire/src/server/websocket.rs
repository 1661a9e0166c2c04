//! The pages that may open a WebSocket of a server, and the layers of its connections.

use super::ServerBuilder;
use crate::address::Address;
use crate::transport::LayerFactory;
use crate::websocket::{Origins, WebSocketAcceptor};

impl ServerBuilder {
    /// Sets the origins whose pages may connect to `ws://` and `wss://` addresses, such as `https://example.com`; `*` allows
    /// all. Default: only pages of the server's own host, if that is an IP address or `localhost`. A peer that names no
    /// origin is no browser, and is accepted.
    #[must_use]
    pub fn websocket_origins(
        mut self,
        origins: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.origins = Origins::new(origins);
        self
    }

    /// Puts WebSocket beneath the layers of its addresses.
    pub(super) fn accept_websockets(&mut self) {
        let acceptor = WebSocketAcceptor::new(&self.addresses, &self.codec, &self.origins);
        if let Some(acceptor) = acceptor {
            let make = move |address: &Address| acceptor.layer(address);
            self.layers = Some(LayerFactory::beneath(self.layers.take(), make));
        }
    }
}
