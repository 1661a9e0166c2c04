//! Follows a draining server to the address that its go-away has.
//!
//! The address comes from a peer, so it passes the same checks as an operator's address. Its transport must be that of
//! the program's address: encryption stays. TLS checks the certificate of the new host by its own name. Credentials go
//! only where they would go from the program's own address; see
//! [`ClientBuilder::credentials`](crate::ClientBuilder::credentials).
//!
//! The client stays with the new server until an attempt to connect there fails, and then returns to the program's
//! address. So a wrong address costs one attempt, and a vanished server is not tried for ever.

use std::sync::Arc;

use tidewire_proto::codec::AnyCodec;
use tidewire_proto::layer::Stack;
use tidewire_proto::text::escaped;

use super::dialing::Dialing;
use crate::address::{Address, Successor};
use crate::dial::Target;
use crate::server::ServeError;
use crate::tls::{ClientConfigs, Connector, protocol};
use crate::transport::ConnectError;
use crate::transport::{LayerFactory, Layers};
use crate::websocket::WebSocketConnector;

/// The settings of a client that follows moves.
#[derive(Clone, Debug)]
pub(super) struct Mover {
    /// The configuration of TLS, if the address that the program gave asks for TLS.
    pub(super) tls: Option<Arc<ClientConfigs>>,
    pub(super) codec: AnyCodec,
}

/// The server that the client was sent to.
#[derive(Debug)]
pub(super) struct NewServer {
    pub(super) target: Target,
    layers: Option<Layers>,
}

impl NewServer {
    /// The layers of a connection there, if it has some.
    pub(super) fn stack(&self) -> Option<Stack> {
        self.layers.as_ref().map(Layers::stack)
    }
}

impl Mover {
    fn follow(&self, home: &Address, to: &str) -> Result<NewServer, String> {
        let successor: Successor = to.parse().map_err(|error| format!("{error}"))?;
        if !successor.is_like(home) {
            return Err(format!("its transport is not that of {home}"));
        }
        let address = successor.address().clone();
        let layers = secured(&address, self.tls.as_ref(), &self.codec, None);
        let layers = layers.map_err(|error| error.to_string())?;
        let layers = layers.and_then(|factory| factory.layers(&address));
        let target = Target::of(address).map_err(|error| error.to_string())?;
        Ok(NewServer { target, layers })
    }
}

impl Dialing {
    /// Lets the next connection be to this address, if the client follows moves and the address is allowed.
    pub(super) fn follow(&mut self, to: &str) {
        let Some(mover) = &self.mover else {
            return;
        };
        match mover.follow(self.home.address(), to) {
            Ok(moved) => {
                tracing::debug!(to, "the server sends this client to another one");
                self.moved = Some(moved);
            }
            Err(why) => {
                // Both texts may contain text of the peer.
                let (to, why) = (escaped(to.as_bytes()), escaped(why.as_bytes()));
                tracing::warn!(%to, %why, "the server sends this client to an address that it does not follow");
            }
        }
    }
}

/// Makes the layers of an address: the program's layers, over WebSocket and TLS if the address requires them. `tls` is
/// the configuration for an address with TLS, and `None` for others.
pub(super) fn secured(
    address: &Address,
    tls: Option<&Arc<ClientConfigs>>,
    codec: &AnyCodec,
    mut layers: Option<LayerFactory>,
) -> Result<Option<LayerFactory>, ConnectError> {
    if let Some(connector) = WebSocketConnector::new(address, codec) {
        layers = Some(LayerFactory::beneath(layers, move |_| {
            Some(connector.layer())
        }));
    }
    let (Some(host), Some(tls)) = (address.host(), tls) else {
        return Ok(layers);
    };
    let protocol = protocol(address.websocket_path().is_some(), codec);
    let connector = Connector::new(tls, host, Some(protocol));
    let connector = connector.map_err(ServeError::from)?;
    let secure = move |_: &Address| Some(connector.layer());
    Ok(Some(LayerFactory::beneath(layers, secure)))
}
