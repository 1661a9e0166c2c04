//! Delimited: frames that end with a few agreed bytes, CR LF by default.
//!
//! Problem: many text protocols and devices end a message with a delimiter and have no header. Approach: the first
//! occurrence of the delimiter ends the frame; the search compares whole blocks for its first byte. The encoder checks
//! that a payload contains no delimiter, because the receiver would see several frames.
//!
//! Decoding keeps no state. The caller passes the number of searched bytes of a partial frame to `decode_next`. A frame
//! that comes in small pieces is therefore searched once.
//!
//! Rejected: escaping the delimiter inside payloads (the peers would not understand it), and dropping frames above the
//! limit (a message would be lost in silence).

use super::inline::InlineBytes;
use super::scan::find_bytes;
use super::spec::out_of_range;
use super::spec::{BuiltIn, Parameters, bytes_of_hex};
use super::{Codec, ConnectionState, Decoded, Format, check_unnamed, is_bare, unsupported};
use crate::error::{DecodeError, EncodeError};
use crate::limits::FRAME_BYTES_MAX;
use crate::message::{Kind, Message};
use crate::setting::SettingError;

/// The codec of frames that end with a delimiter. The limits count a whole frame, including its delimiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delimited {
    delimiter: InlineBytes,
    keep_delimiter: bool,
    frame_bytes_max: usize,
}

impl Delimited {
    /// Frames of at most 1 MiB that end with CR LF, which is not part of the message.
    #[must_use]
    pub fn new() -> Self {
        Self {
            delimiter: InlineBytes::new(b"\r\n").unwrap_or_default(),
            keep_delimiter: false,
            frame_bytes_max: FRAME_BYTES_MAX,
        }
    }

    /// Ends frames with these 1 to 16 bytes.
    ///
    /// # Errors
    /// The delimiter is empty or too long.
    pub fn with_delimiter(mut self, delimiter: &[u8]) -> Result<Self, SettingError> {
        self.delimiter = InlineBytes::new(delimiter)
            .filter(|bytes| !bytes.as_slice().is_empty())
            .ok_or_else(|| out_of_range("delimiter", "1 to 16 bytes"))?;
        Ok(self)
    }

    /// Sets whether a received message includes its delimiter. A message that ends with the delimiter is then sent
    /// without another one, so that a received message can be forwarded.
    #[must_use]
    pub const fn keep_delimiter(mut self, keep: bool) -> Self {
        self.keep_delimiter = keep;
        self
    }

    /// Sets the longest frame in bytes, including the delimiter. The connection's limit applies too.
    ///
    /// # Errors
    /// It is 0.
    pub fn with_frame_bytes_max(mut self, bytes: usize) -> Result<Self, SettingError> {
        if bytes == 0 {
            return Err(out_of_range("limit", "a number of bytes from 1"));
        }
        self.frame_bytes_max = bytes;
        Ok(self)
    }
}

impl Default for Delimited {
    fn default() -> Self {
        Self::new()
    }
}

impl BuiltIn for Delimited {
    const FORMAT: Format = FORMAT;
    const PARAMETERS: &'static [&'static str] = &["delimiter", "keep_delimiter", "limit"];

    fn configured(parameters: &Parameters<'_>) -> Result<Self, SettingError> {
        let mut codec = Delimited::new();
        if let Some(value) = parameters.value("delimiter") {
            let bad = || parameters.bad("delimiter", value, "1 to 16 bytes in hex, such as 0D0A");
            let delimiter = bytes_of_hex(value).ok_or_else(bad)?;
            codec = codec.with_delimiter(&delimiter).map_err(|_| bad())?;
        }
        codec = codec.keep_delimiter(parameters.flag("keep_delimiter")?);
        if let Some(value) = parameters.value("limit") {
            let bad = || parameters.bad("limit", value, "a number of bytes from 1");
            let limit = value.parse().map_err(|_| bad())?;
            codec = codec.with_frame_bytes_max(limit).map_err(|_| bad())?;
        }
        Ok(codec)
    }
}

impl Codec for Delimited {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    #[inline]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        self.decode_next(&mut ConnectionState::default(), input, 0, frame_bytes_max)
    }

    #[inline]
    fn decode_next<'a>(
        &self,
        _: &mut ConnectionState,
        input: &'a [u8],
        searched: usize,
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        let limit = frame_bytes_max.min(self.frame_bytes_max);
        let window = input.get(..limit).unwrap_or(input);
        let delimiter = self.delimiter.as_slice();
        // A delimiter that is complete only now may have begun in the searched bytes.
        let from = searched
            .saturating_sub(delimiter.len() - 1)
            .min(window.len());
        match find_bytes(&window[from..], delimiter) {
            Some(found) => {
                let end = from + found;
                let consumed = end + delimiter.len();
                let payload_end = if self.keep_delimiter { consumed } else { end };
                Ok(Decoded::Frame {
                    message: Message::new(Kind::OneWay, 0, &window[..payload_end]),
                    consumed,
                })
            }
            None if window.len() < limit => Ok(Decoded::Incomplete { frame_bytes: 0 }),
            // Without an end in `limit` bytes the frame has at least one more, however many bytes arrived.
            None => Err(DecodeError::FrameTooLarge {
                bytes: limit as u64 + 1,
                limit: limit as u64,
            }),
        }
    }

    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if !is_bare(message.kind) {
            return Err(unsupported(NAME, message.kind));
        }
        check_unnamed(message, NAME)?;
        let delimiter = self.delimiter.as_slice();
        let payload = message.payload;
        let kept = self.keep_delimiter && payload.ends_with(delimiter);
        let appended = if kept { &[][..] } else { delimiter };
        let frame_bytes = payload.len() + appended.len();
        if frame_bytes > self.frame_bytes_max {
            return Err(EncodeError::PayloadTooLarge {
                bytes: payload.len() as u64,
                limit: self.frame_bytes_max.saturating_sub(appended.len()) as u64,
            });
        }
        let start = out.len();
        out.reserve(frame_bytes);
        out.extend_from_slice(payload);
        out.extend_from_slice(appended);
        // The search includes the delimiter after the payload: in "a" and delimiter "aa" the first occurrence is at 0.
        if find_bytes(&out[start..], delimiter) != Some(frame_bytes - delimiter.len()) {
            out.truncate(start);
            return Err(EncodeError::ContainsDelimiter { codec: NAME });
        }
        Ok(())
    }
}

const FORMAT: Format = Format {
    repeats_names: false,
    ..Format::new("delimited")
};
const NAME: &str = FORMAT.name;

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = FRAME_BYTES_MAX;

    fn frame_of(codec: Delimited, input: &[u8]) -> (&[u8], usize) {
        match codec.decode(input, LIMIT) {
            Ok(Decoded::Frame { message, consumed }) => {
                assert_eq!(message.kind, Kind::OneWay);
                (message.payload, consumed)
            }
            other => panic!("no frame: {other:?}"),
        }
    }

    fn encoded(codec: Delimited, payload: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let mut out = b"before".to_vec();
        let result = codec.encode(&Message::new(Kind::OneWay, 0, payload), &mut out);
        assert!(out.starts_with(b"before"));
        if result.is_err() {
            assert_eq!(out, b"before");
        }
        result.map(|()| out.split_off(6))
    }

    #[test]
    fn the_delimiter_is_cr_lf_and_left_out_by_default() {
        let codec = Delimited::new();
        assert_eq!(encoded(codec, b"hi").unwrap(), [0x68, 0x69, 0x0D, 0x0A]);
        assert_eq!(frame_of(codec, b"hi\r\nthere\r\n"), (&b"hi"[..], 4));
        assert_eq!(frame_of(codec, b"a\nb\rc\r\n"), (&b"a\nb\rc"[..], 7));
        assert_eq!(frame_of(codec, b"\r\n"), (&b""[..], 2));
    }

    #[test]
    fn the_delimiter_may_be_kept_and_sent_on() {
        let codec = Delimited::new().keep_delimiter(true);
        assert_eq!(frame_of(codec, b"hi\r\nthere\r\n"), (&b"hi\r\n"[..], 4));
        assert_eq!(encoded(codec, b"hi\r\n").unwrap(), b"hi\r\n");
        assert_eq!(encoded(codec, b"hi").unwrap(), b"hi\r\n");
        assert_eq!(
            encoded(codec, b"a\r\nb\r\n"),
            Err(EncodeError::ContainsDelimiter { codec: "delimited" })
        );
    }

    #[test]
    fn half_a_delimiter_is_no_end() {
        let codec = Delimited::new().with_delimiter(b"END").unwrap();
        for end in 0..b"hi ENEND".len() {
            assert_eq!(
                codec.decode(&b"hi ENEND"[..end], LIMIT),
                Ok(Decoded::Incomplete { frame_bytes: 0 })
            );
        }
        assert_eq!(frame_of(codec, b"hi ENEND"), (&b"hi EN"[..], 8));
    }

    #[test]
    fn a_payload_with_a_delimiter_is_refused_even_across_its_end() {
        let refused = Err(EncodeError::ContainsDelimiter { codec: "delimited" });
        assert_eq!(encoded(Delimited::new(), b"a\r\nb"), refused);
        assert_eq!(encoded(Delimited::new(), b"a\r\n"), refused);
        assert_eq!(encoded(Delimited::new(), b"a\r").unwrap(), b"a\r\r\n");
        let twice = Delimited::new().with_delimiter(b"xx").unwrap();
        assert_eq!(encoded(twice, b"ax"), refused);
        assert_eq!(encoded(twice, b"xa").unwrap(), b"xaxx");
    }

    #[test]
    fn a_frame_over_either_limit_is_an_error_and_never_lost() {
        let codec = Delimited::new().with_frame_bytes_max(6).unwrap();
        assert_eq!(frame_of(codec, b"four\r\n"), (&b"four"[..], 6));
        let too_large = |limit| {
            let bytes = limit + 1;
            Err(DecodeError::FrameTooLarge { bytes, limit })
        };
        assert_eq!(codec.decode(b"fives\r\n", LIMIT), too_large(6));
        assert_eq!(codec.decode(b"fives\r", LIMIT), too_large(6));
        assert_eq!(codec.decode(b"four\r\n", 5), too_large(5));
        assert!(matches!(
            codec.decode(b"fives", LIMIT),
            Ok(Decoded::Incomplete { .. })
        ));
        assert!(encoded(codec, b"four").is_ok());
        assert_eq!(
            encoded(codec, b"fives"),
            Err(EncodeError::PayloadTooLarge { bytes: 5, limit: 4 })
        );
        let default = vec![b'x'; FRAME_BYTES_MAX];
        assert_eq!(
            Delimited::new().decode(&default, usize::MAX),
            too_large(1 << 20)
        );
    }

    #[test]
    fn impossible_parameters_are_refused() {
        assert!(Delimited::new().with_delimiter(b"").is_err());
        assert!(Delimited::new().with_delimiter(&[7; 16]).is_ok());
        let error = Delimited::new().with_delimiter(&[7; 17]).unwrap_err();
        assert_eq!(error.to_string(), "delimiter must be 1 to 16 bytes");
        assert!(Delimited::new().with_frame_bytes_max(0).is_err());
    }
}
