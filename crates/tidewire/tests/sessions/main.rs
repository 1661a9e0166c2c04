//! Sessions from other threads: found, sent to, closed and selected, over every transport and several lanes.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod broadcast;
mod inspector;
mod lanes;
mod lookup;
mod proxied;
mod send;
mod shared;

use std::sync::mpsc::{Receiver, Sender, channel};

use tidewire::metrics::Metrics;
use tidewire::{
    Context, HandlerResult, Kind, Limits, Message, Server, Service, SessionId, TransportKind,
};
use tidewire_testkit::fixtures::tw1;
use tidewire_testkit::{Peer, TestServer};

pub(crate) const TRANSPORTS: [TransportKind; 3] = [
    TransportKind::Tcp,
    TransportKind::Ipc,
    TransportKind::Inproc,
];

/// The last byte that a session has sent first in a message.
#[derive(Debug)]
pub(crate) struct Tag(pub(crate) u8);

/// Reports every session that opens to the test. Sets the tag in a request, and answers with it.
pub(crate) struct Tagged {
    opened: Sender<SessionId>,
}

impl Service for Tagged {
    fn on_open(&mut self, cx: &mut Context<'_>) {
        self.opened.send(cx.id()).unwrap();
    }

    fn on_message(&mut self, cx: &mut Context<'_>, message: Message<'_>) -> HandlerResult {
        if let Some(tag) = message.payload.first() {
            cx.set_state(Tag(*tag));
        }
        cx.reply(message.payload)
    }
}

/// A server of [`Tagged`], and its sessions in the order in which they open.
pub(crate) struct Scene {
    pub(crate) server: TestServer,
    opened: Receiver<SessionId>,
}

impl Scene {
    pub(crate) fn set(transport: TransportKind, lanes: usize, limits: Limits) -> Self {
        let (sender, opened) = channel();
        let builder = Server::builder().lanes(lanes).limits(limits);
        let server = serve(transport, builder, |_| Tagged {
            opened: sender.clone(),
        });
        Self { server, opened }
    }

    /// Connects a peer and returns it with the number of its session. Two in a row are on two lanes.
    pub(crate) fn peer(&self) -> (Peer, SessionId) {
        let peer = self.server.peer();
        (peer, self.opened.recv().unwrap())
    }

    pub(crate) fn narrow_peer(&self) -> (Peer, SessionId) {
        let peer = self.server.narrow_peer();
        (peer, self.opened.recv().unwrap())
    }
}

pub(crate) fn serve<S: Service>(
    transport: TransportKind,
    builder: tidewire::ServerBuilder,
    make: impl FnMut(usize) -> S,
) -> TestServer {
    match transport {
        TransportKind::Tcp => TestServer::over_tcp(builder, &tw1(), make),
        TransportKind::Ipc => TestServer::over_ipc(builder, &tw1(), make),
        _ => TestServer::over_inproc(builder, &tw1(), make),
    }
}

/// Limits under which peers need not answer pings, however busy the machine is.
pub(crate) fn patient() -> Limits {
    let mut limits = Limits::default();
    limits.connections.set_heartbeat(std::time::Duration::ZERO);
    limits
        .connections
        .set_idle_timeout(std::time::Duration::MAX);
    limits
}

pub(crate) fn news(payload: &[u8]) -> Message<'_> {
    Message::new(Kind::OneWay, 0, payload)
}

/// Returns the next one-way message of a peer, or `None` if its session has ended.
pub(crate) fn next_news(peer: &mut Peer) -> Option<Vec<u8>> {
    loop {
        let message = peer.receive()?;
        if message.kind == Kind::OneWay {
            return Some(message.payload);
        }
    }
}

/// Checks that each session selected by a broadcast was served or counted as refused.
pub(crate) fn assert_broadcasts_conserved(metrics: &Metrics) {
    assert_eq!(
        metrics.broadcast_matched,
        metrics.broadcast_queued
            + metrics.broadcast_full
            + metrics.broadcast_too_large
            + metrics.broadcast_inexpressible,
        "{metrics:#?}"
    );
}
