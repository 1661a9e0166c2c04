//! Reads a FlatBuffer table without trusting any offset in it.
//!
//! A FlatBuffer consists of offsets, and its usual accessors follow them without a check. Here every step is a
//! bounds-checked slice, so that nothing outside the buffer can be reached. The content is only read as bytes and text.
//!
//! ```text
//!  0        u32 position of the table
//!  table:   i32 distance back to its vtable, then the fields: numbers inline, others as u32 distance on
//!  vtable:  u16 its size, u16 the table's size, then for each slot u16 distance from table to field, or 0
//!  vector:  u32 count, bytes; a string has a NUL after them
//! ```

use std::ops::Range;

use crate::error::DecodeError;

/// Why a table or a field of it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The buffer ends before this many bytes.
    Short { bytes: usize },
    /// No further bytes could repair it.
    Malformed,
    /// The frame is whole, and of an unknown type.
    UnknownType(u8),
}

impl Broken {
    /// Returns the error of a frame that gets no more bytes.
    pub(super) const fn error(self) -> DecodeError {
        match self {
            Self::UnknownType(number) => DecodeError::UnknownKind(number),
            Self::Short { .. } | Self::Malformed => DecodeError::MalformedFrame,
        }
    }
}

/// The root table of a buffer.
#[derive(Debug)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    position: usize,
    size: usize,
    slots: &'a [u8],
    extent: usize,
}

impl<'a> Table<'a> {
    pub(super) fn root(bytes: &'a [u8]) -> Result<Self, Broken> {
        let position = u32_at(bytes, 0)? as usize;
        if position < OFFSET_BYTES {
            return Err(Broken::Malformed);
        }
        let back = i32::from_le_bytes(array_at(bytes, position)?);
        let vtable = position as i64 - i64::from(back);
        let vtable = usize::try_from(vtable).map_err(|_| Broken::Malformed)?;
        let vtable_bytes = usize::from(u16::from_le_bytes(array_at(bytes, vtable)?));
        let slots_bytes = vtable_bytes.checked_sub(VTABLE_HEADER_BYTES);
        let slots_bytes = slots_bytes.ok_or(Broken::Malformed)?;
        let size = usize::from(u16::from_le_bytes(array_at(bytes, vtable + 2)?));
        // The distance to the vtable, which was read above, is a part of the table.
        if size < OFFSET_BYTES {
            return Err(Broken::Malformed);
        }
        let slots = slice_at(bytes, vtable + VTABLE_HEADER_BYTES, slots_bytes)?;
        slice_at(bytes, position, size)?;
        Ok(Self {
            bytes,
            position,
            size,
            slots,
            extent: (vtable + vtable_bytes).max(position + size),
        })
    }

    /// The u8 in this slot, 0 if it is left out.
    pub(super) fn u8(&self, slot: usize) -> Result<u8, Broken> {
        match self.field(slot, 1)? {
            Some(at) => Ok(u8::from_le_bytes(array_at(self.bytes, at)?)),
            None => Ok(0),
        }
    }

    /// The u32 in this slot, 0 if it is left out.
    pub(super) fn u32(&self, slot: usize) -> Result<u32, Broken> {
        match self.field(slot, 4)? {
            Some(at) => u32_at(self.bytes, at),
            None => Ok(0),
        }
    }

    /// The bytes in this slot, empty if they are left out.
    pub(super) fn vector(&mut self, slot: usize) -> Result<&'a [u8], Broken> {
        Ok(self.elements(slot)?.map_or(&[], |(elements, _)| elements))
    }

    /// The text in this slot, empty if it is left out.
    pub(super) fn string(&mut self, slot: usize) -> Result<&'a str, Broken> {
        let Some((text, end)) = self.elements(slot)? else {
            return Ok("");
        };
        // The terminator is part of the format; a peer in C would read on without it.
        let [terminator] = array_at(self.bytes, end)?;
        self.extent = self.extent.max(end + 1);
        match str::from_utf8(text) {
            Ok(text) if terminator == 0 => Ok(text),
            _ => Err(Broken::Malformed),
        }
    }

    /// Whether the table has exactly this many slots, and each of them a distance to an aligned position. A small
    /// number in a slot is no such distance, so the answer distinguishes tables of references from tables of numbers.
    pub(super) fn has_references_only(&self, slots: usize) -> bool {
        self.slots.len() == 2 * slots
            && (0..slots).all(|slot| {
                let at = self.field(slot, OFFSET_BYTES).ok().flatten();
                at.is_some_and(|at| {
                    let distance = u32_at(self.bytes, at).unwrap_or(0);
                    at.is_multiple_of(OFFSET_BYTES)
                        && distance > 0
                        && (distance as usize).is_multiple_of(OFFSET_BYTES)
                })
            })
    }

    /// Returns the positions of the number's four bytes in slot `number` and of the vector's bytes in slot `vector`.
    /// The number must come first, and no other data may lie there: neither the table's own references nor the byte in
    /// slot `byte` and the text in slot `text`. Then another number and other bytes change nothing else in the frame.
    pub(super) fn template_positions(
        &self,
        [byte, number, text, vector]: [usize; 4],
    ) -> Option<(usize, Range<usize>)> {
        let back = i32::from_le_bytes(array_at(self.bytes, self.position).ok()?);
        let vtable = usize::try_from(self.position as i64 - i64::from(back)).ok()?;
        let field = |slot, bytes| self.field(slot, bytes).ok().flatten();
        let target = |slot| -> Option<(usize, Range<usize>)> {
            let at = field(slot, OFFSET_BYTES)?;
            let start = at.checked_add(u32_at(self.bytes, at).ok()? as usize)?;
            let elements = start.checked_add(OFFSET_BYTES)?;
            let end = elements.checked_add(u32_at(self.bytes, start).ok()? as usize)?;
            Some((at, elements..end))
        };
        let nothing = 0..0;
        let number_at = field(number, OFFSET_BYTES)?;
        let (vector_at, elements) = target(vector)?;
        let (text_at, text) = match target(text) {
            // The range includes the count before and the terminator after.
            Some((at, text)) => (
                span(at),
                text.start - OFFSET_BYTES..text.end.saturating_add(1),
            ),
            None => (nothing.clone(), nothing.clone()),
        };
        let read = [
            span(0),
            span(self.position),
            vtable..vtable + VTABLE_HEADER_BYTES + self.slots.len(),
            field(byte, 1).map_or(nothing, |at| at..at + 1),
            text_at,
            text,
            span(vector_at),
            span(elements.start - OFFSET_BYTES),
        ];
        let number = span(number_at);
        let is_free = |range: &Range<usize>| {
            let overlaps =
                |other: &Range<usize>| other.start < range.end && range.start < other.end;
            !read.iter().any(overlaps)
        };
        let is_first = number.end <= elements.start && elements.end <= self.bytes.len();
        (is_first && is_free(&number) && is_free(&elements)).then_some((number_at, elements))
    }

    /// Returns the end of the last byte of the table and of the parts that were read.
    pub(super) fn extent(&self) -> usize {
        self.extent
    }

    /// Returns the position of the field of this slot, if the table has it.
    fn field(&self, slot: usize, field_bytes: usize) -> Result<Option<usize>, Broken> {
        let (slots, _) = self.slots.as_chunks::<2>();
        let offset = slots
            .get(slot)
            .map_or(0, |offset| usize::from(u16::from_le_bytes(*offset)));
        match offset {
            0 => Ok(None),
            _ if offset < OFFSET_BYTES || offset + field_bytes > self.size => {
                Err(Broken::Malformed)
            }
            _ => Ok(Some(self.position + offset)),
        }
    }

    /// Returns the elements of the vector in this slot, and their end.
    fn elements(&mut self, slot: usize) -> Result<Option<(&'a [u8], usize)>, Broken> {
        let Some(at) = self.field(slot, OFFSET_BYTES)? else {
            return Ok(None);
        };
        let distance = u32_at(self.bytes, at)? as usize;
        let start = at.checked_add(distance).ok_or(Broken::Malformed)?;
        let count = u32_at(self.bytes, start)? as usize;
        let elements = slice_at(self.bytes, start + OFFSET_BYTES, count)?;
        let end = start + OFFSET_BYTES + count;
        self.extent = self.extent.max(end);
        Ok(Some((elements, end)))
    }
}

/// Returns the range of a number or a reference.
const fn span(at: usize) -> Range<usize> {
    at..at + OFFSET_BYTES
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Broken> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Broken> {
    let slice = slice_at(bytes, at, N)?;
    slice.try_into().map_err(|_| Broken::Malformed)
}

#[inline]
fn slice_at(bytes: &[u8], at: usize, count: usize) -> Result<&[u8], Broken> {
    let end = at.checked_add(count).ok_or(Broken::Malformed)?;
    bytes.get(at..end).ok_or(Broken::Short { bytes: end })
}

const OFFSET_BYTES: usize = 4;
const VTABLE_HEADER_BYTES: usize = 4;
