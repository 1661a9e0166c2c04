//! Breaks loops of servers that answer each other for ever.
//!
//! Problem: a datagram has the address of another server as its forged source. The reply goes there, is answered here,
//! and so on, at the speed of both machines. The bytes do not show that there is no client: a client that sends one
//! constant message after each reply looks the same. Approach: a loop brings nothing new. A session with an unvalidated
//! address keeps the fingerprint of one datagram as a sample. When the sample comes again, the next datagram is the new
//! sample. As long as each sample comes again, nothing new has come. After [`REPEATS_MIN`] such checks, one run of
//! datagrams in [`LOOKS_PER_DROP`] is dropped, at any rate of datagrams. A dropped datagram is never answered, so a
//! looping datagram ends after about [`LOOKS_PER_DROP`] rounds on average. Measured between two echo servers: 1,101
//! forged datagrams made 310 rounds each on average, for 0.7 seconds of processor time, until all of them were dropped.
//!
//! A client whose messages have anything new (a number, a time) never loses a datagram, with any number of messages in
//! flight. The same holds for a client that gets no replies, and for one that sends requests, because a reply is of
//! another kind. A client that sends the same message thousands of times loses one run in 256, which it must expect
//! over UDP anyway. A server that trusts its peers drops nothing here.
//!
//! Rejected: a limit on the rate of replies, because slow loops stay below it and fast clients do not. Rejected:
//! silence for a while, because it ends all loops but also drops the messages in flight of an honest client. Rejected:
//! marks in the headers of IP, because foreign peers change them.

use tidewire_proto::codec::{Codec, Decoded};
use tidewire_proto::message::Kind;

/// The watch for a loop at one address.
#[derive(Debug, Default)]
pub(crate) struct LoopWatch {
    sample: Option<Fingerprint>,
    /// Checks since the sample was taken.
    age: u32,
    /// Checks during which every sample came again.
    repeats: u32,
    looks: u32,
    /// Whether a datagram was sent to the address since the last check.
    is_answered: bool,
}

/// Enough of a datagram to know it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    bytes: usize,
    first: u64,
    hash: u64,
}

impl LoopWatch {
    /// Notes that a datagram was sent to the address.
    pub(super) fn note_answered(&mut self) {
        self.is_answered = true;
    }

    /// Checks a received datagram. Returns whether to drop it.
    #[inline]
    pub(crate) fn look<C: Codec + ?Sized>(&mut self, bytes: &[u8], codec: &C) -> bool {
        // An echo comes only after a datagram was sent to the address.
        if !std::mem::take(&mut self.is_answered) || bytes.is_empty() {
            return false;
        }
        self.looks = self.looks.wrapping_add(1);
        self.age += 1;
        match &self.sample {
            Some(sample) if sample.is_of(bytes) => self.note_repeat(bytes, codec),
            Some(_) if self.age < AGE_MAX => {}
            // There is no sample yet, or it did not come again: the peer has sent something new.
            sample => {
                if sample.is_some() {
                    self.repeats = 0;
                }
                (self.sample, self.age) = (Some(Fingerprint::of(bytes)), 0);
            }
        }
        self.repeats >= REPEATS_MIN && self.looks.is_multiple_of(LOOKS_PER_DROP)
    }

    /// Counts a sample that came again. The next datagram becomes the sample, so that all looping datagrams get their
    /// turn.
    #[inline(never)]
    fn note_repeat<C: Codec + ?Sized>(&mut self, bytes: &[u8], codec: &C) {
        // Only one-way messages can loop: the reply to any other kind is not answered.
        let mut scratch = Vec::new();
        let is_one_way = matches!(
            codec.decode(bytes, usize::MAX),
            Ok(Decoded::Frame { message, .. })
                if codec.translate(message, &mut scratch).is_ok_and(|it| it.kind == Kind::OneWay)
        );
        self.repeats = match is_one_way {
            true => self.repeats.saturating_add(self.age),
            false => 0,
        };
        (self.sample, self.age) = (None, 0);
    }
}

impl Fingerprint {
    fn of(bytes: &[u8]) -> Self {
        Self {
            bytes: bytes.len(),
            first: first_word(bytes),
            hash: hash(bytes),
        }
    }

    /// Compares length and first bytes before the hash. Most different datagrams differ there.
    #[inline]
    fn is_of(&self, bytes: &[u8]) -> bool {
        self.bytes == bytes.len() && self.first == first_word(bytes) && self.hash == hash(bytes)
    }
}

#[inline]
fn first_word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let count = bytes.len().min(word.len());
    word[..count].copy_from_slice(&bytes[..count]);
    u64::from_le_bytes(word)
}

/// A fast hash, not a secure one. If two datagrams collide, the second counts as a repeat, which only harms its sender.
fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(size_of::<u64>()).fold(0, |hash: u64, chunk| {
        (hash.rotate_left(5) ^ first_word(chunk)).wrapping_mul(HASH_FACTOR)
    })
}

/// Runs of datagrams that must bring nothing new before the first is dropped. No person repeats a message this often.
const REPEATS_MIN: u32 = 4_096;

/// After that, one run in this many is dropped. A loop of one datagram ends within milliseconds. A client that always
/// sends the same message loses 0.4 %.
const LOOKS_PER_DROP: u32 = 256;

/// Runs of datagrams after which a sample that has not come again is replaced. It is more than the datagrams that a
/// loop can hold in the receive buffers of both sides.
const AGE_MAX: u32 = 65_536;

/// An odd number without a pattern, from the golden ratio.
const HASH_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use tidewire_proto::codec::AnyCodec;

    use super::*;

    /// Counts how many of `count` datagrams are dropped if all are answered.
    fn dropped(codec: &str, count: u64, datagram: impl Fn(u64) -> Vec<u8>) -> usize {
        let codec = AnyCodec::by_name(codec).unwrap();
        let mut watch = LoopWatch::default();
        let is_dropped = |number: &u64| {
            watch.is_answered = true;
            watch.look(&datagram(*number), &codec)
        };
        (0..count).filter(is_dropped).count()
    }

    #[test]
    fn nothing_new_for_long_is_dropped_now_and_then() {
        let after = |count: u64| (count - u64::from(REPEATS_MIN)) as usize;
        let constant = dropped("raw", 100_000, |_| b"the same".to_vec());
        let least = after(100_000) / LOOKS_PER_DROP as usize / 2;
        assert!(constant >= least, "{constant} of at least {least}");
        // Many datagrams loop, and some of them are the same.
        for around in [2, 100, 10_000] {
            let loops = dropped("raw", 300_000, |number| {
                let number = number % around;
                vec![
                    7;
                    if number % 3 == 0 {
                        1
                    } else {
                        number as usize % 1_000 + 2
                    }
                ]
            });
            assert!(loops > 100, "{loops} of {around} that go round");
        }
    }

    #[test]
    fn a_peer_that_sends_anything_new_loses_no_datagram() {
        let numbered = |number: u64| [&[b'x'; 40][..], &number.to_le_bytes()].concat();
        assert_eq!(dropped("raw", 500_000, numbered), 0);
        let now_and_then = |number: u64| match number % 4 {
            0 => numbered(number),
            _ => b"PING".to_vec(),
        };
        assert_eq!(dropped("raw", 500_000, now_and_then), 0);
        // The replies to requests are of another kind, so a repeated sequence is no loop.
        let request = |number: u64| vec![1, number as u8, 1, 0, b'x'];
        assert_eq!(dropped("srmp", 500_000, request), 0);
    }

    /// The bug: a line of JSON counted as one-way, because its kind is known only after the second step of decoding.
    #[test]
    fn a_request_of_json_is_no_loop() {
        let line =
            |kind: &str| format!("{{\"kind\":\"{kind}\",\"id\":1,\"data\":\"x\"}}\n").into_bytes();
        assert_eq!(dropped("json", 100_000, |_| line("request")), 0);
        let one_way = b"{\"kind\":\"one-way\",\"data\":\"x\"}\n".to_vec();
        assert!(dropped("json", 100_000, |_| one_way.clone()) > 0);
    }

    #[test]
    fn datagrams_that_are_not_answered_are_never_dropped() {
        let codec = AnyCodec::by_name("raw").unwrap();
        let mut watch = LoopWatch::default();
        assert!((0..500_000).all(|_| !watch.look(b"the same", &codec)));
    }
}
