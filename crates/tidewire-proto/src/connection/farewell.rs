//! The farewell of a connection: the reason of its close, for programs and for people.

use crate::body::GoAwayCode;
use crate::limits::TEXT_BYTES_MAX;

/// The reason why a side closes a connection, as in a go-away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Farewell {
    /// The reason, for programs.
    pub code: GoAwayCode,
    /// The reason, for people, in at most 255 bytes; may be empty. A peer's text may contain any characters: pass it
    /// through [`escaped`](crate::text::escaped) or [`visible`](crate::text::visible) before you show it.
    pub text: Box<str>,
}

impl Farewell {
    /// Makes a farewell. Its text is cut to 255 bytes.
    #[must_use]
    pub fn new(code: GoAwayCode, text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
        Self {
            code,
            text: text.into(),
        }
    }
}
