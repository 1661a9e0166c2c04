//! Binds all addresses of a server before its lanes run.

use std::net::SocketAddr;
use std::sync::Arc;

use tidewire_io::datagram::{DatagramOptions, DatagramSocket};
use tidewire_io::socket::{
    AnySocketAddress, Listener, PassedSocket, SocketAddress, SocketError, SocketOptions,
};
use tidewire_proto::codec::AnyCodec;

use super::codecs::AddressCodecs;
use crate::address::{Address, AddressError, Endpoint};
use crate::config::CodecNumber;
use crate::limits::{ConnectionLimits, DATAGRAM_FRAME_BYTES_MAX, DATAGRAM_RECEIVE_BUFFER_BYTES};
use crate::server::ServeError;
use crate::transport::datagram::BoundPort;
use crate::transport::{LayerFactory, Layers, ListenerTerms, Proxies, StreamListener};

/// The bound sockets of a server.
#[derive(Debug, Default)]
pub(crate) struct Bound {
    /// The first lane watches them.
    pub(crate) listeners: Vec<StreamListener>,
    /// UDP sockets of each lane: one for each address.
    pub(crate) ports: Vec<Vec<BoundPort>>,
    /// The addresses, with the real ports in place of 0.
    pub(crate) addresses: Vec<Endpoint>,
    /// Sockets of another program that no address has taken yet.
    passed: Vec<PassedSocket>,
    proxies: Proxies,
}

impl Bound {
    /// Binds the addresses of a server. An address at which a passed socket is bound takes that socket.
    pub(crate) fn bind(
        addresses: &[Address],
        codecs: &AddressCodecs,
        lanes: usize,
        sockets: &SocketOptions,
        datagrams: &DatagramOptions,
        layers: Option<&LayerFactory>,
        (passed, proxies): (Vec<PassedSocket>, Proxies),
    ) -> Result<Self, ServeError> {
        let mut bound = Self {
            passed,
            proxies,
            ..Self::default()
        };
        bound.ports.resize_with(lanes, Vec::new);
        let places = addresses.iter().map(Place::of);
        let places: Vec<Place<'_>> = places.collect::<Result<_, _>>()?;
        for place in &places {
            let settings = Settings {
                codec: codecs.codec(place.address),
                numbers: codecs.numbers(place.address),
                sockets,
                datagrams,
                layers: layers.and_then(|factory| factory.layers(place.address)),
                all: &places,
            };
            bound.bind_place(place, &settings)?;
        }
        match bound.passed.first() {
            Some(unused) => Err(ServeError::PassedSocket {
                address: unused.address().clone(),
            }),
            None => Ok(bound),
        }
    }

    /// Takes the passed socket that is bound to an address, if there is one.
    fn take_passed(&mut self, at: &AnySocketAddress) -> Option<PassedSocket> {
        let index = self.passed.iter().position(|it| it.address() == at)?;
        Some(self.passed.remove(index))
    }

    /// Binds an address, and another port if the system chose one that another program has at a further endpoint.
    fn bind_place(&mut self, place: &Place<'_>, settings: &Settings<'_>) -> Result<(), ServeError> {
        let chooses = place.endpoints[0]
            .socket_address()
            .is_some_and(|it| it.port() == 0);
        let before = [
            self.listeners.len(),
            self.ports[0].len(),
            self.addresses.len(),
        ];
        for _ in 1..PORT_ATTEMPTS {
            match self.bind_endpoints(place, settings) {
                Err(error) if chooses && is_in_use(&error) => {
                    let [listeners, ports, addresses] = before;
                    self.listeners.truncate(listeners);
                    self.ports.iter_mut().for_each(|it| it.truncate(ports));
                    self.addresses.truncate(addresses);
                }
                outcome => return outcome,
            }
        }
        self.bind_endpoints(place, settings)
    }

    /// Binds the first endpoint of an address that this machine has, or all of them. A host name may also have
    /// endpoints of other machines.
    fn bind_endpoints(
        &mut self,
        place: &Place<'_>,
        settings: &Settings<'_>,
    ) -> Result<(), ServeError> {
        let (mut port, mut absent) = (None, None);
        for endpoint in &place.endpoints {
            let endpoint = match port {
                Some(port) => endpoint.clone().with_port(port),
                None => endpoint.clone(),
            };
            let wanted = endpoint.clone();
            match self.bind_endpoint(endpoint, place, settings) {
                Ok(bound) => {
                    port = bound.socket_address().map(|it| it.port());
                    self.addresses.push(bound);
                    if !place.binds_all {
                        return Ok(());
                    }
                }
                Err(error @ ServeError::Socket(SocketError::AddressNotAvailable { .. })) => {
                    absent = Some(error);
                }
                Err(error) => return Err(self.explain(wanted, error)),
            }
        }
        match absent {
            Some(error) if port.is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// Says so if it is this server that has the port already.
    fn explain(&self, address: Endpoint, error: ServeError) -> ServeError {
        let mut others = self.addresses.iter();
        match others.find(|other| is_in_use(&error) && other.excludes(&address)) {
            Some(other) => ServeError::Twice {
                address: address.into(),
                other: Box::new(other.clone()),
            },
            None => error,
        }
    }

    fn bind_endpoint(
        &mut self,
        endpoint: Endpoint,
        place: &Place<'_>,
        settings: &Settings<'_>,
    ) -> Result<Endpoint, ServeError> {
        let leaves_ipv4 = settings.leaves_ipv4(&endpoint);
        match endpoint {
            Endpoint::Tcp(at) | Endpoint::Tls(at) => {
                self.bind_listener(&at.into(), leaves_ipv4, place.address, settings)
            }
            Endpoint::Unix(path) => {
                self.bind_listener(&path.into(), leaves_ipv4, place.address, settings)
            }
            Endpoint::WebSocket(at) => {
                let at = at.address().into();
                self.bind_listener(&at, leaves_ipv4, place.address, settings)
            }
            _ if settings.layers.is_some() => Err(ServeError::Layers {
                address: place.address.clone(),
            }),
            Endpoint::Udp(address) => {
                let mut options = settings.datagrams.clone();
                options.ipv6_only |= leaves_ipv4;
                self.bind_ports(address, settings.numbers[0], &options)
            }
            name => match self.addresses.contains(&name) {
                true => Err(ServeError::Twice {
                    address: Box::new(name.clone()),
                    other: name.into(),
                }),
                false => Ok(name),
            },
        }
    }

    fn bind_listener(
        &mut self,
        at: &SocketAddress,
        leaves_ipv4: bool,
        address: &Address,
        settings: &Settings<'_>,
    ) -> Result<Endpoint, ServeError> {
        let (codec, layers) = (settings.codec, settings.layers.clone());
        let mut options = settings.sockets.clone();
        options.ipv6_only |= leaves_ipv4;
        let socket = match self.take_passed(&at.to_any()) {
            Some(passed) => Listener::adopt(&passed, &options)?,
            None => Listener::bind(at, &options)?,
        };
        let local = address.bound(socket.local_address().clone());
        let terms = ListenerTerms::new(
            local.to_string(),
            settings.numbers.clone(),
            codec.clone(),
            layers,
        );
        let terms = Arc::new(terms.behind(self.proxies.clone()));
        self.listeners.push(StreamListener { socket, terms });
        Ok(local)
    }

    /// Binds a socket for every lane at the same address.
    fn bind_ports(
        &mut self,
        mut address: SocketAddr,
        codec: CodecNumber,
        options: &DatagramOptions,
    ) -> Result<Endpoint, ServeError> {
        if let Some(passed) = self.take_passed(&AnySocketAddress::Udp(address)) {
            let [lane] = &mut self.ports[..] else {
                return Err(ServeError::PassedPort(address));
            };
            let socket = DatagramSocket::adopt(&passed, options)?;
            lane.push(BoundPort::new(socket, codec));
            return Ok(Endpoint::Udp(address));
        }
        let mut options = options.clone();
        options.reuse_port = false;
        if self.ports.len() > 1 {
            // With port sharing on, the socket would join a port that another server already shares. So a first
            // socket without it finds out whether the port is free, or which port the system chose.
            address = DatagramSocket::bind(&address, &options)?.local_address();
            options.reuse_port = true;
        }
        for lane in &mut self.ports {
            let socket = DatagramSocket::bind(&address, &options)?;
            address = socket.local_address();
            lane.push(BoundPort::new(socket, codec));
        }
        Ok(Endpoint::Udp(address))
    }
}

/// An address of a server, and where that is.
struct Place<'a> {
    address: &'a Address,
    endpoints: Vec<Endpoint>,
    /// Whether the server listens at each endpoint that the machine has, in place of the first.
    binds_all: bool,
}

/// How the endpoints of one address are bound.
struct Settings<'a> {
    codec: &'a AnyCodec,
    /// The first is that of `codec`.
    numbers: Box<[CodecNumber]>,
    sockets: &'a SocketOptions,
    datagrams: &'a DatagramOptions,
    layers: Option<Layers>,
    /// All addresses of the server.
    all: &'a [Place<'a>],
}

impl<'a> Place<'a> {
    fn of(address: &'a Address) -> Result<Self, AddressError> {
        let (endpoints, binds_all) = address.resolve_to_listen()?;
        Ok(Self {
            address,
            endpoints,
            binds_all,
        })
    }
}

impl Settings<'_> {
    /// Whether an endpoint has to leave IPv4 to another address of this server.
    fn leaves_ipv4(&self, endpoint: &Endpoint) -> bool {
        let mut others = self.all.iter().flat_map(|place| &place.endpoints);
        others.any(|other| endpoint.leaves_ipv4_to(other))
    }
}

fn is_in_use(error: &ServeError) -> bool {
    matches!(error, ServeError::Socket(SocketError::InUse { .. }))
}

/// How often the system may choose a port at one loopback address that another program has at the other one.
const PORT_ATTEMPTS: usize = 16;

/// Limits the frames of a server to what a datagram holds, if it has UDP addresses.
pub(crate) fn limit_frames(is_udp: &[bool], limits: &mut ConnectionLimits) {
    if !is_udp.contains(&true) {
        return;
    }
    if is_udp.contains(&false) && limits.frame_bytes_max() > DATAGRAM_FRAME_BYTES_MAX {
        tracing::warn!(
            frame_bytes_max = DATAGRAM_FRAME_BYTES_MAX,
            configured = limits.frame_bytes_max(),
            "udp:// lowers the frame limit of every address of this server to what a datagram holds; serve tcp:// and \
             ipc:// from another server for longer messages"
        );
    }
    limits.set_frame_bytes_max(limits.frame_bytes_max().min(DATAGRAM_FRAME_BYTES_MAX));
}

/// Returns the default options of UDP sockets.
pub(crate) fn default_datagram_options() -> DatagramOptions {
    let mut options = DatagramOptions::default();
    options.receive_buffer_bytes = Some(DATAGRAM_RECEIVE_BUFFER_BYTES);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logged;

    #[test]
    fn udp_beside_tcp_says_that_it_lowers_the_frame_limit() {
        let adapted = |is_udp: &[bool]| {
            let mut limits = ConnectionLimits::default();
            let text = logged(|| limit_frames(is_udp, &mut limits));
            (text, limits.frame_bytes_max())
        };
        let (text, limit) = adapted(&[true, false]);
        assert_eq!(limit, DATAGRAM_FRAME_BYTES_MAX);
        for part in ["WARN", "frame_bytes_max=65507", "configured=1048576"] {
            assert!(text.contains(part), "{part} is missing: {text}");
        }
        // A server with only UDP addresses gets no warning.
        assert_eq!(adapted(&[true]), (String::new(), DATAGRAM_FRAME_BYTES_MAX));
        assert_eq!(adapted(&[false]).0, "");
    }
}
