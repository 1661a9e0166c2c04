//! Connections that come from a proxy: their PROXY header is read before anything else.
//!
//! Problem: behind a proxy all clients have the address of the proxy, and limits, logs and authenticators need theirs. Approach: the
//! lane that accepts reads the header of a connection before it counts and assigns it. So everything behind this step gets
//! the address of the client, also TLS and WebSocket. The step reads exactly as many bytes as the header has, so nothing is left over, and
//! the session costs what it costs without a proxy. Rejected: a layer, because it would see every byte of the connection's life.
//!
//! Only connections from listed addresses come here. Each has the time of a handshake for its header, and is no session until
//! then: a client that opens many connections would else use up the share of its proxy, and lock out the others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use slab::Slab;
use tidewire_io::poller::{Interest, Token};
use tidewire_io::socket::Stream;
use tidewire_io::timer::TimerId;
use tidewire_proto::proxy::{PROXY_HEADER_BYTES_MAX, Proxied, ProxyError, ProxyHeader, decode};

use super::Core;
use crate::observe::QuietLog;
use crate::session::TimerKey;
use crate::transport::{Arrival, ListenerTerms};

/// The connections of proxies whose headers are not whole yet.
#[derive(Debug, Default)]
pub(super) struct ProxiedArrivals {
    waiting: Slab<Waiting>,
    /// Limits the log lines about headers that are refused.
    log: QuietLog,
}

#[derive(Debug)]
struct Waiting {
    stream: Stream,
    proxy: SocketAddr,
    terms: Arc<ListenerTerms>,
    /// The part of the header that has come.
    header: Vec<u8>,
    timer: TimerId,
}

impl Core {
    /// Takes up a connection of a proxy, and reads its header as far as it has come.
    pub(super) fn await_header(
        &mut self,
        stream: Stream,
        proxy: SocketAddr,
        terms: Arc<ListenerTerms>,
        ready: &mut Vec<usize>,
    ) {
        // A connection that is refused here ends without a word, because its client did not ask for anything yet.
        if self.acceptor.proxied.waiting.len() >= WAITING_MAX {
            return self.counters.proxy_headers_refused.add(1);
        }
        if self.count_unnamed(&proxy.into()).is_err() {
            return;
        }
        let entry = self.acceptor.proxied.waiting.vacant_entry();
        let index = entry.key();
        let added = self
            .sessions
            .poller
            .add(stream.as_fd(), proxied_token(index), Interest::READ);
        if let Err(error) = added {
            tracing::error!(%error, "cannot watch a connection");
            self.counters.sessions_refused.add(1);
            return self.shared.limiter.leave_unnamed();
        }
        let time_ns = self.config.rules.handshake_timeout_ns;
        let timers = &mut self.sessions.timers;
        entry.insert(Waiting {
            stream,
            proxy,
            terms,
            header: Vec::new(),
            timer: timers.set_after(time_ns, TimerKey::Proxied(index)),
        });
        self.read_header(index, ready);
    }

    /// Reads what has come of a header. Once it is whole, the connection goes to a lane.
    pub(crate) fn read_header(&mut self, index: usize, ready: &mut Vec<usize>) {
        let Some(waiting) = self.acceptor.proxied.waiting.get_mut(index) else {
            return;
        };
        match waiting.read() {
            Ok(None) => {}
            Ok(Some(proxied)) => {
                let Some(Waiting {
                    stream,
                    proxy,
                    terms,
                    ..
                }) = self.end_waiting(index)
                else {
                    return;
                };
                let peer = match proxied {
                    Proxied::Tcp { source, .. } => source,
                    Proxied::Local | Proxied::Unknown => proxy,
                };
                self.assign(Arrival::accepted(stream, Some(peer), &terms), ready);
            }
            Err(error) => self.refuse_header(index, &error),
        }
    }

    /// Ends a connection whose header did not come in time.
    pub(crate) fn expire_header(&mut self, index: usize) {
        self.refuse_header(index, &"no PROXY header came in time");
    }

    /// Ends all connections without a whole header, when the lane takes no more connections.
    pub(super) fn end_proxied(&mut self) {
        let all: Vec<usize> = self
            .acceptor
            .proxied
            .waiting
            .iter()
            .map(|(it, _)| it)
            .collect();
        for index in all {
            if self.end_waiting(index).is_some() {
                self.counters.sessions_refused.add(1);
            }
        }
    }

    /// The connection of a poller's token, if it is one whose header is awaited.
    pub(crate) fn proxied_of(&self, token: Token) -> Option<usize> {
        let index = PROXIED_FIRST.checked_sub(token.0)?;
        (index < WAITING_MAX).then_some(index)
    }

    fn refuse_header(&mut self, index: usize, reason: &dyn std::fmt::Display) {
        let Some(waiting) = self.end_waiting(index) else {
            return;
        };
        if let Some(unlogged) = self.acceptor.proxied.log.may_log(self.sessions.now_ns()) {
            tracing::warn!(
                proxy = %waiting.proxy,
                unlogged,
                "refusing a connection of a proxy: {reason}; further ones are not logged for 10 s"
            );
        }
        // The counter changes last, so that a test that sees the count finds the line in the log.
        self.counters.proxy_headers_refused.add(1);
    }

    fn end_waiting(&mut self, index: usize) -> Option<Waiting> {
        let waiting = self.acceptor.proxied.waiting.try_remove(index)?;
        self.sessions.timers.cancel(waiting.timer);
        if let Err(error) = self.sessions.poller.remove(waiting.stream.as_fd()) {
            tracing::error!(%error, "cannot stop watching a connection");
        }
        self.shared.limiter.leave_unnamed();
        Some(waiting)
    }
}

impl Waiting {
    /// Reads the header, and no byte behind it. Returns it once it is whole.
    fn read(&mut self) -> Result<Option<Proxied>, ProxyError> {
        loop {
            let have = self.header.len();
            let needed = match decode(&self.header)? {
                ProxyHeader::Whole { proxied, .. } => return Ok(Some(proxied)),
                ProxyHeader::Partial { bytes } => bytes,
            };
            let mut bytes = [0; PROXY_HEADER_BYTES_MAX];
            match self.stream.read(&mut bytes[..needed - have]) {
                Ok(0) => return Err(ProxyError::Truncated),
                Ok(count) => self.header.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(_) => return Err(ProxyError::Truncated),
            }
        }
    }
}

/// Most connections of proxies that a lane reads headers of at once. Proxies send the header at once, so more of them are stuck, and
/// each may hold [`PROXY_HEADER_BYTES_MAX`].
const WAITING_MAX: usize = 4_096;

/// The first poller token of these connections. They are below those of the shared UDP sockets and above every session's.
const PROXIED_FIRST: usize = usize::MAX - 2_048;

/// The last of these tokens.
pub(crate) const PROXIED_LAST: usize = PROXIED_FIRST - WAITING_MAX;

fn proxied_token(index: usize) -> Token {
    Token(PROXIED_FIRST - index)
}
