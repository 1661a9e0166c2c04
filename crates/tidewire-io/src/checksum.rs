//! CRC-32C of a few words, for checks that run tens of millions of times a second.
//!
//! The established libraries are made for long inputs: before the first byte they choose between strides and tables.
//! For 24 bytes this choice costs several times the checksum itself: a fifth of the processor time of a load test. The
//! processor has an instruction for eight bytes, and three such instructions are the whole work. On a processor without
//! it, the library does the work.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls what only some processors have")
)]

/// The CRC-32C (Castagnoli) of `words` in little-endian byte order.
#[inline]
#[must_use]
pub fn crc32c_of_words<const WORDS: usize>(words: &[u64; WORDS]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the function requires only SSE 4.2, and this processor was just found to have it.
        return unsafe { by_instruction(words) };
    }
    by_library(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn by_instruction<const WORDS: usize>(words: &[u64; WORDS]) -> u32 {
    let crc = words.iter().fold(u64::from(u32::MAX), |crc, word| {
        std::arch::x86_64::_mm_crc32_u64(crc, *word)
    });
    !(crc as u32)
}

fn by_library<const WORDS: usize>(words: &[u64; WORDS]) -> u32 {
    words.iter().fold(0, |crc, word| {
        crc32c::crc32c_append(crc, &word.to_le_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_published_check_value_and_the_library() {
        // The usual check value is for "123456789", which has no whole number of words. iSCSI publishes the value of 32
        // bytes.
        assert_eq!(crc32c_of_words(&[0; 4]), 0x8A91_36AA);
        assert_eq!(crc32c_of_words(&[u64::MAX; 4]), 0x62A8_AB43);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..10_000 {
            let words: [u64; 3] = std::array::from_fn(|_| random.u64(..));
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(crc32c_of_words(&words), crc32c::crc32c(&bytes));
            assert_eq!(by_library(&words), crc32c::crc32c(&bytes));
        }
    }
}
