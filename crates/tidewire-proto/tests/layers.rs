//! Layers and stacks of them: every cut of the bytes, garbage, bounds, orderly ends and cuts.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail loudly")]

use std::io::IoSlice;

use fastrand::Rng;
use tidewire_proto::layer::{
    Ending, Layer, LayerError, OUTPUT_BYTES_MAX, PLAIN_BYTES_MAX, RECORD_BYTES_MAX, Stack,
};
use tidewire_testkit::stacks::{carry, exchange_all, read_all, stack_of, write};
use tidewire_testkit::{XorLayer, layers_of};

/// Creates both sides of this many layers, not connected yet.
fn sides(layers: u8) -> (Stack, Stack) {
    let stack = |make| stack_of(layers_of(layers, make));
    (stack(XorLayer::connecting), stack(XorLayer::accepting))
}

fn ready(layers: u8) -> (Stack, Stack) {
    let (mut client, mut server) = sides(layers);
    exchange_all(&mut client, &mut server, usize::MAX);
    assert!(client.is_ready() && server.is_ready());
    (client, server)
}

#[test]
fn nothing_passes_before_every_layer_is_ready() {
    for layers in 1..=3 {
        let (mut client, mut server) = sides(layers);
        assert!(server.unsent().is_empty(), "it waits to be greeted");
        for _ in 0..layers {
            assert_eq!(write(&mut client, b"early"), 0);
            assert!(!client.is_ready());
            assert!(carry(&mut client, &mut server, 1).unwrap());
            assert!(carry(&mut server, &mut client, 1).unwrap());
        }
        assert!(client.is_ready() && server.is_ready());
        assert_eq!(write(&mut client, b"now"), 3);
    }
}

#[test]
fn plaintext_comes_whole_at_every_cut_of_the_network() {
    for layers in [1, 2] {
        let sent: Vec<u8> = (0..400_u32).map(|number| number as u8).collect();
        let (mut client, mut server) = ready(layers);
        write(&mut client, &sent[..100]);
        write(&mut client, &sent[100..]);
        client.close(Ending::InOrder).unwrap();
        let network = client.unsent().to_vec();
        for cut in 0..=network.len() {
            let (_, mut other) = ready(layers);
            other.receive(&network[..cut]).unwrap();
            let mut received = read_all(&mut other);
            // The close record of the upper layer is enough.
            let lower_closes = 3 * (usize::from(layers) - 1);
            if cut < network.len() - lower_closes {
                let cut_off = other.handle_network_end();
                assert_eq!(cut_off, Err(LayerError::Truncated), "cut at {cut}");
            }
            other.receive(&network[cut..]).unwrap();
            received.extend(read_all(&mut other));
            assert_eq!(received, sent, "cut at {cut}");
            assert!(other.has_ended());
            assert_eq!(other.handle_network_end(), Ok(()));
        }
        carry(&mut client, &mut server, 1).unwrap();
        assert_eq!(read_all(&mut server), sent);
    }
}

#[test]
fn a_lower_layer_that_ends_first_has_cut_the_upper_one_off() {
    let (_, mut server) = ready(2);
    // Only the lower layer sends its close record.
    let mut lower = XorLayer::connecting(0x5A);
    let greeting: Vec<u8> = b"hello".iter().map(|byte| byte ^ 0x5A).collect();
    let hello = [&[1, 0, 5], &greeting[..]].concat();
    assert_eq!(lower.receive(&hello, &mut Vec::new()), Ok(hello.len()));
    lower.transmit(&mut Vec::new());
    let mut close = Vec::new();
    lower.close(Ending::InOrder, &mut close);
    assert_eq!(server.receive(&close), Err(LayerError::Truncated));
}

#[test]
fn records_are_as_large_as_they_may_be_wherever_slices_end() {
    let (mut client, mut server) = ready(1);
    let plain = vec![7; 20_000];
    let slices: Vec<IoSlice<'_>> = plain.chunks(1_000).map(IoSlice::new).collect();
    assert_eq!(client.write(&slices).unwrap(), plain.len());
    let records = 2;
    assert_eq!(client.unsent().len(), plain.len() + records * 3);
    carry(&mut client, &mut server, usize::MAX).unwrap();
    assert_eq!(read_all(&mut server), plain);
}

/// The peer takes its output byte by byte, or hundreds at once. The output stays bounded, and nothing is lost.
#[test]
fn a_slow_reader_holds_a_bounded_output_and_gets_everything() {
    for layers in [1, 2] {
        let (mut client, mut server) = ready(layers);
        let mut random = Rng::with_seed(7);
        let plain: Vec<u8> = (0..1_000_000_u32)
            .map(|number| (number >> 3) as u8)
            .collect();
        let (mut accepted, mut received) = (0, Vec::new());
        while received.len() < plain.len() {
            accepted += write(&mut client, &plain[accepted..]);
            assert!(client.unsent().len() <= OUTPUT_BYTES_MAX);
            let count = random.usize(0..=client.unsent().len().min(5_000));
            let network = client.unsent()[..count].to_vec();
            client.advance(count);
            server.receive(&network).unwrap();
            received.extend(read_all(&mut server));
        }
        assert_eq!(accepted, plain.len());
        assert!(received == plain);
    }
}

#[test]
fn garbage_and_long_records_are_refused_and_never_kept() {
    let mut random = Rng::with_seed(11);
    for layers in [1, 2] {
        for _ in 0..2_000 {
            let (_, mut server) = if random.bool() {
                sides(layers)
            } else {
                ready(layers)
            };
            let bytes: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
            for piece in bytes.chunks(random.usize(1..50)) {
                if server.receive(piece).is_err() {
                    break;
                }
            }
            assert!(read_all(&mut server).len() <= bytes.len());
        }
        let (_, mut server) = ready(layers);
        let long = server.receive(&[2, 0x40, 0x01]);
        assert_eq!(long, Err(LayerError::RecordTooLong));
    }
}

#[test]
fn nothing_is_accepted_after_the_close() {
    let (mut client, mut server) = ready(2);
    assert_eq!(write(&mut client, b"last"), 4);
    client.close(Ending::InOrder).unwrap();
    assert_eq!(write(&mut client, b"late"), 0);
    let bytes = client.unsent().len();
    client.close(Ending::InOrder).unwrap();
    assert_eq!(client.unsent().len(), bytes, "it is said once");
    carry(&mut client, &mut server, usize::MAX).unwrap();
    assert_eq!(read_all(&mut server), b"last");
    assert!(server.has_ended());
    // The other direction continues.
    assert_eq!(write(&mut server, b"answer"), 6);
    carry(&mut server, &mut client, usize::MAX).unwrap();
    assert_eq!(read_all(&mut client), b"answer");
}

/// A layer that its peer controls: each byte is a number of bytes of plaintext, or requests an answer.
#[derive(Debug, Default)]
struct Puppet {
    answers: usize,
}

impl Layer for Puppet {
    fn receive(&mut self, network: &[u8], plain: &mut Vec<u8>) -> Result<usize, LayerError> {
        let mut used = 0;
        for byte in network {
            match byte {
                b'x' if plain.len() >= PLAIN_BYTES_MAX => break,
                b'x' => plain.resize(plain.len() + 1_000, b'x'),
                b'?' => self.answers += 1,
                // The beginning of a record that never ends.
                _ => break,
            }
            used += 1;
        }
        Ok(used)
    }

    fn send(&mut self, _: &[IoSlice<'_>], _: &mut Vec<u8>) -> Result<usize, LayerError> {
        Ok(0)
    }

    fn transmit(&mut self, network: &mut Vec<u8>) {
        let bytes = network.len() + 1_000 * std::mem::take(&mut self.answers);
        network.resize(bytes, b'!');
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn close(&mut self, _: Ending, _: &mut Vec<u8>) {}
}

fn puppet() -> Stack {
    Stack::new(vec![Box::new(Puppet::default())]).unwrap()
}

#[test]
fn a_layer_that_expands_its_input_is_asked_for_more_as_it_is_read() {
    let mut stack = puppet();
    stack.receive(&[b'x'; 500]).unwrap();
    assert!(stack.has_plain());
    let mut buffer = vec![0; PLAIN_BYTES_MAX];
    let mut received = 0;
    while stack.has_plain() {
        let count = stack.read(&mut buffer).unwrap();
        assert!(count > 0, "has_plain() promised some");
        received += count;
    }
    assert_eq!(received, 500_000);
    assert_eq!(stack.read(&mut buffer), Ok(0));
}

#[test]
fn a_record_without_an_end_is_kept_up_to_a_bound() {
    let mut stack = puppet();
    for _ in 0..RECORD_BYTES_MAX / 1_024 {
        stack.receive(&[b'.'; 1_024]).unwrap();
    }
    assert_eq!(stack.receive(b"."), Err(LayerError::RecordTooLong));
}

#[test]
fn a_peer_that_takes_no_answers_gets_a_bounded_number_of_them() {
    let mut stack = puppet();
    let asked = (0..1_000).take_while(|_| stack.receive(b"?").is_ok());
    assert_eq!(asked.count(), OUTPUT_BYTES_MAX / 1_000);
}
