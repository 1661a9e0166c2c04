//! The pages that may open a WebSocket of a server, and the layers of its connections.

use tidewire_proto::websocket::{HeadLimits, Origins};

use super::ServerBuilder;
use super::codecs::AddressCodecs;
use crate::address::Address;
use crate::transport::LayerFactory;
use crate::websocket::{WebPage, WebSocketAcceptor};
use tidewire_proto::setting::SettingError;

impl ServerBuilder {
    /// Sets the origins whose pages may connect to `ws://` and `wss://` addresses, such as `https://example.com`; `*`
    /// allows all, and `https://*.example.com` all hosts below that name. Pages of the server's own host may connect
    /// anyway, if that is an IP address or `localhost`, and so may pages of this machine at addresses of this machine.
    /// A peer that names no origin is no browser, and is accepted.
    ///
    /// # Errors
    /// A text can be no origin, so that it would allow nothing.
    pub fn websocket_origins(
        mut self,
        origins: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Self, SettingError> {
        self.origins = Origins::new(origins)?;
        Ok(self)
    }

    /// Serves this page at the path of each `ws://` and `wss://` address, to requests that do not ask for WebSocket. So
    /// a page and its server have one address, and the page may connect without [`Self::websocket_origins`] if the host
    /// is an IP address or `localhost`. Default: such requests get status 426, which says how to connect.
    ///
    /// A request for the page is bounded like a handshake: its headers, its time, and the memory that its address
    /// holds. The counter [`closed_by("page_served")`](crate::metrics::Metrics::closed_by) counts the pages.
    ///
    /// ```
    /// use tidewire::websocket::WebPage;
    /// use tidewire::{Chat, Server};
    ///
    /// let page = WebPage::html(&b"<!doctype html><title>my chat</title>"[..], "default-src 'self'")?;
    /// let server = Server::builder()
    ///     .listen("ws://127.0.0.1:0/")?
    ///     .websocket_page(page)
    ///     .start_one(Chat::new())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn websocket_page(mut self, page: WebPage) -> Self {
        self.page = Some(page);
        self
    }

    /// Puts WebSocket beneath the layers of its addresses.
    pub(super) fn accept_websockets(&mut self, codecs: &AddressCodecs) {
        let head_limits = HeadLimits {
            bytes_max: self.limits.handshakes.websocket_head_bytes_max(),
            headers_max: self.limits.handshakes.websocket_headers_max(),
        };
        let acceptor = WebSocketAcceptor::new(
            &self.addresses,
            |address| codecs.at(address),
            &self.origins,
            head_limits,
            self.page.as_ref(),
            !self.forwarders.is_empty(),
        );
        if let Some(acceptor) = acceptor {
            let make = move |address: &Address| acceptor.layer(address);
            self.layers = Some(LayerFactory::beneath(self.layers.take(), make));
        }
    }
}
