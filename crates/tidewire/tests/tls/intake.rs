//! Any bytes into a side of TLS, in any pieces and at any stage: it refuses them or waits, never panics, and stays
//! bounded. The fuzz target `tls` calls the same function.

use tidewire_proto::layer::OUTPUT_BYTES_MAX;
use tidewire_testkit::certificates::usual;
use tidewire_testkit::stacks::{carry, stack_of};

/// Feeds one side. The first byte chooses the side and the stage, the second byte the size of the pieces, and the rest
/// comes from the network.
#[allow(
    unreachable_pub,
    reason = "the fuzz target has this file as a module, too"
)]
pub fn intake(bytes: &[u8]) {
    let [choice, piece_bytes, network @ ..] = bytes else {
        return;
    };
    let (authority, identity) = usual();
    let client = authority.client().layer("localhost", Some("tw1"));
    let asking = identity.server().accept_clients_of(authority.pem());
    let server = asking.layer("tw1");
    let [mut client, mut server] = [client, server].map(|layer| stack_of(vec![layer.unwrap()]));
    // A flight of the client, that of the server, and so on.
    for stage in 0..usize::from(choice >> 1) % 5 {
        let carried = match stage % 2 {
            0 => carry(&mut client, &mut server, usize::MAX),
            _ => carry(&mut server, &mut client, usize::MAX),
        };
        carried.unwrap();
    }
    let side = if choice & 1 == 0 {
        &mut server
    } else {
        &mut client
    };
    let piece_bytes = match piece_bytes {
        0 => network.len().max(1),
        bytes => usize::from(*bytes),
    };
    let mut plain = [0; 4_096];
    for piece in network.chunks(piece_bytes) {
        let received = side.receive(piece);
        assert!(side.unsent().len() <= OUTPUT_BYTES_MAX);
        assert!(side.memory_bytes() <= MEMORY_BYTES_MAX);
        while received.is_ok() && side.read(&mut plain).is_ok_and(|count| count > 0) {}
        if received.is_err() {
            break;
        }
    }
    // The end is in order, or a cut.
    let _ = side.handle_network_end();
}

/// The state of TLS with two messages of a handshake, and the buffers of a stack.
const MEMORY_BYTES_MAX: usize = 512 << 10;

#[test]
fn the_corpus_of_the_fuzz_target_replays() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tls");
    let mut replayed = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        for choice in 0..10 {
            for piece_bytes in [0, 1, 7] {
                intake(&[&[choice, piece_bytes], &bytes[2..]].concat());
            }
        }
        replayed += 1;
    }
    assert!(replayed > 0, "the corpus is empty");
}

#[test]
fn noise_is_refused_at_every_stage() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..100 {
        let header = [
            random.u8(..10),
            random.u8(..4),
            20 + random.u8(..5),
            3,
            random.u8(1..5),
        ];
        let length = random.u16(..) & [0xFF, 0xFFF, 0x7FFF][random.usize(..3)];
        let noise = (0..random.usize(..20_000)).map(|_| random.u8(..));
        let bytes = header.into_iter().chain(length.to_be_bytes());
        intake(&bytes.chain(noise).collect::<Vec<u8>>());
    }
}
