//! The stamp every message of a load test carries.
//!
//! The receiver must learn four things from 28 bytes: is this message whole, whose is it, which of that
//! sender's is it, and when should it have been sent. With the header of 4 bytes of the oldest workload it
//! makes exactly 32 bytes, so figures stay comparable.
//!
//! ```text
//! 0     2      3       4        8          16            24       28
//! │ run │ step │ flags │ sender │ sequence │ intended_ns │ crc32c │   little-endian
//! ```
//!
//! The time when the message was really sent is not in it: a stamp is encoded once, before the write, and
//! the sender keeps that time itself. A text or self-describing form was rejected because decoding runs for
//! every delivery, tens of millions a second.

use tidewire_io::checksum::crc32c_of_words;

/// The sender of a message, its number, and when it was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the run, so that a message left over from an earlier run is recognised.
    pub run: u16,
    /// Number of the step within the run, from 0.
    pub step: u8,
    /// Bits for the instrument's own use; 0 where it has none.
    pub flags: u8,
    /// Index of the sending agent, from 0.
    pub sender: u32,
    /// Number of the message among those of its sender, from 1.
    pub sequence: u64,
    /// When the message was due, in nanoseconds of the instrument's monotonic clock.
    pub intended_ns: u64,
}

impl Stamp {
    /// Size of an encoded stamp in bytes.
    pub const BYTES: usize = 28;

    /// Writes the stamp and its checksum.
    #[inline]
    pub fn encode(&self, into: &mut [u8; Self::BYTES]) {
        let words = self.words();
        for (bytes, word) in into.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        into[CHECKED_BYTES..].copy_from_slice(&crc32c_of_words(&words).to_le_bytes());
    }

    /// Reads a stamp from the front of a payload; `body` checks what follows it. Nothing when the payload is shorter
    /// than a stamp, or was changed on the way, so that its checksum does not match.
    #[inline]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let (bytes, _) = payload.split_first_chunk::<{ Self::BYTES }>()?;
        let words = [u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16)];
        let stored = u32::from_le_bytes([bytes[24], bytes[25], bytes[26], bytes[27]]);
        if crc32c_of_words(&words) != stored {
            return None;
        }
        let [whose, sequence, intended_ns] = words;
        Some(Self {
            run: whose as u16,
            step: (whose >> 16) as u8,
            flags: (whose >> 24) as u8,
            sender: (whose >> 32) as u32,
            sequence,
            intended_ns,
        })
    }

    /// The checked part as the checksum takes it. A stamp is read and written by words too: bytes put together on the
    /// stack and read back at once would wait for each other.
    fn words(&self) -> [u64; 3] {
        let whose = u64::from(self.run)
            | u64::from(self.step) << 16
            | u64::from(self.flags) << 24
            | u64::from(self.sender) << 32;
        [whose, self.sequence, self.intended_ns]
    }
}

#[inline]
fn u64_at(bytes: &[u8; Stamp::BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Everything before the checksum.
const CHECKED_BYTES: usize = Stamp::BYTES - 4;

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp {
        run: 0x0201,
        step: 3,
        flags: 4,
        sender: 0x0807_0605,
        sequence: 0x100F_0E0D_0C0B_0A09,
        intended_ns: 0x1817_1615_1413_1211,
    };

    fn encoded() -> [u8; Stamp::BYTES] {
        let mut bytes = [0; Stamp::BYTES];
        STAMP.encode(&mut bytes);
        bytes
    }

    #[test]
    fn layout_is_little_endian_in_the_documented_order() {
        let bytes = encoded();
        let counting: Vec<u8> = (1..=24).collect();
        assert_eq!(&bytes[..24], &counting[..]);
        assert_eq!(bytes[24..], crc32c::crc32c(&counting).to_le_bytes());
    }

    #[test]
    fn decodes_at_every_alignment_and_ignores_padding() {
        for offset in 0..8 {
            let mut payload = vec![0xEE; offset];
            payload.extend_from_slice(&encoded());
            payload.extend_from_slice(b"padding");
            assert_eq!(Stamp::decode(&payload[offset..]), Some(STAMP));
        }
    }

    #[test]
    fn every_flipped_bit_is_corrupt() {
        for bit in 0..Stamp::BYTES * 8 {
            let mut bytes = encoded();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::decode(&bytes), None, "bit {bit}");
        }
    }

    #[test]
    fn every_shorter_payload_is_too_short() {
        let bytes = encoded();
        for length in 0..Stamp::BYTES {
            assert_eq!(Stamp::decode(&bytes[..length]), None);
        }
    }
}
