//! UDP sockets over loopback, with and without offload, counted to the last datagram.
#![allow(
    clippy::unwrap_used,
    reason = "a failure in a helper fails the test that called it"
)]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use tidewire_io::datagram::{DatagramBatch, DatagramOptions, DatagramSocket};
use tidewire_io::poller::{Events, Interest, PollerChoice, PollerKind, Token, open};
use tidewire_io::socket::SocketError;

const LOOPBACKS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn options(segmentation_offload: bool) -> DatagramOptions {
    let mut options = DatagramOptions::default();
    options.segmentation_offload = segmentation_offload;
    options.receive_buffer_bytes = Some(4 << 20);
    options.send_buffer_bytes = Some(1 << 20);
    options
}

fn bind(address: &str, segmentation_offload: bool) -> DatagramSocket {
    DatagramSocket::bind(&address.parse().unwrap(), &options(segmentation_offload)).unwrap()
}

/// Blocks until the socket is readable.
fn await_readable(socket: &DatagramSocket) {
    let mut poller = open(PollerChoice::Auto).unwrap();
    poller
        .add(socket.as_fd(), Token(0), Interest::READ)
        .unwrap();
    let mut events = Events::with_capacity(1);
    while events.is_empty() {
        poller.wait(&mut events, None).unwrap();
    }
}

/// The next `count` datagrams.
fn take(socket: &DatagramSocket, count: usize) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut batch = DatagramBatch::new(DatagramBatch::SLOTS_MAX);
    let mut all = Vec::new();
    while all.len() < count {
        await_readable(socket);
        let received = socket.receive(&mut batch).unwrap();
        assert_eq!(received, batch.iter().count());
        for datagram in &batch {
            assert!(!datagram.truncated);
            all.push((datagram.peer, datagram.bytes.to_vec()));
        }
    }
    nothing_is_left(socket, &mut batch);
    all
}

fn nothing_is_left(socket: &DatagramSocket, batch: &mut DatagramBatch) {
    let empty = socket.receive(batch).unwrap_err();
    assert_eq!(empty.kind(), ErrorKind::WouldBlock);
    assert!(batch.is_empty());
}

fn numbered(length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| (index * 7 + index / 256) as u8)
        .collect()
}

#[test]
fn datagrams_are_the_same_with_and_without_offload() {
    for address in LOOPBACKS {
        for (segment, total) in [
            (1, 1),
            (1, 64),
            (1, 200),
            (32, 32 * 64),
            (32, 32 * 65 + 5),
            (32, 31),
            (1_200, 100_000),
            (1_472, 1_472 * 3),
            (9_000, 70_000),
            (32_753, 65_506),
            (40_000, 80_001),
            (65_507, 65_507),
        ] {
            let bytes = numbered(total);
            let expected: Vec<_> = bytes.chunks(segment).map(<[u8]>::to_vec).collect();
            for offload in [true, false] {
                let (sender, receiver) = (bind(address, offload), bind(address, offload));
                let peer = receiver.local_address();
                assert!(offload || !sender.offloads(segment));
                let count = sender.send(peer, segment, &bytes).unwrap();
                assert_eq!(count, expected.len(), "{segment} of {total}, {offload}");
                let got = take(&receiver, count);
                assert!(got.iter().all(|(from, _)| *from == sender.local_address()));
                let got: Vec<_> = got.into_iter().map(|(_, bytes)| bytes).collect();
                assert!(got == expected, "{segment} of {total}, offload {offload}");
                assert_eq!(receiver.kernel_drops().unwrap(), 0);
            }
        }
    }
}

#[test]
fn an_offloaded_run_is_one_system_call_and_one_slot() {
    let (sender, receiver) = (bind("127.0.0.1:0", true), bind("127.0.0.1:0", true));
    assert!(
        sender.offloads(32),
        "this kernel has no segmentation offload"
    );
    let bytes = numbered(64 * 32);
    sender.send(receiver.local_address(), 32, &bytes).unwrap();
    await_readable(&receiver);
    let mut batch = DatagramBatch::new(1);
    assert_eq!(receiver.receive(&mut batch).unwrap(), 64);
}

#[test]
fn empty_datagrams_arrive_between_others() {
    for address in LOOPBACKS {
        let (sender, receiver) = (bind(address, true), bind(address, true));
        let peer = receiver.local_address();
        for bytes in [b"a".as_slice(), b"", b"", b"b"] {
            assert_eq!(sender.send(peer, 9, bytes).unwrap(), 1);
        }
        let got: Vec<_> = take(&receiver, 4)
            .into_iter()
            .map(|(_, bytes)| bytes)
            .collect();
        assert_eq!(got, [b"a".to_vec(), vec![], vec![], b"b".to_vec()]);
    }
}

#[test]
fn a_truncated_datagram_is_reported_and_its_neighbours_are_whole() {
    for (address, offload) in LOOPBACKS.into_iter().zip([true, false]) {
        let (sender, receiver) = (bind(address, offload), bind(address, true));
        let peer = receiver.local_address();
        let bytes = numbered(9_000);
        sender.send(peer, 500, &bytes[..500]).unwrap();
        sender.send(peer, 9_000, &bytes).unwrap();
        // A run: two datagrams that are too large and a last one that is not.
        sender.send(peer, 501, &bytes[..1_400]).unwrap();
        let mut batch = DatagramBatch::with_limit(8, 500);
        let mut got = Vec::new();
        while got.len() < 5 {
            await_readable(&receiver);
            receiver.receive(&mut batch).unwrap();
            got.extend(
                batch
                    .iter()
                    .map(|datagram| (datagram.bytes.to_vec(), datagram.truncated)),
            );
        }
        let expected = [
            (bytes[..500].to_vec(), false),
            (bytes[..500].to_vec(), true),
            (bytes[..500].to_vec(), true),
            (bytes[501..1_001].to_vec(), true),
            (bytes[1_002..1_400].to_vec(), false),
        ];
        assert!(got == expected, "{address}");
        nothing_is_left(&receiver, &mut batch);
    }
}

#[test]
fn peers_that_speak_at_once_are_told_apart_and_each_is_in_order() {
    const PEERS: u32 = 5;
    const ROUNDS: u32 = 60;
    for address in LOOPBACKS {
        let receiver = bind(address, true);
        let mut senders: Vec<_> = (0..PEERS)
            .map(|number| bind(address, number % 2 == 0))
            .collect();
        let mut expected: BTreeMap<SocketAddr, Vec<Vec<u8>>> = BTreeMap::new();
        for round in 0..ROUNDS {
            for (number, sender) in senders.iter_mut().enumerate() {
                // Runs and single datagrams, with other sizes for each peer.
                let segment = 10 + number;
                let bytes = numbered(segment * (1 + round as usize % 7))
                    .into_iter()
                    .map(|byte| byte ^ round as u8 ^ (number as u8) << 5)
                    .collect::<Vec<_>>();
                sender
                    .send(receiver.local_address(), segment, &bytes)
                    .unwrap();
                expected
                    .entry(sender.local_address())
                    .or_default()
                    .extend(bytes.chunks(segment).map(<[u8]>::to_vec));
            }
        }
        let offered = expected.values().map(Vec::len).sum();
        let mut got: BTreeMap<SocketAddr, Vec<Vec<u8>>> = BTreeMap::new();
        for (peer, bytes) in take(&receiver, offered) {
            got.entry(peer).or_default().push(bytes);
        }
        assert!(got == expected, "{address}");
        assert_eq!(receiver.kernel_drops().unwrap(), 0);
    }
}

#[test]
fn the_kernel_counts_datagrams_that_do_not_fit() {
    const OFFERED: usize = 2_000;
    for address in LOOPBACKS {
        let sender = bind(address, false);
        let mut small = DatagramOptions::default();
        small.receive_buffer_bytes = Some(8_192);
        let receiver = DatagramSocket::bind(&address.parse().unwrap(), &small).unwrap();
        assert!(receiver.receive_buffer_bytes().unwrap() < 65_536);
        // Over loopback a send returns after the delivery or the loss, so the figures below are final.
        let sent = sender
            .send(receiver.local_address(), 100, &[1; 100 * OFFERED])
            .unwrap();
        assert_eq!(sent, OFFERED);
        let mut batch = DatagramBatch::new(8);
        let mut delivered = 0;
        while let Ok(count) = receiver.receive(&mut batch) {
            delivered += count;
        }
        let dropped = receiver.kernel_drops().unwrap() as usize;
        assert!(delivered > 0 && dropped > 0);
        assert_eq!(
            OFFERED,
            delivered + dropped,
            "offered = delivered + dropped"
        );
    }
}

#[test]
fn a_socket_of_both_families_answers_from_the_address_of_the_request() {
    let server = bind("[::]:0", true);
    let port = server.local_address().port();
    for host in ["127.0.0.1", "127.0.0.2", "::1"] {
        let host: IpAddr = host.parse().unwrap();
        let family = if host.is_ipv4() {
            LOOPBACKS[0]
        } else {
            LOOPBACKS[1]
        };
        let client = bind(family, true);
        let address = SocketAddr::new(host, port);
        client.send(address, 4, b"question").unwrap();
        await_readable(&server);
        let mut batch = DatagramBatch::new(4);
        assert_eq!(server.receive(&mut batch).unwrap(), 2);
        let question = batch.iter().next().unwrap();
        assert_eq!(question.local.map(|local| local.to_canonical()), Some(host));
        assert_eq!(
            server
                .send_from(question.local, question.peer, 3, b"answer")
                .unwrap(),
            2
        );
        let answers = take(&client, 2);
        assert_eq!(answers[0], (address, b"ans".to_vec()));
        assert_eq!(answers[1], (address, b"wer".to_vec()));
    }
}

#[test]
fn a_socket_with_one_address_does_not_name_it() {
    let (sender, receiver) = (bind("[::1]:0", true), bind("[::1]:0", true));
    sender.send(receiver.local_address(), 1, b"x").unwrap();
    await_readable(&receiver);
    let mut batch = DatagramBatch::new(1);
    receiver.receive(&mut batch).unwrap();
    assert_eq!(batch.iter().next().unwrap().local, None);
}

#[test]
fn impossible_sends_are_refused_and_harm_nothing() {
    let (sender, receiver) = (bind("127.0.0.1:0", true), bind("127.0.0.1:0", true));
    let peer = receiver.local_address();
    let refused = sender.send(peer, 0, b"bytes").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let refused = sender.send(peer, 65_508, &[0; 65_508]).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(rustix::io::Errno::MSGSIZE.raw_os_error())
    );
    let wrong_family = sender.send("[::1]:9".parse().unwrap(), 1, b"x");
    assert!(wrong_family.is_err());
    assert_eq!(sender.send(peer, 1, b"ok").unwrap(), 2);
    assert_eq!(take(&receiver, 2).len(), 2);
}

#[test]
fn binding_says_what_is_wrong() {
    let default = DatagramOptions::default();
    let taken = bind("127.0.0.1:0", true);
    let refused = DatagramSocket::bind(&taken.local_address(), &default).unwrap_err();
    assert!(matches!(refused, SocketError::InUse { .. }));
    let refused = DatagramSocket::bind(&"192.0.2.1:0".parse().unwrap(), &default).unwrap_err();
    assert!(matches!(refused, SocketError::AddressNotAvailable { .. }));

    let mut shared = DatagramOptions::default();
    shared.reuse_port = true;
    let first = DatagramSocket::bind(&"127.0.0.1:0".parse().unwrap(), &shared).unwrap();
    let second = DatagramSocket::bind(&first.local_address(), &shared).unwrap();
    assert_eq!(first.local_address(), second.local_address());
    let refused = DatagramSocket::bind(&first.local_address(), &default).unwrap_err();
    assert!(matches!(refused, SocketError::InUse { .. }));
}

#[test]
fn every_poller_reports_datagrams() {
    for kind in [
        PollerKind::Epoll,
        PollerKind::Poll,
        PollerKind::Select,
        PollerKind::Uring,
    ] {
        let socket = bind("127.0.0.1:0", true);
        let unknown = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut poller = open(PollerChoice::Only(kind)).unwrap();
        poller
            .add(socket.as_fd(), Token(3), Interest::READ)
            .unwrap();
        unknown
            .send_to(b"from another library", socket.local_address())
            .unwrap();
        let mut events = Events::with_capacity(4);
        poller.wait(&mut events, None).unwrap();
        assert_eq!(events[0].token, Token(3), "{kind}");
        let mut batch = DatagramBatch::new(2);
        assert_eq!(socket.receive(&mut batch).unwrap(), 1);
        let datagram = batch.iter().next().unwrap();
        assert_eq!(datagram.bytes, b"from another library");
        assert_eq!(datagram.peer, unknown.local_addr().unwrap());
        poller.remove(socket.as_fd()).unwrap();
    }
}
