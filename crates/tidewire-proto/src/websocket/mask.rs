//! Masks of frames that clients send.
//!
//! A mask keeps a page in a browser from choosing the bytes on the wire, which could look like HTTP to a proxy. It is
//! no encryption. RFC 6455 wants it unpredictable for each frame.

use std::hash::{DefaultHasher, Hasher};

/// The mask of a frame, and the position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask([u8; 4]);

impl Mask {
    /// The mask at the beginning of a payload.
    #[must_use]
    pub fn new(bytes: [u8; 4]) -> Self {
        Self(bytes)
    }

    /// The bytes that are next.
    #[must_use]
    pub fn bytes(self) -> [u8; 4] {
        self.0
    }

    /// Masks or unmasks the next bytes of a payload.
    pub fn apply(&mut self, bytes: &mut [u8]) {
        let mut wide = [0; BLOCK_BYTES];
        for (index, byte) in wide.iter_mut().enumerate() {
            *byte = self.0[index % 4];
        }
        let (blocks, rest) = bytes.as_chunks_mut::<BLOCK_BYTES>();
        for block in blocks {
            for (byte, key) in block.iter_mut().zip(&wide) {
                *byte ^= key;
            }
        }
        for (byte, key) in rest.iter_mut().zip(&wide) {
            *byte ^= key;
        }
        self.0.rotate_left(rest.len() % 4);
    }
}

/// Makes masks from a secret seed: each is a part of the SipHash of a counter.
#[derive(Debug)]
pub struct Masks {
    seed: [u64; 2],
    count: u64,
}

impl Masks {
    /// Masks of one connection. The seed must be random, and no other connection may have it.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        Self { seed, count: 0 }
    }

    /// The mask of the next frame.
    #[must_use]
    pub fn next_mask(&mut self) -> Mask {
        let [first, second, third, fourth, ..] = self.next_bytes();
        Mask([first, second, third, fourth])
    }

    /// Eight bytes that no peer can predict.
    pub(super) fn next_bytes(&mut self) -> [u8; 8] {
        let mut hasher = DefaultHasher::new();
        self.count += 1;
        for word in [self.seed[0], self.seed[1], self.count] {
            hasher.write_u64(word);
        }
        hasher.finish().to_le_bytes()
    }
}

/// Bytes that are masked at once. The compiler makes vector instructions of it.
const BLOCK_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_continues_where_it_stopped() {
        let plain: Vec<u8> = (0..=255).collect();
        let key = [1, 2, 40, 200];
        let expected: Vec<u8> = (0..)
            .zip(&plain)
            .map(|(at, byte): (usize, _)| byte ^ key[at % 4])
            .collect();
        for cut in 0..plain.len() {
            let mut masked = plain.clone();
            let mut mask = Mask::new(key);
            let (front, back) = masked.split_at_mut(cut);
            mask.apply(front);
            mask.apply(back);
            assert_eq!(masked, expected, "cut at {cut}");
        }
    }

    #[test]
    fn masks_differ_from_frame_to_frame_and_from_seed_to_seed() {
        let (mut one, mut other) = (Masks::new([1, 2]), Masks::new([1, 3]));
        let mut seen: Vec<_> = (0..50)
            .flat_map(|_| [one.next_mask().0, other.next_mask().0])
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    }
}
