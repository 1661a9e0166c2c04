//! Untrusted text on its way to a terminal or a log.
//!
//! Problem: a terminal obeys control characters, so a peer's text could control the terminal. A line feed could forge a
//! line of another person, and a bidirectional control can change the order of the shown text. Approach: one predicate,
//! [`is_hazardous`], defines these characters, and all untrusted text passes one of three functions that use it:
//!
//! | function | for | a hazardous character becomes |
//! |---|---|---|
//! | [`visible`] | people who read | `?`, also each sequence that is not UTF-8 |
//! | [`escaped`] | errors, logs, and programs that need the bytes | `\u{9b}`, or `\xff` for what is not UTF-8 |
//! | [`escape_json`] | JSON | `\u009b`, so that it stays the same JSON |
//!
//! Rejected: leaving the replacement to the server, because a server is a peer like any other. Rejected: U+FFFD as
//! replacement. It is longer than the replaced bytes, so a line could grow beyond its limit.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character can command a terminal, end a line, or change the order in which a line is shown.
///
/// These are the control characters C0 (including the tab), DEL and C1, the separators of lines and paragraphs, and the
/// controls of the writing direction. Joiners stay: scripts and emoji need them, and they stay inside the text.
#[inline]
#[must_use]
pub const fn is_hazardous(character: char) -> bool {
    character < ' ' || (character >= '\u{7f}' && is_hazardous_beyond_ascii(character))
}

const fn is_hazardous_beyond_ascii(character: char) -> bool {
    matches!(
        character,
        '\u{7f}'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{206f}'
            | '\u{fff9}'..='\u{fffb}'
    )
}

/// Returns the text for reading. Tabs stay; every other hazardous character and every sequence that is not UTF-8
/// becomes `?`.
#[must_use]
pub fn visible(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    each_visible(text, |part| shown.push_str(part));
    shown
}

/// Appends the result of [`visible`], which never has more bytes than `text`.
pub(crate) fn push_visible(text: &[u8], out: &mut Vec<u8>) {
    each_visible(text, |part| out.extend_from_slice(part.as_bytes()));
}

fn each_visible(text: &[u8], mut push: impl FnMut(&str)) {
    for chunk in text.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some(at) = rest.find(|c: char| is_hazardous(c) && c != '\t') {
            let (safe, tail) = rest.split_at(at);
            push(safe);
            push(REPLACEMENT);
            let mut tail = tail.chars();
            tail.next();
            rest = tail.as_str();
        }
        push(rest);
        if !chunk.invalid().is_empty() {
            push(REPLACEMENT);
        }
    }
}

/// Returns the text with an escape for every hazardous character and every byte that is not UTF-8.
#[must_use]
pub fn escaped(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_hazardous(character) {
                shown.extend(character.escape_default());
            } else {
                shown.push(character);
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// Returns the same JSON without raw hazardous characters. `json` is a whole document or a line of it.
///
/// Serialisers must escape C0, and leave the other characters, which may occur in strings only. White space between the
/// tokens of an indented document stays.
#[must_use]
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let is_raw = |c: char| c > '~' && is_hazardous(c);
    if !json.contains(is_raw) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_raw(character) {
            // All hazardous characters are in the basic plane, so one escape is enough. Writing to a string cannot
            // fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(character));
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Reads a number of one to 32 hexadecimal digits. The parser of the standard library also takes a sign, so two texts
/// would be the same number.
#[must_use]
pub fn hexadecimal(digits: &str) -> Option<u128> {
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(digits, 16).ok().filter(|_| are_digits)
}

const REPLACEMENT: &str = "?";

#[cfg(test)]
mod tests {
    use super::*;

    const ATTACK: &[u8] = b"a\x1b[2J\xff\n\tGr\xc3\xbc\xc3\x9fe\xe2\x80\xae\xc2\x9b";

    #[test]
    fn reading_replaces_and_escaping_keeps() {
        assert_eq!(visible(ATTACK), "a?[2J??\tGrüße??");
        assert_eq!(
            escaped(ATTACK),
            "a\\u{1b}[2J\\xff\\n\\tGrüße\\u{202e}\\u{9b}"
        );
        let family = "Grüße 王 👩\u{200d}👧 ok";
        assert_eq!(visible(family.as_bytes()), family);
        assert_eq!(escaped(family.as_bytes()), family);
    }

    #[test]
    fn a_hexadecimal_number_has_digits_and_no_sign() {
        assert_eq!(hexadecimal("fF"), Some(255));
        assert_eq!(hexadecimal(&"f".repeat(32)), Some(u128::MAX));
        for text in ["", "+f", "-0", "0x1", " 1", "g", &"f".repeat(33)] {
            assert_eq!(hexadecimal(text), None, "{text:?}");
        }
    }

    #[test]
    fn every_control_of_terminals_and_of_direction_is_hazardous() {
        let ranges = [
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            '\u{61c}'..='\u{61c}',
            '\u{200e}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2066}'..='\u{2069}',
        ];
        for character in ranges.into_iter().flatten() {
            assert!(is_hazardous(character), "{character:?}");
            let text = format!("a{character}b");
            assert!(!escaped(text.as_bytes()).contains(character));
            assert_eq!(
                visible(text.as_bytes()).contains(character),
                character == '\t'
            );
        }
        for character in " ~aé王🐙\u{a0}\u{200d}\u{fffd}".chars() {
            assert!(!is_hazardous(character), "{character:?}");
        }
    }

    #[test]
    fn shown_text_is_never_longer_than_its_source() {
        for text in [ATTACK, &[0xff; 9], "\u{202e}\u{9b}".as_bytes(), b""] {
            let mut out = Vec::new();
            push_visible(text, &mut out);
            assert!(out.len() <= text.len());
            assert_eq!(out, visible(text).into_bytes());
        }
    }

    #[test]
    fn json_stays_the_same_json() {
        let json = "{\n  \"a\": \"x\u{9b}2J\u{202e}y\u{7f}\"\n}";
        assert_eq!(
            escape_json(json),
            "{\n  \"a\": \"x\\u009b2J\\u202ey\\u007f\"\n}"
        );
        assert!(matches!(escape_json("{\"ü\":1}"), Cow::Borrowed(_)));
    }
}
