//! The rules for names of members and rooms.
//!
//! Problem: a name is shown inside lines of text and typed into commands, and people trust it. A name must not control
//! a terminal, make a line look like another kind of line (`bob -> you`), or look like another name. Approach: the
//! profile for identifiers of Unicode's security mechanisms (UTS #39), with its tables. A name has one spelling (NFC),
//! contains only letters, digits and marks in use today and a little punctuation, and has letters of one script or of
//! scripts that are written together. Comparing [`name_skeleton`]s finds a name that looks like another name in use.
//!
//! Rejected: a list of misleading characters made for this crate, because there are thousands. Rejected: changing a
//! peer's name to NFC, because the peer compares bytes and would not find its own name. Rejected: emoji and spaces,
//! because they could make surrounding text look like a part of the name.

use std::borrow::Cow;
use std::fmt;

use thiserror::Error;
use unicode_normalization::char::is_combining_mark;
use unicode_normalization::{UnicodeNormalization, is_nfc};
use unicode_security::{
    GeneralSecurityProfile, RestrictionLevel, RestrictionLevelDetection, skeleton,
};

use super::ErrorCode;
use crate::limits::NAME_BYTES_MAX;

/// Why a name of a member, a room or a topic is refused, or a pattern of topics. Correct the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty, or only white space.
    #[error("a name must not be empty")]
    Empty,
    /// The name is longer than the limit; shorten it.
    #[error("a name of {bytes} bytes is longer than {limit} bytes")]
    TooLong {
        /// Length of the name in UTF-8 bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The name contains a character that the profile for identifiers does not allow, such as a space, a bracket, an
    /// emoji, a control or an invisible character.
    #[error("a name must not contain {}; use letters, digits, - _ . and '", Shown(*character))]
    Character {
        /// The first such character.
        character: char,
    },
    /// The name does not start with a letter or a digit, so it could be mistaken for another kind of line.
    #[error("a name must start with a letter or a digit")]
    Start,
    /// The characters are not in the composed spelling. Convert the name to Unicode's NFC.
    #[error("a name must be in Unicode's composed spelling (NFC)")]
    NotNormalised,
    /// The name mixes letters of scripts that are not written together, such as Latin and Cyrillic. Letters of
    /// different scripts can look the same.
    #[error("a name must not mix letters of different scripts")]
    MixedScripts,
    /// The name is the word that line clients use for their own user.
    #[error("a name must not be or look like \"{RESERVED}\"")]
    Reserved,
    /// The topic or pattern is empty.
    #[error("a topic must not be empty")]
    EmptyTopic,
    /// The topic or pattern is longer than the limit.
    #[error("a topic of {bytes} bytes is longer than {limit} bytes")]
    LongTopic {
        /// Length in UTF-8 bytes.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The topic or pattern has more segments than the limit.
    #[error("a topic of more than {limit} segments is too deep")]
    DeepTopic {
        /// The limit.
        limit: usize,
    },
    /// The topic or pattern starts or ends with a dot, or has two of them in a row.
    #[error("a topic must not have an empty segment")]
    EmptySegment,
    /// The topic or pattern contains white space or a control character.
    #[error("a topic must not contain {0:?}")]
    TopicCharacter(char),
    /// The topic contains `*` or `>`, but messages are published to one topic.
    #[error("a message is published to one topic, so wildcards are not allowed")]
    WildcardInTopic,
    /// A `*` is not a whole segment, or a `>` is not the whole last segment.
    #[error("a `*` must be a whole segment of a pattern, and a `>` must be its whole last segment")]
    WildcardMisplaced,
}

impl NameError {
    /// Returns the code that tells a peer about this refusal.
    #[must_use]
    pub const fn code(self) -> ErrorCode {
        match self {
            Self::Empty | Self::EmptyTopic => ErrorCode::NameEmpty,
            _ => ErrorCode::NameInvalid,
        }
    }
}

impl From<NameError> for ErrorCode {
    fn from(error: NameError) -> Self {
        error.code()
    }
}

/// A character in an error text. A character that is invisible or could mislead is shown by its number.
struct Shown(char);

impl fmt::Display for Shown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ' ' => formatter.write_str("a space"),
            character if character.is_ascii_graphic() => write!(formatter, "{character}"),
            character => write!(formatter, "U+{:04X}", u32::from(character)),
        }
    }
}

/// Checks a name of a member or room. Two valid names can still look the same: see [`name_skeleton`].
///
/// # Errors
/// The first rule the name breaks.
pub fn validate_name(name: &str) -> Result<(), NameError> {
    // The length is checked first, so that the work is bounded for a peer's text of any length.
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong {
            bytes: name.len(),
            limit: NAME_BYTES_MAX,
        });
    }
    if is_plain(name) {
        return Ok(());
    }
    check(name)
}

fn check(name: &str) -> Result<(), NameError> {
    let Some(first) = name.chars().find(|first| !first.is_whitespace()) else {
        return Err(NameError::Empty);
    };
    // Checked before the single characters: if a mark has a composed spelling, this error names the best change.
    if !is_nfc(name) {
        return Err(NameError::NotNormalised);
    }
    if let Some(character) = name.chars().find(|character| !is_allowed(*character)) {
        return Err(NameError::Character { character });
    }
    if !first.is_alphanumeric() || is_combining_mark(first) {
        return Err(NameError::Start);
    }
    if !name.check_restriction_level(RestrictionLevel::HighlyRestrictive) {
        return Err(NameError::MixedScripts);
    }
    // Capital letters are compared, too: a zero looks like the capital O, but not like the small o.
    let looks_reserved =
        |name: &str, reserved: &str| name_skeleton(name) == name_skeleton(reserved);
    if looks_reserved(&name.to_lowercase(), RESERVED)
        || looks_reserved(&name.to_uppercase(), &RESERVED.to_uppercase())
    {
        return Err(NameError::Reserved);
    }
    Ok(())
}

/// Whether a name keeps all rules for a simple reason: it has only ASCII letters, digits, hyphens and underscores. A
/// name as short as the reserved word needs the full check. A longer name has a longer skeleton. Nodes check the author
/// of each message, and most names are of this kind.
fn is_plain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    name.len() > RESERVED.len()
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(is_plain)
}

/// Returns the name that a person meant to type: without white space around it, and composed (NFC).
///
/// Use it where people type names. The protocol refuses a name that is not composed.
#[must_use]
pub fn typed_name(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    // No spelling makes a text of this length a valid name.
    if text.len() > TYPED_BYTES_MAX || is_nfc(text) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.nfc().collect())
}

/// Returns the skeleton that names with the same look share, by Unicode's table of confusable characters: `scope` in
/// Latin and in Cyrillic letters have the same skeleton. It is only for comparison and need not be readable.
///
/// A name that [`validate_name`] accepts has a skeleton of less than two kilobytes.
#[must_use]
pub fn name_skeleton(name: &str) -> String {
    skeleton(name).collect()
}

/// Returns a peer's name for use within a line. Each character that no name may have becomes `?`, so the line cannot
/// look like another kind of line. The result is never longer than `name`, unless that is empty.
#[must_use]
pub fn displayed_name(name: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if name.is_empty() {
        return Cow::Borrowed("?");
    }
    if name.bytes().all(is_plain) || name.chars().all(is_allowed) {
        return Cow::Borrowed(name);
    }
    // No name of a member has an `@`, so an `@` can only come before the node of a member of another server.
    let at = name.rfind('@').filter(|at| 0 < *at && at + 1 < name.len());
    let shown = |(index, character)| {
        if is_allowed(character) || at == Some(index) {
            character
        } else {
            '?'
        }
    };
    Cow::Owned(name.char_indices().map(shown).collect())
}

/// Returns whether names may contain the character. The profile also allows the colon, but in lines a colon ends a
/// name.
fn is_allowed(character: char) -> bool {
    character != ':' && GeneralSecurityProfile::identifier_allowed(character)
}

/// The word that line clients use for their own user.
const RESERVED: &str = "you";

/// The longest text that is composed. The composed spelling of a character has at least a third of the bytes of any
/// other spelling.
const TYPED_BYTES_MAX: usize = 4 * NAME_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_any_script_are_accepted_up_to_the_limit() {
        for name in [
            "a",
            "42",
            "Ada_Lovelace",
            "o'neill",
            "load-1f3c-2-17",
            "Zoë",
            "王小明",
            "東京タワー",
            "Женя",
            "Ελένη",
            "محمد",
            "नमस्ते",
            "홍길동kim",
            "yours",
            &"n".repeat(NAME_BYTES_MAX),
        ] {
            assert_eq!(validate_name(name), Ok(()), "{name}");
            assert_eq!(displayed_name(name), name);
            assert_eq!(typed_name(name), name);
        }
    }

    #[test]
    fn each_broken_rule_is_named() {
        let too_long = "n".repeat(NAME_BYTES_MAX + 1);
        let character = |character| NameError::Character { character };
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
            ("a\u{1b}[2Jb", character('\u{1b}')),
            ("a\u{9b}b", character('\u{9b}')),
            ("anna\u{200b}", character('\u{200b}')),
            ("anna\u{e0061}", character('\u{e0061}')),
            ("\u{202e}anna", character('\u{202e}')),
            ("anna]: I am leaving", character(']')),
            ("* anna left", character('*')),
            ("/quit", character('/')),
            ("bob -> you", character(' ')),
            ("bob->you", character('>')),
            ("bob\u{2192}you", character('\u{2192}')),
            ("bob:", character(':')),
            (" a", character(' ')),
            ("a\u{a0}b", character('\u{a0}')),
            ("a\u{3000}", character('\u{3000}')),
            ("\u{fffd}", character('\u{fffd}')),
            ("🐙", character('🐙')),
            ("-bob", NameError::Start),
            ("\u{301}bob", NameError::Start),
            ("Zoe\u{308}", NameError::NotNormalised),
            ("p\u{430}ypal", NameError::MixedScripts),
            ("αbc", NameError::MixedScripts),
            ("you", NameError::Reserved),
            ("YOU", NameError::Reserved),
            ("Y0U", NameError::Reserved),
            ("You", NameError::Reserved),
        ];
        for (name, expected) in cases {
            assert_eq!(validate_name(name), Err(expected), "{name:?}");
        }
    }

    #[test]
    fn an_error_shows_no_character_that_could_mislead() {
        let text = |character| NameError::Character { character }.to_string();
        assert!(text(' ').contains("contain a space;"));
        assert!(text('[').contains("contain [;"));
        assert!(text('\u{202e}').contains("contain U+202E;"));
        assert!(text('🐙').contains("contain U+1F419;"));
    }

    /// Regression: the check of one name took longer than all other work of a node for a message.
    #[test]
    fn a_plain_name_is_accepted_at_once_and_only_if_it_keeps_all_rules() {
        let is_valid = |name: &str| check(name).is_ok();
        for first in (0..128).map(char::from) {
            for second in (0..128).map(char::from) {
                for name in [
                    format!("{first}{second}"),
                    format!("{first}{second}ou"),
                    format!("yo{first}{second}"),
                ] {
                    assert!(is_valid(&name) || !is_plain(&name), "{name:?}");
                    assert_eq!(validate_name(&name), check(&name), "{name:?}");
                }
            }
        }
        for name in ["load-1f3c-2-17", "Ada_Lovelace", "4200", "yyou", "y00u"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["you", "Y0U", "-ada", "_ada", "Zo\u{eb}", "o'neill", ""] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn names_that_look_alike_have_one_skeleton() {
        // The pairs are digits and letters, two letters for one, and whole words of another script.
        for (one, other) in [
            ("admin1", "adminl"),
            ("Ian", "lan"),
            ("modern", "modem"),
            ("scope", "ѕсоре"),
        ] {
            assert_ne!(one, other);
            assert_eq!(name_skeleton(one), name_skeleton(other), "{one} {other}");
        }
        for (one, other) in [("ann", "bob"), ("user-1", "user-2"), ("user-10", "user-01")] {
            assert_ne!(name_skeleton(one), name_skeleton(other), "{one} {other}");
        }
    }

    #[test]
    fn a_foreign_name_cannot_look_like_another_kind_of_line() {
        for (name, shown) in [
            ("bob -> you", "bob?-??you"),
            ("* bob left", "??bob?left"),
            ("b\u{202e}ob\u{1b}]:", "b?ob???"),
            ("", "?"),
            ("ann@b", "ann@b"),
            ("a n@n@b]", "a?n?n@b?"),
            ("@b", "?b"),
            ("ann@", "ann?"),
        ] {
            assert_eq!(displayed_name(name), shown);
        }
    }

    #[test]
    fn typed_text_is_composed_and_trimmed() {
        assert_eq!(typed_name(" Zoe\u{308}\t"), "Zoë");
        assert_eq!(typed_name("a b"), "a b");
        assert!(matches!(typed_name("ann"), Cow::Borrowed("ann")));
        // The text is far too long already, so it is not composed.
        let long = "e\u{301}".repeat(TYPED_BYTES_MAX);
        assert_eq!(typed_name(&long), long);
    }

    #[test]
    fn refusals_map_to_codes_a_client_can_act_on() {
        assert_eq!(ErrorCode::from(NameError::Empty), ErrorCode::NameEmpty);
        assert_eq!(NameError::MixedScripts.code(), ErrorCode::NameInvalid);
    }
}
