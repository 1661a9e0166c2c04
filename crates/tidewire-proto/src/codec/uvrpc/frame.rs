//! The two tables of UVRPC: `RpcFrame` and `BroadcastMessage`.
//!
//! The decoder reads any valid layout. The encoder writes one fixed layout in a single pass from front to back: the
//! table, the method, the parameters, and the vtable last. The original's own builder writes the same.

use std::ops::Range;

use super::table::{Broken, Table};
use crate::error::{DecodeError, EncodeError};
use crate::message::Kind;

/// The type of an [`RpcFrame`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RpcFrameType {
    /// A call, also one with an ignored answer.
    Request = 0,
    /// The result of a call.
    Response = 1,
    /// A message without an answer.
    Notification = 2,
    /// The refusal of a call.
    Error = 3,
}

/// A call or its answer, as in a TCP frame after the length, or in a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcFrame<'a> {
    /// The type.
    pub frame_type: RpcFrameType,
    /// Matches answers to requests.
    pub msgid: u32,
    /// Name of the method; empty in answers.
    pub method: &'a str,
    /// Arguments, result, or the parameters of an error.
    pub params: &'a [u8],
}

impl<'a> RpcFrame<'a> {
    /// Reads the frame that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedFrame`], or [`DecodeError::UnknownKind`] for another type.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match Self::read(bytes) {
            Ok((frame, _)) => Ok(frame),
            Err(broken) => Err(broken.error()),
        }
    }

    /// Reads the frame at the front of `bytes`. Returns it with the number of bytes that it uses.
    pub(super) fn read(bytes: &'a [u8]) -> Result<(Self, usize), Broken> {
        let mut table = Table::root(bytes)?;
        let [type_slot, msgid_slot, method_slot, params_slot] = SLOTS;
        let frame_type = match table.u8(type_slot)? {
            0 => RpcFrameType::Request,
            1 => RpcFrameType::Response,
            2 => RpcFrameType::Notification,
            3 => RpcFrameType::Error,
            other => return Err(Broken::UnknownType(other)),
        };
        let frame = Self {
            frame_type,
            msgid: table.u32(msgid_slot)?,
            method: table.string(method_slot)?,
            params: table.vector(params_slot)?,
        };
        Ok((frame, table.extent()))
    }

    /// Returns the positions of the number and the parameters of the frame that fills `bytes`. Returns `None` if
    /// another number, or other parameters of the same length, would change anything else that is read.
    pub(super) fn template_positions(bytes: &[u8]) -> Option<(usize, Range<usize>)> {
        Table::root(bytes).ok()?.template_positions(SLOTS)
    }

    /// Returns the number of bytes that [`RpcFrame::encode`] appends.
    ///
    /// # Errors
    /// [`EncodeError::PayloadTooLarge`] if it would be more than 2^31-1, the limit of the format.
    pub fn encoded_bytes(&self) -> Result<usize, EncodeError> {
        let layout = self.layout();
        let method_bytes = if layout.has_method {
            OFFSET_BYTES + padded(self.method.len() + 1)
        } else {
            0
        };
        let params_at = TABLE as usize + layout.table_bytes + method_bytes + OFFSET_BYTES;
        check_bytes(params_at + VTABLE_BYTES, self.params.len())
    }

    /// Appends the frame to `out`.
    ///
    /// # Errors
    /// As [`RpcFrame::encoded_bytes`]; `out` is unchanged.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let frame_bytes = self.encoded_bytes()?;
        out.reserve(frame_bytes);
        let layout = self.layout();
        let vtable = (frame_bytes - VTABLE_BYTES) as u32;
        push_u32(TABLE, out);
        // The distance to the vtable is counted backwards, and this vtable lies ahead.
        push_u32(TABLE.wrapping_sub(vtable), out);
        if layout.type_at != 0 {
            push_u32(u32::from(self.frame_type as u8), out);
        }
        push_u32(self.msgid, out);
        let mut vector = TABLE + layout.table_bytes as u32;
        if layout.has_method {
            push_u32(vector - (TABLE + u32::from(layout.method_at)), out);
            vector += (OFFSET_BYTES + padded(self.method.len() + 1)) as u32;
        }
        push_u32(vector - (TABLE + u32::from(layout.params_at)), out);
        if layout.has_method {
            push_vector(self.method.as_bytes(), 1, out);
        }
        push_vector(self.params, 0, out);
        for number in [
            VTABLE_BYTES as u16,
            layout.table_bytes as u16,
            layout.type_at,
            layout.msgid_at,
            layout.method_at,
            layout.params_at,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }

    /// Returns the positions of the fields. A request leaves its type out, which is the default. A frame without a
    /// method leaves the method out, except for a request, because its receiver looks the method up.
    fn layout(&self) -> Layout {
        let has_type = self.frame_type != RpcFrameType::Request;
        let has_method = !has_type || !self.method.is_empty();
        let msgid_at = if has_type { 8 } else { 4 };
        let params_at = if has_method {
            msgid_at + 8
        } else {
            msgid_at + 4
        };
        Layout {
            type_at: if has_type { 4 } else { 0 },
            msgid_at,
            method_at: if has_method { msgid_at + 4 } else { 0 },
            params_at,
            has_method,
            table_bytes: usize::from(params_at) + OFFSET_BYTES,
        }
    }
}

struct Layout {
    type_at: u16,
    msgid_at: u16,
    method_at: u16,
    params_at: u16,
    has_method: bool,
    table_bytes: usize,
}

/// A published message, as in a datagram to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BroadcastMessage<'a> {
    /// The topic.
    pub topic: &'a str,
    /// The payload.
    pub data: &'a [u8],
}

impl<'a> BroadcastMessage<'a> {
    /// Reads the published message that fills `bytes`.
    ///
    /// # Errors
    /// [`DecodeError::MalformedFrame`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::read(bytes).map_err(Broken::error)
    }

    /// Reads the published message that fills `bytes`, unless they could be a call or its answer: a datagram does not
    /// say which of the two tables it holds. The type and the number of a call never look like two references.
    pub(super) fn recognise(bytes: &'a [u8]) -> Option<Self> {
        let mut table = Table::root(bytes).ok()?;
        if !table.has_references_only(2) {
            return None;
        }
        let found = Self::from_table(&mut table).ok()?;
        (!found.topic.is_empty()).then_some(found)
    }

    fn read(bytes: &'a [u8]) -> Result<Self, Broken> {
        Self::from_table(&mut Table::root(bytes)?)
    }

    fn from_table(table: &mut Table<'a>) -> Result<Self, Broken> {
        Ok(Self {
            topic: table.string(0)?,
            data: table.vector(1)?,
        })
    }

    /// Appends the published message to `out`.
    ///
    /// # Errors
    /// [`EncodeError::PayloadTooLarge`] if it would have more than 2^31-1 bytes, the limit of the format; `out` is
    /// unchanged. A datagram's limit is far less.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let topic_bytes = OFFSET_BYTES + padded(self.topic.len() + 1);
        let around = OFFSET_BYTES + BROADCAST_TABLE_BYTES + topic_bytes + OFFSET_BYTES;
        let frame_bytes = check_bytes(around + BROADCAST_VTABLE_BYTES, self.data.len())?;
        out.reserve(frame_bytes);
        let vtable = (frame_bytes - BROADCAST_VTABLE_BYTES) as u32;
        push_u32(TABLE, out);
        push_u32(TABLE.wrapping_sub(vtable), out);
        // Each distance counts from its own field: the topic's at 8, the data's at 12.
        push_u32(8, out);
        push_u32(4 + topic_bytes as u32, out);
        push_vector(self.topic.as_bytes(), 1, out);
        push_vector(self.data, 0, out);
        for number in [
            BROADCAST_VTABLE_BYTES as u16,
            BROADCAST_TABLE_BYTES as u16,
            4,
            8,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }
}

/// Returns the size of a frame of `around` bytes and a vector, if the format can address it.
fn check_bytes(around: usize, vector_bytes: usize) -> Result<usize, EncodeError> {
    let frame_bytes = around.saturating_add(padded(vector_bytes));
    if frame_bytes > FRAME_BYTES_LIMIT {
        return Err(EncodeError::PayloadTooLarge {
            bytes: vector_bytes as u64,
            limit: FRAME_BYTES_LIMIT.saturating_sub(around) as u64 & !3,
        });
    }
    Ok(frame_bytes)
}

fn push_u32(number: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a count, these bytes, at least `zeros` zeros, and zeros to the next multiple of four.
fn push_vector(bytes: &[u8], zeros: usize, out: &mut Vec<u8>) {
    push_u32(bytes.len() as u32, out);
    out.extend_from_slice(bytes);
    let padding = padded(bytes.len() + zeros) - bytes.len();
    out.extend_from_slice(&[0; 4][..padding]);
}

const fn padded(bytes: usize) -> usize {
    bytes.saturating_add(3) & !3
}

pub(super) fn frame_type_of(kind: Kind) -> Option<RpcFrameType> {
    match kind {
        // The original has no one-way message. The closest is a call with an ignored answer.
        Kind::Request | Kind::OneWay => Some(RpcFrameType::Request),
        Kind::Reply => Some(RpcFrameType::Response),
        Kind::Deliver => Some(RpcFrameType::Notification),
        Kind::Error => Some(RpcFrameType::Error),
        _ => None,
    }
}

/// The slots of an `RpcFrame`: type, number, method and parameters.
const SLOTS: [usize; 4] = [0, 1, 2, 3];
const TABLE: u32 = 4;
const OFFSET_BYTES: usize = 4;
const VTABLE_BYTES: usize = 12;
const BROADCAST_TABLE_BYTES: usize = 12;
const BROADCAST_VTABLE_BYTES: usize = 8;
const FRAME_BYTES_LIMIT: usize = i32::MAX as usize;
