//! The layer without sockets: every cut of the bytes, bounds, large records, orderly ends and cuts.

use std::io::IoSlice;

use tidewire::layer::{Ending, LayerError, OUTPUT_BYTES_MAX};
use tidewire::tls::TlsFault;
use tidewire_proto::layer::Stack;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::stacks::{carry, exchange_all, read_all, stack_of, write};

fn sides() -> (Stack, Stack) {
    let (authority, server) = usual();
    let client = authority.client().layer("localhost", Some("tw1")).unwrap();
    let server = server.server().layer("tw1").unwrap();
    (stack_of(vec![client]), stack_of(vec![server]))
}

fn ready(piece_bytes: usize) -> (Stack, Stack) {
    let (mut client, mut server) = sides();
    exchange_all(&mut client, &mut server, piece_bytes);
    assert!(client.is_ready() && server.is_ready());
    (client, server)
}

#[test]
fn plaintext_comes_whole_in_pieces_of_any_size() {
    for piece_bytes in [1, 2, 3, 4_097, usize::MAX] {
        let (mut client, mut server) = ready(piece_bytes);
        assert_eq!(write(&mut client, b"one"), 3);
        assert_eq!(write(&mut client, &[7; 20_000]), 20_000);
        carry(&mut client, &mut server, piece_bytes).unwrap();
        let received = read_all(&mut server);
        assert!(received[..3] == *b"one" && received[3..] == [7; 20_000]);
        assert_eq!(write(&mut server, b"answer"), 6);
        carry(&mut server, &mut client, piece_bytes).unwrap();
        assert_eq!(read_all(&mut client), b"answer");
    }
}

#[test]
fn waiting_bytes_are_sealed_in_records_of_16_kib_for_all_slices() {
    let (mut client, mut server) = ready(usize::MAX);
    let plain = [7; 32 << 10];
    let slices: Vec<IoSlice<'_>> = plain.chunks(1 << 10).map(IoSlice::new).collect();
    assert_eq!(client.write(&slices).unwrap(), plain.len());
    // A record costs its header of 5 bytes, a byte for its type, and a tag of 16.
    assert_eq!(client.unsent().len(), plain.len() + 2 * 22);
    carry(&mut client, &mut server, usize::MAX).unwrap();
    assert!(read_all(&mut server) == plain);
}

#[test]
fn a_peer_that_takes_nothing_holds_a_bounded_ciphertext() {
    let (mut client, _) = ready(usize::MAX);
    let mut accepted = 0;
    loop {
        match write(&mut client, &[7; 10_000]) {
            0 => break,
            count => accepted += count,
        }
        assert!(client.unsent().len() <= OUTPUT_BYTES_MAX);
    }
    assert!(accepted >= 40_000, "{accepted}");
}

#[test]
fn an_end_is_in_order_only_with_its_record() {
    let (mut client, mut server) = ready(usize::MAX);
    write(&mut client, b"last");
    carry(&mut client, &mut server, usize::MAX).unwrap();
    assert_eq!(server.handle_network_end(), Err(LayerError::Truncated));
    client.close(Ending::InOrder).unwrap();
    carry(&mut client, &mut server, 1).unwrap();
    assert_eq!(read_all(&mut server), b"last");
    assert!(server.has_ended());
    assert_eq!(server.handle_network_end(), Ok(()));
    // The other direction continues.
    assert_eq!(write(&mut server, b"answer"), 6);
    carry(&mut server, &mut client, usize::MAX).unwrap();
    assert_eq!(read_all(&mut client), b"answer");
}

/// Regression: a peer that closed before the end of its handshake was counted as refusing with alert 0.
#[test]
fn a_peer_that_closes_during_the_handshake_is_cut_and_refuses_nothing() {
    let (mut client, mut server) = sides();
    carry(&mut client, &mut server, usize::MAX).unwrap();
    client.close(Ending::InOrder).unwrap();
    let ended = server.receive(client.unsent());
    assert_eq!(ended, Err(LayerError::Truncated));
    assert!(!server.is_ready());
}

#[test]
fn a_cut_anywhere_is_no_end_and_a_changed_byte_is_refused() {
    let (mut client, _) = ready(usize::MAX);
    write(&mut client, b"hello");
    client.close(Ending::InOrder).unwrap();
    let network = client.unsent().to_vec();
    for cut in 0..network.len() {
        let (mut client, mut server) = ready(usize::MAX);
        write(&mut client, b"hello");
        client.close(Ending::InOrder).unwrap();
        let mut network = client.unsent().to_vec();
        server.receive(&network[..cut]).unwrap();
        assert_eq!(server.handle_network_end(), Err(LayerError::Truncated));
        network[cut] ^= 1;
        let is_refused = server.receive(&network[cut..]).is_err();
        // A length that grew waits for its last byte. The type and the version in a header mean nothing any more.
        let is_unchanged = !server.has_ended() || read_all(&mut server) == b"hello";
        assert!(is_refused || is_unchanged, "a change at {cut} was accepted");
    }
}

#[test]
fn bytes_that_are_no_record_are_refused_at_the_first_byte_by_an_alert() {
    for bytes in [
        &b"x"[..],
        b"GET / HTTP/1.1\r\n",
        b"\x16\x01",
        b"\x16\x03\x09\x00",
    ] {
        let (_, mut server) = sides();
        let refused = server.receive(bytes);
        assert_eq!(refused, Err(TlsFault::PlainText.into()), "{bytes:?}");
        assert_eq!(server.unsent()[..3], [21, 3, 3]);
    }
    let (_, mut server) = sides();
    assert_eq!(server.receive(b"\x16"), Ok(()));
    assert_eq!(server.receive(b"\x03"), Ok(()));
}
