//! The head of a publication of the benchmark: its number and when it was due, in the first 16 bytes of its payload.
//!
//! Problem: one subscriber has to find lost, doubled, swapped and changed messages of any publisher in any language,
//! and how long each was on its way. Approach: the layout that [the contract](super::contract) lays down, which a
//! publisher writes in three lines. Rejected: the stamp of the load test ([`tidewire_load::stamp`]) with its checksum,
//! which every rival would have to compute for every message.

/// The head of a publication's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Publication {
    /// Counts the publications of one publisher from 0.
    pub(crate) sequence: u64,
    /// When it was due by the rate: nanoseconds of `CLOCK_MONOTONIC`, which means the same in every process of a
    /// machine.
    pub(crate) due_ns: u64,
}

impl Publication {
    /// Appends a payload of `payload_bytes`.
    pub(crate) fn append(self, payload_bytes: usize, out: &mut Vec<u8>) {
        assert!(
            payload_bytes >= PUBLICATION_BYTES_MIN,
            "a publication of {payload_bytes} bytes has no room for its number and time"
        );
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.due_ns.to_le_bytes());
        out.resize(out.len() + payload_bytes - PUBLICATION_BYTES_MIN, FILLING);
    }

    /// Reads a payload; nothing if it has another length than `payload_bytes`, or its filling was changed.
    #[inline]
    pub(crate) fn read(payload: &[u8], payload_bytes: usize) -> Option<Self> {
        if payload.len() != payload_bytes {
            return None;
        }
        let (sequence, rest) = payload.split_first_chunk()?;
        let (due_ns, filling) = rest.split_first_chunk()?;
        let is_whole = match filling.try_into() {
            // Of the usual size: one comparison.
            Ok(filling) => u128::from_ne_bytes(filling) == u128::from_ne_bytes([FILLING; 16]),
            Err(_) => filling.iter().all(|&byte| byte == FILLING),
        };
        is_whole.then_some(Self {
            sequence: u64::from_le_bytes(*sequence),
            due_ns: u64::from_le_bytes(*due_ns),
        })
    }
}

/// Bytes of the smallest payload: number and time.
pub(crate) const PUBLICATION_BYTES_MIN: usize = 16;

/// The byte that fills the rest of the payload.
const FILLING: u8 = 0x5a;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_survives_and_changes_are_seen() {
        for bytes in [16, 17, 32, 200] {
            let sent = Publication {
                sequence: 0x0102_0304_0506_0708,
                due_ns: u64::MAX - 1,
            };
            let mut payload = Vec::new();
            sent.append(bytes, &mut payload);
            assert_eq!(payload.len(), bytes);
            assert_eq!(Publication::read(&payload, bytes), Some(sent));
            assert_eq!(Publication::read(&payload[1..], bytes), None);
            for at in PUBLICATION_BYTES_MIN..bytes {
                let mut changed = payload.clone();
                changed[at] ^= 1;
                assert_eq!(Publication::read(&changed, bytes), None, "byte {at}");
            }
        }
        assert_eq!(Publication::read(&[0; 8], 8), None);
    }
}
