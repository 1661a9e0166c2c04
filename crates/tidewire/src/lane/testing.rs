//! A lane with a clock that the test sets, so that tests of timeouts need not wait.

use std::sync::Arc;
use std::thread;

use tidewire_io::datagram::{DatagramBatch, DatagramOptions, DatagramSocket};
use tidewire_io::poller::{PollerChoice, open};
use tidewire_io::ring::RingStream;
use tidewire_io::socket::Stream;

use super::{Lane, Spin};
use crate::config::CodecNumber;
use crate::engine::Core;
use crate::mailbox::Mailbox;
use crate::server::ServerBuilder;
use crate::service::Context;
use crate::service::{HandlerResult, Service};
use crate::session::open_connection;
use crate::transport::datagram::DatagramPeer;
use crate::transport::{AnyTransport, LayerFactory, Transport};
use tidewire_proto::message::Message;
use tidewire_testkit::{XorLayer, layers_of};

type Handler = fn(&mut Context<'_>, Message<'_>) -> HandlerResult;

/// Makes the only lane of a server with these settings. It runs when the test calls it.
pub(crate) fn lane(builder: &ServerBuilder) -> Lane<Handler> {
    lanes(builder, 1).remove(0)
}

/// Makes all lanes of a server with these settings.
pub(crate) fn lanes(builder: &ServerBuilder, count: usize) -> Vec<Lane<Handler>> {
    let echo: Handler = |cx, message| cx.reply(message.payload);
    lanes_of(builder, count, |_| echo)
}

/// Makes the only lane of a server with these settings and this service.
pub(crate) fn lane_of<S>(builder: &ServerBuilder, service: &S) -> Lane<S>
where
    S: Service + Clone,
{
    lanes_of(builder, 1, |_| service.clone()).remove(0)
}

fn lanes_of<S: Service>(
    builder: &ServerBuilder,
    count: usize,
    make: impl Fn(usize) -> S,
) -> Vec<Lane<S>> {
    let open_poller = |_| open(PollerChoice::Auto).unwrap();
    let pollers: Vec<_> = (0..count).map(open_poller).collect();
    let builder = builder.clone().lanes(count);
    let shared = Arc::new(builder.share_alone(pollers[0].kind()));
    let counters: Vec<Arc<_>> = (0..count).map(|_| Arc::default()).collect();
    let mailboxes = counters.iter().map(Arc::clone).map(Mailbox::new);
    let mailboxes: Vec<_> = mailboxes.map(Result::unwrap).collect();
    shared.lanes.set(mailboxes.clone());
    let parts = pollers.into_iter().zip(mailboxes).zip(counters).enumerate();
    let lane = |(index, ((poller, mailbox), counters))| {
        let mut core = Core::new(index, Arc::clone(&shared), mailbox, poller, counters);
        core.sessions.pass_time(0);
        Lane::new(core, make(index), Spin::Never, None).unwrap()
    };
    parts.map(lane).collect()
}

/// Receives datagrams until `is_all` says that they are complete, or gives up after many tries.
pub(crate) fn received(
    socket: &DatagramSocket,
    is_all: impl Fn(&[Vec<u8>]) -> bool,
) -> Vec<Vec<u8>> {
    let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
    let mut datagrams = Vec::new();
    for _ in 0..100_000 {
        while socket.receive(&mut batch).is_ok() {
            datagrams.extend(batch.iter().map(|datagram| datagram.bytes.to_vec()));
        }
        if is_all(&datagrams) {
            break;
        }
        thread::yield_now();
    }
    datagrams
}

impl<S> Lane<S> {
    /// Opens a session. Returns its slot and the peer's end.
    pub(crate) fn open_session(&mut self) -> (usize, Stream) {
        let (near, far) = Stream::pair().unwrap();
        (self.open_over(near.into()), far)
    }

    /// Opens a session within the process. Returns its slot and the peer's end.
    pub(crate) fn open_inproc_session(&mut self) -> (usize, RingStream) {
        let (near, far) = RingStream::pair(64 * 1024).unwrap();
        (self.open_over(near.into()), far)
    }

    /// Opens a session with a layer, over a socket with a small buffer. Returns its slot and the peer's end with its
    /// layer.
    pub(crate) fn open_layered_session(&mut self) -> (usize, AnyTransport) {
        let (near, far) = Stream::pair().unwrap();
        let over = |stream: Stream, make: fn(u8) -> XorLayer| {
            stream.set_send_buffer_bytes(4_096).unwrap();
            let factory = LayerFactory::new(move |_| layers_of(1, make));
            factory
                .layers(&"ipc://@a".parse().unwrap())
                .unwrap()
                .over(stream)
        };
        let mut near = over(near, XorLayer::accepting);
        let mut far = over(far, XorLayer::connecting);
        while !(near.secure().unwrap() & far.secure().unwrap()) {}
        (self.open_over(near), far)
    }

    /// Opens a session over UDP. Returns its slot and the peer's socket.
    pub(crate) fn open_datagram_session(&mut self) -> (usize, DatagramSocket) {
        let (address, options) = ("127.0.0.1:0".parse().unwrap(), DatagramOptions::default());
        let far = DatagramSocket::bind(&address, &options).unwrap();
        let near = DatagramSocket::connect(&far.local_address(), &options).unwrap();
        let peer = DatagramPeer::connected(Arc::new(near), far.local_address());
        (self.open_over(peer.into()), far)
    }

    fn open_over(&mut self, near: AnyTransport) -> usize {
        assert!(self.core.shared.limiter.enter(None));
        let slot = self
            .core
            .insert(near, CodecNumber::MAIN, None, open_connection());
        let slot = slot.unwrap();
        self.core.enter(slot);
        slot
    }
}
