//! Which names members and rooms may have.
//!
//! A name is shown inside lines of text and typed into commands, so it must be visible, bounded and unable
//! to command a terminal. Letters of any script are welcome; normalising look-alikes is left to the
//! application, because the rules for it differ by language.

use thiserror::Error;

use super::ErrorCode;
use crate::limits::NAME_BYTES_MAX;

/// Why a name is refused. Each can be retried with another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// There is nothing in it but white space.
    #[error("a name must not be empty")]
    Empty,
    /// It is longer than the limit; shorten it.
    #[error("a name of {bytes} bytes is longer than {limit} bytes")]
    TooLong {
        /// Length of the name in UTF-8 bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// It contains a control character, which could command the terminals that show it.
    #[error("a name must not contain control characters")]
    ControlCharacter,
    /// It starts or ends with white space, so that it would look like another name.
    #[error("a name must not start or end with white space")]
    OuterWhitespace,
    /// It contains a character that shows nothing or changes the direction of writing.
    #[error("a name must not contain invisible characters")]
    InvisibleCharacter,
    /// It could be taken for a notice or a command: in line clients names stand in brackets.
    #[error("a name must not contain [ or ], nor start with *, ! or /")]
    Reserved,
}

impl NameError {
    /// The code that tells a peer about this refusal.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Empty => ErrorCode::NameEmpty,
            Self::TooLong { .. }
            | Self::ControlCharacter
            | Self::OuterWhitespace
            | Self::InvisibleCharacter
            | Self::Reserved => ErrorCode::NameInvalid,
        }
    }
}

impl From<NameError> for ErrorCode {
    fn from(error: NameError) -> Self {
        error.code()
    }
}

/// Checks a name of a member or room.
///
/// # Errors
/// The first rule the name breaks.
pub fn validate_name(name: &str) -> Result<(), NameError> {
    // The length comes first, so that what follows is bounded however long the peer's text is.
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong {
            bytes: name.len(),
            limit: NAME_BYTES_MAX,
        });
    }
    let trimmed = name.trim();
    if trimmed.is_empty() {
        return Err(NameError::Empty);
    }
    if name.chars().any(char::is_control) {
        return Err(NameError::ControlCharacter);
    }
    if trimmed.len() != name.len() {
        return Err(NameError::OuterWhitespace);
    }
    if name.chars().any(is_invisible) {
        return Err(NameError::InvisibleCharacter);
    }
    if name.contains(['[', ']']) || name.starts_with(['*', '!', '/']) {
        return Err(NameError::Reserved);
    }
    Ok(())
}

/// Characters that show nothing or turn the line around: with them one name can be made to look like another.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_script_are_accepted_up_to_the_limit() {
        for name in [
            "a",
            "Ada Lovelace",
            "王小明",
            "🐙",
            &"n".repeat(NAME_BYTES_MAX),
        ] {
            assert_eq!(validate_name(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn each_broken_rule_is_named() {
        let too_long = "n".repeat(NAME_BYTES_MAX + 1);
        let cases = [
            ("", NameError::Empty),
            (" \t", NameError::Empty),
            (
                &too_long,
                NameError::TooLong {
                    bytes: 65,
                    limit: 64,
                },
            ),
            ("a\u{1b}[2Jb", NameError::ControlCharacter),
            ("a\u{9b}b", NameError::ControlCharacter),
            ("anna\u{200b}", NameError::InvisibleCharacter),
            ("\u{202e}anna", NameError::InvisibleCharacter),
            ("anna]: I am leaving", NameError::Reserved),
            ("* anna left", NameError::Reserved),
            ("/quit", NameError::Reserved),
            (" a", NameError::OuterWhitespace),
            ("a\u{3000}", NameError::OuterWhitespace),
        ];
        for (name, expected) in cases {
            assert_eq!(validate_name(name), Err(expected), "{name:?}");
        }
    }

    #[test]
    fn refusals_map_to_codes_a_client_can_act_on() {
        assert_eq!(ErrorCode::from(NameError::Empty), ErrorCode::NameEmpty);
        assert_eq!(NameError::OuterWhitespace.code(), ErrorCode::NameInvalid);
    }
}
