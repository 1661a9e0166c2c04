//! How bytes of strangers are shown: to a person at a terminal, or to a program that reads JSON.
//!
//! A terminal obeys control characters, so that a message could retitle, clear or script it, and a line feed could
//! forge a line of somebody else. Everything from peers therefore passes [`visible`] or [`escaped`] on its way to a
//! person. Rejected: trusting the server to have done it, which is a peer like any other.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

/// Text that cannot command a terminal, for reading: white space becomes a space, other control characters,
/// characters that reverse the direction of text, and what is not UTF-8 become `?`.
pub(crate) fn visible(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        shown.extend(chunk.valid().chars().map(|character| match character {
            '\t' | '\n' | '\r' => ' ',
            character if character.is_control() || is_deceptive(character) => '?',
            character => character,
        }));
        if !chunk.invalid().is_empty() {
            shown.push('?');
        }
    }
    shown
}

/// Text that a terminal shows and does not obey, without loss: control characters, characters that change the
/// direction of text, and bytes that are not UTF-8 become escapes.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if character.is_control() || is_deceptive(character) {
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

/// Adds `payload` as text, or `payload_base64` if it is not UTF-8.
pub(crate) fn insert_payload(object: &mut Map<String, Value>, payload: &[u8]) {
    let (key, text) = match str::from_utf8(payload) {
        Ok(text) => ("payload", text.to_owned()),
        Err(_) => ("payload_base64", STANDARD.encode(payload)),
    };
    object.insert(key.to_owned(), text.into());
}

/// Whether a character ends a line or changes the direction of what follows, while being no control character.
fn is_deceptive(character: char) -> bool {
    matches!(
        character,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_replaces_and_escaping_keeps() {
        let attack = b"a\x1b[2J\xff\n\tGr\xc3\xbc\xc3\x9fe\xe2\x80\xae";
        assert_eq!(visible(attack), "a?[2J?  Grüße?");
        assert_eq!(escaped(attack), "a\\u{1b}[2J\\xff\\n\\tGrüße\\u{202e}");
        assert_eq!(visible("Grüße 王🐙\tok".as_bytes()), "Grüße 王🐙 ok");
    }

    #[test]
    fn json_holds_text_or_base64() {
        let object = |payload: &[u8]| {
            let mut object = Map::new();
            insert_payload(&mut object, payload);
            Value::from(object).to_string()
        };
        assert_eq!(object(b"say \"x\"\n"), r#"{"payload":"say \"x\"\n"}"#);
        assert_eq!(object(b"\xff\x00"), r#"{"payload_base64":"/wA="}"#);
    }
}
