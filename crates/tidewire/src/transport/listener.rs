//! Listeners of stream sockets, and the settings of their connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewire_io::socket::{Listener, Stream};
use tidewire_proto::codec::{AnyCodec, Codec, Decoded, StreamFraming};

use super::{AnyTransport, Layers};
use crate::address::Endpoint;
use crate::auth::Network;
use crate::config::CodecNumber;

/// A listener of TCP or a Unix socket, and the settings of its sessions.
#[derive(Debug)]
pub(crate) struct StreamListener {
    pub(crate) socket: Listener,
    pub(crate) terms: Arc<ListenerTerms>,
}

/// The settings that the sessions of a listener share.
#[derive(Debug)]
pub(crate) struct ListenerTerms {
    /// The listener's address as text.
    address: String,
    /// The codecs among which its clients choose.
    numbers: Box<[CodecNumber]>,
    /// The first of them, for clients that do not choose.
    codec: AnyCodec,
    /// The layers over its connections.
    layers: Option<Layers>,
    proxies: Proxies,
    /// The log has warned of a peer with the other framing.
    has_warned: AtomicBool,
}

/// The addresses of the proxies of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    /// Proxies whose connections begin with a PROXY header.
    by_header: Arc<[Network]>,
    /// Proxies that write the address of their client into the request of a WebSocket.
    by_request: Arc<[Network]>,
}

impl Proxies {
    pub(crate) fn new(by_header: &[Network], by_request: &[Network]) -> Self {
        Self {
            by_header: by_header.into(),
            by_request: by_request.into(),
        }
    }
}

impl ListenerTerms {
    /// Settings for a listener on `address`, whose peers speak `codec`, the first of `numbers`, or choose another.
    pub(crate) fn new(
        address: String,
        numbers: Box<[CodecNumber]>,
        codec: AnyCodec,
        layers: Option<Layers>,
    ) -> Self {
        Self {
            address,
            numbers,
            codec,
            layers,
            proxies: Proxies::default(),
            has_warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn behind(mut self, proxies: Proxies) -> Self {
        self.proxies = proxies;
        self
    }

    /// Whether connections from this address begin with a PROXY header.
    pub(crate) fn is_proxy(&self, address: IpAddr) -> bool {
        let mut proxies = self.proxies.by_header.iter();
        proxies.any(|network| network.contains(address))
    }

    /// Whether requests from this address name the client that they come from.
    pub(crate) fn is_forwarder(&self, address: IpAddr) -> bool {
        let mut proxies = self.proxies.by_request.iter();
        self.is_websocket() && proxies.any(|network| network.contains(address))
    }

    /// The codec of clients that do not choose.
    pub(crate) fn codec_number(&self) -> CodecNumber {
        self.codec_at(0)
    }

    /// The codec at this place of the list from which clients choose.
    pub(crate) fn codec_at(&self, place: usize) -> CodecNumber {
        self.numbers.get(place).copied().unwrap_or_default()
    }

    /// Whether its peers connect by `ws://` or `wss://`.
    pub(crate) fn is_websocket(&self) -> bool {
        let mut layers = self.layers.iter();
        layers.any(|layers| layers.address().websocket_path().is_some())
    }

    /// Wraps an accepted connection for its session.
    pub(crate) fn connection(&self, stream: Stream) -> AnyTransport {
        match &self.layers {
            Some(layers) => layers.over(stream),
            None => stream.into(),
        }
    }

    /// Warns once if refused bytes are a frame in the codec's other framing.
    pub(crate) fn note_refused(
        &self,
        input: &[u8],
        frame_bytes_max: usize,
        peer: Option<&Endpoint>,
    ) {
        let (other, key) = match self.codec.format().stream_framing() {
            Some(StreamFraming::Length) => (StreamFraming::None, "none"),
            Some(StreamFraming::None) => (StreamFraming::Length, "length"),
            None => return,
        };
        let other = self.codec.with_stream_framing(other);
        let is_frame = |codec: AnyCodec| {
            let decoded = codec.decode(input, frame_bytes_max);
            matches!(decoded, Ok(Decoded::Frame { .. }))
        };
        if !other.is_some_and(is_frame) || self.has_warned.swap(true, Ordering::Relaxed) {
            return;
        }
        let peer = peer.map(tracing::field::display);
        tracing::warn!(
            listener = self.address,
            peer,
            codec = self.codec.name(),
            "a peer frames its messages in the other way and is refused; if all peers of this listener do, listen with \
             ?framing={key} behind the address. Further ones are not logged"
        );
    }
}

/// A connection that a listener accepted, or that came from within the process.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: AnyTransport,
    pub(crate) peer: Option<Endpoint>,
    /// A listed proxy, which names its client in the request of the WebSocket. `peer` is `None` until then.
    pub(crate) forwarder: Option<Endpoint>,
    /// The terms of its listener, if that is a socket.
    pub(crate) listener: Option<Arc<ListenerTerms>>,
}

impl Arrival {
    /// A connection that a listener with these terms accepted.
    pub(crate) fn accepted(
        stream: Stream,
        peer: Option<SocketAddr>,
        terms: &Arc<ListenerTerms>,
    ) -> Self {
        let is_forwarder = peer.is_some_and(|it| terms.is_forwarder(it.ip()));
        let peer = peer.map(Endpoint::from);
        let (forwarder, peer) = match is_forwarder {
            true => (peer, None),
            false => (None, peer),
        };
        Self {
            stream: terms.connection(stream),
            peer,
            forwarder,
            listener: Some(Arc::clone(terms)),
        }
    }

    /// The codec of the session that it becomes.
    pub(crate) fn codec_number(&self) -> CodecNumber {
        let listener = self.listener.as_ref();
        listener.map_or(CodecNumber::MAIN, |terms| terms.codec_number())
    }

    /// A connection that no listener accepted.
    pub(crate) fn unlisted(stream: AnyTransport) -> Self {
        Self {
            stream,
            peer: None,
            forwarder: None,
            listener: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logged;
    use tidewire_proto::message::{Kind, Message};

    /// The field was `peer="of a Unix socket"`, which is no address.
    #[test]
    fn the_warning_of_another_framing_has_no_peer_where_there_is_no_address() {
        let codec = AnyCodec::by_name("uvrpc").unwrap();
        let other = match codec.format().stream_framing() {
            Some(StreamFraming::None) => StreamFraming::Length,
            _ => StreamFraming::None,
        };
        let message = Message::with_id(Kind::Request, 0, 1, b"x").with_name("echo");
        let mut frame = Vec::new();
        let other = codec.with_stream_framing(other).unwrap();
        other.encode(&message, &mut frame).unwrap();
        let terms = ListenerTerms {
            address: "ipc://@a".to_owned(),
            numbers: Box::new([CodecNumber::MAIN]),
            codec,
            layers: None,
            proxies: Proxies::default(),
            has_warned: AtomicBool::new(false),
        };
        let text = logged(|| terms.note_refused(&frame, 1 << 16, None));
        assert!(
            text.contains("frames its messages in the other way"),
            "{text}"
        );
        assert!(!text.contains("peer="), "{text}");
    }
}
