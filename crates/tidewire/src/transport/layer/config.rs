//! Makes the layers of new connections.

use std::sync::Arc;

use tidewire_io::socket::Stream;
use tidewire_proto::codec::AnyCodec;
use tidewire_proto::layer::{FailedLayer, Layer, LayerError, Stack};

use super::LayeredStream;
use crate::address::Address;
use crate::tls::{Connector, protocol};
use crate::transport::AnyTransport;
use crate::websocket::WebSocketConnector;

/// Makes the layers of one connection, for any address of a server or client. The first layer is next to the network.
#[derive(Clone)]
pub(crate) struct LayerFactory(Arc<MakeLayers>);

type MakeLayers = dyn Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync;

/// Makes the layers of each new connection of one address.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    factory: LayerFactory,
    address: Address,
}

impl LayerFactory {
    pub(crate) fn new(
        make: impl Fn(&Address) -> Vec<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    /// Puts a layer beneath those of `upper`, at addresses for which `make` returns one.
    pub(crate) fn beneath(
        upper: Option<Self>,
        make: impl Fn(&Address) -> Option<Box<dyn Layer>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |address| {
            let upper = upper.as_ref().map(|factory| (factory.0)(address));
            let layers = make(address).into_iter();
            layers.chain(upper.unwrap_or_default()).collect()
        })
    }

    /// The layers of connections of this address. `None` if it has none.
    pub(crate) fn layers(&self, address: &Address) -> Option<Layers> {
        let has_layers = !(self.0)(address).is_empty();
        has_layers.then(|| Layers {
            factory: self.clone(),
            address: address.clone(),
        })
    }
}

impl Layers {
    /// The layers of connections to an address: `upper`, over those that the address asks for, which are WebSocket and
    /// TLS beneath it. `None` if there are no layers, and if the address asks for TLS and `tls` is `None`: nothing is
    /// sent there without TLS.
    pub(crate) fn to(
        address: &Address,
        tls: Option<&Connector>,
        codec: &AnyCodec,
        mut upper: Option<LayerFactory>,
    ) -> Option<Self> {
        if let Some(websocket) = WebSocketConnector::new(address, codec) {
            let layer = move |_: &Address| Some(websocket.layer());
            upper = Some(LayerFactory::beneath(upper, layer));
        }
        if address.is_tls() {
            let protocol = protocol(address.websocket_path().is_some(), codec);
            let tls = tls?.with_protocol(protocol);
            upper = Some(LayerFactory::beneath(upper, move |_| Some(tls.layer())));
        }
        upper?.layers(address)
    }

    /// The address whose connections have these layers.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Puts the layers over a socket, which may still be connecting.
    pub(crate) fn over(&self, stream: Stream) -> AnyTransport {
        AnyTransport::layered(stream, self.stack())
    }

    pub(crate) fn stack(&self) -> Stack {
        // The factory made layers for this address before. Without any, the connection would be plaintext.
        let missing = || Box::new(FailedLayer(LayerError::Refused)) as Box<dyn Layer>;
        let stack = Stack::new((self.factory.0)(&self.address));
        stack.unwrap_or_else(|| Stack::from(missing()))
    }
}

impl AnyTransport {
    /// Puts layers over a socket, which may still be connecting.
    pub(crate) fn layered(stream: Stream, stack: Stack) -> Self {
        Self::Layered(Box::new(LayeredStream::new(stream, stack)))
    }
}

opaque!(LayerFactory);
