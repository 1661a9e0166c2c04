//! Layers over sockets, beyond the conformance suite: handshakes that fail or never end, cuts, orderly ends, and bytes
//! that wait in layers at a drain or at the end of a turn.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod ends;

use std::io::{IoSlice, Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use tidewire::address::Address;
use tidewire::layer::{Ending, Layer, LayerError, PLAIN_BYTES_MAX};
use tidewire::{
    Client, CloseReason, ConnectError, Context, Message, ServeError, Server, ServerBuilder,
};
use tidewire_io::poller::{PollerChoice, PollerKind};
use tidewire_testkit::fixtures::{codec, echo, limited, lines, tw1};
use tidewire_testkit::{DEADLINE, Peer, TestServer, Wire, XorLayer, assert_conserved, layers_of};

/// A server over a Unix socket with a small fixed buffer.
fn serve(builder: ServerBuilder, layers: u8) -> TestServer {
    let builder = builder.layers(move |_| layers_of(layers, XorLayer::accepting));
    TestServer::over_ipc(builder, &tw1(), |_| echo).with_layers(layers)
}

/// Makes the layers of a client.
fn connecting(_: &Address) -> Vec<Box<dyn Layer>> {
    layers_of(1, XorLayer::connecting)
}

#[test]
fn connections_without_a_handshake_are_refused_and_counted() {
    let server = serve(Server::builder(), 1);
    let mut peer = Wire::connect(server.address()).unwrap();
    peer.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(peer.read(&mut [0; 100]).unwrap_or(0), 0, "the end");
    let metrics = server.wait_for("it is closed", |metrics| metrics.closed_by("layer") == 1);
    assert_eq!(metrics.frames_in, 0);
    server.stop();
}

#[test]
fn a_handshake_of_a_layer_that_never_ends_is_timed_out_on_both_sides() {
    let short = |limits: &mut tidewire::Limits| {
        limits
            .connections
            .set_handshake_timeout(Duration::from_millis(50));
    };
    for layers in [1, 2] {
        let server = serve(limited(short), layers);
        // One peer sends nothing, and one stops after the handshake of the first layer.
        let silent = Wire::connect(server.address()).unwrap();
        let mut partial = Wire::connect(server.address()).unwrap();
        if layers == 2 {
            let mut hello = Vec::new();
            XorLayer::connecting(0x5A).transmit(&mut hello);
            partial.write_all(&hello).unwrap();
        }
        server.wait_for("both are closed", |metrics| {
            metrics.closed_by("handshake_timeout") == 2
        });
        drop((silent, partial));
        server.stop();
    }

    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut limits = tidewire::Limits::default();
    short(&mut limits);
    let outcome = Client::builder()
        .limits(limits.connections)
        .layers(connecting)
        .connect(&deaf.local_addr().unwrap().to_string())
        .wait();
    let failure = ConnectError::Closed(CloseReason::HandshakeTimeout);
    assert_eq!(failed(outcome).to_string(), failure.to_string());
}

#[test]
fn a_client_learns_why_the_server_refuses_its_layers() {
    let server = serve(Server::builder(), 1);
    let client = Client::builder().layers(|_| layers_of(2, XorLayer::connecting));
    // The second layer's handshake is no frame of the protocol.
    let outcome = client
        .request_timeout(DEADLINE)
        .connect(&server.url())
        .wait();
    let expected = ConnectError::Closed(CloseReason::Layer(LayerError::Malformed));
    assert_eq!(failed(outcome).to_string(), expected.to_string());
    server.stop();
}

fn failed(outcome: Result<Client, ConnectError>) -> ConnectError {
    match outcome {
        Err(failure) => failure,
        other => panic!("neither connected nor failed in time: {other:?}"),
    }
}

/// A layer that expands its input, as decompression does.
#[derive(Debug)]
struct Expanding;

impl Layer for Expanding {
    fn receive(&mut self, network: &[u8], plain: &mut Vec<u8>) -> Result<usize, LayerError> {
        let mut used = 0;
        while used < network.len() && plain.len() < PLAIN_BYTES_MAX {
            plain.resize(plain.len() + EXPANSION, network[used]);
            used += 1;
        }
        Ok(used)
    }

    fn send(&mut self, plain: &[IoSlice<'_>], network: &mut Vec<u8>) -> Result<usize, LayerError> {
        let before = network.len();
        plain
            .iter()
            .for_each(|slice| network.extend_from_slice(slice));
        Ok(network.len() - before)
    }

    fn transmit(&mut self, _: &mut Vec<u8>) {}

    fn is_ready(&self) -> bool {
        true
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn close(&mut self, _: Ending, _: &mut Vec<u8>) {}
}

const EXPANSION: usize = 1_000;

/// One read of the socket yields more plaintext than the lane takes in a turn, and no event announces the rest.
#[test]
fn plaintext_beyond_the_share_of_a_turn_is_read_to_its_end() {
    const BYTES: usize = 500;
    for poller in PollerKind::ALL {
        let builder = limited(|limits| {
            limits.connections.set_turn_bytes_max(1);
        })
        .poller(PollerChoice::Only(poller))
        .layers(|_| vec![Box::new(Expanding)]);
        let drop_all = |_: &mut Context<'_>, _: Message<'_>| Ok(());
        let server = TestServer::over_ipc(builder, &codec("raw"), |_| drop_all);
        let mut peer = server.wire();
        peer.write_all(&[b'x'; BYTES]).unwrap();
        server.wait_for("everything is read", |metrics| {
            metrics.bytes_in == (BYTES * EXPANSION) as u64
        });
        drop(peer);
        server.stop();
    }
}

/// Each address of a server has its own layers, or none.
#[test]
fn listeners_with_layers_and_without_serve_side_by_side() {
    let make = |address: &Address| match address.host() {
        Some(_) => layers_of(1, XorLayer::accepting),
        None => Vec::new(),
    };
    let server = Server::builder()
        .codec(lines())
        .layers(make)
        .listen("tcp://127.0.0.1:0")
        .unwrap()
        .listen("inproc://layers/side-by-side")
        .unwrap()
        .start(|_| echo)
        .unwrap();
    for (address, layers) in server.addresses().iter().zip([1, 0]) {
        let wire = Wire::connect(address).unwrap().layered(layers).unwrap();
        let mut peer = Peer::greet(wire, &lines());
        peer.ask(b"hello");
        assert_eq!(peer.answer().payload, b"hello");
    }
    assert_conserved(&server.shutdown(DEADLINE));
}

#[test]
fn layers_where_there_is_no_byte_stream_are_refused_at_the_start() {
    for address in ["udp://127.0.0.1:0", "inproc://layers/refused"] {
        let make = |_: &Address| layers_of(1, XorLayer::accepting);
        let builder = Server::builder().layers(make).listen(address).unwrap();
        let error = builder.start(|_| echo).unwrap_err();
        assert!(matches!(error, ServeError::Layers { .. }), "{error}");
        let outcome = Client::builder().layers(connecting).connect(address).wait();
        let Err(ConnectError::Start(error)) = outcome else {
            panic!("layers over {address}");
        };
        assert!(matches!(
            error.downcast_ref(),
            Some(ServeError::Layers { .. })
        ));
    }
}

#[test]
fn layers_carry_both_framings_of_a_codec_at_one_server() {
    let builder = Server::builder().codec(codec("uvrpc"));
    let mut builder = builder.layers(|_| layers_of(1, XorLayer::accepting));
    for framing in ["length", "none"] {
        let address = format!("tcp://127.0.0.1:0?framing={framing}");
        builder = builder.listen(&address).unwrap();
    }
    let server = builder.start(|_| echo).unwrap();
    for (endpoint, framing) in server.addresses().iter().zip(["length", "none"]) {
        let client = Client::builder().codec(codec("uvrpc")).layers(connecting);
        let address = format!("{endpoint}?framing={framing}");
        let client = client.connect(&address).wait().unwrap();
        assert_eq!(client.request(b"hello").wait().unwrap().payload(), b"hello");
    }
    assert_conserved(&server.shutdown(DEADLINE));
}
