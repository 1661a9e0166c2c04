//! Connections that come from a proxy: their PROXY header is read before anything else.
//!
//! Problem: behind a proxy all clients have the address of the proxy, and limits, logs and authenticators need theirs.
//! Approach: the lane that accepts reads the header of a connection before it counts and assigns it. So everything
//! behind this step gets the address of the client, also TLS and WebSocket. The step reads exactly as many bytes as the
//! header has, so nothing is left over, and the session costs what it costs without a proxy. Rejected: a layer, because
//! it would see every byte of the connection's life.
//!
//! Only connections from listed addresses come here. Each has the time of a handshake for its header, and is no session
//! until then: a client that opens many connections would else use up the share of its proxy, and lock out the others.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use slab::Slab;
use tidewire_io::poller::{Interest, Token};
use tidewire_io::socket::Stream;
use tidewire_io::timer::TimerId;
use tidewire_proto::proxy::{PROXY_HEADER_BYTES_MAX, Proxied, ProxyError, ProxyHeader, decode};

use super::admission::Admission;
use crate::observe::QuietLog;
use crate::session::{LaneSessions, TimerKey};
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

impl ProxiedArrivals {
    /// Takes up a connection of a proxy, and reads its header as far as it has come. Returns the connection if the
    /// header is whole.
    pub(super) fn await_header(
        &mut self,
        stream: Stream,
        proxy: SocketAddr,
        terms: Arc<ListenerTerms>,
        sessions: &mut LaneSessions,
        admission: &mut Admission,
    ) -> Option<Arrival> {
        // A connection that is refused here ends without a word, because its client did not ask for anything yet.
        if self.waiting.len() >= WAITING_MAX {
            sessions.counters.proxy_headers_refused.add(1);
            return None;
        }
        admission.count_unnamed(sessions, &proxy.into()).ok()?;
        let entry = self.waiting.vacant_entry();
        let index = entry.key();
        let (socket, token) = (stream.as_fd(), proxied_token(index));
        if let Err(error) = sessions.poller.add(socket, token, Interest::READ) {
            tracing::error!(%error, "cannot watch a connection");
            sessions.counters.sessions_refused.add(1);
            admission.leave_unnamed();
            return None;
        }
        let time_ns = sessions
            .config
            .codecs
            .rules(terms.codec_number())
            .handshake_timeout_ns;
        entry.insert(Waiting {
            stream,
            proxy,
            terms,
            header: Vec::new(),
            timer: sessions.timers.set_after(time_ns, TimerKey::Proxied(index)),
        });
        self.read(index, sessions, admission)
    }

    /// Reads what has come of a header. Returns the connection once the header is whole.
    pub(super) fn read(
        &mut self,
        index: usize,
        sessions: &mut LaneSessions,
        admission: &Admission,
    ) -> Option<Arrival> {
        match self.waiting.get_mut(index)?.read() {
            Ok(None) => None,
            Ok(Some(proxied)) => {
                let Waiting {
                    stream,
                    proxy,
                    terms,
                    ..
                } = self.remove(index, sessions, admission)?;
                let peer = match proxied {
                    Proxied::Tcp { source, .. } => source,
                    Proxied::Local | Proxied::Unknown => proxy,
                };
                Some(Arrival::accepted(stream, Some(peer), &terms))
            }
            Err(error) => {
                self.refuse(index, sessions, admission, &error);
                None
            }
        }
    }

    /// Ends all connections without a whole header, when the lane takes no more connections.
    pub(super) fn end(&mut self, sessions: &mut LaneSessions, admission: &Admission) {
        let all: Vec<usize> = self.waiting.iter().map(|(it, _)| it).collect();
        for index in all {
            if self.remove(index, sessions, admission).is_some() {
                sessions.counters.sessions_refused.add(1);
            }
        }
    }

    /// Ends a connection, and logs the reason.
    pub(super) fn refuse(
        &mut self,
        index: usize,
        sessions: &mut LaneSessions,
        admission: &Admission,
        reason: &dyn std::fmt::Display,
    ) {
        let Some(waiting) = self.remove(index, sessions, admission) else {
            return;
        };
        if let Some(unlogged) = self.log.may_log(sessions.timers.now_ns()) {
            tracing::warn!(
                proxy = %waiting.proxy,
                unlogged,
                "refusing a connection of a proxy: {reason}; further ones are not logged for 10 s"
            );
        }
        // The counter changes last, so that a test that sees the count finds the line in the log.
        sessions.counters.proxy_headers_refused.add(1);
    }

    fn remove(
        &mut self,
        index: usize,
        sessions: &mut LaneSessions,
        admission: &Admission,
    ) -> Option<Waiting> {
        let waiting = self.waiting.try_remove(index)?;
        sessions.timers.cancel(waiting.timer);
        if let Err(error) = sessions.poller.remove(waiting.stream.as_fd()) {
            tracing::error!(%error, "cannot stop watching a connection");
        }
        admission.leave_unnamed();
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

/// Most connections of proxies that a lane reads headers of at once. Proxies send the header at once, so more of them
/// are stuck, and each may hold [`PROXY_HEADER_BYTES_MAX`].
const WAITING_MAX: usize = 4_096;

/// The first poller token of these connections. They are below those of the shared UDP sockets and above every
/// session's.
const PROXIED_FIRST: usize = usize::MAX - 2_048;

/// The last of these tokens.
pub(crate) const PROXIED_LAST: usize = PROXIED_FIRST - WAITING_MAX;

fn proxied_token(index: usize) -> Token {
    Token(PROXIED_FIRST - index)
}

/// The connection of a poller's token, if it is one whose header is awaited.
pub(crate) fn proxied_of(token: Token) -> Option<usize> {
    let index = PROXIED_FIRST.checked_sub(token.0)?;
    (index < WAITING_MAX).then_some(index)
}
