//! Why a line is no message.

use std::fmt;

use thiserror::Error;

use super::words::{JsonField, JsonKind};
use crate::text::escaped;

/// Why a line is no message of the codec `json`. Its text says what to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct JsonFault(#[from] LineFault);

#[cfg(test)]
impl JsonFault {
    pub(crate) fn kind(self) -> LineFault {
        self.0
    }
}

/// The kinds of a [`JsonFault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum LineFault {
    /// The line is not JSON, or not UTF-8.
    #[error("no valid JSON at byte {at}; send one object a line, such as {{\"kind\":\"ping\"}}")]
    Syntax {
        /// The number of bytes up to the fault.
        at: u32,
    },
    /// The line is JSON, but no object.
    #[error("a message is a JSON object, such as {{\"kind\":\"ping\"}}")]
    NotAnObject,
    /// The object does not say its kind.
    #[error("field \"kind\" is missing; it must be {}", JsonField::Kind.expected())]
    NoKind,
    /// No kind has this field.
    #[error("unknown field \"{name}\"; check its spelling")]
    UnknownField {
        /// The beginning of the field's name.
        name: FieldName,
    },
    /// Objects of this kind do not have this field.
    #[error("kind \"{kind}\" has no field \"{field}\"; it has {}", list(kind.fields()))]
    ForeignField {
        /// The kind of the object.
        kind: JsonKind,
        /// The field.
        field: JsonField,
    },
    /// The field comes twice.
    #[error("field \"{field}\" comes twice; send it once")]
    RepeatedField {
        /// The field.
        field: JsonField,
    },
    /// The field cannot have this value.
    #[error("field \"{field}\" must be {}", field.expected())]
    BadValue {
        /// The field.
        field: JsonField,
    },
    /// A message has only one payload.
    #[error("\"data\", \"data64\" and \"json\" are spellings of one payload; send one of them")]
    TwoPayloads,
    /// A delivery comes from a topic or from a member.
    #[error("a delivery has a \"topic\" or the \"name\" of its author; send one of them")]
    TwoNames,
}

/// The first bytes of a field's name, for an error that allocates nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FieldName {
    bytes: [u8; NAME_BYTES],
    count: u8,
}

impl FieldName {
    pub(crate) fn new(name: &str) -> Self {
        let count = name.floor_char_boundary(NAME_BYTES);
        let mut bytes = [0; NAME_BYTES];
        bytes[..count].copy_from_slice(&name.as_bytes()[..count]);
        Self {
            bytes,
            count: count as u8,
        }
    }
}

impl fmt::Display for FieldName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&escaped(&self.bytes[..usize::from(self.count)]))
    }
}

impl fmt::Debug for FieldName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{self}\"")
    }
}

fn list(fields: &[JsonField]) -> String {
    fields
        .iter()
        .map(|field| field.name())
        .collect::<Vec<_>>()
        .join(", ")
}

const NAME_BYTES: usize = 15;
