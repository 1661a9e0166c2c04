//! UTF-8 of text messages, which may be cut anywhere.

use std::io::IoSlice;

use super::frame::{Opcode, header};
use super::{Mask, MessageKind};
use crate::layer::WebSocketFault;

/// The beginning of a character that is not complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CutCharacter {
    bytes: [u8; 4],
    /// Not more than four. A wider number would be 11 bytes more, because it is aligned.
    count: u8,
}

impl CutCharacter {
    pub(super) fn is_empty(self) -> bool {
        self.count == 0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.count)]
    }

    /// Checks the next bytes of a text.
    ///
    /// # Errors
    /// No text contains these bytes.
    pub(super) fn check(&mut self, mut text: &[u8]) -> Result<(), WebSocketFault> {
        while self.count > 0 {
            let Some((&next, rest)) = text.split_first() else {
                return Ok(());
            };
            self.bytes[usize::from(self.count)] = next;
            self.count += 1;
            text = rest;
            match end_of(self.bytes())? {
                0 => self.count = 0,
                _ => continue,
            }
        }
        let cut = end_of(text)?;
        self.keep(&text[text.len() - cut..]);
        Ok(())
    }

    /// Keeps the beginning of a character, which is shorter than four bytes.
    pub(super) fn keep(&mut self, bytes: &[u8]) {
        self.bytes[..bytes.len()].copy_from_slice(bytes);
        self.count = bytes.len() as u8;
    }
}

/// The number of bytes at the end that begin a character.
fn end_of(text: &[u8]) -> Result<usize, WebSocketFault> {
    match std::str::from_utf8(text) {
        Ok(_) => Ok(0),
        Err(error) if error.error_len().is_none() => Ok(text.len() - error.valid_up_to()),
        Err(_) => Err(WebSocketFault::BadText),
    }
}

/// Makes text messages of a codec's lines.
#[derive(Debug, Default)]
pub(super) struct TextWriter {
    /// A fragment was sent, and its message continues.
    is_mid_message: bool,
    /// The bytes of a character that was cut by the end of a write.
    cut: CutCharacter,
}

impl TextWriter {
    /// Sends lines as a text message, or as a fragment if the last line is cut. Bytes that are no UTF-8 become
    /// replacement characters, because a peer must close a connection with invalid text.
    pub(super) fn send(
        &mut self,
        plain: &[IoSlice<'_>],
        bytes: usize,
        mask: Option<Mask>,
        network: &mut Vec<u8>,
    ) {
        let is_end = plain.iter().rev().find_map(|slice| slice.last()) == Some(&b'\n');
        let opcode = match self.is_mid_message {
            true => Opcode::Continuation,
            false => Opcode::Text,
        };
        let cut = std::mem::take(&mut self.cut);
        let start = network.len();
        let length = cut.bytes().len() + bytes;
        let first = header(opcode, is_end, length, mask);
        network.extend_from_slice(first.bytes());
        let mut text = network.len();
        network.extend_from_slice(cut.bytes());
        for slice in plain {
            network.extend_from_slice(slice);
        }
        if std::str::from_utf8(&network[text..]).is_err() {
            let bytes = network.split_off(text);
            network.truncate(start);
            let (whole, cut) = repaired(&bytes, is_end);
            self.cut.keep(cut);
            if whole.is_empty() && !is_end {
                return;
            }
            network.extend_from_slice(header(opcode, is_end, whole.len(), mask).bytes());
            text = network.len();
            network.extend_from_slice(whole.as_bytes());
        }
        if let Some(mut mask) = mask {
            mask.apply(&mut network[text..]);
        }
        self.is_mid_message = !is_end;
    }
}

/// Puts replacement characters in place of bytes that are no text. Returns the text, and the beginning of a character
/// that a later write may complete.
fn repaired(bytes: &[u8], is_end: bool) -> (String, &[u8]) {
    // Only the last foreign bytes may be the beginning of a character.
    let last = bytes.utf8_chunks().last();
    let last = last.map_or(&[][..], |chunk| chunk.invalid());
    let cut = match std::str::from_utf8(last) {
        Err(error) if error.error_len().is_none() && !is_end => last.len(),
        _ => 0,
    };
    let (whole, cut) = bytes.split_at(bytes.len() - cut);
    (String::from_utf8_lossy(whole).into_owned(), cut)
}

pub(super) fn is_text(kind: MessageKind) -> bool {
    kind == MessageKind::Text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_be_cut_anywhere_and_bad_text_is_found_at_its_byte() {
        let text = "aß水𝄞\u{10FFFF}z".as_bytes();
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let mut cut = CutCharacter::default();
                for piece in [&text[..first], &text[first..second], &text[second..]] {
                    cut.check(piece).unwrap();
                }
                assert!(cut.is_empty());
            }
        }
        // Surrogates, overlong forms and numbers above the last character fail at their second byte.
        for bad in [
            &b"\xED\xA0"[..],
            b"\xC0",
            b"\xF4\x90",
            b"\xFF",
            b"\xE0\x80",
            b"\x80",
        ] {
            let mut cut = CutCharacter::default();
            let outcomes: Vec<_> = bad.iter().map(|byte| cut.check(&[*byte])).collect();
            assert_eq!(
                *outcomes.last().unwrap(),
                Err(WebSocketFault::BadText),
                "{bad:x?}"
            );
            assert!(
                outcomes[..bad.len() - 1].iter().all(Result::is_ok),
                "{bad:x?}"
            );
        }
    }

    #[test]
    fn foreign_bytes_become_replacement_characters_and_cut_characters_wait() {
        assert_eq!(
            repaired(b"a\xFFb\n", true),
            ("a\u{FFFD}b\n".to_owned(), &[][..])
        );
        assert_eq!(
            repaired(b"a\xFF\xE6\xB0", false),
            ("a\u{FFFD}".to_owned(), &[0xE6, 0xB0][..])
        );
        assert_eq!(
            repaired(b"a\xE6\n", true),
            ("a\u{FFFD}\n".to_owned(), &[][..])
        );
        assert_eq!(repaired(b"", false), (String::new(), &[][..]));
    }
}
