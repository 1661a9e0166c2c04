//! Opens the transports of connections that lanes make, with the layers of their addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tidewire_io::datagram::DatagramSocket;
use tidewire_io::socket::{SocketAddress, Stream};
use tidewire_proto::codec::Codec;
use tidewire_proto::layer::Stack;
use tidewire_proto::limits::CREDENTIALS_BYTES_MAX;

use crate::address::{Endpoint, WebSocketEndpoint};
use crate::auth::Token;
use crate::config::Config;
use crate::tls::OutgoingTls;
use crate::transport::datagram::DatagramPeer;
use crate::transport::inproc::{self, Party};
use crate::transport::{AnyTransport, ConnectError, Layers};
use crate::websocket::WebSocketConnector;

/// The layers of connections that lanes make.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    layers: Option<Layers>,
    tls: Option<OutgoingTls>,
    allow_plaintext_credentials: bool,
}

impl Outgoing {
    /// `layers` are those of a client, for the one address that it has. `tls` is for all `tls://` and `wss://`
    /// addresses. With `allow_plaintext_credentials`, credentials may go to other machines without TLS.
    pub(crate) fn new(
        layers: Option<Layers>,
        tls: Option<OutgoingTls>,
        allow_plaintext_credentials: bool,
    ) -> Self {
        Self {
            layers,
            tls,
            allow_plaintext_credentials,
        }
    }

    /// Starts a connection. `stack` replaces the layers that the server has for such a `tls://`, `ws://` or `wss://`
    /// address. A connection to an in-process name without a listener waits for one if there is a `waiter`.
    pub(super) fn open(
        &self,
        config: &Config,
        endpoint: &Endpoint,
        waiter: Option<&Arc<dyn Party>>,
        stack: Option<Stack>,
    ) -> Result<AnyTransport, ConnectError> {
        match endpoint {
            Endpoint::Inproc(name) => {
                let stream = inproc::connect(name, waiter)?;
                Ok(AnyTransport::Inproc(Box::new(stream)))
            }
            _ if waiter.is_some() => Err(ConnectError::CannotWait),
            Endpoint::Tcp(address) => self.open_stream(config, &(*address).into()),
            Endpoint::Unix(path) => self.open_stream(config, &path.clone().into()),
            Endpoint::Tls(address) => {
                // A connection that must be encrypted is never sent as plaintext.
                let stack = stack.or_else(|| self.stack(address.ip()));
                open_layered(config, *address, stack.ok_or(ConnectError::NoTls)?)
            }
            Endpoint::WebSocket(at) => {
                let stack = stack.map_or_else(|| self.websocket_stack(at, config), Ok)?;
                open_layered(config, at.address(), stack)
            }
            Endpoint::Udp(address) => {
                check_framing(config)?;
                let socket = DatagramSocket::connect(address, &config.datagram_options)?;
                Ok(DatagramPeer::connected(Arc::new(socket), *address).into())
            }
        }
    }

    /// Connects a stream, with the layers of a user above it if there are some.
    fn open_stream(
        &self,
        config: &Config,
        address: &SocketAddress,
    ) -> Result<AnyTransport, ConnectError> {
        let stream = Stream::connect_with(address, &config.socket_options)?;
        Ok(match &self.layers {
            Some(layers) => layers.over(stream),
            None => stream.into(),
        })
    }

    /// Makes the layers of a connection to a `tls://` address, if there are some.
    fn stack(&self, address: IpAddr) -> Option<Stack> {
        match (&self.layers, &self.tls) {
            (Some(layers), _) => Some(layers.stack()),
            (None, Some(tls)) => Some(Stack::from(tls.layer(address, false))),
            (None, None) => None,
        }
    }

    /// Makes the layers of a connection to a WebSocket.
    fn websocket_stack(
        &self,
        at: &WebSocketEndpoint,
        config: &Config,
    ) -> Result<Stack, ConnectError> {
        if let Some(layers) = &self.layers {
            return Ok(layers.stack());
        }
        let websocket = WebSocketConnector::of_endpoint(at, config.codecs.main()).layer();
        if !at.is_tls() {
            return Ok(Stack::from(websocket));
        }
        let tls = self.tls.as_ref().ok_or(ConnectError::NoTls)?;
        let tls = tls.layer(at.address().ip(), true);
        Ok(Stack::from(tls).under(websocket))
    }

    /// Refuses to send credentials that others could read on the way. Layers of a user count as plain text, because
    /// nothing says that they encrypt.
    pub(crate) fn check_credentials(
        &self,
        endpoint: &Endpoint,
        token: &Token,
    ) -> Result<(), ConnectError> {
        if endpoint.is_tls() {
            return Ok(());
        }
        let bytes = token.secret().len();
        if !endpoint.is_local() && !self.allow_plaintext_credentials {
            let endpoint = endpoint.clone();
            return Err(ConnectError::PlaintextCredentials { endpoint });
        }
        match bytes <= CREDENTIALS_BYTES_MAX {
            true => Ok(()),
            false => Err(ConnectError::LongCredentials { bytes }),
        }
    }
}

/// Connects a socket, with these layers above it.
fn open_layered(
    config: &Config,
    address: SocketAddr,
    stack: Stack,
) -> Result<AnyTransport, ConnectError> {
    let address = SocketAddress::Tcp(address);
    let stream = Stream::connect_with(&address, &config.socket_options)?;
    Ok(AnyTransport::layered(stream, stack))
}

/// Checks that the lane's codec frames datagrams.
fn check_framing(config: &Config) -> Result<(), ConnectError> {
    let codec = config.codecs.main();
    let for_datagrams = codec.clone().for_datagrams();
    if for_datagrams.format().fills_datagrams() == codec.format().fills_datagrams() {
        return Ok(());
    }
    let codec = codec.name();
    Err(ConnectError::Framing { codec })
}
