//! Ends of connections with layers: in order, cut, and while bytes wait in the layers.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tidewire::{Client, CloseReason, Context, Event, Kind, Message, Server};
use tidewire_proto::layer::{Ending, Stack};
use tidewire_testkit::fixtures::{lines, tw1};
use tidewire_testkit::{Peer, TestServer, XorLayer, assert_conserved, layers_of};

use crate::{connecting, serve};

#[test]
fn the_server_tells_an_end_from_a_cut() {
    for layers in [1, 2] {
        let server = serve(Server::builder(), layers);
        drop(server.peer());
        server.wait_for("the cut", |metrics| metrics.closed_by("peer_reset") == 1);
        let mut ended = server.peer();
        ended.finish_writing();
        assert_eq!(ended.receive(), None);
        server.wait_for("the end", |metrics| metrics.closed_by("peer_closed") == 1);
        server.stop();
    }
}

#[test]
fn the_client_tells_an_end_from_a_cut() {
    for in_order in [true, false] {
        let (address, serving) = end_after_the_handshake(in_order);
        let client = Client::builder().codec(lines()).layers(connecting);
        let client = client.connect(&address).wait().unwrap();
        let reason = loop {
            match client.next_event().wait() {
                Event::Closed { reason, .. } => break reason,
                Event::Ended => panic!("it ended without a reason"),
                _ => {}
            }
        };
        let expected = match in_order {
            true => CloseReason::PeerClosed,
            false => CloseReason::PeerReset,
        };
        assert_eq!(reason, expected);
        serving.join().unwrap();
    }
}

/// Starts a server that takes one client through the handshake of its layer and then ends, in order or not. Returns its
/// address.
fn end_after_the_handshake(in_order: bool) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut stack = Stack::new(layers_of(1, XorLayer::accepting)).unwrap();
        let mut buffer = [0; 100];
        while !stack.is_ready() {
            let count = socket.read(&mut buffer).unwrap();
            stack.receive(&buffer[..count]).unwrap();
        }
        if in_order {
            stack.close(Ending::InOrder).unwrap();
        }
        socket.write_all(stack.unsent()).unwrap();
    });
    (address, serving)
}

/// Answers with more bytes than the socket and the layers hold, and closes.
fn flood_and_close(cx: &mut Context<'_>, _: Message<'_>) -> tidewire::HandlerResult {
    for number in 0..REPLIES {
        let mut payload = vec![b'.'; REPLY_BYTES];
        payload[..4].copy_from_slice(&number.to_le_bytes());
        cx.send(Message::new(Kind::OneWay, 0, &payload))?;
    }
    cx.close();
    Ok(())
}

/// A server that floods and closes its sessions, and a peer that has sent a request and reads nothing yet.
fn flooded(layers: u8) -> (TestServer, Peer) {
    let builder = Server::builder().layers(move |_| layers_of(layers, XorLayer::accepting));
    let server = TestServer::over_ipc(builder, &tw1(), |_| flood_and_close).with_layers(layers);
    let mut peer = server.narrow_peer();
    let welcome = server.metrics().bytes_out;
    peer.send(&Message::new(Kind::OneWay, 0, b"go"));
    server.wait_for("the flood is under way", |metrics| {
        metrics.bytes_out > welcome + 1_000
    });
    (server, peer)
}

/// Reads everything in small pieces. A cut connection would fail, because the wire distinguishes it from an orderly
/// end.
fn read_all(peer: &mut Peer) -> u32 {
    let mut next = 0_u32;
    while let Some(message) = peer.receive_in_pieces(1_500) {
        if message.kind == Kind::OneWay {
            assert_eq!(message.payload[..4], next.to_le_bytes());
            assert_eq!(message.payload.len(), REPLY_BYTES);
            next += 1;
        }
    }
    next
}

#[test]
fn a_session_that_closes_after_a_slow_reader_ends_in_order() {
    for layers in [1, 2] {
        let (server, mut peer) = flooded(layers);
        assert_eq!(read_all(&mut peer), REPLIES);
        let metrics = server.stop();
        assert_eq!(metrics.closed_by("service"), 1, "{metrics:#?}");
    }
}

#[test]
fn a_drain_waits_for_bytes_in_layers() {
    for layers in [1, 2] {
        let (server, mut peer) = flooded(layers);
        let stopping = thread::spawn(move || server.stop_unchecked());
        assert_eq!(read_all(&mut peer), REPLIES);
        let stopped = stopping.join().unwrap();
        assert_conserved(&stopped);
        assert_eq!(stopped.metrics.sessions_cut_off, 0);
    }
}

#[test]
fn a_drain_counts_sessions_with_bytes_left_in_their_layers() {
    let (server, peer) = flooded(1);
    let stopped = server.shutdown(Duration::from_millis(50));
    assert_conserved(&stopped);
    assert_eq!(stopped.metrics.sessions_cut_off, 1);
    drop(peer);
}

const REPLIES: u32 = 300;
const REPLY_BYTES: usize = 4_000;
