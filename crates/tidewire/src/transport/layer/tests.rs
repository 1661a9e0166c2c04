use std::sync::Arc;

use tidewire_proto::layer::{Ending, Layer, OUTPUT_BYTES_MAX};
use tidewire_proto::websocket::{ClientTerms, Masks, MessageKind, ServerTerms, WebSocketLayer};
use tidewire_testkit::XorLayer;

use super::*;

/// Both ends of a connection with two layers, and a small send buffer.
fn ends() -> (LayeredStream, LayeredStream) {
    let (near, far) = Stream::pair().unwrap();
    let over = |stream: Stream, make: fn(u8) -> XorLayer| {
        stream.set_send_buffer_bytes(4_096).unwrap();
        let layers = [1, 2].map(|key| Box::new(make(key)) as Box<dyn Layer>);
        LayeredStream::new(stream, Stack::new(layers.into()).unwrap())
    };
    (
        over(near, XorLayer::connecting),
        over(far, XorLayer::accepting),
    )
}

fn secured() -> (LayeredStream, LayeredStream) {
    let (mut near, mut far) = ends();
    while !(near.secure().unwrap() & far.secure().unwrap()) {}
    (near, far)
}

/// Reads all bytes that are there now.
fn read_all(stream: &mut LayeredStream) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(error) if is_blocked(&error) => return all,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn nothing_is_written_before_the_layers_are_ready() {
    let (mut near, mut far) = ends();
    assert!(!near.is_secured());
    let refused = near.write(b"early").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::WouldBlock);
    assert_eq!(
        near.pending_bytes(),
        0,
        "the poller would report it for ever"
    );
    let mut rounds = 0;
    while !(near.secure().unwrap() & far.secure().unwrap()) {
        rounds += 1;
    }
    assert_eq!(rounds, 2, "a round trip for each layer");
    assert_eq!(near.write(b"now").unwrap(), 3);
    assert_eq!(read_all(&mut far), b"now");
}

/// Both ends of a WebSocket: a server, and a client.
fn websocket() -> (LayeredStream, LayeredStream) {
    let (near, far) = Stream::pair().unwrap();
    near.set_send_buffer_bytes(4_096).unwrap();
    let server = ServerTerms::new("/", "raw", MessageKind::Binary);
    let client = ClientTerms::new("localhost:1", "/", "raw", MessageKind::Binary).unwrap();
    let server = WebSocketLayer::accepting(Arc::new(server));
    let client = WebSocketLayer::connecting(Arc::new(client), Masks::new([1, 2]));
    let over =
        |stream, layer| LayeredStream::new(stream, Stack::from(Box::new(layer) as Box<dyn Layer>));
    let (mut near, mut far) = (over(near, server), over(far, client));
    while !(near.secure().unwrap() & far.secure().unwrap()) {}
    (near, far)
}

/// The bug: the answer to the handshake is so short that its buffer was kept, 160 bytes of each idle session.
#[test]
fn a_websocket_keeps_no_buffer_of_its_handshake() {
    let (near, far) = websocket();
    for end in [near, far] {
        assert_eq!(end.memory_bytes(), size_of::<WebSocketLayer>());
    }
}

#[test]
fn a_socket_that_takes_little_holds_a_bounded_output_and_loses_nothing() {
    assert_bounded_and_whole(secured());
}

/// The header and the plaintext go to the socket in one write, which may take any part of both.
#[test]
fn a_websocket_over_a_full_socket_holds_a_bounded_output_and_loses_nothing() {
    assert_bounded_and_whole(websocket());
}

fn assert_bounded_and_whole((mut near, mut far): (LayeredStream, LayeredStream)) {
    let plain: Vec<u8> = (0..1_000_000_u32)
        .map(|number| (number >> 4) as u8)
        .collect();
    let (mut accepted, mut received, mut blocked) = (0, Vec::new(), 0);
    while received.len() < plain.len() {
        let (one, other) = plain[accepted..].split_at((plain.len() - accepted) / 2);
        match near.write_vectored(&[IoSlice::new(one), IoSlice::new(other)]) {
            Ok(count) => accepted += count,
            Err(error) => {
                assert!(is_blocked(&error));
                blocked += 1;
            }
        }
        assert!(near.pending_bytes() <= OUTPUT_BYTES_MAX);
        received.extend(read_all(&mut far));
    }
    assert!(received == plain);
    assert!(blocked > 0, "the test was to fill the socket");
}

/// The bug: when a failure followed plaintext that was not read yet, a write said that it would block. The socket took
/// bytes, so a session that did not read woke its lane for ever.
#[test]
fn after_a_failure_writes_fail_and_the_plaintext_before_it_is_read_first() {
    let (mut near, mut far) = websocket();
    assert_eq!(far.write(b"before").unwrap(), 6);
    // An unmasked frame breaks the rules.
    assert_eq!(far.stream.write(b"\x82\x01x").unwrap(), 3);
    near.receive(&mut [0; 64]).unwrap();
    assert_eq!(
        near.write(b"reply").unwrap_err().kind(),
        ErrorKind::BrokenPipe
    );
    let mut rest = [0; 16];
    assert_eq!(near.read(&mut rest).unwrap(), 6);
    assert_eq!(&rest[..6], b"before");
    assert!(near.read(&mut rest).is_err_and(|error| !is_blocked(&error)));
}

#[test]
fn plaintext_that_is_left_keeps_the_stream_awake_while_it_is_read() {
    let (mut near, mut far) = secured();
    assert_eq!(near.write(&[7; 1_000]).unwrap(), 1_000);
    assert!(!far.wake() && !far.is_awake());
    far.is_read = true;
    assert_eq!(far.read(&mut [0; 600]).unwrap(), 600);
    assert!(far.wake() && !far.wake(), "it is told once");
    assert!(far.is_awake() && far.finish_turn(true));
    far.is_read = false;
    assert!(!far.finish_turn(true), "nobody reads");
    assert!(far.is_awake(), "but it is looked at when somebody does");
    far.is_read = true;
    assert_eq!(far.read(&mut [0; 600]).unwrap(), 400);
    assert!(!far.finish_turn(true) && !far.is_awake());
}

#[test]
fn a_connection_that_is_cut_is_a_reset_and_never_an_end() {
    let (mut near, mut far) = secured();
    assert_eq!(near.write(b"last").unwrap(), 4);
    drop(near);
    let mut buffer = [0; 10];
    assert_eq!(far.read(&mut buffer).unwrap(), 4);
    let cut = far.read(&mut buffer).unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);

    // A peer that ends in the middle of the handshake has cut it, too.
    let (near, mut far) = ends();
    drop(near);
    let cut = far.secure().unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_last_record_follows_what_a_full_socket_had_not_taken() {
    let (mut near, mut far) = secured();
    let (mut accepted, piece) = (0, [7; 1_000]);
    while near.pending_bytes() == 0 {
        accepted += near.write(&piece).unwrap();
    }
    near.shutdown_write().unwrap();
    let late = near.write(b"late").unwrap_err();
    assert_eq!(late.kind(), ErrorKind::WouldBlock, "until all is written");
    let mut received = 0;
    while near.flush().is_err() {
        received += read_all(&mut far).len();
    }
    let late = near.write(b"late").unwrap_err();
    assert_eq!(late.kind(), ErrorKind::BrokenPipe);
    received += read_all(&mut far).len();
    assert_eq!(received, accepted);
    assert_eq!(far.read(&mut [0; 10]).unwrap(), 0, "an end in order");
    // The other direction goes on.
    assert_eq!(far.write(b"answer").unwrap(), 6);
    assert_eq!(read_all(&mut near), b"answer");
}

#[test]
fn garbage_names_its_cause() {
    let (mut near, mut far) = Stream::pair().unwrap();
    let stack = Stack::new(vec![Box::new(XorLayer::accepting(1))]).unwrap();
    assert_eq!(near.write(b"GET / HTTP/1.1").unwrap(), 14);
    let mut far = LayeredStream::new(
        std::mem::replace(&mut far, Stream::pair().unwrap().0),
        stack,
    );
    let error = far.secure().unwrap_err();
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    assert_eq!(cause, Some(&LayerError::RecordTooLong));
}

/// The peer waits for our end before it closes its socket, so no other event comes. Its end was noticed only by the
/// idle timeout.
#[test]
fn the_end_of_layers_is_noticed_although_the_socket_goes_on() {
    let (mut near, mut far) = secured();
    far.is_read = true;
    assert_eq!(near.write(b"last").unwrap(), 4);
    near.stack.close(Ending::InOrder).unwrap();
    near.flush().unwrap();
    let mut buffer = [0; 1_000];
    assert_eq!(far.read(&mut buffer).unwrap(), 4);
    assert!(far.is_dry && !far.is_dry_after_short_read());
    assert!(far.wake() && far.finish_turn(true));
    assert_eq!(far.read(&mut buffer).unwrap(), 0);
    assert!(!far.finish_turn(true) && !far.is_awake(), "it is told once");
}

#[test]
fn a_connection_whose_layers_were_forgotten_does_not_become_plaintext() {
    let makes = std::sync::atomic::AtomicUsize::new(0);
    let factory = LayerFactory::new(move |_| {
        // The first call returns layers, and later calls for connections return none.
        match makes.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => vec![Box::new(XorLayer::connecting(1)) as Box<dyn Layer>],
            _ => Vec::new(),
        }
    });
    let layers = factory
        .layers(&"tcp://127.0.0.1:1".parse().unwrap())
        .unwrap();
    let (near, mut far) = Stream::pair().unwrap();
    let mut transport = layers.over(near);
    assert!(transport.has_layers() && !transport.is_secured());
    assert_eq!(
        transport.write(b"secret").unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert_eq!(far.write(b"hello").unwrap(), 5);
    let error = transport.secure().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}
