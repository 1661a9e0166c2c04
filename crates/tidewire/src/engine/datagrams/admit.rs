//! Decides which addresses get a session.
//!
//! Problem: the sender of a datagram can forge its source address. Sessions for forged addresses would fill the server,
//! and answers to them would make the server an amplifier for attacks. Approach, if the codec validates addresses: the
//! server keeps nothing for an unvalidated address. It answers a hello with a challenge, a ping of 16 bytes whose
//! payload is computed from the address with a secret key. A peer that returns the payload, followed by the hello
//! again, has shown that it receives at that address, and gets a session. With other codecs the first datagram that
//! begins with a whole frame makes the session. The server sends that address no more bytes than came from it, unless
//! the server is configured to trust its peers. A datagram whose source is an address of this server gets no answer,
//! because the server would answer itself for ever.
//!
//! Rejected: short-lived sessions for unvalidated addresses, because a flood would still fill the server; and a
//! special frame for the challenge, because clients already answer pings.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;

use tidewire_io::datagram::Datagram;
use tidewire_proto::body::GoAwayCode;
use tidewire_proto::codec::{Codec, Decoded};
use tidewire_proto::connection::{Connection, Delivery};
use tidewire_proto::limits::HELLO_BYTES_MAX;
use tidewire_proto::message::{Kind, Message};

use super::Ports;
use crate::address::Endpoint;
use crate::engine::Core;
use crate::engine::admission::turn_away;
use crate::observe::DatagramDrop;
use crate::session::LaneSessions;
use crate::transport::datagram::DatagramPeer;
use crate::transport::{AnyTransport, Transport};

/// Makes and verifies the payloads of challenges.
///
/// The key comes from the standard library's random keys for hash tables, and the hash is SipHash. Without the key, a
/// peer cannot guess the payload for an address at which it does not receive. All lanes of a server share one key.
#[derive(Debug, Default)]
pub(crate) struct Cookies {
    key: RandomState,
}

impl Cookies {
    fn make(&self, address: SocketAddr, now_ns: u64) -> [u8; 8] {
        self.of_window(address, now_ns / WINDOW_NS)
    }

    /// Whether the cookie was made for this address, in the current time window or the previous one.
    fn knows(&self, address: SocketAddr, now_ns: u64, cookie: &[u8]) -> bool {
        let window = now_ns / WINDOW_NS;
        [window, window.wrapping_sub(1)]
            .into_iter()
            .any(|window| cookie == self.of_window(address, window))
    }

    fn of_window(&self, address: SocketAddr, window: u64) -> [u8; 8] {
        self.key.hash_one((address, window)).to_le_bytes()
    }

    /// Decides about the first datagram of an address.
    fn judge<C: Codec + ?Sized>(
        &self,
        sessions: &LaneSessions,
        datagram: &Datagram<'_>,
        codec: &C,
    ) -> FirstDatagram {
        if datagram.truncated {
            return FirstDatagram::Stray(DatagramDrop::Truncated);
        }
        let bytes = datagram.bytes;
        if !codec.format().proves_addresses() {
            return match codec.decode(bytes, sessions.config.limits.connections.frame_bytes_max()) {
                Ok(Decoded::Frame { .. }) => FirstDatagram::Welcome,
                Ok(Decoded::Incomplete { .. }) => FirstDatagram::Stray(DatagramDrop::Unfinished),
                Err(_) => FirstDatagram::Stray(DatagramDrop::Malformed),
            };
        }
        match frame(codec, bytes) {
            Some((hello, _)) if hello.kind == Kind::Hello => FirstDatagram::Unproven,
            Some((pong, used)) if pong.kind == Kind::Pong => {
                let follows = frame(codec, &bytes[used..]);
                let is_hello = follows.is_some_and(|(hello, _)| hello.kind == Kind::Hello);
                match is_hello {
                    true if self.knows(datagram.peer, sessions.timers.now_ns(), pong.payload) => {
                        FirstDatagram::Welcome
                    }
                    true => FirstDatagram::Unproven,
                    false => FirstDatagram::Stray(DatagramDrop::UnvalidatedAddress),
                }
            }
            _ => FirstDatagram::Stray(DatagramDrop::UnvalidatedAddress),
        }
    }

    /// Sends an address a challenge, in no more bytes than came from it.
    fn challenge<C: Codec + ?Sized>(
        &self,
        sessions: &mut LaneSessions,
        peer: &mut DatagramPeer,
        codec: &C,
        bytes_max: usize,
    ) {
        let cookie = self.make(peer.address(), sessions.timers.now_ns());
        let mut frame = sessions.outputs.take_buffer();
        let ping = Message::new(Kind::Ping, 0, &cookie);
        // A codec that validates addresses can express pings. If the socket is full, the challenge is lost, and the
        // peer asks again.
        let encoded = codec.encode(&ping, &mut frame);
        let is_fair = encoded.is_ok() && frame.len() <= bytes_max;
        if is_fair && peer.write(&frame).is_ok() {
            sessions.counters.challenges.add(1);
        } else {
            sessions
                .counters
                .drop_datagram(DatagramDrop::UnvalidatedAddress);
        }
        sessions.outputs.put_buffer(frame);
    }
}

/// The decision about the first datagram of an unvalidated address.
enum FirstDatagram {
    /// The address may have a session.
    Welcome,
    /// The address must first show that it receives datagrams.
    Unproven,
    /// The datagram cannot begin a session.
    Stray(DatagramDrop),
}

impl Ports {
    /// The peer that has sent a datagram to a shared socket.
    fn peer_of(&self, port: usize, datagram: &Datagram<'_>) -> DatagramPeer {
        let socket = Arc::clone(&self.all[port].socket);
        DatagramPeer::at_port(socket, port, datagram.peer, datagram.local)
    }

    /// Notes the session of a new peer.
    fn insert(&mut self, port: usize, peer: SocketAddr, slot: usize) {
        self.all[port].peers.insert(peer, slot);
    }
}

impl Core {
    /// Handles the first datagram of an address. Returns its session if it may have one.
    pub(crate) fn admit<C: Codec + ?Sized>(
        &mut self,
        port: usize,
        datagram: &Datagram<'_>,
        codec: &C,
    ) -> Option<usize> {
        let (ports, sessions) = (&mut self.ports, &mut self.sessions);
        if ports.is_own(datagram.peer) {
            sessions.counters.drop_datagram(DatagramDrop::OwnAddress);
            return None;
        }
        // An empty datagram ends a session. Without a session it gets no answer, because two servers would otherwise
        // answer each other for ever.
        if datagram.bytes.is_empty() {
            sessions
                .counters
                .drop_datagram(DatagramDrop::UnvalidatedAddress);
            return None;
        }
        let cookies = &self.shared.cookies;
        let first = match self.ending.is_draining() {
            true => FirstDatagram::Stray(DatagramDrop::Closing),
            false => cookies.judge(sessions, datagram, codec),
        };
        let mut peer = ports.peer_of(port, datagram);
        match first {
            FirstDatagram::Welcome => {}
            FirstDatagram::Unproven => {
                cookies.challenge(sessions, &mut peer, codec, datagram.bytes.len());
                return None;
            }
            FirstDatagram::Stray(reason) => {
                sessions.counters.drop_datagram(reason);
                // A peer that believes it has a session learns that it has none. A failed send is ignored.
                let _ = peer.shutdown_write();
                return None;
            }
        }
        let number = ports.codec_number(port);
        let endpoint = Endpoint::Udp(datagram.peer);
        let is_proved = codec.format().proves_addresses();
        let counted = self
            .admission
            .count_in(sessions, Some(&endpoint), is_proved);
        if let Err(refusal) = counted {
            sessions.counters.drop_datagram(DatagramDrop::Refused);
            let mut stream = AnyTransport::from(peer);
            if codec.format().has_go_away {
                turn_away(
                    self.config.codecs.get(number),
                    stream,
                    GoAwayCode::LimitReached,
                    refusal.text(),
                );
            } else {
                let _ = stream.shutdown_write();
            }
            return None;
        }
        let connection = Connection::accepted(
            self.config.codecs.rules(number),
            Delivery::Lossy,
            sessions.timers.now_ns(),
        );
        let is_unvalidated = !is_proved && !self.config.trusts_datagram_peers;
        if is_unvalidated {
            peer.begin_unproven();
            ports.unvalidated.evict(sessions, ports.lanes.count());
        }
        let inserted = self.insert(peer.into(), number, Some(endpoint.clone()), connection);
        let Ok(slot) = inserted else {
            self.shared.limiter.leave(Some(&endpoint));
            return None;
        };
        self.ports.insert(port, datagram.peer, slot);
        if is_unvalidated {
            self.ports.unvalidated.add(&mut self.sessions, slot);
        }
        Some(slot)
    }
}

/// Returns the frame at the front, and its length.
fn frame<'a, C: Codec + ?Sized>(codec: &C, bytes: &'a [u8]) -> Option<(Message<'a>, usize)> {
    match codec.decode(bytes, HELLO_BYTES_MAX) {
        Ok(Decoded::Frame { message, consumed }) => Some((message, consumed)),
        _ => None,
    }
}

/// The time window of a challenge. A challenge can be answered for one to two windows, which is several times the
/// longest handshake.
const WINDOW_NS: u64 = 20_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_its_address_and_for_a_while() {
        let cookies = Cookies::default();
        let address: SocketAddr = "10.0.0.1:5".parse().unwrap();
        let now_ns = 100 * WINDOW_NS;
        let cookie = cookies.make(address, now_ns);
        assert!(cookies.knows(address, now_ns, &cookie));
        assert!(cookies.knows(address, now_ns + WINDOW_NS, &cookie));
        assert!(!cookies.knows(address, now_ns + 2 * WINDOW_NS, &cookie));
        assert!(!cookies.knows("10.0.0.1:6".parse().unwrap(), now_ns, &cookie));
        assert!(!cookies.knows(address, now_ns, &cookie[..7]));
        assert!(!Cookies::default().knows(address, now_ns, &cookie));
    }
}
