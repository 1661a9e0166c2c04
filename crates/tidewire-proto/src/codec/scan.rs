//! Search in bytes.

use crate::error::DecodeError;

/// Finds the line feed that ends the first line, which has at most `limit` bytes with it. There is none in the first
/// `searched` bytes.
#[inline(always)]
pub(super) fn find_line(
    input: &[u8],
    searched: usize,
    limit: usize,
) -> Result<Option<usize>, DecodeError> {
    let window = input.get(..limit).unwrap_or(input);
    let from = searched.min(window.len());
    match find_byte(&window[from..], b'\n') {
        Some(found) => Ok(Some(from + found)),
        None if window.len() < limit => Ok(None),
        // Without an end in `limit` bytes the line has at least one more, however many bytes arrived.
        None => Err(DecodeError::FrameTooLarge {
            bytes: limit as u64 + 1,
            limit: limit as u64,
        }),
    }
}

/// Finds the first `wanted`, a block at a time: the inner loop has no early exit, so the compiler compares a whole
/// block with a few vector instructions.
pub(super) fn find_byte(bytes: &[u8], wanted: u8) -> Option<usize> {
    const BLOCK_BYTES: usize = 32;
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    let passed = blocks
        .iter()
        .take_while(|block| {
            !block
                .iter()
                .fold(false, |found, byte| found | (*byte == wanted))
        })
        .count()
        * BLOCK_BYTES;
    let tail = if passed < bytes.len() - rest.len() {
        &bytes[passed..]
    } else {
        rest
    };
    Some(passed + tail.iter().position(|byte| *byte == wanted)?)
}

/// Finds the first occurrence of `wanted`, which is short and not empty.
///
/// It searches for the first byte with vector instructions and compares the rest there. Input made to look like
/// `wanted` costs at most its length times the ordinary search.
pub(super) fn find_bytes(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let last_start = bytes.len().checked_sub(wanted.len())?;
    let mut from = 0;
    while from <= last_start {
        let at = from + find_byte(&bytes[from..=last_start], first)?;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_is_found_at_every_position() {
        for at in 0..100 {
            let mut bytes = vec![b'x'; 130];
            assert_eq!(find_byte(&bytes, b'\n'), None);
            bytes[at] = b'\n';
            bytes[120] = b'\n';
            assert_eq!(find_byte(&bytes, b'\n'), Some(at));
        }
    }

    #[test]
    fn bytes_are_found_where_the_slow_search_finds_them() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..random.usize(0..90)).map(|_| random.u8(0..3)).collect();
            let wanted: Vec<u8> = (0..random.usize(1..5)).map(|_| random.u8(0..3)).collect();
            let slow = bytes
                .windows(wanted.len())
                .position(|window| window == wanted);
            assert_eq!(find_bytes(&bytes, &wanted), slow, "{wanted:?} in {bytes:?}");
        }
    }
}
