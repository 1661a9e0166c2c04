//! The bytes after the [stamp](crate::stamp) in a longer payload: no other message has the same.
//!
//! Problem: a delivery whose stamp is whole may still have been cut, or carry the rest of another message. Approach:
//! the rest is a sequence of words that begins with a mix of sender and sequence and grows by a constant, so that the
//! receiver can compute every byte from the stamp. It compares all of them, which finds every change for certain, and
//! in about the time that copying them takes, because the loop has no step that waits for the one before. Rejected: the
//! same padding in every message, in which bytes of one message pass for those of another, and a checksum in the stamp,
//! which leaves one change in four billion unseen and needs more time for the same bytes.

use crate::stamp::Stamp;

/// Writes the rest of a payload, after its stamp.
#[inline]
pub(crate) fn fill(stamp: &Stamp, rest: &mut [u8]) {
    if rest.is_empty() {
        return;
    }
    let mut word = first_word(stamp);
    let (words, tail) = rest.as_chunks_mut::<WORD_BYTES>();
    for bytes in words {
        *bytes = word.to_le_bytes();
        word = word.wrapping_add(STEP);
    }
    // Byte by byte: a call to copy or compare so few takes longer than all of them.
    for (byte, expected) in tail.iter_mut().zip(word.to_le_bytes()) {
        *byte = expected;
    }
}

/// Whether a payload has `payload_bytes` bytes, and all after its stamp are those that [`fill`] wrote.
#[inline]
pub(crate) fn is_whole(stamp: &Stamp, payload: &[u8], payload_bytes: usize) -> bool {
    if payload.len() != payload_bytes {
        return false;
    }
    let rest = payload.get(Stamp::BYTES..).unwrap_or_default();
    // The usual size ends here.
    rest.is_empty() || is_filled(stamp, rest)
}

/// Apart from its caller, whose loop it would fill with registers that most messages do not need.
#[inline(never)]
fn is_filled(stamp: &Stamp, rest: &[u8]) -> bool {
    let mut word = first_word(stamp);
    let (words, tail) = rest.as_chunks::<WORD_BYTES>();
    let mut difference = 0;
    for bytes in words {
        difference |= u64::from_le_bytes(*bytes) ^ word;
        word = word.wrapping_add(STEP);
    }
    for (byte, expected) in tail.iter().zip(word.to_le_bytes()) {
        difference |= u64::from(byte ^ expected);
    }
    difference == 0
}

fn first_word(stamp: &Stamp) -> u64 {
    let sender = u64::from(stamp.sender).wrapping_mul(SENDER_FACTOR);
    stamp.sequence.wrapping_mul(STEP) ^ sender.rotate_left(32)
}

const WORD_BYTES: usize = 8;

/// From one word to the next: odd, so that no two words of a payload are equal.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Keeps neighbouring senders apart.
const SENDER_FACTOR: u64 = 0xD6E8_FEB8_6659_FD93;

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(sender: u32, sequence: u64) -> Stamp {
        Stamp {
            run: 1,
            step: 2,
            flags: 0,
            sender,
            sequence,
            intended_ns: 3,
        }
    }

    fn payload(stamp: &Stamp, bytes: usize) -> Vec<u8> {
        let mut payload = vec![0; bytes];
        fill(stamp, &mut payload[Stamp::BYTES..]);
        payload
    }

    #[test]
    fn every_changed_byte_and_every_other_length_is_seen() {
        let stamp = stamp(7, 11);
        for bytes in [28, 29, 35, 36, 37, 64, 100] {
            let whole = payload(&stamp, bytes);
            assert!(is_whole(&stamp, &whole, bytes));
            for at in Stamp::BYTES..bytes {
                let mut changed = whole.clone();
                changed[at] ^= 0x10;
                assert!(!is_whole(&stamp, &changed, bytes), "byte {at} of {bytes}");
            }
            assert!(!is_whole(&stamp, &whole[..bytes - 1], bytes));
            assert!(!is_whole(&stamp, &whole, bytes + 1));
        }
    }

    #[test]
    fn the_rest_of_another_message_is_not_this_one_s() {
        let ours = stamp(7, 11);
        for other in [stamp(7, 12), stamp(7, 10), stamp(8, 11), stamp(11, 7)] {
            // From a single word on.
            let bytes = Stamp::BYTES + WORD_BYTES;
            assert!(
                !is_whole(&ours, &payload(&other, bytes), bytes),
                "{other:?}"
            );
        }
    }

    #[test]
    fn words_that_changed_places_are_seen() {
        let stamp = stamp(1, 1);
        let mut payload = payload(&stamp, 60);
        payload[Stamp::BYTES..].rotate_left(WORD_BYTES);
        assert!(!is_whole(&stamp, &payload, 60));
    }
}
