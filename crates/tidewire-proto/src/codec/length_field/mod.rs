//! Length-field framing: a length, then that many bytes. NewLife's `LengthFieldCodec`, NetBox's headers, and most
//! custom protocols are this with other parameters.
//!
//! ```text
//!  +-----------------+--------------+--------+-------------
//!  | constant header | offset zeros | length | payload ...
//!  +-----------------+--------------+--------+-------------
//!    0 to 16 bytes     0 to 255       0 to 5   length counts the payload only
//! ```
//!
//! Problem: one format has a dozen variants, and the common variant must cost no more than a special codec. Approach:
//! the parameters are data, and the decoder branches once to code compiled for each length size. The decoder checks the
//! constant header. The bytes of the offset are written as zeros and ignored on receipt, because peers keep fields of
//! their own there.
//!
//! Rejected: a separate codec for NetBox, which is `size=-4,header=00000001`. Rejected: truncating a length that does
//! not fit its field, as the original does, because a receiver would read the rest of the payload as frames.

use super::frame::{Framed, Head};
use super::inline::InlineBytes;
use super::spec::out_of_range;
use super::spec::{BuiltIn, Parameters, bytes_of_hex};
use super::{Codec, Decoded, Format, FrameLayout, check_unnamed, is_bare, unsupported};
use crate::error::{DecodeError, EncodeError};
use crate::message::{Kind, Message};
use crate::setting::SettingError;

/// The encoding of the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LengthSize {
    /// One byte.
    U8,
    /// Two bytes, little-endian.
    #[default]
    U16Le,
    /// Two bytes, big-endian.
    U16Be,
    /// Four bytes, little-endian.
    U32Le,
    /// Four bytes, big-endian.
    U32Be,
    /// One to five bytes of seven bits, the lowest first. The top bit says that another byte follows (LEB128).
    Varint,
}

impl LengthSize {
    /// Returns the size with this number: bytes of the field, negative for big-endian, 0 for a varint.
    #[must_use]
    pub const fn from_number(number: i32) -> Option<Self> {
        match number {
            1 | -1 => Some(Self::U8),
            2 => Some(Self::U16Le),
            -2 => Some(Self::U16Be),
            4 => Some(Self::U32Le),
            -4 => Some(Self::U32Be),
            0 => Some(Self::Varint),
            _ => None,
        }
    }

    /// Returns the length of the longest payload that the field can express. A varint stops at 2^31-1, like its peers.
    #[must_use]
    pub const fn payload_bytes_max(self) -> u64 {
        match self {
            Self::U8 => u8::MAX as u64,
            Self::U16Le | Self::U16Be => u16::MAX as u64,
            Self::U32Le | Self::U32Be => u32::MAX as u64,
            Self::Varint => i32::MAX as u64,
        }
    }
}

/// The codec of frames that start with their length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LengthField {
    size: LengthSize,
    header: InlineBytes,
    offset_bytes: u8,
}

impl LengthField {
    /// Frames of a length of this size, without any other header.
    #[must_use]
    pub fn new(size: LengthSize) -> Self {
        Self {
            size,
            ..Self::default()
        }
    }

    /// Puts this many zero bytes in front of the length. Received bytes there may have any value.
    #[must_use]
    pub const fn with_offset(mut self, bytes: u8) -> Self {
        self.offset_bytes = bytes;
        self
    }

    /// Starts every frame with these bytes, at most 16. A received frame that starts differently is an error.
    ///
    /// # Errors
    /// There are too many bytes.
    pub fn with_header(mut self, header: &[u8]) -> Result<Self, SettingError> {
        self.header =
            InlineBytes::new(header).ok_or_else(|| out_of_range("header", "at most 16 bytes"))?;
        Ok(self)
    }

    /// The encoding of the length.
    #[must_use]
    pub const fn size(&self) -> LengthSize {
        self.size
    }

    /// Returns whether any bytes come before the length.
    #[inline(always)]
    pub(super) fn has_prefix(&self) -> bool {
        self.prefix_bytes() > 0
    }

    #[inline(always)]
    pub(super) fn head(&self, message: &Message<'_>) -> Result<Head, EncodeError> {
        if !is_bare(message.kind) {
            return Err(unsupported(NAME, message.kind));
        }
        check_unnamed(message, NAME)?;
        let length = message.payload.len() as u64;
        let limit = self.size.payload_bytes_max();
        if length > limit {
            return Err(EncodeError::PayloadTooLarge {
                bytes: length,
                limit,
            });
        }
        // The check above makes each of these conversions exact.
        let (word, field_bytes) = match self.size {
            LengthSize::U8 => (length, 1),
            LengthSize::U16Le => (length, 2),
            LengthSize::U16Be => (u64::from((length as u16).swap_bytes()), 2),
            LengthSize::U32Le => (length, 4),
            LengthSize::U32Be => (u64::from((length as u32).swap_bytes()), 4),
            LengthSize::Varint => varint(length as u32),
        };
        Ok(Head::new(word, 0, field_bytes))
    }

    /// Returns the number of bytes before the length.
    #[inline]
    fn prefix_bytes(&self) -> usize {
        self.header.as_slice().len() + usize::from(self.offset_bytes)
    }

    /// Checks the part of the constant header that has arrived.
    #[inline]
    fn check_header(&self, input: &[u8]) -> Result<(), DecodeError> {
        let header = self.header.as_slice();
        if header.is_empty() || input.starts_with(header) {
            return Ok(());
        }
        match header.iter().zip(input).position(|(want, is)| want != is) {
            Some(at) => Err(DecodeError::HeaderMismatch { at: at as u8 }),
            None => Ok(()),
        }
    }
}

impl BuiltIn for LengthField {
    const FORMAT: Format = FORMAT;
    const PARAMETERS: &'static [&'static str] = &["size", "offset", "header"];

    fn configured(parameters: &Parameters<'_>) -> Result<Self, SettingError> {
        let mut codec = LengthField::default();
        if let Some(value) = parameters.value("size") {
            let size = value.parse().ok().and_then(LengthSize::from_number);
            let bad = || parameters.bad("size", value, "one of 1, 2, -2, 4, -4, or 0 for a varint");
            codec = LengthField::new(size.ok_or_else(bad)?);
        }
        if let Some(value) = parameters.value("offset") {
            let bad = |_| parameters.bad("offset", value, "a number of bytes from 0 to 255");
            codec = codec.with_offset(value.parse().map_err(bad)?);
        }
        if let Some(value) = parameters.value("header") {
            let bad =
                || parameters.bad("header", value, "at most 16 bytes in hex, such as 00000001");
            let header = bytes_of_hex(value).ok_or_else(bad)?;
            codec = codec.with_header(&header).map_err(|_| bad())?;
        }
        Ok(codec)
    }
}

impl Codec for LengthField {
    #[inline(always)]
    fn format(&self) -> &'static Format {
        &FORMAT
    }

    #[inline(always)]
    fn decode<'a>(
        &self,
        input: &'a [u8],
        frame_bytes_max: usize,
    ) -> Result<Decoded<'a>, DecodeError> {
        self.check_header(input)?;
        let prefix_bytes = self.prefix_bytes();
        let Some(field) = input.get(prefix_bytes..) else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        // There is one branch on the size. Inside each arm the width of the field is a constant.
        let length = match self.size {
            LengthSize::U8 => fixed(field, |[byte]| u64::from(byte)),
            LengthSize::U16Le => fixed(field, |bytes| u64::from(u16::from_le_bytes(bytes))),
            LengthSize::U16Be => fixed(field, |bytes| u64::from(u16::from_be_bytes(bytes))),
            LengthSize::U32Le => fixed(field, |bytes| u64::from(u32::from_le_bytes(bytes))),
            LengthSize::U32Be => fixed(field, |bytes| u64::from(u32::from_be_bytes(bytes))),
            LengthSize::Varint => read_varint(field).ok_or(DecodeError::MalformedFrame)?,
        };
        let Some((payload_bytes, field_bytes)) = length else {
            return Ok(Decoded::Incomplete { frame_bytes: 0 });
        };
        let header_bytes = prefix_bytes + field_bytes;
        let framed = Framed::cut(input, header_bytes, payload_bytes, frame_bytes_max)?;
        Ok(framed.decoded(|payload| Message::new(Kind::OneWay, 0, payload)))
    }

    #[inline(always)]
    fn layout(&self, frame: &[u8], message: &Message<'_>) -> Option<FrameLayout> {
        let header_bytes = frame.len().checked_sub(message.payload.len())?;
        // A longer header costs as much to compare as to read.
        if header_bytes > TEMPLATE_HEADER_BYTES_MAX {
            return None;
        }
        let offset = self.header.as_slice().len()..self.prefix_bytes();
        Some(FrameLayout::new(header_bytes..frame.len()).with_ignored(offset))
    }

    #[inline(always)]
    fn encode(&self, message: &Message<'_>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let head = self.head(message)?;
        if self.has_prefix() {
            out.extend_from_slice(self.header.as_slice());
            out.resize(out.len() + usize::from(self.offset_bytes), 0);
        }
        head.push_with(message.payload, out);
        Ok(())
    }
}

/// Reads a length of fixed width. Returns it with that width, if it has arrived.
#[inline(always)]
fn fixed<const N: usize>(field: &[u8], read: impl FnOnce([u8; N]) -> u64) -> Option<(u64, usize)> {
    let bytes = field.first_chunk::<N>()?;
    Some((read(*bytes), N))
}

/// Reads a varint. Returns it with its width, once it has arrived. Returns `None` if the value exceeds 32 bits: its end
/// is not within five bytes, or the fifth byte has more than the remaining bits.
pub(super) fn read_varint(field: &[u8]) -> Option<Option<(u64, usize)>> {
    let mut value = 0;
    for (index, byte) in field.iter().take(VARINT_BYTES_MAX).enumerate() {
        if index == VARINT_BYTES_MAX - 1 && *byte > VARINT_LAST_BYTE_MAX {
            return None;
        }
        value |= u64::from(byte & 0x7F) << (7 * index);
        if byte & 0x80 == 0 {
            return Some(Some((value, index + 1)));
        }
    }
    Some(None)
}

/// Appends a varint in as few bytes as it needs.
pub(super) fn push_varint(value: u32, out: &mut Vec<u8>) {
    let (word, bytes) = varint(value);
    Head::new(word, 0, bytes).push(out);
}

/// Returns the bytes of a varint, the first byte in the lowest byte of the word, and their number.
const fn varint(mut value: u32) -> (u64, usize) {
    let (mut word, mut bytes) = (0, 0);
    while value > 0x7F {
        word |= (value as u64 & 0x7F | 0x80) << (8 * bytes);
        bytes += 1;
        value >>= 7;
    }
    (word | (value as u64) << (8 * bytes), bytes + 1)
}

const FORMAT: Format = Format {
    repeats_names: false,
    ..Format::new("length-field")
};
const NAME: &str = FORMAT.name;
/// The longest header for which frames have a template.
const TEMPLATE_HEADER_BYTES_MAX: usize = 8;
const VARINT_BYTES_MAX: usize = 5;
const VARINT_LAST_BYTE_MAX: u8 = 0x0F;

#[cfg(test)]
mod tests;
