//! Faults that only UDP has: unknown peers, forged addresses, losses, malformed datagrams. Each is counted and bounded,
//! and other peers are not affected.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod broadcast;
mod client;
mod forged;
mod frames;
mod losses;
mod sessions;
mod shares;
mod unvalidated;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use tidewire::{AnyCodec, Endpoint, Kind, Message};
use tidewire_proto::codec::{Codec, Decoded};
use tidewire_testkit::fixtures::{echo, limited};
use tidewire_testkit::{DEADLINE, TestServer};

fn codec(name: &str) -> AnyCodec {
    AnyCodec::by_name(name).unwrap().for_datagrams()
}

/// Returns the address of a server.
fn port_of(server: &TestServer) -> SocketAddr {
    let Endpoint::Udp(address) = server.address() else {
        panic!("not over UDP: {}", server.url());
    };
    *address
}

/// Returns a socket that has sent nothing to this address.
fn unknown_peer(server: SocketAddr) -> UdpSocket {
    peer_at(Ipv4Addr::LOCALHOST, server)
}

/// Returns a socket at this address that has sent nothing to the server.
fn peer_at(source: Ipv4Addr, server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((source, 0)).unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// Waits for the next datagram.
fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).expect("a datagram in time");
    buffer.truncate(length);
    buffer
}

/// Returns the datagrams that have arrived, without waiting.
fn arrived(socket: &UdpSocket) -> Vec<Vec<u8>> {
    socket.set_nonblocking(true).unwrap();
    let mut buffer = vec![0; 65_536];
    let mut all = Vec::new();
    loop {
        match socket.recv(&mut buffer) {
            Ok(length) => all.push(buffer[..length].to_vec()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                socket.set_nonblocking(false).unwrap();
                return all;
            }
        }
    }
}

fn frame(codec: &AnyCodec, message: &Message<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    codec.encode(message, &mut frame).unwrap();
    frame
}

/// Encodes a one-way message. Codecs without ids take it for a request.
fn one_way(codec: &AnyCodec, payload: &[u8]) -> Vec<u8> {
    frame(codec, &Message::new(Kind::OneWay, 0, payload))
}

/// Decodes the payloads of the frames of one datagram, which must be complete.
fn payloads(codec: &AnyCodec, mut datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while !datagram.is_empty() {
        match codec.decode(datagram, 1 << 20) {
            Ok(Decoded::Frame { message, consumed }) => {
                all.push(message.payload.to_vec());
                datagram = &datagram[consumed..];
            }
            other => panic!("a frame was cut: {other:?}"),
        }
    }
    all
}
