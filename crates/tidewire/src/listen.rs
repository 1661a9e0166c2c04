//! Binding everything a server listens on, before any of its lanes runs.

use std::net::SocketAddr;

use tidewire_io::datagram::DatagramBindError;
use tidewire_io::datagram::{DatagramOptions, DatagramSocket};
use tidewire_io::socket::{BindError, Listener, SocketAddress, SocketOptions};
use tidewire_proto::codec::{AnyCodec, Codec};

use crate::address::{Address, AddressError, Endpoint};
use crate::limits::{DATAGRAM_FRAME_BYTES_MAX, DATAGRAM_RECEIVE_BUFFER_BYTES, Limits};
use crate::server::ServeError;

/// What a server listens on.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    /// Watched by the first lane.
    pub(crate) listeners: Vec<Listener>,
    /// UDP sockets of each lane: one for each address.
    pub(crate) ports: Vec<Vec<DatagramSocket>>,
    /// With the real ports in place of 0.
    pub(crate) addresses: Vec<Endpoint>,
}

impl Bound {
    pub(crate) fn bind(
        addresses: &[Address],
        lanes: usize,
        sockets: &SocketOptions,
        datagrams: &DatagramOptions,
    ) -> Result<Self, ServeError> {
        let mut bound = Self::default();
        bound.ports.resize_with(lanes, Vec::new);
        for address in addresses {
            bound.bind_first(address, sockets, datagrams)?;
        }
        Ok(bound)
    }

    /// Binds the first of an address's endpoints that this machine has: those of a name need not all be its own.
    fn bind_first(
        &mut self,
        address: &Address,
        sockets: &SocketOptions,
        datagrams: &DatagramOptions,
    ) -> Result<(), ServeError> {
        let mut endpoints = address.resolve_all()?.into_iter().peekable();
        while let Some(endpoint) = endpoints.next() {
            let outcome = match endpoint {
                Endpoint::Socket(address) => self.bind_listener(&address, sockets),
                Endpoint::Udp(address) => self.bind_ports(address, datagrams),
                name => Ok(name),
            };
            match outcome {
                Err(
                    ServeError::Bind(BindError::AddressNotAvailable { .. })
                    | ServeError::Datagram(DatagramBindError::AddressNotAvailable { .. }),
                ) if endpoints.peek().is_some() => {}
                outcome => {
                    self.addresses.push(outcome?);
                    return Ok(());
                }
            }
        }
        let host = address.to_string();
        let detail = "no address".to_owned();
        Err(AddressError::Unresolved { host, detail }.into())
    }

    fn bind_listener(
        &mut self,
        address: &SocketAddress,
        options: &SocketOptions,
    ) -> Result<Endpoint, ServeError> {
        let listener = Listener::bind(address, options)?;
        let local = listener.local_address().clone();
        self.listeners.push(listener);
        Ok(local.into())
    }

    /// A socket for every lane at the same address.
    fn bind_ports(
        &mut self,
        mut address: SocketAddr,
        options: &DatagramOptions,
    ) -> Result<Endpoint, ServeError> {
        let mut options = options.clone();
        options.reuse_port = false;
        if self.ports.len() > 1 {
            // A socket that shares its port joins whoever shares it already, another server as well. So one that does
            // not finds out first whether the port is free, or which one is.
            address = DatagramSocket::bind(&address, &options)?.local_address();
            options.reuse_port = true;
        }
        for lane in &mut self.ports {
            let socket = DatagramSocket::bind(&address, &options)?;
            address = socket.local_address();
            lane.push(socket);
        }
        Ok(Endpoint::Udp(address))
    }
}

/// What datagrams demand of a server's codec and limits, if it exchanges any.
pub(crate) fn adapt(
    is_udp: &[bool],
    codec: AnyCodec,
    limits: &mut Limits,
) -> Result<AnyCodec, ServeError> {
    if !is_udp.contains(&true) {
        return Ok(codec);
    }
    limits.frame_bytes_max = limits.frame_bytes_max.min(DATAGRAM_FRAME_BYTES_MAX);
    let for_datagrams = codec.clone().for_datagrams();
    if is_udp.contains(&false) && for_datagrams.fills_datagrams() != codec.fills_datagrams() {
        return Err(ServeError::MixedFraming {
            codec: codec.name(),
        });
    }
    Ok(for_datagrams)
}

/// How UDP sockets are opened unless somebody says otherwise.
pub(crate) fn default_datagram_options() -> DatagramOptions {
    let mut options = DatagramOptions::default();
    options.receive_buffer_bytes = Some(DATAGRAM_RECEIVE_BUFFER_BYTES);
    options
}
