//! Listeners of stream sockets, and what the connections that come from them have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidewire_io::socket::{Listener, Stream};
use tidewire_proto::codec::{AnyCodec, Codec, Decoded, StreamFraming};

use super::{Carrier, Layers, UnframedStream};
use crate::address::Endpoint;

/// A listener of TCP or a Unix socket, and what its sessions have in common.
#[derive(Debug)]
pub(crate) struct StreamListener {
    pub(crate) socket: Listener,
    pub(crate) terms: Arc<ListenerTerms>,
}

/// What the sessions of a listener have in common.
#[derive(Debug)]
pub(crate) struct ListenerTerms {
    /// Where it listens, as text.
    address: String,
    /// The codec that reads what its peers send.
    codec: AnyCodec,
    /// What its peers are sent has lengths that must be left out.
    leaves_lengths_out: bool,
    /// The layers over its connections.
    layers: Option<Layers>,
    /// A peer that frames in the other way was warned of.
    has_warned: AtomicBool,
}

impl ListenerTerms {
    /// Those of a listener on `address`, whose peers frame as `codec` does. `leaves_lengths_out` says that what they are sent
    /// has lengths in front that they do not expect.
    pub(crate) fn new(
        address: String,
        codec: AnyCodec,
        leaves_lengths_out: bool,
        layers: Option<Layers>,
    ) -> Self {
        Self {
            address,
            codec,
            leaves_lengths_out,
            layers,
            has_warned: AtomicBool::new(false),
        }
    }

    pub(crate) fn codec(&self) -> &AnyCodec {
        &self.codec
    }

    /// An accepted connection, as its session uses it.
    pub(crate) fn connection(&self, stream: Stream) -> Carrier {
        match &self.layers {
            Some(layers) => layers.over(stream),
            None if self.leaves_lengths_out => {
                Carrier::Unframed(Box::new(UnframedStream::new(stream)))
            }
            None => stream.into(),
        }
    }

    /// Warns, once, if bytes that are refused are a frame in the codec's other framing.
    pub(crate) fn note_refused(
        &self,
        input: &[u8],
        frame_bytes_max: usize,
        peer: Option<&Endpoint>,
    ) {
        let (other, key) = match self.codec.stream_framing() {
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

/// A connection that was accepted, or came from within the process.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) stream: Carrier,
    pub(crate) peer: Option<Endpoint>,
    /// The terms of its listener, if that is a socket.
    pub(crate) listener: Option<Arc<ListenerTerms>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::logged;
    use tidewire_proto::message::{Kind, Message};

    /// It was `peer="of a Unix socket"`, which is no address.
    #[test]
    fn the_warning_of_another_framing_has_no_peer_where_there_is_no_address() {
        let codec = AnyCodec::by_name("uvrpc").unwrap();
        let other = match codec.stream_framing() {
            Some(StreamFraming::None) => StreamFraming::Length,
            _ => StreamFraming::None,
        };
        let message = Message::with_id(Kind::Request, 0, 1, b"x").with_name("echo");
        let mut frame = Vec::new();
        let other = codec.with_stream_framing(other).unwrap();
        other.encode(&message, &mut frame).unwrap();
        let terms = ListenerTerms {
            address: "ipc://@a".to_owned(),
            codec,
            leaves_lengths_out: false,
            layers: None,
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
