//! Histograms in files: HdrHistogram's V2 format, compressed, in base64.
//! The parts of a distributed run are merged from their reports. Percentiles cannot be averaged, so a report also
//! holds the histogram itself. Its format is that of HdrHistogram's own tools. The format has no count of samples
//! above the range, so that count stands beside it. Rejected: a list of buckets in JSON, which is twenty times as
//! long and which no other tool reads.
//!
//! A file may come from anywhere. The library that decodes it trusts the lengths of the header, so the header
//! is checked here first, and no more is unpacked than the largest histogram of ours takes.

use std::io::{self, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{
    DeserializeError, Deserializer, Serializer as _, V2DeflateSerializer,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::LatencyHistogram;

/// A histogram as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncodedHistogram {
    /// Nanoseconds from 1 to 120 s with three digits: HdrHistogram V2, compressed, base64.
    pub hdr_v2_base64: String,
    /// Samples, so that a damaged text is noticed.
    pub count: u64,
    /// Samples above the range, recorded as its end.
    pub clipped: u64,
}

impl EncodedHistogram {
    /// Writes a histogram as text, a few kilobytes.
    pub fn of(histogram: &LatencyHistogram) -> Self {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(histogram.inner(), &mut bytes)
            .expect("a histogram of fixed bounds serialises into memory");
        Self {
            hdr_v2_base64: STANDARD.encode(bytes),
            count: histogram.count(),
            clipped: histogram.clipped(),
        }
    }

    /// Reads the histogram back; every sample is in the bucket it was in.
    pub fn decode(&self) -> Result<LatencyHistogram, DecodeError> {
        if self.hdr_v2_base64.len() > TEXT_BYTES_MAX {
            return Err(DecodeError::TooLong(self.hdr_v2_base64.len()));
        }
        let packed = STANDARD
            .decode(&self.hdr_v2_base64)
            .map_err(DecodeError::Base64)?;
        let plain = unpack(&packed)?;
        check_header(&plain)?;
        let inner = Deserializer::new()
            .deserialize(&mut plain.as_slice())
            .map_err(DecodeError::Histogram)?;
        let (clipped, count) = (self.clipped, inner.len());
        if count != self.count || clipped > count {
            return Err(DecodeError::Count {
                written: self.count,
                clipped,
                found: count,
            });
        }
        LatencyHistogram::from_inner(inner, clipped).ok_or(DecodeError::Layout)
    }
}

/// Why a histogram cannot be read from text. The file was damaged, or another program wrote it: take the
/// report from where it was made once more.
#[derive(Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts say what failed and what to do")]
pub enum DecodeError {
    #[error("{0} bytes of text are more than a histogram takes")]
    TooLong(usize),
    #[error("the histogram is not base64; the file was altered or cut")]
    Base64(#[source] base64::DecodeError),
    #[error("the histogram cannot be unpacked; the file was altered or cut")]
    Packed(#[source] io::Error),
    #[error("the histogram cannot be decoded; the file was altered")]
    Histogram(#[source] DeserializeError),
    #[error("the histogram has another layout than 1 ns to 120 s with three digits")]
    Layout,
    #[error(
        "the histogram holds {found} samples, but {written} of which {clipped} clipped are announced"
    )]
    Count {
        written: u64,
        clipped: u64,
        found: u64,
    },
}

/// The plain V2 bytes of a compressed histogram.
fn unpack(packed: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let Some((head, body)) = packed.split_at_checked(PACKED_HEADER_BYTES) else {
        return Err(DecodeError::Layout);
    };
    if head[..4] != PACKED_COOKIE {
        return Err(DecodeError::Layout);
    }
    let mut plain = Vec::new();
    ZlibDecoder::new(body)
        .take(PLAIN_BYTES_MAX)
        .read_to_end(&mut plain)
        .map_err(DecodeError::Packed)?;
    Ok(plain)
}

/// The decoder reserves the memory that the header asks for, so only our own layout is accepted.
fn check_header(plain: &[u8]) -> Result<(), DecodeError> {
    let field = |from: usize, bytes: &[u8]| plain.get(from..from + bytes.len()) == Some(bytes);
    let payload = plain.len().checked_sub(PLAIN_HEADER_BYTES);
    let payload = payload.and_then(|length| u32::try_from(length).ok());
    let ours = payload.is_some_and(|length| field(4, &length.to_be_bytes()))
        && field(12, &3_u32.to_be_bytes())
        && field(16, &1_u64.to_be_bytes())
        && field(24, &LatencyHistogram::HIGHEST_NS.to_be_bytes());
    if ours {
        Ok(())
    } else {
        Err(DecodeError::Layout)
    }
}

/// Cookie and length before the compressed part.
const PACKED_HEADER_BYTES: usize = 8;
/// The format's mark for "version 2, compressed".
const PACKED_COOKIE: [u8; 4] = [0x1c, 0x84, 0x93, 0x14];
/// Cookie, length, offset, digits, bounds and ratio before the counts.
const PLAIN_HEADER_BYTES: usize = 40;
/// About 28,000 buckets of at most 9 bytes, rounded up.
const PLAIN_BYTES_MAX: u64 = 1 << 19;
/// Largest text, in base64: that of a histogram that does not compress at all.
const TEXT_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn recorded(seed: u64, samples: usize) -> LatencyHistogram {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut histogram = LatencyHistogram::new();
        for _ in 0..samples {
            let bits = random.u32(4..40);
            histogram.record(random.u64(1..1 << bits));
        }
        histogram
    }

    fn assert_equal(left: &LatencyHistogram, right: &LatencyHistogram) {
        assert_eq!(left.summary(), right.summary());
        assert_eq!(left.count(), right.count());
        assert_eq!(left.clipped(), right.clipped());
        for permille in 0..=1_000 {
            let share = f64::from(permille) / 1_000.0;
            assert_eq!(left.quantile_ns(share), right.quantile_ns(share));
        }
    }

    #[test]
    fn a_histogram_survives_text_and_json() {
        for histogram in [LatencyHistogram::new(), recorded(1, 20_000)] {
            let encoded = EncodedHistogram::of(&histogram);
            let json = serde_json::to_string(&encoded).unwrap();
            let read: EncodedHistogram = serde_json::from_str(&json).unwrap();
            assert_equal(&read.decode().unwrap(), &histogram);
        }
    }

    #[test]
    fn merged_parts_from_files_equal_the_whole() {
        let (first, second) = (recorded(2, 5_000), recorded(3, 7_000));
        let mut whole = first.clone();
        whole.merge(&second);
        let mut merged = EncodedHistogram::of(&first).decode().unwrap();
        merged.merge(&EncodedHistogram::of(&second).decode().unwrap());
        assert_equal(&merged, &whole);
        // It can be recorded into like any other.
        merged.record(u64::MAX);
        assert_eq!(merged.clipped(), whole.clipped() + 1);
    }

    #[test]
    fn the_largest_histogram_fits_the_limits() {
        let mut histogram = LatencyHistogram::new();
        let mut random = fastrand::Rng::with_seed(4);
        let mut value_ns = 1;
        while value_ns <= LatencyHistogram::HIGHEST_NS {
            histogram.record_many(value_ns, random.u64(1 << 40..1 << 45));
            value_ns += (value_ns / 2_048).max(1);
        }
        let encoded = EncodedHistogram::of(&histogram);
        assert_equal(&encoded.decode().unwrap(), &histogram);
    }

    #[test]
    fn damage_is_a_typed_error() {
        let encoded = EncodedHistogram::of(&recorded(5, 1_000));
        let with = |text: String| EncodedHistogram {
            hdr_v2_base64: text,
            ..encoded.clone()
        };
        let text = &encoded.hdr_v2_base64;
        assert!(matches!(
            with(format!("{text}!")).decode(),
            Err(DecodeError::Base64 { .. })
        ));
        let cut = text[..text.len() / 8 * 4].to_owned();
        assert!(matches!(
            with(cut).decode(),
            Err(DecodeError::Packed { .. } | DecodeError::Layout)
        ));
        assert!(matches!(
            with("A".repeat(TEXT_BYTES_MAX + 4)).decode(),
            Err(DecodeError::TooLong { .. })
        ));
        let miscounted = EncodedHistogram {
            count: encoded.count + 1,
            ..encoded.clone()
        };
        assert!(matches!(
            miscounted.decode(),
            Err(DecodeError::Count { .. })
        ));
    }

    #[test]
    fn another_layout_is_refused_before_it_takes_memory() {
        let mut foreign = hdrhistogram::Histogram::<u64>::new_with_max(1 << 50, 5).unwrap();
        foreign.record(1_000).unwrap();
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&foreign, &mut bytes)
            .unwrap();
        let encoded = EncodedHistogram {
            hdr_v2_base64: STANDARD.encode(bytes),
            count: 1,
            clipped: 0,
        };
        assert!(matches!(encoded.decode(), Err(DecodeError::Layout)));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), flip in 0_usize..4_000) {
            let mut whole = PACKED_COOKIE.to_vec();
            whole.extend(&bytes);
            let mut encoded = EncodedHistogram {
                hdr_v2_base64: STANDARD.encode(whole), count: 1, clipped: 0,
            };
            prop_assert!(encoded.decode().is_err());
            // One altered byte in the middle of a real one: an error or, rarely, other samples; never a panic.
            let real = EncodedHistogram::of(&recorded(6, 200));
            let mut packed = STANDARD.decode(&real.hdr_v2_base64).unwrap();
            let place = flip % packed.len();
            packed[place] ^= 1 << (flip % 8);
            encoded.hdr_v2_base64 = STANDARD.encode(packed);
            let _ = encoded.decode();
        }
    }
}
