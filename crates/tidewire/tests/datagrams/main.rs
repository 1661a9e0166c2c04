//! What only UDP can do to a server: unvalidated addresses, forged addresses, losses, datagrams that make no sense. Each is
//! counted and bounded, and nobody else notices.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod broadcast;
mod client;
mod forged;
mod frames;
mod losses;
mod sessions;
mod unvalidated;

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use tidewire::{AnyCodec, Endpoint, Kind, Message};
use tidewire_proto::codec::{Codec, Decoded};
use tidewire_testkit::fixtures::{echo, limited};
use tidewire_testkit::{DEADLINE, TestServer};

fn codec(name: &str) -> AnyCodec {
    AnyCodec::by_name(name).unwrap().for_datagrams()
}

/// Where a server listens.
fn port_of(server: &TestServer) -> SocketAddr {
    let Endpoint::Udp(address) = server.address() else {
        panic!("not over UDP: {}", server.url());
    };
    *address
}

/// A socket that has said nothing yet to this address, and says nothing by itself.
fn new_socket(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

/// The next datagram.
fn received(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).expect("a datagram in time");
    buffer.truncate(length);
    buffer
}

/// What has arrived already, without waiting.
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

/// A one-way message, which is a request to codecs without ids.
fn one_way(codec: &AnyCodec, payload: &[u8]) -> Vec<u8> {
    frame(codec, &Message::new(Kind::OneWay, 0, payload))
}

/// The payloads of the frames of one datagram, which must be whole.
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
